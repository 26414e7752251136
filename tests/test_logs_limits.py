"""Limits on hostile input: each is refused by name, in a moment, with what to do; and nothing is ever executed."""

from __future__ import annotations

import ast
import gzip
import json
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from log_texts import FORMATS, options

import batchsim
from batchsim.errors import InputError
from batchsim.logs import read, read_logs, reader, record
from batchsim.logs.config import load_config
from batchsim.logs.source import LINE_BYTES, MAX_COLUMNS, Source

SECONDS = 20.0
GIVEN: dict[str, Any] = {"prompts": 4, "group_size": 4, "updates_per_rollout": 1, "epochs": 1}


def only(tree: xr.DataTree) -> xr.Dataset:
    (node,) = tree.children.values()
    return node.to_dataset()


def refused(path: Path, *parts: str, **given: Any) -> None:
    begun = time.perf_counter()
    with pytest.raises(InputError) as caught:
        read_logs(path, **given)
    assert time.perf_counter() - begun < SECONDS
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.remedy
    assert len(str(caught.value)) < 5_000


# -- a line of 100 MB ---------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["", "step:3 - a:1 - ", "Global step 3: {'a': ", '{"step": 3, "a": ', "│ a │ "])
def test_a_line_of_100_MB(tmp_path: Path, start: str) -> None:
    path = tmp_path / "run.log"
    with path.open("w") as file:
        file.write(FORMATS["openrlhf"](range(1, 4), 1) + start)
        for _ in range(100):
            file.write("x" * 1_000_000)
        file.write("\n")
    tracemalloc.start()
    refused(path, "run.log: a line of the log is larger than 32 MiB", "keep only the lines with metrics", **GIVEN)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * LINE_BYTES


LONG = {
    "braces": "Global step 3: " + "{'" * 2_000_000,
    "dictionary": "Global step 3: {" + "'a': [" * 1_000_000,
    "quotes": "Global step 3: {'a': " + "'\\" * 2_000_000,
    "pairs": "step:3 - " + "a:1 - " * 700_000,
    "colons": "step:3 - a/" + ":1" * 2_000_000,
    "steps": "step:1 - " * 500_000,
    "bars": "│" * 1_300_000,
    "cells": "│ a │ 1 " * 400_000,
    "json": '{"step": 3, ' + '"a": {' * 600_000,
    "bullets": "• a: 1" * 500_000,
    "trl": "{'epoch': " + "'a': 1, " * 500_000,
    "equals": "grpo.num_prompts_per_step=" * 150_000,
    "carriage returns": "  1%|x| 1/9 [00:01<00:09]\r" * 150_000,
    "slime": " - perf 3: {'" * 300_000,
    "prime": "Step 3 |" + " A. B 1 |" * 400_000,
    "digits of verl": "step:3 - a:" + "9" * 300_000 + "x",
    "digits of a dictionary": "Global step 3: {'a': " + "9" * 300_000 + "x}",
    "digits of TRL": "{'epoch': 1, 'reward': " + "9" * 40_000 + "x}",
    "escapes": "\x1b[36m" * 700_000,
    "headers": "=" * 4_000_000 + " Step 1/9 " + "=" * 100,
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("framework", ["openrlhf", "verl", "trl"])
def test_long_lines_below_the_limit_take_no_time(tmp_path: Path, name: str, framework: str) -> None:
    path = tmp_path / "run.log"
    log = FORMATS[framework](range(1, 4), 1)
    path.write_text(f"{log}{LONG[name]}\n{FORMATS[framework](range(4, 7), 1)}")
    begun = time.perf_counter()
    try:
        read_logs(path, **options(framework))
    except InputError:
        pass
    finally:
        taken = time.perf_counter() - begun
    assert taken < SECONDS, taken


# -- a million columns --------------------------------------------------------------------------------


def test_a_million_columns_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    names = ",".join(f"m{n}" for n in range(1_000_000))
    path.write_text(f"rollout_step,grad_norm,{names}\n1,0.5{',1' * 1_000_000}\n")
    refused(path, "wide.csv:1: the header has 1000002 columns, more than 20000", "export only the columns", **GIVEN)
    history = tmp_path / "history.csv"
    history.write_text(f"_step,_runtime,actor/grad_norm,{names}\n1,9,0.5{',1' * 1_000_000}\n")
    refused(history, "the header has 1000003 columns, more than 20000", **GIVEN)
    assert MAX_COLUMNS == 20_000


def test_a_million_metrics_in_a_row(tmp_path: Path) -> None:
    many = {f"m{n}": n for n in range(1_000_000)}
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 1, "env/all/reward/total": 1.0, **many}) + "\n")
    refused(path, "metrics.jsonl:1: the row holds more than 10000 metrics", "keep only the metrics", **GIVEN)
    path = tmp_path / "run.log"
    path.write_text("step:1 - " + " - ".join(f"m{n}:1" for n in range(1_000_000)) + "\n")
    refused(path, "line 1: the row holds more than 10000 metrics", **GIVEN)
    assert reader.MAX_NAMES == 10_000


