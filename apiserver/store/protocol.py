"""The `Store` protocol: the part of etcd's v3 API that the API server uses, with etcd's semantics exactly.

A transaction is a group of members. Each member has its own comparisons, its own writes and its own answer; all
comparisons of a group see the state before the group, all writes of a group share one revision, and watchers get them
in the order of the members and of the writes within each. (etcd: a Txn whose operations are Txns.) Members must be
disjoint: the store does not check, `apiserver.core` does.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """One version of one key."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int


class Target(Enum):
    """What of a key is compared."""

    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"


class Relation(Enum):
    EQUAL = "="
    NOT_EQUAL = "!="
    GREATER = ">"
    LESS = "<"


@dataclass(frozen=True, slots=True)
class Compare:
    """`target` of `key` stands in `relation` to `revision`; an absent key has revision 0."""

    key: bytes
    target: Target
    relation: Relation
    revision: int

    def holds(self, record: "Record | None") -> bool:
        """Whether it holds for the key's record (None: absent)."""
        if record is None:
            actual = 0
        elif self.target is Target.CREATE_REVISION:
            actual = record.create_revision
        else:
            actual = record.mod_revision
        match self.relation:
            case Relation.EQUAL:
                return actual == self.revision
            case Relation.NOT_EQUAL:
                return actual != self.revision
            case Relation.GREATER:
                return actual > self.revision
            case Relation.LESS:
                return actual < self.revision


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    key: bytes


Write = Put | Delete


@dataclass(frozen=True, slots=True)
class Member:
    """If all `compares` hold, `writes` happen; else the keys `reads` are answered as they are."""

    compares: tuple[Compare, ...]
    writes: tuple[Write, ...]
    reads: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberResult:
    """`records` answers `reads` of a member that did not succeed, in their order; None for an absent key."""

    succeeded: bool
    records: tuple[Record | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TxnResult:
    """`revision` is the store's after the transaction: that of its writes, if any member wrote."""

    revision: int
    results: tuple[MemberResult, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """`revision` is the one the page was read at; `more`: keys remain after the last one."""

    records: tuple[Record, ...]
    revision: int
    more: bool


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """A put (`record.value` is the new value) or a delete (`record` has the key, the revision of the delete, no value)."""

    deleted: bool
    record: Record


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Events in order, never a part of a revision only. `revision` >= that of every event; all events up to it have been
    delivered. A batch without events is progress.
    """

    events: tuple[StoreEvent, ...]
    revision: int


class StoreError(Exception):
    """The store's fault or refusal."""


class StoreUnavailable(StoreError):
    """It certainly did not happen."""


class StoreOutcomeUnknown(StoreError):
    """A write that may or may not have happened, now or later."""


class StoreCompacted(StoreError):
    """The asked revision is gone. Reads begin at `compact_revision`, watches one above it."""

    def __init__(self, compact_revision: int) -> None:
        super().__init__(f"revision is compacted: the oldest that can be read is {compact_revision}")
        self.compact_revision = compact_revision


class StoreTooLarge(StoreError):
    """The transaction is over the store's limit of operations or bytes."""


class StoreInvalid(StoreError):
    """The request contradicts itself (one key put twice, an empty key, a revision of the future): the caller's fault."""


class StoreNoSpace(StoreError):
    """The store's quota is used up: reads go on, writes are refused (etcd's NOSPACE alarm)."""


class Store(Protocol):
    async def get(self, key: bytes, *, revision: int = 0) -> Record | None:
        """A linearizable read, or of the past when `revision` is given."""
        ...

    async def list(
        self, prefix: bytes, *, after: bytes = b"", limit: int = 0, revision: int = 0, keys_only: bool = False
    ) -> Page:
        """Keys below `prefix` in order, those greater than `after`, at most `limit` (0: all), at `revision` (0: now)."""
        ...

    async def revision(self) -> int:
        """The current revision, linearizably: every write acknowledged before the call is at or below it."""
        ...

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        """All comparisons, then all writes, at once.

        Raises:
            StoreUnavailable: it certainly did not happen, and trying again is safe.
            StoreOutcomeUnknown: it may have happened, or may yet.
            StoreTooLarge, StoreNoSpace, StoreInvalid: refused; it did not happen.
        """
        ...

    def watch(self, prefix: bytes, *, start_revision: int) -> AsyncIterator[WatchBatch]:
        """All events below `prefix` from `start_revision` (at least 1) on, across reconnects, without gap or duplicate.

        Changes of keys outside `prefix` are told as progress, so a watch reaches every revision of the store: whoever
        needs to know that it has seen all writes up to now asks for `revision()` and waits until the watch is there.

        Raises:
            StoreCompacted: `start_revision` is at or below the compaction; also later, when a connection was lost for so
                long that what came next is compacted.
            StoreUnavailable: the store was closed.
        """
        ...

    async def compact(self, revision: int) -> None:
        """Forgets what was overwritten or deleted before `revision`; reads at `revision` go on. Below an earlier
        compaction there is nothing left to do.
        """
        ...

    async def close(self) -> None:
        """Ends all watches; nothing may be called afterwards."""
        ...
