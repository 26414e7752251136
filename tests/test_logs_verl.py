"""verl's logs: streaming, the file logger, configuration files, and that no value is lost."""

from __future__ import annotations

import builtins
import gzip
import json
import os
import re
import threading
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.logs import read_logs, source, verl
from batchsim.logs.source import Source
from batchsim.logs.verl import lines
from batchsim.variables import VARIABLES

GIVEN: dict[str, Any] = {"prompts": 4, "group_size": 2, "updates_per_rollout": 1}
REAL = {
    "fsdp": "verl_2025-06_qwen2-7b_fsdp_excerpt.log",
    "megatron": "verl_2025-06_qwen2-7b_megatron_excerpt.log",
    "logicrl": "verl_logicrl_wandb_output_excerpt.log",
}


def only(tree: xr.DataTree) -> xr.Dataset:
    (node,) = tree.children.values()
    return node.to_dataset()


def write(folder: Path, text: str, name: str = "run.log") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def real(shared: Path, name: str) -> Path:
    return shared / "logs_real" / REAL[name]


def line(step: int, values: Mapping[str, object]) -> str:
    return " - ".join([f"step:{step}", *(f"{key}:{value}" for key, value in values.items())]) + "\n"


def naive_counts(path: Path) -> Counter[str]:
    """Every key of every step line, by splitting and nothing else."""
    counts: Counter[str] = Counter()
    for text in path.read_text(encoding="utf-8").split("\n"):
        if " - " in text and (match := re.search(r"(?:^| )step:\d+ - (.*)", text)):
            counts.update(part.rsplit(":", 1)[0] for part in match[1].split(" - "))
    return counts


# -- nothing is lost ----------------------------------------------------------------------------------

STEP_KEYS = {
    "actor/grad_norm",
    "actor/lr",
    "critic/rewards/mean",
    "critic/score/mean",
    "response_length/mean",
    "response_length/max",
    "response_length/clip_ratio",
    "prompt_length/mean",
    *(f"timing_s/{name}" for name in ("gen", "reward", "old_log_prob", "ref", "adv", "update_actor")),
    *(f"timing_s/{name}" for name in ("step", "testing", "save_checkpoint")),
}
USED = {
    "fsdp": STEP_KEYS
    | {
        "perf/total_num_tokens",
        "perf/time_per_step",
        "val-core/openai/gsm8k/reward/mean@1",
        "val-core/DigitalLearningGmbH/MATH-lighteval/reward/mean@1",
    },
    "megatron": STEP_KEYS | {"perf/total_num_tokens", "perf/time_per_step", "val-core/openai/gsm8k/reward/mean@1"},
    "logicrl": STEP_KEYS | {"val/test_score/logic_assignment"},
}


@pytest.mark.parametrize("name", REAL)
def test_every_key_is_used_or_named(shared: Path, name: str) -> None:
    found = naive_counts(real(shared, name))
    ds = only(read_logs(real(shared, name), **(GIVEN if name == "logicrl" else {})))
    unused = ds.attrs["unused"]
    used = found.keys() & USED[name]
    assert not unused.keys() & used
    assert unused.keys() | used == found.keys()
    assert all(unused[key] == found[key] for key in unused)


@pytest.mark.parametrize("name", ["fsdp", "megatron"])
def test_values_are_those_of_a_naive_splitter(shared: Path, name: str) -> None:
    path = real(shared, name)
    ds = only(read_logs(path))
    rows: dict[int, dict[str, float]] = {}
    for text in path.read_text(encoding="utf-8").split("\n"):
        if match := re.search(r" step:(\d+) - (.*)", text):
            pairs = (part.rsplit(":", 1) for part in match[2].split(" - "))
            rows.setdefault(int(match[1]), {}).update({key: float(value) for key, value in pairs})
    sources = {
        "grad_norm": "actor/grad_norm",
        "response_length_max": "response_length/max",
        "truncated_share": "response_length/clip_ratio",
        "generation_seconds": "timing_s/gen",
        "logprob_seconds": "timing_s/old_log_prob",
        "train_reward": "critic/rewards/mean",
    }
    for canonical, key in sources.items():
        assert ds[canonical].to_numpy().tolist() == [rows[step][key] for step in ds.rollout_step.to_numpy().tolist()]
        assert key in ds.attrs["provenance"][canonical]
    evaluated = [step for step, row in rows.items() if any("val-core" in key for key in row)]
    assert ds.evaluation_responses.to_numpy().tolist() == [step * 5120 for step in evaluated]


