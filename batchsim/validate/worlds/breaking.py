r"""Attempts to falsify the coordinate law, each with what the law says and what Adam does.

The law is A(B) = sum_i G_i^2/(sqrt(G_i^2 + sigma_i^2/B) + eps), in Adam's own basis, with every coordinate's own noise.
It would be false if one of these moved r_N where A(B) stays, or left r_N where A(B) moves:

    basis        the same prompts and policies in the teacher's basis and in a rotated one: equal norms, other A(B)
    epsilon      Adam's epsilon from 0 to ten times the root mean square of a coordinate's batch gradient
    layers       half of the coordinates with features sixteen times as large, as layers of unequal scale are
    memory       beta_1 of 0 and .9, beta_2 of .9 and .999
    rate         two rates a factor of eight apart, both far below the best
    sparsity     the teacher on 4, 16, 64 coordinates of 512

What the law says uses exact moments, A(B_0)/A(B) averaged along the reference run: no estimate is in it. A row survives
where |log(said/measured)| stays within `TOLERANCE` at every factor whose r_N is at most `LARGEST`.

Where it does not, a second reading tells whether A(B) is wrong or the path: r_N = int dJ/(s A(B; theta_B(J))/x) over
int dJ/A(B_0; theta_0(J)), each batch's slope taken along its OWN run at equal scores J. One number A(B)/A(B_0) for a
run supposes that all batches pass through the same policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchsim.learning.progress import slope_from_moments
from batchsim.learning.worlds import (
    SoftmaxWorld,
    Trained,
    Trainer,
    mean_responses,
    softmax_world,
    train,
    true_noise,
)
from batchsim.learning.worlds.softmax import Floats

STREAM = 20261203
WORLDS = 3
DIM, PROMPTS, GROUP = 512, 1024, 8
SMALLEST = 4
FACTORS = 4.0 ** np.arange(4)
START, GAIN = 0.25, 0.2
RATE = 0.004
SEEDS = 3
ALONG = (0.05, 0.25, 0.5, 0.75, 0.95)
TOLERANCE, LARGEST = 0.12, 4.0
PATH_POINTS = 8
"""Scores between start and target at which each batch's own run is looked at."""
EPSILONS = (0.0, 0.1, 1.0, 10.0)
LAYER_SCALE = 16.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting of one attempt."""

    attempt: str
    setting: str
    world: SoftmaxWorld
    trainer: Trainer
    rate: float = RATE


def cases(number: int) -> Iterator[Case]:
    """Settings of all attempts on one draw of the seed."""
    rng = np.random.default_rng(np.random.SeedSequence(STREAM, spawn_key=(number,)))
    seed = int(rng.integers(2**31))
    adam = Trainer()

    def world(**more: Any) -> SoftmaxWorld:
        return softmax_world(
            dim=DIM, prompts=PROMPTS, validation=0, answers=8, start_score=START, label_noise=0.2, seed=seed, **more
        )

    for rotated in (False, True):
        basis = "rotated" if rotated else "the teacher's"
        yield Case(attempt="basis", setting=basis, world=world(signal=16, rotated=rotated), trainer=adam)
    plain = world()
    noise = true_noise(plain, np.zeros(DIM), group_size=GROUP)
    rms = float(np.sqrt(np.mean(noise.gradient**2 + noise.variance / (SMALLEST * GROUP))))
    for epsilon in EPSILONS:
        trainer = Trainer(epsilon=epsilon * rms)
        # A step is smaller by 1 + epsilon, and the rate is raised to make up for it.
        yield Case(
            attempt="epsilon", setting=f"{epsilon:g} rms", world=plain, trainer=trainer, rate=RATE * (1 + epsilon)
        )
    scale = np.where(np.arange(DIM) < DIM // 2, LAYER_SCALE, 1.0).astype(np.float32)
    layered = replace(plain, features=plain.features * scale, validation=plain.validation * scale)
    yield Case(attempt="layers", setting=f"{LAYER_SCALE:g} and 1", world=layered, trainer=adam, rate=RATE / 8)
    for beta1, beta2 in ((0.0, 0.999), (0.9, 0.9), (0.0, 0.9)):
        yield Case(
            attempt="memory", setting=f"beta_1 {beta1:g}, beta_2 {beta2:g}", world=plain,
            trainer=Trainer(beta1=beta1, beta2=beta2),
        )  # fmt: skip
    yield Case(attempt="rate", setting=f"{RATE / 2:g}", world=plain, trainer=adam, rate=RATE / 2)
    yield Case(attempt="rate", setting=f"{4 * RATE:g}", world=plain, trainer=adam, rate=4 * RATE)
    for signal in (4, 16, 64):
        yield Case(attempt="sparsity", setting=f"{signal} of {DIM}", world=world(signal=signal), trainer=adam)


def measure_case(case: Case, target: float) -> tuple[Floats, Floats, Floats]:
    """r_N at `FACTORS`, what exact moments along the reference run say, and along each batch's own."""
    batch = SMALLEST * GROUP * FACTORS
    runs = train(
        case.world, case.trainer, prompts=SMALLEST * FACTORS, group_size=GROUP,
        learning_rate=case.rate * np.sqrt(FACTORS), seeds=SEEDS, seed=1, responses_max=4e6,
        evaluate_every=np.maximum(1024, batch), target=target,
    )  # fmt: skip
    needed, _ = mean_responses(runs, target)
    said = []
    for share in ALONG:
        (run,) = train(
            case.world, case.trainer, prompts=SMALLEST, group_size=GROUP, learning_rate=case.rate, seed=2,
            responses_max=share * needed[0], evaluate_every=needed[0],
        )  # fmt: skip
        slope = _slopes(case, run.theta)
        said.append(np.sqrt(FACTORS) * slope[0] / slope)
    return needed / needed[0], np.mean(said, axis=0), _along_own_paths(case, runs, target)


