"""The network seam filled with gRPC (grpc.aio): servers from service descriptors, channels that fail over.

A channel holds one HTTP/2 connection per target and stays with the target that answered last. A call that certainly did
not reach a server moves on to the next target; one that may have been received is `OutcomeUnknown`, and trying again is
the caller's decision.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import grpc
import grpc.aio
import structlog
from google.protobuf import message_factory
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from protos.orrery.v1.api_pb2 import Status as WireStatus
from services.model.errors import ApiError, Internal, OutcomeUnknown, Unavailable
from services.runtime.status import STATUS_METADATA_KEY, error_of, error_of_code, grpc_code, status_of
from services.runtime.telemetry import context_from, current_traceparent, tracer
from services.runtime.transport import CallContext, M, Server, Service

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
CONNECT_BACKOFF_MS_MAX = 1_000
_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_SERVER_OPTIONS: list[tuple[str, int]] = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]
_CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_OPTIONS,
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", CONNECT_BACKOFF_MS_MAX),
    # A container that comes back may have another address, and one that starts late has no name before.
    ("grpc.dns_min_time_between_resolutions_ms", CONNECT_BACKOFF_MS_MAX),
    ("grpc.dns_ares_query_timeout", 2 * CONNECT_BACKOFF_MS_MAX),
    # Two channels of one process to one target must not share a broken connection's back-off.
    ("grpc.use_local_subchannel_pool", 1),
]
# gRPC's words for a call that never left this machine, or that the server's HTTP/2 layer refused unread.
_NEVER_SENT = (
    "failed to connect",
    "Connection refused",
    "connections to all backends failing",
    "DNS resolution failed",
    "No route to host",
    "empty address list",
    "Server is shutting down",
)


class GrpcChannel:
    """A channel to whichever target answers. One for each client; safe for concurrent calls."""

    def __init__(self, targets: Sequence[str], caller: str) -> None:
        assert targets, "a channel needs a target"
        self._channels = [grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS) for target in targets]
        self._targets = list(targets)
        self._current = 0
        self._caller = caller
        self._calls: dict[tuple[int, str], Any] = {}

    def _metadata(self, extra: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
        metadata = {"orrery-caller": self._caller, **(extra or {})}
        if "traceparent" not in metadata and (traceparent := current_traceparent()):
            metadata["traceparent"] = traceparent
        return tuple(metadata.items())

    def _callable(self, index: int, method: str, response_type: type[M], *, streaming: bool) -> Any:
        key = (index, method)
        if key not in self._calls:
            make = self._channels[index].unary_stream if streaming else self._channels[index].unary_unary
            self._calls[key] = make(
                method,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=response_type.FromString,
            )
        return self._calls[key]

    async def unary(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        timeout_seconds: float,
        metadata: Mapping[str, str] | None = None,
    ) -> M:
        """See `services.runtime.transport.Channel.unary`."""
        sent = self._metadata(metadata)
        error: ApiError | None = None
        for _ in self._targets:
            index = self._current
            try:
                call = self._callable(index, method, response_type, streaming=False)
                return cast("M", await call(request, timeout=timeout_seconds, metadata=sent))
            except grpc.aio.AioRpcError as failure:
                error, moved = self._judge(failure, index)
                if not moved:
                    raise error from None
        assert error is not None
        raise error

    async def stream(
        self,
        method: str,
        request: Message,
        response_type: type[M],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[M]:
        """See `services.runtime.transport.Channel.stream`."""
        index = self._current
        call = self._callable(index, method, response_type, streaming=True)(request, metadata=self._metadata(metadata))
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as failure:
            error, _ = self._judge(failure, index)
            raise error from None
        finally:
            call.cancel()

    def _judge(self, failure: grpc.aio.AioRpcError, index: int) -> tuple[ApiError, bool]:
        """The error that `failure` is, and whether another target should be tried."""
        for key, value in failure.trailing_metadata() or ():
            if key == STATUS_METADATA_KEY:
                return error_of(WireStatus.FromString(cast("bytes", value))), False
        details = f"{self._targets[index]}: {failure.details() or failure.code().name}"
        if failure.code() != grpc.StatusCode.UNAVAILABLE:
            return error_of_code(failure.code(), details), False
        if self._current == index:
            self._current = (index + 1) % len(self._targets)
        if any(words in (failure.details() or "") for words in _NEVER_SENT):
            return Unavailable(f"no server answers at {', '.join(self._targets)}: {failure.details()}"), True
        return OutcomeUnknown(f"connection lost during the call: {details}"), False

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(grace=None)


class GrpcServer:
    """A listening server; made by `GrpcTransport.serve`."""

    def __init__(
        self, server: grpc.aio.Server, address: str, servicer: health.aio.HealthServicer, names: list[str]
    ) -> None:
        self._server = server
        self._address = address
        self._health = servicer
        self._names = names
        self._pending: list[Awaitable[None]] = []

    @property
    def address(self) -> str:
        return self._address

    def set_serving(self, serving: bool) -> None:
        """What grpc.health.v1 answers, for the server as a whole ("") and for each service."""
        state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            # The servicer's own setter only adds a notification of watchers to this.
            self._health._server_status[name] = state

    async def stop(self, grace_seconds: float) -> None:
        await self._server.stop(grace_seconds)


class GrpcTransport:
    """Channels and servers over gRPC. `rng` spreads clients over the targets."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def connect(self, targets: Sequence[str], *, caller: str) -> GrpcChannel:
        shuffled = list(targets)
        self._rng.shuffle(shuffled)
        return GrpcChannel(shuffled, caller)

    async def serve(self, address: str, services: Sequence[Service]) -> Server:
        """See `services.runtime.transport.Transport.serve`."""
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        names = [service.descriptor.full_name for service in services]
        server.add_generic_rpc_handlers(tuple(_handlers(service) for service in services))
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        host, _, port = address.rpartition(":")
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: the port is taken or not ours to use") from error
        if bound == 0 or (port != "0" and bound != int(port)):
            raise OSError(f"cannot listen on {address}: the port is taken or not ours to use")
        await server.start()
        listening = GrpcServer(server, f"{host}:{bound}", servicer, ["", *names])
        listening.set_serving(False)
        return listening


