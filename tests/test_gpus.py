"""The GPU catalogue: the shared datasheet table, arithmetic from clocks, names, and the command."""

from __future__ import annotations

import csv
import json
import math
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsim.cli import main
from batchsim.cli.gpus import cells
from batchsim.errors import InputError
from batchsim.specs.gpu import GPU
from batchsim.specs.gpus import catalogue, entries, find_entry, find_gpu, normalize_name

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = {
    "bf16_tflops": ("peak_flops", 1e12),
    "fp8_tflops": ("fp8_flops", 1e12),
    "hbm_gb": ("memory", 1e9),
    "hbm_tb_s": ("memory_bandwidth", 1e12),
    "link_gb_s": ("link_bandwidth", 1e9),
}
LEFT_OUT = {
    "Ascend-910B": "no vendor's sheet could be found, and sources differ by 10 %",
    "TPU-v5e": "no GPU: its links form a torus, for which a bandwidth within the node means something else",
    "TPU-v5p": "as TPU-v5e",
}
DISAGREE = {
    ("B300-SXM", "hbm_gb"): (270, "270 in the datasheet; 268 is 288 GB in GiB"),
    ("B300-SXM", "hbm_tb_s"): (7.7, "7.7 in the vendor's datasheet"),
    ("RTX-PRO-6000", "bf16_tflops"): (480, "four times the fp32 rate that the Server Edition's sheet prints"),
    ("RTX-PRO-6000", "fp8_tflops"): (960, "as bf16"),
    ("RTX-PRO-6000", "hbm_tb_s"): (1.597, "1.792 is the Workstation Edition's memory"),
    ("MI355X", "link_gb_s"): (537.6, "half of the 1,075 GB/s that the vendor's platform page prints"),
}
"""Where the shared table and the catalogue differ: the catalogue's value, and why."""

UNITS = {
    "A100-40-SXM": (108, 2048, 1.410),
    "A100-80-PCIe": (108, 2048, 1.410),
    "A30": (56, 2048, 1.440),
    "A40": (84, 1024, 1.740),
    "A10": (72, 1024, 1.695),
    "RTX-A6000": (84, 1024, 1.800),
    "RTX-3090": (82, 512, 1.695),
    "H100-SXM": (132, 4096, 1.830),
    "H100-PCIe": (114, 4096, 1.620),
    "H100-NVL": (132, 4096, 1.545),
    "H200-SXM": (132, 4096, 1.830),
    "H200-NVL": (132, 4096, 1.545),
    "L40S": (142, 1024, 2.490),
    "L40": (142, 512, 2.490),
    "L4": (58, 1024, 2.040),
    "RTX-6000-Ada": (142, 1024, 2.505),
    "RTX-4090": (128, 512, 2.520),
    "RTX-5090": (170, 512, 2.407),
    "RTX-PRO-6000-Workstation": (188, 1024, 2.617),
    "MI300X": (304, 2048, 2.100),
    "MI325X": (304, 2048, 2.100),
    "MI350X": (256, 4096, 2.200),
    "MI355X": (256, 4096, 2.400),
}
"""Multiprocessors, dense bf16 FLOP per clock in each, and GHz: a sparse figure would be off by two."""

FP8_OVER_BF16 = {"L40S": 733 / 362}
"""Twice in all others; this sheet rounds both numbers."""
FP4_OVER_FP8 = {"B300-SXM": 3.0, "GB300": 3.0, "RTX-5090": 4.0}
"""Blackwell Ultra widens fp4; GeForce halves what accumulates in fp32, which fp4 does not pay."""


def table(shared: Path) -> dict[str, dict[str, str]]:
    with (shared / "gpu_datasheets.csv").open(encoding="utf-8") as file:
        return {row["gpu"]: row for row in csv.DictReader(line for line in file if not line.startswith("#"))}


def test_every_row_of_the_shared_table_is_met_or_the_difference_has_a_reason(shared: Path) -> None:
    rows = table(shared)
    assert set(LEFT_OUT) <= set(rows)
    used = set()
    for name, row in rows.items():
        if name in LEFT_OUT:
            with pytest.raises(InputError):
                find_gpu(name)
            continue
        gpu = find_gpu(name)
        for column, (field, unit) in COLUMNS.items():
            value = getattr(gpu, field)
            if not row[column]:
                assert value is None
                continue
            expected = float(row[column])
            if (name, column) in DISAGREE:
                used.add((name, column))
                assert not math.isclose(expected, DISAGREE[name, column][0], rel_tol=1e-3)
                expected = DISAGREE[name, column][0]
            # The table rounds 165.2 to 165.
            assert value == pytest.approx(expected * unit, rel=2e-3), (name, column)
    assert used == set(DISAGREE)