number = st.floats(-1e6, 1e6).map(lambda value: round(value, 6)) | st.sampled_from(["np.float64(0.5)", "nan", "-0.000"])
key = st.from_regex(r"[a-z]{1,4}/[a-z@(]{1,4}", fullmatch=True) | st.sampled_from(["timing/gen", "actor/lr(1e-4)"])
glue = st.sampled_from(["", " ", "x", "(TaskRunner pid=1) INFO:1", " - torn/ke", ":3", "  - a:1", "_0", "\u0663"])


@settings(max_examples=300, deadline=None)
@given(values=st.dictionaries(key, number, min_size=1, max_size=6), end=glue)
def test_splitting_and_searching_agree(values: dict[str, object], end: str) -> None:
    text = line(7, values).rstrip("\n").partition(" - ")[2] + end
    split = lines._split(text, lines.Layouts())
    searched = lines._searched(text, lines.Layouts())
    if split is not None:
        assert searched is not None
        assert dict(split) == pytest.approx(dict(searched), nan_ok=True)


# -- the real logs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fsdp", "megatron"])
def test_real_configuration(shared: Path, name: str) -> None:
    ds = only(read_logs(real(shared, name)))
    expected: dict[str, object] = {"prompts": 1024, "group_size": 5, "rollout_batch": 5120, "train_batch": 1280}
    expected |= {"updates_per_rollout": 4, "max_num_seqs": 1024, "memory_share": 0.6, "tensor_parallel": 2}
    expected |= {"rollout_mode": "sync", "grad_clip": 1, "clip_ratio": 0.2, "grad_norm_reduction": "mean"}
    assert ds.attrs.items() >= expected.items()
    assert ds["updates"].to_numpy().tolist() == (4 * ds.rollout_step.to_numpy()).tolist()
    scope = ds.attrs["provenance"]["grad_norm"]
    assert "mini-batches of 1280 responses" in scope
    assert "mean over the updates" in scope
    assert ds.attrs["provenance"].keys() >= expected.keys() - {"rollout_batch", "train_batch", "grad_norm_reduction"}


def test_evaluation_size_only_where_it_is_one_data_set(shared: Path) -> None:
    one, two = (only(read_logs(real(shared, name))).attrs for name in ("megatron", "fsdp"))
    assert (one["eval_samples"], one["eval_samples_total"]) == (1319, 1319)
    assert "eval_samples" not in two
    assert two["eval_samples_total"] == 6317


@pytest.mark.parametrize(("name", "step", "extra"), [("fsdp", 20, 135.330), ("megatron", 105, 175.280)])
def test_real_step_times_leave_out_testing_and_saving(shared: Path, name: str, step: int, extra: float) -> None:
    path = real(shared, name)
    ds = only(read_logs(path)).sel(rollout_step=step)
    text = re.search(rf" step:{step} - .*", path.read_text(encoding="utf-8"))
    assert text is not None
    raw, testing, saving = (
        float(re.findall(rf"timing_s/{timer}:([\d.]+)", text[0])[0]) for timer in ("step", "testing", "save_checkpoint")
    )
    assert saving == extra
    assert ds.step_seconds.item() == pytest.approx(raw - testing - saving)
    assert ds.checkpoint_seconds.item() == saving
    phases = ("generation", "training", "logprob", "reward")
    rest = ds.step_seconds.item() - sum(ds[f"{phase}_seconds"].item() for phase in phases)
    assert ds.other_seconds.item() == pytest.approx(max(rest, 0.0))


