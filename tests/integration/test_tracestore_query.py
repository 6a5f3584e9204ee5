"""One suite of questions to a query API: to our trace store, and where it can be built to the real Jaeger; same answers."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.answer_record import Answer, AnswerRecord
from tests.integration.otlp_edges import EDGE_SPANS, edges
from tests.integration.otlp_sample import LONELY, OTHER, TRACE, sample
from tests.integration.trace_query import ask, export, normal, wait_for_traces
from tests.integration.trace_questions import OF_EDGES, OF_SAMPLE, OUR_WAY, OurWay, Question, short
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


# A whole second, so that microseconds are cut off alike on any day.
STARTED = time.time_ns() // 10**9 * 10**9
RECORD = Path(__file__).with_name("jaeger_answers.json")


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


@contextmanager
def edged(which: str, folder: Path) -> Iterator[Collector]:
    with collector(which, folder) as running:
        export(running.otlp, edges(STARTED))
        wait_for_traces(running.url, EDGE_SPANS)
        yield running


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with edged("tracestore", tmp_path_factory.mktemp("ours")) as running:
        yield running


@pytest.fixture(scope="module")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with edged("jaeger", tmp_path_factory.mktemp("theirs")) as running:
        yield running


@pytest.fixture(scope="module")
def record() -> Iterator[AnswerRecord]:
    kept = AnswerRecord(RECORD, rewrite=bool(os.environ.get("ORRERY_REWRITE")))
    yield kept
    kept.save()


def plain(collector: Collector, question: Question) -> Answer:
    path, parameters = question
    status, body = collector.ask(path, **parameters)
    return status, normal(body, since_us=STARTED // 1000)


@pytest.mark.jaeger
@pytest.mark.parametrize("question", [*OF_SAMPLE, *OF_EDGES], ids=short)
def test_the_trace_store_answers_what_jaeger_answers(
    jaeger: Collector, ours: Collector, record: AnswerRecord, question: Question
) -> None:
    theirs = plain(jaeger, question)
    assert plain(ours, question) == theirs
    assert record.of(question, theirs) == theirs, "recorded anew with: ORRERY_REWRITE=1 pytest -m jaeger"


@pytest.mark.parametrize("question", [*OF_SAMPLE, *OF_EDGES], ids=short)
def test_the_trace_store_answers_what_jaeger_answered_when_it_was_recorded(
    ours: Collector, record: AnswerRecord, question: Question
) -> None:
    own = plain(ours, question)
    assert own == record.of(question)


@pytest.mark.jaeger
@pytest.mark.parametrize("way", OUR_WAY, ids=short)
def test_where_the_trace_store_goes_another_way_than_jaeger(jaeger: Collector, ours: Collector, way: OurWay) -> None:
    theirs = plain(jaeger, way.question)
    assert theirs[0] == way.their_status
    assert theirs != plain(ours, way.question), "it need not be its own way any more"


@pytest.mark.parametrize("way", OUR_WAY, ids=short)
def test_where_the_trace_store_goes_its_own_way(ours: Collector, way: OurWay) -> None:
    status, body = plain(ours, way.question)
    assert status == way.status
    assert {trace["traceID"] for trace in body["data"] or []} == set(way.traces)
    if status == 400:
        assert body["errors"][0]["msg"] == way.message
