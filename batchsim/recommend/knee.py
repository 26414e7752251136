r"""Why does N* depart? Five explanations weighed on measured arms, and the cheapest experiment that tells them apart.

N* of an arm is an interval, since evaluations are sparse and runs may end first. Far below noise scale and best rate,
an arm at x = B/B_0 and s = eta/eta_0 needs N/N_0 = sqrt(x)/s. What exceeds this is the departure, and each explanation
says how it comes about, with parameters theta of its own:

    censoring       it is none: sqrt(x)/s holds, and grid, early ends and spread between runs make the rest
    noise scale     the law of `sample_cost`: x comes near B_noise, or the rate near its best
    ceiling         the rate that acts stops at s_max: sqrt(x)/min(s, s_max)
    few updates     momentum costs m = a beta_1/(1 - beta_1) updates in every run: B (S + m)
    noise floor     steps of a constant size keep a distance f s to the optimum: S ~ log((d_0 - f s)/(d - f s))

An arm's likelihood is the probability that log N* falls into its interval, given the spread between runs (Student's,
so that one run that goes wrong decides nothing); N*_0 is integrated out, theta over its prior, and explanations start
equal. A ceiling far above all rates, momentum without effect and so on look like "censoring", so that a more flexible
explanation wins only where the data ask for it.

An experiment is judged by the information, in bits, that its outcome carries about which explanation is right (the mean
of log2 of posterior over prior), over its cost in runs of the reference. Named is the cheapest of those that yield at
least half of what the best one does.

References
----------
.. [1] MacKay 2003, "Information Theory, Inference, and Learning Algorithms", chapter 28 (model comparison).
.. [2] Lindley 1956, "On a measure of the information provided by an experiment", Annals of Mathematical Statistics
   27:986.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from batchsim.errors import InputError
from batchsim.learning.progress import usable_slope
from batchsim.learning.sample_cost import cost_at_rate

if TYPE_CHECKING:
    import xarray as xr

SPREAD = 0.1
"""Relative spread of N* over runs where no repeat shows it; as in `calibrate`."""
THETA = 400
"""Draws of each explanation's parameters."""
CENTRES = 41
"""Points at which N*_0 is integrated."""
OUTCOMES = 200
"""Simulated outcomes per explanation and experiment."""
BETA1 = 0.9
TAILS = 4.0
"""Degrees of freedom of a run's scatter: one run that goes wrong decides nothing."""
SHOWN = 0.9
"""Probability that something departs from which a knee is called shown."""
NEEDED_SHARE = 0.5
"""Of the best experiment's information, for a cheaper one to be named."""
LEAST_BITS = 0.05
"""Information below which no outcome of an experiment would change the reading."""
MIN_COST = 0.02
"""Of a reference run: what reading a log takes."""
NOISE_ROOM = (0.1, 30.0)
"""Prior of B_noise, log-uniform, over the smallest and the largest batch."""
MOMENTUM_LOSS = (0.05, 3.0)
FLOOR, DISTANCE = (0.01, 0.95), (2.0, 20.0)
"""Floor over the target's distance, at the reference; start's distance over the target's."""

