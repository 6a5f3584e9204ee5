"""`EtcdStore`: a thin client of etcd's v3 API over grpc.aio.

Calls. One channel an endpoint; a call goes to the endpoint that answered last. When a call certainly did nothing, or was
a read, the next endpoint is tried within the same deadline; a write whose outcome is unknown is never sent twice from
here. All calls ask for a leader, so that a member without a quorum turns them away at once.

Watch. Each stream watches the whole keyspace and events outside the prefix are dropped on arrival: every revision then
arrives, and the watch's position is exact on every version of etcd (progress requests are not, before 3.4.31 and
3.5.13). After a lost stream it asks again from the revision after the last one delivered; it opens one revision earlier
than it needs and drops that one, because a watch that begins at the very revision of a compaction is accepted by etcd
but may lack deletes (3.4.23). Fragments are put together until a revision is whole.

This is where real time and a real network begin, so deadlines and waits are the event loop's own; a simulation has
`MemoryStore` in its place.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from apiserver.store.protocol import (
    Member,
    Page,
    Record,
    StoreCompacted,
    StoreError,
    StoreEvent,
    StoreTooLarge,
    StoreUnavailable,
    TxnResult,
    WatchBatch,
)
from apiserver.store.requests import (
    COMPACTED,
    prefix_end,
    record,
    store_error,
    store_event,
    txn_request,
    txn_result,
)
from protos.orrery.etcd.v1 import etcd_pb2 as pb

TIMEOUT_SECONDS = 5.0
BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX = 0.05, 2.0
RECEIVE_BYTES_MAX = 64 * 1024 * 1024
LIST_PAGE = 1000
KEYSPACE_BEGIN = b"\0"
KEYSPACE_END = b"\0"
REQUIRE_LEADER = (("hasleader", "true"),)
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.dns_ares_query_timeout", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class _Endpoint:
    """The calls of one channel."""

    def __init__(self, target: str) -> None:
        self.channel = grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        self.range = self._unary("KV/Range", pb.RangeResponse)
        self.txn = self._unary("KV/Txn", pb.TxnResponse)
        self.compact = self._unary("KV/Compact", pb.CompactionResponse)
        self.watch: Any = self.channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )

    def _unary(self, method: str, response_type: Any) -> Any:
        return self.channel.unary_unary(
            f"/etcdserverpb.{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response_type.FromString,
        )


class EtcdStore:
    """`apiserver.store.protocol.Store` on a real etcd of 3.4 or newer."""

    def __init__(
        self, endpoints: Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS, rng: random.Random | None = None
    ) -> None:
        """`endpoints` are host:port; `timeout_seconds` bounds each call, all its attempts together; `rng` is for jitter.

        Does not connect; needs a running event loop.
        """
        assert endpoints, "etcd needs an endpoint"
        self._timeout_seconds = timeout_seconds
        self._rng = rng or random.Random()  # noqa: S311 (jitter)
        self._endpoints = [_Endpoint(target) for target in endpoints]
        self._current = 0
        self._closed = False

    async def get(self, key: bytes, *, revision: int = 0) -> Record | None:
        response = await self._range(pb.RangeRequest(key=key, revision=revision))
        return record(response.kvs[0]) if response.kvs else None

    async def list(
        self, prefix: bytes, *, after: bytes = b"", limit: int = 0, revision: int = 0, keys_only: bool = False
    ) -> Page:
        records: list[Record] = []
        page_size = LIST_PAGE
        while True:
            wanted = min(page_size, limit - len(records)) if limit else page_size
            begin = max(prefix, after + b"\0" if after else b"") or KEYSPACE_BEGIN
            request = pb.RangeRequest(
                key=begin, range_end=prefix_end(prefix), limit=wanted, revision=revision, keys_only=keys_only
            )
            try:
                response = await self._range(request)
            except StoreTooLarge:
                if page_size == 1:
                    raise
                page_size = max(1, page_size // 8)
                continue
            records.extend(record(kv) for kv in response.kvs)
            revision = revision or response.header.revision
            if not response.more or (limit and len(records) >= limit):
                return Page(tuple(records), revision, response.more)
            after = records[-1].key

    async def revision(self) -> int:
        response = await self._range(pb.RangeRequest(key=KEYSPACE_BEGIN, count_only=True))
        revision: int = response.header.revision
        return revision

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        write = any(member.writes for member in members)
        response = await self._call("txn", txn_request(members), write=write)
        return txn_result(members, response)

    async def compact(self, revision: int) -> None:
        try:
            await self._call("compact", pb.CompactionRequest(revision=revision), write=True)
        except _CompactedSomewhere:
            return

    async def close(self) -> None:
        self._closed = True
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    async def _range(self, request: pb.RangeRequest) -> Any:
        try:
            return await self._call("range", request, write=False)
        except _CompactedSomewhere:
            raise StoreCompacted(await self._compact_revision()) from None

    async def _call(self, method: str, request: Any, *, write: bool) -> Any:
        """Calls the current endpoint, and the others in turn as long as that is safe and the deadline allows."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        deadline = _now() + self._timeout_seconds
        attempts = len(self._endpoints)
        while True:
            at = self._current
            remaining = deadline - _now()
            # Endpoints that hang must leave time for the ones after them.
            timeout = remaining / attempts if not write else remaining
            try:
                return await getattr(self._endpoints[at], method)(request, timeout=timeout, metadata=REQUIRE_LEADER)
            except grpc.aio.AioRpcError as error:
                if COMPACTED in (error.details() or ""):
                    raise _CompactedSomewhere from None
                failure = store_error(error.code(), error.details() or "", write=write)
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    self._leave(at)
            except asyncio.CancelledError:
                if not self._cancelled_by_close():
                    raise
                raise store_error(grpc.StatusCode.CANCELLED, "the store is closed", write=write) from None
            attempts -= 1
            if not isinstance(failure, StoreUnavailable) or not attempts or _now() >= deadline:
                raise failure from None

    def _cancelled_by_close(self) -> bool:
        """Closing a channel cancels its calls: that is not the task's own cancellation."""
        return self._closed and not _is_cancelled()

    def _leave(self, at: int) -> None:
        """The next call goes to another endpoint, unless somebody has already moved on."""
        if self._current == at:
            self._current = (at + 1) % len(self._endpoints)

    async def watch(self, prefix: bytes, *, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        assert start_revision >= 1, "a watch starts at a revision"
        position = start_revision
        backoff = BACKOFF_SECONDS_MIN
        while not self._closed:
            at = self._current
            try:
                async with aclosing(self._stream(self._endpoints[at], position)) as stream:
                    async for events, revision in stream:
                        backoff = BACKOFF_SECONDS_MIN
                        position = revision + 1
                        wanted = tuple(event for event in events if event.record.key.startswith(prefix))
                        yield WatchBatch(wanted, revision)
            except _StreamLost:
                self._leave(at)
            if not self._closed:
                await asyncio.sleep(backoff * self._rng.uniform(0.5, 1.0))
                backoff = min(backoff * 2, BACKOFF_SECONDS_MAX)
        raise StoreUnavailable("the store is closed")

    async def _stream(
        self, endpoint: _Endpoint, position: int
    ) -> AsyncGenerator[tuple[Sequence[StoreEvent], int], None]:
        """(events, revision) of whole revisions from `position` on, of one stream until it ends or is lost."""
        call = endpoint.watch(metadata=REQUIRE_LEADER)
        try:
            await call.write(_watch_request(max(1, position - 1)))
            pending: list[StoreEvent] = []
            while (response := await call.read()) is not grpc.aio.EOF:
                if response.canceled:
                    if response.compact_revision:
                        raise StoreCompacted(response.compact_revision)
                    raise _StreamLost
                pending.extend(store_event(event) for event in response.events if event.kv.mod_revision >= position)
                if not pending:
                    continue
                whole = _whole_revisions(pending) if response.fragment else len(pending)
                if whole:
                    events, pending = pending[:whole], pending[whole:]
                    position = events[-1].record.mod_revision + 1
                    yield events, position - 1
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise _StreamLost from None
        except asyncio.CancelledError:
            # A call that broke, or whose channel was closed, ends in CancelledError too.
            if _is_cancelled():
                raise
            raise _StreamLost from None
        finally:
            call.cancel()

    async def _compact_revision(self) -> int:
        """The revision of the last compaction. Only a refused watch tells it."""
        call = self._endpoints[self._current].watch(timeout=self._timeout_seconds, metadata=REQUIRE_LEADER)
        try:
            await call.write(_watch_request(1))
            while (response := await call.read()) is not grpc.aio.EOF:
                if response.compact_revision:
                    compacted: int = response.compact_revision
                    return compacted
                if not response.created:
                    break
        except grpc.aio.AioRpcError as error:
            raise store_error(error.code(), error.details() or "", write=False) from None
        finally:
            call.cancel()
        raise StoreUnavailable("etcd did not say what is compacted")


class _CompactedSomewhere(StoreError):
    """Compacted, at a revision that the error does not name."""


class _StreamLost(Exception):
    """The stream ended; asking again from the same position loses nothing."""


def _watch_request(start_revision: int) -> pb.WatchRequest:
    return pb.WatchRequest(
        create_request=pb.WatchCreateRequest(
            key=KEYSPACE_BEGIN, range_end=KEYSPACE_END, start_revision=start_revision, fragment=True
        )
    )


def _whole_revisions(events: Sequence[StoreEvent]) -> int:
    """How many of `events` belong to revisions that a later fragment cannot add to: all before the last revision."""
    last = events[-1].record.mod_revision
    count = len(events)
    while count and events[count - 1].record.mod_revision == last:
        count -= 1
    return count


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
