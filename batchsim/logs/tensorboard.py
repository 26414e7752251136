"""TensorBoard event files: the scalars of a run, without TensorBoard or TensorFlow.

A file is a sequence of records: length (8 bytes, little endian), a checksum of it (4), that many bytes
of an `Event` message, a checksum of them (4). An Event holds wall_time (field 1), step (2) and a
summary (5) of values (1), each with a tag (1) and either simple_value (2) or a tensor (8). Those few
fields are read here; everything else is passed over, as protocol buffers allow. Checksums are not
verified: a record that does not parse ends the reading, and so does one that is cut.

Facts that matter:

- A run is a folder: every restart of the writer begins another file in it. They are read in the order
  of their first event, and steps that come again replace what they repeat.
- Tags are the names of the framework that logged (`metrics`), the step is the framework's own.
- The Hugging Face trainer also writes its arguments, as JSON under ``args/text_summary``. They hold
  neither the number of processes nor the batch.
- Wall time is used only where no step time was logged; it includes evaluations and checkpoints.

Reference: tensorflow/core/util/event.proto and lib/io/record_writer.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from batchsim.errors import InputError
from batchsim.logs.metrics import KNOWN_METRICS, Logged, framework_of, run_of
from batchsim.logs.reader import Reader
from batchsim.logs.record import Run
from batchsim.logs.rows import LARGEST_STEP
from batchsim.logs.source import WHOLE_BYTES, Source
from batchsim.logs.trl_arguments import arguments_in

_ARGUMENTS = ("args/text_summary", "args")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SHOWN = 6
# Types of tensors that hold a scalar: their own field, and the layout of tensor_content.
_FLOAT, _DOUBLE, _INT32, _STRING, _INT64 = 1, 2, 3, 7, 9
_LAYOUTS = {_FLOAT: "<f", _DOUBLE: "<d", _INT32: "<i", _INT64: "<q"}
_FIELDS = {5: "<f", 6: "<d"}

Field = tuple[int, int, int | bytes]


@dataclass
class Events:
    """Scalars and texts of one file, in its order."""

    scalars: list[tuple[int, float, str, float]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    start: float = 0.0
    cut: bool = False


def recognises(source: Source) -> bool:
    """Whether the first event states the format, as every writer's does."""
    return "brain.Event:" in source.head[:64]


def read(sources: Sequence[Source]) -> list[Run]:
    """A run per folder.

    Raises
    ------
    InputError
        For a file that cannot be read, and scalars none of which batchsim knows.
    """
    folders: dict[str, list[Source]] = {}
    for source in sources:
        folders.setdefault(source.folder, []).append(source)
    return [_run(files) for files in folders.values()]


def _run(sources: Sequence[Source]) -> Run:
    loaded = sorted(((_load(source), source) for source in sources), key=lambda pair: pair[0].start)
    first = loaded[0][1]
    logged = Logged(clock_source="the events' wall time", warnings=[])
    if len(loaded) > 1:
        logged.warnings.append(f"{len(loaded)} event files in {first.folder} are one run, written in parts")
    for events, source in loaded:
        _add(events, source, logged)
    names = list(logged.names)
    if framework_of(names) is None:
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise InputError(
            f"this TensorBoard event file can be read, but it holds {shown or 'no scalar'} and lacks validation "
            f"scores, training reward and gradient norm under names that are {KNOWN_METRICS}",
            remedy="give the folder of a run of verl or TRL",
            where=first.path,
        )
    name = Path(first.folder).resolve().name or first.name
    return run_of(first, logged, framework="tensorboard", name=name)


def _load(source: Source) -> Events:
    if source.path == "-":
        raise InputError("an event file cannot come from standard input", remedy="name the file", where=source.path)
    try:
        source.check_size(Path(source.path).stat().st_size, WHOLE_BYTES, "the event file")
        raw = Path(source.path).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror or error})", remedy="check the path", where=source.path
        ) from error
    if raw[:2] == b"\x1f\x8b":
        raise InputError("an event file must not be packed", remedy="unpack it with gunzip", where=source.path)
    return parse_events(raw)