def test_metrics_that_change_from_row_to_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_ALL_NAMES", 100)
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": n, "env/all/reward/total": 1.0, **{f"m{n}-{k}": 1 for k in range(9)}} for n in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused(path, "metrics.jsonl:12: the log holds more than 100 metrics", **GIVEN)


def test_scores_and_runs_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_SCORES", 50)
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        json.dumps({"step": 1, "env/all/x": 1, **{f"test/{n}/env/all/correct": 1 for n in range(60)}}) + "\n"
    )
    refused(path, "the log holds 60 validation scores, more than 50", "keep those", **GIVEN)
    monkeypatch.setattr(read, "MAX_RUNS", 10)
    again = tmp_path / "again.log"
    again.write_text("step:1 - a:1\nstep:2 - a:1\n" * 20)
    refused(again, "hold 20 runs, more than 10", "split a log whose training starts again", **GIVEN)


# -- deeply nested JSON -------------------------------------------------------------------------------

DEEP = '{"a": ' * 100_000 + "1" + "}" * 100_000


def test_deeply_nested_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = '{"step": 1, "env/all/reward/total": 0.5}\n'
    path.write_text(good + '{"step": 2, "env/all/reward/total": ' + DEEP + "}\n" + good.replace("1", "3", 1))
    tree = read_logs(path, **GIVEN)
    ds = only(tree)
    assert ds["rollout_step"].values.tolist() == [1, 3]
    assert any("1 lines are no JSON object with a step" in text for text in ds.attrs["warnings"])
    refused(
        _written(tmp_path, "state.json", '{"log_history": ' + DEEP + "}"), "the JSON is damaged", "copy the file again"
    )
    tags = '{"timing/train/total_step_time": {"1": 2.0}, "b": ' + DEEP + "}"
    refused(_written(tmp_path, "merged.json", tags), "the JSON is damaged", "merge the event files again")
    for name, text in (("c.json", DEEP), ("c.yaml", "[" * 50_000), ("c.toml", "a = " + "[" * 50_000)):
        with pytest.raises(InputError, match=f"{name}: not "):
            load_config(_written(tmp_path, name, text))


def test_nesting_beyond_32_levels_names_no_metric(tmp_path: Path) -> None:
    deep: object = 1.0
    for level in range(40):
        deep = {f"l{level}": deep}
    row = {"step": 1, "actor": {"grad_norm": 0.5}, "deep": deep}
    ds = only(read_logs(_written(tmp_path, "log.jsonl", json.dumps(row) + "\n"), **GIVEN))
    assert ds["grad_norm"].values.tolist() == [0.5]
    assert not any("l0" in name for name in ds.attrs["unused"])


def _written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


# -- a decompression bomb -----------------------------------------------------------------------------


@pytest.mark.parametrize("filling", [b"\0", b"\n", b" \n"])
def test_a_decompression_bomb(tmp_path: Path, filling: bytes) -> None:
    path = tmp_path / "run.log.gz"
    piece = filling * (1_000_000 // len(filling))
    with gzip.open(path, "wb") as file:
        file.write(FORMATS["openrlhf"](range(1, 4), 1).encode())
        for _ in range(1000):
            file.write(piece)
    assert path.stat().st_size < 2_000_000
    tracemalloc.start()
    refused(path, "run.log.gz: the gzip data unpack to more than 500 times their size", "unpack it elsewhere", **GIVEN)
    assert tracemalloc.get_traced_memory()[1] < 200_000_000
    tracemalloc.stop()


def test_a_bomb_of_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(b"step:1 - a:1\n" + b"a" * 100_000_000))
    refused(path, "run.log.gz: a line of the log is larger than 32 MiB", **GIVEN)


