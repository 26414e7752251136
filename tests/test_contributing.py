"""CONTRIBUTING.md's reader works as it is printed, and in as few lines as it says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from batchsim.logs import read, read_logs, registry
from batchsim.logs.account import missing

GUIDE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"


@pytest.fixture
def blocks() -> list[str]:
    if not GUIDE.exists():
        pytest.skip("the guide is not beside the tests")
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.fixture
def registered(blocks: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The printed module, registered as its one line does."""
    module = ModuleType("batchsim.logs.gizmo")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(blocks[0], "CONTRIBUTING.md", "exec"), module.__dict__)
    readers = (*registry.READERS, module.READER)
    monkeypatch.setattr(registry, "READERS", readers)
    monkeypatch.setattr(read, "READERS", readers)
    registry._dialects.cache_clear()
    yield
    registry._dialects.cache_clear()


@pytest.mark.usefixtures("registered")
def test_the_printed_reader_and_its_test(blocks: list[str], tmp_path: Path) -> None:
    found = {"read_logs": read_logs}
    exec(compile(blocks[1], "CONTRIBUTING.md", "exec"), found)
    found["test_gizmo"](tmp_path)
    (tmp_path / "bare.log").write_text("gizmo step=1 cut=2\ngizmo step=2 cut=3\n")
    ds = read_logs(tmp_path / "bare.log", allow_unknown_batch=True)["bare"].to_dataset()
    remedies = {entry.quantity: entry.remedy for entry in missing(ds)}
    assert remedies["score"] == "N*, T and r_N need one: set --validate-every"
    assert remedies["grad_norm"] == "the noise scale is a prior without it: keep gnorm"


def test_it_takes_less_than_60_lines(blocks: list[str]) -> None:
    assert len(blocks) == 2
    assert sum(len(block.splitlines()) for block in blocks) < 60
