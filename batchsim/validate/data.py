"""Where measured data lie: a folder that is named, BATCHSIM_DATA, or the one beside a checkout."""

from __future__ import annotations

import os
from pathlib import Path

from batchsim.errors import InputError

BESIDE = Path("../shared/data")
VARIABLE = "BATCHSIM_DATA"


def data_folder(given: Path | None) -> Path | None:
    """Folder of measured data.

    Parameters
    ----------
    given : Path or None
        Named by the user.

    Returns
    -------
    Path or None
        None where nothing is named and there is none beside the working directory.

    Raises
    ------
    InputError
        If a named folder does not exist.
    """
    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is None:
        return BESIDE if BESIDE.is_dir() else None
    if not named.is_dir():
        raise InputError("no such folder of measured data", where=str(named))
    return named
