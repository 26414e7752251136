"""`batchsim decode` and the system's validations on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from batchsim.cli import main
from batchsim.plot import plot_decode, plot_predicted_measured
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.system.roofline import BINDS, PARTS, decode_time, deploy
from batchsim.validate.serving import validate_serving

matplotlib.use("Agg")
BASE = ("decode", "--model", "Qwen3-30B-A3B", "--gpu", "H100")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *BASE, "--tp", "2", "--batch", "1,64,512")
    assert status == 0
    assert "Qwen/Qwen3-30B-A3B (bf16) on 2 x H100-SXM, vllm; context 4,096 tokens" in out
    assert "KV memory" in out
    # (.9 x 85.5 GB - 30.54 - 1.42 GB) over 49,152 B/token of a GPU and 4,096 tokens.
    assert "223 sequences of 4,096 tokens" in out
    assert "measured kernels" in out


def test_json_is_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *BASE, "--batch", "1,64", "--context", "2048", "--cache", "fp8", "--json")
    assert status == 0
    answer = json.loads(out)
    assert answer["schema"] == 1
    d = deploy(find_model("Qwen3-30B-A3B"), find_gpu("H100"), cache_bits=8)
    ds = decode_time(d, batch=[1, 64], context=2048.0)
    for row, t in zip(answer["batches"], ds["decode_step_time"].values, strict=True):
        assert row["step_time"] == pytest.approx(float(t), rel=1e-12)
        assert row["step_time_interval"][0] < row["step_time"] < row["step_time_interval"][1]
        assert sum(row["parts"].values()) == pytest.approx(row["step_time"], rel=1e-12)
        assert row["tokens_per_second"] == pytest.approx(row["batch"] / row["step_time"])
    assert answer["efficiency"] == "kernel tables"


def test_a_config_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    status, out, _ = run(capsys, "decode", "--model", str(path), "--gpu", "L4", "--batch", "1")
    assert status == 0
    assert "1 x L4" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "Qwen3-31B", "--gpu", "H100"), "Qwen3-32B"),
        (("--model", "Qwen3-8B", "--gpu", "H101"), "H100"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--tp", "3"), "does not divide the 32 query heads"),
        (("--model", "DeepSeek-V3", "--gpu", "H100", "--tp", "8"), "GB more than 0.9"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--context", "50000"), "outside [1, 40960]"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--context", "nan"), "outside [1, 40960]"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--batch", "0"), "not a whole number"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--batch", "1.5"), "not a whole number"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--batch", "inf"), "not a whole number"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--batch", "x"), "not a list of numbers"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--engine", "vlm"), "vllm"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--cache", "fp9"), "fp8"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--precision", "int3"), "bf16"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--memory-share", "1.2"), "outside (0, 1]"),
        (("--model", "Qwen3-8B", "--gpu", "H100", "--plot", "x.bmp"), "no plot format"),
        (("--model", "nowhere/config.json", "--gpu", "H100"), "config.json"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    status, out, err = run(capsys, "decode", *arguments)
    assert status == 2
    assert out == ""
    assert said in err


def test_plot_holds_the_parts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, _ = run(capsys, *BASE, "--batch", "1,512", "--plot", str(tmp_path / "d.svg"))
    assert status == 0
    assert (tmp_path / "d.svg").stat().st_size > 1000
    ds = decode_time(deploy(find_model("Qwen3-8B"), find_gpu("H100")), batch=[1, 8, 64], context=4096.0)
    ds.attrs["concurrency_max"] = 32.0
    ax = plot_decode(ds)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]  # type: ignore[union-attr]
    assert sorted(labels) == sorted(BINDS.values())
    top = ax.collections[len(PARTS) - 1].get_paths()[0].vertices
    assert np.asarray(top)[:, 1].max() == pytest.approx(1e3 * float(ds["decode_step_time"].max()))
    assert any("holds 32" in text.get_text() for text in ax.texts)


def test_validations(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCHSIM_DATA", raising=False)
    status, out, _ = run(capsys, "validate", "serving", "--plot", str(tmp_path / "s.svg"))
    assert status == 0
    assert "aiconfigurator 0.12.0 on the same rows" in out
    assert "skipped: held-out model" in out
    assert (tmp_path / "s.svg").stat().st_size > 1000
    status, out, _ = run(capsys, "validate", "serving", "--json")
    answer = json.loads(out)
    assert {"schema", "verb", "name", "overall", "slices", "rows", "skipped"} == set(answer)
    assert (answer["schema"], answer["verb"]) == (1, "validate")
    assert {"claim", "predicted", "interval", "measured", "error", "covered", "peer"} == set(answer["rows"][0])
    assert {"n", "median_ape", "mape", "bias", "peer_median_ape", "peer_mape"} <= set(answer["overall"])
    status, out, _ = run(capsys, "validate", "kernels")
    assert status == 0
    assert "skipped: experts" in out
    status, _, err = run(capsys, "validate", "kernels", "--plot", str(tmp_path / "k.svg"))
    assert status == 2
    assert "nothing to plot" in err
    assert not (tmp_path / "k.svg").exists()


def test_plot_of_errors_holds_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCHSIM_DATA", raising=False)
    result = validate_serving()
    ax = plot_predicted_measured(result)
    first = [r for r in result["rows"] if r["claim"].startswith("held-out GPU:")]
    drawn = {str(line.get_label()): np.asarray(line.get_ydata(), dtype=np.float64) for line in ax.lines[:2]}
    np.testing.assert_allclose(drawn["batchsim"], [r["predicted"] / r["measured"] for r in first])
    assert drawn["aiconfigurator 0.12.0"].size == len(first)
