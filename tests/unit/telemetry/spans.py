"""A place for finished spans that a test can read: the process's recorder, pointed at a list."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from services.runtime import telemetry

TRACE_ID = "ab" * 16
SAMPLED = f"00-{TRACE_ID}-{'cd' * 8}-01"
UNSAMPLED = f"00-{TRACE_ID}-{'cd' * 8}-00"


class Kept(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def tree(self) -> dict[str, str]:
        """span name -> its parent's name, "" for the parent that the test gave."""
        by_id = {span.get_span_context().span_id: span.name for span in self.spans}
        return {span.name: by_id.get(span.parent.span_id, "") for span in self.spans}

    def one(self, name: str) -> ReadableSpan:
        (span,) = (span for span in self.spans if span.name == name)
        return span


@contextmanager
def kept_spans() -> Iterator[Kept]:
    """Collects what `record_span` makes meanwhile."""
    before = telemetry._recorder
    kept = Kept()
    telemetry._recorder = telemetry._Recorder(kept, Resource.create({}), RandomIdGenerator())
    try:
        yield kept
    finally:
        telemetry._recorder = before