def test_systems_of_the_serving_measurements_are_known(shared: Path) -> None:
    with (shared / "decode" / "serving_ttft_tpot.csv").open(encoding="utf-8") as file:
        systems = {row["system"] for row in csv.DictReader(file)}
    assert systems
    for system in systems | {"a100_sxm", "l40s", "rtx_pro_6000_server", "b300_sxm", "gb300"}:
        assert find_gpu(system).memory_bandwidth


def test_numbers_are_within_bounds_and_in_bytes() -> None:
    gpus = catalogue()
    assert len(gpus) >= 24
    for name, gpu in gpus.items():
        assert gpu.name == name
        assert gpu.memory is not None
        assert 8e9 <= gpu.memory <= 400e9
        assert gpu.memory_bandwidth is not None
        assert 0.1e12 <= gpu.memory_bandwidth <= 10e12
        assert gpu.peak_flops is not None
        assert 50e12 <= gpu.peak_flops <= 3e15
        assert gpu.link_bandwidth is not None
        assert 16e9 <= gpu.link_bandwidth <= 1e12
        assert gpu.node_size in (None, 2, 4, 8, 72)
        assert gpu.ridge is not None
        assert 30 < gpu.ridge < 500
        assert gpu.count is gpu.price is None


@pytest.mark.parametrize("name", UNITS)
def test_peak_is_units_times_rate_times_clock(name: str) -> None:
    multiprocessors, rate, clock = UNITS[name]
    assert catalogue()[name].peak_flops == pytest.approx(multiprocessors * rate * clock * 1e9, rel=5e-3)


def test_narrower_formats_are_faster_by_whole_factors() -> None:
    for name, gpu in catalogue().items():
        if gpu.fp8_flops is not None and gpu.peak_flops is not None:
            assert gpu.fp8_flops / gpu.peak_flops == pytest.approx(FP8_OVER_BF16.get(name, 2.0), rel=1e-3)
        if gpu.fp4_flops is not None and gpu.fp8_flops is not None:
            assert gpu.fp4_flops / gpu.fp8_flops == pytest.approx(FP4_OVER_FP8.get(name, 2.0), rel=1e-3)
    assert all(gpu.fp8_flops is None for name, gpu in catalogue().items() if name.startswith(("A100", "A30", "A40")))
    assert all(gpu.fp4_flops is None for name, gpu in catalogue().items() if name.startswith(("H", "L")))


def test_a_sheets_sparse_figure_is_named_and_not_taken() -> None:
    assert find_gpu("H100").peak_flops == 989.5e12
    assert "1,979" in find_entry("H100").note
    assert "450" not in find_entry("H100").source


def test_every_row_has_a_source_and_says_what_was_not_verified() -> None:
    for name, entry in entries().items():
        assert re.search(r"https://|arXiv:", entry.source), name
        if "no sheet" in entry.source:
            assert "Not verified" in entry.note
    assert len({entry.source for entry in entries().values()}) > 15


def test_names_are_unique_whatever_their_case_and_separators() -> None:
    names = [n for name, e in entries().items() for n in (name, *e.aliases, *e.default_for)]
    assert len({normalize_name(n) for n in names}) == len(names)


@given(st.sampled_from(sorted(catalogue())), st.sampled_from(["-", "_", " ", "", "  "]), st.data())
def test_case_separators_and_maker_do_not_matter(name: str, separator: str, data: st.DataObject) -> None:
    letters = "".join(c.upper() if data.draw(st.booleans()) else c.lower() for c in name)
    maker = data.draw(st.sampled_from(["", "NVIDIA ", "AMD Instinct ", "nvidia_", "NVIDIA GeForce "]))
    assert find_gpu(maker + letters.replace("-", separator)).name == name


