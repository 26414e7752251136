r"""r_N from two short pilots, against worlds in which the truth is known.

For a world, the rate that reaches the target in the fewest updates at the smallest batch is found first, and the
reference rate is a given share c_0 of it. Then the truth: N* at the smallest batch and at 2, 4, ... 256 times it under
the sqrt rule, several seeds each, N* being the straight line between exact evaluations. The forecaster sees two runs of
one seed each, at the smallest two batches, up to a fifth of N* of the smallest, and is asked for r_N at the largest
factor whose r_N lies in [1.2, 2] and whose runs have `UPDATES_MIN` updates or more. Which factor that is, half of the
seeds say, and r_N there is measured on the other half: chosen and measured on the same runs, it would be too high. The
forecaster uses

    moments          |G|^2, tr(Sigma) and A(B) from sums per coordinate of two halves of every update (the pilots'
                     `halves`); beyond a quarter of a half's responses the family of the fitted k goes on
    ... and c_0      the same, with the law's step cost at the true c_0 and the penalty p of the small transformer
    ... and N*_0     moments again, by someone who has a finished reference run: the noise scale grows as the curve
                     flattens. Slope of the score ~ A(B_0) ~ |G|^2 at small batches, so that B_noise over the whole run
                     is that of the pilot times the pilot's slope over the run's, dJ/N of each
    norms: drift     B_noise of the pilots' chunk norms, k = infinity
    norms: k = 1/2   the same, k = 1/2
    hyperbola        (B + B_noise)/(B_0 + B_noise)

and beside them stands what the law says with exact moments averaged along the reference run, without c_0 and with it,
which no pilot can know: what is left there is the law's own error. A form that says nothing (pilots too short for
moments) is counted as silent and stays out of the percentiles.

References
----------
.. [1] McCandlish et al. 2018, arXiv:1812.06162, eq. 2.11 (the hyperbola).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from batchsim.calibrate import law_error
from batchsim.learning.noise_scale import combine, from_chunk_norms, from_coordinate_moments
from batchsim.learning.progress import slope_from_moments, usable_slope
from batchsim.learning.sample_cost import cost_at_rate
from batchsim.learning.worlds import SoftmaxWorld, Trained, Trainer, mean_responses, train, true_noise
from batchsim.learning.worlds.softmax import Floats
from batchsim.validate.worlds.ranges import LR_FRACTIONS, ROWS, SMALLEST, Drawn, draw

WORLDS = 15
"""Per row."""
FACTORS = 2.0 ** np.arange(9)
WANTED = (1.2, 2.0)
UPDATES_MIN = 10
PILOT_SHARE = 0.2
PENALTY = 0.25
"""p: between .2 and .35, which a small transformer asks for (docs/evidence.md); no world had a part in it."""
RATES = 0.016 * 2.0 ** np.arange(10)
SCAN_SEEDS = 6
SEEDS = {0.02: 3, 0.2: 10, 0.5: 16}
"""Runs of every batch to measure, and as many to choose the factor; more where runs are short and scatter."""
ALONG = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Shares of the reference run at which exact moments are taken."""
LEVEL = 0.8
FORMS = (
    "moments",
    "moments and c_0",
    "moments and N*_0",
    "norms: drift",
    "norms: k = 1/2",
    "hyperbola",
    "exact, along the run",
    "exact and c_0",
)
MEDIAN_GOAL, TAIL_GOAL = 0.05, 0.12


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What one world needs at one lr_fraction.

    Parameters
    ----------
    learning_rate : float [1]
        At the smallest batch.
    responses : float [responses]
        N* of the smallest batch.
    ratio, error : ndarray (factor,) [1]
        r_N and the standard error of its logarithm; infinite beyond what was run.
    first_ratio : ndarray (factor,) [1]
        r_N of the other half of the seeds.
    """

    learning_rate: float
    responses: float
    ratio: Floats
    error: Floats
    first_ratio: Floats


def best_rate(world: SoftmaxWorld, drawn: Drawn) -> float:
    """Rate that reaches the target in the fewest responses at the smallest batch: a parabola in logarithms.

    NaN where no rate of `RATES` reaches it, or the best is the last.
    """
    batch = SMALLEST * drawn.group_size
    runs = train(
        world,
        Trainer(),
        prompts=SMALLEST,
        group_size=drawn.group_size,
        learning_rate=RATES,
        seeds=SCAN_SEEDS,
        seed=1,
        responses_max=2500.0 * batch,
        evaluate_every=2.0 * batch,
        target=drawn.target,
    )
    needed, _ = mean_responses(runs, drawn.target)
    best = int(np.argmin(needed))
    if not np.isfinite(needed[best]):
        return math.nan
    near = np.flatnonzero(np.isfinite(needed) & (np.abs(np.arange(RATES.size) - best) <= 2))
    if near.size < 3:
        return math.nan
    bend, slope, _ = np.polyfit(np.log(RATES[near]), np.log(needed[near]), 2)
    top = math.exp(-slope / (2 * bend)) if bend > 0 else math.nan
    inside = RATES[max(best - 1, 0)] <= top <= RATES[min(best + 1, RATES.size - 1)]
    return top if inside else float(RATES[best]) if best < RATES.size - 1 else math.nan


def find_truth(world: SoftmaxWorld, drawn: Drawn, best: float, lr_fraction: float) -> Truth | None:
    """N* at every factor under the sqrt rule; None where the smallest batch does not reach the target."""
    rate, seeds = lr_fraction * best, SEEDS[lr_fraction]
    batch = float(SMALLEST * drawn.group_size)
    # N* falls as 1/rate well below the best one: a first look with one seed sets the grid of evaluations.
    look = train(
        world, Trainer(), prompts=SMALLEST, group_size=drawn.group_size, learning_rate=rate, seed=2,
        responses_max=200_000 * batch, evaluate_every=20 * batch, target=drawn.target,
    )  # fmt: skip
    guess, _ = mean_responses(look, drawn.target)
    if not np.isfinite(guess[0]):
        return None
    runs = train(
        world, Trainer(), prompts=SMALLEST * FACTORS, group_size=drawn.group_size,
        learning_rate=rate * np.sqrt(FACTORS), seeds=2 * seeds, seed=3, responses_max=2.5 * guess[0],
        evaluate_every=guess[0] / 150, target=drawn.target,
    )  # fmt: skip
    halves = [tuple(run for run in runs if run.seed % 2 == part) for part in (0, 1)]
    first, _ = mean_responses(halves[0], drawn.target)
    needed, error = mean_responses(halves[1], drawn.target)
    if not (np.isfinite(needed[0]) and np.isfinite(first[0])):
        return None
    with np.errstate(invalid="ignore"):
        relative = error / needed
    return Truth(
        learning_rate=rate,
        responses=float(needed[0]),
        ratio=needed / needed[0],
        error=np.hypot(relative, relative[0]),
        first_ratio=first / first[0],
    )


def asked_factor(truth: Truth, batch: float) -> int | None:
    """Index of the largest factor with r_N in `WANTED` and enough updates by the first half; None without one."""
    ratio = truth.first_ratio
    updates = truth.responses * ratio / (batch * FACTORS)
    # Beyond what the measuring half reached nothing is known.
    good = (ratio >= WANTED[0]) & (ratio <= WANTED[1]) & (updates >= UPDATES_MIN) & np.isfinite(truth.ratio)
    return int(np.flatnonzero(good)[-1]) if good.any() else None


def run_pilots(world: SoftmaxWorld, drawn: Drawn, truth: Truth) -> tuple[Trained, ...]:
    """The two pilots: one seed each, a fifth of N*, seeds that the truth did not use."""
    spent = PILOT_SHARE * truth.responses
    return train(
        world, Trainer(), prompts=[SMALLEST, 2 * SMALLEST], group_size=drawn.group_size,
        learning_rate=truth.learning_rate * np.sqrt([1, 2]), seed=4, responses_max=spent, evaluate_every=spent,
        halves_until=spent, record=True,
    )  # fmt: skip


def forecasts(pilots: Sequence[Trained], factor: float, lr_fraction: float, growth: float) -> dict[str, float]:
    """r_N at a factor under the sqrt rule by every form that a pilot allows; NaN where one says nothing.

    Parameters
    ----------
    pilots : sequence of Trained
        The smallest batch first.
    factor, lr_fraction : float [1]
    growth : float [1]
        B_noise over the run relative to the pilot's, for the form that knows N*_0.

    Returns
    -------
    dict of str to float [1]
    """
    group = pilots[0].group_size
    batch = float(pilots[0].prompts * group)
    norms = combine([_chunk_scale(run) for run in pilots])
    scale = norms.noise_scale if norms.noise_scale > 0 else math.inf

    def by_family(noise_scale: float, snr_shape: float) -> float:
        if math.isinf(noise_scale):
            return 1.0
        slope = usable_slope(np.array([batch, batch * factor]), noise_scale=noise_scale, snr_shape=snr_shape)
        return float(math.sqrt(factor) * slope[0] / slope[1])

    slope = _measured_slope(pilots, batch)
    plain = math.sqrt(factor) * slope(batch) / slope(batch * factor)
    return {
        "moments": plain,
        "moments and c_0": with_step_cost(plain, factor, lr_fraction),
        "moments and N*_0": math.sqrt(factor) * slope(batch / growth) / slope(batch * factor / growth),
        "norms: drift": by_family(scale, math.inf),
        "norms: k = 1/2": by_family(scale, 0.5),
        "hyperbola": (batch * factor + scale) / (batch + scale) if math.isfinite(scale) else 1.0,
    }


def _chunk_scale(run: Trained) -> Any:
    chunks = min(8, run.prompts)
    record = run.record
    return from_chunk_norms(
        run.prompts * run.group_size, chunks, record["sq_norm_chunk"], record["sq_norm_batch"], level=LEVEL
    )


def with_step_cost(ratio: float, factor: float, lr_fraction: float) -> float:
    """r_N at c_0 from that at c_0 -> 0, both under the sqrt rule."""
    cost = cost_at_rate(
        factor,
        learning_rate_ratio=math.sqrt(factor),
        lr_fraction=lr_fraction,
        slope_ratio=ratio / math.sqrt(factor),
        penalty_shape=PENALTY,
    )
    return float(cost)


def _measured_slope(pilots: Sequence[Trained], batch: float) -> Callable[[float], float]:
    """A(B) from the pilots' sums per coordinate: straight in logarithms between batches, the fitted family outside."""
    halves = [run.halves for run in pilots if run.halves is not None]
    if not halves:
        return lambda at: math.nan
    weight = np.array([h.responses for h in halves])
    total = weight.sum(axis=0)
    share = (weight / total)[:, :, None]
    mean = sum(s * h.mean for s, h in zip(share, halves, strict=True))
    variance = sum(s * h.variance for s, h in zip(share, halves, strict=True))
    inside = batch * FACTORS[4 * batch * FACTORS <= total.min()]
    if inside.size < 2:
        return lambda at: math.nan
    found = from_coordinate_moments(
        [(mean[0], mean[1], variance[0], variance[1])],
        responses=(float(total[0]), float(total[1])),
        train_batch=inside,
    )
    scale, shape = found.noise_scale, found.shape.snr_shape
    if not ((found.usable_slope > 0).all() and scale > 0 and shape > 0):
        return lambda at: math.nan
    knots, log_slope = np.log(inside), np.log(found.usable_slope)

    def slope(at: float) -> float:
        near = float(np.clip(at, inside[0], inside[-1]))
        family = usable_slope(np.array([near, at]), noise_scale=scale, snr_shape=shape)
        return float(np.exp(np.interp(math.log(near), knots, log_slope)) * family[1] / family[0])

    return slope


