"""Every command and every Python block of the README and the docs is read from the text and run.

A command that cannot be run as it stands is rewritten by `INSTEAD`, each with its reason; one that then fails, fails.
Lines that a page shows below `$ batchsim ...` must be lines of what the program prints.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import runpy
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import pytest

from batchsim import example_path
from batchsim.cli import main

ROOT = Path(__file__).resolve().parents[1]
COPIES = {"contributing.md", "changelog.md"}  # written by docs/conf.py from the files at the top
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in COPIES
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)

# Pattern, what stands in its place, and why.
INSTEAD = [
    (r"--target 0\.69\b", "--target 0.55", "the runs that ship with the package end near .6"),
    (r"--target 0\.6,0\.69", "--target 0.5,0.55", "the same"),
    (r"--targets 0\.5,0\.6,0\.69", "--targets 0.5,0.55", "the same"),
    (r"\bLOGS --target J\b", "runs/*.log --target 0.55", "placeholders"),
    (r"\bexplain LOG$", "explain runs/p16_seed1.log", "a placeholder"),
    (r"\bplan\.toml --stages", "docs/pipeline_plan.toml --stages", "a plan with model, GPUs and lengths in it"),
    (r"^batchsim (measure|predict|calibrate|validate|init|simulate quadratic|simulate rollout)$",
     r"batchsim \1 --help", "the name of a verb, in prose"),
    (r"^batchsim validate (serving|training)$", r"batchsim validate \1 --help",
     "half a minute and more of fits with rows left out; tests/test_serving.py and test_training.py run them"),
    (r"^batchsim validate (findings|decisions)$", r"batchsim validate \1 --worlds 1", "minutes with all its worlds"),
    (r"^batchsim validate (forecast|breaking|staleness)$", r"batchsim validate \1 --help",
     "18 to 100 s with one world of each kind; tests/test_validate_worlds.py runs smaller ones"),
]  # fmt: skip

# Blocks of Python that are not executed here, by page: how many at the end of the page, and why.
NOT_EXECUTED = {
    "recorder.md": (4, "loops of PyTorch, TRL and verl; tests/test_recorder.py tests their arithmetic"),
    "testing.md": (1, "a file of tests, which tests/test_testing.py runs by pytest"),
    "CONTRIBUTING.md": (2, "a reader, which tests/test_contributing.py installs and runs"),
}
PREAMBLE = {
    "quadratic.md": "import numpy as np\nfrom batchsim.learning.worlds import Optimizer, power_law, scaling_curve\n",
    "worlds.md": "from batchsim import measure\nfrom batchsim.learning.worlds import simulate_grpo, softmax_world\n",
    "rollout.md": "import numpy as np\nfrom batchsim.specs.gpus import find_gpu\nfrom batchsim.specs.lengths import "
    "Lengths\nfrom batchsim.specs.models import find_model\nfrom batchsim.system.rollout import draw, rollout\n"
    "from batchsim.system.roofline import decode_law, deploy\n",
}


@dataclass(frozen=True)
class Shown:
    """A command as a page shows it, and the lines below it."""

    page: str
    command: str
    output: tuple[str, ...] = ()


def commands(page: Path) -> Iterator[Shown]:
    """Commands of fenced blocks, a line each, and of inline code."""
    text = page.read_text(encoding="utf-8")
    for language, block in FENCE.findall(text):
        if language not in {"", "sh"}:
            continue
        lines = block.splitlines()
        for number, line in enumerate(lines):
            following = [] if not line.startswith("$ ") else lines[number + 1 :]
            stop = next((n for n, later in enumerate(following) if later.startswith("$ ")), len(following))
            for part in re.sub(r"\s+#.*", "", line.removeprefix("$ ")).split(" && "):
                if re.match(r"(\S*/)?(batchsim|python3?|pip) ", part):
                    yield Shown(page.name, re.sub(r"^\S*/", "", part), tuple(following[:stop]))
    for inline in re.findall(r"`((?:batchsim|python3?|pip) [^`]+)`", FENCE.sub("", text)):
        yield Shown(page.name, " ".join(inline.split()))


SHOWN = [shown for page in PAGES for shown in commands(page)]
UNIQUE = sorted({shown.command for shown in SHOWN})


def rewritten(command: str) -> str:
    """The command with every placeholder replaced."""
    for pattern, replacement, _ in INSTEAD:
        command = re.sub(pattern, replacement, command)
    return command


@pytest.fixture(scope="module")
def example_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the commands name: logs, runs of worlds, a checkpoint, the example plan."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "runs").mkdir()
    for log in sorted(example_path("verl-sweep").glob("*.log.gz")):
        (folder / "runs" / log.stem).write_bytes(gzip.decompress(log.read_bytes()))
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "pipeline_plan.toml", folder / "docs")
    (folder / "my-checkpoint").mkdir()
    config = {"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
              "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 32000,
              "max_position_embeddings": 32768, "tie_word_embeddings": True}  # fmt: skip
    (folder / "my-checkpoint" / "config.json").write_text(json.dumps(config))
    run(folder, "batchsim init plan.toml")
    for command in UNIQUE:
        if command.startswith("batchsim simulate") and " --seeds " in command and " --out " in command:
            run(folder, command)
    return folder


def run(folder: Path, command: str) -> None:
    """Run a command of batchsim in a folder; it must end with status 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "240")
        with pytest.raises(SystemExit) as stopped:
            main(command.split()[1:])
    assert not stopped.value.code, command


