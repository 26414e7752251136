"""The chain from specifications alone: plan in, r_q and what binds out, no log."""

from __future__ import annotations

import csv
import importlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.calibrate.specified import (
    composed_stages,
    sequence_length,
    specified,
    stage_table,
    synchronisation,
    training_seconds,
)
from batchsim.cli import main
from batchsim.errors import InputError
from batchsim.plan import Plan, read_plan
from batchsim.predict import predict
from batchsim.specs.counts import weight_bytes
from batchsim.specs.lengths import Lengths
from batchsim.specs.models import find_model
from batchsim.system.pipeline import PROGRESS, PROGRESS_WEIGHTS, rollout_step_time
from batchsim.system.pipeline.frameworks import (
    FRAMEWORK_FACTOR,
    FRAMEWORK_FACTOR_SPREAD,
    FRAMEWORK_RATE,
    FRAMEWORK_SPREAD,
    framework_extra,
    framework_factor,
    framework_sync_seconds,
)
from batchsim.validate.collection import PAPER_RATIOS, fit_grpo, paper_stages

ROOT = Path(__file__).resolve().parents[1]
BASE = {
    "recipe": "prompts = 32\ngroup_size = 8\nlearning_rate = 1e-6\nbatches = [256, 512, 1024]",
    "learning": "noise_scale = 2000",
    "target": "responses_to_target = 100000",
    "model": 'name = "Qwen3-0.6B"',
    "gpu": 'name = "H100"\ncount = 2',
    "engine": "",
    "trainer": "",
    "lengths": "prompt_mean = 100\nresponse_mean = 400\nmax_tokens = 2048",
}


def plan(tmp_path: Path, **sections: str) -> Plan:
    text = "\n".join(f"[{name}]\n{body}" for name, body in (BASE | sections).items() if body)
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return read_plan(path)


