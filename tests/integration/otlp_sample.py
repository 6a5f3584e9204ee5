"""A fixed set of spans over OTLP: several services, all kinds and statuses, links, events, every type of attribute."""

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

TRACE, OTHER, LONELY = "0123456789abcdef0123456789abcdef", "ff" * 16, "aa" * 16
UNSPECIFIED, INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = range(6)
OK, ERROR = 1, 2


def any_value(value: Any) -> AnyValue:
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case list():
            return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))
        case dict():
            return AnyValue(kvlist_value=KeyValueList(values=pairs(value)))
        case _:
            return AnyValue(string_value=str(value))


def pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def span(
    number: int,
    name: str,
    start_ns: int,
    *,
    trace: str = TRACE,
    parent: int = 0,
    kind: int = INTERNAL,
    duration_ns: int = 1_000_000,
    attributes: Mapping[str, Any] | None = None,
    events: Sequence[tuple[str, int, Mapping[str, Any]]] = (),
    links: Sequence[tuple[str, int]] = (),
    status: int = 0,
    message: str = "",
) -> Span:
    made = Span(
        trace_id=bytes.fromhex(trace),
        span_id=number.to_bytes(8, "big"),
        parent_span_id=parent.to_bytes(8, "big") if parent else b"",
        name=name,
        kind=kind,  # type: ignore[arg-type]
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + duration_ns,
        attributes=pairs(attributes or {}),
    )
    for event, at_ns, about in events:
        made.events.add(name=event, time_unix_nano=at_ns, attributes=pairs(about))
    for linked, number_linked in links:
        made.links.add(trace_id=bytes.fromhex(linked), span_id=number_linked.to_bytes(8, "big"))
    if status:
        made.status.code, made.status.message = status, message  # type: ignore[assignment]
    return made


def of_process(service: str, instance: str, spans: Sequence[Span], scope: str = "orrery") -> ResourceSpans:
    group = ResourceSpans()
    if service:
        group.resource.attributes.extend(pairs({"service.name": service, "service.instance.id": instance, "rack": 5}))
    inside = group.scope_spans.add(spans=spans)
    inside.scope.name, inside.scope.version = scope, "1.2" if scope else ""
    return group


EVERY_TYPE = {
    "text": "x",
    "yes": True,
    "no": False,
    "number": 7,
    "real": 1.5,
    "whole": 2.0,
    "bytes": b"\x00\xff",
    "list": ["a", "b"],
    "numbers": [1, 2],
    "markup": ["<a & b>", "größer \u2028"],
    "map": {"k": "v"},
    "nothing": None,
    "empty": "",
    "umlaut": "größer",
}


def sample(now_ns: int) -> ExportTraceServiceRequest:
    """The spans, a minute before `now_ns`."""
    at = now_ns - 60 * 10**9
    return ExportTraceServiceRequest(
        resource_spans=[
            of_process(
                "client", "c-0", [span(1, "apply", at, kind=CLIENT, duration_ns=5_000_000, attributes=EVERY_TYPE)]
            ),
            of_process(
                "api",
                "a-0",
                [
                    span(
                        2,
                        "Create",
                        at + 1_000,
                        parent=1,
                        kind=SERVER,
                        events=[("woken", at + 2_000, {"by": "x", "n": 3}), ("", at + 3_000, {"event": "own"})],
                    ),
                    span(
                        3,
                        "txn",
                        at + 2_000,
                        parent=2,
                        kind=CLIENT,
                        duration_ns=900_000,
                        status=ERROR,
                        message="it broke",
                        links=[(TRACE, 1), (OTHER, 9)],
                    ),
                ],
            ),
            of_process(
                "api",
                "a-1",
                [
                    span(4, "ok", at + 3_000, parent=2, kind=UNSPECIFIED, status=OK, duration_ns=10_000),
                    span(5, "produce", at + 3_000, parent=2, kind=PRODUCER, status=ERROR, duration_ns=10_000),
                    span(6, "consume", at + 4_000, parent=5, kind=CONSUMER, duration_ns=2_000),
                ],
                scope="",
            ),
            of_process("", "", [span(7, "nameless", at + 4_000, parent=1)]),
            of_process("lonely", "l-0", [span(8, "orphan", at + 1, parent=99, trace=LONELY)]),
        ]
    )
