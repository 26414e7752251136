"""Is a log what it seems: where the time of a step goes, and checks of one run, without any model.

Every function looks at one run as `read_logs` returns it and answers with plain numbers:

    share of a phase = sum of its seconds / sum of the steps' seconds, over the steady steps that state both
    trend            = least-squares slope of the seconds on the step number, per 100 steps of the log

Steps of a run are not independent: the standard error of a trend is widened by sqrt((1 + rho)/(1 - rho))
with rho the residuals' correlation from one step to the next (0 where it is negative).

A check compares one number with one bound. It is "not checkable" where the log lacks what it needs,
which is no defect of the log; a "warning" says what the number does to the answers. What the readers
settled already (restarts, rounded rates, tokens against the batch) is taken from their warnings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from batchsim.logs.timeline import BRIDGED_STEPS, COLD_STEPS, SPIKE, Array

if TYPE_CHECKING:
    import xarray as xr

Outcome = Literal["ok", "warning", "not checkable"]
PHASES = ("generation_seconds", "training_seconds", "logprob_seconds", "reward_seconds", "sync_seconds")
"""Stages that follow each other in a step."""

PHASE_GAP = 0.02
TOKEN_GAP = 0.01
FINITE_SHARE = 0.99
ROUNDED_SHARE = 0.05
SMALL_NORM = 0.01
DRIFT = 0.2
COLD_RATIO = 2.0
LEAST_STEPS = 5
"""Fewest steps that a trend is fitted to."""
LEAST_EVENTS = 3
"""Fewest evaluations or checkpoints among which one can be an outlier."""
_TAIL = 0.9
_MOST_CORRELATED = 0.9
_RESTARTED = "a restart or a duplicate"
_MORE_RESTARTS = re.compile(r"(\d+) more restarts")
_ROUNDED_RATE = re.compile(r"is printed as 0 in (\d+) steps")
_OTHER_BATCH = re.compile(r"rows point to ([\d.]+) responses per rollout step, not to ([\d.]+)")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One integrity check.

    Attributes
    ----------
    name : str
    outcome : {'ok', 'warning', 'not checkable'}
    value, bound : float or None
        The number that was compared and its bound, in the unit that `message` names.
    message : str
        What was found and what it means.
    """

    name: str
    outcome: Outcome
    value: float | None
    bound: float | None
    message: str


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One part of a steady rollout step.

    Attributes
    ----------
    phase : str
        "step" is the whole; "other" is what no phase accounts for; "environment" lies within the generation.
    share : float [1]
        Of the step.
    mean : float [s]
    cv : float or None [1]
        Standard deviation over mean; None with fewer than two steps.
    trend, trend_se : float or None [s per 100 steps]
        None with fewer than five steps.
    """

    phase: str
    share: float
    mean: float
    cv: float | None
    trend: float | None
    trend_se: float | None

    @property
    def has_trend(self) -> bool:
        """Whether the trend differs from none by more than two standard errors."""
        return self.trend is not None and self.trend_se is not None and abs(self.trend) > 2 * self.trend_se


# -- where the time goes ------------------------------------------------------------------------------


def phases(ds: xr.Dataset) -> list[Phase]:
    """Parts of the steady rollout step, the whole step last.

    Parameters
    ----------
    ds : xarray.Dataset
        One run from `read_logs`.

    Returns
    -------
    list of Phase
        Empty where no steady step has a time.
    """
    whole = _column(ds, "step_seconds")
    if whole is None:
        return []
    step, steady = _steps(ds), ds["steady"].values & np.isfinite(whole) & (whole > 0)
    parts = {name.removesuffix("_seconds"): ds[name].values for name in PHASES if name in ds}
    if "environment_seconds" in ds:
        parts["environment"] = ds["environment_seconds"].values
    rest = _rest(ds)
    if "other_seconds" in ds:
        parts["other"] = ds["other_seconds"].values
    elif rest is not None:
        parts["other"] = rest
    parts["step"] = whole
    found = [_phase(name, step, seconds, whole, steady) for name, seconds in parts.items()]
    return [phase for phase in found if phase is not None]


def _phase(name: str, step: Array, seconds: Array, whole: Array, steady: np.ndarray) -> Phase | None:
    used = steady & np.isfinite(seconds)
    if not used.any():
        return None
    seconds, whole = seconds[used], whole[used]
    mean = float(seconds.mean())
    fit = _line(step[used], seconds)
    return Phase(
        phase=name,
        share=float(seconds.sum() / whole.sum()),
        mean=mean,
        cv=float(seconds.std(ddof=1) / mean) if seconds.size > 1 and mean > 0 else None,
        trend=None if fit is None else 100 * fit[0],
        trend_se=None if fit is None else 100 * fit[1],
    )


def _line(x: Array, y: Array) -> tuple[float, float] | None:
    """Least-squares slope and its standard error, widened for correlated residuals; None for few points."""
    spread = float(((x - x.mean()) ** 2).sum()) if x.size else 0.0
    if x.size < LEAST_STEPS or spread == 0:
        return None
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    left = y - y.mean() - slope * (x - x.mean())
    squares = float((left**2).sum())
    error = math.sqrt(squares / (x.size - 2) / spread)
    correlation = float((left[1:] * left[:-1]).sum() / squares) if squares > 0 else 0.0
    correlation = min(max(correlation, 0.0), _MOST_CORRELATED)
    return slope, error * math.sqrt((1 + correlation) / (1 - correlation))


def _column(ds: xr.Dataset, name: str) -> Array | None:
    """A column with at least one value, None where the log has none."""
    if name not in ds or not np.isfinite(ds[name].values).any():
        return None
    return np.asarray(ds[name].values, dtype=float)


def _steps(ds: xr.Dataset) -> Array:
    return np.asarray(ds["rollout_step"].values, dtype=float)


def _steady_seconds(ds: xr.Dataset) -> Array:
    seconds = _column(ds, "step_seconds")
    return np.zeros(0) if seconds is None else seconds[ds["steady"].values & np.isfinite(seconds)]


def _rest(ds: xr.Dataset) -> Array | None:
    """Step less its phases [s], negative where they overlap; None where they are not stated apart."""
    stated = ds.attrs.get("provenance", {})
    if str(stated.get("step_seconds", "")).startswith("sum of "):
        return None
    if not {"step_seconds", "generation_seconds", "training_seconds"} <= set(ds.data_vars):
        return None
    parts = [ds[name].values for name in PHASES if name in ds]
    if "other_seconds" in ds and not str(stated.get("other_seconds", "")).startswith("step_seconds - "):
        parts.append(ds["other_seconds"].values)
    rest: Array = ds["step_seconds"].values - np.sum(parts, axis=0)
    return rest if np.isfinite(rest).any() else None


# -- checks -------------------------------------------------------------------------------------------


def checks(ds: xr.Dataset) -> list[Check]:
    """Every integrity check of one run, always in the same order.

    Parameters
    ----------
    ds : xarray.Dataset
        One run from `read_logs`.
    """
    return [check(ds) for check in CHECKS]


def _unknown(name: str, bound: float | None, reason: str) -> Check:
    return Check(name=name, outcome="not checkable", value=None, bound=bound, message=reason)


def _judged(name: str, value: float, bound: float, message: str, *, good: bool, effect: str = "") -> Check:
    """A check that was made; `effect` says what a bad value does to the answers."""
    full = message if good or not effect else f"{message}; {effect}"
    return Check(name=name, outcome="ok" if good else "warning", value=float(value), bound=bound, message=full)


def check_phases(ds: xr.Dataset) -> Check:
    """Whether the phases add up to the step: 90 % of the steady steps within 2 % [1]."""
    rest = _rest(ds)
    if rest is None:
        return _unknown("phases", PHASE_GAP, "the log does not state the step beside its phases")
    used = ds["steady"].values & np.isfinite(rest)
    if not used.any():
        return _unknown("phases", PHASE_GAP, "no steady step states all the phases")
    gap = rest[used] / ds["step_seconds"].values[used]
    value = float(np.quantile(np.abs(gap), _TAIL))
    over = int((np.abs(gap) > PHASE_GAP).sum())
    message = (
        f"step - sum(phases) is {100 * np.median(gap):.2g} % of the step (median), beyond {100 * PHASE_GAP:g} % "
        f"in {over} of {gap.size} steady steps"
    )
    effect = "phases overlap" if np.median(gap) < 0 else "some of the step belongs to no phase"
    return _judged("phases", value, PHASE_GAP, message, good=value <= PHASE_GAP, effect=effect)


def check_tokens(ds: xr.Dataset) -> Check:
    """Whether total tokens over mean length give the stated responses per rollout step [1]."""
    if "rollout_batch" not in ds.attrs:
        return _unknown("tokens", TOKEN_GAP, "the batch is unknown")
    stated = float(ds.attrs["rollout_batch"])
    warnings = ds.attrs.get("warnings", [])
    inferred = ds.attrs.get("inferred_rollout_batch")
    for warning in warnings:
        if found := _OTHER_BATCH.search(warning):
            inferred, stated = float(found[1]), float(found[2])
    if any("is inferred from the log's rows" in warning for warning in warnings):
        return _unknown("tokens", TOKEN_GAP, f"the batch of {stated:g} responses was itself inferred from the rows")
    if inferred is None:
        reason = "no count from tokens is kept with the run; the reader warns of one that contradicts P x G"
        return _unknown("tokens", TOKEN_GAP, reason)
    value = abs(float(inferred) / stated - 1)
    message = f"the rows point to {inferred:.6g} responses per rollout step, {stated:g} are stated"
    effect = "P x G, or which responses the tokens cover, is not what it seems"
    return _judged("tokens", value, TOKEN_GAP, message, good=value <= TOKEN_GAP, effect=effect)


def check_monotone(ds: xr.Dataset) -> Check:
    """Whether step numbers rise and responses do not fall, in falls [1]."""
    if ds.sizes["rollout_step"] < 2:
        return _unknown("monotone", 0.0, "fewer than two steps")
    falls = int((np.diff(_steps(ds)) <= 0).sum() + (np.diff(ds["responses"].values) < 0).sum())
    message = f"steps or responses fall {falls} times" if falls else "steps and responses rise"
    return _judged("monotone", falls, 0.0, message, good=falls == 0, effect="rows are out of order or of several runs")


def check_gaps(ds: xr.Dataset) -> Check:
    """The largest number of steps missing in a row, which elapsed time bridges up to three [1]."""
    step = _steps(ds)
    if step.size < 2:
        return _unknown("gaps", float(BRIDGED_STEPS), "fewer than two steps")
    stride = float(np.median(np.diff(step)))
    missing = np.maximum(np.diff(step) - stride, 0.0)
    at = int(missing.argmax())
    message = "no step is missing"
    if missing[at] > 0:
        message = f"{missing.sum():.0f} steps are missing, most between {step[at]:.0f} and {step[at + 1]:.0f}"
    good = missing[at] <= BRIDGED_STEPS
    effect = "elapsed time is unknown from there on; give the whole log"
    return _judged("gaps", missing[at], float(BRIDGED_STEPS), message, good=good, effect=effect)


def check_restarts(ds: xr.Dataset) -> Check:
    """How often a step came again, from the reader's warnings [1]."""
    warnings = ds.attrs.get("warnings", [])
    found = [warning for warning in warnings if _RESTARTED in warning]
    count = len(found) + sum(int(told[1]) for warning in warnings if (told := _MORE_RESTARTS.match(warning)))
    message = found[0] if found else "no step comes twice"
    more = f"; and {count - 1} more" if count > 1 else ""
    effect = "time lost to the abandoned branch is in no number" + more
    return _judged("restarts", count, 0.0, message, good=not found, effect=effect)


