"""The raw calls to etcd: one stub for each RPC that we use, failover among endpoints, and errors in our own terms.

etcd's service names are not those of our proto package, so the methods are named here by their path on the wire.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from apiserver.store.protocol import (
    StoreCompacted,
    StoreError,
    StoreNoSpace,
    StoreOutcomeUnknown,
    StoreTooLarge,
    StoreUnavailable,
)
from protos.orrery.etcd.v1 import etcd_pb2 as pb

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
]
RESPONSES: dict[str, type[Message]] = {
    "KV/Range": pb.RangeResponse,
    "KV/Txn": pb.TxnResponse,
    "KV/Compact": pb.CompactionResponse,
    "Maintenance/Status": pb.StatusResponse,
}
_NEVER_SENT = (
    "failed to connect",
    "Connection refused",
    "connections to all backends failing",
    "DNS resolution failed",
    "No route to host",
    "empty address list",
)
# etcd's own refusals before anything was proposed (rpctypes).
_NOT_PROPOSED = (
    "etcdserver: too many requests",
    "etcdserver: not capable",
    "etcdserver: no leader",
    "etcdserver: server stopped",
    "etcdserver: corrupt cluster",
)
R = TypeVar("R", bound=Message)


class EtcdCalls:
    """Unary calls with a deadline, tried on the next endpoint when one certainly did not get them."""

    def __init__(self, endpoints: Sequence[str], *, timeout_seconds: float) -> None:
        assert endpoints, "etcd needs an endpoint"
        self.endpoints = list(endpoints)
        self._timeout_seconds = timeout_seconds
        self._channels = [grpc.aio.insecure_channel(endpoint, options=_OPTIONS) for endpoint in endpoints]
        self._stubs: dict[tuple[int, str], Callable[..., Awaitable[Message]]] = {}
        self._current = 0

    def _stub(self, index: int, method: str) -> Callable[..., Awaitable[Message]]:
        key = (index, method)
        if key not in self._stubs:
            self._stubs[key] = self._channels[index].unary_unary(
                "/etcdserverpb." + method,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=RESPONSES[method].FromString,
            )
        return self._stubs[key]

    async def call(self, method: str, request: Message, _response_type: type[R], *, writes: bool) -> R:
        """Calls `method` ("KV/Txn"). Raises a StoreError; for a call that writes, StoreOutcomeUnknown when in doubt."""
        last: StoreError | None = None
        for _ in range(len(self.endpoints)):
            index = self._current
            try:
                answer = await self._stub(index, method)(request, timeout=self._timeout_seconds)
                return cast("R", answer)
            except grpc.aio.AioRpcError as failure:
                last = store_error(failure, writes=writes)
                if isinstance(last, StoreUnavailable | StoreOutcomeUnknown) and self._current == index:
                    self._current = (index + 1) % len(self.endpoints)
                if not isinstance(last, StoreUnavailable):
                    raise last from None
        assert last is not None
        raise last

    def watch_call(self) -> tuple[int, grpc.aio.StreamStreamCall[Any, Any]]:
        """A new watch stream on the current endpoint, and that endpoint's index."""
        index = self._current
        stub: Any = self._channels[index].stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.WatchResponse.FromString,
        )
        return index, stub()

    def move_on(self, index: int) -> None:
        """Leaves the endpoint at `index`, if it is still the current one."""
        if self._current == index:
            self._current = (index + 1) % len(self.endpoints)

    async def close(self) -> None:
        await asyncio.gather(*(channel.close(grace=None) for channel in self._channels))


def store_error(failure: grpc.aio.AioRpcError, *, writes: bool) -> StoreError:
    """What a failed call means for the caller."""
    code, details = failure.code(), failure.details() or failure.code().name
    if "required revision has been compacted" in details:
        return StoreCompacted(0)
    if "database space exceeded" in details:
        return StoreNoSpace(f"etcd refuses writes: {details}; compact and defragment it, or raise its quota")
    too_large = code == grpc.StatusCode.RESOURCE_EXHAUSTED and "too many requests" not in details
    if too_large or "too many operations" in details or "request is too large" in details:
        return StoreTooLarge(f"etcd refuses the transaction: {details}")
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return StoreError(f"etcd refuses the request: {details}")
    if any(words in details for words in (*_NEVER_SENT, *_NOT_PROPOSED)):
        return StoreUnavailable(f"etcd is not available: {details}")
    if writes:
        return StoreOutcomeUnknown(f"etcd did not say what became of the write: {details}")
    return StoreUnavailable(f"etcd did not answer: {details}")
