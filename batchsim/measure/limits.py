"""Sentences on what measured runs cannot say, and the run that would."""

from __future__ import annotations

import numpy as np
import xarray as xr

from batchsim.learning.noise_scale import NoiseScale
from batchsim.measure.runs import Run


def limits(
    arms: xr.Dataset,
    read: list[Run],
    metric: str | None,
    target: float | None,
    noise_scales: list[NoiseScale],
) -> list[str]:
    """Sentences on what the runs cannot say, and the run that would."""
    said = []
    censoring = [r.crossing.censoring if r.crossing else None for r in read]
    if metric is None and not any(r.ds.sizes["metric"] for r in read):
        said.append(
            "no validation score in the logs: N*, T and r_N are unknown (training reward is not one); "
            "evaluate on a common validation set, say every tenth of the run"
        )
    elif target is None and metric is not None:
        best = max(
            float(np.nanmax(r.ds["score"].sel(metric=metric).values)) for r in read if metric in r.ds["metric"].values
        )
        said.append(f"no target: N*, T and r_N need --target; the best '{metric}' is {best:.4g}")
    at_start = [r for r in read if r.crossing is not None and r.crossing.high == 0]
    if at_start:
        said.append(f"{len(at_start)} run(s) pass the target before training: it measures nothing; choose a higher one")
    elif censoring and all(c == "left" for c in censoring):
        first = min(r.crossing.high for r in read if r.crossing)
        said.append(
            "every run passes the target at its first evaluation, so N* has upper bounds only: "
            "r_N is not bounded and no verdict follows; times are to the first scheduled evaluation, "
            f"not to the target; evaluate several times before {first:.0f} responses"
        )
    elif any(c == "left" for c in censoring):
        said.append("runs that pass the target at their first evaluation bound N* from above only")
    if not np.isfinite(arms["throughput"].values).any():
        said.append("no timing in the logs: q, r_q and T are unknown; give --step-seconds, or log the step time")
    if np.unique(arms["train_batch"].values).size == 1:
        b = float(arms["train_batch"].values[0])
        said.append(
            f"one batch ({b:g} responses): nothing to compare; the next run worth measuring is {2 * b:g} "
            "responses per update, learning rate times sqrt(2), to the same target"
        )
    if not (arms["lr_rule"].values != "").all():
        said.append("a learning rate is unknown, so its r_N carries no learning-rate rule; give --learning-rate")
    said += [e.message for e in noise_scales if not e.identified]
    finite = [e for e in noise_scales if e.identified]
    if finite and len(finite) < len(noise_scales):
        said.append(
            "the noise-scale estimates disagree: one window or method has an upper limit and another has "
            "none; read the noise scale as at least "
            f"{min(e.low for e in noise_scales if e.low > 0):,.0f} responses"
        )
    return said
