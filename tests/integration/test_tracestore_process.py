"""The trace store as a process: what it does with a sender, a disk or a further collector that is not as it should be."""

import json
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from services.lab.etcd import free_ports
from tests.integration.eventually import eventually
from tests.integration.otlp_sample import TRACE, of_process, sample, span
from tests.integration.trace_query import WAIT_SECONDS_MAX, ask, export, normal, wait_for_traces
from tests.tracestore import RunningTraceStore, running_tracestore

pytestmark = pytest.mark.integration
STRANGE, PLAIN = "5e" * 16, "91" * 16
AT = 1_790_000_000 * 10**9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunningTraceStore]:
    with running_tracestore(tmp_path) as running:
        yield running


def answer_to(store: RunningTraceStore, request: ExportTraceServiceRequest) -> ExportTraceServiceResponse:
    with grpc.insecure_channel(store.otlp) as channel:
        answer: ExportTraceServiceResponse = TraceServiceStub(channel).Export(
            request, timeout=WAIT_SECONDS_MAX, wait_for_ready=True
        )
        return answer


def plain(number: int = 1) -> ExportTraceServiceRequest:
    spans = [span(number, "plain", AT, trace=PLAIN, attributes={"tag": "wanted"})]
    return ExportTraceServiceRequest(resource_spans=[of_process("api", "a-0", spans)])


def test_spans_that_no_tracer_would_send_are_kept_or_refused_and_spoil_nothing(store: RunningTraceStore) -> None:
    last, kind, numbers = (span(number, "strange", AT, trace=STRANGE) for number in (1, 2, 3))
    last.start_time_unix_nano = last.end_time_unix_nano = 2**64 - 1
    kind.kind, kind.status.code = 99, 99  # type: ignore[assignment]
    for key, number in (("none", float("nan")), ("large", float("inf")), ("small", float("-inf"))):
        numbers.attributes.add(key=key).value.double_value = number
    numbers.attributes.add(key="list").value.array_value.values.add().double_value = float("nan")
    nothing, short, parent = (span(number, "refused", AT, trace=STRANGE) for number in (4, 5, 6))
    nothing.trace_id, short.span_id, parent.parent_span_id = b"", b"\1", b"\1\2"
    numbers.links.add(trace_id=b"\1", span_id=b"\2")
    spans = [last, kind, numbers, nothing, short, parent]
    answer = answer_to(store, ExportTraceServiceRequest(resource_spans=[of_process("api", "a-0", spans)]))
    assert answer.partial_success.rejected_spans == 3
    assert answer.partial_success.error_message == "spans without a valid trace, span or parent id: 3"
    answer_to(store, ExportTraceServiceRequest())
    export(store.otlp, plain())
    wait_for_traces(store.url, {STRANGE: 3, PLAIN: 1})
    _, body = ask(store.url, f"/api/traces/{STRANGE}")
    assert all(item["references"] == [] for item in body["data"][0]["spans"])
    tags = {tag["key"]: tag["value"] for item in body["data"][0]["spans"] for tag in item["tags"]}
    assert (tags["none"], tags["large"], tags["small"], tags["list"]) == ("NaN", "+Inf", "-Inf", '["NaN"]')
    everything = {"service": "api", "start": 0, "end": 2**62}
    for tag, trace in (("tag:wanted", PLAIN), ("none:NaN", STRANGE), ("large:+Inf", STRANGE), ("small:-Inf", STRANGE)):
        _, body = ask(store.url, "/api/traces", tag=tag, **everything)
        assert [found["traceID"] for found in body["data"]] == [trace], tag
    assert store.metric("spans_refused_total") == 3
    assert store.metric("spans_stored_total") == 4


