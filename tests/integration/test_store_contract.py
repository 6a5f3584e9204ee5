"""What a `Store` promises, asked of both its fillings; and the twin in memory compared with etcd on random histories."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apiserver.store.etcd import EtcdStore
from apiserver.store.memory import MemoryStore
from apiserver.store.protocol import (
    Compare,
    Delete,
    Member,
    Put,
    Relation,
    Store,
    StoreCompacted,
    StoreError,
    StoreEvent,
    StoreTooLarge,
    StoreUnavailable,
    Target,
    TxnResult,
)
from tests.conftest import Etcd


def absent(key: bytes) -> Compare:
    return Compare(key, Target.CREATE_REVISION, Relation.EQUAL, 0)


def unchanged(key: bytes, revision: int) -> Compare:
    return Compare(key, Target.MOD_REVISION, Relation.EQUAL, revision)


async def put(store: Store, key: bytes, value: bytes) -> int:
    return (await store.txn((Member((), (Put(key, value),)),))).revision


async def events(store: Store, prefix: bytes, start: int, count: int) -> list[StoreEvent]:
    """The first `count` events from `start` on."""
    found: list[StoreEvent] = []
    async with asyncio.timeout(10):
        async for batch in store.watch(prefix, start_revision=start):
            found.extend(batch.events)
            if len(found) >= count:
                return found
    raise AssertionError("the watch ended")


async def test_a_lost_comparison_writes_nothing_and_answers_what_is_there(store: Store) -> None:
    first = await put(store, b"/a", b"1")
    result = await store.txn((Member((unchanged(b"/a", first - 1),), (Put(b"/a", b"2"),), (b"/a", b"/none")),))
    (answer,) = result.results
    assert not answer.succeeded
    assert answer.records[0] is not None
    assert (answer.records[0].value, answer.records[0].mod_revision) == (b"1", first)
    assert answer.records[1] is None
    assert result.revision == first


async def test_members_of_a_group_succeed_alone_and_share_one_revision(store: Store) -> None:
    before = await put(store, b"/taken", b"x")
    result = await store.txn(
        (
            Member((absent(b"/a"),), (Put(b"/a", b"1"),)),
            Member((absent(b"/taken"),), (Put(b"/taken", b"y"),), (b"/taken",)),
            Member((absent(b"/b"),), (Put(b"/b", b"2"),)),
        )
    )
    assert [item.succeeded for item in result.results] == [True, False, True]
    a, b = await store.get(b"/a"), await store.get(b"/b")
    assert a is not None
    assert b is not None
    assert a.mod_revision == b.mod_revision == result.revision == before + 1


async def test_all_comparisons_of_a_group_see_the_state_before_it(store: Store) -> None:
    """The trap that the planner's rule of disjoint members exists for."""
    result = await store.txn(
        (Member((absent(b"/y"),), (Put(b"/x", b""),)), Member((absent(b"/x"),), (Put(b"/y", b""),)))
    )
    assert [item.succeeded for item in result.results] == [True, True]


async def test_two_puts_of_one_key_in_a_group_are_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="duplicate key"):
        await store.txn((Member((), (Put(b"/a", b"1"),)), Member((), (Put(b"/a", b"2"),))))
    assert await store.get(b"/a") is None


async def test_a_list_is_paged_at_one_revision(store: Store) -> None:
    for number in range(5):
        await put(store, b"/p/%d" % number, b"old")
    first = await store.list(b"/p/", limit=2)
    await put(store, b"/p/3", b"new")
    await put(store, b"/q", b"outside")
    second = await store.list(b"/p/", after=first.records[-1].key, limit=2, revision=first.revision)
    third = await store.list(b"/p/", after=second.records[-1].key, limit=2, revision=first.revision)
    assert [record.key for page in (first, second, third) for record in page.records] == [
        b"/p/%d" % n for n in range(5)
    ]
    assert [page.more for page in (first, second, third)] == [True, True, False]
    assert second.records[-1].value == b"old"


