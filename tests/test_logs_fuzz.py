"""Hostile logs: arbitrary bytes, splices, cuts, repeats and odd numbers, for every reader.

Three promises. Nothing but `InputError` leaves a reader, and it ends. Every number that a parser hands out is
written in the log, and not in its unended last line. A number of step s of a log is found at step s, whatever
lines were cut out or joined.

`BATCHSIM_EXAMPLES` sets the number of examples per property (25).
"""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from log_texts import BLOCKS, ENDINGS, FORMATS, LINES, PARTS, decoded, merged, options

from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.logs.dialect import Collector, Entry
from batchsim.logs.registry import READERS

EXAMPLES = int(os.environ.get("BATCHSIM_EXAMPLES", "25"))
ALL = {**FORMATS, "merged": merged}
SECONDS = 20.0
CODED = ("grad_norm", "train_reward", "response_length", "truncated_share")
JUNK = [
    b"",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff\xfe",
    b"\x1b[36m",
    b"{",
    b"}",
    b"'",
    b'"',
    b"[" * 200,
    b"{'" * 100,
    b'{"a":' * 200,
    b"1e999",
    b"-1e999",
    b"nan",
    b"9" * 400,
    b"-0.0",
    b"1e-400",
    b"0x10",
    b"1_000",
    b"\xe2\x94\x82" * 50,
    b"\xe2\x80\xa2 a: 1",
    b"Step 3: \n{'a': '1.0'}",
    b"step:7 - a:1 - ",
    b" - perf 3: {'perf/step_time': 1.0}",
]
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def attempt(path: Path, **given_options: Any) -> dict[str, xr.Dataset]:
    """Runs of a log, none where it is refused; anything but a refusal is a failure, and so is a long wait."""
    begun = time.perf_counter()
    tree, refusal = None, ""
    try:
        tree = read_logs(path, allow_unknown_batch=True, **given_options)
    except InputError as error:
        refusal = str(error)
    assert time.perf_counter() - begun < SECONDS
    if tree is None:
        assert 0 < len(refusal) < 20_000
        return {}
    return {name: node.to_dataset() for name, node in tree.children.items()}


def check_shape(runs: dict[str, xr.Dataset]) -> None:
    for ds in runs.values():
        assert (np.diff(ds["rollout_step"].values) > 0).all()
        assert not any(np.isinf(values.values).any() for values in ds.data_vars.values() if values.dtype.kind == "f")
        json.dumps({key: value for key, value in ds.attrs.items() if key != "provenance"}, default=float)


# -- nothing but InputError ---------------------------------------------------------------------------


@fuzz
@given(raw=st.binary(max_size=3000), ending=st.sampled_from([".log", ".csv", ".json", ".jsonl", ".gz"]))
def test_arbitrary_bytes(folder: Path, raw: bytes, ending: str) -> None:
    path = folder / f"bytes{ending}"
    path.write_bytes(raw)
    check_shape(attempt(path))


@fuzz
@given(text=st.text(max_size=2000), name=st.sampled_from(sorted(ALL)), at=st.floats(0, 1))
def test_arbitrary_text_inside_a_log(folder: Path, text: str, name: str, at: float) -> None:
    log = ALL[name](range(1, 5), 1)
    cut = int(at * len(log))
    path = folder / f"text{ENDINGS.get(name, '.log')}"
    path.write_text(log[:cut] + text + log[cut:], encoding="utf-8", errors="replace")
    check_shape(attempt(path))


@fuzz
@given(data=st.data())
def test_damage(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(ALL)))
    raw = ALL[name](range(1, 5), 1).encode()
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(raw)))
        stop = data.draw(st.integers(start, min(len(raw), start + 300)))
        raw = raw[:start] + data.draw(st.sampled_from(JUNK)) + raw[stop:]
    path = folder / f"damage{ENDINGS.get(name, '.log')}"
    path.write_bytes(gzip.compress(raw) if data.draw(st.booleans()) else raw)
    given_options = data.draw(st.sampled_from([{}, options(name)]))
    check_shape(attempt(path, **given_options))


ODD = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(
        ["-0", "1e308", "1e-320", "1E+05", ".5", "5.", "+1", "inf", "-inf", "nan", "NaN", "1e", "--1", "١"]
    ),
)


