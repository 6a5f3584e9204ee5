"""Asking a query API, and putting two answers into one form: what depends on the instance alone is taken out."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

WAIT_SECONDS_MAX = 30.0
# In 2001; spans that are to be old are older.
_TODAY_US = 10**15


def export(otlp: str, request: ExportTraceServiceRequest) -> None:
    """Sends spans, as soon as somebody listens."""
    with grpc.insecure_channel(otlp) as channel:
        TraceServiceStub(channel).Export(request, timeout=WAIT_SECONDS_MAX, wait_for_ready=True)


def ask(url: str, path: str, **parameters: Any) -> tuple[int, Any]:
    """(status, parsed body) of a GET; a list among the parameters is given several times."""
    query = urllib.parse.urlencode(parameters, doseq=True)
    try:
        with urllib.request.urlopen(f"{url}{path}?{query}", timeout=WAIT_SECONDS_MAX) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def wait_for_traces(url: str, wanted: dict[str, int]) -> None:
    """Returns once each trace has so many spans. Raises TimeoutError."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            answers = {trace_id: ask(url, f"/api/traces/{trace_id}")[1]["data"] for trace_id in wanted}
        except OSError:
            answers = {}
        if answers and all(data and len(data[0]["spans"]) >= wanted[trace_id] for trace_id, data in answers.items()):
            return
        time.sleep(0.1)
    raise TimeoutError(f"{url} does not have {wanted}")


def normal(value: Any, *, since_us: int = 0) -> Any:
    """An answer without what two right instances may do differently.

    Order: of traces, spans, services. Names of processes (p1, p2) within an answer. `warnings`: Jaeger notes there what
    its adjuster of clock skew would have done, which is about its own work and not about the spans. Words of Go's JSON
    parser after "cannot unmarshal JSON". The digits by which JSON writes a float. Times of today count from `since_us`.
    """
    match value:
        case {"startTime": int() as time_us} | {"timestamp": int() as time_us} if since_us and time_us > _TODAY_US:
            name = "startTime" if "startTime" in value else "timestamp"
            return normal({**value, name: time_us - since_us}, since_us=since_us)
        case {"spans": list() as spans, "processes": dict() as processes}:
            named = {
                key: json.dumps(normal(process, since_us=since_us), sort_keys=True)
                for key, process in processes.items()
            }
            plain = [normal({**span, "processID": named[span["processID"]]}, since_us=since_us) for span in spans]
            spans = sorted(plain, key=lambda span: span["spanID"])
            return {"traceID": value["traceID"], "spans": spans, "processes": sorted(set(named.values()))}
        case {"type": "float64", "value": int() | float() as number}:
            return {**value, "value": float(number)}
        case {"msg": str() as message} if "cannot unmarshal JSON" in message:
            return {**value, "msg": message.partition(": ")[0]}
        case dict():
            return {
                key: _ordered(normal(item, since_us=since_us)) if key == "data" else normal(item, since_us=since_us)
                for key, item in value.items()
                if key != "warnings"
            }
        case list():
            return [normal(item, since_us=since_us) for item in value]
        case _:
            return value


def _ordered(data: Any) -> Any:
    return sorted(data, key=lambda item: json.dumps(item, sort_keys=True)) if isinstance(data, list) else data
