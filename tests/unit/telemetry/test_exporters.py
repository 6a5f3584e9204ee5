"""A destination that fails costs spans, one warning and a count."""

from collections.abc import Sequence

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from structlog.testing import capture_logs

from services.runtime.span_exporters import RETRY_SECONDS, CountingExporter

SPANS = [ReadableSpan("a"), ReadableSpan("b")]


class Destination(SpanExporter):
    """`fault`: what the next export does."""

    def __init__(self) -> None:
        self.fault: Exception | SpanExportResult = SpanExportResult.SUCCESS
        self.batches = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches += 1
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.fault


def test_failures_are_counted_said_once_and_their_end_too() -> None:
    destination, now = Destination(), [0.0]
    exporter = CountingExporter(destination, "jaeger:4317", structlog.get_logger(), lambda: now[0])
    with capture_logs() as said:
        assert exporter.export(SPANS) is SpanExportResult.SUCCESS
        for fault in (OSError("no route"), SpanExportResult.FAILURE):
            destination.fault = fault
            assert exporter.export(SPANS) is SpanExportResult.FAILURE
            now[0] += RETRY_SECONDS
        destination.fault = SpanExportResult.SUCCESS
        assert exporter.export(SPANS) is SpanExportResult.SUCCESS
        exporter.shutdown()
    assert exporter.dropped == 4
    assert [(entry["event"], entry["log_level"]) for entry in said] == [
        ("spans_dropped", "warning"),
        ("spans_taken_again", "info"),
        ("spans_dropped_in_all", "info"),
    ]
    assert said[0]["destination"] == "jaeger:4317" and said[0]["reason"] == "no route"
    assert said[1]["dropped"] == 4


def test_after_a_failure_nothing_is_tried_for_a_while_so_that_the_queue_never_fills() -> None:
    destination, now = Destination(), [0.0]
    exporter = CountingExporter(destination, "x", structlog.get_logger(), lambda: now[0])
    destination.fault = OSError("hangs")
    with capture_logs():
        for _ in range(10):
            exporter.export(SPANS)
        assert (destination.batches, exporter.dropped) == (1, 20)
        now[0] = RETRY_SECONDS
        exporter.export(SPANS)
    assert (destination.batches, exporter.dropped) == (2, 22)
