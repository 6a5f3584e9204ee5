"""Spans in Jaeger's words: the JSON of its query API (Jaeger 2.13, which is v1.76.0 of its module). Pure.

OpenTelemetry's status, kind and scope become tags, links become references, events become logs; arrays and maps are JSON
text. Times are microseconds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from services.spans.store import SpanRecord


def envelope(data: Any, total: int = 0, errors: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """What stands around every answer."""
    return {"data": data, "total": total, "limit": 0, "offset": 0, "errors": list(errors) if errors else None}


def trace_answer(spans: Sequence[SpanRecord]) -> dict[str, Any]:
    """One trace: its spans, and the processes that they name."""
    processes: dict[str, tuple[str, dict[str, Any]]] = {}
    answers = []
    for span in spans:
        tags = key_values(span.resource)
        identity = json.dumps([span.service, tags], sort_keys=True)
        name, _ = processes.setdefault(
            identity, (f"p{len(processes) + 1}", {"serviceName": span.service, "tags": tags})
        )
        answers.append(span_answer(span, name))
    return {
        "traceID": spans[0].trace_id,
        "spans": answers,
        "processes": dict(processes.values()),
        "warnings": None,
    }


def span_answer(span: SpanRecord, process: str) -> dict[str, Any]:
    references = []
    if span.parent_id:
        references.append({"refType": "CHILD_OF", "traceID": span.trace_id, "spanID": span.parent_id})
    for link in span.links:
        trace_id, _, span_id = link.partition("-")
        references.append({"refType": "FOLLOWS_FROM", "traceID": trace_id, "spanID": span_id})
    start_us = span.start_ns // 1000
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "operationName": span.name,
        "references": references,
        "startTime": start_us,
        "duration": (span.end_ns - span.start_ns) // 1000,
        "tags": key_values({**span.attributes, **_derived(span)}),
        "logs": [_log(name, at_ns, attributes) for name, at_ns, attributes in span.events],
        "processID": process,
        "warnings": None,
    }


def _derived(span: SpanRecord) -> dict[str, Any]:
    """Tags that say what OpenTelemetry has fields for."""
    tags: dict[str, Any] = {}
    if span.kind:
        tags["span.kind"] = span.kind.lower()
    if span.scope:
        tags["otel.scope.name"] = span.scope
    if span.scope_version:
        tags["otel.scope.version"] = span.scope_version
    if span.status:
        tags["otel.status_code"] = span.status
    if span.status == "ERROR":
        tags["error"] = True
    if span.error:
        tags["otel.status_description"] = span.error
    return tags


def _log(name: str, at_ns: int, attributes: Mapping[str, Any]) -> dict[str, Any]:
    fields = key_values(attributes)
    if name and "event" not in attributes:
        fields = [key_value("event", name), *fields]
    return {"timestamp": at_ns // 1000, "fields": fields}


def key_values(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tags by key, as Jaeger sorts them."""
    return [key_value(key, attributes[key]) for key in sorted(attributes)]


def key_value(key: str, value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"key": key, "type": "bool", "value": value}
        case int():
            return {"key": key, "type": "int64", "value": value}
        case float():
            return {"key": key, "type": "float64", "value": value}
        case {"bytes": str(encoded)} if len(value) == 1:
            return {"key": key, "type": "binary", "value": encoded}
        case list() | tuple() | dict():
            return {"key": key, "type": "string", "value": _json_text(value)}
        case None:
            return {"key": key, "type": "string", "value": ""}
        case _:
            return {"key": key, "type": "string", "value": str(value)}


def _json_text(value: Any) -> str:
    """JSON as Go writes it: what HTML could take for markup is escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_ESCAPED)


_ESCAPED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def operations_answer(operations: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "spanKind": kind.lower()} for name, kind in operations]


def error_answer(code: int, message: str) -> dict[str, Any]:
    return envelope(None, errors=[{"code": code, "msg": message}])
