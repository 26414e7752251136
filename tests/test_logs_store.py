"""Runs to NetCDF and JSON and back, identical in values, types, order and attributes."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.logs import load_runs, read_logs, save_runs
from batchsim.measure import measure
from batchsim.variables import VARIABLES, set_attrs

GIVEN: dict[str, Any] = {"prompts": 1024, "group_size": 5, "updates_per_rollout": 1}
LOGS: dict[str, dict[str, Any]] = {
    "tiny_grpo": {},
    "tiny_ppo": {},
    "mlperf_grpo": {},
    "logs_real/verl_2025-06_qwen2-7b_fsdp_excerpt.log": {},
    "logs_real/verl_2025-06_qwen2-7b_megatron_excerpt.log": {},
    "logs_real/verl_logicrl_wandb_output_excerpt.log": GIVEN,
    "logs_real/trl_unsloth_llama8b_g6_trainer_state.json": GIVEN,
    "logs_real/trl_r1distill1.5b_a3_console.log": GIVEN,
    "logs_synthetic/verl_quirks.log": GIVEN,
    "logs_synthetic/verl_file_logger.jsonl": GIVEN,
}


def assert_same(got: xr.DataTree, want: xr.DataTree) -> None:
    xr.testing.assert_identical(got, want)
    assert got.attrs == want.attrs
    assert list(got.children) == list(want.children)
    for name in want.children:
        one, other = got[name].to_dataset(), want[name].to_dataset()
        assert list(one.attrs.items()) == list(other.attrs.items())
        assert {key: type(value) for key, value in one.attrs.items()} == {
            key: type(value) for key, value in other.attrs.items()
        }
        assert [(key, v.dtype, v.dims) for key, v in one.variables.items()] == [
            (key, v.dtype, v.dims) for key, v in other.variables.items()
        ]


@pytest.mark.parametrize("ending", ["nc", "json"])
@pytest.mark.parametrize("log", LOGS)
def test_round_trip_of_real_logs(shared: Path, tmp_path: Path, log: str, ending: str) -> None:
    tree = read_logs(shared / log, **LOGS[log])
    if ending == "nc" and len(tree.children) > 8:
        # HDF5 takes .1 s per run and way.
        attrs = tree.attrs
        tree = xr.DataTree.from_dict({name: tree[name].to_dataset() for name in list(tree.children)[::6]})
        tree.attrs = attrs
    path = tmp_path / f"runs.{ending}"
    save_runs(tree, path)
    assert_same(load_runs(path), tree)


def test_a_file_can_be_read_and_written_over(tmp_path: Path, shared: Path) -> None:
    tree = read_logs(shared / "mlperf_grpo" / "gbs256_seed1.out")
    for path in (tmp_path / "runs.nc", tmp_path / "runs.json"):
        save_runs(tree, path)
        save_runs(load_runs(path), path)
        assert_same(load_runs(path), tree)


def test_a_loaded_tree_measures_alike(shared: Path, tmp_path: Path) -> None:
    tree = read_logs(str(shared / "mlperf_grpo" / "*seed1.out"))
    save_runs(tree, tmp_path / "runs.nc")
    one, other = measure(load_runs(tmp_path / "runs.nc")), measure(tree)
    xr.testing.assert_identical(one, other)


def test_attributes_of_variables_are_those_of_the_vocabulary(shared: Path, tmp_path: Path) -> None:
    save_runs(read_logs(shared / "tiny_ppo"), tmp_path / "runs.json")
    for node in load_runs(tmp_path / "runs.json").children.values():
        for name, variable in node.to_dataset().variables.items():
            known = VARIABLES[str(name)]
            assert variable.attrs == {"symbol": known.symbol, "units": known.unit, "long_name": known.long_name}


texts = st.text(max_size=8)
values = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
nested = st.recursive(values | texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner))
names = st.from_regex(r"[A-Za-z0-9 ._~=@-]{1,8}", fullmatch=True).filter(lambda name: name.strip(". ") == name)
attributes = st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), nested, max_size=4)


@settings(max_examples=40, deadline=None)
@given(
    runs=st.dictionaries(names, attributes, max_size=3),
    root=attributes,
    norms=st.lists(st.floats(), max_size=4),
    metrics=st.lists((texts | st.just("\ud800")).filter(lambda text: "\0" not in text), max_size=2),
)
@pytest.mark.parametrize("ending", ["nc", "json"])
def test_round_trip_of_any_tree(
    tmp_path_factory: pytest.TempPathFactory,
    ending: str,
    runs: dict[str, dict[str, Any]],
    root: dict[str, Any],
    norms: list[float],
    metrics: list[str],
) -> None:
    reserved = {"json_attributes", "run", "schema", "kind"}
    datasets = {}
    for name, attrs in runs.items():
        ds = xr.Dataset(
            {
                "grad_norm": ("rollout_step", np.array(norms, dtype=float)),
                "steady": ("rollout_step", np.array(norms, dtype=float) > 0),
                "score": (("metric", "evaluation"), np.zeros((len(metrics), 2))),
            },
            coords={
                "rollout_step": np.arange(len(norms)),
                "metric": np.array([f"m{text}" for text in metrics], dtype=np.str_),
            },
        )
        set_attrs(ds)
        ds.attrs = {key: value for key, value in attrs.items() if key not in reserved}
        datasets[name] = ds
    tree = xr.DataTree.from_dict(datasets)
    tree.attrs = {key: value for key, value in root.items() if key not in reserved}
    path = tmp_path_factory.mktemp("store") / f"runs.{ending}"
    save_runs(tree, path)
    assert_same(load_runs(path), tree)


def test_json_is_strict_and_says_what_it_is(shared: Path, tmp_path: Path) -> None:
    save_runs(read_logs(shared / "logs_synthetic" / "verl_quirks.log", **GIVEN), tmp_path / "runs.json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    document = json.loads((tmp_path / "runs.json").read_text(), parse_constant=refuse)
    assert (document["schema"], document["kind"]) == (1, "batchsim runs")
    stored = document["runs"]["verl_quirks"]["variables"]["grad_norm"]
    assert stored["values"] == [0.322, 0.298, None, 0.281, 0.279, 0.277]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.json", '{"kind": "x", "schema": 1}'),
        ("a.json", '{"kind": "batchsim runs", "schema": 2}'),
        ("a.json", '{"kind": "batchsim runs", "schema": 1, "attributes": {}, "runs": {"a": {}}}'),
        (
            "a.json",
            '{"kind": "batchsim runs", "schema": 1, "attributes": {}, "runs": {"a": {"attributes": {}, '
            '"variables": {"x": {"dims": [], "shape": [], "type": "float64", "values": 1, "coordinate": false}}}}}',
        ),
        ("a.nc", "no NetCDF at all"),
    ],
)
def test_what_save_runs_did_not_write(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="not runs that save_runs wrote"):
        load_runs(tmp_path / name)


def test_another_netcdf(tmp_path: Path) -> None:
    xr.Dataset({"x": 1.0}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="not runs that save_runs wrote"):
        load_runs(tmp_path / "a.nc")


def test_paths_and_missing_extras(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = read_logs(shared / "mlperf_grpo" / "gbs256_seed1.out")
    with pytest.raises(InputError, match=r"\.nc or \.json"):
        save_runs(tree, tmp_path / "runs.csv")
    with pytest.raises(InputError, match=r"\.nc or \.json"):
        load_runs(tmp_path / "runs.csv")
    for ending in ("nc", "json"):
        with pytest.raises(InputError, match="no such file"):
            load_runs(tmp_path / f"missing.{ending}")
        with pytest.raises(InputError, match="cannot be written"):
            save_runs(tree, tmp_path / "nowhere" / f"runs.{ending}")
    imported = builtins.__import__

    def refusing(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "h5netcdf":
            raise ImportError(name)
        return imported(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refusing)
    for use in (lambda path: save_runs(tree, path), load_runs):
        with pytest.raises(InputError, match=r"\.\[netcdf\]"):
            use(tmp_path / "runs.nc")
