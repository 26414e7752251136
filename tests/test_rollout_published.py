"""Figures that others published or that docs/rollout.md prints, against the simulator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from batchsim.system.decode_law import DecodeLaw
from batchsim.system.rollout import rollout
from batchsim.validate import collection

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "rollout.md").read_text(encoding="utf-8")

# Llama-2-7B in fp16 on an A100 of 80 GB.
WEIGHTS, CACHE_TOKEN, BANDWIDTH, PEAK, PARAMETERS, LAYERS = 13.48e9, 2 * 32 * 4096 * 2, 2.039e12, 312e12, 6.74e9, 32
ROOM = 0.9 * 80e9 - WEIGHTS
TRAFFIC_ALONE = {"weights": 1.0, "cache": 1.0, "layer": 0.0, "sequence": 0.0, "prefill": 0.5}
MEASURED = {"weights": 0.70, "cache": 0.77, "layer": 49e-6, "sequence": 14e-6, "prefill": 0.6}


def seven_b(found: dict[str, float], prompt: int, *, limited: bool) -> xr.Dataset:
    n = np.arange(129)
    step = WEIGHTS / (BANDWIDTH * found["weights"]) + LAYERS * found["layer"] + found["sequence"] * n
    law = DecodeLaw(
        step_time=np.where(n > 0, step, 0.0),
        context_time=CACHE_TOKEN / (BANDWIDTH * found["cache"]),
        prefill_time=2 * PARAMETERS / (PEAK * found["prefill"]),
    )
    return rollout(
        law=law,
        prompt_tokens=prompt,
        response_tokens=np.full(1024, 2048),
        max_num_seqs=128,
        kv_blocks=int(ROOM // (16 * CACHE_TOKEN)) if limited else None,
    )


@pytest.mark.parametrize(("name", "found"), [("traffic alone", TRAFFIC_ALONE), ("measured shares", MEASURED)])
@pytest.mark.parametrize("prompt", [128, 256, 512])
def test_the_page_prints_what_two_simulators_disagree_on(name: str, found: dict[str, float], prompt: int) -> None:
    roomy, tight = seven_b(found, prompt, limited=False), seven_b(found, prompt, limited=True)
    lost = float(tight["recomputed_tokens"]) / (1024 * 2048)
    line = (
        f"| {name} | {prompt} | {float(roomy['gen_time']):,.0f} s | {float(tight['gen_time']):,.0f} s | "
        f"{int(tight['preemptions_total']):,} | {lost:.2f} |"
    )
    assert line in PAGE


def test_waves_by_hand() -> None:
    """Without a memory limit: eight waves, each a prefill and an arithmetic series."""
    ds = seven_b(TRAFFIC_ALONE, 256, limited=False)
    step = WEIGHTS / BANDWIDTH
    tokens = 128 * sum(256 + j for j in range(1, 2048))
    decode = 2047 * step + tokens * CACHE_TOKEN / BANDWIDTH
    prefill = 4 * step + 128 * 256 * 2 * PARAMETERS / (PEAK * 0.5)
    # Prefills of 32 prompts at a time overlap with the first decodes, which a hand count does not see.
    assert float(ds["gen_time"]) == pytest.approx(8 * (decode + prefill), rel=0.01)


class TestCollection:
    """The paper's collection gains; two numbers fit two parameters, so that only reaching them is a result."""

    def test_grpo(self) -> None:
        fit = collection.fit_grpo()
        np.testing.assert_allclose(fit.gains, collection.GRPO_GAINS, rtol=2e-3)
        assert fit.concurrency is not None
        assert f"h = {fit.half_batch:,.0f}, C = {fit.concurrency:,.0f}" in PAGE

    def test_without_a_cap_four_times_the_prompts_gain_more(self) -> None:
        def gains(half: float) -> Any:
            return collection.collection_gains((128, 256, 512), group_size=8, half_batch=half)

        halves = np.geomspace(300, 3000, 12)
        found = np.array([gains(h)[1:] for h in halves])
        at = float(np.interp(1.31, found[:, 0], found[:, 1]))
        assert at == pytest.approx(1.55, abs=0.03)
        assert f"{at:.2f}" in PAGE

    def test_ppo(self) -> None:
        fit = collection.fit_ppo()
        assert fit.gains[1] == pytest.approx(4 * 39 / 68, rel=5e-3)
        assert f"h = {fit.half_batch:,.0f}" in PAGE
        assert math.isclose(collection.PPO_GAINS[1], 2.29, abs_tol=0.01)
