"""`MemoryStore`: etcd's twin without etcd, for simulation and fast tests. Same answers, revisions, events and refusals.

It knows no time and no chance: a call is done when it returns, watches wake in the order in which they were opened, and
the same calls give the same answers. Several stores may share one state, as several API servers share one etcd
(`connect` makes another store on it); closing one ends its own watches alone. Faults are not known here: whoever wants
them wraps a store. A wrapper that raises before it calls has a write that did not happen; one that raises afterwards has
a write whose outcome the caller cannot know.
"""

import asyncio
from collections.abc import AsyncGenerator

from apiserver.store.mvcc import Mvcc
from apiserver.store.protocol import Member, Page, Record, StoreEvent, StoreUnavailable, TxnResult, WatchBatch

MAX_TXN_OPERATIONS = 8192
MAX_REQUEST_BYTES = 32 * 1024 * 1024


class SharedMvcc(Mvcc):
    """An `Mvcc` that wakes the watches of all stores on it."""

    def __init__(
        self, *, max_txn_operations: int = MAX_TXN_OPERATIONS, max_request_bytes: int = MAX_REQUEST_BYTES
    ) -> None:
        super().__init__(max_txn_operations=max_txn_operations, max_request_bytes=max_request_bytes)
        # In order of opening: a dict, for a set would wake them in an order of its own.
        self.wakers: dict[int, asyncio.Event] = {}

    def txn(self, members: tuple[Member, ...]) -> TxnResult:
        before = self.revision
        result = super().txn(members)
        if self.revision > before:
            for waker in self.wakers.values():
                waker.set()
        return result


class MemoryStore:
    """`apiserver.store.protocol.Store` in memory."""

    def __init__(self, mvcc: SharedMvcc | None = None) -> None:
        self.mvcc = mvcc or SharedMvcc()
        self._readers: dict[int, asyncio.Event] = {}
        self._closed = False

    def connect(self) -> "MemoryStore":
        """Another client of the same state."""
        return MemoryStore(self.mvcc)

    @property
    def current_revision(self) -> int:
        return self.mvcc.revision

    @property
    def compacted_revision(self) -> int:
        """0 when nothing is compacted."""
        return max(0, self.mvcc.compact_revision)

    def history(self) -> tuple[tuple[int, tuple[StoreEvent, ...]], ...]:
        """(revision, events in order) of everything after the last compaction, for checkers."""
        return tuple((entry.number, entry.events) for entry in self.mvcc.history())

    def snapshot(self, prefix: bytes = b"") -> tuple[Record, ...]:
        """All current records below `prefix`, in key order, for checkers."""
        return self.mvcc.range(prefix, b"", 0, 0, keys_only=False).records

    def apply(self, members: tuple[Member, ...]) -> TxnResult:
        """The transaction itself, synchronously."""
        return self.mvcc.txn(members)

    async def get(self, key: bytes, *, revision: int = 0) -> Record | None:
        self._require_open()
        return self.mvcc.get(key, revision)

    async def list(
        self, prefix: bytes, *, after: bytes = b"", limit: int = 0, revision: int = 0, keys_only: bool = False
    ) -> Page:
        self._require_open()
        return self.mvcc.range(prefix, after, limit, revision, keys_only)

    async def revision(self) -> int:
        self._require_open()
        return self.mvcc.revision

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        self._require_open()
        return self.apply(members)

    async def compact(self, revision: int) -> None:
        self._require_open()
        self.mvcc.compact(revision)

    async def watch(self, prefix: bytes, *, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        assert start_revision >= 1, "a watch starts at a revision"
        self._require_open()
        reader = self.mvcc.open_log(start_revision)
        waker = self.mvcc.wakers[reader] = self._readers[reader] = asyncio.Event()
        try:
            while not self._closed:
                entry = self.mvcc.read_log(reader)
                if entry is None:
                    waker.clear()
                    await waker.wait()
                else:
                    events = tuple(event for event in entry.events if event.record.key.startswith(prefix))
                    yield WatchBatch(events, entry.number)
        finally:
            self.mvcc.close_log(reader)
            del self.mvcc.wakers[reader], self._readers[reader]
        raise StoreUnavailable("the store is closed")

    async def close(self) -> None:
        self._closed = True
        for waker in self._readers.values():
            waker.set()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")
