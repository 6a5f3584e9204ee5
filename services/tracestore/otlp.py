"""OTLP's spans as records of the store. Pure."""

import base64
from collections.abc import Iterable, Iterator
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from services.spans.store import SpanRecord, service_name

_KINDS = ("", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_STATUSES = ("", "OK", "ERROR")


def span_records(request: ExportTraceServiceRequest) -> Iterator[SpanRecord]:
    """The spans of a request, in its order, that are whole."""
    for group in request.resource_spans:
        resource = attributes_of(group.resource.attributes)
        service = service_name(resource)
        resource.pop("service.name", None)
        instance = str(resource.get("service.instance.id", ""))
        for scope_spans in group.scope_spans:
            scope = scope_spans.scope
            for span in scope_spans.spans:
                if is_whole(span):
                    yield _record(span, service, instance, scope.name, scope.version, resource)


def _record(
    span: Span, service: str, instance: str, scope: str, scope_version: str, resource: dict[str, Any]
) -> SpanRecord:
    return SpanRecord(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() if any(span.parent_span_id) else "",
        service=service,
        instance=instance,
        name=span.name,
        kind=_KINDS[span.kind] if 0 <= span.kind < len(_KINDS) else "",
        start_ns=span.start_time_unix_nano,
        end_ns=max(span.start_time_unix_nano, span.end_time_unix_nano),
        status=_STATUSES[span.status.code] if 0 <= span.status.code < len(_STATUSES) else "",
        error=span.status.message,
        scope=scope,
        scope_version=scope_version,
        trace_state=span.trace_state,
        attributes=attributes_of(span.attributes),
        resource=resource,
        events=tuple((event.name, event.time_unix_nano, attributes_of(event.attributes)) for event in span.events),
        links=tuple(
            f"{link.trace_id.hex()}-{link.span_id.hex()}"
            for link in span.links
            if len(link.trace_id) == 16 and len(link.span_id) == 8
        ),
    )


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Attributes as JSON values; see SpanRecord for bytes."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    match which:
        case None:
            return None
        case "bytes_value":
            return {"bytes": base64.b64encode(value.bytes_value).decode()}
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return attributes_of(value.kvlist_value.values)
        case _:
            return getattr(value, which)


def is_whole(span: Span) -> bool:
    """Whether the span has ids as OpenTelemetry wants them; others cannot be found again, and are refused."""
    return (
        len(span.trace_id) == 16
        and len(span.span_id) == 8
        and len(span.parent_span_id) in (0, 8)
        and any(span.trace_id)
        and any(span.span_id)
    )
