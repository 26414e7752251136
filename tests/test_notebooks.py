"""Every notebook runs from its first cell to its last, from any folder, without a warning; its own hidden cells assert
the numbers that its text states."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.md"))
NAMES = (
    "01_quick_start",
    "02_two_pilots",
    "03_criterion",
    "04_hardware",
    "05_noise_scale",
    "06_worlds",
    "07_next_run",
)
CELL = re.compile(r"^```\{code-cell\} ipython3\n((?::[^\n]*\n)*)(.*?)^```$", re.MULTILINE | re.DOTALL)


class Cell(NamedTuple):
    options: str
    code: str


def cells(path: Path) -> list[Cell]:
    return [Cell(*found) for found in CELL.findall(path.read_text(encoding="utf-8"))]


def run(path: Path) -> int:
    """Execute as a kernel does, the last expression of a cell shown too; the figures drawn are counted."""
    names: dict[str, Any] = {"__name__": "__main__"}
    figures = 0
    for number, cell in enumerate(cells(path)):
        tree = ast.parse(cell.code)
        where = f"{path.name}, cell {number}"
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
            if not cell.code.rstrip().endswith(";"):
                assert " at 0x" not in repr(value), f"{where}: what is shown differs from run to run"
        for one in plt.get_fignums():
            figure = plt.figure(one)
            figure.canvas.draw()
            named = [ax for ax in figure.axes if ax.get_xlabel() or ax.get_ylabel()]
            assert named, f"{where}: a figure whose axes say nothing"
            figures += 1
        plt.close("all")
    return figures


def test_seven_notebooks_are_listed() -> None:
    assert tuple(path.stem for path in NOTEBOOKS) == NAMES
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        title = next(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
        assert f"[{title[2:]}]({path.name})" in listed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    header = text.split("---\n")[1]
    assert "format_name: myst" in header
    assert "name: python3" in header
    assert len(cells(path)) == text.count("```{code-cell}"), "a cell that this test does not run"
    assert any(cell.code.lstrip().startswith("assert") or "\nassert " in cell.code for cell in cells(path))
    assert not re.search(r"^\s*[%!]", "".join(cell.code for cell in cells(path)), re.MULTILINE), "a magic"
    assert not re.search(r"\bfrom batchsim\.(\w+\.)*_|\bimport _|batchsim\.cli|\.\./shared", text), "not public"
    for target in re.findall(r"\]\(([^)#]+\.md)\)", text):
        assert (path.parent / target).is_file(), target


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    assert 1 <= run(path) <= 4
    assert capsys.readouterr().out
    assert not list(tmp_path.iterdir()), "a notebook leaves files behind"