Floats = NDArray[np.float64]
Prediction = Callable[[float, float, float, float], Floats]
"""log N relative to the reference's, (theta,), from x, s, share of the way to the target, and beta_1."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One explanation of the departure.

    Parameters
    ----------
    name : str
    probability : float [1]
        After the arms, all explanations equal before.
    sample_cost_ratio : tuple of float [1]
        N/N_0 that it gives the arms, medians over its parameters; infinite where an arm never arrives.
    sentence : str
    """

    name: str
    probability: float
    sample_cost_ratio: tuple[float, ...]
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Something to do that tells explanations apart.

    Parameters
    ----------
    name : str
        In words.
    cost : float [1]
        In runs of the reference to its target.
    information : float [bit]
        Expected, about which explanation is right.
    outcomes : dict of str to float [1]
        Median outcome under each explanation, in units that the name says.
    """

    name: str
    cost: float
    information: float
    outcomes: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Knee:
    """Explanations by probability, experiments by what they tell per cost, and the one to do.

    Parameters
    ----------
    train_batch : float [responses]
        The arm that departs most for its error, at which experiments are meant.
    is_shown : bool
        Whether something other than censoring has probability .9.
    explanations : tuple of Explanation
    experiments : tuple of Experiment
    cheapest : Experiment or None
        None where none carries `LEAST_BITS`.
    sentences : tuple of str
    """

    train_batch: float
    is_shown: bool
    explanations: tuple[Explanation, ...]
    experiments: tuple[Experiment, ...]
    cheapest: Experiment | None
    sentences: tuple[str, ...]


def explain_knee(
    *,
    train_batch: ArrayLike,
    responses_low: ArrayLike,
    responses_high: ArrayLike,
    learning_rate_ratio: ArrayLike | None = None,
    runs: ArrayLike = 1,
    throughput_ratio: ArrayLike | None = None,
    spread: float = SPREAD,
    noise_scale: tuple[float, float] | None = None,
    seed: int = 0,
) -> Knee:
    """Weigh noise scale, noise floor, ceiling, censoring and few updates for an observed departure.

    Parameters
    ----------
    train_batch : array_like, (arm,) [responses]
        The first is the reference; others in any order, two or more arms.
    responses_low, responses_high : array_like, (arm,) [responses]
        N* of each arm lies between; 0 below where the first evaluation passed, infinite above where none did.
    learning_rate_ratio : array_like, (arm,) or None [1]
        s = eta/eta_0; the sqrt rule if None.
    runs : array_like, broadcastable to (arm,)
        Per arm.
    throughput_ratio : array_like, (arm,) or None [1]
        r_q, for the cost of experiments; 1 if None.
    spread : float [1]
        Standard deviation of log N* over runs.
    noise_scale : tuple of float or None [responses]
        Central 80 % interval from norms, if there is one.
    seed : int

    Returns
    -------
    Knee

    Raises
    ------
    InputError
        For fewer than two arms, or limits, rates or a spread outside their bounds.
    """
    batch = np.atleast_1d(np.asarray(train_batch, dtype=np.float64))
    if not ((batch > 0) & np.isfinite(batch)).all():
        raise InputError(f"train_batch is {batch.min():g}; it must be positive and finite")
    low, high, count = (
        np.broadcast_to(np.asarray(v, dtype=np.float64), batch.shape) for v in (responses_low, responses_high, runs)
    )
    x = batch / batch[0]
    s = np.sqrt(x) if learning_rate_ratio is None else np.asarray(learning_rate_ratio, dtype=np.float64)
    q = np.ones_like(x) if throughput_ratio is None else np.asarray(throughput_ratio, dtype=np.float64)
    _check(batch, low, high, s, q, spread)
    rng = np.random.default_rng(seed)
    error = spread / np.sqrt(count)
    centre, updates = float((low[0] + high[0]) / 2), float((low[0] + high[0]) / 2 / batch[0])
    models = _models(batch, s, updates, noise_scale, rng)
    evidence, weights = {}, {}
    for name, model in models.items():
        theta = _log_likelihood(model, x, s, low, high, error)
        evidence[name] = _log_mean(theta)
        weights[name] = np.exp(theta - theta.max()) / np.exp(theta - theta.max()).sum()
    top = max(evidence.values())
    mass = {name: math.exp(v - top) for name, v in evidence.items()}
    probability = {name: m / sum(mass.values()) for name, m in mass.items()}
    at = _departing(x, s, low, high, error)
    explanations = [
        _explanation(name, models[name], weights[name], probability[name], x, s) for name in sorted(
            probability, key=lambda name: -probability[name]
        )
    ]  # fmt: skip
    chosen = _Setting(batch, x, s, low, high, q, at, centre, updates, spread)
    experiments = sorted(
        (_judge(plan, models, weights, probability, rng) for plan in _plans(chosen)),
        key=lambda e: -e.information / e.cost,
    )
    best = max(e.information for e in experiments)
    useful = [e for e in experiments if e.information >= NEEDED_SHARE * best and best >= LEAST_BITS]
    cheapest = min(useful, key=lambda e: e.cost) if useful else None
    shown = 1 - probability["censoring"] >= SHOWN
    return Knee(
        train_batch=float(batch[at]),
        is_shown=shown,
        explanations=tuple(explanations),
        experiments=tuple(experiments),
        cheapest=cheapest,
        sentences=tuple(_sentences(explanations, cheapest, shown, float(batch[at]))),
    )


def knee_of_runs(measured: xr.DataTree, *, spread: float | None = None, seed: int = 0) -> Knee:
    """`explain_knee` on the arms of `measure.measure` that share the reference's group size.

    Parameters
    ----------
    measured : xarray.DataTree
        From `measure.measure`.
    spread : float or None [1]
        Of log N* over runs; from repeats where there are any, else `SPREAD`.
    seed : int

    Returns
    -------
    Knee

    Raises
    ------
    InputError
        Without a target, or with fewer than two arms whose N* is known at all.
    """
    arms = measured["arms"].to_dataset()
    if measured.attrs["target"] is None:
        raise InputError("a departure is one of N*, and there is no target", remedy="give --target")
    reference = int(arms.attrs["reference"])
    order = [reference, *(i for i in range(arms.sizes["arm"]) if i != reference)]
    group = arms["group_size"].values
    limits = arms["responses_to_target"].values
    kept = [
        i for i in order
        if (not np.isfinite(group[i]) or group[i] == group[reference]) and np.isfinite(limits[i, 0])
        and (i == reference or arms["train_batch"].values[i] != arms["train_batch"].values[reference])
    ]  # fmt: skip
    if len(kept) < 2 or kept[0] != reference or not np.isfinite(limits[reference]).all():
        raise InputError(
            "a departure needs N* of the reference between two evaluations, and of a second batch",
            remedy="give a target that the runs of the smallest batch reach, and logs of two batches",
        )
    arms = arms.isel(arm=kept)
    rates = arms["learning_rate"].values / arms["learning_rate"].values[0]
    x = arms["train_batch"].values / arms["train_batch"].values[0]
    centre, limits = arms["responses_to_target"].values[:, 1], limits[kept]
    if spread is None:
        own = arms["responses_to_target_se"].values * np.sqrt(arms["runs"].values) / centre
        repeated = own[(arms["runs"].values > 1) & np.isfinite(own) & (own > 0)]
        spread = float(np.sqrt(np.mean(repeated**2))) if repeated.size else SPREAD
    q = arms["throughput_ratio"].values
    scales = [e for e in measured.attrs["noise_scales"] if e["identified"] and e["low"] and e["high"]]
    return explain_knee(
        train_batch=arms["train_batch"].values,
        responses_low=np.nan_to_num(limits[:, 0]),
        responses_high=np.where(np.isnan(limits[:, 2]), np.inf, limits[:, 2]),
        # A rate that no log states follows the rule that the paper used.
        learning_rate_ratio=np.where(np.isfinite(rates), rates, np.sqrt(x)),
        runs=arms["runs"].values,
        throughput_ratio=np.where(np.isfinite(q) & (q > 0), q, 1.0),
        spread=max(spread, 0.005),
        noise_scale=(float(scales[0]["low"]), float(scales[0]["high"])) if scales else None,
        seed=seed,
    )


# -- explanations --------------------------------------------------------------------------------------


def _models(
    batch: Floats, s: Floats, updates: float, noise_scale: tuple[float, float] | None, rng: np.random.Generator
) -> dict[str, Prediction]:
    """Predictions of log N, each over its own draws of theta."""
    if noise_scale is None:
        least, most = math.log(NOISE_ROOM[0] * batch.min()), math.log(NOISE_ROOM[1] * batch.max())
        noise = np.exp(rng.uniform(least, most, size=THETA))
    else:
        low, high = np.log(noise_scale)
        noise = np.exp((low + high) / 2 + (high - low) / 2.563 * rng.standard_normal(THETA))
    shape = np.where(rng.uniform(size=THETA) < 0.5, np.inf, np.exp(rng.uniform(np.log(0.3), np.log(4.0), size=THETA)))
    fraction = rng.uniform(0.01, 0.5, size=THETA)
    ceiling = np.exp(rng.uniform(0.0, math.log(max(float(s.max()), 1.0 + 1e-9)), size=THETA))
    loss = np.exp(rng.uniform(math.log(MOMENTUM_LOSS[0]), math.log(MOMENTUM_LOSS[1]), size=THETA))
    floor = np.exp(rng.uniform(math.log(FLOOR[0]), math.log(FLOOR[1]), size=THETA))
    distance = np.exp(rng.uniform(math.log(DISTANCE[0]), math.log(DISTANCE[1]), size=THETA))
    b0 = batch[0]

    def censoring(x: float, s: float, share: float, beta1: float) -> Floats:
        return np.full(THETA, 0.5 * math.log(x) - math.log(s) + math.log(share))

    def noise_law(x: float, s: float, share: float, beta1: float) -> Floats:
        rk = usable_slope(b0, noise_scale=noise, snr_shape=shape) / usable_slope(
            x * b0, noise_scale=noise, snr_shape=shape
        )
        return np.log(cost_at_rate(x, learning_rate_ratio=s, lr_fraction=fraction, slope_ratio=rk)) + math.log(share)

    def ceiling_law(x: float, s: float, share: float, beta1: float) -> Floats:
        return np.asarray(0.5 * math.log(x) - np.log(np.minimum(s, ceiling)) + math.log(share))

    def few(x: float, s: float, share: float, beta1: float) -> Floats:
        lost = loss * BETA1 / (1 - BETA1)
        own = np.maximum(updates - lost, 0.05 * updates)
        needed = own * share / (math.sqrt(x) * s) + loss * beta1 / (1 - beta1)
        return np.asarray(np.log(x * needed / (own + lost)))

    def floor_law(x: float, s: float, share: float, beta1: float) -> Floats:
        aim, kept = distance ** (1 - share), np.minimum(floor * s, distance * 0.999)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Distances in units of the target's; a floor above the aim is never passed.
            needed = np.where(kept < aim, np.log((distance - kept) / np.maximum(aim - kept, 1e-300)), np.inf)
            own = np.log((distance - floor) / (1 - floor))
            return np.asarray(0.5 * math.log(x) - math.log(s) + np.log(needed / own))

    return {
        "censoring": censoring,
        "noise scale": noise_law,
        "learning-rate ceiling": ceiling_law,
        "few updates": few,
        "noise floor": floor_law,
    }


def _log_likelihood(model: Prediction, x: Floats, s: Floats, low: Floats, high: Floats, error: Floats) -> Floats:
    """Log-probability of the arms' intervals per theta, N*_0 integrated over a log-uniform stretch."""
    span = 4 * error[0] + 1e-3
    with np.errstate(divide="ignore"):
        first = math.log(max(float(low[0]), 0.25 * float(high[0])))
        centres = np.linspace(first - span, math.log(high[0]) + span, CENTRES)
        limits = np.log(low), np.log(high)
    reference = model(1.0, 1.0, 1.0, BETA1)
    total = np.zeros((THETA, CENTRES))
    for i in range(x.size):
        with np.errstate(invalid="ignore"):
            shift = model(float(x[i]), float(s[i]), 1.0, BETA1) - reference
            mean = centres[None, :] + shift[:, None]
            inside = stdtr(TAILS, (limits[1][i] - mean) / error[i]) - stdtr(TAILS, (limits[0][i] - mean) / error[i])
        # A run that never arrives is what a right-censored arm shows.
        inside = np.where(np.isinf(mean), float(np.isinf(high[i])), inside)
        total += np.log(np.maximum(inside, 1e-12))
    top = total.max(axis=1)
    return np.asarray(top + np.log(np.mean(np.exp(total - top[:, None]), axis=1)))