@given(st.text(max_size=30))
def test_any_text_is_found_or_refused(text: str) -> None:
    assert normalize_name(normalize_name(text)) == normalize_name(text)
    with suppress(InputError):
        assert find_gpu(text).name in catalogue()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("h100_sxm", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40-SXM"),
        ("NVIDIA A100 80GB PCIe", "A100-80-PCIe"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000-Workstation"),
        ("NVIDIA B300 SXM6 AC", "B300-SXM"),
        ("NVIDIA H20-3e", "H20-141"),
        ("AMD Instinct MI300X", "MI300X"),
        ("gb200", "GB200"),
    ],
)
def test_names_of_drivers_and_of_data(written: str, meant: str) -> None:
    assert find_gpu(written).name == meant
    assert find_entry(written).candidates(written) == []


@pytest.mark.parametrize(
    ("written", "meant", "others"),
    [
        ("A100", "A100-80-SXM", ["A100-40-SXM", "A100-40-PCIe", "A100-80-PCIe"]),
        ("a100_80gb", "A100-80-SXM", ["A100-80-PCIe"]),
        ("A100 SXM4", "A100-80-SXM", ["A100-40-SXM"]),
        ("A100-PCIe", "A100-80-PCIe", ["A100-40-PCIe"]),
        ("H100", "H100-SXM", ["H100-PCIe", "H100-NVL"]),
        ("NVIDIA H200", "H200-SXM", ["H200-NVL"]),
        ("H20", "H20-96", ["H20-141"]),
        ("RTX PRO 6000", "RTX-PRO-6000-Server", ["RTX-PRO-6000-Workstation"]),
    ],
)
def test_an_ambiguous_name_has_a_default_and_shows_the_others(written: str, meant: str, others: list[str]) -> None:
    entry = find_entry(written)
    assert entry.gpu.name == meant
    assert entry.candidates(written) == others


@pytest.mark.parametrize(("written", "near"), [("H10O", "H100"), ("rtx_5080", "RTX-5090"), ("mi300", "MI300X")])
def test_an_unknown_name_is_refused_with_the_nearest(written: str, near: str) -> None:
    with pytest.raises(InputError) as raised:
        find_gpu(written)
    assert near in raised.value.remedy
    assert written in str(raised.value)
    for words in ("memory, memory_bandwidth and peak_flops", "[gpu]", "batchsim gpus"):
        assert words in raised.value.remedy


def test_a_gb_for_byte_slip_is_refused() -> None:
    with pytest.raises(ValueError, match="link_bandwidth"):
        GPU(link_bandwidth=450)
    assert GPU(link_bandwidth="450 GB/s").link_bandwidth == 450e9  # type: ignore[arg-type]
    assert GPU().ridge is None


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["gpus", *arguments])
    assert not stopped.value.code
    return capsys.readouterr().out


def test_the_list_has_every_gpu_and_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys)
    for name in catalogue():
        assert len(re.findall(rf"^\s*{name} ", out, re.M)) == 1
    assert re.search(r"H100-SXM +80 +3\.35 +989\.5 +1979 +- +450 +8 +295", out)


def test_one_gpu_is_shown_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "a100")
    assert "'a100' is taken for A100-80-SXM; it could also be A100-40-SXM" in out
    assert f"source: {find_entry('a100').source}" in out
    assert find_entry("a100").note in out


def test_json_is_in_si_units(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(printed(capsys, "--json"))
    assert answer["schema"] == 1
    assert [row["name"] for row in answer["gpus"]] == list(catalogue())
    one = json.loads(printed(capsys, "h200", "--json"))
    assert one["candidates"] == ["H200-NVL"]
    (row,) = one["gpus"]
    assert row["memory"] == 141_000_000_000
    assert row["link_bandwidth"] == 450_000_000_000
    assert row["fp4_flops"] is None
    assert row["source"]


def test_an_unknown_gpu_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["gpus", "H10O"])
    assert stopped.value.code == 2
    assert "did you mean 'H100'?" in capsys.readouterr().err


def test_the_page_on_hardware_holds_the_catalogue() -> None:
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    rows = [cells(gpu) for gpu in catalogue().values()]
    assert lines == [
        f"| {' | '.join(texts)} |" for texts in [list(rows[0]), *([str(c) for c in r.values()] for r in rows)]
    ]
    assert len(page.splitlines()) <= 80
