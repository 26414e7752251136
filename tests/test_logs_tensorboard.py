"""TensorBoard event files, written here record by record as the format prescribes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.logs.tensorboard import parse_events
from batchsim.variables import VARIABLES

GIVEN: dict[str, Any] = {"prompts": 4, "group_size": 2, "updates_per_rollout": 1}


def only(tree: xr.DataTree) -> xr.Dataset:
    (node,) = tree.children.values()
    return node.to_dataset()


# -- a writer -----------------------------------------------------------------------------------------


def crc32c(data: bytes) -> int:
    """Masked CRC-32C, bit by bit: the checksum of a record."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def message(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def record(event: bytes) -> bytes:
    head = struct.pack("<Q", len(event))
    return head + struct.pack("<I", crc32c(head)) + event + struct.pack("<I", crc32c(event))


def event(wall: float, step: int, *values: bytes) -> bytes:
    body = b"\x09" + struct.pack("<d", wall) + (b"\x10" + varint(step) if step else b"")
    return record(body + (message(5, b"".join(message(1, value) for value in values)) if values else b""))


def scalar(tag: str, value: float) -> bytes:
    return message(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, dtype: int, content: bytes) -> bytes:
    return message(1, tag.encode()) + message(8, b"\x08" + varint(dtype) + content)


def started(wall: float = 1000.0) -> bytes:
    return record(b"\x09" + struct.pack("<d", wall) + message(3, b"brain.Event:2"))


def write(folder: Path, parts: Iterable[bytes], name: str = "events.out.tfevents.1.host.7.0") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(b"".join(parts))
    return path


def trl_events(steps: Sequence[int], *, start: float = 1000.0) -> list[bytes]:
    parts = [started(start)]
    for step in steps:
        values = (scalar("train/reward", step / 128), scalar("train/grad_norm", 0.5), scalar("train/epoch", 0.1))
        parts.append(event(start + 10 * (step - steps[0] + 10), step, *values))
    return parts


# -- what is read -------------------------------------------------------------------------------------


