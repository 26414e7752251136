"""Training times: a slow twin, FLOPs by hand, properties, dimensions, refusals, and the validation's splits."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import naive_training
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.cli import main as cli
from batchsim.errors import InputError
from batchsim.specs.architecture import Architecture, Attention, Matrix
from batchsim.specs.counts import total_parameters, weight_bytes
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.system.fit_training import NAMES, UpdatePredictor, fit_all, fit_constants, main, write_training
from batchsim.system.training import (
    Trainer,
    forward_seconds,
    make_trainer,
    mean_attended,
    micro_batches,
    pass_units,
    sync_seconds,
    train_time,
    train_time_law,
    train_time_of,
    training_efficiency,
    training_error,
    training_flops,
    training_memory,
    update_seconds,
    update_time,
)
from batchsim.system.training.efficiency import START, generation, shipped
from batchsim.system.training.update import UPDATE_PARTS
from batchsim.system.training_rows import (
    SAMPLE_STEP,
    TrainingRow,
    measured_rows,
    read_training,
    read_training_sample,
    row_trainer,
    start_trainer,
    write_training_sample,
)
from batchsim.validate.training import CHOSEN, MODEL, ROW, ideal_seconds, score, validate_training
from batchsim.variables import VARIABLES

matplotlib.use("Agg")


def trainer(model: str = "Qwen3-4B", gpu: str = "H100", **how: Any) -> Trainer:
    how = {"gpus": 8} | how
    if "micro_batch_sequences" not in how:
        how = {"micro_batch_tokens": 16384} | how
    return make_trainer(find_model(model), find_gpu(gpu), **how)


def fits(row: TrainingRow) -> bool:
    try:
        return start_trainer(row).gpus > 0
    except InputError as error:
        return "GB more than" not in str(error)


def small(window: int | None = None) -> Architecture:
    """Two layers, one of them with a window."""
    kinds = [Attention(name="full", count=1, heads=4, kv_heads=2, cache_elements=64, context_flops=256.0)]
    kinds.append(replace(kinds[0], name="sliding", window=window))
    return Architecture(
        name="small",
        family="test",
        precision="bf16",
        layers=2,
        hidden=64,
        vocab=500,
        context_max=4096,
        matrices=(
            Matrix(name="qkv", count=2, inputs=64, outputs=128),
            Matrix(name="down", count=2, inputs=256, outputs=64, sharding="row"),
            Matrix(name="head", count=1, inputs=64, outputs=500, reading="sequence"),
            Matrix(name="embedding", count=1, inputs=500, outputs=64, reading="lookup"),
        ),
        attention=tuple(kinds),
        vectors=320,
    )


@pytest.fixture(scope="module")
def rows(shared: Path) -> list[TrainingRow]:
    return measured_rows(read_training(shared))


@pytest.fixture(scope="module")
def validated(shared: Path) -> dict[str, Any]:
    return validate_training(shared)


class TestFlops:
    def test_llama_8b_by_hand(self) -> None:
        """6 P + 3 sum c a of Llama-3.1-8B at 4096 tokens: 32 layers of 4096 x 6144, 4096 x 4096, 3 x 4096 x 14336."""
        layer = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
        read = 32 * layer + 4096 * 128256
        attention = 3 * 32 * 4 * 4096 * 4096 / 2
        found = float(training_flops(find_model("Llama-3.1-8B"), length=4096))
        assert found == pytest.approx(6 * read + attention, rel=1e-12)
        # Within 5 % of 6 N with all of the 8.03e9 parameters, as the rule of thumb has it.
        assert found == pytest.approx(6 * 8.03e9, rel=0.05)

    def test_recomputation_is_four_thirds(self) -> None:
        a = find_model("Qwen3-30B-A3B")
        once = training_flops(a, length=8192, loss="value")
        again = training_flops(a, length=8192, recompute="full", loss="value")
        assert again / once == pytest.approx(4 / 3, rel=1e-12)

    def test_units(self) -> None:
        assert pass_units(forward_only=True).product == 1
        assert pass_units(recompute="none").product == 3
        assert pass_units(recompute="none", lora=True).product == 2
        selective = pass_units(recompute="selective")
        assert (selective.product, selective.attention) == (3, 4)
        assert pass_units(loss="value").head == 0
        with pytest.raises(InputError, match="unknown recomputation 'fully'"):
            pass_units(recompute="fully")

    def test_a_frozen_model_has_two_thirds(self) -> None:
        a = find_model("Qwen3-4B")
        attention = 3 * sum(x.count * x.context_flops for x in a.attention) * 512
        full = float(training_flops(a, length=1024)) - attention
        frozen = float(training_flops(a, length=1024, lora_rank=1)) - attention
        assert frozen / full == pytest.approx(2 / 3, rel=0.01)

    def test_lengths_of_unequal_sequences(self) -> None:
        """sum s^2/(2 sum s) over two sequences is the mean's with their coefficient of variation."""
        s = np.array([1000.0, 3000.0])
        cv = s.std() / s.mean()
        assert mean_attended(s.mean(), cv=cv) == pytest.approx(np.sum(s**2) / (2 * np.sum(s)))

    @given(st.integers(1, 300), st.integers(1, 300))
    def test_windows_token_by_token(self, length: int, window: int) -> None:
        found = float(mean_attended(length, window=window)) * length
        assert found == pytest.approx(naive_training.attended(length, window) / 2, rel=1e-12)
        assert found <= float(mean_attended(length)) * length + 1e-9

    @pytest.mark.parametrize("length", [0.0, -1.0, np.nan, np.inf, 1e9])
    def test_bad_lengths(self, length: float) -> None:
        with pytest.raises(InputError, match="outside"):
            training_flops(small(), length=length)


