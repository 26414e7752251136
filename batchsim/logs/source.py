"""Opening what a user names: files, folders, globs, gzip and standard input.

A log is a stream of bytes, handed out in blocks of whole lines, so that one of many gigabytes fits:

- `.gz` is recognised by its first bytes, not its name; a gzip that ends early gives what it held.
- Bytes that are not UTF-8 become U+FFFD, NULs (left by a crashed file system) are dropped, and
  UTF-16 with a byte-order mark (a redirected Windows console) is decoded. A file that is mostly
  control bytes is binary; no reader of text sees it.
- The last line counts only if it ends: a log that is still being written, or was cut, may hold half
  a number there, and half a number still parses. Readers get it apart, as `tail`.
- Standard input and pipes cannot be read twice and are kept aside, on disk once they are large.
- A file that the user named must be a log. A folder may hold anything: what cannot be read there is
  passed over with a warning. Folders are not searched recursively, because checkpoints of one run
  repeat its log; a glob such as ``'runs/*/trainer_state.json'`` says what is meant.
- One file named twice is read once: counted twice it would pass for a second seed.
- A file that grows while it is read counts as it was when it was opened, in every pass through it.
- What no log is like is refused by a limit that says so: a line beyond 32 MiB, gzip data that unpack to more
  than 500 times their size (a log's do to some 20 times), a log beyond 256 GiB.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import itertools
import re
import sys
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, overload

from batchsim.errors import InputError, nearest
from batchsim.logs.config import Config

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer

MAX_BYTES = 2**38
WHOLE_BYTES = 2**30
LINE_BYTES = 2**25
UNPACKED_RATIO = 500
UNPACKED_FREE = 2**26
MAX_FILES = 10_000
MAX_COLUMNS = 20_000
_BLOCK = 2**18
_HEAD = 65_536
_SPOOL = 2**24
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_TEXT_CONTROLS = frozenset(b"\t\n\r\f\b\x1b")
_BOMB = "unpack it elsewhere and keep only the lines with metrics and configuration"
_TOO_LARGE = "keep only the lines with metrics and configuration, for instance with grep"


class Lines(Sequence[str]):
    """The complete lines of a source; going through them streams, and the first ones cost little."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __iter__(self) -> Iterator[str]:
        for _, block in self._source.blocks():
            for line in block.decode("utf-8", errors="replace")[:-1].split("\n"):
                yield line.removesuffix("\r")

    def __len__(self) -> int:
        return self._source.count

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            if all(bound is None or bound >= 0 for bound in (index.start, index.stop, index.step)):
                return list(itertools.islice(self._bounded(), index.start, index.stop, index.step))
            return list(self._bounded())[index]
        found = next(itertools.islice(self, index, None), None) if index >= 0 else self[len(self) + index]
        if found is None:
            raise IndexError(index)
        return found

    def _bounded(self) -> Iterator[str]:
        held = 0
        for line in self:
            held += len(line)
            self._source.check_size(held, WHOLE_BYTES)
            yield line