def test_a_step_of_six_hours_that_was_mostly_saving(tmp_path: Path) -> None:
    # The step of the full FSDP log that its excerpt leaves out: 22,543 s, of which 22,076 s are saving.
    times: dict[str, object] = {"gen": 91.5, "old_log_prob": 51.0, "update_actor": 150.0, "reward": 2.5}
    times |= {"testing": 170.0, "save_checkpoint": 22076.0, "step": 22543.0}
    text = line(1, {f"timing_s/{name}": value for name, value in times.items()})
    ds = only(read_logs(write(tmp_path, text), prompts=1024, group_size=5, updates_per_rollout=4))
    assert ds.step_seconds.item() == 297
    assert ds.checkpoint_seconds.item() == 22076
    assert ds.other_seconds.item() == pytest.approx(2.0)
    assert (ds.attrs["rollout_batch"], ds.attrs["train_batch"]) == (5120, 1280)


# -- quantities that only newer versions log ----------------------------------------------------------


def test_agent_loop_staleness_and_overlapping_phases(tmp_path: Path) -> None:
    values: dict[str, object] = {"timing_s/gen": 60.0, "timing_s/update_actor": 40.0, "timing_s/step": 102.0}
    values |= {"timing_s/agent_loop/tool_calls/mean": 12.5, "response_length/clip_ratio": 0.25}
    values |= {"response_length/max": "np.int64(2048)"}
    values |= {f"training/off_policy/trajectory_staleness/{kind}": v for kind, v in (("mean", 0.5), ("max", 3))}
    text = line(1, values) + line(2, values | {"timing_s/step": 70.0}) + line(3, {"timing_s/step": 100.0})
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    np.testing.assert_array_equal(ds.environment_seconds, [12.5, 12.5, np.nan])
    np.testing.assert_array_equal(ds.response_length_max, [2048, 2048, np.nan])
    np.testing.assert_array_equal(ds.truncated_share, [0.25, 0.25, np.nan])
    np.testing.assert_array_equal(ds.staleness_mean, [0.5, 0.5, np.nan])
    np.testing.assert_array_equal(ds.staleness_max, [3, 3, np.nan])
    np.testing.assert_array_equal(ds.other_seconds, [2, np.nan, np.nan])
    assert any("phases add up to more than step_seconds in 1 steps" in text for text in ds.attrs["warnings"])
    assert "within timing_s/gen" in ds.attrs["provenance"]["environment_seconds"]
    for name, variable in ds.variables.items():
        known = VARIABLES[str(name)]
        assert variable.attrs == {"symbol": known.symbol, "units": known.unit, "long_name": known.long_name}


def test_dapo_counts_what_it_generated(tmp_path: Path) -> None:
    head = "data.train_batch_size=512 data.gen_batch_size=768 actor_rollout_ref.rollout.n=16 "
    head += "actor_rollout_ref.actor.ppo_mini_batch_size=512\n"
    body = "".join(line(k, {"train/num_gen_batches": n, "actor/grad_norm": 0.1}) for k, n in ((1, 1), (2, 3), (4, 2)))
    ds = only(read_logs(write(tmp_path, head + body)))
    np.testing.assert_array_equal(ds.responses_generated, [768 * 16, 4 * 768 * 16, np.nan])
    np.testing.assert_allclose(ds.kept_share, [512 / 768, 512 / 2304, 512 / 1536])
    assert "train/num_gen_batches" in ds.attrs["provenance"]["responses_generated"]
    unsized = only(read_logs(write(tmp_path, head.replace("data.gen_batch_size=768", "") + body)))
    assert not {"responses_generated", "kept_share"} & set(unsized.variables)
    assert unsized.attrs["unused"] == {"train/num_gen_batches": 3}