def _log_mean(values: Floats) -> float:
    top = float(values.max())
    return top + math.log(float(np.mean(np.exp(values - top))))


def _departing(x: Floats, s: Floats, low: Floats, high: Floats, error: Floats) -> int:
    """Index of the arm whose N* exceeds sqrt(x)/s most for its error; the largest batch if none does."""
    expected = np.sqrt(x) / s * (low[0] + high[0]) / 2
    with np.errstate(divide="ignore"):
        beyond = np.log(np.maximum(low, 1e-300) / expected) / np.hypot(error, error[0])
    beyond[0] = -np.inf
    return int(np.argmax(beyond)) if (beyond > 0).any() else int(np.argmax(x))


def _explanation(name: str, model: Prediction, weight: Floats, probability: float, x: Floats, s: Floats) -> Explanation:
    reference = model(1.0, 1.0, 1.0, BETA1)
    ratio = tuple(
        math.exp(_median(model(float(a), float(b), 1.0, BETA1) - reference, weight)) for a, b in zip(x, s, strict=True)
    )
    what = {
        "censoring": "evaluations are too sparse, or seeds too few, to show a departure",
        "noise scale": "the batch nears the noise scale, or the rate its best: no setting undoes it",
        "learning-rate ceiling": "the rate that acts no longer follows the rule: clipping or a trust region holds it",
        "few updates": "momentum averages over a good part of so few updates: a smaller beta_1 undoes it",
        "noise floor": "steps of this size keep a distance to the optimum: a smaller rate reaches the target",
    }[name]
    return Explanation(name=name, probability=probability, sample_cost_ratio=ratio, sentence=what)