def test_messages_that_are_none_are_refused_by_the_transport(store: RunningTraceStore) -> None:
    export(store.otlp, plain())
    value = b""
    for _ in range(2_000):
        # AnyValue.array_value.values, each the only one of the list around it.
        value = field(5, field(1, value))
    # The value of a KeyValue, of a Resource, of ResourceSpans, of the request.
    nested = field(1, field(1, field(1, field(2, value))))
    wrong = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
    with grpc.insecure_channel(store.otlp, options=[("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        for message, code in (
            (b"\xff" * 100, wrong),
            (nested, wrong),
            (bytes(65 << 20), (grpc.StatusCode.RESOURCE_EXHAUSTED,)),
        ):
            with pytest.raises(grpc.RpcError) as refusal:
                call(message, timeout=WAIT_SECONDS_MAX)
            assert refusal.value.code() in code
    export(store.otlp, plain(2))
    wait_for_traces(store.url, {PLAIN: 2})


def field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message, on the wire."""
    tag, size = bytes([number << 3 | 2]), len(content)
    length = b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return tag + length + bytes([size]) + content


NOT_SERVING, SERVING = health_pb2.HealthCheckResponse.NOT_SERVING, health_pb2.HealthCheckResponse.SERVING


def grpc_health(store: RunningTraceStore) -> int:
    with grpc.insecure_channel(store.otlp) as channel:
        return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10).status


def http_health(store: RunningTraceStore) -> int:
    try:
        with urllib.request.urlopen(f"{store.url}/healthz", timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_full_disk_costs_spans_one_warning_and_a_count_until_there_is_room(
    store: RunningTraceStore, tmp_path: Path
) -> None:
    export(store.otlp, plain())
    wait_for_traces(store.url, {PLAIN: 1})
    # The file may not grow: to SQLite that is a full disk.
    _, most = resource.prlimit(store.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(store.process.pid, resource.RLIMIT_FSIZE, (4096, most))
    for number in range(2, 5):
        export(store.otlp, plain(number))
    eventually(lambda: store.metric("spans_dropped_total") == 3)
    eventually(lambda: grpc_health(store) == NOT_SERVING)
    assert http_health(store) == 503
    assert ask(store.url, f"/api/traces/{PLAIN}")[0] == 200, "what is there can be read"
    resource.prlimit(store.process.pid, resource.RLIMIT_FSIZE, (most, most))
    eventually(lambda: grpc_health(store) == SERVING)
    assert http_health(store) == 200
    export(store.otlp, plain(5))
    wait_for_traces(store.url, {PLAIN: 2})
    events = [json.loads(line)["event"] for line in store.log.read_text().splitlines()]
    assert events.count("spans_dropped") == 1 and events.count("spans_taken_again") == 1


def test_spans_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with (
        running_tracestore(tmp_path / "there") as further,
        running_tracestore(tmp_path, "--forward", further.otlp) as store,
    ):
        export(store.otlp, sample(AT))
        wait_for_traces(further.url, {TRACE: 7})
        wait_for_traces(store.url, {TRACE: 7})
        eventually(lambda: store.metric("spans_forwarded_total") == 8)
        there, here = (normal(ask(url, f"/api/traces/{TRACE}")[1]) for url in (further.url, store.url))
        assert there == here, "as they came"


def test_a_further_collector_that_is_down_costs_its_copies_one_warning_and_a_count(tmp_path: Path) -> None:
    (down,) = free_ports(1)
    with running_tracestore(tmp_path, "--forward", f"127.0.0.1:{down}") as store:
        for _ in range(3):
            export(store.otlp, sample(AT))
        wait_for_traces(store.url, {TRACE: 7})
        eventually(lambda: store.metric("spans_forward_dropped_total") == 24)
        assert store.metric("spans_stored_total") == 24
        assert store.log.read_text().count("forward_dropped") == 1


def test_a_further_collector_that_says_nothing_keeps_nobody_waiting(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with running_tracestore(tmp_path, "--forward", f"127.0.0.1:{silent.getsockname()[1]}") as store:
            for number in range(1, 21):
                export(store.otlp, plain(number))
            wait_for_traces(store.url, {PLAIN: 20})
            assert store.metric("spans_forwarded_total") == 0
            # Had it answered after forwarding them one after the other, it would have given up on all but the last.
            assert store.metric("spans_forward_dropped_total") < 19


def test_strange_requests_over_http_are_refused_and_the_next_is_served(store: RunningTraceStore) -> None:
    export(store.otlp, plain())
    wait_for_traces(store.url, {PLAIN: 1})
    host, port = store.url.removeprefix("http://").split(":")
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"GET /api/traces?service=" + b"x" * (70 << 10) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /api/traces?service=%ff%fe&tag=%00:%ed%a0%80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /api/services/%ff/operations HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"POST /api/traces HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(sent)
            assert connection.recv(65536).split(b" ")[1] in (b"200", b"400", b"404", b"405"), sent[:40]
    assert ask(store.url, "/api/services")[1]["data"] == ["api"]


def test_it_ends_well_with_a_connection_that_waits(tmp_path: Path) -> None:
    with running_tracestore(tmp_path) as store:
        export(store.otlp, plain())
        wait_for_traces(store.url, {PLAIN: 1})
        host, port = store.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"GET /api/services HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            store.process.send_signal(signal.SIGTERM)
            assert store.process.wait(10) == 0


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--database", "/proc/none/traces.sqlite"], 1, "cannot be used: unable to open database file"),
        (["--database", "OTHER"], 1, "is the database of another program (it has notes); name another file"),
        (["--spans-max", "10"], 2, "--spans-max 10 is below 1000"),
        (["--megabytes-max", "0"], 2, "--megabytes-max 0 is below 1"),
        (["--forward", "nowhere"], 2, "--forward 'nowhere' is not host:port"),
        (["--listen", "127.0.0.1:4317", "--forward", "127.0.0.1:4317"], 2, "is this process itself"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(tmp_path: Path, options: list[str], code: int, says: str) -> None:
    other = tmp_path / "other.sqlite"
    database = sqlite3.connect(other)
    database.execute("CREATE TABLE notes (text TEXT)")
    database.close()
    options = [str(other) if option == "OTHER" else option for option in options]
    command = [sys.executable, "-m", "services.tracestore", "--name", "t", "--database", str(tmp_path / "x.sqlite")]
    done = subprocess.run(
        [*command, "--query-listen", "127.0.0.1:0", *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert says in done.stderr.replace('\\"', '"')
    assert "Traceback" not in done.stderr
