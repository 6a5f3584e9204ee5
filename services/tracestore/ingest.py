"""What comes in over OTLP/gRPC: into the file on a thread of its own, and on to a further collector where there is one.

Nothing here makes a sender wait. Requests queue up to REQUESTS_WAITING_MAX; beyond that their spans are refused in the
answer (OTLP's partial success) and counted. The further collector has a queue of its own, so that one that hangs costs
its own copies alone: one warning when it begins to, one line when it ends.
"""

import asyncio
import sqlite3
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

REQUESTS_WAITING_MAX = 256
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


class Forwarder:
    """Passes requests on, one at a time, in order; what does not fit the queue or is not taken is dropped and counted."""

    def __init__(self, channel: Channel, destination: str, counters: Counters, log: Logger) -> None:
        self._channel = channel
        self._destination = destination
        self._counters = counters
        self._log = log
        self._waiting: asyncio.Queue[ExportTraceServiceRequest] = asyncio.Queue(REQUESTS_WAITING_MAX)
        self._failing = False

    def put(self, request: ExportTraceServiceRequest) -> None:
        try:
            self._waiting.put_nowait(request)
        except asyncio.QueueFull:
            self._dropped(request, "its queue is full")

    async def run(self) -> None:
        """Ends only by cancellation."""
        while True:
            request = await self._waiting.get()
            try:
                await self._channel.unary(
                    EXPORT_METHOD, request, ExportTraceServiceResponse, timeout_seconds=FORWARD_TIMEOUT_SECONDS
                )
            except ApiError as error:
                self._dropped(request, error.message)
                continue
            self._counters.forwarded += count_spans(request)
            if self._failing:
                self._failing = False
                self._log.info(
                    "forwarding_again", destination=self._destination, dropped=self._counters.forward_dropped
                )

    def _dropped(self, request: ExportTraceServiceRequest, reason: str) -> None:
        self._counters.forward_dropped += count_spans(request)
        if not self._failing:
            self._failing = True
            self._log.warning("forward_dropped", destination=self._destination, reason=reason)


class Ingest:
    """The TraceService. `healthy` is False while the file cannot be written."""

    def __init__(self, store: SpanStore, counters: Counters, log: Logger, forwarder: Forwarder | None = None) -> None:
        self.healthy = True
        self.counters = counters
        self._store = store
        self._log = log
        self._forwarder = forwarder
        self._waiting: asyncio.Queue[ExportTraceServiceRequest] = asyncio.Queue(REQUESTS_WAITING_MAX)
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
        if wrong:
            self.counters.refused += wrong
            answer.partial_success.rejected_spans = wrong
            answer.partial_success.error_message = f"{wrong} spans have no valid trace or span id"
        try:
            self._waiting.put_nowait(request)
        except asyncio.QueueFull:
            self.counters.dropped += count - wrong
            answer.partial_success.rejected_spans = count
            answer.partial_success.error_message = "the span store cannot keep up; spans were dropped"
        return answer

    async def run(self) -> None:
        """Writes for ever; ends only by cancellation."""
        loop = asyncio.get_running_loop()
        while True:
            requests = [await self._waiting.get()]
            while not self._waiting.empty():
                requests.append(self._waiting.get_nowait())
            stored, failed, reason = await loop.run_in_executor(self._thread, self._write, requests)
            self.counters.stored += stored
            self.counters.dropped += failed
            if bool(reason) is self.healthy:
                self.healthy = not reason
                if reason:
                    self._log.warning("spans_dropped", reason=reason)
                else:
                    self._log.info("spans_taken_again", dropped=self.counters.dropped)

    def _write(self, requests: list[ExportTraceServiceRequest]) -> tuple[int, int, str]:
        """On the writer's thread: (stored, dropped, why not)."""
        spans = [span for request in requests for span in span_records(request) if span.trace_id.strip("0")]
        spans = [span for span in spans if len(span.trace_id) == 32 and len(span.span_id) == 16]
        try:
            self._store.write(spans)
        except sqlite3.Error as error:
            return 0, len(spans), str(error)
        return len(spans), 0, ""

    async def close(self) -> None:
        """Writes what is left, then lets the thread go."""
        left = []
        while not self._waiting.empty():
            left.append(self._waiting.get_nowait())
        if left:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, left)
        self._thread.shutdown(wait=False)