class TestTwin:
    @pytest.mark.parametrize(
        "how",
        [
            {},
            {"recompute": "none"},
            {"recompute": "selective", "loss": "plain"},
            {"lora_rank": 16, "offload": True},
            {"pipeline_parallel": 2, "gpus": 4},
            {"gpus": 4, "micro_batch_sequences": 3},
        ],
    )
    @pytest.mark.parametrize("model", ["small", "Qwen3-30B-A3B"])
    def test_against_loops(self, model: str, how: dict[str, Any]) -> None:
        a = small(window=37) if model == "small" else find_model(model)
        how = {"gpus": 8, "micro_batch_sequences": 2, "grouped_experts": False} | how
        gpu = replace(find_gpu("H200"), memory=None, driver_memory=None)
        t = make_trainer(a, gpu, **how)
        found = float(update_seconds(t, responses=5 * t.data_parallel, length=96))
        assert found == pytest.approx(naive_training.update(t, [96] * (5 * t.data_parallel)), rel=1e-9)


class TestProperties:
    @settings(max_examples=40)
    @given(
        st.floats(1e3, 60e3),
        st.floats(1.01, 4.0),
        st.sampled_from(["none", "selective", "full"]),
        st.booleans(),
    )
    def test_time_rises_with_tokens_and_length(self, length: float, more: float, recompute: str, lora: bool) -> None:
        t = trainer(
            "Qwen3-1.7B", gpu="B200", micro_batch_sequences=1, recompute=recompute, lora_rank=8 if lora else None
        )
        one = update_seconds(t, responses=64, length=[length, more * length])
        assert one[1] > more * one[0] - float(t.efficiency.update_time + t.efficiency.rl_time) * more - 1e-9
        assert one[1] > one[0]
        assert update_seconds(t, responses=128, length=length) > one[0]
        assert np.all(forward_seconds(t, responses=64, length=[length, more * length]) <= one)

    @given(st.sampled_from([8, 16, 64, 256]), st.sampled_from(["Qwen3-4B", "Qwen3-30B-A3B"]))
    def test_never_below_the_peak(self, batch: int, model: str) -> None:
        t = trainer(model, gpus=8, lora_rank=16)
        ideal = training_flops(t.architecture, length=8192, recompute="full", lora_rank=16, loss="rl") * batch * 8192
        assert update_seconds(t, responses=batch, length=8192) > ideal / (8 * 989.5e12)

    def test_forward_is_at_most_the_update(self) -> None:
        for loss in ("rl", "plain", "value"):
            t = trainer(loss=loss, gpus=8, gpu="B200")
            assert forward_seconds(t, responses=64, length=4096) < update_seconds(t, responses=64, length=4096)

    @given(st.sampled_from([1, 2, 4, 8]), st.integers(8, 200))
    def test_more_gpus_are_not_slower_up_to_rounding(self, gpus: int, responses: int) -> None:
        few = trainer("Qwen3-0.6B", gpus=gpus, micro_batch_sequences=1)
        many = few.with_gpus(8)
        one = float(update_seconds(few, responses=gpus, length=4096)) - few.efficiency.update_time
        slow = float(update_seconds(few, responses=responses, length=4096))
        assert float(update_seconds(many, responses=responses, length=4096)) <= slow + one

    @given(st.integers(1, 1000))
    def test_whole_micro_batches(self, responses: int) -> None:
        t = trainer(gpus=1, micro_batch_tokens=8192, packing=0.9, model="Qwen3-0.6B")
        number, tokens = micro_batches(t, responses, length=1000.0)
        assert number == np.ceil(responses * 1000 / (0.9 * 8192) - 1e-9)
        assert tokens == 8192
        short = replace(t, padded=False)
        number, tokens = micro_batches(short, responses, length=1000.0)
        assert number * tokens == pytest.approx(responses * 1000 / 0.9)

    def test_bubbles(self) -> None:
        """A pipeline's bubble is (pp - 1)/m of its work, and grows with its stages."""
        shares = []
        for pp in (1, 2, 4):
            t = trainer(
                "Llama-3.1-8B", pipeline_parallel=pp, sharding="optimizer", micro_batch_tokens=4096, weight_bytes=2.0
            )
            ds = update_time(t, train_batch=[64 * 8 / pp], length=4096.0)
            work = sum(float(ds[name][0]) for name in UPDATE_PARTS[:6])
            assert float(ds["bubble_time"][0]) == pytest.approx((pp - 1) / 64 * work)
            shares.append(float(ds["bubble_time"][0]) / work)
        assert shares == sorted(shares)

    def test_adapters_save_flops_but_not_always_time(self) -> None:
        """In the measured rows adapters took longer than full updates of dense models; the fit says why."""
        a = find_model("Qwen3-4B")
        assert training_flops(a, length=16384, lora_rank=16) < training_flops(a, length=16384)
        full, thin = trainer(), trainer(lora_rank=16)
        assert update_seconds(thin, responses=16, length=16384) > update_seconds(full, responses=16, length=16384)
        still = [replace(t, efficiency=replace(t.efficiency, adapter_passes=0.0)) for t in (full, thin)]
        quick = [float(update_seconds(t, responses=16, length=16384)) for t in still]
        assert quick[1] < quick[0]

    def test_dimensions(self) -> None:
        """Twice every rate and half of every time is half the update."""
        t = trainer("Qwen3-30B-A3B", pipeline_parallel=2, gpus=8, grouped_experts=False, gpu="B200", offload=True)
        names = ("peak_flops", "memory_bandwidth", "link_bandwidth", "host_bandwidth")
        gpu = replace(t.gpu, **{n: 2 * getattr(t.gpu, n) for n in names})
        e = t.efficiency
        halved = replace(e, **{n: getattr(e, n) / 2 for n in ("layer_time", "expert_time", "update_time", "rl_time")})
        twice = replace(t, gpu=gpu, efficiency=halved)
        for batch in (8, 100):
            one = update_seconds(t, responses=batch, length=9000)
            assert update_seconds(twice, responses=batch, length=9000) == pytest.approx(one / 2, rel=1e-12)
        assert sync_seconds(2e9, gpu, tensors=1) < sync_seconds(2e9, t.gpu, tensors=1)

    def test_exchanges_cost(self) -> None:
        whole = trainer("Llama-3.1-8B", gpus=8)
        split = trainer("Llama-3.1-8B", gpus=8, tensor_parallel=8)
        a = update_time(whole, train_batch=[64], length=4096.0)
        b = update_time(split, train_batch=[64], length=4096.0)
        assert float(a["exchange_time"][0]) == 0
        assert float(b["exchange_time"][0]) > 0
        spread = trainer("Qwen3-30B-A3B", gpus=8, expert_parallel=8)
        assert float(update_time(spread, train_batch=[64], length=4096.0)["exchange_time"][0]) > 0
        assert sum(training_memory(spread).values()) < sum(training_memory(trainer("Qwen3-30B-A3B")).values())

    def test_sharding_none_reduces_gradients_once(self) -> None:
        t = trainer("Qwen3-0.6B", gpus=8, sharding="none")
        reduced = float(update_time(t, train_batch=[64], length=4096.0)["gradient_time"][0])
        size = 4 * total_parameters(t.architecture)
        assert reduced == pytest.approx(2 * 7 / 8 * size / (0.5 * 450e9))


