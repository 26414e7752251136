"""The catalogue of models: published counts, names, agreement with the shared configurations, and its verb."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchsim.cli import app
from batchsim.errors import InputError
from batchsim.specs.counts import active_parameters, total_parameters, weight_bytes
from batchsim.specs.huggingface import FAMILIES, read_architecture
from batchsim.specs.models import Entry, entries, find_entry, find_model

SHARED_CONFIGS = 28
VENDORS_COUNT_MORE = {"meta-llama/Llama-4-Scout-17B-16E-Instruct"}
"""Published totals that hold what a decoder does not: here the vision tower, 0.8 % of the model."""
EXACT = [e.name for e in entries().values() if e.total is not None and e.total.rounding < 0.005 * e.total.value]

runner = CliRunner()


def test_the_catalogue_is_as_large_as_promised() -> None:
    assert len(entries()) >= 32
    assert len(EXACT) >= 50
    assert all(e.source.startswith("https://") for e in entries().values())


@pytest.mark.parametrize("name", sorted(set(EXACT) - VENDORS_COUNT_MORE))
def test_total_within_one_percent_of_the_published_one(name: str) -> None:
    difference = entries()[name].total_difference
    assert difference is not None
    assert abs(difference) < 0.01


@pytest.mark.parametrize("name", [e.name for e in entries().values() if e.total is not None])
def test_total_within_one_percent_or_the_rounding(name: str) -> None:
    entry = entries()[name]
    assert entry.total is not None
    ours = total_parameters(entry.architecture)
    slack = 0.01 * entry.total.value + entry.total.rounding
    assert abs(ours - entry.total.value) <= slack


@pytest.mark.parametrize("name", [e.name for e in entries().values() if e.active is not None])
def test_active_within_two_percent_or_the_rounding(name: str) -> None:
    entry = entries()[name]
    assert entry.active is not None
    assert abs(entry.active_as_published - entry.active.value) <= 0.02 * entry.active.value + entry.active.rounding


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("gpt-oss-120b", 116.83e9, 5.13e9),
        ("gpt-oss-20b", 20.91e9, 3.61e9),
        ("DeepSeek-V3", 671.03e9, 36.6e9),
        ("Mixtral-8x7B-v0.1", 46.70e9, 12.75e9),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.58e9, 3.23e9),
    ],
)
def test_published_tables_to_the_last_digit(name: str, total: float, active: float) -> None:
    a = find_model(name)
    assert total_parameters(a) == pytest.approx(total, rel=1e-3)
    assert active_parameters(a) == pytest.approx(active, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # Counts in the safetensors metadata of the checkpoints.
        ("meta-llama/Meta-Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Meta-Llama-3.1-70B", 70_553_706_496),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("mistralai/Mistral-7B-v0.1", 7_241_732_096),
    ],
)
def test_totals_to_the_last_parameter(name: str, parameters: int) -> None:
    assert total_parameters(find_model(name)) == parameters


# -- the shared configurations ---------------------------------------------------------------------


def shared_configs(shared: Path) -> list[Path]:
    folder = shared / "model_configs"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: configurations are read in place and not shipped")
    return sorted(folder.glob("*.json"))


def test_all_shared_configurations_agree_with_the_catalogue(shared: Path) -> None:
    found = shared_configs(shared)
    assert len(found) >= SHARED_CONFIGS
    for file in found:
        name = file.stem.replace("--", "/", 1)
        entry = entries()[name]
        assert read_architecture(file, name=name, source=entry.source) == entry.architecture, name


def test_a_path_works_wherever_a_name_does(shared: Path) -> None:
    file = next(p for p in shared_configs(shared) if "Qwen3-8B" in p.name)
    assert total_parameters(find_model(str(file))) == total_parameters(find_model("Qwen3-8B"))


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "qwen3-8b", "QWEN/QWEN3-8B", " Qwen3-8B "])
def test_names_without_case_and_organisation(name: str) -> None:
    assert find_model(name).name == "Qwen/Qwen3-8B"


def test_aliases_and_inherited_rows() -> None:
    assert find_model("Llama-3.1-8B-Instruct").name == "meta-llama/Meta-Llama-3.1-8B"
    r1, v3 = find_model("deepseek-r1"), find_model("deepseek-v3")
    assert (r1.matrices, r1.attention, r1.experts) == (v3.matrices, v3.attention, v3.experts)
    assert find_model("Qwen3-30B-A3B-Instruct-2507").context_max == 262_144


def test_no_spelling_means_two_models() -> None:
    seen: dict[str, Entry] = {}
    for entry in entries().values():
        for spelling in (entry.name, *entry.aliases):
            short = spelling.lower().partition("/")[2]
            assert seen.setdefault(short, entry) is entry, spelling
            assert find_entry(spelling) is entry


def test_unknown_models_name_the_nearest_and_the_remedy() -> None:
    with pytest.raises(InputError) as caught:
        find_model("Qwen3-9B")
    assert "Qwen/Qwen3-8B" in str(caught.value)
    assert "config.json" in str(caught.value)
    for name in ("", "x" * 5000, "a\0b", "no/such/model"):
        with pytest.raises(InputError, match="no model"):
            find_model(name)
    with pytest.raises(InputError, match="cannot read"):
        find_model("./nowhere/config.json")


def test_a_folder_in_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(dict(entries()["Qwen/Qwen3-0.6B"].config)))
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "./mine", str(tmp_path / "mine"), "mine/config.json"):
        assert total_parameters(find_model(name)) == 596_049_920


# -- the verb --------------------------------------------------------------------------------------


def test_table_lists_every_model() -> None:
    result = runner.invoke(app, ["models"])
    assert result.exit_code == 0
    assert all(name in result.stdout for name in entries())


@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "DeepSeek-V3.2", "gpt-oss-20b", "Qwen3.5-27B", "gemma-3-1b-it"])
def test_details_print(name: str) -> None:
    result = runner.invoke(app, ["models", name])
    assert result.exit_code == 0
    assert "source: https://" in result.stdout
    assert "GFLOP per token" in result.stdout


def test_details_in_json() -> None:
    result = runner.invoke(app, ["models", "Qwen3-30B-A3B", "--precision", "fp8", "--json"])
    answer = json.loads(result.stdout)
    (row,) = answer["models"]
    assert (answer["schema"], answer["verb"], row["precision"]) == (1, "models", "fp8")
    assert row["kv_bytes_per_token"] == 98_304
    assert row["total_parameters"] == 30_532_122_624
    assert row["weight_bytes"] < 0.53 * weight_bytes(find_model("Qwen3-30B-A3B"))
    assert row["experts"]["experts"] == 128
    assert [n for n, _ in row["flops_per_token"]] == [0, 1024, 8192, 32768]


def test_catalogue_in_json_is_strict() -> None:
    def refuse(text: str) -> float:
        raise AssertionError(text)

    answer = json.loads(runner.invoke(app, ["models", "--json"]).stdout, parse_constant=refuse)
    assert len(answer["models"]) == len(entries())
    assert all(row["weight_bytes"] > 0 and row["kv_bytes_per_token"] >= 0 for row in answer["models"])


@pytest.mark.parametrize("arguments", [["qwen3-9b"], ["qwen3-8b", "--precision", "int3"], ["./none.json"]])
def test_bad_input_exits_with_two_and_one_line(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "batchsim", "models", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_the_docs_name_every_family() -> None:
    text = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    missing = [family for family in FAMILIES if family.removesuffix("_text") not in text]
    assert not missing
    assert len(text.splitlines()) <= 120
