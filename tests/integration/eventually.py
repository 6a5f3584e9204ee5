"""Waiting for what a process does in its own time."""

import time
from collections.abc import Callable

WAIT_SECONDS_MAX = 30.0


def eventually(holds: Callable[[], bool]) -> None:
    """Returns once `holds` does. Raises TimeoutError."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("it never held")
        time.sleep(0.05)
