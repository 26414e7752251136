r"""The learning law against published runs: who predicts N* at the largest batch from the smaller ones?

Every form of `forms` is fitted to a sweep without its largest batch and asked for it; the same point for every form.
The targets of one experiment share its runs, so they count as one set (the median of their errors). Over sets: the
median absolute log error with a bootstrap over sets, wins and losses against the plain hyperbola, and the two-sided
sign test of their split. Two batches under three rules (IsoCompute) leave no shape to fit: there the largest batch is
predicted under one rule from the same batch under another, in a slice of its own.

The interval of a prediction is what `predict` grants the law beyond measured batches (`calibrate.law_error`), with the
measurement's own error: its coverage tests that constant on data, most of which it was not set on.

The default forms are those that this very table decides, so their score on it is partly in sample: beside it stands
the score where every set is predicted by the form that the table decides without the set.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from batchsim.calibrate import law_error
from batchsim.errors import InputError, nearest
from batchsim.validate.data import data_folder
from batchsim.validate.forms import FORMS, Form, Sweep, fit
from batchsim.validate.published import load
from batchsim.validate.small_transformer import FOLDER, validate_small_transformer

LEVEL = 0.8
RESAMPLES = 2000
TIE = 0.01
"""Difference of two log errors, and of two medians, that decides nothing."""
PEER = "hyperbola"
GOALS = {"coverage_80": 0.75, "half_width_80": 0.25}
"""Least coverage of the 80 % intervals, and their largest half-width; the median error is to be below the peer's."""
DEFAULTS = {"fixed": "drift", "sqrt": "hyperbola", "tuned": "hyperbola"}
"""Form that the table decides for each rule that it holds; a test compares them with the data."""
UNMEASURED = {"linear": "unified", "invariant": "hyperbola"}
"""Rules without a sweep of three batches: of the forms that know a rate, unified misses the linear rule least where it
is predicted from another one; the invariant rule holds r_N at 1 up to where it becomes the tuned one."""


def default_form(rule: str) -> str:
    """Form to fit to measured N* under a learning-rate rule, as the leave-largest-out table decides.

    Parameters
    ----------
    rule : str
        'fixed', 'sqrt' or 'tuned'; 'linear' and 'invariant' have no sweep of three batches and rest on `UNMEASURED`.

    Returns
    -------
    str
        A name in `forms.FORMS`.

    Raises
    ------
    InputError
        For another rule.

    Examples
    --------
    >>> default_form("fixed")
    'drift'
    """
    if rule not in DEFAULTS and rule not in UNMEASURED:
        raise InputError(f"no form is validated for the rule '{rule}'", remedy=nearest(rule, [*DEFAULTS, *UNMEASURED]))
    return (DEFAULTS | UNMEASURED)[rule]


def decide(answer: dict[str, Any]) -> dict[str, str]:
    """Form per rule that a validation decides: the least median error, ties to fewer parameters, then to the peer.

    Parameters
    ----------
    answer : dict
        Of `validate_samples`.

    Returns
    -------
    dict of str to str
    """
    return {part["slice"]: _decided(part["forms"]) for part in answer["slices"] if part["slice"] in DEFAULTS}


def _decided(scores: dict[str, Any]) -> str:
    """The form of one rule's scores."""
    error = {name: _or_inf(score["median_abs_log_error"]) for name, score in scores.items()}
    good = [name for name, value in error.items() if value <= min(error.values()) + TIE]
    order = list(FORMS)
    return min(good, key=lambda name: (len(FORMS[name].parameters), order.index(name)))


def validate_samples(folder: Path | str | None = None, *, seed: int = 0) -> dict[str, Any]:
    """Validate the learning law on published sweeps.

    Parameters
    ----------
    folder : path or None
        Laid out as `shared/data`; ../shared/data if None and it exists. What is absent is skipped with the reason.
    seed : int
        Of the bootstrap.

    Returns
    -------
    dict
        Plain values: name, overall (with the scores of the default forms, see `default_score`), slices, rows, skipped,
        sets (per set: log-rms in sample, error left out) and small_transformer (None without its data).

    Raises
    ------
    InputError
        For a folder that does not exist.
    """
    if folder is not None and not Path(folder).is_dir():
        raise InputError(
            "no such folder", where=str(folder), remedy="give the folder that holds published/ and tiny_grpo/"
        )
    place = data_folder(Path(folder) if folder is not None else None)
    sweeps, skipped = load(place)
    rows = [row for sweep in sweeps for row in (_transfer(sweep) if sweep.rule == "transfer" else _left_out(sweep))]
    held_out = [row for row in rows if row["rule"] in DEFAULTS]
    slices = [(rule, [r for r in held_out if r["rule"] == rule]) for rule in DEFAULTS]
    slices.append(("reinforcement learning", [r for r in held_out if r["rule"] != "tuned"]))
    slices += [
        (f"tuned, {name}", [r for r in held_out if r["set"].startswith(name)]) for name in ("zhang2024", "mlperf_rcp")
    ]
    slices += [
        (rule, [r for r in rows if r["rule"] == rule]) for rule in sorted({r["rule"] for r in rows} - {*DEFAULTS})
    ]
    has_tiny = place is not None and (place / FOLDER / "moments.json").is_file()
    if not has_tiny:
        skipped.append(f"small transformer: {FOLDER}/moments.json and updates.csv are absent; give --data")
    return {
        "name": "samples",
        "overall": _score(held_out, seed) | default_score(held_out),
        "slices": [{"slice": name} | _score(part, seed) for name, part in slices if part],
        "rows": [{key: value for key, value in row.items() if key not in ("log_rms", "aic")} for row in rows],
        "skipped": skipped,
        "sets": _sets(rows),
        "small_transformer": validate_small_transformer(place) if has_tiny and place is not None else None,
    }


