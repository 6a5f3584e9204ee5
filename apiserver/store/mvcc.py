"""etcd's multi-version state as a pure object: what `MemoryStore` serves.

Every key has its versions in order of revision; a deletion is a version without a value (a tombstone). A transaction
that writes anything takes the next revision, and all its writes share it. Compaction forgets, for each key, the
versions before the one that was current at the compacted revision. The log holds the events of each revision for
watches, and is cut at a compaction as far as no reader is behind it.

The rules for refusing a transaction are etcd's own, its quirks included (server/etcdserver/api/v3rpc/key.go,
checkTxnRequest and checkIntervals): of the members of a group, a put is refused after a delete of the same key in an
earlier member, but accepted before one.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from apiserver.store.protocol import (
    Compare,
    Delete,
    Member,
    MemberResult,
    Page,
    Put,
    Record,
    StoreCompacted,
    StoreEvent,
    StoreInvalid,
    StoreTooLarge,
    TxnResult,
)


@dataclass(frozen=True, slots=True)
class _Version:
    """`record` None: the key was deleted at `revision`."""

    revision: int
    record: Record | None


@dataclass(frozen=True, slots=True)
class Revision:
    """All events of one revision, in order."""

    number: int
    events: tuple[StoreEvent, ...]


class Mvcc:
    """The state. Synchronous: each call is atomic."""

    def __init__(self, *, max_txn_operations: int, max_request_bytes: int) -> None:
        self.revision = 1
        # Nothing is compacted: reads may begin anywhere.
        self.compact_revision = -1
        self._max_txn_operations = max_txn_operations
        self._max_request_bytes = max_request_bytes
        self._versions: dict[bytes, list[_Version]] = {}
        self._keys: list[bytes] = []
        self._log: list[Revision] = []
        self._log_readers: dict[int, int] = {}
        self._next_reader = 0

    def get(self, key: bytes, revision: int) -> Record | None:
        """`revision` 0: now."""
        if not key:
            raise StoreInvalid("etcdserver: key is not provided")
        return self._at(key, self._checked(revision))

    def range(self, prefix: bytes, after: bytes, limit: int, revision: int, keys_only: bool) -> Page:
        at = self._checked(revision)
        begin = max(prefix, after + b"\0" if after else b"")
        records: list[Record] = []
        for key in self._keys[bisect_left(self._keys, begin) :]:
            if not key.startswith(prefix):
                break
            found = self._at(key, at)
            if found is None:
                continue
            if limit and len(records) == limit:
                return Page(tuple(records), at, more=True)
            records.append(
                Record(key, b"", found.create_revision, found.mod_revision) if keys_only else found,
            )
        return Page(tuple(records), at, more=False)

    def _checked(self, revision: int) -> int:
        if revision > self.revision:
            raise StoreInvalid("etcdserver: mvcc: required revision is a future revision")
        if revision and revision < self.compact_revision:
            raise StoreCompacted(self.compact_revision)
        return revision or self.revision

    def _at(self, key: bytes, revision: int) -> Record | None:
        versions = self._versions.get(key, [])
        at = bisect_right(versions, revision, key=lambda version: version.revision)
        return versions[at - 1].record if at else None

    def txn(self, members: tuple[Member, ...]) -> TxnResult:
        check_txn(members, self._max_txn_operations, self._max_request_bytes)
        succeeded = [all(self._holds(compare) for compare in member.compares) for member in members]
        revision = self.revision + 1
        events: list[StoreEvent] = []
        results = []
        for member, success in zip(members, succeeded, strict=True):
            if success:
                for write in member.writes:
                    self._apply(write, revision, events)
                results.append(MemberResult(True))
            else:
                # A read in a transaction sees the writes of the members before its own.
                results.append(MemberResult(False, tuple(self._at(key, revision) for key in member.reads)))
        if events:
            self.revision = revision
            self._log.append(Revision(revision, tuple(events)))
        return TxnResult(self.revision, tuple(results))

    def _holds(self, compare: Compare) -> bool:
        return compare.holds(self._at(compare.key, self.revision))

    def _apply(self, write: Put | Delete, revision: int, events: list[StoreEvent]) -> None:
        current = self._at(write.key, revision)
        if isinstance(write, Put):
            record = Record(write.key, write.value, current.create_revision if current else revision, revision)
            self._append(write.key, _Version(revision, record))
            events.append(StoreEvent(False, record))
        elif current is not None:
            self._append(write.key, _Version(revision, None))
            events.append(StoreEvent(True, Record(write.key, b"", 0, revision)))

    def _append(self, key: bytes, version: _Version) -> None:
        if key not in self._versions:
            self._versions[key] = []
            insort(self._keys, key)
        self._versions[key].append(version)

    def compact(self, revision: int) -> None:
        if revision <= self.compact_revision:
            return
        if revision > self.revision:
            raise StoreInvalid("etcdserver: mvcc: required revision is a future revision")
        self.compact_revision = revision
        for key in tuple(self._keys):
            versions = self._versions[key]
            current = bisect_right(versions, revision, key=lambda version: version.revision) - 1
            if current >= 0 and versions[current].record is None:
                current += 1
            del versions[: max(current, 0)]
            if not versions:
                del self._versions[key]
                del self._keys[bisect_left(self._keys, key)]
        self._cut_log()

    def open_log(self, start_revision: int) -> int:
        """A reader of the log from `start_revision` on; what it has not read survives compaction, as etcd keeps what a
        connected watch has yet to send.
        """
        # One revision earlier than asked for, as `EtcdStore` opens its watches.
        if max(1, start_revision - 1) < self.compact_revision:
            raise StoreCompacted(self.compact_revision)
        reader = self._next_reader
        self._next_reader += 1
        self._log_readers[reader] = start_revision
        return reader

    def read_log(self, reader: int) -> Revision | None:
        """The next revision for `reader`, None when it has read all."""
        at = bisect_left(self._log, self._log_readers[reader], key=lambda entry: entry.number)
        if at == len(self._log):
            return None
        self._log_readers[reader] = self._log[at].number + 1
        return self._log[at]

    def close_log(self, reader: int) -> None:
        self._log_readers.pop(reader, None)
        self._cut_log()

    def history(self) -> tuple[Revision, ...]:
        """What the log still holds: every revision after the compaction, for checkers."""
        return tuple(self._log)

    def _cut_log(self) -> None:
        needed = min([self.compact_revision, *self._log_readers.values()])
        del self._log[: bisect_left(self._log, needed, key=lambda entry: entry.number)]


def check_txn(members: tuple[Member, ...], max_txn_operations: int, max_request_bytes: int) -> None:
    """Raises what etcd answers to a transaction that it does not even look at."""
    room = max_txn_operations - (len(members) if len(members) != 1 else 0)
    if room < 0 or any(max(len(m.compares), len(m.writes), len(m.reads)) > room for m in members):
        raise StoreTooLarge("etcdserver: too many operations in txn request")
    keys = [compare.key for m in members for compare in m.compares]
    keys += [write.key for m in members for write in m.writes]
    keys += [key for m in members for key in m.reads]
    if not all(keys):
        raise StoreInvalid("etcdserver: key is not provided")
    put: set[bytes] = set()
    deleted: set[bytes] = set()
    for member in members:
        own_deletes = {write.key for write in member.writes if isinstance(write, Delete)}
        own_puts = [write.key for write in member.writes if isinstance(write, Put)]
        for key in own_puts:
            if key in put or key in deleted or key in own_deletes:
                raise StoreInvalid("etcdserver: duplicate key given in txn request")
            put.add(key)
        deleted |= own_deletes
    values = sum(len(write.value) for m in members for write in m.writes if isinstance(write, Put))
    if values + sum(map(len, keys)) > max_request_bytes:
        raise StoreTooLarge("etcdserver: request is too large")
