"""Where finished spans leave the process: an exporter that counts what a failing destination costs.

A collector that is down must cost spans and one warning, never a request. `CountingExporter` stands around the real
exporter, on the batch processor's thread: after a failure it drops what comes for RETRY_SECONDS without trying, so that
the processor's queue never fills behind a call that hangs, and says once that it drops and once that it no longer does.
"""

import logging
import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from services.runtime.logging import Logger

OTLP_TIMEOUT_SECONDS = 2
RETRY_SECONDS = 2.0


def otlp_exporter(endpoint: str) -> SpanExporter:
    """The library's OTLP/gRPC exporter to host:port, its own log lines (several for each failed batch) turned off."""
    # Imported here: a mesh with its own store does not pay for the OTLP modules at start.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    return OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=OTLP_TIMEOUT_SECONDS)


class CountingExporter(SpanExporter):
    """Passes batches on to `exporter`. `dropped` counts the spans that it cost; `destination` names it in the log.

    `now` gives monotonic seconds.
    """

    def __init__(
        self, exporter: SpanExporter, destination: str, log: Logger, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.dropped = 0
        self._exporter = exporter
        self._destination = destination
        self._log = log
        self._now = now
        self._failing = False
        self._retry_at = 0.0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._failing and self._now() < self._retry_at:
            self.dropped += len(spans)
            return SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
            reason = "" if result is SpanExportResult.SUCCESS else "it did not take them"
        except Exception as error:  # noqa: BLE001 - the thread's root: whatever a destination raises costs spans alone
            reason = str(error) or type(error).__name__
        if reason:
            self.dropped += len(spans)
            self._retry_at = self._now() + RETRY_SECONDS
            if not self._failing:
                self._failing = True
                self._log.warning("spans_dropped", destination=self._destination, reason=reason)
            return SpanExportResult.FAILURE
        if self._failing:
            self._failing = False
            self._log.info("spans_taken_again", destination=self._destination, dropped=self.dropped)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        if self.dropped:
            self._log.info("spans_dropped_in_all", destination=self._destination, dropped=self.dropped)
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
