r"""Our GRPO sweep of a small transformer from its two smallest batches: T/T0 and the star, under both rules.

Forecasts see the runs at B = 64 and 128 alone, with the rate probes and fixed-rate runs made there, at three targets.
They are asked for the measured sweep: 256 to 4,096 under the sqrt rule, 256 and 512 at a fixed rate. Beside each ratio
stands a straight line through the pilots' own, in logarithms. The star is held against the sweep in three ways:

    measured star     the recommendation's own rule on measured T: the smallest batch within 5 % of the least
    regret            measured T at the predicted star over the least measured T, - 1
    range             whether the predicted effective range holds a batch within 5 % of the least measured T

Seconds are those of one CPU core that other work shared: step times of the pilots scatter by a third between seeds,
which the intervals of r_q know and two pilots cannot mend. The ladder shows what a third does.

References
----------
.. [1] `shared/data/tiny_grpo`, measured for this project.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from batchsim.measure import LEVEL
from batchsim.plan import Plan
from batchsim.predict import compare, matching_arms, predict
from batchsim.specs.recipe import Recipe
from batchsim.validate.measured import QUANTITIES, Progress, make_row, power_law, rungs, runs_of, score, silent
from batchsim.validate.published import TINY_TARGETS

FOLDER = "tiny_grpo"
CHUNKS = 8
PILOTS = (64.0, 128.0)
SWEEPS = {"sqrt": (64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0), "fixed": (64.0, 128.0, 256.0, 512.0)}
WITHIN = 1.05
"""Of the least time: the star's and the effective range's own tolerance."""
LADDER_TARGET, LADDER_BATCH = 0.45, 1024.0
RECIPE = Recipe(prompts=8, group_size=8, learning_rate=1e-4, lr_rule="sqrt")
NOTHING = "the recipe"


def validate_tiny(
    data: Path | None = None, *, seed: int = 0, level: float = LEVEL, progress: Progress = silent
) -> dict[str, Any]:
    """Validate forecasts of the small transformer's sweep from its two smallest batches.

    Parameters
    ----------
    data : Path or None
        Folder of measured data; else BATCHSIM_DATA or the folder beside a checkout.
    seed : int
        Of the draws.
    level : float in (0, 1) [1]
    progress : callable
        Takes the name of each stage as it begins.

    Returns
    -------
    dict
        name, overall (see `measured.score`, of T/T0; with stars: how many agree or lie within 5 %), slices by rule and
        quantity, rows, skipped; stars: per rule and target the predicted and the measured star, range and regret;
        pilots: the ladder.

    Raises
    ------
    InputError
        For a named folder that does not exist, or a level outside (0, 1).
    """
    progress("reading 45 runs")
    runs, skipped = runs_of(data, FOLDER, chunks=CHUNKS)
    if runs is None:
        return {"name": "tiny", "overall": {}, "slices": [], "rows": [], "skipped": skipped, "stars": [], "pilots": []}
    rows: list[dict[str, Any]] = []
    stars = []
    for rule, batches in SWEEPS.items():
        for target in TINY_TARGETS:
            progress(f"{rule} rule, target {target:g}")
            ds = predict(
                runs, target=target, pilot_batches=PILOTS, batches=batches, lr_rule=rule, level=level, seed=seed
            )
            rows += _rows(ds, rule, target)
            stars.append(_star(ds, rule, target))
    progress("what a pilot buys")
    times = [r for r in rows if r["quantity"] == "time_ratio"]
    regrets = [s["regret"] for s in stars if s["regret"] is not None]
    parts = [
        (f"{rule} rule, {shown}", [r for r in rows if (r["rule"], r["quantity"]) == (rule, name)])
        for rule in SWEEPS
        for name, shown in QUANTITIES.items()
    ]
    return {
        "name": "tiny",
        "overall": score(times, level=level)
        | {
            "peer": "power law through the pilots' T/T0",
            "stars": len(stars),
            "stars_equal": sum(s["star"] == s["measured_star"] for s in stars),
            "stars_within": sum(s["regret"] is not None and s["regret"] <= WITHIN - 1 for s in stars),
            "median_regret": float(np.median(regrets)) if regrets else None,
        },
        "slices": [{"slice": name} | score(part, level=level) for name, part in parts],
        "rows": rows,
        "skipped": skipped,
        "stars": stars,
        "pilots": _ladder(runs, level=level, seed=seed),
    }


def _rows(ds: xr.Dataset, rule: str, target: float) -> list[dict[str, Any]]:
    """Held-out batches, each ratio beside the line through the pilots' own measured ratios."""
    compared = compare(ds)
    pilot = {c["claim"]: c["measured"] for c in compared if c["train_batch"] == PILOTS[1]}
    found = []
    for c in compared:
        if not c["held_out"] or c["claim"] not in QUANTITIES:
            continue
        found.append(
            make_row(
                f"{QUANTITIES[c['claim']]} at B = {c['train_batch']:g}, {rule} rule, target {target:g}",
                predicted=c["predicted"],
                interval=(c["interval"][0], c["interval"][1]),
                measured=c["measured"],
                measured_interval=c["measured_interval"],
                peer=power_law(c["train_batch"], first=(PILOTS[0], 1.0), second=(PILOTS[1], pilot[c["claim"]]))
                if c["claim"] in pilot
                else None,
                rule=rule,
                target=target,
                quantity=c["claim"],
                train_batch=c["train_batch"],
            )
        )
    return found


