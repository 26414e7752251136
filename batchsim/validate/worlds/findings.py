r"""The paper's findings in worlds that were not told them.

Every finding is a statement about simulated runs alone, its tolerance fixed here. Worlds are drawn from stated ranges:
GRPO's have a noise scale far above the smallest batch, as the paper's run has, since its smallest batches all align.

* Under the sqrt rule, curves over responses align (r_N <= 1.15) over a 16-fold range of P, then fall behind.
* Gradient norms fall as P^-1/2 (slope -.50 +- .05) there and flatten beyond. Where the norm's local slope passes -1/4
  it is half noise and half signal (B = B_noise); where r_N passes 1.10 curves depart. The ratio of these two batches
  says how much earlier curves depart than norms.
* At twice the batch the sqrt rule needs .50 to .60 of the updates, a fixed rate .65 to .85 (aligned range).
* P G is the unit where responses vary more than prompts do: (128, 8) and (64, 16) need the same responses. Where
  prompts vary, the difference follows from the moments of groups: N* ~ 1/A(P, G) at equal P G and rate.
* In PPO, norms of actor and critic both follow |G|^2 (1 + B_noise/B), each with its own noise scale. A value function
  that lags behind the policy has a gradient that is mostly signal, and a flat norm.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, figures 3-6 (findings), 4 (the critic's flat norm).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from batchsim.learning.noise_scale import combine, from_chunk_norms
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

WORLDS = 6
STREAM = 20261202
PROMPTS = 4 * 2 ** np.arange(10)
GROUP = 8
RATE = 0.004
GAIN = 0.2
SEEDS = 2
ALIGNED, DEPARTED = 1.15, 1.10
LEVEL = 0.8
PAIRS = ((128, 8), (64, 16))
TRADES = ((128, 4), (64, 8), (32, 16), (16, 32))
PPO_BATCHES = 64 * 2 ** np.arange(7)
CRITIC_RATES = (1.0, 0.1, 0.03)
"""Of the actor's."""


def draw_grpo(number: int) -> tuple[SoftmaxWorld, float]:
    """World of the GRPO findings and its target: a teacher whose labels are noisy, in many dimensions."""
    rng = np.random.default_rng(np.random.SeedSequence(STREAM, spawn_key=(0, number)))
    answers = int(rng.choice((4, 8)))
    start = 1 / answers + float(rng.uniform(0.08, 0.12))
    world = softmax_world(
        dim=int(rng.integers(1536, 2049)), prompts=1024, validation=0, answers=answers,
        label_noise=float(rng.uniform(0.4, 0.8)), difficulty=float(rng.uniform(0.3, 0.8)), start_score=start,
        seed=int(rng.integers(2**31)),
    )  # fmt: skip
    return world, start + GAIN


def validate_findings(*, worlds: int = WORLDS, progress: Callable[[int, int], object] | None = None) -> dict[str, Any]:
    """All findings, world by world.

    Parameters
    ----------
    worlds : int
        Per finding.
    progress : callable or None
        Called with parts done and parts in all.

    Returns
    -------
    dict
        Plain values: name, overall (how many findings hold), slices (one per finding, with the simulated quantity's
        median and range over worlds), rows, skipped.
    """
    makers: tuple[Callable[[int], list[dict[str, Any]]], ...] = (grpo_rows, pair_rows, ppo_rows)
    rows: list[dict[str, Any]] = []
    done = 0
    for number in range(worlds):
        for make in makers:
            rows += make(number)
            done += 1
            if progress is not None:
                progress(done, worlds * len(makers))
    slices = []
    for claim in dict.fromkeys(row["claim"] for row in rows):
        own = [row for row in rows if row["claim"] == claim]
        values = [row["measured"] for row in own if row["measured"] is not None]
        slices.append(
            {
                "slice": claim,
                "n": len(own),
                "met": sum(row["covered"] for row in own if row["covered"] is not None),
                "tested": own[0]["interval"] is not None,
                "interval": own[0]["interval"],
                "median": float(np.median(values)) if values else None,
                "lowest": min(values) if values else None,
                "highest": max(values) if values else None,
            }
        )
    tested = [s for s in slices if s["tested"]]
    return {
        "name": "findings",
        "overall": {"findings": len(tested), "met": sum(s["met"] == s["n"] for s in tested), "worlds": worlds},
        "slices": slices,
        "rows": rows,
        "skipped": [],
    }


