"""OpenTelemetry spans into the store. Runs on the batch processor's thread, never on the event loop."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext

from services.spans.store import SpanRecord, SpanStore, service_name


class SqliteSpanExporter(SpanExporter):
    """Writes batches to a SpanStore, which is opened with the first one.

    Raises sqlite3.Error or SpanStoreError when it cannot: whoever stands around it counts that.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._store: SpanStore | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._store is None:
            self._store = SpanStore(self._path)
        self._store.write([span_record(span) for span in spans])
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def span_record(span: ReadableSpan) -> SpanRecord:
    """A finished OpenTelemetry span as the store keeps it."""
    context = span.get_span_context()
    assert context is not None
    resource = dict(span.resource.attributes)
    scope = span.instrumentation_scope
    status = span.status
    return SpanRecord(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent is not None else "",
        service=service_name(resource),
        instance=str(resource.get("service.instance.id", "")),
        name=span.name,
        kind=span.kind.name,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        status="" if status.is_unset else "OK" if status.is_ok else "ERROR",
        error=status.description or "",
        scope=scope.name if scope is not None else "",
        scope_version=scope.version or "" if scope is not None else "",
        trace_state=context.trace_state.to_header(),
        attributes=dict(span.attributes or {}),
        resource={key: value for key, value in resource.items() if key != "service.name"},
        events=tuple((event.name, event.timestamp, dict(event.attributes or {})) for event in span.events),
        links=tuple(_link(link.context) for link in span.links),
    )


def _link(context: SpanContext) -> str:
    return f"{context.trace_id:032x}-{context.span_id:016x}"
