"""OpenTelemetry for every process: where spans go, and how a trace is carried.

A pod's trace context is W3C traceparent text that rides in the pod, so most spans are made with an explicit parent and
often after the fact, from times that a hot path noted as plain numbers (`record_span`). Spans go to an OTLP collector,
else to the lab's own store, else nowhere; then all of this costs next to nothing.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from services.runtime.settings import CommonSettings
from services.runtime.span_exporters import CountingExporter, otlp_exporter
from services.spans.exporter import SqliteSpanExporter

QUEUE_SPANS_MAX = 65_536
EXPORT_BATCH_SPANS = 2_048
EXPORT_PERIOD_MS = 500
FLUSH_SECONDS_MAX = 1.0
_TRACER_NAME = "orrery"

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Recorder:
    """What `record_span` needs of the provider."""

    processor: SpanProcessor
    resource: Resource
    ids: IdGenerator


_recorder: _Recorder | None = None
_ODD = frozenset("13579bdf")
_SCOPE = InstrumentationScope(_TRACER_NAME)
_UNSET = Status(StatusCode.UNSET)


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
    processor = BatchSpanProcessor(
        exporter,
        max_queue_size=QUEUE_SPANS_MAX,
        max_export_batch_size=EXPORT_BATCH_SPANS,
        schedule_delay_millis=EXPORT_PERIOD_MS,
    )
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    global _recorder  # noqa: PLW0603 - the SDK's provider is as global, and set at the same moment
    _recorder = _Recorder(processor, provider.resource, provider.id_generator)
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


@lru_cache(maxsize=4096)
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


def is_sampled(traceparent: str) -> bool:
    """Whether the trace is kept, by the lowest bit of its flags: 01, or 03 of an id that is random (W3C level 2)."""
    return traceparent[-1:] in _ODD


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
    valid and sampled parent, or when nothing listens, no span is made and `parent` comes back.

    The span goes to the processor as a finished one: beginning and ending it through the SDK costs several times as much,
    and hot paths make a dozen for each pod.
    """
    recorder = _recorder
    if recorder is None or not is_sampled(parent):
        return parent
    context = parse_traceparent(parent)
    if context is None:
        return parent
    span_id = recorder.ids.generate_span_id()
    own = SpanContext(context.trace_id, span_id, False, context.trace_flags, context.trace_state)
    span = ReadableSpan(
        name,
        context=own,
        parent=context,
        resource=recorder.resource,
        attributes=dict(attributes) if attributes else {},
        events=[Event(event_name, event_attributes, at_ns) for event_name, at_ns, event_attributes in events],
        links=[Link(linked) for text in links if (linked := parse_traceparent(text)) is not None],
        kind=kind,
        status=Status(StatusCode.ERROR, error) if error else _UNSET,
        start_time=start_ns,
        end_time=max(start_ns, end_ns),
        instrumentation_scope=_SCOPE,
    )
    recorder.processor.on_end(span)
    return f"{parent[:36]}{span_id:016x}{parent[52:]}"
