"""The `Store` in memory, with etcd's semantics: the twin for simulations and fast tests.

Every write is kept in a history, so past revisions can be read and watches can start anywhere after the last compaction.
Nothing here waits for anything but new writes, and there are no faults: a simulation wraps this.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator

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
    Target,
    TxnResult,
    WatchBatch,
)


class MemoryStore:
    """One keyspace. Several clients may share it: it is the server, not a connection."""

    def __init__(self) -> None:
        self._revision = 1
        self._compacted = 0
        # For each key its versions by rising revision; a deletion is a version without a record.
        self._versions: dict[bytes, list[tuple[int, Record | None]]] = {}
        self._history: list[tuple[int, tuple[StoreEvent, ...]]] = []
        self._grown = asyncio.Event()

    @property
    def current_revision(self) -> int:
        return self._revision

    @property
    def compacted_revision(self) -> int:
        return self._compacted

    def history(self) -> list[tuple[int, tuple[StoreEvent, ...]]]:
        """(revision, events in order) of everything after the last compaction, for checkers."""
        return list(self._history)

    def snapshot(self, prefix: bytes = b"") -> list[Record]:
        """All current records below `prefix`, in key order, for checkers."""
        return [
            record
            for key in sorted(self._versions)
            if key.startswith(prefix) and (record := self._at(key, self._revision))
        ]

    async def get(self, key: bytes, *, revision: int = 0) -> Record | None:
        """See `Store.get`."""
        return self._at(key, self._readable(revision))

    async def list(
        self, prefix: bytes, *, after: bytes = b"", limit: int = 0, revision: int = 0, keys_only: bool = False
    ) -> Page:
        """See `Store.list`."""
        at = self._readable(revision)
        found = [
            record
            for key in sorted(self._versions)
            if key.startswith(prefix) and key > after and (record := self._at(key, at)) is not None
        ]
        page = found[:limit] if limit else found
        if keys_only:
            page = [Record(item.key, b"", item.create_revision, item.mod_revision) for item in page]
        return Page(tuple(page), at, len(page) < len(found))

    async def revision(self) -> int:
        """See `Store.revision`."""
        return self._revision

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        """See `Store.txn`. Happens at once: no other transaction comes between."""
        return self.apply(members)

    def apply(self, members: tuple[Member, ...]) -> TxnResult:
        """The transaction itself, synchronously."""
        _refuse_duplicate_puts(members)
        held = [all(self._holds(compare) for compare in member.compares) for member in members]
        revision = self._revision + 1
        events: list[StoreEvent] = []
        results = []
        for member, succeeded in zip(members, held, strict=True):
            if succeeded:
                for write in member.writes:
                    if (event := self._write(write, revision)) is not None:
                        events.append(event)
                results.append(MemberResult(succeeded=True))
            else:
                # As etcd does inside one transaction: reads see the writes of the members before them.
                records = tuple(self._at(key, revision) for key in member.reads)
                results.append(MemberResult(succeeded=False, records=records))
        if events:
            self._revision = revision
            self._history.append((revision, tuple(events)))
            self._grown.set()
            self._grown = asyncio.Event()
        return TxnResult(self._revision, tuple(results))

    async def compact(self, revision: int) -> None:
        """See `Store.compact`."""
        if revision > self._revision:
            raise StoreError(f"cannot compact revision {revision}: the current one is {self._revision}")
        if revision <= self._compacted:
            return
        self._compacted = revision
        self._history = [item for item in self._history if item[0] > revision or self._names_a_deletion(item, revision)]
        for key in list(self._versions):
            versions = self._versions[key]
            keep = max(0, bisect_right(versions, revision, key=lambda item: item[0]) - 1)
            del versions[:keep]
            if versions[0][1] is None and versions[0][0] < revision:
                del versions[0]
            if not versions:
                del self._versions[key]

    @staticmethod
    def _names_a_deletion(item: tuple[int, tuple[StoreEvent, ...]], revision: int) -> bool:
        """A watch may begin at the compaction revision itself, and gets what was written there."""
        return item[0] == revision

    async def watch(self, prefix: bytes, *, start_revision: int) -> AsyncIterator[WatchBatch]:
        """See `Store.watch`."""
        resume = start_revision
        while True:
            # etcd refuses a watch only below the compaction revision.
            if resume < self._compacted:
                raise StoreCompacted(self._compacted)
            grown = self._grown
            at = bisect_right(self._history, resume - 1, key=lambda item: item[0])
            pending = self._history[at:]
            if not pending:
                await grown.wait()
                continue
            for revision, events in pending:
                resume = revision + 1
                wanted = tuple(event for event in events if event.record.key.startswith(prefix))
                yield WatchBatch(wanted, revision)

    async def close(self) -> None:
        """Nothing to let go of."""

    def _readable(self, revision: int) -> int:
        if revision > self._revision:
            raise StoreError(f"revision {revision} is in the future: the current one is {self._revision}")
        if 0 < revision < self._compacted:
            raise StoreCompacted(self._compacted)
        return revision or self._revision

    def _at(self, key: bytes, revision: int) -> Record | None:
        versions = self._versions.get(key, ())
        at = bisect_right(versions, revision, key=lambda item: item[0])
        return versions[at - 1][1] if at else None

    def _holds(self, compare: Compare) -> bool:
        record = self._at(compare.key, self._revision)
        actual = 0
        if record is not None:
            actual = record.create_revision if compare.target is Target.CREATE_REVISION else record.mod_revision
        match compare.relation:
            case Relation.EQUAL:
                return actual == compare.revision
            case Relation.NOT_EQUAL:
                return actual != compare.revision
            case Relation.GREATER:
                return actual > compare.revision
            case Relation.LESS:
                return actual < compare.revision

    def _write(self, write: Put | Delete, revision: int) -> StoreEvent | None:
        current = self._at(write.key, revision)
        versions = self._versions.setdefault(write.key, [])
        if isinstance(write, Delete):
            if current is None:
                if not versions:
                    del self._versions[write.key]
                return None
            versions.append((revision, None))
            return StoreEvent(deleted=True, record=Record(write.key, b"", 0, revision))
        created = current.create_revision if current is not None else revision
        record = Record(write.key, write.value, created, revision)
        versions.append((revision, record))
        return StoreEvent(deleted=False, record=record)


def _refuse_duplicate_puts(members: tuple[Member, ...]) -> None:
    put: set[bytes] = set()
    for member in members:
        for write in member.writes:
            if isinstance(write, Put):
                if write.key in put:
                    raise StoreError(f"duplicate key given in txn request: {write.key!r}")
                put.add(write.key)
