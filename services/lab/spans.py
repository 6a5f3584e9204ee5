"""Reading a trace from the span store while processes still write it."""

import time
from pathlib import Path

from services.lab.errors import LabError
from services.spans.store import SpanRecord, open_existing

SETTLE_SECONDS_MAX = 3.0
SETTLE_POLL_SECONDS = 0.25


def settled_trace(path: Path, trace_id: str) -> list[SpanRecord]:
    """The trace's spans once their number rests: processes write theirs every half second."""
    store = open_existing(str(path))
    if store is None:
        raise LabError(f"there is no span store at {path}; start the mesh with: orrery up")
    try:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        spans = store.trace(trace_id)
        if spans and time.time_ns() - max(span.end_ns for span in spans) > SETTLE_SECONDS_MAX * 1e9:
            return spans
        rest = 0
        while rest < 3 and time.monotonic() < deadline:
            time.sleep(SETTLE_POLL_SECONDS)
            again = store.trace(trace_id)
            rest = rest + 1 if len(again) == len(spans) else 0
            spans = again
        return spans
    finally:
        store.close()
