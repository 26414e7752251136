"""Candidate batches: whole numbers of prompts, octaves of the reference unless stated.

Candidates are the reference times 2^k, k = -2 ... 6, at the reference's group size, where prompts and batch are whole.
Batches that leave a GPU of a specified trainer without a response are left out, and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsim.calibrate import Calibration
from batchsim.errors import InputError

DOUBLINGS = range(-2, 7)
MAX_CANDIDATES = 64
LARGEST = 1e9
"""Largest candidate batch [responses], number of GPUs and price."""

Floats = NDArray[np.float64]


def candidate_batches(recipe: Any, batches: Sequence[float]) -> Floats:
    """Train batches that are whole numbers of prompts, in increasing order."""
    per_prompt = recipe.group_size * recipe.epochs / recipe.updates_per_rollout
    if not batches:
        prompts = np.array([recipe.prompts * 2.0**k for k in DOUBLINGS])
        whole = (prompts % 1 == 0) & (prompts * recipe.group_size * recipe.epochs % recipe.updates_per_rollout == 0)
        return np.asarray(prompts[whole] * recipe.group_size * recipe.epochs / recipe.updates_per_rollout)
    if len(batches) > MAX_CANDIDATES:
        raise InputError(f"{len(batches)} candidate batches, and {MAX_CANDIDATES} are the most")
    chosen = np.unique(np.asarray(batches, dtype=np.float64))
    for b in chosen:
        prompts = b / per_prompt
        if not 0 < b <= LARGEST:
            raise InputError(
                f"candidate batch {b:g} is not a positive number of responses up to {LARGEST:g}",
                remedy=f"the smallest is {per_prompt:g}",
            )
        if abs(prompts - round(prompts)) > 1e-9 or b % 1:
            raise InputError(
                f"candidate batch {b:g} is not a whole number of prompts at {per_prompt:g} responses per prompt",
                remedy=f"the nearest is {max(1, round(prompts)) * per_prompt:g}",
            )
    return chosen


def trainable(calibration: Calibration, candidates: Floats) -> tuple[Floats, list[str]]:
    """Candidates that a trainer of specifications can train, and a sentence on those that it cannot."""
    stages, recipe = calibration.stages, calibration.recipe
    if "train_curve" not in stages:
        return candidates, []
    generated, trained = (np.asarray(stages[name][0], dtype=np.float64) for name in ("gen_curve", "train_curve"))
    refused = generated[generated < trained[0]]
    rollout = candidates * recipe.updates_per_rollout / recipe.epochs
    keep = rollout > (refused[-1] if refused.size else 0.0)
    if keep.all():
        return candidates, []
    named = ", ".join(f"{b:g}" for b in candidates[~keep])
    if not keep.any():
        raise InputError(
            f"no candidate of {named} gives every GPU that trains a response", remedy="raise them, or use fewer GPUs"
        )
    return candidates[keep], [f"left out, since some GPUs that train would get no response: B = {named}"]
