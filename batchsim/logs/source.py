"""Opening what a user names: files, folders, globs, gzip and standard input.

A log is read whole, as text, before any reader looks at it:

- `.gz` is recognised by its first bytes, not its name; a gzip that ends early gives what it held.
- Bytes that are not UTF-8 become U+FFFD, NULs (left by a crashed file system) are dropped, and
  UTF-16 with a byte-order mark (a redirected Windows console) is decoded. A file that is mostly
  control bytes is binary and refused.
- The last line counts only if it ends: a log that is still being written, or was cut, may hold half
  a number there, and half a number still parses. Readers get it apart, as `tail`.
- A file that the user named must be a log. A folder may hold anything: what cannot be read there is
  passed over with a warning. Folders are not searched recursively, because checkpoints of one run
  repeat its log; a glob such as ``'runs/*/trainer_state.json'`` says what is meant.
- One file named twice is read once: counted twice it would pass for a second seed.
"""

from __future__ import annotations

import glob
import gzip
import io
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from batchsim.errors import InputError, nearest

MAX_BYTES = 2**30
MAX_FILES = 10_000
_HEAD = 65_536
_TEXT_CONTROLS = frozenset(b"\t\n\r\f\b\x1b")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One opened log: its complete lines, and the rest behind the last line break."""

    path: str
    name: str
    folder: str
    lines: list[str]
    tail: str
    explicit: bool
    warnings: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole text, the unended line included."""
        return "\n".join([*self.lines, self.tail])

    def where(self, line: int) -> str:
        """``path:line``, counting from 1."""
        return f"{self.path}:{line}"

    def tail_warnings(self) -> list[str]:
        """What a reader that goes by lines has to say about the unended one."""
        if not self.tail.strip():
            return list(self.warnings)
        number = len(self.lines) + 1
        return [*self.warnings, f"line {number} has no end (cut, or still being written) and was not used"]


def open_sources(paths: str | Path | Iterable[str | Path]) -> tuple[list[Source], list[str]]:
    """Open every log that `paths` names.

    Parameters
    ----------
    paths : str, pathlib.Path or iterable of them
        Files, folders, glob patterns, or ``-`` for standard input.

    Returns
    -------
    sources, warnings : list of Source, list of str
        In the order named, a folder's files sorted; what was passed over in a folder.

    Raises
    ------
    InputError
        For a path that does not exist or cannot be read, a glob without a match, and a named file
        that is empty or binary.
    """
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not listed:
        raise InputError("no log was given", remedy="name a file, a folder, a glob or - for standard input")
    found = [pair for path in listed for pair in _expand(str(path))]
    if len(found) > MAX_FILES:
        raise InputError(f"{len(found)} files are more than {MAX_FILES}", remedy="name fewer logs")
    sources: list[Source] = []
    warnings: list[str] = []
    seen: set[str] = set()
    for path, explicit in found:
        identity = path if path == "-" else str(Path(path).resolve())
        if identity in seen:
            warnings.append(f"{path} was named twice and read once")
            continue
        seen.add(identity)
        try:
            sources.append(_open(path, explicit=explicit))
        except InputError as error:
            if explicit:
                raise
            warnings.append(f"passed over {error.where}: {error.message}")
    return sources, warnings


def _expand(path: str) -> list[tuple[str, bool]]:
    """Files behind one argument, each with whether the user named it."""
    if path == "-":
        return [(path, True)]
    try:
        here = Path(path)
        if here.is_dir():
            inside = [str(p) for p in sorted(here.iterdir()) if p.is_file() and not p.name.startswith(".")]
            if not inside:
                raise InputError("the folder holds no files", remedy="name a folder with logs", where=path)
            return [(name, False) for name in inside]
        if here.exists():
            return [(path, True)]
        matches = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else []
        files = [(name, True) for name in matches if not Path(name).is_dir()]
        if files:
            return files
        if glob.has_magic(path):
            raise InputError("no file matches this pattern", remedy="check the folder and the pattern", where=path)
        raise InputError("no such file or folder", remedy=_neighbours(here), where=path)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be opened ({error})", remedy="check the path", where=path) from error


def _neighbours(path: Path) -> str:
    """Remedy for a missing file: the nearest name in its folder, if there is one."""
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist either"
    close = nearest(path.name, [p.name for p in path.parent.iterdir()])
    return close if close.startswith("did") else "check the path"


def _open(path: str, *, explicit: bool) -> Source:
    raw = _read(path)
    warnings: list[str] = []
    if raw[:2] == b"\x1f\x8b":
        raw = _gunzip(raw, path, warnings)
    if not raw.strip():
        raise InputError("the file is empty", remedy="wait until the run has logged a step", where=path)
    text = _decode(raw, path)
    *lines, tail = text.split("\n")
    name = "stdin" if path == "-" else Path(path.removesuffix(".gz")).stem
    if name == "trainer_state":
        # Every TRL run writes a file of this name; its folder is what tells runs apart.
        name = Path(path).resolve().parent.name or name
    return Source(
        path=path,
        name=name,
        folder=str(Path(path).parent),
        lines=[line.removesuffix("\r") for line in lines],
        tail=tail,
        explicit=explicit,
        warnings=tuple(warnings),
    )


def _read(path: str) -> bytes:
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as file:
                raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be read ({reason})", remedy="check the path", where=path) from error
    _check_size(len(raw), path)
    return raw


def _check_size(size: int, path: str) -> None:
    if size > MAX_BYTES:
        raise InputError(
            f"the log is larger than {MAX_BYTES // 2**20} MiB",
            remedy="keep only the lines with metrics and configuration, for instance with grep",
            where=path,
        )


def _gunzip(raw: bytes, path: str, warnings: list[str]) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            # read1 hands over what it has; read would lose a block that the end of the file cuts.
            while part := file.read1(2**16):
                parts.append(part)
                size += len(part)
                _check_size(size, path)
    except (EOFError, OSError, zlib.error) as error:
        if not parts:
            raise InputError("the gzip data is damaged", remedy="copy the file again", where=path) from error
        warnings.append("the gzip data ends early or is damaged; what precedes was used")
    return b"".join(parts)


def _decode(raw: bytes, path: str) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", errors="replace")
    head = raw[:_HEAD]
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
    undecodable = head.decode("utf-8", errors="replace").count("\ufffd")
    if controls + undecodable > 0.1 * len(head):
        raise InputError(
            "the file is binary, not a text log",
            remedy="give the console log, a trainer_state.json or a CSV (gzip is fine)",
            where=path,
        )
    return raw.decode("utf-8-sig", errors="replace").replace("\0", "")