def test_fully_asynchronous_batches_and_options(tmp_path: Path) -> None:
    head = "data.train_batch_size=0 actor_rollout_ref.rollout.n=16 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
    head += "async_training.trigger_parameter_sync_step=4 async_training.require_batches=4 "
    head += "async_training.staleness_threshold=0.5 async_training.partial_rollout=True "
    head += "trainer.v1.trainer_mode=separate_async trainer.v1.sampler.max_off_policy_threshold=8\n"
    ds = only(read_logs(write(tmp_path, head + line(1, {"actor/grad_norm": 0.1}))))
    expected: dict[str, object] = {"prompts": 512, "rollout_batch": 8192, "train_batch": 512, "updates_per_rollout": 16}
    expected |= {"staleness_threshold": 0.5, "partial_rollout": "True", "parameter_sync_steps": 4}
    expected |= {"trainer_mode": "separate_async", "staleness_limit": 8}
    assert ds.attrs.items() >= expected.items()


# -- the file logger ----------------------------------------------------------------------------------


def test_file_logger_fixture(shared: Path) -> None:
    ds = only(read_logs(shared / "logs_synthetic" / "verl_file_logger.jsonl", **GIVEN))
    assert ds.attrs["framework"] == "verl"
    assert ds.step_seconds.to_numpy().tolist() == [251, 252, 253]
    assert ds.grad_norm.to_numpy().tolist() == [0.3, 0.21213203435596423, 0.17320508075688773]
    assert ds.train_reward.to_numpy().tolist() == [0.21000000000000002, 0.22, 0.23]


def test_file_logger_equals_the_console(shared: Path, tmp_path: Path) -> None:
    rows = []
    for text in real(shared, "fsdp").read_text(encoding="utf-8").split("\n"):
        if match := re.search(r" step:(\d+) - (.*)", text):
            pairs = (part.rsplit(":", 1) for part in match[2].split(" - "))
            rows.append({"step": int(match[1]), "data": {key: float(value) for key, value in pairs}})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    options: dict[str, Any] = {"prompts": 1024, "group_size": 5, "updates_per_rollout": 4, "learning_rate": 1e-6}
    got, want = only(read_logs(write(tmp_path, text, "a.jsonl"), **options)), only(read_logs(real(shared, "fsdp")))
    xr.testing.assert_equal(got, want)
    assert got.attrs["unused"] == want.attrs["unused"]


def test_file_logger_quirks(tmp_path: Path) -> None:
    text = '{"step": 1, "data": {"actor/grad_norm": null, "timing_s/step": 2.0, "note": "x"}}\nnoise\n'
    text += '{"step": 2, "data": {"actor/grad_norm": 0.5, "timing_s/step": 2.0}}\n{"step": 3, "data": {"actor'
    ds = only(read_logs(write(tmp_path, text, "a.jsonl"), **GIVEN))
    np.testing.assert_array_equal(ds.grad_norm, [np.nan, 0.5])
    assert ds.attrs["unused"] == {"note": 1}
    said = " ".join(ds.attrs["warnings"])
    assert "line 4 has no end" in said
    assert "1 lines are not {step, data}" in said


# -- configuration files ------------------------------------------------------------------------------

STEPS = "".join(line(k, {"actor/grad_norm": 0.5, "timing_s/step": 10.0}) for k in (1, 2, 3))
YAML = """\
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 4, ppo_epochs: 1, optim: {lr: 2e-6}, grad_clip: 0.5}
  rollout: {n: 4, max_num_seqs: 128, mode: async}
  model: {path: "${oc.env:MODEL}"}
data: {train_batch_size: 8, seed: null}
"""