async def test_a_watch_delivers_one_revision_in_the_order_of_the_group(store: Store) -> None:
    start = await put(store, b"/w/gone", b"x")
    await store.txn(
        (
            Member((), (Put(b"/w/2", b"a"), Put(b"/elsewhere", b"b"))),
            Member((), (Delete(b"/w/gone"), Put(b"/w/1", b"c"))),
        )
    )
    found = await events(store, b"/w/", start + 1, 3)
    assert [(event.deleted, event.record.key) for event in found] == [
        (False, b"/w/2"),
        (True, b"/w/gone"),
        (False, b"/w/1"),
    ]
    assert {event.record.mod_revision for event in found} == {start + 1}


async def test_a_watch_begins_in_the_past_and_goes_on(store: Store) -> None:
    first = await put(store, b"/w/a", b"1")
    await put(store, b"/w/a", b"2")
    waiting = asyncio.create_task(events(store, b"/w/", first, 3))
    await put(store, b"/w/b", b"3")
    assert [event.record.value for event in await waiting] == [b"1", b"2", b"3"]


async def test_what_is_compacted_cannot_be_read_or_watched(store: Store) -> None:
    first = await put(store, b"/c/a", b"1")
    second = await put(store, b"/c/a", b"2")
    third = await put(store, b"/c/a", b"3")
    await store.compact(second)
    with pytest.raises(StoreCompacted):
        await store.list(b"/c/", revision=first)
    with pytest.raises(StoreCompacted):
        await events(store, b"/c/", first, 1)
    (record,) = (await store.list(b"/c/", revision=second)).records
    assert record.value == b"2"
    assert [event.record.mod_revision for event in await events(store, b"/c/", third, 1)] == [third]
    await store.compact(second)


async def test_the_revision_is_that_of_the_last_write(store: Store) -> None:
    written = await put(store, b"/r", b"1")
    assert await store.revision() == written
    assert (await store.txn((Member((), (Delete(b"/nothing"),)),))).revision == written


async def test_deleting_and_creating_again_begins_a_new_life(store: Store) -> None:
    first = await put(store, b"/l", b"1")
    await store.txn((Member((), (Delete(b"/l"),)),))
    assert await store.get(b"/l") is None
    again = await put(store, b"/l", b"2")
    record = await store.get(b"/l")
    assert record is not None
    assert (record.create_revision, record.mod_revision) == (again, again)
    old = await store.get(b"/l", revision=first)
    assert old is not None
    assert old.value == b"1"


KEYS = st.sampled_from([b"/h/a", b"/h/b", b"/h/c", b"/other"])
WRITES = st.one_of(st.builds(Put, KEYS, st.binary(max_size=3)), st.builds(Delete, KEYS))
# Revisions are relative to the revision at the beginning, so that both stores can be asked the same.
COMPARES = st.builds(
    Compare,
    KEYS,
    st.sampled_from(list(Target)),
    st.sampled_from(list(Relation)),
    st.integers(min_value=0, max_value=6),
)
MEMBERS = st.builds(
    Member,
    st.lists(COMPARES, max_size=2).map(tuple),
    st.lists(WRITES, min_size=1, max_size=2, unique_by=lambda write: write.key).map(tuple),
    st.lists(KEYS, max_size=2).map(tuple),
)


def disjoint(group: list[Member]) -> bool:
    """No member writes what another writes: beyond that a group is refused, or depends on luck."""
    written = [write.key for member in group for write in member.writes]
    return len(written) == len(set(written))


GROUPS = st.lists(st.lists(MEMBERS, min_size=1, max_size=3).filter(disjoint), min_size=1, max_size=6)


async def run_history(store: Store, groups: list[list[Member]]) -> tuple[list[object], list[object]]:
    """Answers and events of the groups, with revisions relative to where the store stood."""
    base = await put(store, b"/base", b"")
    answers: list[object] = []
    last = base
    for group in groups:
        members = tuple(
            Member(tuple(shift(compare, base) for compare in member.compares), member.writes, member.reads)
            for member in group
        )
        result = await store.txn(members)
        last = result.revision
        answers.append(relative(result, base))
    end = await put(store, b"/h/end", b"")
    found: list[object] = []
    async with asyncio.timeout(20):
        async for batch in store.watch(b"/h/", start_revision=base + 1):
            found.extend((e.deleted, e.record.key, e.record.value, e.record.mod_revision - base) for e in batch.events)
            if batch.revision >= end:
                break
    return [*answers, last - base], found