def _median(values: Floats, weight: Floats) -> float:
    """Weighted median, infinity included."""
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weight[order]), 0.5 * weight.sum())])


# -- experiments ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Setting:
    """Arms, and the one that departs."""

    batch: Floats
    x: Floats
    s: Floats
    low: Floats
    high: Floats
    q: Floats
    at: int
    centre: float
    updates: float
    spread: float

    @property
    def cost(self) -> float:
        """A run of the arm that departs, in runs of the reference."""
        n = self.high[self.at] if np.isfinite(self.high[self.at]) else 1.5 * self.low[self.at]
        return float(n / self.centre / self.q[self.at])

    def grid(self, at: int) -> float:
        """Relative standard deviation of N* of an arm from its grid of evaluations."""
        low, high = float(self.low[at]), float(self.high[at])
        return 0.3 if not math.isfinite(high) else (high - low) / high / math.sqrt(12)


@dataclass(frozen=True)
class _Plan:
    """An experiment: log outcome per theta from a model, its error, its cost."""

    name: str
    outcome: Callable[[Prediction], Floats]
    error: float
    cost: float


def _plans(at: _Setting) -> list[_Plan]:
    i, spread = at.at, at.spread
    x, s, b = float(at.x[i]), float(at.s[i]), float(at.batch[i])
    run, error = at.cost, math.hypot(at.spread, at.grid(i))
    first = at.grid(0)

    def ratio(m: Prediction, share: float = 1.0) -> Floats:
        with np.errstate(invalid="ignore"):
            return m(x, s, share, BETA1) - m(1.0, 1.0, share, BETA1)

    def against_own(m: Prediction, x2: float, s2: float, beta1: float) -> Floats:
        with np.errstate(invalid="ignore"):
            return m(x2, s2, 1.0, beta1) - m(x, s, 1.0, BETA1)

    fine = math.hypot(spread, spread)
    rerun = max(at.grid(i) * math.sqrt(12), 0.05)
    return [
        _Plan(
            f"evaluate checkpoints between the two evaluations around the target, at B = {b:g} and at the reference "
            "(outcome: N/N0)",
            lambda m: ratio(m), fine, rerun * run + max(first * math.sqrt(12), 0.05),
        ),
        _Plan(
            "read N* at a target half of the way, from the evaluations that the logs hold (outcome: N/N0 there)",
            lambda m: ratio(m, 0.5), math.hypot(fine, 2 * math.hypot(at.grid(i), first)), MIN_COST,
        ),
        _Plan(
            f"run B = {b:g} again at half the rate (outcome: N over that of the run at the full rate)",
            lambda m: against_own(m, x, s / 2, BETA1), math.hypot(error, spread), 1.5 * run,
        ),
        _Plan(
            f"run B = {b:g} again with beta_1 = 0.5 (outcome: N over that at beta_1 = 0.9)",
            lambda m: against_own(m, x, s, 0.5), math.hypot(error, spread), run,
        ),
        _Plan(
            f"run B = {2 * b:g} by the same rule (outcome: N over that of B = {b:g})",
            lambda m: against_own(m, 2 * x, s * math.sqrt(2), BETA1), math.hypot(error, spread), 1.2 * run,
        ),
        _Plan(
            f"run three more seeds of B = {b:g} and of the reference (outcome: N/N0)",
            lambda m: ratio(m), math.hypot(spread / 2 * math.sqrt(2), math.hypot(at.grid(i), first) / 2),
            3 * (run + 1),
        ),
    ]  # fmt: skip