def test_a_log_that_packs_well_is_no_bomb(tmp_path: Path) -> None:
    path = tmp_path / "run.log.gz"
    path.write_bytes(
        gzip.compress(("noise " * 20 + "\n").encode() * 400_000 + FORMATS["verl"](range(1, 9), 1).encode())
    )
    assert only(read_logs(path, **GIVEN)).sizes["rollout_step"] == 8


# -- a file that grows --------------------------------------------------------------------------------


def test_a_file_counts_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    path = _written(tmp_path, "run.log", FORMATS["openrlhf"](range(1, 4), 1))
    source = Source(str(path), explicit=True)
    with path.open("a") as file:
        file.write(FORMATS["openrlhf"](range(4, 9), 1))
    assert source.count == 6
    assert source.text == FORMATS["openrlhf"](range(1, 4), 1)
    packed = tmp_path / "run.log.gz"
    packed.write_bytes(gzip.compress(b"step:1 - a:1\n"))
    source = Source(str(packed), explicit=True)
    with packed.open("ab") as file:
        file.write(gzip.compress(b"step:2 - a:1\n"))
    assert list(source.lines) == ["step:1 - a:1"]


@pytest.mark.parametrize("name", ["openrlhf", "verl", "nemo_rl", "trl", "tinker"])
def test_a_file_that_grows_while_it_is_read(tmp_path: Path, name: str) -> None:
    path = _written(tmp_path, "run.log", FORMATS[name](range(1, 10), 1))
    stop = threading.Event()

    def grow() -> None:
        with path.open("a") as file:
            for step in range(10, 90):
                if stop.is_set():
                    break
                file.write(FORMATS[name](range(step, step + 1), 1))
                file.flush()

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for _ in range(5):
            steps = only(read_logs(path, **options(name)))["rollout_step"].values.tolist()
            assert steps == list(range(1, len(steps) + 1))
    finally:
        stop.set()
        writer.join()


# -- nothing is executed ------------------------------------------------------------------------------


def test_no_module_of_the_readers_can_execute_what_it_reads() -> None:
    """No eval, exec, compile, pickle, marshal, shelve or subprocess; YAML by its safe loader alone."""
    forbidden = {"eval", "exec", "compile", "__import__", "literal_eval"}
    modules = {"pickle", "marshal", "shelve", "subprocess", "ast", "runpy", "code", "dill", "joblib"}
    for path in sorted((Path(batchsim.__file__).parent / "logs").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in forbidden, (path, node.lineno)
            if isinstance(node, ast.Import):
                assert not modules & {alias.name.split(".")[0] for alias in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in modules, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "yaml":
                assert node.attr in ("safe_load", "YAMLError"), (path, node.lineno)


def test_yaml_that_asks_for_an_object_is_refused(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = f"trainer: !!python/object/apply:os.mkdir ['{made}']\npolicy_mini_batch_size: 1\n"
    with pytest.raises(InputError, match="not YAML"):
        load_config(_written(tmp_path, "config.yaml", text))
    log = _written(tmp_path, "run.log", FORMATS["skyrl"](range(1, 4), 1))
    tree = read_logs(log, **GIVEN)
    assert any("config.yaml was not used: not YAML" in text for text in tree.attrs["warnings"])
    assert not made.exists()


def test_printed_dictionaries_are_not_evaluated(tmp_path: Path) -> None:
    made = tmp_path / "made"
    bait = f"'reward': __import__('os').mkdir('{made}'), 'actor_grad_norm': 0.5"
    log = FORMATS["openrlhf"](range(1, 3), 1) + f"INFO Global step 3: {{{bait}}}\n"
    assert only(read_logs(_written(tmp_path, "run.log", log), **GIVEN))["grad_norm"].values[-1] == 0.5
    assert not made.exists()