@fuzz
@given(name=st.sampled_from(sorted(ALL)), data=st.data())
def test_numbers_at_the_edges(folder: Path, name: str, data: st.DataObject) -> None:
    text = ALL[name](range(1, 4), 1)
    for match in reversed(data.draw(st.lists(st.sampled_from(list(re.finditer(r"1\.\d{4}(?!\d)", text))), max_size=4))):
        text = text[: match.start()] + data.draw(ODD) + text[match.end() :]
    path = folder / f"odd{ENDINGS.get(name, '.log')}"
    path.write_text(text)
    check_shape(attempt(path, **options(name)))


@fuzz
@given(name=st.sampled_from(sorted(ALL)), data=st.data())
def test_steps_at_the_edges(folder: Path, name: str, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 10**9, 10**9 + 1, 10**18, 10**40]), max_size=5))
    path = folder / f"steps{ENDINGS.get(name, '.log')}"
    path.write_text(ALL[name](range(1, 6), 1))
    text = path.read_text()
    for number, step in enumerate(steps, start=1):
        text = re.sub(rf"(?<![\d.]){number}(?![\d.])", str(step), text)
    path.write_text(text)
    check_shape(attempt(path, **options(name)))


# -- every number is written in the log ---------------------------------------------------------------


def numbers_in(text: str) -> set[float]:
    """Every number that a part of the text spells."""
    found = re.findall(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", text)
    return {float(number) for number in found} | {0.0, 1.0}


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """What the parsers hand to the collector."""
    found: list[Entry] = []
    add = Collector.add

    def recorded(self: Collector, entry: Entry) -> None:
        found.append(entry)
        add(self, entry)

    monkeypatch.setattr(Collector, "add", recorded)
    return found


# Made of numbers of the log, and none of them itself.
DERIVED = ("evaluation completed in", "step lines of the rollout")


@fuzz
@given(name=st.sampled_from([n for n in FORMATS if n not in ("verl", "verl_file", "trl", "mlperf")]), data=st.data())
def test_values_are_literal_and_the_unended_line_is_not_used(
    folder: Path, entries: list[Entry], name: str, data: st.DataObject
) -> None:
    raw = ALL[name](range(1, 5), 1)
    cut = data.draw(st.integers(0, len(raw)))
    path = folder / f"literal{ENDINGS.get(name, '.log')}"
    path.write_text(raw[:cut])
    entries.clear()
    runs = attempt(path, **options(name))
    written = numbers_in(raw[: raw[:cut].rfind("\n") + 1])
    for entry in entries:
        values = {value for metric, value in entry.values.items() if metric not in DERIVED}
        assert {value for value in values if not np.isnan(value)} <= written
    for ds in runs.values():
        for column in CODED:
            if column in ds:
                assert set(ds[column].values[np.isfinite(ds[column].values)]) <= written


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"wandb_history"}))
def test_every_cut_gives_a_beginning_of_the_run(folder: Path, name: str) -> None:
    """Cut at any line, a log is the same log with fewer steps; only TRL's bars and blocks may end one step earlier."""
    text = FORMATS[name](range(1, 6), 1)
    path = folder / f"cut{ENDINGS.get(name, '.log')}"
    path.write_text(text)
    (whole,) = attempt(path, **options(name)).values()
    lines = text.splitlines(keepends=True)
    for stop in range(1, len(lines)):
        path.write_text("".join(lines[:stop]) + lines[stop][: len(lines[stop]) // 2].rstrip("\n"))
        for ds in attempt(path, **options(name)).values():
            rows = ds.sizes["rollout_step"]
            assert ds["rollout_step"].values.tolist() == whole["rollout_step"].values[:rows].tolist()
            for column in CODED:
                if column in ds:
                    known = np.isfinite(ds[column].values)
                    assert (ds[column].values == whole[column].values[:rows])[known].all()


# -- a number stays with its step ---------------------------------------------------------------------


def check_places(runs: dict[str, xr.Dataset], *, one_log_per_row: bool) -> None:
    """Every coded number stands at its step, and a row's numbers come from one log."""
    for ds in runs.values():
        logs: dict[int, set[int]] = {}
        for column in CODED:
            if column not in ds:
                continue
            for step, value in zip(ds["rollout_step"].values.tolist(), ds[column].values.tolist(), strict=True):
                if np.isfinite(value) and value >= 1:
                    tag, at, _ = decoded(value)
                    assert at == step, (column, step, value)
                    logs.setdefault(step, set()).add(tag)
        if one_log_per_row:
            assert all(len(tags) == 1 for tags in logs.values()), logs


def spliced(make: Callable[[Iterable[int], int], str], data: st.DataObject, *, inside_last: bool) -> str:
    """The first lines of one log and the last ones of another."""
    first = data.draw(st.integers(1, 4))
    one = make(range(1, data.draw(st.integers(3, 8))), 1).splitlines(keepends=True)
    steps = range(first, first + data.draw(st.integers(2, 6)))
    # Log 3, so that a mean of numbers from both logs still tells its step.
    other = make(steps, 3).splitlines(keepends=True)
    last = len(make(steps[:-1], 3).splitlines())
    return "".join(
        one[: data.draw(st.integers(0, len(one)))]
        + other[data.draw(st.integers(0, len(other) if inside_last else last)) :]
    )


@fuzz
@given(name=st.sampled_from(sorted({**LINES, **PARTS})), data=st.data())
def test_splices(folder: Path, name: str, data: st.DataObject) -> None:
    path = folder / f"splice{ENDINGS.get(name, '.log')}"
    path.write_text(spliced(FORMATS[name], data, inside_last=True))
    check_places(attempt(path, **options(name)), one_log_per_row=name in LINES)


@fuzz
@given(name=st.sampled_from(sorted(BLOCKS)), data=st.data())
def test_splices_of_blocks(folder: Path, name: str, data: st.DataObject) -> None:
    """Nothing follows the last block that could tell whose it is: splices begin before it.

    TRL prints no number at all; its rows are told apart by their epochs, where three of them agree.
    """
    path = folder / "splice.log"
    text = spliced(BLOCKS[name], data, inside_last=False)
    assume(name != "trl" or text.count("'epoch'") > 2)
    path.write_text(text)
    check_places(attempt(path, **options(name)), one_log_per_row=False)


@fuzz
@given(name=st.sampled_from(sorted(FORMATS)), data=st.data())
def test_repeated_and_reordered_lines(folder: Path, name: str, data: st.DataObject) -> None:
    lines = FORMATS[name](range(1, 6), 1).splitlines(keepends=True)
    head = 1 if name in ("table", "wandb_history") else 0
    # Lines of a block have no number of their own, and an update has none of its rollout: whole steps move.
    steps = [FORMATS[name]([step], 1) for step in range(1, 6)]
    parts = steps if name in BLOCKS or name == "slime" else lines[head:]
    order = data.draw(st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=2 * len(parts)))
    path = folder / f"order{ENDINGS.get(name, '.log')}"
    path.write_text("".join(lines[:head] + [parts[place] for place in order]))
    check_places(attempt(path, **options(name)), one_log_per_row=True)


@fuzz
@given(one=st.sampled_from(sorted(FORMATS)), other=st.sampled_from(sorted(FORMATS)), data=st.data())
def test_splices_of_two_frameworks(folder: Path, one: str, other: str, data: st.DataObject) -> None:
    first, second = (FORMATS[name](range(1, 5), tag).splitlines(keepends=True) for name, tag in ((one, 1), (other, 2)))
    cut, begin = data.draw(st.integers(0, len(first))), data.draw(st.integers(0, len(second)))
    path = folder / "two.log"
    path.write_text("".join(first[:cut] + second[begin:]))
    check_shape(attempt(path))


def test_every_reader_is_fuzzed(folder: Path) -> None:
    """A new reader must come with a log of its own here."""
    found = set()
    for name, make in ALL.items():
        path = folder / f"whole-{name}{ENDINGS.get(name, '.log')}"
        path.write_text(make(range(1, 5), 1))
        found.add(read_logs(path, **options(name)).attrs["framework"])
    # TensorBoard's event files are binary and fuzzed in test_logs_tensorboard.
    assert found == {reader.name for reader in READERS} - {"tensorboard"} | {"tables"}


# -- found by the tests above -------------------------------------------------------------------------


def only(path: Path, **given_options: Any) -> xr.Dataset:
    (ds,) = attempt(path, **given_options).values()
    return ds


def written(folder: Path, text: str) -> Path:
    path = folder / "found.log"
    path.write_text(text)
    return path


def test_a_row_of_trl_before_the_first_bar_is_no_step_0(folder: Path) -> None:
    """It was placed at step 0, in front of the run."""
    lines = FORMATS["trl"](range(1, 5), 1).splitlines(keepends=True)
    ds = only(written(folder, "".join(lines[1:])), **options("trl"))
    assert ds["rollout_step"].values.tolist() == [2, 3, 4]
    assert any("1 rows do not belong to the step" in text for text in ds.attrs["warnings"])


def test_two_rows_of_trl_under_one_bar_are_not_one_step(folder: Path) -> None:
    """The second replaced the first, whose step it is not."""
    lines = FORMATS["trl"](range(1, 7), 1).splitlines(keepends=True)
    ds = only(written(folder, "".join(lines[:6] + lines[7:])), **options("trl"))
    assert ds["rollout_step"].values.tolist() == [1, 2, 3, 5, 6]
    assert decoded(float(ds["grad_norm"].values[2]))[1] == 3


def test_a_row_of_trl_whose_epoch_is_that_of_another_step(folder: Path) -> None:
    """Bar and row came from two logs, cut between them."""
    one, other = (FORMATS["trl"](steps, tag).splitlines(keepends=True) for steps, tag in ((range(1, 5), 1), ([9], 2)))
    ds = only(written(folder, "".join(one[:7] + other[1:])), **options("trl"))
    assert ds["rollout_step"].values.tolist() == [1, 2, 3]


def test_a_table_of_areal_without_its_announcement_is_not_the_open_steps(folder: Path) -> None:
    """It was averaged with the table of the step before it."""
    one = FORMATS["areal"]([1], 1).splitlines(keepends=True)
    other = FORMATS["areal"]([1, 2], 2).splitlines(keepends=True)
    ds = only(written(folder, "".join(one + other[3:])), **options("areal"))
    assert ds["grad_norm"].values.tolist() == [1.01, 2.02]


def test_updates_of_slime_that_fit_another_number_of_updates(folder: Path) -> None:
    """Update 2 of rollout 1 passed for the only update of rollout 2."""
    text = FORMATS["slime"](range(1, 5), 1)
    lines = [line for line in text.splitlines(keepends=True) if not re.search(r" - step (?:3|4|5): ", line)]
    ds = only(written(folder, "".join(lines)), **options("slime"))
    assert np.isfinite(ds["grad_norm"].values).tolist() == [False, False, True, True]


def test_a_score_of_mlperf_goes_to_the_evaluation_that_it_names(folder: Path) -> None:
    """It went to the evaluation that began last, of another log."""
    lines = FORMATS["mlperf"](range(1, 4), 1).splitlines(keepends=True)
    begun = [place for place, line in enumerate(lines) if "eval_start" in line]
    ds = only(written(folder, "".join(lines[: begun[0] + 1] + lines[begun[1] + 1 :])))
    assert ds["evaluation_responses"].values.tolist() == [48]
    assert any("1 evaluations have no score" in text for text in ds.attrs["warnings"])


def test_times_that_add_up_beyond_the_largest_number_are_unknown(folder: Path) -> None:
    """The elapsed time was infinite."""
    text = FORMATS["prime_rl_console"](range(1, 5), 1).replace("1.0300s", "1e308s").replace("1.0400s", "1e308s")
    ds = only(written(folder, text), **options("prime_rl_console"))
    assert np.isnan(ds["elapsed"].values).tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    "torn", ["'reward': 0.3", "'reward': 0.3, 'kl': [1, 2", "'reward': 0.3, 'kl': 0.1 (Actor pid=3) {'a': 1}"]
)
def test_a_dictionary_that_does_not_close_is_not_used(folder: Path, torn: str) -> None:
    log = FORMATS["openrlhf"](range(1, 3), 1)
    ds = only(written(folder, f"{log}INFO ✨ Global step 3: {{{torn}\n"), **options("openrlhf"))
    assert ds["rollout_step"].values.tolist() == [1, 2]


@pytest.mark.parametrize("text", ["step:3 - a:{0}x", "Global step 3: {{'a': {0}x}}"])
def test_a_million_digits_take_no_time(folder: Path, text: str) -> None:
    """A number could be matched in as many ways as it has digits: hours for a line of verl."""
    log = FORMATS["verl" if text.startswith("step") else "openrlhf"](range(1, 3), 1)
    path = written(folder, log + text.format("9" * 1_000_000) + "\n")
    assert attempt(path, **options("openrlhf"))
