"""What a calibrated step waits for, and where generation reaches its plateau.

A simulated generation names its own limit (tail, max_num_seqs, KV memory, bandwidth, compute, communication, overhead);
the trainer binds where its time is the longer one, in at least half of the draws. A fitted law knows less: its shared
time, its time per response, or its plateau, which takes the name of the memory limit where the batch lies beyond it.
Where responses grow over training, stages are their means over progress.

Generated responses count what is launched, kept or not: a fitted law over kept responses is scaled by the recipe's
ratio, a simulated curve by its own ratio and kept share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsim.calibrate import Calibration
from batchsim.system.pipeline import critical_gen_batch, critical_on_curve, mean_curve, on_curve

Floats = NDArray[np.float64]


def critical_gen_batches(calibration: Calibration) -> Floats:
    """Generated responses at which each draw's generation reaches 90 % of its plateau.

    Parameters
    ----------
    calibration : Calibration

    Returns
    -------
    ndarray, (draw,) [responses]
    """
    stages, recipe = calibration.stages, calibration.recipe
    if "gen_curve" in stages:
        batches, seconds = mean_curve(stages["gen_curve"])
        launched = critical_on_curve(batches, seconds) * _launched(stages)
        return np.full(calibration.noise_scale.shape, launched)
    kept = critical_gen_batch(
        gen_time_intercept=stages["gen_time_intercept"],
        gen_time_slope=stages["gen_time_slope"],
        gen_throughput_max=stages["gen_throughput_max"],
    )
    # A fitted law counts kept responses; B_gen counts launched ones.
    unit = 1.0 if "gen_ratio" in stages else recipe.gen_ratio
    return np.broadcast_to(kept * unit, calibration.noise_scale.shape)


def critical_gen_limit(calibration: Calibration) -> str | None:
    """What sets the plateau that the critical generation batch is 90 % of.

    Parameters
    ----------
    calibration : Calibration

    Returns
    -------
    str or None
        A simulated limit, that of the nearest batch above; of a law the known name of its cap, or "time per response".
        None where there is no critical batch, or nothing known sets it.
    """
    stages = calibration.stages
    critical = float(np.median(critical_gen_batches(calibration)))
    if not np.isfinite(critical):
        return None
    if "gen_curve" not in stages:
        if np.isinf(np.median(stages["gen_throughput_max"])):
            return "time per response"
        return calibration.memory_limit[1] or None
    batches = np.asarray(stages["gen_curve"][0], dtype=np.float64)
    above = int(np.searchsorted(batches, critical / _launched(stages)))
    return str(stages["gen_limits"][min(above, batches.size - 1)])


def _launched(stages: dict[str, Any]) -> float:
    """Generated responses per kept one [1]."""
    return float(stages.get("gen_ratio", 1.0) / stages.get("kept_share", 1.0))


def binding_limits(calibration: Calibration, rollout: Floats) -> list[str]:
    """What the rollout step mostly waits for at each candidate, in at least half of the draws.

    Parameters
    ----------
    calibration : Calibration
    rollout : ndarray, (candidate,) [responses]

    Returns
    -------
    list of str
    """
    stages = calibration.stages
    if "gen_curve" in stages:
        return _simulated_limits(stages, rollout)
    unit = _launched(stages)
    b_gen = rollout * unit
    intercept, slope, plateau = (
        np.reshape(stages[k], (-1, 1)) for k in ("gen_time_intercept", "gen_time_slope", "gen_throughput_max")
    )
    capped = np.mean(b_gen / plateau > intercept + slope * b_gen, axis=0) >= 0.5
    shared = np.mean(intercept > slope * b_gen, axis=0) >= 0.5
    trained = stages.get("train_time_intercept", 0.0) + stages.get("train_time_per_response", 0.0) * rollout
    generated = np.median(np.maximum(intercept + slope * b_gen, b_gen / plateau), axis=0)
    capacity, name = calibration.memory_limit
    limits = []
    for i, r in enumerate(rollout):
        if trained[i] > generated[i]:
            limits.append("trainer")
        elif capped[i]:
            limits.append(name if name and r > capacity else "throughput plateau")
        else:
            limits.append("shared step time" if shared[i] else "time per response")
    return limits


def _simulated_limits(stages: dict[str, Any], rollout: Floats) -> list[str]:
    """The trainer where its time is longer, else what the nearest simulated batch waits for."""
    curve = mean_curve(stages["gen_curve"])
    batches = np.asarray(curve[0])
    generated, trained = on_curve(rollout, curve), on_curve(rollout, mean_curve(stages["train_curve"]))
    factor = np.median(stages["gen_factor"]), np.median(stages.get("train_factor", 1.0))
    nearest = np.argmin(np.abs(np.log(batches[None, :]) - np.log(rollout[:, None])), axis=1)
    return [
        "trainer" if factor[1] * t > factor[0] * g else str(stages["gen_limits"][i])
        for g, t, i in zip(generated, trained, nearest, strict=True)
    ]
