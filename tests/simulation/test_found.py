"""What the simulation has found, each in its smallest form."""

import asyncio
import random
from typing import cast

from apiserver.committer import Committed, Committer
from apiserver.core import header
from apiserver.core.groups import Change, RegistryPut
from apiserver.core.keys import LEDGER, REGISTRY
from apiserver.core.versions import pack
from apiserver.ledgers import unchanged
from apiserver.store.memory import MemoryStore
from apiserver.store.protocol import Delete, Member, Put, Store, StoreOutcomeUnknown, TxnResult
from protos.orrery.v1.api_pb2 import BOUND, Binding
from services.runtime.logging import silent
from tests.direct import api_servers, node, pod, topology
from tests.simulation.loop import Owner, SimulatedClock, VirtualLoop

GONE, STAYS, OTHER = (REGISTRY + b"core/pods/default/" + name for name in (b"gone", b"stays", b"other"))


class LosesOneAnswer:
    """The first transaction is applied, and nobody is told."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.get, self.watch = store.get, store.watch
        self._lost = False

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        result = await self._store.txn(members)
        if not self._lost:
            self._lost = True
            raise StoreOutcomeUnknown("lost")
        return result


async def commit(store: MemoryStore, changes: tuple[Change, ...]) -> list[Committed]:
    """All in one group, whose answer is lost."""
    owner = Owner(cast("VirtualLoop", asyncio.get_running_loop()), "apiserver-0", random.Random(0))
    committer = Committer(cast("Store", LosesOneAnswer(store)), SimulatedClock(owner), silent())
    waiting = [asyncio.ensure_future(committer.commit(change)) for change in changes]
    await asyncio.sleep(0)
    running = asyncio.ensure_future(committer.run())
    answers = await asyncio.gather(*waiting)
    running.cancel()
    return answers


def test_a_resolved_change_that_deletes_before_it_puts_is_told_the_versions_that_watchers_see() -> None:
    store = MemoryStore()
    for key in (GONE, STAYS, OTHER):
        store.apply((Member((), (Put(key, header.encode(0, b"0" * 16, b"before")),)),))
    # Beside it a change that fails: its index stays unused, and the deletion takes it.
    fails = Change((unchanged(OTHER, 3),), (RegistryPut(OTHER, b"x"),), (), b"1" * 16)
    writes = (Delete(GONE), RegistryPut(STAYS, b"after"))
    change = Change((unchanged(GONE, 2), unchanged(STAYS, 3)), writes, (), b"2" * 16)
    loop = VirtualLoop()
    try:
        lost, answer = loop.run_until_complete(commit(store, (fails, change)))
    finally:
        loop.close()
    assert not lost.succeeded
    assert answer.succeeded
    assert answer.revision == 5
    assert answer.versions == (pack(5, 0), pack(5, 2))


async def test_a_node_that_goes_and_comes_back_has_its_devices_again() -> None:
    async with api_servers([MemoryStore()]) as [running]:
        client = running.client
        await client.create("nodes", node("n", gpus=2))
        await client.create("nodetopologies", topology("n", 2))
        await client.delete("nodes", "n")
        await client.create("nodes", node("n", gpus=2))
        made = pod("p", gpus=2)
        made.spec.scheduler_name = "other"
        await client.create("pods", made)
        result = await client.bind(Binding(namespace="default", name="p", node_name="n"))
        assert result.outcome == BOUND, result.message


async def test_a_ledger_ends_with_the_last_of_node_topology_and_pods() -> None:
    store = MemoryStore()
    async with api_servers([store]) as [running]:
        client = running.client
        await client.create("nodes", node("n", gpus=2))
        await client.create("nodetopologies", topology("n", 2))
        await client.create("pods", pod("p", gpus=2, node="n", grace=0))
        await client.delete("nodes", "n")
        await client.delete("pods", "p", "default", grace_period_seconds=0)
        assert store.snapshot(LEDGER)
        await client.delete("nodetopologies", "n")
        assert not store.snapshot(LEDGER)