class TestForecast:
    def test_larger_batches_gain_throughput_and_say_what_they_wait_for(self, tmp_path: Path) -> None:
        ds = predict(plan(tmp_path), draws=200)
        middle = ds["throughput_ratio"].median("draw").values
        assert np.all(np.diff(middle) > 0)
        assert middle[0] == pytest.approx(1)
        assert set(ds["binding_limit"].values) <= {"tail", "bandwidth", "overhead", "trainer", "max_num_seqs"}
        assert any("validate serving" in w for w in ds.attrs["warnings"])

    def test_its_times_are_the_stages_with_their_errors(self, tmp_path: Path) -> None:
        known = plan(tmp_path)
        assert known.recipe is not None
        system = specified(known, known.recipe)
        table = stage_table(system, batches=[256])
        trained = float(training_seconds(system)[0](np.array([256.0]), 2)[0])
        stages = float(table["gen_time"].values[0]) + trained + synchronisation(system, 2)
        ds = predict(known, draws=4000)
        step = np.median(ds["step_time"].sel(train_batch=256).values)
        # The generation's and the training's own median errors move it by a few percent.
        assert step == pytest.approx(FRAMEWORK_FACTOR * stages, rel=0.15)

    def test_what_a_framework_adds_moves_times_and_what_is_fixed_moves_ratios(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = importlib.import_module("batchsim.calibrate.specified")
        monkeypatch.setattr(module, "lognormal", lambda q, draws, rng: np.ones(draws))
        monkeypatch.setattr(module, "slope_error", lambda engine: 0.0)
        monkeypatch.setattr(module, "FRAMEWORK_SPREAD", 1.0)

        def steps(proportional: float, fixed: float) -> dict[float, tuple[float, float]]:
            parts = (np.full(300, proportional), np.full(300, fixed))
            monkeypatch.setattr(module, "framework_extra", lambda draws, rng: parts)
            ds = predict(plan(tmp_path), draws=300)
            rows = zip(
                ds["train_batch"].values.tolist(),
                np.median(ds["step_time"].values, axis=0).tolist(),
                np.median(ds["throughput_ratio"].values, axis=0).tolist(),
                strict=True,
            )
            return {batch: (seconds, ratio) for batch, seconds, ratio in rows}

        plain, tripled, fixed = steps(1.0, 0.0), steps(3.0, 0.0), steps(1.0, 2.0)
        for batch, (seconds, ratio) in plain.items():
            assert tripled[batch][0] == pytest.approx(3 * seconds, rel=1e-6)
            assert tripled[batch][1] == pytest.approx(ratio, rel=1e-6)
            if batch == 256:
                assert fixed[batch][0] == pytest.approx(3 * seconds, rel=1e-6)
            else:
                assert fixed[batch][0] < tripled[batch][0]
                assert fixed[batch][1] > ratio

    def test_what_if_compares_with_the_plan_itself(self, tmp_path: Path) -> None:
        rows = predict(plan(tmp_path), draws=50).attrs["what_if"]
        assert rows[0]["change"] == "the plan"
        assert rows[0]["throughput_ratio"] == pytest.approx(1)
        doubled = next(r for r in rows if r["change"] == "twice the GPUs")
        assert doubled["generation_gpus"] == 4
        assert 1 < doubled["throughput_ratio"] <= 2.001

    def test_a_stated_law_or_a_pilot_is_never_overruled(self, tmp_path: Path) -> None:
        ds = predict(plan(tmp_path, engine="gen_time_intercept = 30\ngen_time_slope = 0.1"), draws=50)
        assert ds.attrs["what_if"] == []
        assert not any("simulated from specifications" in w for w in ds.attrs["warnings"])

    def test_asynchronous_uses_its_split(self, tmp_path: Path) -> None:
        ds = predict(
            plan(tmp_path, gpu='name = "H100"\ncount = 4\ngeneration_count = 3', engine='mode = "async"'), draws=50
        )
        assert ds.attrs["what_if"][0]["generation_gpus"] == 3
        assert ds.attrs["what_if"][0]["training_gpus"] == 1

    @pytest.mark.parametrize(
        ("sections", "said"),
        [
            ({"model": 'name = "Qwen9-1B"'}, "Qwen9-1B"),
            ({"gpu": 'name = "H1000"\ncount = 2'}, "H1000"),
            ({"model": 'name = "Llama-3.1-70B"'}, "GB"),
            ({"engine": 'mode = "async"', "gpu": 'name = "H100"\ncount = 2\ngeneration_count = 2\n'}, ""),
            ({"trainer": "tensor_parallel = 3"}, "3"),
        ],
    )
    def test_what_cannot_run_is_refused(self, tmp_path: Path, sections: dict[str, str], said: str) -> None:
        known = plan(tmp_path, **sections)
        if not said:
            # Two GPUs that all generate: asynchronous generation takes half.
            assert predict(known, draws=20).attrs["what_if"][0]["generation_gpus"] == 1
            return
        with pytest.raises(InputError, match=said):
            predict(known, draws=20)

    def test_the_plot_of_stages(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        plan(tmp_path)
        with pytest.raises(SystemExit):
            main(["predict", str(tmp_path / "plan.toml"), "--draws", "50", "--stages", str(tmp_path / "stages.svg")])
        assert "stages.svg" in capsys.readouterr().out
        text = (tmp_path / "stages.svg").read_text(encoding="utf-8")
        assert "<svg" in text


class TestCareless:
    """Plans that are a little off, each of which once was answered wrongly or refused for nothing."""

    def test_more_gpus_than_the_smallest_batch_of_the_curve_has_responses(self, tmp_path: Path) -> None:
        many = 'name = "H100"\ncount = 64'
        ds = predict(plan(tmp_path, gpu=many), draws=50)
        assert any("below 64 responses per rollout step" in w for w in ds.attrs["warnings"])
        assert not any(
            "responses per rollout step some" in w for w in predict(plan(tmp_path), draws=50).attrs["warnings"]
        )
        known = plan(tmp_path, gpu=many)
        assert known.recipe is not None
        assert composed_stages(known, known.recipe)["rollout_batch"].values[0] == 64
        with pytest.raises(InputError, match="256 responses leave some of 512"):
            predict(plan(tmp_path, gpu='name = "H100"\ncount = 512'), draws=50)

    def test_batches_that_leave_gpus_without_a_response_are_no_candidates(self, tmp_path: Path) -> None:
        recipe = "prompts = 32\ngroup_size = 8\nlearning_rate = 1e-6\nbatches = "
        many = 'name = "H100"\ncount = 64'
        ds = predict(plan(tmp_path, gpu=many, recipe=recipe + "[8, 16, 256, 512]"), draws=50)
        assert ds["train_batch"].values.tolist() == [256, 512]
        assert any("B = 8, 16" in w for w in ds.attrs["warnings"])
        with pytest.raises(InputError, match="no candidate of 8, 16"):
            predict(plan(tmp_path, gpu=many, recipe=recipe + "[8, 16]"), draws=50)

    def test_the_best_split_of_a_split_plan_divides_all_gpus(self, tmp_path: Path) -> None:
        gpu = 'name = "H100"\ncount = 8\ngeneration_count = 2'
        rows = predict(plan(tmp_path, gpu=gpu), draws=20).attrs["what_if"]
        assert rows[0]["generation_gpus"] + rows[0]["training_gpus"] == 8
        assert rows[-1]["change"] == "asynchronous generation on the best split"
        assert rows[-1]["generation_gpus"] + rows[-1]["training_gpus"] == 8
        known = plan(tmp_path, gpu=gpu)
        assert known.recipe is not None
        assert np.all(composed_stages(known, known.recipe)["gen_idle_share"].values > 0)

    @pytest.mark.parametrize("engine", ["", "train_time_per_response = 0.05\noverhead_time = 30"])
    def test_the_plans_own_throughput_is_the_forecasts(self, tmp_path: Path, engine: str) -> None:
        ds = predict(plan(tmp_path, engine=engine), draws=4000)
        star = np.median(ds["throughput"].sel(train_batch=ds.attrs["star"]).values)
        assert ds.attrs["what_if"][0]["throughput"] == pytest.approx(star, rel=0.02)

    def test_the_critical_generation_batch_counts_what_filtering_drops(self, tmp_path: Path) -> None:
        found, kept = (
            np.median(
                predict(plan(tmp_path, engine=f"max_num_seqs = 16\nkept_share = {k}"), draws=20)["critical_gen_batch"]
            )
            for k in (1.0, 0.5)
        )
        # Generated responses: as many whatever share of them is kept.
        assert kept == pytest.approx(found, rel=0.3)

    def test_a_sequence_has_what_the_environment_appends_between_its_own_turns(self, tmp_path: Path) -> None:
        turns = BASE["lengths"] + "\nturns = 5\nenvironment_tokens = 300"
        plain, more = (sequence_length(plan(tmp_path, lengths=text), seed=0)[0] for text in (BASE["lengths"], turns))
        assert plain == pytest.approx(500, rel=0.05)
        assert more - plain == pytest.approx(4 * 300, rel=0.05)

    def test_many_turns_fit_the_default_micro_batch(self, tmp_path: Path) -> None:
        turns = BASE["lengths"] + "\nturns = 20\nenvironment_tokens = 2000\nenvironment_seconds = 1"
        assert np.all(np.isfinite(predict(plan(tmp_path, lengths=turns), draws=20)["step_time"].values))

    def test_what_is_not_used_is_said(self, tmp_path: Path) -> None:
        law = plan(tmp_path, engine="train_time_per_response = 0.05\nmax_staleness = 4", trainer="lora_rank = 8")
        assert any("[trainer] lora_rank is not used" in w for w in law.warnings())
        assert any("[engine] max_staleness needs mode 'async'" in w for w in law.warnings())
        ratio = plan(tmp_path, recipe=BASE["recipe"] + "\ngen_ratio = 2", engine='mode = "async"')
        assert any("[recipe] gen_ratio is not used" in w for w in ratio.warnings())
        assert plan(tmp_path).warnings() == []

    def test_a_gpu_of_numbers_without_memory_is_said_to_have_room(self, tmp_path: Path) -> None:
        numbers = 'count = 2\nmemory_bandwidth = "3.35 TB/s"\npeak_flops = 989e12'
        assert any("[gpu] memory" in w for w in predict(plan(tmp_path, gpu=numbers), draws=20).attrs["warnings"])
        assert not any("[gpu] memory" in w for w in predict(plan(tmp_path), draws=20).attrs["warnings"])


class TestGrowth:
    def test_no_growth_is_one_curve(self, tmp_path: Path) -> None:
        one = predict(plan(tmp_path), draws=100)
        same = predict(plan(tmp_path, lengths=BASE["lengths"] + "\nresponse_growth = 1.0"), draws=100)
        np.testing.assert_array_equal(one["step_time"].values, same["step_time"].values)

    def test_longer_responses_take_longer_and_the_mean_lies_between(self, tmp_path: Path) -> None:
        start, end = (
            np.median(
                predict(
                    plan(tmp_path, lengths=f"prompt_mean = 100\nresponse_mean = {m}\nmax_tokens = 4096"), draws=200
                )["step_time"].values,
                axis=0,
            )
            for m in (400, 1200)
        )
        grown = predict(
            plan(tmp_path, lengths="prompt_mean = 100\nresponse_mean = 400\nmax_tokens = 4096\nresponse_growth = 3"),
            draws=200,
        )
        middle = np.median(grown["step_time"].values, axis=0)
        assert np.all(start < middle)
        assert np.all(middle < end)
        assert any("3 times its start" in w for w in grown.attrs["warnings"])

    @given(
        points=st.lists(st.floats(1, 1e3), min_size=6, max_size=6),
        r=st.floats(10, 1000),
        mode=st.sampled_from(["sync", "async"]),
    )
    def test_the_mean_over_progress_is_the_sum_over_its_nodes(self, points: list[float], r: float, mode: str) -> None:
        batches = np.array([10.0, 1000.0])
        gen = np.array(points).reshape(3, 2)
        whole = rollout_step_time(r, gen_curve=(batches, gen), train_curve=(batches, gen / 2), mode=mode)
        parts = [
            float(rollout_step_time(r, gen_curve=(batches, g), train_curve=(batches, g / 2), mode=mode)) for g in gen
        ]
        assert float(whole) == pytest.approx(float(np.dot(PROGRESS_WEIGHTS, parts)))

    def test_quadrature_is_exact_for_a_power_of_progress(self) -> None:
        for power in range(6):
            found = sum(w * x**power for w, x in zip(PROGRESS_WEIGHTS, PROGRESS, strict=True))
            assert found == pytest.approx(1 / (power + 1))

    @given(growth=st.floats(0.1, 5), progress=st.floats(0, 1))
    def test_lengths_on_the_way(self, growth: float, progress: float) -> None:
        lengths = Lengths(response_mean=100, response_p90=300, max_tokens=1000, response_growth=growth)
        now = lengths.at(progress)
        assert now.response_growth == 1
        assert now.response_mean == pytest.approx(100 * (1 + (growth - 1) * progress))
        assert now.response_p90 is not None
        assert now.response_p90 <= 1000

    def test_growth_beyond_the_limit_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"from 400 to 1600, above max_tokens 1000.*2\.5"):
            Lengths(response_mean=400, max_tokens=1000, response_growth=4)


class TestFrameworks:
    def test_the_rate_of_synchronisation_is_that_of_the_published_times(self) -> None:
        path = ROOT / "batchsim" / "data" / "measured" / "weight_sync.csv"
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        sizes = [weight_bytes(find_model(r["model"].removesuffix("-Instruct"))) for r in rows]
        work = [float(r["training_gpus"]) * float(r["seconds"]) for r in rows]
        rates = np.array(sizes) / np.array(work)
        assert len(rates) == 12
        assert np.exp(np.log(rates).mean()) == pytest.approx(FRAMEWORK_RATE, rel=0.02)
        assert np.exp(np.log(rates).std(ddof=1)) == pytest.approx(FRAMEWORK_SPREAD, rel=0.02)
        assert np.all(np.abs(np.log(rates / FRAMEWORK_RATE)) < math.log(4))

    @given(size=st.floats(1, 1e13), gpus=st.integers(1, 4096))
    def test_twice_the_gpus_halve_the_synchronisation(self, size: float, gpus: int) -> None:
        one = framework_sync_seconds(size, training_gpus=gpus)
        assert framework_sync_seconds(size, training_gpus=2 * gpus) == pytest.approx(one / 2)

    def test_bad_synchronisation(self) -> None:
        with pytest.raises(InputError, match="0 GPUs"):
            framework_sync_seconds(1e9, training_gpus=0)

    def test_the_factor_is_drawn_about_its_mean(self) -> None:
        logs = np.log(framework_factor(20_000, np.random.default_rng(0)))
        assert np.exp(logs.mean()) == pytest.approx(FRAMEWORK_FACTOR, rel=0.01)
        assert np.exp(logs.std()) == pytest.approx(FRAMEWORK_FACTOR_SPREAD, rel=0.01)

    def test_its_parts_add_up_to_it(self) -> None:
        proportional, fixed = framework_extra(5000, np.random.default_rng(0))
        whole = framework_factor(5000, np.random.default_rng(0))
        np.testing.assert_allclose(proportional + fixed, whole)
        assert np.all(fixed >= 0)
        assert np.all(proportional >= np.minimum(whole, 1))


class TestProperties:
    @settings(max_examples=8, deadline=None)
    @given(count=st.integers(2, 12))
    def test_a_gpu_more_never_lowers_the_step_of_its_own_stages(self, count: int) -> None:
        # Whole micro-batches and uneven replicas may leave a further GPU idle; the draws of lengths are the same.
        base = read_plan(ROOT / "docs" / "pipeline_plan.toml")
        assert base.recipe is not None
        recipe = replace(base.recipe, prompts=32)
        few = replace(base, gpu=replace(base.gpu, count=count), model=replace(base.model, name="Qwen3-0.6B"))
        more = replace(few, gpu=replace(few.gpu, count=count + 1))
        one, two = (composed_stages(p, recipe) for p in (few, more))
        shared = np.intersect1d(one["rollout_batch"].values, two["rollout_batch"].values)
        before, after = (ds["throughput"].sel(rollout_batch=shared).values for ds in (one, two))
        assert shared.size > 5
        assert np.all(after >= before * 0.99)


def test_the_papers_curve_bends_where_it_says() -> None:
    ds = paper_stages(fit_grpo())
    ratio = dict(zip((ds["rollout_batch"].values // 8).tolist(), ds["throughput_ratio"].values.tolist(), strict=True))
    # The two gains that were fitted.
    assert ratio[256] == pytest.approx(1.31, abs=0.005)
    assert ratio[512] == pytest.approx(1.36, abs=0.005)
    # Three step throughputs that were not.
    for prompts, measured in PAPER_RATIOS.items():
        assert ratio[prompts] == pytest.approx(measured, rel=0.045)
    limits = ds["binding_limit"].values.tolist()
    assert limits[0] == "bandwidth"
    assert limits[-1] == "max_num_seqs"
    assert np.all(ds["train_time"].values < ds["gen_time"].values)


def test_where_the_plateau_and_the_ridge_lie(tmp_path: Path) -> None:
    attrs = predict(plan(tmp_path), draws=20).attrs
    assert attrs["critical_gen_limit"] in {"tail", "bandwidth", "compute", "overhead", "max_num_seqs", "KV memory"}
    assert attrs["ridge_batch"]["experts"] is None
    assert attrs["ridge_batch"]["dense"] > 50
    stated = predict(plan(tmp_path, engine="gen_time_intercept = 30\ngen_time_slope = 0.1"), draws=20).attrs
    assert stated["critical_gen_limit"] == "KV memory"
    assert stated["ridge_batch"] is None
