"""The one place that knows where the shared cases and data are: ORRERY_SHARED, else ../shared beside the checkout."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def shared_path(*parts: str) -> Path:
    """The path below the shared folder; skips the calling test where it is absent."""
    base = Path(os.environ.get("ORRERY_SHARED", ROOT.parent / "shared"))
    path = base.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared data {'/'.join(parts)} is absent; set ORRERY_SHARED to the folder that has it")
    return path