def check_finite_norms(ds: xr.Dataset) -> Check:
    """Share of steps with a finite gradient norm, at least 99 % [1]."""
    norms = _column(ds, "grad_norm")
    if norms is None:
        return _unknown("finite_norms", FINITE_SHARE, "the log holds no gradient norm")
    finite = int(np.isfinite(norms).sum())
    value = finite / norms.size
    message = f"the gradient norm is finite in {finite} of {norms.size} steps"
    effect = "a step without one may have skipped its update, and N counts its responses"
    return _judged("finite_norms", value, FINITE_SHARE, message, good=value >= FINITE_SHARE, effect=effect)


def check_rounded_norms(ds: xr.Dataset) -> Check:
    """Share of norms below .01 in a log of three decimals, at most 5 % [1]."""
    norms = _column(ds, "grad_norm")
    if norms is None:
        return _unknown("rounded_norms", ROUNDED_SHARE, "the log holds no gradient norm")
    norms = norms[np.isfinite(norms)]
    if not np.allclose(norms, np.round(norms, 3), rtol=0, atol=1e-9):
        return _judged("rounded_norms", 0.0, ROUNDED_SHARE, "norms have more than three decimals", good=True)
    small = int((np.abs(norms) < SMALL_NORM).sum())
    message = f"norms have three decimals, and {small} of {norms.size} are below {SMALL_NORM:g}"
    good = small / norms.size <= ROUNDED_SHARE
    effect = "rounding moves them by 5 % and more, and the noise scale with them"
    return _judged("rounded_norms", small / norms.size, ROUNDED_SHARE, message, good=good, effect=effect)