def _star(ds: xr.Dataset, rule: str, target: float) -> dict[str, Any]:
    """The recommendation beside the measured sweep."""
    arms = matching_arms(ds)
    assert arms is not None
    asked = np.isin(arms["train_batch"].values, ds["train_batch"].values)
    batch = arms["train_batch"].values[asked]
    time = arms["time_ratio"].sel(bound="estimate").values[asked]
    order = np.argsort(batch)
    batch, time = batch[order], time[order]
    good = batch[time <= WITHIN * np.min(time)]
    star, chosen = ds.attrs["star"], ds.attrs["effective_range"]
    regret = None if star is None else float(time[batch == star][0] / np.min(time) - 1)
    following = ds.attrs["next_run"]
    return {
        "rule": rule,
        "target": target,
        "star": star,
        "measured_star": float(good[0]),
        "effective_range": None if chosen is None else list(chosen),
        "measured_range": [float(good[0]), float(good[-1])],
        "regret": regret,
        "range_holds_one": chosen is not None and bool(np.any((good >= chosen[0]) & (good <= chosen[1]))),
        "next_run": None if following is None else following["train_batch"],
    }


def _ladder(runs: xr.DataTree, *, level: float, seed: int) -> list[dict[str, Any]]:
    """T/T0 at one batch from the recipe alone, then from one pilot more at a time, until the batch itself is one."""
    batches = SWEEPS["sqrt"]
    found: list[dict[str, Any]] = []
    given: dict[str, Any] = {"batches": batches, "lr_rule": "sqrt", "level": level, "seed": seed}
    reached = batches.index(LADDER_BATCH) + 1
    forecasts = [(NOTHING, predict(Plan(recipe=RECIPE), **given))]
    for count in range(1, reached + 1):
        pilots = batches[:count]
        name = ", ".join(f"{b:g}" for b in pilots)
        forecasts.append((name, predict(runs, target=LADDER_TARGET, pilot_batches=pilots, **given)))
    measured = {c["claim"]: c["measured"] for c in compare(forecasts[-1][1]) if c["train_batch"] == LADDER_BATCH}
    for count, (name, ds) in enumerate(forecasts):
        found += rungs(name, ds, workload=FOLDER, train_batch=LADDER_BATCH, measured=measured, held_out=count < reached)
    return found