def test_configuration_of_the_same_run_in_every_shape(tmp_path: Path) -> None:
    log = write(tmp_path / "run", STEPS)
    nested = {"actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 4, "optim": {"lr": 2e-6}, "grad_clip": 0.5}}}
    rest = {"actor_rollout_ref.rollout.n": 4, "data.train_batch_size": 8, "actor_rollout_ref.rollout.max_num_seqs": 128}
    overrides = ["+actor_rollout_ref.rollout.n=4", "data.train_batch_size=8", "actor_rollout_ref.actor.optim.lr=2e-6"]
    overrides += ["actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.max_num_seqs=128"]
    files = [
        write(tmp_path, YAML, "config.yaml"),
        write(tmp_path, json.dumps(nested | rest), "config.json"),
        write(tmp_path, "".join(f"- {entry}\n" for entry in overrides), "overrides.yaml"),
    ]
    for path in files:
        ds = only(read_logs(log, config=path))
        expected: dict[str, object] = {"train_batch": 16, "rollout_batch": 32, "learning_rate": 2e-6}
        assert ds.attrs.items() >= (expected | {"max_num_seqs": 128, "model": ""}).items()
        assert str(path) in ds.attrs["provenance"]["prompts"]


def test_configuration_beside_the_log(tmp_path: Path) -> None:
    log = write(tmp_path, STEPS)
    config = write(tmp_path, YAML, ".hydra/config.yaml")
    tree = read_logs(tmp_path)
    assert only(tree).attrs["train_batch"] == 16
    assert only(tree).attrs["rollout_mode"] == "async"
    assert any(str(config) in text for text in tree.attrs["warnings"])
    write(tmp_path, STEPS, "other.log")
    with pytest.raises(InputError, match="the batch is unknown"):
        read_logs(tmp_path)
    tree = read_logs([log, tmp_path / "other.log"], **GIVEN)
    assert any("it cannot belong to all" in text for text in tree.attrs["warnings"])
    # One that is not of verl is none of our business.
    write(tmp_path / "else", STEPS)
    write(tmp_path / "else", "model: llama\n", "config.yaml")
    assert only(read_logs(tmp_path / "else" / "run.log", **GIVEN)).attrs["train_batch"] == 8


def test_configuration_that_contradicts_the_log(tmp_path: Path) -> None:
    head = "data.train_batch_size=8 actor_rollout_ref.rollout.n={} actor_rollout_ref.model.path=/a/Tiny-1B\n"
    config = write(tmp_path, YAML.replace('"${oc.env:MODEL}"', "/b/Tiny-1B"), "mine.yaml")
    assert only(read_logs(write(tmp_path, head.format(4) + STEPS), config=config)).attrs["group_size"] == 4
    with pytest.raises(InputError) as caught:
        read_logs(write(tmp_path, head.format(5) + STEPS), config=config)
    for part in ("actor_rollout_ref.rollout.n is 5 in the log but 4 in", str(config), "run.log"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("c.yaml", "a: [", "not YAML"),
        ("c.json", "{", "not JSON"),
        ("c.yaml", "just words", "holds no configuration"),
        ("c.yaml", "- !!python/object/apply:os.system ['true']", "not YAML"),
        ("c.yaml", "a: &a {b: 1, c: 2}\n" + "".join(
            f"a{n}: &a{n} {{" + ", ".join(f"k{i}: *a{n - 1 if n else ''}" for i in range(9)) + "}\n" for n in range(9)
        ), "more than"),
    ],
)  # fmt: skip
def test_configuration_that_cannot_be_used(tmp_path: Path, name: str, text: str, part: str) -> None:
    log, config = write(tmp_path, STEPS), write(tmp_path, text, name)
    with pytest.raises(InputError, match=part) as caught:
        read_logs(log, config=config)
    assert caught.value.remedy
    assert caught.value.where == str(config)


