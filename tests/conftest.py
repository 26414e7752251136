"""What several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# The first call of a property may compile or import; a slow machine is no failure.
settings.register_profile("batchsim", deadline=None)
settings.load_profile("batchsim")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; tests that need it are skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is absent: real logs are read in place and not shipped")
    return SHARED