def test_the_writer_makes_the_checksum_of_the_standard() -> None:
    # CRC-32C of "123456789" is E3069283 (RFC 3720); masked as TFRecord does.
    crc = 0xE3069283
    assert crc32c(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_of_every_kind() -> None:
    values = [
        scalar("simple", 0.5),
        tensor("content", 1, message(4, struct.pack("<f", 1.5))),
        tensor("double", 2, message(6, struct.pack("<d", 2.5))),
        tensor("float", 1, message(5, struct.pack("<f", 3.5))),
        tensor("int64", 9, b"\x50" + varint(-4)),
        tensor("packed", 9, message(10, varint(5))),
        tensor("vector", 1, message(4, struct.pack("<ff", 1, 2))),
        tensor("half", 19, message(13, varint(15360))),
        tensor("text", 7, message(8, "größer".encode())),
        tensor("nothing", 1, b""),
    ]
    events = parse_events(started() + event(1010.5, 7, *values) + event(1011.0, -1, scalar("negative", 1)))
    found = {tag: value for _, _, tag, value in events.scalars}
    assert found == {"simple": 0.5, "content": 1.5, "double": 2.5, "float": 3.5, "int64": -4, "packed": 5}
    assert {step for step, _, _, _ in events.scalars} == {7}
    assert {wall for _, wall, _, _ in events.scalars} == {1010.5}
    assert events.texts == {"text": "größer"}
    assert (events.start, events.cut) == (1000.0, False)


def test_trl_run(tmp_path: Path) -> None:
    parts = trl_events([10, 20, 30])
    parts += [event(1301.0, 30, scalar("eval/reward", 0.75), scalar("eval/runtime", 20.0))]
    parts += [event(1420.0, 40, scalar("train/reward", 0.5))]
    write(tmp_path / "run_a", parts)
    ds = only(read_logs(tmp_path / "run_a", **GIVEN))
    assert (ds.attrs["framework"], ds.attrs["logged_by"]) == ("tensorboard", "trl")
    assert ds.rollout_step.values.tolist() == [10, 20, 30, 40]
    assert ds.train_reward.values.tolist() == [10 / 128, 20 / 128, 30 / 128, 0.5]
    # 100 s for 10 steps; the last 120 s hold an evaluation of 20 s.
    assert ds.step_seconds.values.tolist() == [10, 10, 10, 10]
    assert ds.elapsed.values.tolist() == [100, 200, 300, 400]
    assert ds.score.values.tolist() == [[0.75]]
    assert ds.evaluation_seconds.values.tolist() == [20]
    assert ds.responses.values.tolist() == [80, 160, 240, 320]
    for name, variable in ds.variables.items():
        known = VARIABLES[str(name)]
        assert variable.attrs == {"symbol": known.symbol, "units": known.unit, "long_name": known.long_name}


def test_verl_run_with_its_own_times(tmp_path: Path) -> None:
    rows = [(1, 10.0, 0.0), (2, 30.0, 20.0)]
    parts = [started()]
    for step, seconds, saving in rows:
        values = [scalar("timing_s/step", seconds), scalar("actor/grad_norm", 0.25), scalar("actor/lr", 2.0**-20)]
        values += [scalar("timing_s/save_checkpoint", saving)] if saving else []
        # torch writes one event per scalar.
        parts += [event(1000.0 + 100 * step, step, value) for value in values]
    ds = only(read_logs(write(tmp_path / "exp", parts), **GIVEN))
    assert ds.attrs["logged_by"] == "verl"
    assert ds.step_seconds.values.tolist() == [10, 10]
    assert ds.elapsed.values.tolist() == [10, 20]
    assert ds.attrs["learning_rate"] == 2.0**-20


def test_the_count_of_tokens_of_verl(tmp_path: Path) -> None:
    values = {"actor/grad_norm": 0.5, "perf/total_num_tokens": 4800.0, "prompt_length/mean": 100.0}
    parts = [started()]
    for step in (1, 2):
        held = values | {"response_length/mean": 500.0}
        parts += [event(1000.0 + step, step, scalar(name, value)) for name, value in held.items()]
    assert only(read_logs(write(tmp_path / "exp", parts), **GIVEN)).attrs["inferred_rollout_batch"] == 8


def test_files_of_one_folder_are_one_run_and_a_restart_replaces(tmp_path: Path) -> None:
    write(tmp_path / "run", trl_events([10, 20, 30]), "events.out.tfevents.2.host.7.0")
    later = trl_events([30, 40], start=9000.0)
    later[1] = event(9100.0, 30, scalar("train/reward", 0.875))
    write(tmp_path / "run", later, "events.out.tfevents.1.host.8.0")
    ds = only(read_logs(tmp_path / "run", **GIVEN))
    assert list(read_logs(tmp_path / "run", **GIVEN).children) == ["run"]
    assert ds.rollout_step.values.tolist() == [10, 20, 30, 40]
    assert ds.train_reward.values[2:].tolist() == [0.875, 40 / 128]
    # The hours between the two files are no step time.
    assert ds.elapsed.values.tolist() == [100, 200, 300, 400]
    assert any("2 event files" in text for text in ds.attrs["warnings"])


def test_arguments_are_read_and_lack_the_number_of_processes(tmp_path: Path) -> None:
    text = '{\n "per_device_train_batch_size": 4,\n "gradient_accumulation_steps": 2,\n "num_generations": 8,\n'
    text += ' "steps_per_generation": null,\n "learning_rate": 1e-06\n}'
    arguments = event(1000.0, 0, tensor("args/text_summary", 7, message(8, text.encode())))
    path = write(tmp_path / "run", [*trl_events([10, 20]), arguments])
    with pytest.raises(InputError, match="but not the number of processes; give --prompts"):
        read_logs(path)
    ds = only(read_logs(path, prompts=2))
    assert (ds.attrs["train_batch"], ds.attrs["learning_rate"]) == (16, 1e-6)


def test_other_training_says_what_it_holds_and_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "run", [started(), event(1001.0, 1, scalar("Loss/surrogate", 0.5))])
    with pytest.raises(InputError, match=r"can be read, but it holds Loss/surrogate and lacks .*gradient norm"):
        read_logs(path, **GIVEN)
    with pytest.raises(InputError, match="no scalar"):
        read_logs(write(tmp_path / "run", [started()]), **GIVEN)


# -- damage -------------------------------------------------------------------------------------------


def test_a_cut_anywhere_gives_a_prefix_or_an_input_error(tmp_path: Path) -> None:
    raw = b"".join(trl_events([10, 20, 30]))
    whole = parse_events(raw)
    for stop in range(len(raw)):
        events = parse_events(raw[:stop])
        assert events.scalars == whole.scalars[: len(events.scalars)]
        assert events.cut == (stop not in {0, *record_ends(raw)})
    path = write(tmp_path / "run", [raw[:-3]])
    ds = only(read_logs(path, **GIVEN))
    assert ds.rollout_step.values.tolist() == [10, 20]
    assert any("ends within a record" in text for text in ds.attrs["warnings"])


def record_ends(raw: bytes) -> list[int]:
    ends, at = [], 0
    while at < len(raw):
        at += 16 + int.from_bytes(raw[at : at + 8], "little")
        ends.append(at)
    return ends


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_raises_only_input_errors(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    raw = b"".join([*trl_events([10, 20]), event(1e3, 20, tensor("x", 9, message(10, varint(5))))])
    start = data.draw(st.integers(0, len(raw)))
    stop = data.draw(st.integers(start, min(len(raw), start + 12)))
    spliced = raw[:start] + data.draw(st.binary(max_size=12)) + raw[stop : data.draw(st.integers(stop, len(raw)))]
    path = write(tmp_path_factory.mktemp("damage") / "run", [spliced])
    try:
        ds = only(read_logs(path, **data.draw(st.sampled_from([{}, GIVEN]))))
    except InputError:
        return
    assert (np.diff(ds.rollout_step) > 0).all()