def _add(events: Events, source: Source, logged: Logged) -> None:
    if events.cut:
        logged.warnings.append(f"{source.path} ends within a record (cut, or still being written)")
    reached = -1
    for step, wall, tag, value in events.scalars:
        if step > reached:
            # A writer that starts below what was reached continues an earlier checkpoint.
            for later in [old for old in logged.rows if old > step] if reached < 0 else ():
                del logged.rows[later]
            logged.clock.append((step, wall - events.start))
            reached = step
        logged.rows.setdefault(step, {})[tag] = value
    for tag, text in events.texts.items():
        if tag in _ARGUMENTS:
            for line in text.splitlines():
                logged.arguments |= arguments_in(line)


def parse_events(raw: bytes) -> Events:
    """Scalars and texts of an event file, as far as it is whole."""
    events = Events()
    at, begun = 0, False
    while at < len(raw):
        stop = at + 12 + int.from_bytes(raw[at : at + 8], "little")
        if stop + 4 > len(raw):
            events.cut = True
            break
        try:
            wall = _add_event(raw[at + 12 : stop], events)
        except (ValueError, struct.error):
            events.cut = True
            break
        if not begun:
            events.start, begun = wall, True
        at = stop + 4
    return events


def _add_event(raw: bytes, events: Events) -> float:
    wall, step, summaries = 0.0, 0, list[bytes]()
    for number, kind, value in _fields(raw):
        if (number, kind) == (1, _FIXED64) and isinstance(value, bytes):
            wall = float(struct.unpack("<d", value)[0])
        elif (number, kind) == (2, _VARINT) and isinstance(value, int):
            step = value
        elif (number, kind) == (5, _BYTES) and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, kind, value in _fields(summary):
            if (number, kind) == (1, _BYTES) and isinstance(value, bytes):
                tag, content = _tagged(value)
                if isinstance(content, str):
                    events.texts[tag] = content
                elif content is not None and 0 <= step <= LARGEST_STEP:
                    events.scalars.append((step, wall, tag, content))
    return wall


def _tagged(raw: bytes) -> tuple[str, float | str | None]:
    """Tag of a summary value and its scalar or text; None for what is neither."""
    tag = ""
    content: float | str | None = None
    for number, kind, value in _fields(raw):
        if not isinstance(value, bytes):
            continue
        if (number, kind) == (1, _BYTES):
            tag = value.decode(errors="replace")
        elif (number, kind) == (2, _FIXED32):
            content = float(struct.unpack("<f", value)[0])
        elif (number, kind) == (8, _BYTES):
            content = _tensor(value)
    return tag, content


def _tensor(raw: bytes) -> float | str | None:
    """The one value of a tensor; None for several and for types that are no scalar's."""
    dtype, values, text = 0, list[float](), None
    for number, kind, value in _fields(raw):
        if isinstance(value, int):
            if number == 1:
                dtype = value
            elif number in (7, 10):
                values.append(float(_signed(value)))
        elif number == 4 and dtype in _LAYOUTS:
            values += [float(v) for (v,) in struct.iter_unpack(_LAYOUTS[dtype], value)]
        elif number in _FIELDS:
            values += [float(v) for (v,) in struct.iter_unpack(_FIELDS[number], value)]
        elif number in (7, 10) and kind == _BYTES:
            values += [float(_signed(v)) for v in _varints(value)]
        elif number == 8:
            text = value.decode(errors="replace") if text is None else text
    if dtype == _STRING:
        return text
    return values[0] if dtype in _LAYOUTS and len(values) == 1 else None


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer and where it ends."""
    result = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            break
        byte = raw[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise ValueError("a variable-length integer does not end")


def _varints(raw: bytes) -> Iterator[int]:
    at = 0
    while at < len(raw):
        value, at = _varint(raw, at)
        yield value


def _fields(raw: bytes) -> Iterator[Field]:
    """Number, wire type and value of each field of a message."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(raw, at)
            yield number, kind, value
            continue
        if kind == _BYTES:
            size, at = _varint(raw, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(raw):
            raise ValueError("a field ends beyond its message")
        yield number, kind, raw[at : at + size]
        at += size


READER = Reader(
    name="tensorboard", logs="TensorBoard event files", read=read, begins=recognises, section="actor_rollout_ref"
)
