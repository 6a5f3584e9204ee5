"""The ledgers as this server knows them, and the release lane, which gives back what pods held.

A release is folded with others of its node: one write of `returned` for all of them. It shares a transaction with the
pod's own write (its terminal phase, or its removal), so neither can happen without the other.
"""

import asyncio
from dataclasses import dataclass, replace

from apiserver.cache import Cache
from apiserver.committer import Committed, Committer
from apiserver.core.groups import Change, RegistryPut
from apiserver.core.keys import returned_key, taken_key
from apiserver.lanes import Lanes, TaskOwner
from apiserver.store.protocol import Compare, Delete, Put, Record, Relation, Target
from services.model.errors import ApiError
from services.model.ledger import EMPTY_TAKEN, NOTHING, Amounts, Ledger, Taken
from services.model.pod import Placement
from services.wire.ledger import read_returned, read_taken, write_returned


def unchanged(key: bytes, revision: int) -> Compare:
    """The key's mod_revision is still this; 0: it is still absent."""
    return Compare(key, Target.MOD_REVISION, Relation.EQUAL, revision)


class Ledgers:
    """Reads ledgers out of the cache, memoised by revision."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._taken: dict[str, tuple[int, Taken]] = {}
        self._returned: dict[str, tuple[int, Amounts]] = {}

    def taken(self, node: str) -> tuple[int, Taken]:
        """(mod_revision, value); (0, empty) where there is none."""
        record = self._cache.registry.plain.get(taken_key(node))
        if record is None:
            return 0, EMPTY_TAKEN
        known = self._taken.get(node)
        if known is None or known[0] != record.mod_revision:
            known = (record.mod_revision, read_taken(record.value))
            self._taken[node] = known
        return known

    def returned(self, node: str) -> tuple[int, Amounts]:
        """(mod_revision, value); (0, nothing) where there is none."""
        record = self._cache.registry.plain.get(returned_key(node))
        if record is None:
            return 0, NOTHING
        known = self._returned.get(node)
        if known is None or known[0] != record.mod_revision:
            known = (record.mod_revision, read_returned(record.value))
            self._returned[node] = known
        return known

    def ledger(self, node: str) -> Ledger:
        return Ledger(self.taken(node)[1], self.returned(node)[1])

    async def refresh(self, node: str) -> None:
        """Reads both halves from the store. Raises Unavailable."""
        await self._cache.read_ledger((returned_key(node), taken_key(node)))

    def wrote(self, key: bytes, value: bytes, revision: int) -> None:
        """Notes this server's own successful write of a ledger key, ahead of the watch."""
        self._cache.registry.learn_plain(Record(key, value, 0, revision))

    def read(self, key: bytes, record: Record | None) -> None:
        """Notes what a lost comparison answered for a ledger or epoch key."""
        if record is not None:
            self._cache.registry.learn_plain(record)
        else:
            self._cache.registry.plain.pop(key, None)


@dataclass(slots=True)
class Release:
    """A pod's write that ends its hold on `placement`: the comparisons it needs, and what it writes."""

    placement: Placement
    compares: tuple[Compare, ...]
    write: RegistryPut | Delete
    write_id: bytes
    future: "asyncio.Future[Committed]"


class Releaser:
    """The release lanes. A fold in which one comparison is lost fails as a whole; each caller looks again and comes back."""

    def __init__(self, owner: TaskOwner, ledgers: Ledgers, committer: Committer) -> None:
        self._ledgers = ledgers
        self._committer = committer
        self._lanes: Lanes[Release] = Lanes(owner, self._release)

    async def release(
        self, placement: Placement, compares: tuple[Compare, ...], write: RegistryPut | Delete, write_id: bytes
    ) -> Committed:
        """Commits the write together with the release. Raises ApiError as `Committer.commit` does."""
        future: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self._lanes.add(placement.node_name, Release(placement, compares, write, write_id, future))
        return await future

    async def _release(self, node: str, items: list[Release]) -> None:
        items = [item for item in items if not item.future.done()]
        # The same pod twice (two callers at once): the second must look again first.
        mine: dict[bytes, Release] = {}
        for item in items:
            if mine.setdefault(item.write.key, item) is not item:
                item.future.set_result(Committed(succeeded=False, revision=0, versions=(), records=(), group_size=0))
        items = list(mine.values())
        if not items:
            return
        change = self._change(node, items)
        try:
            committed = await self._committer.commit(change)
        except ApiError as error:
            for item in items:
                if not item.future.done():
                    item.future.set_exception(type(error)(error.message, retry_after_seconds=error.retry_after_seconds))
            return
        if committed.succeeded:
            for write in change.writes:
                if isinstance(write, Put):
                    self._ledgers.wrote(write.key, write.value, committed.revision)
        elif committed.records:
            self._ledgers.read(returned_key(node), committed.records[-2])
            self._ledgers.read(taken_key(node), committed.records[-1])
        for at, item in enumerate(items):
            if not item.future.done():
                versions = committed.versions[at : at + 1]
                records = committed.records[at : at + 1]
                item.future.set_result(replace(committed, versions=versions, records=records))

    def _change(self, node: str, items: list[Release]) -> Change:
        revision, returned = self._ledgers.returned(node)
        for item in items:
            returned = returned.plus(item.placement.resources, item.placement.devices)
        compares = dict.fromkeys(compare for item in items for compare in item.compares)
        compares[unchanged(returned_key(node), revision)] = None
        taken_revision, taken = self._ledgers.taken(node)
        ledger_writes: tuple[Put | Delete, ...] = (Put(returned_key(node), write_returned(returned)),)
        if taken.node_deleted and not taken.devices and Ledger(taken, returned).empty():
            # The node and its topology are gone and nobody is left on it: its ledger goes too.
            compares[unchanged(taken_key(node), taken_revision)] = None
            ledger_writes = (Delete(returned_key(node)), Delete(taken_key(node)))
        return Change(
            compares=tuple(compares),
            writes=(*(item.write for item in items), *ledger_writes),
            reads=(*(item.write.key for item in items), returned_key(node), taken_key(node)),
            write_id=items[0].write_id,
        )