@pytest.fixture
def workspace(example_runs: Path, tmp_path: Path) -> Path:
    """A copy of that folder, with the shared data beside it where they are at hand."""
    folder = tmp_path / "checkout"
    shutil.copytree(example_runs, folder)
    shared = ROOT.parent / "shared"
    if shared.is_dir():
        (tmp_path / "shared").symlink_to(shared)
    return folder


@pytest.mark.parametrize("command", [c for c in UNIQUE if c.startswith("batchsim ")])
def test_a_command_of_batchsim(command: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "../shared/data" in command and not (workspace.parent / "shared").exists():
        pytest.skip("the measured data are read in place and not shipped")
    for written in re.findall(r"(?:--out|\binit) (\S+)", command):
        (workspace / written).unlink(missing_ok=True)
    run(workspace, rewritten(command))
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    for shown in SHOWN:
        # The README shows its table in the shape of a narrower terminal; tests/test_docs.py compares its numbers.
        if shown.command == command and shown.page != "README.md":
            lines = [" ".join(line.split()) for line in shown.output]
            missing = {
                line: get_close_matches(line, printed, n=1)
                for line in lines
                if line.strip("─ .") and line not in printed
            }
            assert not missing, f"{shown.page} shows what '{command}' does not print; beside it the nearest line"


@pytest.mark.parametrize("command", [c for c in UNIQUE if not c.startswith("batchsim ")])
def test_any_other_command(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts take their options, modules can be imported, extras exist. None is run: they write pages and figures."""
    words = [word.strip("\"'") for word in command.split()]
    if words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        assert words[1] == "install"
        for extra in re.findall(r"\[(\w+)\]", command):
            assert extra in extras
        return
    if words[1] == "-m" and words[2] in {"pytest", "venv", "sphinx", "pip"}:
        assert importlib.util.find_spec(words[2]) is not None
        for word in words[3:]:
            if word.startswith("tests/"):
                assert (ROOT / word).is_file(), command
                if "-k" in words:
                    assert words[words.index("-k") + 1] in (ROOT / word).read_text(encoding="utf-8")
        return
    if words[1] == "-m":
        spec = importlib.util.find_spec(words[2])
        assert spec is not None
        assert spec.origin is not None
        script, options = Path(spec.origin), words[3:]
    else:
        script, options = ROOT / words[1], words[2:]
    source = script.read_text(encoding="utf-8")
    assert '__name__ == "__main__"' in source
    assert [word for word in options if word.startswith("-") and word not in source] == []
    if "argparse" in source:
        monkeypatch.setattr(sys, "argv", [str(script), "--help"])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_path(str(script), run_name="__main__")
        assert not stopped.value.code
        assert "usage" in capsys.readouterr().out


def test_no_command_is_shown_without_being_tested() -> None:
    """Nothing hides in a form that the patterns above do not see."""
    for page in PAGES:
        text = re.sub(r"^```python\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        found = {shown.command for shown in commands(page)}
        for line in re.findall(r"^\s*\$ (.+)$", text, re.M):
            assert re.sub(r"\s+#.*", "", line).split(" && ")[0] in found, f"{page.name}: {line}"


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "```python" in p.read_text(encoding="utf-8")], ids=lambda p: p.name
)
def test_blocks_of_python(page: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page in order, in one namespace."""
    blocks = [block for language, block in FENCE.findall(page.read_text(encoding="utf-8")) if language == "python"]
    left_out, _ = NOT_EXECUTED.get(page.name, (0, ""))
    executed = blocks[: len(blocks) - left_out]
    for block in blocks[len(executed) :]:
        compile(block, page.name, "exec")
    monkeypatch.chdir(workspace)
    namespace: dict[str, object] = {}
    exec(PREAMBLE.get(page.name, ""), namespace)
    for block in executed:
        exec(compile(block.replace("target=0.69", "target=0.55"), page.name, "exec"), namespace)
