"""Questions to a query API whose answers must be Jaeger's, and the few to which ours are not, with the reason."""

from dataclasses import dataclass
from typing import Any

from tests.integration.otlp_edges import EDGES, EPOCH, FAILED, SHORT
from tests.integration.otlp_sample import LONELY, TRACE

Question = tuple[str, dict[str, Any]]


def searches(service: str, *parameters: dict[str, Any]) -> list[Question]:
    return [("/api/traces", {"service": service, **given}) for given in parameters]


def tags(service: str, *pairs: str) -> list[Question]:
    return searches(service, *({"tag": pair} for pair in pairs))


OF_SAMPLE: list[Question] = [
    ("/api/services", {}),
    ("/api/services/api/operations", {}),
    ("/api/services/nobody/operations", {}),
    ("/api/operations", {}),
    ("/api/operations", {"service": "api"}),
    ("/api/operations", {"service": "api", "spanKind": "client"}),
    (f"/api/traces/{TRACE}", {}),
    (f"/api/traces/{TRACE.upper()}", {}),
    (f"/api/traces/{LONELY}", {}),
    (f"/api/traces/{'1' * 32}", {}),
    ("/api/traces/123", {}),
    ("/api/traces/zz", {}),
    (f"/api/traces/{TRACE}0", {}),
    (f"/api/traces/{TRACE}", {"start": "x"}),
    ("/api/dependencies", {}),
    ("/api/dependencies", {"endTs": "x"}),
    ("/api/dependencies", {"lookback": "x"}),
    ("/api/traces", {}),
    ("/api/traces", {"traceID": [LONELY, TRACE]}),
    ("/api/traces", {"traceID": [LONELY, "1" * 32]}),
    ("/api/traces", {"traceID": "zz"}),
    *searches("api", {}, {"limit": "1"}, {"limit": "x"}, {"start": "x"}, {"end": "x"}, {"start": "1", "end": "2"}),
    *searches("api", {"minDuration": "x"}, {"minDuration": "5"}, {"minDuration": "1.5ms"}),
    *searches("api", {"minDuration": "4ms", "maxDuration": "1ms"}),
    *searches("api", {"tags": "x"}, {"tags": "[]"}, {"tags": '{"a":1}'}),
    *searches("api", {"tag": ["by:x", "n:3"]}, {"tag": ["by:x", "n:4"]}),
    *tags("api", "by", "by:x", "event:woken", "error:false", "otel.status_description:it broke"),
    *tags("client", "number:7", "yes:true", "no:false", "no:true", "real:1.5", "whole:2", "numbers:[1,2]"),
    *tags("client", 'map:{"k":"v"}', "bytes:AP8=", "nothing:", "empty:", "umlaut:größer", "rack:5"),
    *tags("client", "service.instance.id:c-0", "otel.scope.name:orrery", "service.name:client", "service.name:api"),
]