def test_configuration_of_another_framework_or_nowhere(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_logs(write(tmp_path, STEPS), config=tmp_path / "missing.yaml")
    with pytest.raises(InputError, match="is mlperf"):
        read_logs(shared / "mlperf_grpo" / "gbs256_seed1.out", config=write(tmp_path, YAML, "c.yaml"))


def test_without_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, config = write(tmp_path, STEPS), write(tmp_path, YAML, "config.yaml")
    imported = builtins.__import__

    def refusing(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return imported(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(InputError, match=r"pip install .\.\[yaml\]"):
        read_logs(log, config=config)
    tree = read_logs(log, **GIVEN)
    assert any(".[yaml]" in text for text in tree.attrs["warnings"])


# -- streaming ----------------------------------------------------------------------------------------


def stripped(ds: xr.Dataset) -> xr.Dataset:
    ds = ds.copy()
    del ds.attrs["path"]
    return ds


@pytest.mark.parametrize("size", [7, 64, 1000])
@pytest.mark.parametrize("packing", ["plain", "gzip", "utf-16"])
def test_blocks_of_any_size_read_alike(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, packing: str
) -> None:
    raw = real(shared, "megatron").read_bytes()
    if size < 1000:
        # Few bytes at a time take long: the last of the start-up and the first steps.
        at = raw.index(b"{'actor_rollout_ref'")
        raw = raw[at - 300 : at + 1500] + raw[raw.index(b"step:0 - ") - 40 :][:9000]
    text = raw.decode()
    (tmp_path / "whole.log").write_text(text)
    packed = {"plain": raw, "gzip": gzip.compress(raw), "utf-16": text.encode("utf-16")}[packing]
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "whole.log").write_bytes(packed)
    whole = only(read_logs(tmp_path / "whole.log", **(GIVEN if size < 1000 else {})))
    monkeypatch.setattr(source, "_BLOCK", size)
    part = only(read_logs(tmp_path / "part" / "whole.log", **(GIVEN if size < 1000 else {})))
    xr.testing.assert_identical(stripped(part), stripped(whole))


def test_lines_are_a_sequence_that_streams(tmp_path: Path) -> None:
    text = "".join(f"line {n}\r\n" for n in range(50_000)) + "rest"
    opened = Source(str(write(tmp_path, text)), explicit=True)
    assert bool(opened.lines)
    assert (opened.lines[0], opened.lines[49_999], opened.lines[-1]) == ("line 0", "line 49999", "line 49999")
    assert opened.lines[1:3] == ["line 1", "line 2"]
    assert opened.lines[-2:] == ["line 49998", "line 49999"]
    assert (len(opened.lines), opened.count, opened.tail) == (50_000, 50_000, "rest")
    assert opened.text == text.replace("\r\n", "\n")
    with pytest.raises(IndexError):
        opened.lines[50_000]
    assert opened.head.startswith("line 0")


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 2**22)
    monkeypatch.setattr(source, "LINE_BYTES", 2**21)
    with pytest.raises(InputError, match="the log is larger than 4 MiB"):
        read_logs(write(tmp_path, "noise\n" * 800_000))
    with pytest.raises(InputError, match="a line of the log is larger than 2 MiB"):
        read_logs(write(tmp_path, "x" * 3_000_000))
    monkeypatch.setattr(source, "WHOLE_BYTES", 2**20)
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_logs(write(tmp_path, '{"log_history": [\n' + '{"step": 1},\n' * 100_000), **GIVEN)
    # A stream of steps is not held, so it may be larger.
    text = ("noise\n" * 100_000).join(STEPS.splitlines(keepends=True))
    assert only(read_logs(write(tmp_path, text), **GIVEN)).sizes["rollout_step"] == 3


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    noise = "(WorkerDict pid=1) INFO:some text of another process, as there is much of it in a log\n" * 2000
    path = tmp_path / "run.log"
    with path.open("w") as file:
        for step in range(1, 101):
            file.write(noise + line(step, {f"a/{n}": n for n in range(60)}))
    assert path.stat().st_size > 16e6
    read_logs(write(tmp_path, STEPS, "small.log"), **GIVEN)
    tracemalloc.start()
    read_logs(path, **GIVEN)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "run.log"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(STEPS))
    writer.start()
    assert only(read_logs(pipe, **GIVEN)).sizes["rollout_step"] == 3
    writer.join()


