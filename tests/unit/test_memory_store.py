"""What the twin in memory offers beyond the contract: several clients on one state, and wrappers that inject faults."""

import asyncio

import pytest

from apiserver.store.memory import MemoryStore
from apiserver.store.protocol import Member, Put, StoreOutcomeUnknown, StoreUnavailable, TxnResult


def written(key: bytes) -> tuple[Member, ...]:
    return (Member((), (Put(key, b""),)),)


async def test_clients_of_one_state_see_each_others_writes_and_close_alone() -> None:
    first = MemoryStore()
    second = first.connect()
    watch = second.watch(b"/", start_revision=2)
    await first.txn(written(b"/a"))
    await first.close()
    assert (await anext(watch)).revision == 2
    await second.txn(written(b"/b"))
    assert (await anext(watch)).events[0].record.key == b"/b"
    with pytest.raises(StoreUnavailable):
        await first.get(b"/a")


async def test_watches_wake_in_the_order_in_which_they_were_opened() -> None:
    store = MemoryStore()
    woken: list[int] = []

    async def follow(number: int) -> None:
        async for _ in store.watch(b"/", start_revision=2):
            woken.append(number)
            return

    tasks = []
    for number in range(20):
        tasks.append(asyncio.create_task(follow(number)))
        await asyncio.sleep(0)
    await store.txn(written(b"/a"))
    await asyncio.gather(*tasks)
    assert woken == list(range(20))


async def test_what_a_slow_watch_has_not_read_survives_a_compaction_and_then_goes() -> None:
    store = MemoryStore()
    watch = store.watch(b"/", start_revision=2)
    await store.txn(written(b"/a"))
    assert (await anext(watch)).revision == 2
    for key in (b"/b", b"/c", b"/d"):
        await store.txn(written(key))
    await store.compact(5)
    assert [(await anext(watch)).revision for _ in range(3)] == [3, 4, 5]
    await watch.aclose()
    assert [revision for revision, _ in store.history()] == [5]


class Fickle(MemoryStore):
    """Loses the answer of each write, or the write itself."""

    def __init__(self, *, happens: bool) -> None:
        super().__init__()
        self.happens = happens

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        if self.happens:
            await super().txn(members)
        raise StoreOutcomeUnknown("the answer was lost")


@pytest.mark.parametrize("happens", [True, False])
async def test_a_subclass_can_make_an_outcome_unknown_either_way(happens: bool) -> None:
    store = Fickle(happens=happens)
    with pytest.raises(StoreOutcomeUnknown):
        await store.txn(written(b"/a"))
    assert (await store.get(b"/a") is not None) is happens