def growth_of_noise(pilot: Trained, truth: Truth, target: float) -> float:
    """B_noise over the reference run relative to the pilot's, from the slopes of the score."""
    used, score = pilot.evaluations["responses"], pilot.evaluations["score"]
    early = (score[-1] - score[0]) / used[-1]
    whole = (target - score[0]) / truth.responses
    return float(max(early / whole, 1.0))


def along_run(world: SoftmaxWorld, drawn: Drawn, truth: Truth, factor: float) -> float:
    """What the law says at c_0 -> 0 with exact moments, A(B_0)/A(B) averaged over the reference run."""
    batch = float(SMALLEST * drawn.group_size)
    ratios = []
    for share in ALONG:
        (run,) = train(
            world, Trainer(), prompts=SMALLEST, group_size=drawn.group_size, learning_rate=truth.learning_rate,
            seed=5, responses_max=share * truth.responses, evaluate_every=truth.responses,
        )  # fmt: skip
        noise = true_noise(world, run.theta, group_size=drawn.group_size)
        slope = slope_from_moments([batch, batch * factor], gradient=noise.gradient, variance=noise.variance)
        ratios.append(slope[0] / slope[1])
    return float(math.sqrt(factor) * np.mean(ratios))


def forecast_world(drawn: Drawn) -> list[dict[str, Any]]:
    """Rows of one world, one per lr_fraction; what is excluded has its reason in `excluded`."""
    world = drawn.build()
    label = {"row": drawn.row, "world": drawn.number}
    best = best_rate(world, drawn)
    if math.isnan(best):
        return [label | {"lr_fraction": c, "excluded": "no best rate in the scan"} for c in LR_FRACTIONS]
    rows = []
    for c in LR_FRACTIONS:
        own = label | {"lr_fraction": c}
        truth = find_truth(world, drawn, best, c)
        if truth is None:
            rows.append(own | {"excluded": "the smallest batch does not reach the target"})
            continue
        batch = float(SMALLEST * drawn.group_size)
        index = asked_factor(truth, batch)
        if index is None:
            rows.append(own | {"excluded": f"no factor with r_N in {WANTED[0]:g} to {WANTED[1]:g} and enough updates"})
            continue
        factor = float(FACTORS[index])
        pilots = run_pilots(world, drawn, truth)
        said = forecasts(pilots, factor, c, growth_of_noise(pilots[0], truth, drawn.target))
        exact = along_run(world, drawn, truth, factor)
        said |= {"exact, along the run": exact, "exact and c_0": with_step_cost(exact, factor, c)}
        rows.append(own | _row(drawn, truth, index, said))
    return rows