def _handlers(service: Service) -> grpc.GenericRpcHandler:
    methods: dict[str, Any] = {}
    for method in service.descriptor.methods:
        request_type = message_factory.GetMessageClass(method.input_type)
        wrap = _streaming_handler if method.server_streaming else _unary_handler
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        methods[method.name] = make(
            wrap(getattr(service.handler, method.name), service.descriptor.full_name, method.name),
            request_deserializer=request_type.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
    return grpc.method_handlers_generic_handler(service.descriptor.full_name, methods)


def _call_context(context: grpc.aio.ServicerContext[Any, Any]) -> CallContext:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return CallContext(metadata.get("orrery-caller", ""), metadata)


async def _refuse(context: grpc.aio.ServicerContext[Any, Any], error: ApiError) -> None:
    details = status_of(error).SerializeToString()
    await context.abort(grpc_code(error), error.message, ((STATUS_METADATA_KEY, details),))


def _unary_handler(handle: Callable[..., Awaitable[Message]], service: str, name: str) -> Callable[..., Any]:
    span_name = f"{service}/{name}"

    async def serve(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
        call = _call_context(context)
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name, "orrery.caller": call.caller}
        with tracer().start_as_current_span(
            span_name,
            context=context_from(call.traceparent),
            kind=SpanKind.SERVER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            error: ApiError
            try:
                return await handle(request, call)
            except ApiError as refusal:
                error = refusal
            except Exception:  # noqa: BLE001 - the task's root: logged, and answered without details
                error = _bug(span_name)
            span.set_attribute("rpc.grpc.status_code", grpc_code(error).value[0])
            span.set_status(Status(StatusCode.ERROR, error.reason))
        await _refuse(context, error)
        raise AssertionError("abort raises")

    return serve


def _streaming_handler(handle: Callable[..., AsyncIterator[Message]], service: str, name: str) -> Callable[..., Any]:
    async def serve(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Message]:
        error: ApiError
        try:
            async for response in handle(request, _call_context(context)):
                yield response
            return
        except ApiError as refusal:
            error = refusal
        except Exception:  # noqa: BLE001 - the task's root: logged, and answered without details
            error = _bug(f"{service}/{name}")
        await _refuse(context, error)

    return serve


def _bug(method: str) -> ApiError:
    structlog.get_logger().exception("handler_failed", method=method)
    context = trace.get_current_span().get_span_context()
    return Internal(f"{method} failed; the server's log has the reason (trace {context.trace_id:032x})")
