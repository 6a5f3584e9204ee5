"""One suite of questions to a query API: to our trace store, and where it can be built to the real Jaeger; same answers."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.lab.etcd import free_ports
from tests.integration.otlp_sample import LONELY, OTHER, TRACE, sample
from tests.integration.trace_query import ask, export, normal, wait_for_traces
from tests.jaeger import BUILD_SECONDS_MAX, running_jaeger

# The first of them may build Jaeger.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(BUILD_SECONDS_MAX)]
SPANS = {TRACE: 7, LONELY: 1}


@contextmanager
def running_tracestore(folder: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Like running_jaeger, with our own process."""
    otlp, query = free_ports(2)
    command = [sys.executable, "-m", "services.tracestore", "--name", "tracestore-0"]
    command += ["--listen", f"127.0.0.1:{otlp}", "--query-listen", f"127.0.0.1:{query}"]
    command += ["--database", str(folder / "traces.sqlite"), *options]
    with (folder / "tracestore.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield f"127.0.0.1:{otlp}", f"http://127.0.0.1:{query}"
        finally:
            process.terminate()
            assert process.wait(10) == 0


@dataclass(frozen=True)
class Collector:
    otlp: str
    url: str
    now_ns: int

    def ask(self, path: str, **parameters: Any) -> tuple[int, Any]:
        return ask(self.url, path, **parameters)

    def data(self, path: str, **parameters: Any) -> Any:
        status, body = self.ask(path, **parameters)
        assert status == 200, body
        return body["data"]


STARTED = time.time_ns()


@contextmanager
def collector(which: str, folder: Path) -> Iterator[Collector]:
    start = running_tracestore if which == "tracestore" else running_jaeger
    with start(folder) as (otlp, url):
        export(otlp, sample(STARTED))
        wait_for_traces(url, SPANS)
        yield Collector(otlp, url, STARTED)


@pytest.fixture(scope="module", params=["tracestore", "jaeger"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with collector(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


def found(api: Collector, **parameters: Any) -> set[str]:
    return {trace["traceID"] for trace in api.data("/api/traces", **parameters)}


def test_services_and_operations(api: Collector) -> None:
    assert sorted(api.data("/api/services")) == ["api", "client", "lonely", "missing-service-name"]
    assert sorted(api.data("/api/services/api/operations")) == ["Create", "consume", "ok", "produce", "txn"]
    assert api.data("/api/operations", service="api", spanKind="server") == [{"name": "Create", "spanKind": "server"}]


def test_a_trace_is_whole(api: Collector) -> None:
    (trace,) = api.data(f"/api/traces/{TRACE}")
    spans = {span["operationName"]: span for span in trace["spans"]}
    assert len(spans) == 7
    txn = spans["txn"]
    assert txn["references"] == [
        {"refType": "CHILD_OF", "traceID": TRACE, "spanID": f"{2:016x}"},
        {"refType": "FOLLOWS_FROM", "traceID": TRACE, "spanID": f"{1:016x}"},
        {"refType": "FOLLOWS_FROM", "traceID": OTHER, "spanID": f"{9:016x}"},
    ]
    tags = {tag["key"]: (tag["type"], tag["value"]) for tag in txn["tags"]}
    assert tags["error"] == ("bool", True) and tags["otel.status_description"] == ("string", "it broke")
    assert trace["processes"][txn["processID"]]["serviceName"] == "api"
    assert spans["apply"]["duration"] == 5_000


@pytest.mark.parametrize(
    ("parameters", "traces"),
    [
        ({"service": "api"}, {TRACE}),
        ({"service": "nobody"}, set()),
        ({"service": "api", "operation": "txn"}, {TRACE}),
        ({"service": "client", "operation": "txn"}, set()),
        ({"service": "api", "tags": '{"error":"true"}'}, {TRACE}),
        ({"service": "lonely", "tags": '{"error":"true"}'}, set()),
        ({"service": "client", "minDuration": "4ms"}, {TRACE}),
        ({"service": "client", "minDuration": "6ms"}, set()),
        ({"service": "client", "maxDuration": "4ms"}, set()),
        ({"service": "client", "tag": "text:x"}, {TRACE}),
        ({"service": "client", "tag": "text:y"}, set()),
    ],
)
def test_a_search_finds_traces_by_one_span(api: Collector, parameters: dict[str, str], traces: set[str]) -> None:
    assert found(api, **parameters) == traces


def test_calls_between_services_are_counted(api: Collector) -> None:
    end_ms = api.now_ns // 10**6
    calls = api.data("/api/dependencies", endTs=end_ms, lookback=3_600_000)
    assert {(call["parent"], call["child"], call["callCount"]) for call in calls} == {
        ("client", "api", 1),
        ("client", "missing-service-name", 1),
        ("api", "api", 4),
    }


QUESTIONS: list[tuple[str, dict[str, Any]]] = [
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
    *(
        ("/api/traces", {"service": service, **parameters})
        for service, parameters in (
            ("api", {}),
            ("api", {"limit": "1"}),
            ("api", {"limit": "x"}),
            ("api", {"minDuration": "x"}),
            ("api", {"minDuration": "5"}),
            ("api", {"minDuration": "1.5ms"}),
            ("api", {"minDuration": "4ms", "maxDuration": "1ms"}),
            ("api", {"start": "x"}),
            ("api", {"end": "x"}),
            ("api", {"start": "1", "end": "2"}),
            ("api", {"tags": "x"}),
            ("api", {"tags": "[]"}),
            ("api", {"tags": '{"a":1}'}),
            ("api", {"tag": "by"}),
            ("api", {"tag": "by:x"}),
            ("api", {"tag": ["by:x", "n:3"]}),
            ("api", {"tag": ["by:x", "n:4"]}),
            ("api", {"tag": "event:woken"}),
            ("api", {"tag": "error:false"}),
            ("api", {"tag": "otel.status_description:it broke"}),
            ("client", {"tag": "number:7"}),
            ("client", {"tag": "yes:true"}),
            ("client", {"tag": "no:false"}),
            ("client", {"tag": "no:true"}),
            ("client", {"tag": "real:1.5"}),
            ("client", {"tag": "whole:2"}),
            ("client", {"tag": "numbers:[1,2]"}),
            ("client", {"tag": 'map:{"k":"v"}'}),
            ("client", {"tag": "bytes:AP8="}),
            ("client", {"tag": "nothing:"}),
            ("client", {"tag": "empty:"}),
            ("client", {"tag": "umlaut:größer"}),
            ("client", {"tag": "rack:5"}),
            ("client", {"tag": "service.instance.id:c-0"}),
            ("client", {"tag": "otel.scope.name:orrery"}),
        )
    ),
]


def test_the_trace_store_answers_what_jaeger_answers(tmp_path: Path) -> None:
    for which in ("tracestore", "jaeger"):
        (tmp_path / which).mkdir()
    with collector("jaeger", tmp_path / "jaeger") as jaeger, collector("tracestore", tmp_path / "tracestore") as ours:
        for path, parameters in QUESTIONS:
            theirs = jaeger.ask(path, **parameters)
            own = ours.ask(path, **parameters)
            assert (own[0], normal(own[1])) == (theirs[0], normal(theirs[1])), (path, parameters)


def test_a_search_says_what_is_wrong_with_its_limit(tmp_path: Path) -> None:
    """Jaeger's memory storage calls this its own fault (500); it is the caller's."""
    with running_tracestore(tmp_path) as (otlp, url):
        export(otlp, sample(STARTED))
        status, body = ask(url, "/api/traces", service="api", limit=0)
    assert status == 400 and body["errors"][0]["msg"].startswith("search depth must be greater than 0")


def test_spans_are_passed_on_and_a_collector_that_is_down_costs_nothing(tmp_path: Path) -> None:
    (there, here) = (tmp_path / "there", tmp_path / "here")
    there.mkdir()
    here.mkdir()
    with (
        running_tracestore(there) as (next_otlp, next_url),
        running_tracestore(here, "--forward", next_otlp) as (otlp, url),
    ):
        export(otlp, sample(STARTED))
        wait_for_traces(next_url, SPANS)
        wait_for_traces(url, SPANS)
    (down,) = free_ports(1)
    with running_tracestore(here, "--forward", f"127.0.0.1:{down}") as (otlp, url):
        for _ in range(3):
            export(otlp, sample(STARTED))
        wait_for_traces(url, {TRACE: 7 * 4})
        deadline = time.monotonic() + 30
        while (dropped := metric(url, "tracestore_spans_forward_dropped_total")) < 24 and time.monotonic() < deadline:
            time.sleep(0.1)
    assert dropped == 24
    log = (here / "tracestore.log").read_text()
    assert log.count("forward_dropped") == 1, log


def metric(url: str, name: str) -> int:
    import urllib.request

    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = dict(line.split(" ") for line in answer.read().decode().splitlines() if not line.startswith("#"))
    return int(lines[name])