def _row(drawn: Drawn, truth: Truth, index: int, said: dict[str, float]) -> dict[str, Any]:
    batch, factor = float(SMALLEST * drawn.group_size), float(FACTORS[index])
    measured, predicted = float(truth.ratio[index]), said["moments"]
    spread = float(np.hypot(law_error(batch * factor, (batch, 2 * batch)), truth.error[index]))
    half = float(ndtri((1 + LEVEL) / 2)) * spread
    known = math.isfinite(predicted)
    low, high = predicted * math.exp(-half), predicted * math.exp(half)
    return {
        "claim": f"r_N at {factor:g} x {batch:g} responses, {drawn.row} world {drawn.number}",
        "predicted": _number(predicted),
        "interval": [low, high] if known else [None, None],
        "measured": measured,
        "error": _number(predicted / measured - 1),
        "covered": bool(known and low <= measured <= high),
        "peer": _number(said["hyperbola"]),
        "factor": factor,
        "train_batch": batch * factor,
        "responses_to_target": truth.responses,
        "updates": truth.responses * measured / (batch * factor),
        "measured_log_error": float(truth.error[index]),
        "forms": {name: _number(said[name]) for name in FORMS},
        "excluded": None,
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def score(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median, 90th percentile and bias of log(predicted/measured) by form, over the rows where it says something."""
    forms = {}
    for name in FORMS:
        signed = np.array([math.log(r["forms"][name] / r["measured"]) for r in rows if r["forms"][name] is not None])
        some = signed.size > 0
        forms[name] = {
            "median_abs_log_error": float(np.median(np.abs(signed))) if some else None,
            "p90_abs_log_error": float(np.quantile(np.abs(signed), 0.9)) if some else None,
            "median_log_error": float(np.median(signed)) if some else None,
            "silent": len(rows) - signed.size,
        }
    return {
        "n": len(rows),
        "covered": float(np.mean([r["covered"] for r in rows])) if rows else None,
        "median_measured_log_error": float(np.median([r["measured_log_error"] for r in rows])) if rows else None,
        "forms": forms,
    }


def validate_forecast(
    *, worlds: int = WORLDS, first: int = 0, progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]:
    """Forecasts over random worlds.

    Parameters
    ----------
    worlds : int
        Per row of `ranges.ROWS`.
    first : int
        Number of the first world.
    progress : callable or None
        Called with worlds done and worlds in all.

    Returns
    -------
    dict
        Plain values: name, overall, slices (row and lr_fraction), rows, excluded (reason -> count), skipped.
    """
    rows: list[dict[str, Any]] = []
    total = worlds * len(ROWS)
    for number in range(first, first + worlds):
        for i, row in enumerate(ROWS):
            rows += forecast_world(draw(row, number))
            if progress is not None:
                progress((number - first) * len(ROWS) + i + 1, total)
    used = [r for r in rows if r["excluded"] is None]
    reasons = Counter(r["excluded"] for r in rows if r["excluded"] is not None)
    slices = []
    for row in ROWS:
        for c in LR_FRACTIONS:
            cell = [r for r in rows if r["row"] == row and r["lr_fraction"] == c]
            kept = [r for r in cell if r["excluded"] is None]
            slices.append(
                {"slice": f"{row}, c_0 = {c:g}", "row": row, "lr_fraction": c, "excluded": len(cell) - len(kept)}
                | score(kept)
            )
    return {
        "name": "forecast",
        "overall": score(used) | {"worlds": total, "excluded": len(rows) - len(used)},
        "slices": slices,
        "rows": used,
        "excluded": dict(reasons),
        "goals": {"median": MEDIAN_GOAL, "p90": TAIL_GOAL},
        "skipped": [],
    }