# -- predictions --------------------------------------------------------------------------------------


def leave_largest_out(form: Form, sweep: Sweep) -> float:
    """N* at the largest batch of a sweep, predicted from the other points.

    Parameters
    ----------
    form : Form
    sweep : Sweep
        Batches increasing.

    Returns
    -------
    float [responses]
    """
    others = np.arange(sweep.train_batch.size) < sweep.train_batch.size - 1
    return float(fit(form, sweep.select(others)).predict(sweep.train_batch[-1]))


def _left_out(sweep: Sweep) -> list[dict[str, Any]]:
    """A row per form for the largest batch of a sweep."""
    predicted = {name: leave_largest_out(form, sweep) for name, form in FORMS.items()}
    whole = {name: fit(form, sweep) for name, form in FORMS.items()}
    spread = float(np.hypot(law_error(sweep.train_batch[-1], tuple(sweep.train_batch[:-1])), sweep.error[-1]))
    return [
        _row(sweep, sweep.rule, name, -1, predicted, spread) | {"log_rms": whole[name].log_rms, "aic": whole[name].aic}
        for name in FORMS
    ]


TRANSFERS = (("fixed", 1.0, "sqrt", 2.83), ("fixed", 1.0, "linear", 8.0), ("sqrt", 2.83, "fixed", 1.0))
"""From a rule at its rate ratio to another at the larger of IsoCompute's two batches."""


def _transfer(sweep: Sweep) -> list[dict[str, Any]]:
    """Rows for the larger of two batches under one rule, from the same batch under another.

    Probes of the rate at the smaller batch are given to the one form that has a parameter for them.
    """
    assert sweep.rate is not None
    small = sweep.train_batch == sweep.train_batch.min()
    rows = []
    for source, known, rule, wanted in TRANSFERS:
        asked = np.flatnonzero(~small & (sweep.rate == wanted))
        if not asked.size:
            continue
        point = int(asked[0])
        arms = (small & (sweep.rate == 1)) | (~small & (sweep.rate == known))
        predicted, whole = {}, {}
        for name, form in FORMS.items():
            given = sweep.select(arms | small if name == "unified" else arms)
            whole[name] = fit(form, replace(given, rule=source))
            predicted[name] = float(whole[name].predict(sweep.train_batch[point], sweep.rate[point]))
        spread = float(np.hypot(law_error(8.0, (1.0,)), sweep.error[point]))
        label = f"transfer: {rule} from {source}"
        rows += [
            _row(sweep, label, name, point, predicted, spread)
            | {"log_rms": whole[name].log_rms, "aic": whole[name].aic}
            for name in FORMS
        ]
    return rows


def _row(sweep: Sweep, rule: str, form: str, point: int, predicted: dict[str, float], spread: float) -> dict[str, Any]:
    measured, batch, own = float(sweep.responses[point]), float(sweep.train_batch[point]), predicted[form]
    half = float(ndtri((1 + LEVEL) / 2)) * spread
    low, high = own * math.exp(-half), own * math.exp(half)
    at = f" at target {sweep.name}" if sweep.name else ""
    return {
        "claim": f"N* of {sweep.group}{at}, B = {batch:g}: {form}",
        "predicted": _finite(own),
        "interval": [_finite(low), _finite(high)],
        "measured": measured,
        "error": _finite(own / measured - 1),
        "covered": bool(low <= measured <= high),
        "peer": _finite(predicted[PEER]),
        "set": sweep.group,
        "target": sweep.name or None,
        "rule": rule,
        "form": form,
        "train_batch": batch,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# -- scores -------------------------------------------------------------------------------------------


def _log_error(row: dict[str, Any]) -> float:
    return math.inf if row["predicted"] is None else math.log(row["predicted"] / row["measured"])


def _by_set(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, list[dict[str, Any]]]]:
    """Rows per (set, rule) and form, targets in order."""
    sets: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        sets[row["set"], row["rule"]][row["form"]].append(row)
    return sets