class Source:
    """One opened log, read anew by whoever goes through it.

    Attributes
    ----------
    path, name, folder : str
        As named, without folder and ending, and its folder.
    explicit : bool
        Whether the user named it, rather than its folder.
    binary : bool
        Whether it is mostly control bytes.
    config : Config or None
        Configuration file that belongs to it.
    warnings : list of str
        What opening and decoding had to put up with; complete once the source was read to its end.
    """

    def __init__(self, path: str, *, explicit: bool) -> None:
        self.path = path
        self.name = _name(path)
        self.folder = str(Path(path).parent)
        self.explicit = explicit
        self.config: Config | None = None
        self.warnings: list[str] = []
        self._spool = None if Path(path).is_file() and path != "-" else _spooled(self)
        self._size = 0 if self._spool is not None else Path(path).stat().st_size
        self._ending: tuple[int, str] | None = None
        start = b""
        for piece in self._raw():
            start += piece
            if len(start) >= _HEAD and start.strip():
                break
        if not start.strip():
            raise InputError("the file is empty", remedy="wait until the run has logged a step", where=path)
        self.binary = _is_binary(start[:_HEAD])

    @property
    def lines(self) -> Lines:
        """The lines that end."""
        return Lines(self)

    @property
    def tail(self) -> str:
        """What stands behind the last line break."""
        return self._end()[1]

    @property
    def count(self) -> int:
        """Number of lines that end."""
        return self._end()[0]

    @property
    def text(self) -> str:
        """The whole text, the unended line included, of a log that is small enough to hold."""
        parts, held = [], 0
        for _, block in self.blocks():
            held += len(block)
            self.check_size(held, WHOLE_BYTES)
            parts.append(block.replace(b"\r\n", b"\n"))
        return b"".join(parts).decode("utf-8", errors="replace") + self.tail

    @cached_property
    def head(self) -> str:
        """The first 64 KiB or more of the text."""
        parts, held = [], 0
        for piece in self._text():
            parts.append(piece)
            held += len(piece)
            if held >= _HEAD:
                break
        return b"".join(parts).decode("utf-8", errors="replace")

    def where(self, line: int) -> str:
        """``path:line``, counting from 1."""
        return f"{self.path}:{line}"

    def tail_warnings(self) -> list[str]:
        """What a reader that goes by lines has to say about the unended one."""
        count, tail = self._end()
        if not tail.strip():
            return list(self.warnings)
        return [*self.warnings, f"line {count + 1} has no end (cut, or still being written) and was not used"]

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Whole lines in UTF-8, many at a time, with the number of the first, counting from 1.

        Raises
        ------
        InputError
            For a file that cannot be read to its end, a line beyond 32 MiB, a log beyond 256 GiB, and
            gzip data that unpack to more than 500 times their size.
        """
        first, rest, held = 1, [b""], 0
        for piece in self._text():
            cut = piece.rfind(b"\n") + 1
            if not cut:
                rest.append(piece)
                held += len(piece)
                self.check_size(held, LINE_BYTES, "a line of the log")
                continue
            block = b"".join([*rest, piece[:cut]])
            rest, held = [piece[cut:]], len(piece) - cut
            yield first, block
            first += block.count(b"\n")
        self._ending = first - 1, b"".join(rest).decode("utf-8", errors="replace")

    def check_size(self, size: int, limit: int, what: str = "the log") -> None:
        """Refuse what is larger than `limit` [B]."""
        if size > limit:
            raise InputError(f"{what} is larger than {limit // 2**20} MiB", remedy=_TOO_LARGE, where=self.path)

    def check_columns(self, count: int) -> None:
        """Refuse a table with more columns than any log has."""
        if count > MAX_COLUMNS:
            raise InputError(
                f"the header has {count} columns, more than {MAX_COLUMNS}",
                remedy="export only the columns of training and validation",
                where=self.where(1),
            )

    def _check_bomb(self, size: int, packed: int) -> None:
        """Refuse gzip data that unpack to far more than any log does."""
        if size > max(UNPACKED_FREE, UNPACKED_RATIO * packed):
            raise InputError(
                f"the gzip data unpack to more than {UNPACKED_RATIO} times their size", remedy=_BOMB, where=self.path
            )

    def _end(self) -> tuple[int, str]:
        if self._ending is None:
            for _ in self.blocks():
                pass
        assert self._ending is not None
        return self._ending

    def _text(self) -> Iterator[bytes]:
        """The stream in UTF-8, without byte-order mark and NULs."""
        decoder: codecs.IncrementalDecoder | None = None
        for count, raw in enumerate(self._raw()):
            piece = raw
            if not count and piece[:2] in _UTF16:
                decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
            elif not count:
                piece = piece.removeprefix(codecs.BOM_UTF8)
            if decoder is not None:
                piece = decoder.decode(piece).encode("utf-8", errors="replace")
            yield piece.replace(b"\0", b"") if b"\0" in piece else piece
        if decoder is not None:
            yield decoder.decode(b"", final=True).encode("utf-8", errors="replace")

    def _raw(self) -> Iterator[bytes]:
        """The stream as it is stored, unpacked."""
        size = 0
        try:
            with self._file() as file:
                first = file.read(_BLOCK)
                file.seek(0)
                pieces = self._unpacked(file) if first[:2] == b"\x1f\x8b" else iter(lambda: file.read(_BLOCK), b"")
                for piece in pieces:
                    size += len(piece)
                    self.check_size(size, MAX_BYTES)
                    yield piece
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"cannot be read ({reason})", remedy="check the path", where=self.path) from error

    def _file(self) -> AbstractContextManager[IO[bytes]]:
        if self._spool is None:
            # Special files state no size.
            opened = open(self.path, "rb", buffering=0)  # noqa: SIM115 (closed by whoever asks)
            return io.BufferedReader(_FirstBytes(opened, self._size)) if self._size else opened
        self._spool.seek(0)
        return nullcontext(self._spool)

    def _unpacked(self, file: IO[bytes]) -> Iterator[bytes]:
        some = False
        try:
            with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                # read1 hands over what it has; read would lose a block that the end of the file cuts.
                size = 0
                while part := unpacked.read1(_BLOCK):
                    some = True
                    size += len(part)
                    self._check_bomb(size, file.tell())
                    yield part
        except (EOFError, OSError, zlib.error) as error:
            if not some:
                raise InputError("the gzip data is damaged", remedy="copy the file again", where=self.path) from error
            note = "the gzip data ends early or is damaged; what precedes was used"
            if note not in self.warnings:
                self.warnings.append(note)


class _FirstBytes(io.RawIOBase):
    """The first bytes of a file; what is appended later is not seen."""

    def __init__(self, file: io.FileIO, size: int) -> None:
        self._file = file
        self._size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Buffer) -> int:
        left = max(0, self._size - self._file.tell())
        return self._file.readinto(memoryview(buffer)[:left]) or 0

    def close(self) -> None:
        self._file.close()
        super().close()


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
        that is empty.
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
            sources.append(Source(path, explicit=explicit))
        except InputError as error:
            if explicit:
                raise
            warnings.append(f"passed over {error.where}: {error.message}")
    return sources, warnings


def matching_lines(
    first: int, block: bytes, needles: Mapping[bytes, re.Pattern[bytes] | None]
) -> Iterator[tuple[int, bytes]]:
    """Lines of a block that hold one of `needles`, with their numbers.

    Parameters
    ----------
    first : int
        Number of the block's first line.
    block : bytes
        Whole lines, as `Source.blocks` hands them out.
    needles : mapping
        What to look for, and what must follow it. Searching the block for each is ten times faster
        than looking at its lines.
    """
    starts: set[int] = set()
    for needle, follows in needles.items():
        at = block.find(needle)
        while at >= 0:
            stop = at + len(needle)
            if follows is None or follows.match(block, stop):
                starts.add(block.rfind(b"\n", 0, at) + 1)
                stop = block.index(b"\n", at)
            at = block.find(needle, stop)
    number, last = first, 0
    for start in sorted(starts):
        number += block.count(b"\n", last, start)
        last = start
        yield number, block[start : block.index(b"\n", start)]


def _expand(path: str) -> list[tuple[str, bool]]:
    """Files behind one argument, each with whether the user named it."""
    if path == "-":
        return [(path, True)]
    if not path:
        # Path("") is the current folder, and an unset shell variable is not meant to be.
        raise InputError("no such file: the name is empty", remedy="name a file, a folder, a glob or -")
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


def _name(path: str) -> str:
    name = "stdin" if path == "-" else Path(path.removesuffix(".gz")).stem
    if name == "trainer_state":
        # Every TRL run writes a file of this name; its folder is what tells runs apart.
        name = Path(path).resolve().parent.name or name
    return name


def _spooled(source: Source) -> IO[bytes]:
    """Standard input or a pipe, kept so that it can be read again."""
    spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL)  # noqa: SIM115 (closed with the source)
    weakref.finalize(source, spool.close)
    size = 0
    try:
        with nullcontext(sys.stdin.buffer) if source.path == "-" else open(source.path, "rb") as file:
            while piece := file.read(_BLOCK):
                size += len(piece)
                source.check_size(size, MAX_BYTES)
                spool.write(piece)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be read ({reason})", remedy="check the path", where=source.path) from error
    return spool


def _is_binary(head: bytes) -> bool:
    if head[:2] in _UTF16:
        return False
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
    undecodable = head.decode("utf-8", errors="replace").count("\ufffd")
    return controls + undecodable > 0.1 * len(head)