def _judge(
    plan: _Plan,
    models: dict[str, Prediction],
    weights: dict[str, Floats],
    probability: dict[str, float],
    rng: np.random.Generator,
) -> Experiment:
    """Expected information of an experiment about which explanation is right."""
    # An outcome that never comes in is seen as one far away.
    far = math.log(8.0)
    said = {name: np.nan_to_num(plan.outcome(m), nan=far, posinf=far, neginf=-far) for name, m in models.items()}
    said = {name: np.clip(v, -far, far) for name, v in said.items()}
    names = list(models)
    prior = np.array([probability[name] for name in names])
    information = 0.0
    for name, p in zip(names, prior, strict=True):
        if p < 1e-4:
            continue
        picks = rng.choice(THETA, size=OUTCOMES, p=weights[name])
        seen = said[name][picks] + plan.error * rng.standard_normal(OUTCOMES)
        density = np.stack(
            [
                np.exp(-(((seen[:, None] - said[n][None, :]) / plan.error) ** 2) / 2) @ weights[n] + 1e-300
                for n in names
            ],
            axis=1,
        )
        mixed = density @ prior
        information += float(p * np.mean(np.log2(density[:, names.index(name)] / mixed)))
    medians = {name: math.exp(_median(said[name], weights[name])) for name in names}
    return Experiment(
        name=plan.name, cost=max(plan.cost, MIN_COST), information=max(information, 0.0), outcomes=medians
    )