class TestStages:
    def test_a_rollout_step_is_the_sum_of_its_stages(self) -> None:
        t = trainer("Qwen3-4B", micro_batch_sequences=2)
        critic = trainer("Qwen3-0.6B", micro_batch_sequences=2, loss="value")
        ds = train_time(
            t,
            rollout_batch=[128, 256],
            length=3000.0,
            updates_per_rollout=4,
            epochs=2,
            reference=True,
            critic=critic,
            sync_time=1.5,
        )
        one = update_seconds(t, responses=np.array([64.0, 128.0]), length=3000.0)
        forward = forward_seconds(t, responses=np.array([128.0, 256.0]), length=3000.0)
        values = forward_seconds(critic, responses=np.array([128.0, 256.0]), length=3000.0)
        value_update = update_seconds(critic, responses=np.array([64.0, 128.0]), length=3000.0)
        np.testing.assert_allclose(ds["policy_update_time"], 4 * one)
        np.testing.assert_allclose(ds["critic_update_time"], 4 * value_update)
        np.testing.assert_allclose(ds["reference_logprob_time"], forward)
        np.testing.assert_allclose(ds["train_time"], 4 * (one + value_update) + 2 * forward + values + 1.5)

    @given(st.integers(1, 4), st.booleans(), st.sampled_from([1, 2]), st.booleans())
    def test_the_law_is_the_mean_of_steps(self, updates: int, reference: bool, pp: int, ppo: bool) -> None:
        t = trainer("Qwen3-1.7B", gpus=8, micro_batch_tokens=20_000, pipeline_parallel=pp)
        critic = replace(t, loss="value") if ppo else None
        how: dict[str, Any] = {
            "length": 3000.0,
            "updates_per_rollout": updates,
            "reference": reference,
            "critic": critic,
        }
        intercept, slope = train_time_law(t, **how)
        batches = np.arange(800.0, 4000.0, 7.0)
        exact = train_time(t, rollout_batch=batches, **how)["train_time"].values
        law = intercept + slope * batches
        assert intercept > 0
        assert np.mean(law) == pytest.approx(np.mean(exact), rel=0.02)
        assert np.max(np.abs(law - exact)) < 3 * updates * (intercept + 1)

    def test_without_rounding_the_law_is_exact(self) -> None:
        t = trainer("Qwen3-1.7B", gpus=8, micro_batch_sequences=1, padded=False)
        intercept, slope = train_time_law(t, length=2048.0)
        batches = np.array([8.0, 64.0, 800.0])
        exact = train_time(t, rollout_batch=batches, length=2048.0)["train_time"].values
        np.testing.assert_allclose(intercept + slope * batches, exact, rtol=1e-12)

    def test_as_a_function_of_gpus(self) -> None:
        t = trainer("Qwen3-0.6B", gpus=1)
        seconds = train_time_of(t, length=2000.0, critic=replace(t, loss="value"), reference=True)
        r = np.array([512.0])
        assert seconds(r, 8) < seconds(r, 4) < seconds(r, 1)

    def test_attrs(self) -> None:
        t = trainer()
        for ds in (
            update_time(t, train_batch=[16, 64], length=8000.0),
            train_time(t, rollout_batch=[64], length=8000.0),
        ):
            for name in ds.variables:
                assert ds[name].attrs["units"] == VARIABLES[str(name)].unit
                assert ds[name].attrs["long_name"]
        ds = update_time(t, train_batch=[16, 64], length=8000.0)
        np.testing.assert_allclose(ds["update_time"], sum(ds[name] for name in UPDATE_PARTS))
        assert np.all((ds["mfu"] > 0.05) & (ds["mfu"] < 0.6))
        assert np.all((ds["padding_share"] >= 0) & (ds["padding_share"] < 1))
        assert "measured on hopper" in ds.attrs["efficiency"]

    @pytest.mark.parametrize(("how", "said"), [({"updates_per_rollout": 0}, "below 1"), ({"epochs": 0}, "below 1")])
    def test_bad_recipes(self, how: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            train_time(trainer(), rollout_batch=[64], length=1000.0, **how)
        with pytest.raises(InputError, match="a critic has the loss 'value', not 'rl'"):
            train_time(trainer(), rollout_batch=[64], length=1000.0, critic=trainer())


class TestRefusals:
    @pytest.mark.parametrize(
        ("how", "said"),
        [
            ({"gpus": 12, "tensor_parallel": 8}, r"8 x 1 x 1 .* does not divide 12 GPUs; use 8 GPUs"),
            ({"gpus": 0}, "gpus 0 is not a whole number"),
            ({"gpus": -8}, "gpus -8 is not a whole number"),
            ({"gpus": 2.5}, "gpus 2.5 is not a whole number"),
            ({"tensor_parallel": 16, "gpus": 16, "network_bandwidth": 5e10}, "exceeds the 8 GPUs of a node; use 8"),
            ({"gpus": 16}, "16 GPUs exceed a node of 8; give network_bandwidth"),
            ({"tensor_parallel": 3, "gpus": 3}, "tensor_parallel 3 does not divide the 32 heads"),
            ({"pipeline_parallel": 64, "gpus": 64, "network_bandwidth": 5e10}, "64 exceeds the 36 layers"),
            ({"expert_parallel": 8}, "expert_parallel 8 does not divide the 0 experts"),
            ({"sharding": "fully"}, "unknown sharding 'fully'; did you mean 'full'"),
            ({"loss": "ppo"}, "unknown loss 'ppo'"),
            ({"precision": "fp8", "gpu": "A100"}, "has no fp8_flops"),
            ({"packing": 0.0}, r"packing 0 is outside \(0, 1\]"),
            ({"packing": np.nan}, "packing nan is outside"),
            ({"optimizer_bytes": -1.0}, "optimizer_bytes -1 is outside"),
            ({"micro_batch_tokens": 100, "micro_batch_sequences": 2}, "exactly one of micro_batch_tokens"),
            ({"lora_rank": 0}, "lora_rank 0 is not"),
            ({"lora_rang": 16}, "no setting 'lora_rang' of a trainer; did you mean 'lora_rank'"),
        ],
    )
    def test_trainers(self, how: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            trainer(**how)

    def test_a_model_that_does_not_fit(self) -> None:
        with pytest.raises(
            InputError, match=r"needs 1[0-9]{2}\.\d GB on each of 1 GPUs .*GB more than the .*use 2 GPUs"
        ):
            trainer("Llama-3.1-8B", gpus=1)
        with pytest.raises(InputError, match="train adapters of rank 16"):
            trainer("Llama-3.1-8B", gpus=1)
        with pytest.raises(InputError, match="use sharding = 'full'"):
            trainer("Llama-3.1-8B", gpus=8, sharding="none")
        assert trainer("Llama-3.1-8B", gpus=1, lora_rank=16, micro_batch_tokens=4096).gpus == 1

    def test_batches(self) -> None:
        t = trainer(micro_batch_sequences=4)
        with pytest.raises(
            InputError, match=r"micro-batch of 4 sequences exceeds the 2 .*lower micro_batch_sequences to 2"
        ):
            update_seconds(t, responses=16, length=1000)
        with pytest.raises(InputError, match=r"4 responses leave some of 8 data-parallel ranks without one"):
            update_seconds(t, responses=4, length=1000)
        with pytest.raises(InputError, match="20000 tokens does not fit into a micro-batch of 16384"):
            update_seconds(trainer(), responses=64, length=20_000)
        for bad in (-1.0, np.nan, np.inf):
            with pytest.raises(InputError, match="responses"):
                update_seconds(t, responses=bad, length=1000)
            with pytest.raises(InputError, match="length"):
                update_seconds(t, responses=64, length=bad)
            with pytest.raises(InputError, match="length_cv"):
                update_seconds(t, responses=64, length=100, length_cv=bad)

    def test_gpus_that_say_too_little(self) -> None:
        bare = replace(find_gpu("H100"), host_bandwidth=None)
        with pytest.raises(InputError, match="offloading needs host_bandwidth"):
            make_trainer(small(), bare, gpus=1, micro_batch_tokens=64, offload=True)
        with pytest.raises(InputError, match="has no memory_bandwidth"):
            make_trainer(small(), replace(bare, memory_bandwidth=None), gpus=1, micro_batch_tokens=64)
        unknown = replace(bare, memory=None, driver_memory=None)
        assert make_trainer(small(), unknown, gpus=1, micro_batch_tokens=64).gpus == 1


class TestEfficiency:
    def test_generations(self) -> None:
        names = ("A100", "RTX A6000", "H20", "NVIDIA H100 80GB HBM3", "GB200", "L40S", "MI300X")
        found = [generation(find_gpu(name)) for name in names]
        assert found == ["ampere", "ampere", "hopper", "hopper", "blackwell", "", ""]

    def test_what_was_not_measured_is_generic(self) -> None:
        generic = training_efficiency(find_gpu("MI300X"))
        assert generic.source == "products generic, attention generic"
        shares = [v for k, v in shipped()["constants"].items() if k.startswith("product_share")]
        assert generic.product_share == pytest.approx(np.exp(np.mean(np.log(shares))))
        assert training_efficiency(find_gpu("H100")).source.endswith("flash_attention_3 measured on hopper")
        assert training_efficiency(find_gpu("H100"), attention="sdpa").source.endswith("attention generic")

    def test_shares_are_at_most_one(self) -> None:
        for table in (shipped()["constants"], *shipped()["without"].values()):
            assert all(0 < table[name] <= 1 for name in NAMES if "share" in name)

    def test_fits_without_models(self, rows: list[TrainingRow]) -> None:
        model = "Qwen/Qwen3-0.6B"
        assert training_efficiency(find_gpu("H100"), without=model).rows == sum(r.model != model for r in rows)
        with pytest.raises(InputError, match="no fit of training leaves out the model 'GPT'"):
            training_efficiency(find_gpu("H100"), without="GPT")
        low, high = training_error()
        assert 0.5 < low < 1 < high < 2


class TestSync:
    def test_bytes_over_links(self) -> None:
        """16.06 GB of Llama-3.1-8B over half of NVLink's 450 GB/s."""
        size = weight_bytes(find_model("Llama-3.1-8B"))
        h100 = find_gpu("H100")
        assert sync_seconds(size, h100, tensors=1) == pytest.approx(16.06e9 / 225e9, rel=0.01)
        across = sync_seconds(size, h100, route="network", network_bandwidth=50e9, tensors=1)
        assert across == pytest.approx(16.06e9 / 25e9, rel=0.01)
        eight = sync_seconds(size, h100, route="network", network_bandwidth=50e9, senders=8, tensors=1)
        assert eight == pytest.approx(across / 8, rel=0.01)
        assert sync_seconds(size, h100, route="host", tensors=1) == pytest.approx(2 * 16.06e9 / (0.8 * 64e9), rel=0.01)
        assert sync_seconds(size, h100, route="file", tensors=1) == pytest.approx(2 * 16.06e9 / 1.6e9, rel=0.01)
        assert sync_seconds(size, h100, route="colocated", tensor_parallel=4) < sync_seconds(
            size, h100, route="colocated"
        )

    @pytest.mark.parametrize(
        ("how", "said"),
        [
            ({"route": "pigeon"}, "unknown route 'pigeon'"),
            ({"route": "network"}, "this route needs network_bandwidth; give network_bandwidth in B/s"),
            ({"route": "file", "file_bandwidth": -1.0}, "file_bandwidth, not -1"),
            ({"tensor_parallel": 0}, "tensor_parallel 0 is below 1"),
        ],
    )
    def test_refusals(self, how: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            sync_seconds(1e9, find_gpu("H100"), **how)
        with pytest.raises(InputError, match="weight_bytes nan"):
            sync_seconds(np.nan, find_gpu("H100"))


class TestRows:
    def test_counts(self, shared: Path, rows: list[TrainingRow]) -> None:
        assert len(read_training(shared)) == 60
        assert len(rows) == 53
        with pytest.raises(InputError, match="no training table"):
            read_training(shared / "decode")

    def test_throughput_counts_the_update_for_adapters_alone(self, rows: list[TrainingRow]) -> None:
        """Tokens/s times the step time are the row's tokens, but for two kinds of rows (the module says which)."""
        odd = []
        for row in rows:
            ratio = row.throughput * row.measured / (row.responses * row.length)
            if row.lora_rank is not None and abs(ratio - 1) > 0.02:
                odd.append(row.name)
            if row.loss == "plain":
                assert ratio == pytest.approx(1, abs=0.06)
        # Two rows of RTX A6000 contradict their own clock.
        assert len(odd) == 2
        assert all("RTX-A6000, 16384 tokens" in name for name in odd)

    def test_what_is_missing_was_written(self, rows: list[TrainingRow]) -> None:
        rates = []
        for row in rows:
            seconds = row.written_seconds
            if seconds is not None and seconds > 0.3 and "A6000" not in row.gpu:
                rates.append(row.written_bytes / seconds)
        assert len(rates) == 11
        assert min(rates) > 1.3e9
        assert max(rates) < 1.8e9

    def test_memory_knows_which_runs_failed_for_it(self, shared: Path) -> None:
        """Logits of 65,536 tokens on one H100, and 235B at 65,536; what failed elsewhere failed for its attention."""
        refused = []
        for row in read_training(shared):
            if row.measured:
                start_trainer(row)
            elif not fits(row):
                refused.append(row.model)
        assert refused == ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-235B-A22B-Instruct-2507"]

    def test_the_sample(self, rows: list[TrainingRow], tmp_path: Path) -> None:
        sample = read_training_sample()
        assert len(sample) == len(rows[::SAMPLE_STEP]) == 14
        for own, row in zip(sample, rows[::SAMPLE_STEP], strict=True):
            assert own.name == row.name
            assert own.measured == pytest.approx(row.measured, rel=1e-5)
        write_training_sample(tmp_path / "sample.csv", rows)
        assert (tmp_path / "sample.csv").read_text().count("prime-rl @ 559b447") == 14


class TestFit:
    def test_recovers_constants_that_made_the_rows(self, rows: list[TrainingRow]) -> None:
        truth = {name: 1.3 * value if "share" not in name else 0.8 * value for name, value in START.items()}
        made = UpdatePredictor(rows)
        made.measured = made(truth)
        found, _ = fit_constants(made, prior_weight=1e-6)
        for name in NAMES:
            assert found[name] == pytest.approx(truth[name], rel=0.02), name
        with pytest.raises(InputError, match="no training row"):
            fit_constants(UpdatePredictor([]))

    def test_the_predictor_is_the_law(self, rows: list[TrainingRow]) -> None:
        constants = shipped()["constants"]
        own = [float(update_seconds(row_trainer(r), responses=r.responses, length=r.length)) for r in rows]
        np.testing.assert_allclose(UpdatePredictor(rows)(constants), own, rtol=1e-9)

    def test_shipped_constants_are_those_of_the_data(self, shared: Path, tmp_path: Path, capsys: Any) -> None:
        (tmp_path / "measured").mkdir()
        assert main(["--data", str(shared), "--output", str(tmp_path / "training.toml")]) == 0
        again = tomllib.loads((tmp_path / "training.toml").read_text())
        assert again["fit"]["rows"] == 53
        for part in ("constants", *(f"without.{m}" for m in shipped()["without"])):
            old, new = shipped(), again
            for key in part.split(".", 1):
                old, new = old[key], new[key]
            for name in NAMES:
                # A flat direction of the fit may stop elsewhere on another processor.
                assert new[name] == pytest.approx(old[name], rel=0.1), (part, name)
        assert "without Qwen/Qwen3-0.6B" in capsys.readouterr().out
        text = (tmp_path / "measured" / "training_sample.csv").read_text()
        assert text.count("\n") == 15

    def test_what_the_rows_do_not_identify(self) -> None:
        """Standard errors near the prior's own say so."""
        fit = shipped()
        loose = {name for name, error in fit["log_se"].items() if error > 0.75 * fit["fit"]["prior_log_se"]}
        assert loose == {"element_passes", "host_share", "layer_time", "update_time"}

    def test_without_data(self, tmp_path: Path, capsys: Any) -> None:
        assert main(["--data", str(tmp_path), "--output", str(tmp_path / "out.toml")]) == 2
        assert "no training table" in capsys.readouterr().err
        assert not (tmp_path / "out.toml").exists()

    def test_writing_is_whole(self, tmp_path: Path, rows: list[TrainingRow]) -> None:
        write_training(tmp_path / "t.toml", fit_all([r for r in rows if "4B" in r.model or "0.6B" in r.model]))
        assert [p.name for p in tmp_path.iterdir()] == ["t.toml"]


class TestSplit:
    def test_no_constant_is_fitted_on_a_row_it_is_scored_on(self, rows: list[TrainingRow]) -> None:
        for split, test in ((MODEL, [r for r in rows if r.model == "Qwen/Qwen3-0.6B"]), (ROW, rows[7:8])):
            train = [row for row in rows if row not in test]
            found = score(split, train, test)
            moved = score(split, train, [replace(row, measured=7 * row.measured) for row in test])
            for name in ("predicted", "low", "high", "peer"):
                np.testing.assert_array_equal(getattr(found, name), getattr(moved, name))
            with pytest.raises(InputError, match="both the fitted and the scored part"):
                score(split, rows, test)

    def test_the_peer_is_one_share(self, rows: list[TrainingRow]) -> None:
        found = score(ROW, rows[1:], rows[:1])
        shares = [ideal_seconds(row) / row.measured for row in rows[1:]]
        assert found.peer[0] == pytest.approx(ideal_seconds(rows[0]) / np.exp(np.mean(np.log(shares))))


class TestValidated:
    def test_targets(self, validated: dict[str, Any]) -> None:
        overall = validated["overall"]
        assert overall["counts"] == {"table": 60, "measured": 53}
        assert overall["median_ape"] <= 0.20
        assert overall["weight_chosen"]["median_ape"] <= 0.20
        assert overall["left_out_row"]["median_ape"] <= 0.12
        for part in (overall, overall["weight_chosen"], overall["left_out_row"]):
            assert part["median_ape"] < part["peer_median_ape"] / 2
            assert 0.5 < part["covered"] < 0.97

    def test_errors_are_those_of_the_rows(self, validated: dict[str, Any]) -> None:
        for split, part in ((MODEL, validated["overall"]), (ROW, validated["overall"]["left_out_row"])):
            rows = [r for r in validated["rows"] if r["claim"].startswith(f"{split}: ")]
            error = np.array([r["predicted"] / r["measured"] - 1 for r in rows])
            assert len(rows) == 53
            assert part["median_ape"] == pytest.approx(np.median(np.abs(error)), rel=1e-12)
            assert part["bias"] == pytest.approx(error.mean(), rel=1e-9)
            assert part["covered"] == pytest.approx(np.mean([r["covered"] for r in rows]))
            peer = np.array([abs(r["peer"] / r["measured"] - 1) for r in rows])
            assert part["peer_median_ape"] == pytest.approx(np.median(peer), rel=1e-12)

    def test_elsewhere(self, validated: dict[str, Any]) -> None:
        parts = {(s["engine"], s["split"], s["of"]): s for s in validated["slices"]}
        assert parts["elsewhere", "training", "all"]["median_ape"] < 0.2
        assert parts["elsewhere", "logprobs", "all"]["median_ape"] < 0.25
        # Bytes over links are not what a refit waits for.
        assert parts["elsewhere", "synchronisation", "colocated"]["bias"] < -0.9
        assert parts["prime-rl", "peak memory", "all"]["median_ape"] < 0.2
        assert any("nemo_rl_v0.6" in reason for reason in validated["skipped"])
        assert sum("the run failed" in reason for reason in validated["skipped"]) == 7

    def test_without_data_the_sample_is_scored(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("BATCHSIM_DATA", raising=False)
        result = validate_training()
        assert result["overall"]["n"] == 14
        assert result["overall"]["median_ape"] < 0.25
        assert result["overall"]["left_out_row"] is None
        assert any(ROW in reason for reason in result["skipped"])
        assert not [s for s in result["slices"] if s["split"] == CHOSEN]

    def test_command(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """Tables, JSON and plot of the rows that ship."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("BATCHSIM_DATA", raising=False)
        for options in (["--plot", "errors.png"], ["--json"]):
            with pytest.raises(SystemExit) as stop:
                cli(["validate", "training", *options])
            assert not stop.value.code
        out, brace, rest = capsys.readouterr().out.partition("{\n")
        assert "time of an update of a model whose rows no constant saw" in out
        assert "prime-rl: peak memory" in out
        assert json.loads(brace + rest)["name"] == "training"
        assert (tmp_path / "errors.png").is_file()

    def test_docs_tables_are_the_programs(self, validated: dict[str, Any]) -> None:
        folder = Path(__file__).resolve().parents[1] / "docs"
        spec = importlib.util.spec_from_file_location("training_tables", folder / "training_tables.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        page = (folder / "training.md").read_text(encoding="utf-8")
        again = module.filled(page, module.tables(validated))
        written, found = page.splitlines(), again.splitlines()
        assert len(written) == len(found) <= 120
        number = r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])"
        for old, new in zip(written, found, strict=True):
            assert re.sub(r"\d+", "0", old) == re.sub(r"\d+", "0", new)
            a, b = ([float(v) for v in re.findall(number, line)] for line in (old, new))
            # A fit may stop a little elsewhere on another processor; counts are whole and equal.
            np.testing.assert_allclose(b, a, atol=1.01 if "|" in old else 0, rtol=0)