def _sets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per set and rule: log-rms in sample, AIC beyond the peer's, and errors left out, medians over targets."""
    return [
        {
            "set": name,
            "rule": rule,
            "targets": len(forms[PEER]),
            "log_rms": {f: float(np.median([r["log_rms"] for r in own])) for f, own in forms.items()},
            "aic_beyond_peer": {
                f: float(np.mean([r["aic"] - p["aic"] for r, p in zip(own, forms[PEER], strict=True)]))
                for f, own in forms.items()
            },
            "abs_log_error": {
                f: _finite(float(np.median(np.abs([_log_error(r) for r in own])))) for f, own in forms.items()
            },
            "log_error": {f: _finite(float(np.median([_log_error(r) for r in own]))) for f, own in forms.items()},
        }
        for (name, rule), forms in _by_set(rows).items()
    ]


def _score(rows: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Scores of every form on the same points, sets counted once."""
    sets = _sets(rows)
    error = {
        form: np.array([math.inf if s["abs_log_error"][form] is None else s["abs_log_error"][form] for s in sets])
        for form in FORMS
    }
    picks = np.random.default_rng(seed).integers(len(sets), size=(RESAMPLES, len(sets))) if sets else np.empty((0, 0))
    tail = (1 - LEVEL) / 2
    forms = {}
    for form, own in error.items():
        if not sets:
            continue
        medians = np.median(own[picks], axis=1)
        wins, losses = int(np.sum(own < error[PEER] - TIE)), int(np.sum(own > error[PEER] + TIE))
        mine = [r for r in rows if r["form"] == form]
        forms[form] = {
            "median_abs_log_error": _finite(float(np.median(own))),
            "interval": [_finite(float(q)) for q in np.quantile(medians, [tail, 1 - tail], method="nearest")],
            "median_log_error": _finite(float(np.median([_or_inf(s["log_error"][form]) for s in sets]))),
            "wins": wins,
            "losses": losses,
            "ties": len(sets) - wins - losses,
            "p": sign_test(wins, losses),
            "median_log_rms": float(np.median([s["log_rms"][form] for s in sets])),
            "aic_beyond_peer": float(np.sum([s["aic_beyond_peer"][form] for s in sets])),
            "covered": float(np.mean([r["covered"] for r in mine])),
        }
    return {"sets": len(sets), "points": len(rows) // len(FORMS), "level": LEVEL, "peer": PEER, "forms": forms}


def default_score(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of the default form of each rule, point by point, beside the hyperbola on the same points.

    Parameters
    ----------
    rows : list of dict
        Of the leave-largest-out table, every form of every point.

    Returns
    -------
    dict
        n points, median_abs_error and bias of log(predicted/measured), hyperbola_median_abs_error, coverage_80 and
        half_width_80 (half the 80 % interval over the prediction, median), and unseen_median_abs_error: every set by
        the form that the table decides without it. Empty without points.
    """
    own = [row for row in rows if row["form"] == DEFAULTS[row["rule"]]]
    if not own:
        return {}
    unseen = []
    for name, rule in dict.fromkeys((row["set"], row["rule"]) for row in own):
        others = [row for row in rows if row["rule"] == rule and row["set"] != name]
        # A rule with one set leaves nothing to decide by.
        form = _decided(_score(others, 0)["forms"]) if others else PEER
        unseen += [row for row in rows if (row["set"], row["rule"], row["form"]) == (name, rule, form)]
    halves = [(row["interval"][1] - row["interval"][0]) / (2 * row["predicted"]) for row in own if row["predicted"]]
    return {
        "n": len(own),
        "median_abs_error": _finite(float(np.median(np.abs([_log_error(row) for row in own])))),
        "hyperbola_median_abs_error": _finite(
            float(np.median([abs(math.log(row["peer"] / row["measured"])) for row in own if row["peer"] is not None]))
        ),
        "unseen_median_abs_error": _finite(float(np.median(np.abs([_log_error(row) for row in unseen])))),
        "bias": _finite(float(np.median([_log_error(row) for row in own]))),
        "coverage_80": float(np.mean([row["covered"] for row in own])),
        "half_width_80": float(np.median(halves)),
        "goals": GOALS,
    }


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p-value of a split into wins and losses if both were equally likely.

    Parameters
    ----------
    wins, losses : int
        Ties are left out.

    Returns
    -------
    float [1]
    """
    n, k = wins + losses, min(wins, losses)
    return min(1.0, 2.0 ** (1 - n) * sum(math.comb(n, i) for i in range(k + 1)))
