"""Tables on terminals of every width: numbers stay whole, words wrap, sentences part between words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from batchsim.cli.table import Cell, print_notes, print_rows

ROWS: list[dict[str, Cell]] = [
    {
        "batch": "1,024 *",
        "step time (s), affine law": ("0.617", "(0.591 - 0.644)"),
        "measured beside it": ("121,456", "(121,000 - 122,000)"),
        "what it would mean": "the batch nears the noise scale, or the rate its best: no setting undoes it",
        "seldom": "77",
    }
]


def printed(width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_rows(console, "a title of several words", ROWS, optional=("seldom",), wraps=("what it would mean",))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [10, 20, 40, 60, 80, 100, 120, 200])
def test_no_number_and_no_word_is_cut_at_any_width(width: int) -> None:
    said = printed(width)
    assert "…" not in said
    for part in ("1,024 *", "0.617", "(0.591 - 0.644)", "121,456", "(121,000 - 122,000)", "affine"):
        assert part in said
    words = said.split()
    for word in str(ROWS[0]["what it would mean"]).split():
        assert word in words


@pytest.mark.parametrize("width", [72, 80, 100, 120, 200])
def test_a_table_that_can_fit_fits(width: int) -> None:
    assert max(len(line.rstrip()) for line in printed(width).splitlines()) <= width


def test_optional_columns_are_there_where_there_is_room() -> None:
    assert ("77" in printed(200), "77" in printed(80)) == (True, False)


@pytest.mark.parametrize(("terminal", "lines"), [(True, 3), (False, 1)])
def test_a_sentence_is_a_line_of_a_file_and_parts_between_words_on_a_terminal(terminal: bool, lines: int) -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=terminal, color_system=None)
    sentence = "nothing measured bears on the noise scale: it is a prior, and gradient norms would tell"
    print_notes(console, [sentence])
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert said.split() == ["-", *sentence.split()]
    assert said.count("\n") == lines