def _sentences(explanations: list[Explanation], cheapest: Experiment | None, shown: bool, batch: float) -> list[str]:
    first, second = explanations[:2]
    said = []
    if not shown:
        censored = next(e for e in explanations if e.name == "censoring")
        said.append(
            f"No departure is shown: sparse evaluations and the spread between runs alone have probability "
            f"{censored.probability:.2f}."
        )
    said.append(
        f"At B = {batch:g} the most probable reading is {first.name} ({first.probability:.2f}): {first.sentence}; "
        f"next is {second.name} ({second.probability:.2f})."
    )
    if cheapest is None:
        said.append(f"No experiment of those considered carries {LEAST_BITS} bits: none would change this reading.")
    else:
        outcomes = ", ".join(
            f"{e.name} {cheapest.outcomes[e.name]:.2f}" for e in explanations[:3] if e.probability > 0.02
        )
        said.append(
            f"The cheapest experiment that tells them apart: {cheapest.name}; it takes {cheapest.cost:.2f} runs of the "
            f"reference and carries {cheapest.information:.2f} bits; expected: {outcomes}."
        )
    return said


def _check(batch: Floats, low: Floats, high: Floats, s: Floats, q: Floats, spread: float) -> None:
    if batch.ndim != 1 or batch.size < 2:
        raise InputError(f"{batch.size} arm cannot depart from another", remedy="give the reference and larger batches")
    if s.shape != batch.shape or q.shape != batch.shape:
        raise InputError(f"{batch.size} batches, {s.size} rates and {q.size} throughputs", remedy="one for each arm")
    if not ((low >= 0) & (low <= high) & (high > 0) & np.isfinite(low)).all():
        bad = int(np.argmin((low >= 0) & (low <= high) & (high > 0) & np.isfinite(low)))
        raise InputError(f"N* of arm {bad} lies between {low[bad]:g} and {high[bad]:g}", remedy="give low <= high")
    if not np.isfinite(high[0]):
        raise InputError("the reference never reaches the target", remedy="choose a lower target")
    if not ((s > 0) & np.isfinite(s)).all() or not ((q > 0) & np.isfinite(q)).all():
        raise InputError(
            "a rate or a throughput is not positive and finite", remedy="both are relative to the first arm"
        )
    if not 0 < spread < 2:
        raise InputError(f"spread is {spread:g}, outside (0, 2)", remedy="5 % between seeds is 0.05")
