"""Where the recorded data lies that some tests compare with: `ORRERY_SHARED`, else the folder `shared` beside the repository."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def shared_folder() -> Path:
    named = os.environ.get("ORRERY_SHARED")
    return Path(named) if named else ROOT.parent / "shared"


def shared_data(relative: str) -> Path:
    """The file or folder `relative` of the shared data; skips the test when it is not there."""
    path = shared_folder() / "data" / relative
    if not path.exists():
        pytest.skip(f"shared data {relative} is absent: set ORRERY_SHARED to the folder that holds data/{relative}")
    return path
