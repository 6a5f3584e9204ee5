"""One suite of questions to a query API: to our trace store, and where it can be built to the real Jaeger; same answers."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.otlp_edges import EDGE_SPANS, edges
from tests.integration.otlp_sample import LONELY, OTHER, TRACE, sample
from tests.integration.trace_query import ask, export, normal, wait_for_traces
from tests.integration.trace_questions import OF_EDGES, OF_SAMPLE, OUR_WAY, Question
from tests.jaeger import BUILD_SECONDS_MAX, running_jaeger
from tests.tracestore import running_tracestore

# The first of them may build Jaeger.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(BUILD_SECONDS_MAX)]
SPANS = {TRACE: 7, LONELY: 1}


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
    with ExitStack() as stack:
        if which == "jaeger":
            otlp, url = stack.enter_context(running_jaeger(folder))
        else:
            store = stack.enter_context(running_tracestore(folder))
            otlp, url = store.otlp, store.url
        export(otlp, sample(STARTED))
        wait_for_traces(url, SPANS)
        yield Collector(otlp, url, STARTED)


@pytest.fixture(scope="module", params=["tracestore", pytest.param("jaeger", marks=pytest.mark.jaeger)])
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


@dataclass(frozen=True)
class Pair:
    """Both, with the same spans."""

    jaeger: Collector
    ours: Collector


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folders = {which: tmp_path_factory.mktemp(f"both-{which}") for which in ("tracestore", "jaeger")}
    with (
        collector("jaeger", folders["jaeger"]) as jaeger,
        collector("tracestore", folders["tracestore"]) as ours,
    ):
        for each in (jaeger, ours):
            export(each.otlp, edges(STARTED))
            wait_for_traces(each.url, EDGE_SPANS)
        yield Pair(jaeger, ours)


@pytest.mark.jaeger
@pytest.mark.parametrize("question", OF_SAMPLE + OF_EDGES, ids=lambda question: f"{question}"[:80])
def test_the_trace_store_answers_what_jaeger_answers(both: Pair, question: Question) -> None:
    path, parameters = question
    theirs, own = both.jaeger.ask(path, **parameters), both.ours.ask(path, **parameters)
    assert (own[0], normal(own[1])) == (theirs[0], normal(theirs[1]))


@pytest.mark.jaeger
@pytest.mark.parametrize(("question", "theirs", "own", "traces"), OUR_WAY, ids=lambda value: f"{value}"[:80])
def test_where_the_trace_store_goes_its_own_way(
    both: Pair, question: Question, theirs: int, own: int, traces: int
) -> None:
    path, parameters = question
    assert both.jaeger.ask(path, **parameters)[0] == theirs
    status, body = both.ours.ask(path, **parameters)
    assert status == own
    assert len(body["data"] or []) == traces
    if status == 400:
        assert body["errors"][0]["msg"] == both.jaeger.ask(path, **parameters)[1]["errors"][0]["msg"]
