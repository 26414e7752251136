"""Output files that are whole or absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchsim.errors import InputError


def check_out(path: Path | None, option: str, *, new: bool = False) -> None:
    """Refuse a file that could not be written, before any work is done.

    Raises
    ------
    InputError
        For a missing folder, one that cannot be written, a folder in the file's place and, if the file must be new,
        one that exists.
    """
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{option}: there is no folder {folder}", where=str(path), remedy="choose one that exists")
    if path.is_dir():
        raise InputError(f"{option} is a folder", where=str(path), remedy="choose a file name")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option}: {folder} cannot be written", where=str(path), remedy="choose another folder")
    if new and path.exists():
        raise InputError(f"{option} exists, and runs replace no file", where=str(path), remedy="choose another name")


def check_netcdf(path: Path | None, *, new: bool = False) -> None:
    """Refuse a file for data that is not NetCDF or cannot be written; if it must be new, also one that exists.

    Raises
    ------
    InputError
        See `check_out`; also where h5netcdf is not installed.
    """
    if path is None:
        return
    if path.suffix != ".nc":
        raise InputError(f"--out: no data format '{path.suffix}'", where=str(path), remedy="let the name end in .nc")
    try:
        import h5netcdf  # noqa: F401
    except ImportError as error:
        raise InputError(
            "NetCDF needs h5netcdf and h5py", remedy="install them (in the clone: pip install '.[netcdf]')"
        ) from error
    check_out(path, "--out", new=new)


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