def _row(number: int, claim: str, measured: float, limits: tuple[float, float | None] | None = None) -> dict[str, Any]:
    known = bool(np.isfinite(measured))
    return {
        "claim": claim,
        "world": number,
        "predicted": None,
        "interval": None if limits is None else list(limits),
        "measured": float(measured) if known else None,
        "error": None,
        "covered": None
        if limits is None
        else bool(known and limits[0] <= measured <= (np.inf if limits[1] is None else limits[1])),
        "peer": None,
    }


def _rms(runs: Sequence[Trained], arms: int, prefix: str = "") -> Floats:
    """Root mean square gradient norm of each arm, over all updates of its runs."""
    squares = [np.concatenate([r.record[f"{prefix}sq_norm_batch"] for r in runs if r.arm == i]) for i in range(arms)]
    return np.array([np.sqrt(s.mean()) for s in squares])


def grpo_rows(number: int) -> list[dict[str, Any]]:
    """Alignment, norms and updates under the sqrt rule and a fixed rate."""
    world, target = draw_grpo(number)
    batch = PROMPTS * GROUP
    found = {}
    for rule, power in (("sqrt", 0.5), ("fixed", 0.0)):
        # Under a fixed rate N* grows as sqrt(B): batches beyond the aligned ones would only cost time.
        some = slice(None) if rule == "sqrt" else slice(0, 6)
        runs = train(
            world, Trainer(), prompts=PROMPTS[some], group_size=GROUP,
            learning_rate=RATE * (PROMPTS[some] / PROMPTS[0]) ** power, seeds=SEEDS, seed=1, responses_max=4e6,
            evaluate_every=np.maximum(2048, batch[some]), target=target, record=True,
        )  # fmt: skip
        found[rule] = runs, mean_responses(runs, target)[0]
    runs, needed = found["sqrt"]
    ratio = needed / needed[0]
    aligned = int(np.flatnonzero(np.cumprod(ratio <= ALIGNED))[-1])
    updates = needed / batch
    norm = _rms(runs, PROMPTS.size)
    local = np.diff(np.log(norm)) / np.log(2)
    slope = float(np.polyfit(np.log(PROMPTS[: aligned + 1]), np.log(norm[: aligned + 1]), 1)[0])
    fixed_needed = found["fixed"][1]
    fixed_updates = fixed_needed / batch[:6]
    depart = _crossing(batch, ratio, DEPARTED)
    flatten = _crossing(batch[:-1] * np.sqrt(2), local, -0.25)
    sqrt_part = (updates[1:] / updates[:-1])[:aligned]
    fixed_part = (fixed_updates[1:] / fixed_updates[:-1])[: min(aligned, 5)]
    return [
        _row(number, "sqrt rule: range of P with r_N <= 1.15", PROMPTS[aligned] / PROMPTS[0], (16, None)),
        _row(number, "sqrt rule: r_N at 512 times the batch (falls behind)", ratio[-1], (1.3, None)),
        _row(number, "sqrt rule: slope of log norm over log P where aligned", slope, (-0.55, -0.45)),
        _row(number, "sqrt rule: local slope of the norm at the last batch (flattens)", local[-1], (-0.35, 0.0)),
        _row(number, "sqrt rule: mean share of updates at twice the batch, aligned", sqrt_part.mean(), (0.50, 0.60)),
        _row(number, "sqrt rule: largest share of updates at twice the batch, aligned", sqrt_part.max(), (0.50, 0.60)),
        _row(number, "fixed rate: least share of updates at twice the batch", fixed_part.min(), (0.65, 0.85)),
        _row(number, "fixed rate: largest share of updates at twice the batch", fixed_part.max(), (0.65, 0.85)),
        _row(number, "batch where norms are half noise", flatten),
        _row(number, "batch where curves depart (r_N = 1.10)", depart),
        _row(number, "norms' batch over curves' batch", flatten / depart, (1.0, None)),
        _row(number, "noise scale at the start", true_noise(world, np.zeros(world.dim), group_size=GROUP).noise_scale),
    ]


def _crossing(batch: ArrayLike, values: Floats, level: float) -> float:
    """Batch at which rising values first pass a level, on a straight line over log batch; NaN if they do not."""
    sizes = np.asarray(batch, dtype=np.float64)
    above = np.flatnonzero(values >= level)
    if not above.size or above[0] == 0:
        return np.nan
    i = int(above[0])
    part = (level - values[i - 1]) / (values[i] - values[i - 1])
    return float(sizes[i - 1] * (sizes[i] / sizes[i - 1]) ** part)


