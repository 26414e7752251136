"""The script that breaks formulas: its edits still apply, its page is current, and it tells noticed from unnoticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from break_formulas import BREAKS, MARK, PAGE, ROOT, Break, broken_text, noticed, row

from batchsim.theory import DERIVATIONS, derive


@pytest.mark.parametrize("change", BREAKS, ids=lambda b: b.formula)
def test_every_edit_still_applies(change: Break) -> None:
    assert broken_text(change) != (ROOT / change.file).read_text(encoding="utf-8")
    assert all((ROOT / test).exists() for test in change.tests)


def test_every_module_that_ships_a_derived_form_is_broken() -> None:
    shipped = {entry.partition(":")[0] for name in DERIVATIONS for entry in derive(name).ships}
    # The sum over decode steps lives where rollouts are compiled.
    shipped = {"system.rollout._kernels" if module == "system.decode_law" else module for module in shipped}
    files = {change.file.removeprefix("batchsim/").removesuffix(".py").replace("/", ".") for change in BREAKS}
    assert [m for m in sorted(shipped) if not any(f == m or f.startswith(f"{m}.") for f in files)] == []


def test_an_edit_that_does_not_apply_once_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        broken_text(Break(file="batchsim/criterion.py", formula="", old="no such text", new=""))
    with pytest.raises(ValueError, match=r"\d+ times, not once"):
        broken_text(Break(file="batchsim/criterion.py", formula="", old="return", new=""))


def test_docs_page_holds_every_edit_and_no_survivor() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = page[page.index(MARK) :].splitlines()[2:]
    assert len(rows) == len(BREAKS)
    for change, written in zip(BREAKS, rows, strict=True):
        assert written.startswith(row(change, "").removesuffix("**nothing** |")), change.formula
        test = written.rpartition("| `")[2].removesuffix("` |")
        file, _, name = test.partition("::")
        assert f"def {name.rpartition('::')[2].partition('[')[0]}(" in (ROOT / "tests" / file).read_text(
            encoding="utf-8"
        )
    assert f"{len(BREAKS)} edits, {len(BREAKS)} noticed." in page


def test_a_break_is_told_from_an_edit_that_changes_nothing(tmp_path: Path) -> None:
    small = tmp_path / "batchsim"
    small.mkdir()
    for name in ("__init__.py", "criterion.py"):
        (small / name).write_bytes((ROOT / "batchsim" / name).read_bytes())
    test = [
        "import batchsim.criterion as c",
        "def test_time():",
        f"    assert c.__file__.startswith({str(tmp_path)!r})",
        "    assert c.time_to_target(responses_to_target=6, throughput=2) == 3",
    ]
    (tmp_path / "test_time.py").write_text("\n".join(test), encoding="utf-8")
    edit = {"file": "batchsim/criterion.py", "formula": "T", "tests": ("test_time.py",)}
    old = "np.asarray(responses_to_target) / np.asarray(throughput)"
    assert noticed(Break(old=old, new=old.replace("/", "*"), **edit), tmp_path) == "test_time.py::test_time"  # type: ignore[arg-type]
    assert noticed(Break(old=old, new=f"1 * {old}", **edit), tmp_path) == ""  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="did not run"):
        noticed(Break(old=old, new=f"1 * {old}", **edit | {"tests": ("test_missing.py",)}), tmp_path)  # type: ignore[arg-type]
    assert (small / "criterion.py").read_bytes() == (ROOT / "batchsim" / "criterion.py").read_bytes()


def test_it_never_writes_into_the_package() -> None:
    """Broken texts go to a copy: the working tree is as it was after an edit of it was tried."""
    before = {b.file: (ROOT / b.file).read_bytes() for b in BREAKS}
    for change in BREAKS:
        broken_text(change)
    assert {b.file: (ROOT / b.file).read_bytes() for b in BREAKS} == before
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "break_formulas.py"), "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "--only" in done.stdout
