"""What only a store on a real network has to bear: lost connections, silent servers, restarts, limits."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from apiserver.store.etcd import EtcdStore
from apiserver.store.protocol import (
    Member,
    Put,
    StoreNoSpace,
    StoreOutcomeUnknown,
    StoreUnavailable,
)
from services.lab.etcd import EtcdError, EtcdOptions, EtcdProcess, find_etcd, free_port, refuse_if_unsafe_to_kill
from tests.conftest import Etcd
from tests.integration.store_traffic import Proxy, batches_until, events, put


async def test_a_watch_goes_on_over_broken_connections_without_gap_or_duplicate(
    etcd: Etcd, etcd_store: EtcdStore
) -> None:
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


async def test_a_watch_moves_to_an_endpoint_that_answers(etcd: Etcd, etcd_store: EtcdStore) -> None:
    async with Proxy(etcd.endpoint) as proxy:
        watched = EtcdStore([proxy.address, etcd.endpoint])
        start = await put(etcd_store, b"/w/0", b"")
        watch = watched.watch(b"/w/", start_revision=start)
        async with asyncio.timeout(20):
            assert (await anext(watch)).events[0].record.key == b"/w/0"
            await proxy.close()
            await put(etcd_store, b"/w/1", b"")
            assert (await anext(watch)).events[0].record.key == b"/w/1"
        await watch.aclose()
        await watched.close()


async def test_a_replay_larger_than_a_message_comes_in_whole_revisions(etcd_store: EtcdStore) -> None:
    """80 MB of history at once. etcd cuts it into fragments of 32 MB wherever they happen to end."""
    value = b"x" * 200_000
    start = await put(etcd_store, b"/big/start", b"")
    end = start
    for number in range(100):
        members = tuple(Member((), (Put(b"/big/%d-%d" % (number, part), value),)) for part in range(4))
        end = (await etcd_store.txn(members)).revision
    batches = await batches_until(etcd_store, b"/big/", start + 1, end)
    revisions = [{event.record.mod_revision for event in batch.events} for batch in batches]
    assert sum(len(batch.events) for batch in batches) == 400
    assert sum(len(each) for each in revisions) == len(set().union(*revisions)) == 100


async def test_a_list_of_pages_larger_than_a_message_comes_whole(etcd_store: EtcdStore) -> None:
    value = b"x" * 400_000
    for number in range(40):
        members = tuple(Member((), (Put(b"/big/%02d-%d" % (number, part), value),)) for part in range(5))
        await etcd_store.txn(members)
    page = await etcd_store.list(b"/big/")
    assert [record.key for record in page.records] == [b"/big/%02d-%d" % (n, p) for n in range(40) for p in range(5)]


async def test_a_silent_etcd_leaves_a_write_unknown_and_a_read_unavailable(etcd: Etcd, etcd_store: EtcdStore) -> None:
    async with Proxy(etcd.endpoint) as proxy:
        store = EtcdStore([proxy.address], timeout_seconds=1.0)
        await put(store, b"/a", b"1")
        proxy.muted = True
        with pytest.raises(StoreOutcomeUnknown):
            await put(store, b"/a", b"2")
        with pytest.raises(StoreUnavailable):
            await store.get(b"/a")
        await store.close()
    record = await etcd_store.get(b"/a")
    assert record is not None
    assert record.value == b"2", "it was said to be unknown, and it had happened"


async def test_a_connection_that_breaks_after_the_request_leaves_a_write_unknown(
    etcd: Etcd, etcd_store: EtcdStore
) -> None:
    async with Proxy(etcd.endpoint) as proxy:
        store = EtcdStore([proxy.address])
        await put(store, b"/a", b"1")
        proxy.muted = True
        proxy.swallowed.clear()
        writing = asyncio.create_task(put(store, b"/a", b"2"))
        async with asyncio.timeout(10):
            # etcd's answer: the write is done, and the client will not hear of it.
            while (record := await etcd_store.get(b"/a")) is None or record.value != b"2":
                await proxy.swallowed.wait()
        await proxy.cut()
        with pytest.raises(StoreOutcomeUnknown):
            await writing
        await store.close()


async def test_an_unknown_write_is_not_sent_to_another_endpoint(etcd: Etcd, etcd_store: EtcdStore) -> None:
    async with Proxy(etcd.endpoint) as proxy:
        store = EtcdStore([proxy.address, etcd.endpoint], timeout_seconds=1.0)
        first = await put(store, b"/a", b"1")
        proxy.muted = True
        with pytest.raises(StoreOutcomeUnknown):
            await put(store, b"/a", b"2")
        assert await etcd_store.revision() == first + 1
        assert await put(store, b"/a", b"3") == first + 2, "the next call goes to the endpoint that answers"
        await store.close()


async def test_an_etcd_that_is_not_there_is_unavailable_not_unknown() -> None:
    store = EtcdStore([f"127.0.0.1:{free_port()}"], timeout_seconds=2.0)
    with pytest.raises(StoreUnavailable):
        await put(store, b"/a", b"1")
    await store.close()


async def test_a_write_goes_to_the_next_endpoint_when_the_first_is_not_there(etcd_endpoint: str) -> None:
    store = EtcdStore([f"127.0.0.1:{free_port()}", etcd_endpoint])
    written = await put(store, b"/a", b"1")
    assert await store.revision() == written
    await store.close()


async def test_a_cancelled_call_stays_cancelled(etcd: Etcd) -> None:
    async with Proxy(etcd.endpoint) as proxy:
        proxy.muted = True
        store = EtcdStore([proxy.address])
        writing = asyncio.create_task(put(store, b"/a", b"1"))
        async with asyncio.timeout(10):
            await proxy.swallowed.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await store.close()


async def test_a_watch_resumes_after_etcd_was_restarted(tmp_path: Path) -> None:
    process = EtcdProcess(find_etcd(), EtcdOptions(tmp_path / "data", tmp_path / "etcd.log"))
    await asyncio.to_thread(process.start)
    try:
        store = EtcdStore([process.endpoint])
        start = await put(store, b"/w/0", b"")
        watch = store.watch(b"/w/", start_revision=start)
        async with asyncio.timeout(60):
            assert (await anext(watch)).events[0].record.key == b"/w/0"
            await asyncio.to_thread(process.stop)
            await asyncio.to_thread(process.start)
            # A second client: the first one's connection may still wait before it tries again.
            other = EtcdStore([process.endpoint])
            await put(other, b"/w/1", b"")
            assert (await anext(watch)).events[0].record.key == b"/w/1"
            await put(other, b"/w/2", b"")
            assert (await anext(watch)).events[0].record.key == b"/w/2"
        await watch.aclose()
        await other.close()
        await store.close()
    finally:
        await asyncio.to_thread(process.stop, discard=True)


async def test_a_full_etcd_refuses_writes_by_name_and_still_answers_reads(tmp_path: Path) -> None:
    options = EtcdOptions(tmp_path / "data", tmp_path / "etcd.log", fsync=False, quota_bytes=4 * 1024 * 1024)
    process = EtcdProcess(find_etcd(), options)
    await asyncio.to_thread(process.start)
    try:
        store = EtcdStore([process.endpoint])
        with pytest.raises(StoreNoSpace):
            for number in range(40):
                await put(store, b"/full/%d" % number, b"x" * 500_000)
        assert await store.get(b"/full/0") is not None
        await store.close()
    finally:
        await asyncio.to_thread(process.stop, discard=True)


async def write_until(store: EtcdStore, done: asyncio.Event) -> set[bytes]:
    """Writes a new key at a time and returns those that were acknowledged; what fails is left as it is."""
    acknowledged = set()
    number = 0
    while not done.is_set():
        key = b"/w/%06d" % number
        number += 1
        with contextlib.suppress(StoreUnavailable, StoreOutcomeUnknown):
            await put(store, key, b"")
            acknowledged.add(key)
    return acknowledged


async def test_nothing_acknowledged_is_lost_or_told_twice_when_etcd_is_killed_again_and_again(tmp_path: Path) -> None:
    binary = find_etcd()
    try:
        refuse_if_unsafe_to_kill(binary.version)
    except EtcdError as refusal:
        pytest.skip(str(refusal))
    process = EtcdProcess(binary, EtcdOptions(tmp_path / "data", tmp_path / "etcd.log"))
    await asyncio.to_thread(process.start)
    try:
        store = EtcdStore([process.endpoint], timeout_seconds=2.0)
        watched = EtcdStore([process.endpoint])
        done = asyncio.Event()
        writing = asyncio.create_task(write_until(store, done))
        told: list[bytes] = []
        watch = watched.watch(b"/w/", start_revision=2)
        async with asyncio.timeout(90):
            for life in range(1, 4):
                while len(told) < 50 * life:
                    told += [event.record.key for event in (await anext(watch)).events]
                await asyncio.to_thread(process.kill)
                await asyncio.to_thread(process.start)
            done.set()
            acknowledged = await writing
            last = EtcdStore([process.endpoint])
            await put(last, b"/w/end", b"")
            await last.close()
            while told[-1] != b"/w/end":
                told += [event.record.key for event in (await anext(watch)).events]
        assert acknowledged <= set(told)
        assert len(told) == len(set(told))
        assert told == sorted(told)
        await store.close()
        await watched.close()
    finally:
        await asyncio.to_thread(process.stop, discard=True)