def check_rounded_rates(ds: xr.Dataset) -> Check:
    """Share of learning rates that are printed as 0 between the first and the last row [1]."""
    count = ds.sizes["rollout_step"]
    found = [int(m[1]) for w in ds.attrs.get("warnings", []) if (m := _ROUNDED_RATE.search(w))]
    if found:
        zeros, count = max(found), max(count, 1)
    elif "learning_rate" in ds:
        # A warm-up begins at 0 and a decay may end there.
        inner = ds["learning_rate"].values[1:-1]
        zeros, count = int((inner == 0).sum()), max(inner.size, 1)
    else:
        return _unknown("rounded_rates", 0.0, "the log holds no learning rate per step")
    rate = ds.attrs.get("learning_rate")
    effect = f"{rate:g} is used throughout" if rate else "give --learning-rate"
    message = f"the learning rate is 0 in {zeros} of {count} steps" if zeros else "no learning rate is rounded to 0"
    return _judged("rounded_rates", zeros / count, 0.0, message, good=zeros == 0, effect=effect)


def check_drift(ds: xr.Dataset) -> Check:
    """Change of the step time over the log relative to its mean, at most 20 % beyond two standard errors [1]."""
    seconds = _column(ds, "step_seconds")
    steady = ds["steady"].values & np.isfinite(seconds) if seconds is not None else np.zeros(0, dtype=bool)
    fit = _line(_steps(ds)[steady], seconds[steady]) if seconds is not None else None
    if seconds is None or fit is None:
        return _unknown("drift", DRIFT, f"fewer than {LEAST_STEPS} steady steps have a time")
    span, mean = float(np.ptp(_steps(ds)[steady])), float(seconds[steady].mean())
    if mean == 0:
        return _unknown("drift", DRIFT, "steps take no time")
    value, error = fit[0] * span / mean, fit[1] * span / mean
    message = f"the step time changes by {100 * value:+.0f} % (s.e. {100 * error:.0f} %) over {span:.0f} steps"
    good = abs(value) <= max(DRIFT, 2 * error)
    effect = "throughput is no constant: compare runs up to the same number of responses"
    return _judged("drift", value, DRIFT, message, good=good, effect=effect)


