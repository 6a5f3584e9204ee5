"""The store's twin with etcd's faults: what each leaves behind, and watches that lose nothing."""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable

import pytest

from apiserver.store.protocol import Member, Put, StoreCompacted, StoreOutcomeUnknown, StoreUnavailable
from tests.simulation.loop import Owner, VirtualLoop
from tests.simulation.store import FaultyStore, ObservedMvcc, StoreFaults


def put(key: bytes) -> tuple[Member, ...]:
    return (Member((), (Put(key, b""),)),)


def run(test: Callable[[FaultyStore, ObservedMvcc, Owner], Awaitable[None]], faults: StoreFaults | None = None) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        owner = Owner(loop, "apiserver-0", random.Random(3))
        mvcc = ObservedMvcc()
        store = FaultyStore(mvcc, owner, faults or StoreFaults(), random.Random(4), lambda _actor, _text: None)
        await owner.start(test(store, mvcc, owner))  # type: ignore[arg-type]

    try:
        contextvars.Context().run(loop.run_until_complete, main())
    finally:
        loop.close()


def test_unavailable_means_that_it_did_not_happen() -> None:
    async def test(store: FaultyStore, mvcc: ObservedMvcc, _owner: Owner) -> None:
        with pytest.raises(StoreUnavailable):
            await store.txn(put(b"/a"))
        await asyncio.sleep(5.0)
        assert mvcc.revision == 1

    run(test, StoreFaults(unavailable=1.0))


@pytest.mark.parametrize(
    ("faults", "at_once", "after_a_second"),
    [
        (StoreFaults(unknown_applied=1.0), 2, 2),
        (StoreFaults(unknown_not_applied=1.0), 1, 1),
        (StoreFaults(unknown_later=1.0), None, 2),
    ],
    ids=["applied", "not applied", "later"],
)
def test_an_unknown_outcome_is_one_of_three(faults: StoreFaults, at_once: int | None, after_a_second: int) -> None:
    async def test(store: FaultyStore, mvcc: ObservedMvcc, _owner: Owner) -> None:
        with pytest.raises(StoreOutcomeUnknown):
            await store.txn(put(b"/a"))
        assert at_once is None or mvcc.revision == at_once
        await asyncio.sleep(1.0)
        assert mvcc.revision == after_a_second

    run(test, faults)


def test_later_is_later_than_the_answer_in_some_runs() -> None:
    late: list[bool] = []

    async def test(store: FaultyStore, mvcc: ObservedMvcc, _owner: Owner) -> None:
        for number in range(20):
            before = mvcc.revision
            with pytest.raises(StoreOutcomeUnknown):
                await store.txn(put(b"/%d" % number))
            late.append(mvcc.revision == before)
            await asyncio.sleep(1.0)

    run(test, StoreFaults(unknown_later=1.0))
    assert set(late) == {True, False}


def test_what_has_left_a_process_is_applied_though_it_dies() -> None:
    async def outlived(_store: FaultyStore, mvcc: ObservedMvcc, owner: Owner) -> None:
        client = Owner(owner.loop, "apiserver-1", random.Random(5))
        store = contextvars.Context().run(
            FaultyStore,
            mvcc,
            client,
            StoreFaults(delay_seconds=(0.01, 0.02)),
            random.Random(6),
            lambda _actor, _text: None,
        )
        client.start(store.txn(put(b"/a")))
        await asyncio.sleep(0.001)
        client.kill()
        await asyncio.sleep(1.0)
        assert mvcc.revision == 2

    run(outlived)


def test_a_watch_that_is_lost_again_and_again_misses_nothing() -> None:
    async def test(store: FaultyStore, mvcc: ObservedMvcc, _owner: Owner) -> None:
        seen: list[int] = []

        async def follow() -> None:
            async for batch in store.watch(b"/", start_revision=2):
                seen.extend(event.record.mod_revision for event in batch.events)

        following = asyncio.ensure_future(follow())
        for number in range(60):
            mvcc.txn(put(b"/%d" % number))
            await asyncio.sleep(0.05)
        await asyncio.sleep(30.0)
        following.cancel()
        assert seen == list(range(2, 62))

    run(test, StoreFaults(watch_lost=0.4))


def test_a_watch_that_a_compaction_overtakes_says_so() -> None:
    async def test(store: FaultyStore, mvcc: ObservedMvcc, _owner: Owner) -> None:
        async def follow() -> None:
            async for _ in store.watch(b"/", start_revision=2):
                raise AssertionError("the watch was to be lost")

        following = asyncio.ensure_future(follow())
        await asyncio.sleep(0.1)
        mvcc.txn(put(b"/a"))
        store.down = True
        await asyncio.sleep(0.3)
        for _ in range(5):
            mvcc.txn(put(b"/a"))
        mvcc.compact(6)
        store.down = False
        with pytest.raises(StoreCompacted):
            await following

    run(test)
