r"""What changes beside the learning rate when the batch changes, and advice on the change.

Adam's averages run over updates, and a batch x times larger makes updates x times rarer. To keep them running over
the same responses (Malladi et al. 2022),

    1 - beta -> x (1 - beta)  for both betas,    eps -> eps/sqrt(x),    eta -> eta sqrt(x),

valid while noise dominates and x (1 - beta) < 1. A clip on the gradient norm follows the norm, which falls as
B^(-1/2) below the noise scale: clip -> clip/sqrt(x) (MLPerf's GRPO reference does so). PPO-EWMA's proximal policy
averages over updates too: its centre of mass beta/(1 - beta) is divided by x (Hilton et al. 2022).

References
----------
.. [1] Malladi et al. 2022, arXiv:2205.10287, scaling rule for Adam.
.. [2] Hilton, Cobbe & Schulman 2022, arXiv:2110.00641, batch size-invariance.
.. [3] MLPerf Training 6.1, qwen35_397b_grpo: clip 0.125 sqrt(256/B), rate 1e-6 sqrt(B/256).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batchsim.errors import InputError

FEW_UPDATES = 20
"""Updates to the target below which Adam's averages have not settled."""


@dataclass(frozen=True, kw_only=True)
class AdamCompanions:
    """Adam's other settings at another batch.

    Parameters
    ----------
    learning_rate_ratio : float [1]
        s = sqrt(x).
    beta1, beta2 : float [1]
    epsilon : float
    gradient_clip : float or None
    proximal_beta : float or None [1]
        PPO-EWMA's decay.
    warnings : tuple of str
    """

    learning_rate_ratio: float
    beta1: float
    beta2: float
    epsilon: float
    gradient_clip: float | None
    proximal_beta: float | None
    warnings: tuple[str, ...]


def adam_companions(
    batch_ratio: float,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    gradient_clip: float | None = None,
    proximal_beta: float | None = None,
) -> AdamCompanions:
    """Adam's betas, epsilon, gradient clip and PPO-EWMA decay at x times the batch.

    Parameters
    ----------
    batch_ratio : float [1]
        x = B/B_0 > 0.
    beta1, beta2 : float in [0, 1) [1]
    epsilon : float
    gradient_clip : float or None
        Clip of the gradient norm at the reference.
    proximal_beta : float or None [1]
        Decay of PPO-EWMA's proximal policy per update.

    Returns
    -------
    AdamCompanions
        A beta that the rule would make negative is 0, with a warning: the average is then one update long.

    Raises
    ------
    InputError
        For a ratio that is not positive, or a decay outside [0, 1).
    """
    if not (np.isfinite(batch_ratio) and batch_ratio > 0):
        raise InputError(f"batch_ratio is {batch_ratio:g}, and it must be positive and finite")
    for name, value in (("beta1", beta1), ("beta2", beta2), ("proximal_beta", proximal_beta or 0.0)):
        if not 0 <= value < 1:
            raise InputError(f"{name} is {value:g}, outside [0, 1)")
    said = []
    scaled = {}
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        left = 1 - batch_ratio * (1 - value)
        if left < 0:
            said.append(
                f"{name} {value:g} has no counterpart at {batch_ratio:g} times the batch: its average would be "
                "shorter than one update"
            )
        scaled[name] = max(left, 0.0)
    proximal = None
    if proximal_beta is not None:
        mass = proximal_beta / (1 - proximal_beta) / batch_ratio
        proximal = mass / (1 + mass)
    root = float(np.sqrt(batch_ratio))
    return AdamCompanions(
        learning_rate_ratio=root,
        beta1=scaled["beta1"],
        beta2=scaled["beta2"],
        epsilon=epsilon / root,
        gradient_clip=None if gradient_clip is None else gradient_clip / root,
        proximal_beta=proximal,
        warnings=tuple(said),
    )


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Where a batch stands against the noise scale, and what to mind.

    Parameters
    ----------
    regime : {'noise', 'transition', 'signal'}
        B below a third of the noise scale, within a factor 3 of it, or above.
    rule : str
        Learning-rate rule that keeps progress per response: 'sqrt' in the noise regime, 'invariant' beyond.
    warnings : tuple of str
    """

    regime: str
    rule: str
    warnings: tuple[str, ...]


def advise(
    train_batch: float,
    *,
    noise_scale: float,
    updates_to_target: float | None = None,
    clipped_share: float | None = None,
    learning_rate_ratio: float | None = None,
    ceiling: float | None = None,
) -> Advice:
    """Regime of a batch and warnings on its recipe.

    Parameters
    ----------
    train_batch, noise_scale : float [responses]
    updates_to_target : float or None [updates]
    clipped_share : float or None [1]
        Share of updates whose gradient is clipped.
    learning_rate_ratio, ceiling : float or None [1]
        s, and the largest s that training survives.

    Returns
    -------
    Advice

    Raises
    ------
    InputError
        For a batch or noise scale that is not positive.
    """
    if not (train_batch > 0 and noise_scale > 0):
        raise InputError(f"train_batch {train_batch:g} and noise_scale {noise_scale:g} must be positive")
    b = train_batch / noise_scale
    regime = "noise" if b < 1 / 3 else "transition" if b <= 3 else "signal"
    said = []
    if updates_to_target is not None and updates_to_target < FEW_UPDATES:
        said.append(
            f"{updates_to_target:.0f} updates to the target are fewer than {FEW_UPDATES}: momentum and the second "
            "moment have not settled, and the sample cost is above the law's"
        )
    if clipped_share is not None and clipped_share > 0.1:
        said.append(
            f"{100 * clipped_share:.0f} % of the updates are clipped: the clip sets the step, not the rate; scale it "
            "with the norm, as B^(-1/2)"
        )
    if ceiling is not None and learning_rate_ratio is not None and learning_rate_ratio >= ceiling:
        said.append(
            f"the learning rate is at its ceiling ({ceiling:g} times the reference): a larger batch gains nothing"
        )
    if regime == "signal":
        said.append(f"the batch is {b:.1f} times the noise scale: most of it repeats what a smaller one says")
    return Advice(regime=regime, rule="sqrt" if regime == "noise" else "invariant", warnings=tuple(said))