def check_cold_start(ds: xr.Dataset) -> Check:
    """First step over the steady median, at most 2 [1]."""
    seconds, step = _column(ds, "step_seconds"), _steps(ds)
    steady = _steady_seconds(ds)
    if seconds is None or not steady.size or np.median(steady) == 0:
        return _unknown("cold_start", COLD_RATIO, "no steady step has a time")
    stride = float(np.median(np.diff(step))) if step.size > 1 else 1.0
    first = int(np.flatnonzero(np.isfinite(seconds))[0])
    if step[first] > max(1.0, stride):
        return _unknown("cold_start", COLD_RATIO, f"the first step with a time is {step[first]:.0f}")
    ratio = seconds[first] / np.median(steady)
    slow = seconds[first:] > COLD_RATIO * np.median(steady)
    leading = int(np.argmin(slow)) if not slow.all() else slow.size
    message = f"the first step takes {ratio:.2f} steady medians"
    effect = f"slow steps at the start: {leading}; steady steps begin at the third, elapsed time counts all"
    return _judged("cold_start", ratio, COLD_RATIO, message, good=ratio <= COLD_RATIO, effect=effect)


def check_step_spikes(ds: xr.Dataset) -> Check:
    """Longest step after the first two over the steady median, at most 5 [1]."""
    seconds, steady = _column(ds, "step_seconds"), _steady_seconds(ds)
    if seconds is None or not steady.size or np.median(steady) == 0:
        return _unknown("step_spikes", SPIKE, "no steady step has a time")
    later = seconds[COLD_STEPS:]
    spikes = int((later > SPIKE * np.median(steady)).sum())
    value = float(np.nanmax(later) / np.median(steady))
    message = f"the longest step takes {value:.2f} steady medians"
    effect = f"{spikes} steps beyond {SPIKE:g} are not steady, and elapsed time counts them (stalls, or saving inside)"
    return _judged("step_spikes", value, SPIKE, message, good=spikes == 0, effect=effect)


def check_checkpoint_spikes(ds: xr.Dataset) -> Check:
    """Longest checkpoint over the median one, at most 5 [1]."""
    return _spikes("checkpoint_spikes", "checkpoint", _column(ds, "checkpoint_seconds"))


def check_evaluation_spikes(ds: xr.Dataset) -> Check:
    """Longest evaluation over the median one, at most 5 [1]."""
    return _spikes("evaluation_spikes", "evaluation", _column(ds, "evaluation_seconds"))


def _spikes(name: str, what: str, seconds: Array | None) -> Check:
    seconds = np.zeros(0) if seconds is None else seconds[np.isfinite(seconds) & (seconds > 0)]
    if seconds.size < LEAST_EVENTS:
        return _unknown(name, SPIKE, f"timed {what}s: {seconds.size}, and {LEAST_EVENTS} are needed")
    value = float(seconds.max() / np.median(seconds))
    message = f"the longest of {seconds.size} {what}s takes {seconds.max():.4g} s, {value:.2f} medians"
    effect = "wall-clock times hold it, T and q do not"
    return _judged(name, value, SPIKE, message, good=value <= SPIKE, effect=effect)


CHECKS: tuple[Callable[[xr.Dataset], Check], ...] = (
    check_phases,
    check_tokens,
    check_monotone,
    check_gaps,
    check_restarts,
    check_finite_norms,
    check_rounded_norms,
    check_rounded_rates,
    check_drift,
    check_cold_start,
    check_step_spikes,
    check_checkpoint_spikes,
    check_evaluation_spikes,
)
