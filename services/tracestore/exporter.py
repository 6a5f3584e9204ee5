"""OpenTelemetry spans into the store. Runs on the batch processor's thread, never on the event loop."""

import sqlite3
from collections.abc import Sequence

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext

from services.tracestore.store import SpanRecord, SpanStore


class SqliteSpanExporter(SpanExporter):
    """Writes batches to a SpanStore. A store that cannot be written costs its spans: one warning, and a count."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._store: SpanStore | None = None
        self._warned = False
        self.dropped = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            if self._store is None:
                self._store = SpanStore(self._path)
            self._store.write([span_record(span) for span in spans])
        except sqlite3.Error as error:
            self.dropped += len(spans)
            if not self._warned:
                self._warned = True
                structlog.get_logger().warning("spans_dropped", path=self._path, reason=str(error))
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def span_record(span: ReadableSpan) -> SpanRecord:
    """A finished OpenTelemetry span as the store keeps it."""
    context = span.get_span_context()
    assert context is not None
    resource = span.resource.attributes
    return SpanRecord(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent is not None else "",
        service=str(resource.get("service.name", "")),
        instance=str(resource.get("service.instance.id", "")),
        name=span.name,
        kind=span.kind.name,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        error="" if span.status.is_ok or span.status.is_unset else (span.status.description or "error"),
        attributes=dict(span.attributes or {}),
        events=tuple((event.name, event.timestamp, dict(event.attributes or {})) for event in span.events),
        links=tuple(_link(link.context) for link in span.links),
    )


def _link(context: SpanContext) -> str:
    return f"{context.trace_id:032x}-{context.span_id:016x}"
