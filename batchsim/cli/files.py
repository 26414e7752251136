"""Output files that are whole or absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchsim.errors import InputError


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Write a temporary file beside `path` and move it there once it is complete.

    Raises
    ------
    InputError
        If the folder does not exist or cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    except OSError as error:
        raise InputError(
            f"cannot write: {error.strerror}", where=str(path), remedy="choose a folder that exists"
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files private; an output has the permissions of any new file.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        try:
            temporary.replace(path)
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror}", where=str(path), remedy="choose a file name") from error
    finally:
        temporary.unlink(missing_ok=True)
