"""Spans in Jaeger's words: the JSON of its query API (Jaeger 2.13, which is v1.76.0 of its module). Pure.

OpenTelemetry's status, kind and scope become tags, links become references, events become logs; arrays and maps are JSON
text. Times are microseconds.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from services.spans.store import SpanRecord
from services.tracestore.go_words import text_of

# In Jaeger's order.
_TYPES = ("string", "bool", "int64", "float64", "binary")
# JavaScript's largest integer.
_EXACT_MAX = 2**53 - 1
_LIBRARY = (
    "telemetry.sdk.language",
    "telemetry.sdk.name",
    "telemetry.sdk.version",
    "telemetry.distro.name",
    "telemetry.distro.version",
)


def envelope(data: Any, total: int = 0, errors: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """What stands around every answer."""
    return {"data": data, "total": total, "limit": 0, "offset": 0, "errors": list(errors) if errors else None}


def trace_answer(spans: Sequence[SpanRecord], *, raw: bool = False) -> dict[str, Any]:
    """One trace: its spans, and the processes that they name. `raw`: without Jaeger's adjustments, and unsorted."""
    processes: dict[str, tuple[str, dict[str, Any]]] = {}
    answers = []
    for span in spans:
        answer = span_answer(span)
        tags = [key_value(key, value) for key, value in span.resource.items()]
        if not raw:
            tags = _adjust(answer, tags)
        identity = json.dumps([span.service, tags])
        answer["processID"], _ = processes.setdefault(
            identity, (f"p{len(processes) + 1}", {"serviceName": span.service, "tags": tags})
        )
        answers.append(answer)
    return {
        "traceID": shown_trace_id(spans[0].trace_id),
        "spans": answers,
        "processes": dict(processes.values()),
        "warnings": None,
    }


def span_answer(span: SpanRecord) -> dict[str, Any]:
    """A span as it came; what names its process is to be put in."""
    start_us = span.start_ns // 1000
    return {
        "traceID": shown_trace_id(span.trace_id),
        "spanID": span.span_id,
        "operationName": span.name,
        "references": _references(span),
        "startTime": start_us,
        "duration": max(0, span.end_ns - span.start_ns) // 1000,
        "tags": _tags(span),
        "logs": [_log(name, at_ns, attributes) for name, at_ns, attributes in span.events],
        "processID": "",
        "warnings": None,
    }


def shown_trace_id(trace_id: str) -> str:
    """Jaeger's ids were of 64 bits once, and are written so where that is enough."""
    return trace_id[16:] if trace_id.startswith("0" * 16) else trace_id


def _references(span: SpanRecord) -> list[dict[str, str]]:
    """The parent, then the links; a link to the parent takes its place."""
    references = []
    parent = f"{span.trace_id}-{span.parent_id}"
    if span.parent_id:
        kind = "FOLLOWS_FROM" if parent in span.links else "CHILD_OF"
        references.append({"refType": kind, "traceID": shown_trace_id(span.trace_id), "spanID": span.parent_id})
    for link in span.links:
        if not (span.parent_id and link == parent):
            trace_id, _, span_id = link.partition("-")
            references.append({"refType": "FOLLOWS_FROM", "traceID": shown_trace_id(trace_id), "spanID": span_id})
    return references


def _tags(span: SpanRecord) -> list[dict[str, Any]]:
    """The attributes, and tags that say what OpenTelemetry has fields for."""
    derived: list[tuple[str, Any]] = [
        ("span.kind", span.kind.lower()),
        ("otel.status_code", span.status),
        ("error", span.status == "ERROR"),
        ("otel.status_description", span.error),
        ("w3c.tracestate", span.trace_state),
    ]
    return [
        *(key_value(key, value) for key, value in _scope(span) if value),
        *(key_value(key, value) for key, value in span.attributes.items()),
        *(key_value(key, value) for key, value in derived if value),
    ]


def _scope(span: SpanRecord) -> tuple[tuple[str, str], ...]:
    return ("otel.scope.name", span.scope), ("otel.scope.version", span.scope_version)


def _log(name: str, at_ns: int, attributes: Mapping[str, Any]) -> dict[str, Any]:
    fields = [key_value(key, value) for key, value in attributes.items()]
    if name and "event" not in attributes:
        fields = [key_value("event", name), *fields]
    return {"timestamp": at_ns // 1000, "fields": fields}


def _adjust(answer: dict[str, Any], process: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Jaeger does to a span before it shows it; gives the tags of its process.

    Tags by key, `event` first in a log; what a library says of itself belongs to the process; addresses as numbers
    become readable; references to nothing go.
    """
    for log in answer["logs"]:
        log["fields"].sort(key=lambda item: (not (item["key"] == "event" and item["type"] == "string"), _order(item)))
    tags = answer["tags"]
    process = process + [item for item in tags if item["key"] in _LIBRARY]
    answer["tags"] = sorted((_address(item) for item in tags if item["key"] not in _LIBRARY), key=_order)
    answer["references"] = [item for item in answer["references"] if item["traceID"].strip("0")]
    return sorted((_address(item) for item in process), key=_order)


def _order(item: Mapping[str, Any]) -> tuple[str, int, str]:
    return item["key"], _TYPES.index(item["type"]), str(item["value"])


def _address(item: dict[str, Any]) -> dict[str, Any]:
    if item["key"] not in ("ip", "peer.ipv4") or item["type"] not in ("int64", "float64"):
        return item
    try:
        number = int(item["value"]) & 0xFFFFFFFF
    except (ValueError, OverflowError):
        return item
    return {"key": item["key"], "type": "string", "value": ".".join(str(byte) for byte in number.to_bytes(4, "big"))}


def key_value(key: str, value: Any) -> dict[str, Any]:
    """A tag. Numbers that JSON or a browser cannot hold are text; Jaeger answers 500 for a trace with an infinite one."""
    match value:
        case bool():
            return {"key": key, "type": "bool", "value": value}
        case int():
            return {"key": key, "type": "int64", "value": value if abs(value) <= _EXACT_MAX else str(value)}
        case float():
            return {"key": key, "type": "float64", "value": value if math.isfinite(value) else text_of(value)}
        case {"bytes": str(encoded)} if len(value) == 1:
            return {"key": key, "type": "binary", "value": encoded or None}
        case _:
            return {"key": key, "type": "string", "value": text_of(value)}


def operations_answer(operations: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "spanKind": kind} for name, kind in operations]


def error_answer(code: int, message: str) -> dict[str, Any]:
    return envelope(None, errors=[{"code": code, "msg": message}])