def test_first_step_behind_megabytes_of_noise(tmp_path: Path) -> None:
    noise = "global_step: 5 and a step:x - and step:3 without values\n" * 40_000
    ds = only(read_logs(write(tmp_path, noise + STEPS), **GIVEN))
    assert ds.rollout_step.to_numpy().tolist() == [1, 2, 3]


def test_printed_configuration_ends_with_the_first_step(tmp_path: Path) -> None:
    head = "{'actor_rollout_ref': {'actor': {'ppo_mini_batch_size': 8}, 'rollout': {'n': 4}},\n"
    head += " 'data': {'train_batch_size': 8}}\n"
    late = "{'actor_rollout_ref': {'rollout': {'n': 4}},\n" + STEPS + " 'data': {'train_batch_size': 16}}\n"
    assert only(read_logs(write(tmp_path, head + STEPS))).attrs["rollout_batch"] == 32
    with pytest.raises(InputError, match="give --prompts"):
        read_logs(write(tmp_path, late))


def test_rows_of_a_tracker(tmp_path: Path) -> None:
    opened = Source(str(write(tmp_path, STEPS)), explicit=True)
    rows = [(0, {"val-core/x/acc/mean@1": 0.1}), (1, {"actor/grad_norm": 0.5, "other": 1.0})]
    run = verl.run_of_rows(opened, rows, {"data.train_batch_size": "8"}, ["said before"])
    assert run.stated["prompts"] == 8
    assert run.columns["grad_norm"].tolist() == [0.5]
    assert run.facts["unused"] == {"other": 1}
    assert run.warnings[0] == "said before"


# -- keys of any name, values of any kind -------------------------------------------------------------


def test_names_with_spaces_and_colons_and_truth_values(tmp_path: Path) -> None:
    values: dict[str, object] = {"actor/grad_norm": 0.3, "flag/on": True, "flag/off": "np.False_"}
    values |= {"val-core/my data/acc/mean@1": 0.5, "val-core/hf:gsm8k/acc/mean@1": "np.float64(0.6)"}
    values |= {"val-core/hf:7/acc/mean@1": 0.25, "x/t": "tensor(0.5)", "y": "1e-06abc", "z": None}
    ds = only(read_logs(write(tmp_path, line(1, values)), **GIVEN))
    scores = dict(zip(ds.metric.to_numpy().tolist(), ds.score.to_numpy()[:, 0].tolist(), strict=True))
    assert scores == {
        "val-core/my data/acc/mean@1": 0.5,
        "val-core/hf:gsm8k/acc/mean@1": 0.6,
        "val-core/hf:7/acc/mean@1": 0.25,
    }
    assert ds.attrs["unused"] == {"flag/on": 1, "flag/off": 1}
    (said,) = [text for text in ds.attrs["warnings"] if "no number" in text]
    assert said.startswith("3 parts of step lines hold no number")
    for name in ("'x/t' in 1", "'y' in 1", "'z' in 1"):
        assert name in said
    rows = lines.console_rows("step:1 - a/b:True - c/d:np.True_ - e/f:False", lines.Layouts())
    assert dict(rows[0][1]) == {"a/b": 1, "c/d": 1, "e/f": 0}


def test_an_evaluation_of_a_data_set_with_a_space_is_a_step_line(tmp_path: Path) -> None:
    text = "step:0 - val-core/my data/acc/mean@1:0.5\n" + STEPS
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds.score.to_numpy().tolist() == [[0.5]]
    assert ds.evaluation_responses.to_numpy().tolist() == [0]


def test_a_sentence_is_no_step_line(tmp_path: Path) -> None:
    text = STEPS + "INFO step:2 - saving to a/b took: 5\nstep:1 - reading data/x: 3\n"
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds.rollout_step.to_numpy().tolist() == [1, 2, 3]
    assert not any("restart" in said for said in ds.attrs["warnings"])


