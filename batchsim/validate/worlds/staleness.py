r"""What stale responses and reuse cost in worlds, beside the only published rows.

An optimizer batch of fixed size, trained on (a) M mini-batches per rollout step, so that the last is M - 1 updates
behind the policy that sampled it, (b) responses that all are `lag` versions old, with and without the importance
ratio, clipped as PPO does (.2). N* relative to fresh responses depends on how far the policy moves in that many
updates, so it is shown at several rates, each named by the updates that a fresh run needs.

The published rows are GRPO on OLMo2-1B, an optimizer batch of 2,048 responses, 1, 2, 4, 32 updates per rollout batch,
PPO clip .2: updates to a score of .55, .60, .65, read off figures to 25 rollout steps.

References
----------
.. [1] RachitBansal/verl @ a42b8d75, experiments/critical_batch_size (Apache-2.0): the published rows.
.. [2] Schulman et al. 2017, arXiv:1707.06347, eq. 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from batchsim.learning.worlds import Trainer, mean_responses, softmax_world, train

STREAM = 20261204
WORLDS = 3
LAGS = (0, 1, 3, 31)
RATES = (0.003, 0.01, 0.03, 0.1)
PROMPTS, GROUP = 32, 8
CLIP = 0.2
START, GAIN = 0.28, 0.25
SEEDS = 3
OLMO2 = {
    0.55: {1: 250 / 200, 3: 300 / 200, 31: 1600 / 200},
    0.60: {1: 650 / 625, 3: 900 / 625, 31: 3200 / 625},
    0.65: {1: 1850 / 975, 3: 1800 / 975},
}
"""Score -> lag of the last mini-batch -> updates relative to one update per rollout batch [1]_."""


def validate_staleness(*, worlds: int = WORLDS, progress: Callable[[int, int], object] | None = None) -> dict[str, Any]:
    """N* over lag relative to fresh responses, in worlds and as published.

    Parameters
    ----------
    worlds : int
    progress : callable or None

    Returns
    -------
    dict
        Plain values: name, overall (range over worlds and rates per lag, and as published), slices (way and rate),
        rows, skipped.
    """
    ways = ("mini-batches", "lag", "lag, ratio left out")
    ratios: dict[tuple[str, float], list[Any]] = {}
    fresh: dict[float, list[float]] = {}
    for number in range(worlds):
        rng = np.random.default_rng(np.random.SeedSequence(STREAM, spawn_key=(number,)))
        world = softmax_world(
            dim=512, prompts=1024, validation=0, answers=8, label_noise=0.2, start_score=START,
            seed=int(rng.integers(2**31)),
        )  # fmt: skip
        for i, rate in enumerate(RATES):
            common: dict[str, Any] = {
                "learning_rate": rate,
                "group_size": GROUP,
                "seeds": SEEDS,
                "seed": 1,
                "responses_max": 4e6,
                "evaluate_every": PROMPTS * GROUP,
                "target": START + GAIN,
            }
            reused = []
            for lag in LAGS:
                trainer = Trainer(updates_per_rollout=lag + 1, clip=CLIP)
                reused.append(
                    mean_responses(train(world, trainer, prompts=PROMPTS * (lag + 1), **common), START + GAIN)[0][0]
                )
            found = {"mini-batches": np.array(reused)}
            for way, trainer in (
                ("lag", Trainer(clip=CLIP)),
                ("lag, ratio left out", Trainer(importance=False)),
            ):
                runs = train(world, trainer, prompts=PROMPTS, staleness=np.array(LAGS), **common)
                found[way] = mean_responses(runs, START + GAIN)[0]
            fresh.setdefault(rate, []).append(float(found["lag"][0] / (PROMPTS * GROUP)))
            for way in ways:
                ratios.setdefault((way, rate), []).append(found[way] / found[way][0])
            if progress is not None:
                progress(number * len(RATES) + i + 1, worlds * len(RATES))
    rows: list[dict[str, Any]] = []
    slices: list[dict[str, Any]] = []
    for way in ways:
        for rate in RATES:
            mean = np.exp(np.mean(np.log(ratios[way, rate]), axis=0))
            updates = float(np.mean(fresh[rate]))
            slices.append(
                {"slice": f"{way}, rate {rate:g}", "way": way, "learning_rate": rate, "fresh_updates": updates}
                | {"ratio": [float(v) if np.isfinite(v) else None for v in mean]}
            )
            for lag, value in zip(LAGS[1:], mean[1:], strict=True):
                published = [target[lag] for target in OLMO2.values() if lag in target]
                measured = float(value) if np.isfinite(value) else None
                rows.append(
                    {
                        "claim": f"{way}: N* at lag {lag} over fresh, {updates:.0f} updates when fresh",
                        "predicted": measured,
                        "interval": None,
                        "measured": None,
                        "error": None,
                        "covered": None if measured is None else bool(min(published) <= measured <= max(published)),
                        "peer": None,
                        "published": [min(published), max(published)],
                    }
                )
    overall = {
        str(lag): {
            "worlds": _span([r["predicted"] for r in rows if f"at lag {lag} " in r["claim"]]),
            "published": _span([target[lag] for target in OLMO2.values() if lag in target]),
        }
        for lag in LAGS[1:]
    }
    return {"name": "staleness", "overall": {"lags": list(LAGS[1:]), "by_lag": overall, "worlds": worlds},
            "slices": slices, "rows": rows, "skipped": []}  # fmt: skip


def _span(values: list[float | None]) -> list[float | None]:
    known = [v for v in values if v is not None]
    return [min(known), max(known) if len(known) == len(values) else None] if known else [None, None]
