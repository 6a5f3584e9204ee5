"""What comes in: bounded, never waited for, and counted once whatever becomes of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from structlog.testing import capture_logs

from services.model.errors import Unavailable
from services.runtime.transport import CallContext
from services.spans.store import SpanStore
from services.tracestore import ingest
from services.tracestore.ingest import Counters, Forwarder, Ingest, Waiting
from tests.integration.otlp_sample import of_process, span

CALL = CallContext("test")


def request(spans: int = 1, padding: int = 0) -> ExportTraceServiceRequest:
    made = [span(number, "x", number, attributes={"padding": "x" * padding}) for number in range(1, spans + 1)]
    return ExportTraceServiceRequest(resource_spans=[of_process("api", "a-0", made)])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SpanStore]:
    opened = SpanStore(str(tmp_path / "traces.sqlite"))
    yield opened
    opened.close()


async def test_what_waits_is_bounded_in_bytes_and_taken_in_order() -> None:
    size = request(padding=1_000).ByteSize()
    waiting = Waiting(bytes_max=3 * size)
    assert [waiting.put(request(padding=1_000)) for _ in range(4)] == [True, True, True, False]
    assert len(waiting.take(size + 1)) == 2
    assert waiting.put(request(padding=1_000)) and waiting.put(request(padding=1_000))
    assert not waiting.put(request())
    assert len(waiting.take(10 * size)) == 3
    assert waiting.take(1) == []
    assert waiting.put(request(padding=10_000)), "a single request of any size, when nothing waits"
    await waiting.wait()


async def test_an_empty_request_is_taken_too() -> None:
    waiting = Waiting()
    for _ in range(3):
        waiting.put(ExportTraceServiceRequest())
    assert len(waiting.take(2)) == 2 and len(waiting.take(2)) == 1


async def test_spans_for_which_there_is_no_room_are_refused_in_the_answer(
    store: SpanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest.Waiting.__init__, "__defaults__", (request(2).ByteSize(),))
    counters = Counters()
    service = Ingest(store, counters, structlog.get_logger())
    assert (await service.Export(request(2), CALL)).partial_success.rejected_spans == 0
    answer = await service.Export(request(3), CALL)
    assert answer.partial_success.rejected_spans == 3
    assert "dropped" in answer.partial_success.error_message
    await service.close()
    assert store.count() == 2
    assert (counters.received, counters.dropped) == (5, 3)


async def test_a_file_that_cannot_be_written_costs_spans_one_warning_and_a_count(store: SpanStore) -> None:
    counters = Counters()
    with capture_logs() as logs:
        service = Ingest(store, counters, structlog.get_logger())
        store.db.execute("PRAGMA query_only=1")
        for _ in range(3):
            await service.Export(request(2), CALL)
            await service.write_waiting()
        assert not service.healthy
        assert "readonly" in await service.probe()
        store.db.execute("PRAGMA query_only=0")
        assert await service.probe() == ""
        assert service.healthy
        await service.Export(request(2), CALL)
        await service.write_waiting()
        await service.close()
    assert [log["event"] for log in logs] == ["spans_dropped", "spans_taken_again"]
    assert (counters.stored, counters.dropped, store.count()) == (2, 6, 2)


class Further:
    """A further collector, as a channel to it: each answer is what it says, or its failure."""

    def __init__(self, *answers: ExportTraceServiceResponse | Unavailable) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def unary(self, *_arguments: Any, **_options: Any) -> Any:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    def stream(self, *_arguments: Any, **_options: Any) -> Any:
        raise AssertionError("OTLP has no streams")

    async def close(self) -> None:
        """Nothing is held."""


async def test_a_further_collector_that_fails_or_refuses_is_said_once_and_counted() -> None:
    refusal = ExportTraceServiceResponse()
    refusal.partial_success.rejected_spans, refusal.partial_success.error_message = 1, "no room"
    down, well = Unavailable("down"), ExportTraceServiceResponse()
    further = Further(well, down, down, refusal, well, refusal)
    counters = Counters()
    with capture_logs() as logs:
        forwarder = Forwarder(further, "there", counters, structlog.get_logger())
        for _ in range(6):
            forwarder.put(request(3))
            await forwarder.forward_waiting()
    assert [(log["event"], log.get("reason", "")) for log in logs] == [
        ("forward_dropped", "down"),
        ("forwarding_again", ""),
        ("forward_dropped", "no room"),
    ]
    assert (counters.forwarded, counters.forward_dropped) == (3 + 2 + 3 + 2, 3 + 3 + 1 + 1)


async def test_what_a_further_collector_is_too_slow_for_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest.Waiting.__init__, "__defaults__", (request(3).ByteSize(),))
    counters = Counters()
    with capture_logs() as logs:
        forwarder = Forwarder(Further(), "there", counters, structlog.get_logger())
        for _ in range(3):
            forwarder.put(request(3))
    assert counters.forward_dropped == 6
    assert [log["reason"] for log in logs] == ["its queue is full"]
