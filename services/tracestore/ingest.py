"""What comes in over OTLP/gRPC: into the file on a thread of its own, and on to a further collector where there is one.

Nothing here makes a sender wait. Requests queue up to WAITING_BYTES_MAX; beyond that their spans are refused in the
answer (OTLP's partial success) and counted. The further collector has a queue of its own, so that one that hangs costs
its own copies alone: one warning when it begins to, one line when it ends.
"""

import asyncio
import sqlite3
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from services.model.errors import ApiError
from services.runtime.logging import Logger
from services.runtime.transport import CallContext, Channel
from services.spans.store import SpanStore
from services.tracestore.otlp import is_whole, span_records

# Of requests as they came; in memory they are a few times that.
WAITING_BYTES_MAX = 32 << 20
# So that one transaction, which other writers wait for, stays short.
BATCH_BYTES = 1 << 20
FORWARD_TIMEOUT_SECONDS = 5.0
EXPORT_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@dataclass(slots=True)
class Counters:
    """Since the process began, in spans."""

    received: int = 0
    stored: int = 0
    refused: int = 0
    dropped: int = 0
    forwarded: int = 0
    forward_dropped: int = 0


def count_spans(request: ExportTraceServiceRequest) -> int:
    return sum(len(scope.spans) for group in request.resource_spans for scope in group.scope_spans)


class Waiting:
    """A queue of requests that is bounded in bytes; one producer's loop, one consumer."""

    def __init__(self, bytes_max: int = WAITING_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._requests: deque[tuple[ExportTraceServiceRequest, int]] = deque()
        self._filled = asyncio.Event()

    def put(self, request: ExportTraceServiceRequest) -> bool:
        """Whether there is room for it. An empty queue has room for any."""
        size = request.ByteSize()
        if self._requests and self._bytes + size > self._bytes_max:
            return False
        self._requests.append((request, size))
        self._bytes += size
        self._filled.set()
        return True

    async def wait(self) -> None:
        """Returns when something waits."""
        await self._filled.wait()

    def take(self, bytes_wanted: int) -> list[ExportTraceServiceRequest]:
        """The oldest, until they come to so many bytes; empty when nothing waits."""
        taken = []
        while self._requests and bytes_wanted > 0:
            request, size = self._requests.popleft()
            self._bytes -= size
            bytes_wanted -= max(1, size)
            taken.append(request)
        if not self._requests:
            self._filled.clear()
        return taken


class Forwarder:
    """Passes requests on, one at a time, in order; what does not fit the queue or is not taken is dropped and counted."""

    def __init__(self, channel: Channel, destination: str, counters: Counters, log: Logger) -> None:
        self._channel = channel
        self._destination = destination
        self._counters = counters
        self._log = log
        self._waiting = Waiting()
        self._failing = False

    def put(self, request: ExportTraceServiceRequest) -> None:
        if not self._waiting.put(request):
            self._dropped(count_spans(request), "its queue is full")

    async def run(self) -> None:
        """Ends only by cancellation."""
        while True:
            await self._waiting.wait()
            await self.forward_waiting()

    async def forward_waiting(self) -> None:
        """Passes on the oldest request that waits."""
        for request in self._waiting.take(1):
            await self._forward(request)

    async def _forward(self, request: ExportTraceServiceRequest) -> None:
        count = count_spans(request)
        try:
            answer = await self._channel.unary(
                EXPORT_METHOD, request, ExportTraceServiceResponse, timeout_seconds=FORWARD_TIMEOUT_SECONDS
            )
        except ApiError as error:
            self._dropped(count, error.message)
            return
        refused = min(count, answer.partial_success.rejected_spans)
        self._counters.forwarded += count - refused
        if refused:
            self._dropped(refused, answer.partial_success.error_message)
        elif self._failing:
            self._failing = False
            self._log.info("forwarding_again", destination=self._destination, dropped=self._counters.forward_dropped)

    def _dropped(self, spans: int, reason: str) -> None:
        self._counters.forward_dropped += spans
        if not self._failing:
            self._failing = True
            self._log.warning("forward_dropped", destination=self._destination, reason=reason)


class Ingest:
    """The TraceService. `healthy` is False while the file cannot be written; `database_bytes` is what it held last."""

    def __init__(self, store: SpanStore, counters: Counters, log: Logger, forwarder: Forwarder | None = None) -> None:
        self.healthy = True
        self.counters = counters
        self.database_bytes = store.bytes_used()
        self._store = store
        self._log = log
        self._forwarder = forwarder
        self._waiting = Waiting()
        # One thread: a connection to the file is not for two at once, and SQLite has one writer anyway.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="span-writer")

    async def Export(self, request: ExportTraceServiceRequest, _context: CallContext) -> ExportTraceServiceResponse:
        """OTLP's Export. Spans without proper ids, and those for which there is no room, are refused in the answer."""
        count = count_spans(request)
        self.counters.received += count
        if self._forwarder is not None:
            self._forwarder.put(request)
        answer = ExportTraceServiceResponse()
        wrong = sum(
            not is_whole(span)
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        )
        self.counters.refused += wrong
        if not self._waiting.put(request):
            self.counters.dropped += count - wrong
            answer.partial_success.rejected_spans = count
            answer.partial_success.error_message = "the span store cannot keep up; spans were dropped"
        elif wrong:
            answer.partial_success.rejected_spans = wrong
            answer.partial_success.error_message = f"spans without a valid trace, span or parent id: {wrong}"
        return answer

    async def run(self) -> None:
        """Writes for ever; ends only by cancellation."""
        while True:
            await self._waiting.wait()
            await self.write_waiting()

    async def write_waiting(self) -> None:
        """Writes the oldest requests that wait, in one transaction."""
        requests = self._waiting.take(BATCH_BYTES)
        stored, failed, reason = await asyncio.get_running_loop().run_in_executor(self._thread, self._write, requests)
        self.counters.stored += stored
        self.counters.dropped += failed
        self._note(reason)

    def _write(self, requests: list[ExportTraceServiceRequest]) -> tuple[int, int, str]:
        """On the writer's thread: (stored, dropped, why not)."""
        spans = [span for request in requests for span in span_records(request)]
        try:
            self._store.write(spans)
            self.database_bytes = self._store.bytes_used()
        except sqlite3.Error as error:
            return 0, len(spans), str(error)
        return len(spans), 0, ""

    async def probe(self) -> str:
        """Why the file cannot be written; empty when it can."""

        def write() -> str:
            try:
                self._store.probe()
            except sqlite3.Error as error:
                return str(error)
            return ""

        reason = await asyncio.get_running_loop().run_in_executor(self._thread, write)
        self._note(reason)
        return reason

    def _note(self, reason: str) -> None:
        """One line when the file stops taking spans, one when it takes them again."""
        if bool(reason) is self.healthy:
            self.healthy = not reason
            if reason:
                self._log.warning("spans_dropped", reason=reason)
            else:
                self._log.info("spans_taken_again", dropped=self.counters.dropped)

    async def close(self) -> None:
        """Writes what is left; afterwards nothing uses the store any more."""
        while requests := self._waiting.take(BATCH_BYTES):
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, requests)
        # A write that `run` was cancelled in may still be under way.
        await asyncio.to_thread(self._thread.shutdown)