OF_EDGES: list[Question] = [
    ("/api/services", {}),
    *((f"/api/traces/{trace}", {}) for trace in (EDGES, EPOCH, FAILED, SHORT, SHORT[16:], "5d5d5d5d5d5d5d5")),
    *((f"/api/traces/{EDGES}", {"raw": raw}) for raw in ("true", "T", "0", "x", "yes")),
    (f"/api/traces/{EDGES}", {"prettyPrint": "true"}),
    (f"/api/traces/{EDGES}", {"end": "99999999999999999999"}),
    ("/api/services/sp%20ace%2Fsl%2Bash/operations", {}),
    ("/api/services/edge/operations", {}),
    *(("/api/operations", {"service": "edge", "spanKind": kind}) for kind in ("server", "SERVER", "bogus", "")),
    ("/api/operations", {"service": "sp ace/sl+ash"}),
    *(("/api/dependencies", {"service": service}) for service in ("edge", "failing")),
    ("/api/dependencies", {"endTs": "99999999999999999999"}),
    ("/api/dependencies", {"lookback": "0"}),
    # What is looked at first when several things are wrong.
    ("/api/traces", {"limit": "x"}),
    ("/api/traces", {"start": "x", "traceID": EDGES}),
    ("/api/traces", {"traceID": EDGES, "minDuration": "x"}),
    ("/api/traces", {"traceID": EDGES, "limit": "-1"}),
    ("/api/traces", {"traceID": [EDGES, EDGES]}),
    ("/api/traces", {"traceID": EDGES, "raw": "true"}),
    ("/api/traces", {"traceID": EDGES, "raw": "x"}),
    *(("/api/traces", {"traceID": text}) for text in ("", ["", EDGES], "0x12", "1_2", "-1", "+1", "0")),
    *(("/api/traces", {"traceID": text}) for text in (EDGES[:20] + "zz", "z" + EDGES[:20], "é" * 17)),
    *searches("edge", *({"limit": limit} for limit in ("99999999999", "9" * 5000, "1.0", " 1", "+1", "1_0", "٣"))),
    *searches("edge", {"start": "99999999999999999999"}, {"start": "-5"}, {"end": "0"}, {"start": "-9" + "0" * 30}),
    *searches("edge", *({"minDuration": text} for text in ("-1s", "1h1m", "0", "+1ms", "--1ms", "1.ms", ".5ms"))),
    *searches(
        "edge", *({"minDuration": text} for text in (".ms", "1d", "1 ms", "ms", "1e3ms", "1msx", "1.5", "-", "1µs"))
    ),
    *searches("edge", {"minDuration": "999999999h"}, {"minDuration": "9" * 30 + "h"}, {"minDuration": "0.000001ns"}),
    *searches("edge", {"maxDuration": "-1s"}, {"maxDuration": "0s"}, {"maxDuration": "1000us"}),
    *searches("edge", {"minDuration": "1ms", "maxDuration": "-1ms"}, {"minDuration": "1ms", "maxDuration": "1ms"}),
    *searches("edge", *({"tags": text} for text in ("null", '{"a":null}', "", "[" * 3000, "{}", '{"error":"true"}x'))),
    *searches(
        "edge", {"tags": ['{"a":"b"}', '{"big":"9007199254740993"}']}, {"tags": '{"quote":"a","quote":"a\\"b\\\\c"}'}
    ),
    *searches("edge", {"tags": '{"a":NaN}'}, {"tags": '{"a":"\\ud800"}'}),
    *tags("edge", "a:b:c", ":", "", ":x", "a.b:c", "$:x", "big:9007199254740993", "small:-1152921504606846976"),
    *tags("edge", "f_large:1e+21", "f_large:1e21", "f_small:1e-7", "f_small:1e-07", "f_tiny:0.00001", "f_whole:100"),
    *tags("edge", "f_long:123456789012345680000", "f_minus:-0", "floats:[1e+21,1e-7,123456789,0.00001,1.5e+300]"),
    *tags("edge", 'quote:a"b\\c', "nul:a\x00b", "emoji:😀", 'key "quoted":v', "list_empty:[]", "map_empty:{}"),
    *tags("edge", "bytes_empty:", 'html:["<a>&","ü\u2028"]', 'html:["\\u003ca\\u003e\\u0026","ü\\u2028"]'),
    *tags("edge", 'mixed:[1,2,1.5,null,true,"AQI=",{"a":[2.5],"z":1}]', 'map:{"a":2,"b":"eHg=","m":null,"z":1}'),
    *tags("edge", "ip:16909060", "ip:1.2.3.4", "w3c.tracestate:k=v,x=y", "span.kind:other", "otel.status_code:mine"),
    *tags("edge", "z:1", "event:5", "event:e", "event:attribute", "telemetry.sdk.name:x", "service.name:edge"),
    *searches("edge", {"raw": "1"}, {"raw": "maybe"}, {"operation": ""}, {"lookback": "x"}, {"bogus": "1"}),
    *searches("sp ace/sl+ash", {}, {"start": "0"}),
    ("/api/traces", {"service": ["none", "edge"]}),
]


@dataclass(frozen=True)
class OurWay:
    """A question that we answer otherwise: `status`, `traces` by id, or what is wrong."""

    question: Question
    their_status: int
    status: int
    traces: tuple[str, ...] = ()
    message: str = ""


DEPTH = "search depth must be greater than 0 and less than max traces"
OUR_WAY = [
    # Jaeger's memory storage says these are its own faults; they are the caller's.
    OurWay(searches("edge", {"limit": "0"})[0], 500, 400, message=DEPTH),
    OurWay(searches("edge", {"limit": "-1"})[0], 500, 400, message=DEPTH),
    OurWay(searches("edge", {"limit": "1000000"})[0], 500, 400, message=DEPTH),
    OurWay(("/api/dependencies", {"lookback": "-5"}), 500, 400, message="end time must be greater than start time"),
    # It takes `error` the wrong way round: it compares the text "true" as a boolean, which it is not, and finds spans
    # whose status is OK. Its other storages keep `error` as a tag, and find what we find.
    OurWay(tags("failing", "error:true")[0], 200, 200, (FAILED,)),
    OurWay(tags("sp ace/sl+ash", "error:true")[0], 200, 200),
    # It looks for the kind among the attributes, where OpenTelemetry does not put it.
    OurWay(tags("edge", "span.kind:server")[0], 200, 200, (EDGES,)),
    # Microseconds beyond the year 2262 overflow, and come out as some other time.
    OurWay(searches("edge", {"end": "9223372036854775807"})[0], 200, 200, (EDGES,)),
    OurWay(searches("edge", {"start": "9223372036854775807"})[0], 200, 200),
]


def short(value: Question | OurWay) -> str:
    """A test's name."""
    path, parameters = value.question if isinstance(value, OurWay) else value
    return f"{path} {parameters}".encode("ascii", "replace").decode()[:80]
