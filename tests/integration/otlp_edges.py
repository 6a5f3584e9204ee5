"""Spans at the edges of OTLP: what a sender may send though hardly any does, and what Jaeger puts in order."""

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from tests.integration.otlp_sample import CLIENT, ERROR, OK, SERVER, of_process, pairs, span

EDGES, EPOCH, FAILED, SHORT = "e0" * 16, "f1" * 16, "ab" * 16, "00" * 8 + "5d" * 8
EDGE_SPANS = {EDGES: 10, EPOCH: 2, FAILED: 1, SHORT: 1}

ATTRIBUTES = {
    "big": 2**53 + 1,
    "small": -(2**60),
    "html": ["<a>&", "ü\u2028"],
    "mixed": [1, 2.0, 1.5, None, True, b"\x01\x02", {"z": 1, "a": [2.5]}],
    "map": {"z": 1, "a": 2.0, "m": None, "b": b"xx"},
    "floats": [1e21, 1e-7, 123456789.0, 0.00001, 1.5e300],
    "f_large": 1e21,
    "f_small": 1e-7,
    "f_tiny": 0.00001,
    "f_whole": 100.0,
    "f_long": 123456789012345680000.0,
    "f_minus": -0.0,
    "quote": 'a"b\\c',
    "nul": "a\x00b",
    "emoji": "😀",
    'key "quoted"': "v",
    "list_empty": [],
    "map_empty": {},
    "bytes_empty": b"",
    # Jaeger reads these two as addresses, and this one as the library's, so the process's.
    "ip": 16909060,
    "peer.ipv4": 1.0,
    "telemetry.sdk.name": "x",
    # Names that it uses itself.
    "span.kind": "other",
    "error": "yes",
    "otel.status_code": "mine",
    "event": "attribute",
}


def _spans(at: int) -> list[Span]:
    first = span(1, "first", at, trace=EDGES, kind=SERVER, attributes=ATTRIBUTES, status=ERROR)
    first.trace_state = "k=v,x=y"
    no_parent = span(4, "parent of zeros", at, trace=EDGES)
    no_parent.parent_span_id, no_parent.flags = bytes(8), 0x101
    return [
        first,
        span(2, "linked to its parent", at, trace=EDGES, parent=1, links=[(EDGES, 1), (EPOCH, 3)], kind=CLIENT),
        span(3, "linked to nothing", at, trace=EDGES, links=[(EDGES, 1), ("00" * 16, 1), (SHORT, 1)], status=OK),
        no_parent,
        span(5, "", at, trace=EDGES, status=OK, message="said although well"),
        span(6, "ends before it starts", at, trace=EDGES, duration_ns=-5_000),
        span(
            7, "at once", at, trace=EDGES, duration_ns=0, events=[("e", at, {"z": 1, "a": 2, "event": 5}), ("", 0, {})]
        ),
    ]


def edges(now_ns: int) -> ExportTraceServiceRequest:
    """The spans, a minute before `now_ns`; one of 1970."""
    at = now_ns - 60 * 10**9
    twice = span(8, "sent twice", at, trace=EDGES)
    epoch = span(10, "of 1970", 0, trace=EPOCH, duration_ns=10)
    empty, number = ResourceSpans(), ResourceSpans()
    empty.resource.attributes.extend(pairs({"service.name": ""}))
    empty.scope_spans.add(spans=[span(11, "service without a name", at, trace=EDGES)])
    number.resource.attributes.extend(pairs({"service.name": 5, "rack": 5}))
    number.scope_spans.add(spans=[span(12, "service by number", at, trace=EDGES)])
    return ExportTraceServiceRequest(
        resource_spans=[
            of_process("edge", "e-0", _spans(at)),
            of_process("edge", "e-0", [twice, twice]),
            of_process("sp ace/sl+ash", "s-0", [span(9, "well", at, trace=EPOCH, status=OK), epoch]),
            of_process("failing", "f-0", [span(13, "failed", at, trace=FAILED, status=ERROR)]),
            of_process("short", "s-1", [span(14, "id of 64 bits", at, trace=SHORT)]),
            empty,
            number,
        ]
    )