def shift(compare: Compare, base: int) -> Compare:
    return Compare(compare.key, compare.target, compare.relation, compare.revision + base if compare.revision else 0)


def relative(result: TxnResult, base: int) -> object:
    return (
        result.revision - base,
        [
            (
                item.succeeded,
                [
                    (r.key, r.value, r.create_revision - base, r.mod_revision - base) if r else None
                    for r in item.records
                ],
            )
            for item in result.results
        ],
    )


async def both_histories(endpoint: str, groups: list[list[Member]]) -> tuple[object, object]:
    store = EtcdStore([endpoint])
    try:
        wipe = tuple(Member((), (Delete(key),)) for key in (b"/h/a", b"/h/b", b"/h/c", b"/other", b"/h/end"))
        await store.txn(wipe)
        real = await run_history(store, groups)
    finally:
        await store.close()
    return real, await run_history(MemoryStore(), groups)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(groups=GROUPS)
def test_the_twin_answers_as_etcd_does(etcd: Etcd, groups: list[list[Member]]) -> None:
    real, twin = asyncio.run(both_histories(etcd.endpoint, groups))
    assert twin == real


async def test_too_many_operations_are_refused_with_a_sentence(etcd_store: EtcdStore) -> None:
    members = tuple(Member((), (Put(b"/many/%d" % number, b""),)) for number in range(9_000))
    with pytest.raises(StoreTooLarge, match="too many operations"):
        await etcd_store.txn(members)


async def test_an_etcd_that_is_not_there_is_unavailable_not_unknown() -> None:
    store = EtcdStore(["127.0.0.1:1"], timeout_seconds=2.0)
    with pytest.raises(StoreUnavailable):
        await put(store, b"/a", b"1")
    await store.close()


async def test_a_watch_goes_on_over_broken_connections_without_gap_or_duplicate(
    etcd: Etcd, etcd_store: EtcdStore
) -> None:
    """A proxy between client and etcd cuts every connection again and again while keys are written."""
    async with Proxy(etcd.endpoint) as proxy:
        watched = EtcdStore([proxy.address])
        start = await put(etcd_store, b"/w/start", b"")
        watching = asyncio.create_task(events(watched, b"/w/", start + 1, 60))
        for number in range(60):
            await put(etcd_store, b"/w/%03d" % number, b"")
            if number % 10 == 9:
                await proxy.cut()
        found = await watching
        await watched.close()
    assert [event.record.key for event in found] == [b"/w/%03d" % number for number in range(60)]
    assert proxy.cuts >= 1


class Proxy:
    """Forwards TCP to `target`; `cut` breaks every connection that stands."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: list[asyncio.StreamWriter] = []
        self.cuts = 0
        self.address = ""

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, there_writer]
        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))

    async def cut(self) -> None:
        for writer in self._writers:
            if not writer.is_closing():
                self.cuts += 1
                writer.transport.abort()
        self._writers.clear()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def chunks(store: Store, prefix: bytes, start: int) -> AsyncIterator[int]:
    async for batch in store.watch(prefix, start_revision=start):
        yield len(batch.events)


async def test_a_replay_larger_than_a_message_comes_whole(etcd_store: EtcdStore) -> None:
    """80 MB of history in one go: etcd splits it into fragments, the batches stay whole revisions."""
    value = b"x" * 200_000
    start = await put(etcd_store, b"/big/start", b"")
    for number in range(100):
        members = tuple(Member((), (Put(b"/big/%d-%d" % (number, part), value),)) for part in range(4))
        await etcd_store.txn(members)
    found = await events(etcd_store, b"/big/", start + 1, 400)
    assert len(found) == 400