def _slopes(case: Case, theta: Floats) -> Floats:
    """A(B) at `FACTORS`, exact at a policy."""
    noise = true_noise(case.world, theta, group_size=GROUP)
    return slope_from_moments(
        SMALLEST * GROUP * FACTORS, gradient=noise.gradient, variance=noise.variance, epsilon=case.trainer.epsilon
    )


def _along_own_paths(case: Case, runs: Sequence[Trained], target: float) -> Floats:
    """r_N from A(B) along each batch's own run, at equal scores; NaN beyond the factors that are reached."""
    scores = START + (target - START) * (np.arange(PATH_POINTS) + 0.5) / PATH_POINTS
    needed = np.full(FACTORS.size, np.nan)
    for i, factor in enumerate(FACTORS):
        run = next(r for r in runs if r.arm == i)
        places = [run.responses_to_target(score) for score in scores]
        if not np.isfinite(places).all():
            continue
        # Progress per response is s A/x, s = sqrt(x).
        cost = []
        for place in places:
            (cut,) = train(
                case.world, case.trainer, prompts=SMALLEST * factor, group_size=GROUP,
                learning_rate=case.rate * math.sqrt(factor), seed=3, responses_max=max(place, 1.0),
                evaluate_every=1e12,
            )  # fmt: skip
            cost.append(math.sqrt(factor) / _slopes(case, cut.theta)[i])
        needed[i] = np.sum(cost)
    return np.asarray(needed / needed[0])


def validate_breaking(*, worlds: int = WORLDS, progress: Callable[[int, int], object] | None = None) -> dict[str, Any]:
    """All attempts on several draws.

    Parameters
    ----------
    worlds : int
        Draws of the seed; r_N and what the law says are averaged over them in logarithms.
    progress : callable or None

    Returns
    -------
    dict
        Plain values: name, overall, slices (one per attempt and setting), rows (with each factor), skipped.
    """
    found: dict[tuple[str, str], list[tuple[Floats, Floats, Floats]]] = {}
    for number in range(worlds):
        todo = list(cases(number))
        for i, case in enumerate(todo):
            found.setdefault((case.attempt, case.setting), []).append(measure_case(case, START + GAIN))
            if progress is not None:
                progress(number * len(todo) + i + 1, worlds * len(todo))
    rows, slices = [], []
    for (attempt, setting), several in found.items():
        with np.errstate(divide="ignore"):
            measured, said, paths = (np.exp(np.mean(np.log(part), axis=0)) for part in zip(*several, strict=True))
        own: list[dict[str, Any]] = []
        for factor, m, s, path in zip(FACTORS[1:], measured[1:], said[1:], paths[1:], strict=True):
            counts = math.isfinite(m) and m <= LARGEST
            own.append(
                {
                    "claim": f"{attempt}, {setting}: r_N at {factor:g} times the batch",
                    "attempt": attempt,
                    "setting": setting,
                    "factor": float(factor),
                    "predicted": float(s),
                    "own_path": float(path) if math.isfinite(path) else None,
                    "interval": [float(s * math.exp(-TOLERANCE)), float(s * math.exp(TOLERANCE))],
                    "measured": float(m) if math.isfinite(m) else None,
                    "error": float(s / m - 1) if math.isfinite(m) else None,
                    "covered": bool(abs(math.log(s / m)) <= TOLERANCE) if counts else None,
                    "peer": None,
                }
            )
        tested = [r for r in own if r["covered"] is not None]
        slices.append(
            {
                "slice": f"{attempt}: {setting}",
                "n": len(tested),
                "survives": all(r["covered"] for r in tested),
                "largest_log_error": max((abs(math.log(1 + r["error"])) for r in tested), default=None),
                "measured": [r["measured"] for r in own],
                "predicted": [r["predicted"] for r in own],
                "own_path": [r["own_path"] for r in own],
            }
        )
        rows += own
    return {
        "name": "breaking",
        "overall": {
            "attempts": len(slices),
            "survived": sum(s["survives"] for s in slices),
            "factors": FACTORS[1:].tolist(),
            "tolerance": TOLERANCE,
            "worlds": worlds,
        },
        "slices": slices,
        "rows": rows,
        "skipped": [],
    }
