"""OpenTelemetry for every process: where spans go, and how a trace is carried.

A pod's trace context is W3C traceparent text that rides in the pod, so most spans are made with an explicit parent and
often after the fact, from times that a hot path noted as plain numbers (`record_span`). Spans go to an OTLP collector,
else to the lab's own store, else nowhere; then all of this costs next to nothing.
"""

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from services.runtime.settings import CommonSettings
from services.runtime.span_exporters import CountingExporter, otlp_exporter
from services.tracestore.exporter import SqliteSpanExporter

QUEUE_SPANS_MAX = 65_536
EXPORT_BATCH_SPANS = 2_048
EXPORT_PERIOD_MS = 500
FLUSH_SECONDS_MAX = 1.0
_TRACER_NAME = "orrery"

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]


class Telemetry:
    """The provider of this process; `shutdown` writes what is left, within FLUSH_SECONDS_MAX."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider

    def shutdown(self) -> None:
        if self._provider is not None:
            # The library waits up to 30 s for a collector that hangs; a process that stops has no such time.
            ending = threading.Thread(target=self._provider.shutdown, daemon=True)
            ending.start()
            ending.join(FLUSH_SECONDS_MAX)


def configure(service_name: str, settings: CommonSettings) -> Telemetry:
    """Installs the process's tracer provider: OTLP when an endpoint is set, else the span store, else nothing."""
    exporter = _exporter(settings)
    if exporter is None:
        return Telemetry(None)
    provider = TracerProvider(
        resource=Resource.create({"service.name": service_name, "service.instance.id": settings.name}),
        sampler=ParentBased(TraceIdRatioBased(settings.trace_ratio)),
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=QUEUE_SPANS_MAX,
            max_export_batch_size=EXPORT_BATCH_SPANS,
            schedule_delay_millis=EXPORT_PERIOD_MS,
        )
    )
    trace.set_tracer_provider(provider)
    return Telemetry(provider)


def _exporter(settings: CommonSettings) -> SpanExporter | None:
    destination = settings.otlp_endpoint or settings.trace_store
    if not destination:
        return None
    inner = otlp_exporter(destination) if settings.otlp_endpoint else SqliteSpanExporter(destination)
    return CountingExporter(inner, destination, structlog.get_logger(process=settings.name))


@cache
def tracer() -> trace.Tracer:
    """The tracer of this process; one that does nothing while telemetry is off. Follows a provider that is set later."""
    return trace.get_tracer(_TRACER_NAME)


def parse_traceparent(traceparent: str) -> SpanContext | None:
    """The span that a W3C traceparent (version 00) names, None when the text names none."""
    parts = traceparent.split("-")
    if len(parts) != 4 or [len(part) for part in parts] != [2, 32, 16, 2]:
        return None
    try:
        trace_id, span_id, flags = int(parts[1], 16), int(parts[2], 16), int(parts[3], 16)
    except ValueError:
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


def context_from(traceparent: str) -> Context:
    """A context whose current span is the one that `traceparent` names; an empty one when it names none."""
    span_context = parse_traceparent(traceparent)
    if span_context is None:
        return Context()
    return trace.set_span_in_context(NonRecordingSpan(span_context), Context())


def traceparent_of(span: Span) -> str:
    """The W3C traceparent of `span`; empty for one that does not exist."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def current_traceparent() -> str:
    """The traceparent of the span that is current here; empty outside of any."""
    return traceparent_of(trace.get_current_span())


def record_span(
    name: str,
    *,
    parent: str,
    start_ns: int,
    end_ns: int,
    attributes: Attributes | None = None,
    events: Sequence[tuple[str, int, Attributes]] = (),
    kind: SpanKind = SpanKind.INTERNAL,
    error: str = "",
    links: Sequence[str] = (),
) -> str:
    """Makes a span that is already over and returns its traceparent, to parent others with.

    `parent` and `links` are traceparents; times are Unix nanoseconds; an event is (name, time, attributes). Without a
    valid parent, or when nothing listens, no span is made and `parent` comes back.
    """
    if parse_traceparent(parent) is None:
        return parent
    linked: list[Any] = [Link(context) for text in links if (context := parse_traceparent(text)) is not None]
    span = tracer().start_span(
        name, context=context_from(parent), kind=kind, attributes=attributes, links=linked or None, start_time=start_ns
    )
    if not span.is_recording():
        return parent
    for event_name, at_ns, event_attributes in events:
        span.add_event(event_name, event_attributes, at_ns)
    if error:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(max(start_ns, end_ns))
    return traceparent_of(span)
