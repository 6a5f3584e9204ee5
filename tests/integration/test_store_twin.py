"""The twin in memory against etcd on random histories: same answers, revisions, refusals and events. etcd is the truth."""

import asyncio
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apiserver.store.etcd import EtcdStore
from apiserver.store.memory import MemoryStore
from apiserver.store.protocol import (
    Compare,
    Delete,
    Member,
    Put,
    Record,
    Relation,
    Store,
    StoreCompacted,
    StoreError,
    Target,
)
from tests.conftest import Etcd, empty_keyspace
from tests.integration.store_traffic import put


# All revisions are relative to the one that a history begins at, so that both stores can be asked the same.
@dataclass(frozen=True)
class Get:
    key: bytes
    revision: int


@dataclass(frozen=True)
class List:
    prefix: bytes
    after: bytes
    limit: int
    revision: int
    keys_only: bool


@dataclass(frozen=True)
class Compact:
    revision: int


@dataclass(frozen=True)
class Watch:
    """Replays from `revision` up to now."""

    prefix: bytes
    revision: int


Step = tuple[Member, ...] | Get | List | Compact | Watch

REVISIONS_MAX = 8
KEYS = st.sampled_from([b"/h/a", b"/h/b", b"/h/c", b"/other"])
PREFIXES = st.sampled_from([b"", b"/h/", b"/h/b", b"/none"])
WRITES = st.one_of(st.builds(Put, KEYS, st.binary(max_size=3)), st.builds(Delete, KEYS))
COMPARES = st.builds(
    Compare, KEYS, st.sampled_from(list(Target)), st.sampled_from(list(Relation)), st.integers(0, REVISIONS_MAX)
)
# Members need not be disjoint: what etcd makes of the others is part of its semantics.
MEMBERS = st.builds(
    Member,
    st.lists(COMPARES, max_size=2).map(tuple),
    st.lists(WRITES, max_size=2).map(tuple),
    st.lists(KEYS, max_size=2).map(tuple),
)
REVISIONS = st.integers(0, REVISIONS_MAX)
STEPS = st.one_of(
    st.lists(MEMBERS, min_size=1, max_size=4).map(tuple),
    st.lists(MEMBERS, min_size=1, max_size=4).map(tuple),
    st.builds(Get, KEYS, REVISIONS),
    st.builds(List, PREFIXES, st.one_of(st.just(b""), KEYS), st.integers(0, 2), REVISIONS, st.booleans()),
    st.builds(Compact, st.integers(1, REVISIONS_MAX)),
    st.builds(Watch, PREFIXES, st.integers(1, REVISIONS_MAX)),
)


class History:
    """Runs steps on one store and writes down what it said, in revisions relative to `base`."""

    def __init__(self, store: Store, base: int) -> None:
        self.store = store
        self.base = base

    async def run(self, steps: list[Step]) -> list[object]:
        said = []
        for step in steps:
            try:
                said.append(await self.answer(step))
            except StoreCompacted as refusal:
                said.append(("compacted", refusal.compact_revision - self.base))
            except StoreError as refusal:
                said.append(type(refusal))
        return said

    async def answer(self, step: Step) -> object:
        match step:
            case Get(key, revision):
                return self.relative(await self.store.get(key, revision=self.at(revision)))
            case List(prefix, after, limit, revision, keys_only):
                page = await self.store.list(
                    prefix, after=after, limit=limit, revision=self.at(revision), keys_only=keys_only
                )
                return [self.relative(record) for record in page.records], page.revision - self.base, page.more
            case Compact(revision):
                return await self.store.compact(self.at(revision))
            case Watch(prefix, revision):
                return await self.replay(prefix, self.at(revision))
        result = await self.store.txn(tuple(self.shifted(member) for member in step))
        answers = [(item.succeeded, [self.relative(record) for record in item.records]) for item in result.results]
        return result.revision - self.base, answers

    async def replay(self, prefix: bytes, start: int) -> list[object]:
        """The mark makes sure that there is something to reach, also from a start in the future."""
        mark = await self.store.revision()
        while mark < start:
            mark = await put(self.store, b"/mark", b"")
        told: list[object] = []
        async with asyncio.timeout(20):
            async for batch in self.store.watch(prefix, start_revision=start):
                told.extend((event.deleted, self.relative(event.record)) for event in batch.events)
                if batch.revision >= mark:
                    break
        return told

    def at(self, revision: int) -> int:
        return revision + self.base if revision else 0

    def shifted(self, member: Member) -> Member:
        compares = tuple(Compare(c.key, c.target, c.relation, self.at(c.revision)) for c in member.compares)
        return Member(compares, member.writes, member.reads)

    def relative(self, record: Record | None) -> object:
        if record is None:
            return None
        created = record.create_revision - self.base if record.create_revision else None
        return record.key, record.value, created, record.mod_revision - self.base


async def on_etcd(endpoint: str, steps: list[Step]) -> list[object]:
    await empty_keyspace(endpoint)
    store = EtcdStore([endpoint])
    try:
        return await History(store, await put(store, b"/base", b"")).run(steps)
    finally:
        await store.close()


async def in_memory(steps: list[Step]) -> list[object]:
    store = MemoryStore()
    return await History(store, await put(store, b"/base", b"")).run(steps)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=1, max_size=10))
def test_the_twin_answers_as_etcd_does(etcd: Etcd, steps: list[Step]) -> None:
    assert asyncio.run(in_memory(steps)) == asyncio.run(on_etcd(etcd.endpoint, steps))


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(STEPS, min_size=1, max_size=10))
def test_the_twin_says_the_same_each_time(steps: list[Step]) -> None:
    assert asyncio.run(in_memory(steps)) == asyncio.run(in_memory(steps))