names = st.from_regex(r"[a-z]{1,4}/[a-z :@]{0,5}[a-z]", fullmatch=True) | st.sampled_from(
    ["actor/grad_norm", "timing_s/gen"]
)
texts = st.sampled_from(["0.5", "np.float64(2.0)", "True", "None", "tensor(0.5)", "1e-6x", "[1, 2]", "nan", "-3", ""])


@settings(max_examples=150, deadline=None)
@given(values=st.dictionaries(names, texts, min_size=1, max_size=8))
def test_every_part_is_used_or_unused_or_warned_of(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str]
) -> None:
    text = line(1, {"response_length/mean": "7.0"} | values)
    ds = only(read_logs(write(tmp_path_factory.mktemp("parts"), text), **GIVEN))
    known = {"actor/grad_norm", "timing_s/gen", "response_length/mean"}
    said = "\n".join(text for text in ds.attrs["warnings"] if "no number" in text)
    for name in values:
        assert name in known or name in ds.attrs["unused"] or f"'{name}' in 1" in said
    numbers = {name for name, value in values.items() if value in ("0.5", "np.float64(2.0)", "True", "nan", "-3")}
    assert all(f"'{name}' in 1" not in said for name in numbers)


def test_values_of_the_file_logger_that_are_no_numbers(tmp_path: Path) -> None:
    row = {"actor/grad_norm": "high", "flag/on": True, "a/list": [1], "b": None}
    ds = only(read_logs(write(tmp_path, json.dumps({"step": 1, "data": row}) + "\n", "a.jsonl"), **GIVEN))
    assert ds.attrs["unused"] == {"flag/on": 1, "a/list": 1, "b": 1}
    (said,) = [text for text in ds.attrs["warnings"] if "no number" in text]
    assert said.startswith("2 parts")
    assert "'actor/grad_norm' in 1" in said


# -- what the step timer includes is decided once -----------------------------------------------------


def timed(count: int, *, testing: float, inside: bool, rest: float = 10.0, overlap: float = 0.0) -> str:
    """Steps of 90 s of phases, every second with an evaluation."""
    text = ""
    for n in range(1, count + 1):
        evaluated = n % 2 == 1
        step = 90 + rest - overlap + (testing if evaluated and inside else 0)
        values: dict[str, object] = {"timing_s/gen": 60.0, "timing_s/update_actor": 30.0, "timing_s/step": step}
        text += line(n, values | ({"timing_s/testing": testing} if evaluated else {}))
    return text


@pytest.mark.parametrize("overlap", [0.0, 40.0])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("testing", [8.0, 50.0, 300.0])
def test_testing_inside_or_outside_is_seen_beside_its_neighbours(
    tmp_path: Path, testing: float, inside: bool, overlap: float
) -> None:
    text = timed(9, testing=testing, inside=inside, overlap=overlap)
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds.step_seconds.to_numpy().tolist() == [100 - overlap] * 9
    said = [text for text in ds.attrs["warnings"] if "timing_s/step includes" in text]
    assert said == (
        [f"timing_s/step includes testing: 5 rows count {5 * testing:g} s less (decided once, by the rows beside them)"]
        if inside
        else []
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data(), tests=st.booleans(), saves=st.booleans())
def test_the_decision_survives_noise(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, tests: bool, saves: bool
) -> None:
    pace = data.draw(st.lists(st.floats(-5, 5), min_size=20, max_size=20))
    text, core = "", []
    for n, other in enumerate(pace, start=1):
        core.append(100 + other)
        values: dict[str, object] = {"timing_s/gen": 60.0, "timing_s/update_actor": 30.0}
        step = 100 + other
        if n % 4 == 0:
            values["timing_s/testing"] = 30.0
            step += 30 * tests
        if n % 8 == 0:
            values["timing_s/save_checkpoint"] = 50.0
            step += 50 * saves
        text += line(n, values | {"timing_s/step": step})
    ds = only(read_logs(write(tmp_path_factory.mktemp("noise"), text), **GIVEN))
    np.testing.assert_allclose(ds.step_seconds, core)
