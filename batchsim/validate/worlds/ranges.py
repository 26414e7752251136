"""Where random worlds come from: every range, written down before any result that is shown.

A world of a row is drawn from the row's own stream, so that world 7 of the sparse row is the same whatever else is run.
Four rows test the law where its assumptions hold and where they do not:

    isotropic       the teacher uses every coordinate, and all have the same scale
    sparse          it uses few of them: signal-to-noise is concentrated
    heterogeneous   scales are lognormal: gradients differ in noise and in signal-to-noise
    rotated         sparse and heterogeneous, in a rotated basis that shows neither

Worlds are validated on their own training prompts, so that memory of single prompts counts as progress: with others,
what is learned of single prompts shrinks the share of an update that moves the score, differently at each batch, and no
forecast here is held against that. The smallest batches have four and eight prompts, so that a critical batch lies
within reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from batchsim.learning.worlds import SoftmaxWorld, softmax_world

ROWS = ("isotropic", "sparse", "heterogeneous", "rotated")
DIM = (256, 768)
ANSWERS = (4, 8)
PROMPTS = 1024
OVERLAP = (0.0, 0.3)
DIFFICULTY = (0.2, 1.0)
LABEL_NOISE = (0.0, 0.3)
START_ABOVE_CHANCE = (0.05, 0.15)
GAIN = (0.15, 0.30)
"""Target less start."""
GROUP = (4, 8)
SIGNAL = (4, 1 / 8)
"""Coordinates of a sparse teacher, log-uniform from 4 to an eighth of them."""
SCALE_SPREAD = (0.4, 1.2)
SMALLEST = 4
"""Prompts of the smallest batch."""
LR_FRACTIONS = (0.02, 0.2, 0.5)
"""Of the rate that reaches the target in the fewest updates; .02 stands for none."""
STREAM = 20261201


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A world as drawn: keywords of `softmax_world`, G and the target score."""

    row: str
    number: int
    world: dict[str, Any]
    group_size: int
    target: float

    def build(self) -> SoftmaxWorld:
        """The world itself."""
        return softmax_world(**self.world)


def draw(row: str, number: int) -> Drawn:
    """Draw world `number` of a row.

    Parameters
    ----------
    row : str
        Of `ROWS`.
    number : int

    Returns
    -------
    Drawn
    """
    rng = np.random.default_rng(np.random.SeedSequence(STREAM, spawn_key=(ROWS.index(row), number)))
    dim = round(float(np.exp(rng.uniform(*np.log(DIM)))))
    answers = int(rng.choice(ANSWERS))
    correct = int(rng.integers(1, answers // 4 + 1))
    start = correct / answers + rng.uniform(*START_ABOVE_CHANCE)
    world: dict[str, Any] = {
        "dim": dim,
        "prompts": PROMPTS,
        "validation": 0,
        "answers": answers,
        "correct": correct,
        "overlap": rng.uniform(*OVERLAP),
        "difficulty": rng.uniform(*DIFFICULTY),
        "label_noise": rng.uniform(*LABEL_NOISE),
        "start_score": start,
    }
    signal = round(float(np.exp(rng.uniform(np.log(SIGNAL[0]), np.log(SIGNAL[1] * dim)))))
    spread = float(rng.uniform(*SCALE_SPREAD))
    if row in ("sparse", "rotated"):
        world["signal"] = signal
    if row in ("heterogeneous", "rotated"):
        world["scale_spread"] = spread
    world["rotated"] = row == "rotated"
    group = int(rng.choice(GROUP))
    target = start + float(rng.uniform(*GAIN))
    world["seed"] = int(rng.integers(2**31))
    return Drawn(row=row, number=number, world=world, group_size=group, target=target)
