r"""What old responses cost, where logs say how old they are.

Responses of asynchronous or partial rollouts were sampled L updates before they are trained on, and cost the factor
1 + a L^q (`learning.mechanism`). Relative to the reference

    r_N(B) = law(B) (1 + a L(B)^q)/(1 + a L_0^q),     L(B) = L_0 (B/B_0)^-p,

p = 1 where as many responses are in flight at every batch (Little's law), p = 0 where the age is bounded in updates.
Logs of two batches give p; of one they leave it anywhere between. q keeps its value, a is log-normal: the eight
published rows, each read for its own a, scatter by .88 around their mean. With no age in the logs, or an age of 0,
there is no factor.

References
----------
.. [1] RachitBansal/verl @ a42b8d75, experiments/critical_batch_size: updates to three scores at 1, 2, 4 and 32 updates
   per rollout batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from batchsim.learning.mechanism import STALENESS, rollout_lag, staleness_factor
from batchsim.specs.recipe import Recipe

COST_SPREAD = 0.88
"""Standard deviation of log a over the published rows."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Lag:
    """Age of the responses and what it costs, in draws.

    Parameters
    ----------
    reference : float [updates]
        L_0.
    exponent : ndarray, (draw,) [1]
        p.
    cost : ndarray, (draw,) [1]
        a.
    """

    reference: float
    exponent: Floats
    cost: Floats

    def log_factor(self, batch_ratio: ArrayLike) -> Floats:
        """Logarithm of the factor on r_N.

        Parameters
        ----------
        batch_ratio : array_like, scalar or (train_batch,) [1]
            B/B_0.

        Returns
        -------
        ndarray, (draw,) or (draw, train_batch) [1]
        """
        x = np.asarray(batch_ratio, dtype=np.float64)
        p, a = (v if x.ndim == 0 else v[:, None] for v in (self.exponent, self.cost))
        lag = self.reference * x**-p
        return np.log(staleness_factor(lag, reference_lag=self.reference, constants=(a, STALENESS[1])))

    def at(self, picks: NDArray[np.int64]) -> Lag:
        """Draws that were picked."""
        return Lag(reference=self.reference, exponent=self.exponent[picks], cost=self.cost[picks])


def draw_lag(
    nodes: dict[str, xr.Dataset], recipe: Recipe, *, draws: int, rng: np.random.Generator, warnings: list[str]
) -> Lag | None:
    """The lag that logs state, with its cost from the prior.

    Parameters
    ----------
    nodes : dict of str to xarray.Dataset
        Runs; `staleness_mean` over rollout steps, in versions of the weights, where the log holds it.
    recipe : Recipe
        The reference.
    draws : int
    rng : numpy.random.Generator
        Not used where there is no lag.
    warnings : list of str
        Receives what the forecast takes from the logs.

    Returns
    -------
    Lag or None
    """
    ages: dict[float, list[float]] = {}
    for ds in nodes.values():
        if "staleness_mean" in ds and np.isfinite(ds["staleness_mean"].values).any():
            versions = float(np.nanmean(ds["staleness_mean"].values))
            lag = float(rollout_lag(updates_per_rollout=recipe.updates_per_rollout, in_flight=versions))
            ages.setdefault(float(ds.attrs["train_batch"]), []).append(lag if versions > 0 else 0.0)
    known = {b: float(np.mean(v)) for b, v in ages.items() if np.mean(v) > 0}
    if not known:
        return None
    u = np.log(np.array(list(known)) / recipe.train_batch)
    log_lag = np.log(list(known.values()))
    if len(known) > 1:
        exponent = np.full(draws, float(np.clip(-np.polyfit(u, log_lag, 1)[0], 0.0, 1.0)))
    else:
        exponent = rng.uniform(size=draws)
    reference = math.exp(float(np.mean(log_lag + np.mean(exponent) * u)))
    warnings.append(
        f"the logs say that responses are {reference:.2g} updates old at B = {recipe.train_batch}, and the age goes "
        f"as the batch to the power of -{np.mean(exponent):.2g}"
        + (" (one batch: anything from 0 to 1)" if len(known) == 1 else "")
        + "; r_N holds what that costs from a prior, a run at half the responses in flight would tell"
    )
    return Lag(reference=reference, exponent=exponent, cost=draw_cost(draws, rng))


def draw_cost(draws: int, rng: np.random.Generator) -> Floats:
    """Draws of a, the cost of an update's age [1], from the scatter of the published rows."""
    return np.asarray(STALENESS[0] * np.exp(COST_SPREAD * rng.standard_normal(draws)))
