"""The `Store` on a real etcd: a thin client over grpc.aio.

A group of several members becomes a transaction of nested transactions; a single member a plain one. A watch is one
stream; when it breaks it is begun again after the last revision that was delivered whole, on the next endpoint.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from apiserver.store.etcd_calls import EtcdCalls, store_error
from apiserver.store.protocol import (
    Compare,
    Delete,
    Member,
    MemberResult,
    Page,
    Put,
    Record,
    Relation,
    StoreCompacted,
    StoreError,
    StoreEvent,
    StoreUnavailable,
    Target,
    TxnResult,
    WatchBatch,
    Write,
)
from protos.orrery.etcd.v1 import etcd_pb2 as pb

TIMEOUT_SECONDS = 5.0
RECONNECT_SECONDS = 0.1
_RELATIONS = {
    Relation.EQUAL: pb.Compare.EQUAL,
    Relation.NOT_EQUAL: pb.Compare.NOT_EQUAL,
    Relation.GREATER: pb.Compare.GREATER,
    Relation.LESS: pb.Compare.LESS,
}


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`, as etcd's range_end."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"


class EtcdStore:
    """`endpoints` are host:port. Every call ends within `timeout_seconds` for each endpoint."""

    def __init__(self, endpoints: Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._calls = EtcdCalls(endpoints, timeout_seconds=timeout_seconds)

    async def get(self, key: bytes, *, revision: int = 0) -> Record | None:
        """See `Store.get`."""
        request = pb.RangeRequest(key=key, revision=revision)
        answer = await self._calls.call("KV/Range", request, pb.RangeResponse, writes=False)
        return _record(answer.kvs[0]) if answer.kvs else None

    async def list(
        self, prefix: bytes, *, after: bytes = b"", limit: int = 0, revision: int = 0, keys_only: bool = False
    ) -> Page:
        """See `Store.list`."""
        request = pb.RangeRequest(
            key=max(prefix, after + b"\0") if after else prefix,
            range_end=prefix_end(prefix),
            limit=limit,
            revision=revision,
            keys_only=keys_only,
        )
        answer = await self._calls.call("KV/Range", request, pb.RangeResponse, writes=False)
        return Page(tuple(_record(kv) for kv in answer.kvs), revision or answer.header.revision, answer.more)

    async def revision(self) -> int:
        """See `Store.revision`."""
        request = pb.RangeRequest(key=b"\0", count_only=True)
        answer = await self._calls.call("KV/Range", request, pb.RangeResponse, writes=False)
        return answer.header.revision

    async def version(self) -> str:
        """etcd's own version, "3.5.16"."""
        answer = await self._calls.call("Maintenance/Status", pb.StatusRequest(), pb.StatusResponse, writes=False)
        return answer.version

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        """See `Store.txn`."""
        if len(members) == 1:
            answer = await self._calls.call("KV/Txn", _txn(members[0]), pb.TxnResponse, writes=bool(members[0].writes))
            return TxnResult(answer.header.revision, (_result(answer),))
        request = pb.TxnRequest(success=[pb.RequestOp(request_txn=_txn(member)) for member in members])
        writes = any(member.writes for member in members)
        answer = await self._calls.call("KV/Txn", request, pb.TxnResponse, writes=writes)
        return TxnResult(answer.header.revision, tuple(_result(item.response_txn) for item in answer.responses))

    async def compact(self, revision: int) -> None:
        """See `Store.compact`. Compacting what is compacted already is done already."""
        try:
            await self._calls.call(
                "KV/Compact", pb.CompactionRequest(revision=revision), pb.CompactionResponse, writes=True
            )
        except StoreCompacted:
            return

    async def watch(self, prefix: bytes, *, start_revision: int) -> AsyncIterator[WatchBatch]:
        """See `Store.watch`. Ends only by cancellation or StoreCompacted."""
        resume = start_revision
        while True:
            index, call = self._calls.watch_call()
            try:
                async for batch in _watch_once(call, prefix, resume):
                    resume = max(resume, batch.revision + 1)
                    yield batch
            except grpc.aio.AioRpcError as failure:
                error = store_error(failure, writes=False)
                if not isinstance(error, StoreUnavailable):
                    raise error from None
            except StoreUnavailable:
                pass
            finally:
                call.cancel()
            self._calls.move_on(index)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def close(self) -> None:
        await self._calls.close()


async def _watch_once(
    call: "grpc.aio.StreamStreamCall[Any, Any]", prefix: bytes, start_revision: int
) -> AsyncIterator[WatchBatch]:
    """The batches of one stream; returns or raises StoreUnavailable when it ends."""
    create = pb.WatchCreateRequest(
        key=prefix, range_end=prefix_end(prefix), start_revision=start_revision, progress_notify=True, fragment=True
    )
    await call.write(pb.WatchRequest(create_request=create))
    parts: list[StoreEvent] = []
    while True:
        response = await call.read()
        if response is grpc.aio.EOF:
            raise StoreUnavailable("etcd ended the watch")
        if response.compact_revision:
            raise StoreCompacted(response.compact_revision)
        if response.canceled:
            if "compacted" in response.cancel_reason:
                raise StoreCompacted(0)
            raise StoreUnavailable(f"etcd cancelled the watch: {response.cancel_reason}")
        parts.extend(_event(event) for event in response.events)
        if response.fragment or response.created:
            continue
        events, parts = tuple(parts), []
        # Without events the header's revision is progress; with events it may run ahead of what was delivered.
        yield WatchBatch(events, events[-1].record.mod_revision if events else response.header.revision)


def _event(event: pb.Event) -> StoreEvent:
    return StoreEvent(event.type == pb.Event.DELETE, _record(event.kv))


def _record(kv: pb.KeyValue) -> Record:
    return Record(kv.key, kv.value, kv.create_revision, kv.mod_revision)


def _txn(member: Member) -> pb.TxnRequest:
    return pb.TxnRequest(
        compare=[_compare(compare) for compare in member.compares],
        success=[_operation(write) for write in member.writes],
        failure=[pb.RequestOp(request_range=pb.RangeRequest(key=key)) for key in member.reads],
    )


def _compare(compare: Compare) -> pb.Compare:
    if compare.target is Target.CREATE_REVISION:
        return pb.Compare(
            result=_RELATIONS[compare.relation],
            target=pb.Compare.CREATE,
            key=compare.key,
            create_revision=compare.revision,
        )
    return pb.Compare(
        result=_RELATIONS[compare.relation], target=pb.Compare.MOD, key=compare.key, mod_revision=compare.revision
    )


def _operation(write: Write) -> pb.RequestOp:
    match write:
        case Put(key, value):
            return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))
        case Delete(key):
            return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


def _result(answer: pb.TxnResponse) -> MemberResult:
    if answer.succeeded:
        return MemberResult(succeeded=True)
    records = tuple(
        _record(item.response_range.kvs[0]) if item.response_range.kvs else None for item in answer.responses
    )
    return MemberResult(succeeded=False, records=records)


async def wait_until_answering(store: EtcdStore, *, attempts: int, pause_seconds: float) -> str:
    """etcd's version, once it answers. Raises the last StoreError after `attempts`."""
    for attempt in range(attempts):
        try:
            return await store.version()
        except StoreError:
            if attempt + 1 == attempts:
                raise
            await asyncio.sleep(pause_seconds)
    raise AssertionError("attempts must be positive")