def pair_rows(number: int) -> list[dict[str, Any]]:
    """(P, G) at equal P G, where responses dominate and where prompts do."""
    rng = np.random.default_rng(np.random.SeedSequence(STREAM, spawn_key=(1, number)))
    seeds = rng.integers(2**31, size=2)
    many = softmax_world(
        dim=256, answers=64, correct=16, prompts=512, validation=0, start_score=0.3, seed=int(seeds[0])
    )
    rows = []
    for advantage in ("group", "leave_one_out"):
        runs = _trade(many, PAIRS, advantage)
        needed, norm = mean_responses(runs, 0.45)[0], _rms(runs, len(PAIRS))
        rows += [
            _row(
                number,
                f"responses dominate, {advantage}: N* of (64, 16) over (128, 8)",
                needed[1] / needed[0],
                (0.95, 1.05),
            ),
            _row(
                number,
                f"responses dominate, {advantage}: norm of (64, 16) over (128, 8)",
                norm[1] / norm[0],
                (0.95, 1.05),
            ),
        ]
    few = softmax_world(dim=256, answers=8, prompts=1024, validation=0, start_score=0.28, seed=int(seeds[1]))
    runs = _trade(few, TRADES, "group")
    needed = mean_responses(runs, 0.45)[0]
    said = _predicted_trade(few, TRADES)
    for (p, g), n, want in zip(TRADES[1:], needed[1:] / needed[0], said[1:], strict=True):
        row = _row(number, f"prompts dominate: N* of ({p}, {g}) over (128, 4)", n)
        rows.append(row | {"predicted": float(want), "error": float(want / n - 1)})
    error = np.abs(np.log(said[1:] * needed[0] / needed[1:])).max()
    rows.append(_row(number, "prompts dominate: largest log error of moments at the start", error, (0.0, 0.10)))
    return rows


def _trade(world: SoftmaxWorld, pairs: Sequence[tuple[int, int]], advantage: str) -> tuple[Trained, ...]:
    sizes = np.array(pairs)
    return train(
        world, Trainer(advantage=advantage), prompts=sizes[:, 0], group_size=sizes[:, 1], learning_rate=0.01, seeds=4,
        seed=1, responses_max=2e6, evaluate_every=sizes[0].prod(), target=0.45, record=True,
    )  # fmt: skip


def _predicted_trade(world: SoftmaxWorld, pairs: Sequence[tuple[int, int]]) -> Floats:
    """N* relative to the first pair from exact moments of groups at the start, N* ~ 1/A."""
    slope = []
    for p, g in pairs:
        noise = true_noise(world, np.zeros(world.dim), group_size=g)
        slope.append(float(slope_from_moments([float(p * g)], gradient=noise.gradient, variance=noise.variance)[0]))
    return slope[0] / np.array(slope)


def ppo_rows(number: int) -> list[dict[str, Any]]:
    """Norms and noise scales of actor and critic, with a value function that lags more or less."""
    rng = np.random.default_rng(np.random.SeedSequence(STREAM, spawn_key=(2, number)))
    world = softmax_world(dim=512, answers=8, prompts=1024, validation=0, seed=int(rng.integers(2**31)))
    rate = 0.002 * np.sqrt(PPO_BATCHES / PPO_BATCHES[0])
    rows = []
    for share in CRITIC_RATES:
        runs = train(
            world, Trainer(algorithm="ppo"), prompts=PPO_BATCHES, learning_rate=rate, critic_learning_rate=share * rate,
            seeds=1, seed=2, responses_max=1e6, evaluate_every=np.maximum(1024, PPO_BATCHES), target=0.45, record=True,
        )  # fmt: skip
        name = f"PPO, critic at {share:g} of the actor's rate"
        for who, prefix in (("actor", ""), ("critic", "critic_")):
            norm = _rms(runs, PPO_BATCHES.size, prefix)
            scale = combine(
                [
                    from_chunk_norms(
                        r.prompts,
                        8,
                        r.record[f"{prefix}sq_norm_chunk"],
                        r.record[f"{prefix}sq_norm_batch"],
                        level=LEVEL,
                    )
                    for r in runs
                ]
            ).noise_scale
            slope = float(np.polyfit(np.log(PPO_BATCHES), np.log(norm), 1)[0])
            rows.append(_row(number, f"{name}: slope of the {who}'s norm", slope))
            rows.append(_row(number, f"{name}: noise scale of the {who}", scale if scale > 0 else np.nan))
            predicted = 1 + scale / PPO_BATCHES if scale > 0 else np.full(PPO_BATCHES.size, np.nan)
            gap = np.log(norm / norm[0]) - 0.5 * np.log(predicted / predicted[0])
            limits = (0.0, 0.15) if who == "actor" or share < 1 else None
            rows.append(
                _row(
                    number,
                    f"{name}: {who}'s norms against its noise scale, largest log error",
                    np.abs(gap).max(),
                    limits,
                )
            )
    return rows
