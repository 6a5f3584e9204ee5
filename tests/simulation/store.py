"""The store seam filled with `MemoryStore`'s state and etcd's faults, one client for each API server.

A request travels, is applied at one instant, and its answer travels back; both ways belong to the world, so a
transaction that has left a process is applied even if the process dies meanwhile. A link can be down: what is sent then
is refused at once (`StoreUnavailable`, it did not happen) or has an outcome that nobody tells. An unknown outcome is one
of three: applied, never applied, applied later. Watches tell several revisions in one batch at times, stall, and
reconnect where they stopped, which a compaction may have overtaken.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TypeVar

from apiserver.store.memory import MemoryStore, SharedMvcc
from apiserver.store.mvcc import Revision
from apiserver.store.protocol import (
    Member,
    Page,
    Record,
    StoreError,
    StoreOutcomeUnknown,
    StoreUnavailable,
    TxnResult,
    WatchBatch,
)
from tests.simulation.loop import Owner

R = TypeVar("R")
UNKNOWN_AFTER_SECONDS = (0.05, 0.6)
# etcd drops a proposal that waits longer; nothing is applied after that.
APPLIED_LATER_SECONDS_MAX = 0.5
RECONNECT_SECONDS = (0.01, 0.4)
BATCH_REVISIONS_MAX = 8
BATCH_REVISIONS_BEHIND = 200


class ObservedMvcc(SharedMvcc):
    """The state; `observe(members, revision)` sees every transaction that wrote, at the instant at which it is applied."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions = 0
        self.observe: Callable[[tuple[Member, ...], Revision], None] = lambda _members, _revision: None

    def txn(self, members: tuple[Member, ...]) -> TxnResult:
        before = self.revision
        result = super().txn(members)
        self.transactions += 1
        if self.revision > before:
            self.observe(members, self._log[-1])
        return result


@dataclass(slots=True)
class StoreFaults:
    """Chances for each call; all zero is an etcd that only takes its time."""

    delay_seconds: tuple[float, float] = (0.0005, 0.004)
    slow: float = 0.0
    slow_seconds_max: float = 1.0
    unavailable: float = 0.0
    unknown_applied: float = 0.0
    unknown_not_applied: float = 0.0
    unknown_later: float = 0.0
    watch_lost: float = 0.0


class FaultyStore:
    """`apiserver.store.protocol.Store` for one process."""

    def __init__(
        self,
        mvcc: ObservedMvcc,
        owner: Owner,
        faults: StoreFaults,
        rng: random.Random,
        tell: Callable[[str, str], None],
    ) -> None:
        self.down = False
        self.watch_stalled_until = 0.0
        # A busy API server: its cache is always so much behind.
        self.watch_lag_seconds = 0.0
        self._mvcc = mvcc
        self._memory = MemoryStore(mvcc)
        self._owner = owner
        self.faults = faults
        self._rng = rng
        self._tell = tell
        self._world: Context = copy_context()
        self._opened = asyncio.Event()

    # Unary calls

    async def get(self, key: bytes, *, revision: int = 0) -> Record | None:
        return await self._read(lambda: self._mvcc.get(key, revision))

    async def list(
        self, prefix: bytes, *, after: bytes = b"", limit: int = 0, revision: int = 0, keys_only: bool = False
    ) -> Page:
        return await self._read(lambda: self._mvcc.range(prefix, after, limit, revision, keys_only))

    async def revision(self) -> int:
        return await self._read(lambda: self._mvcc.revision)

    async def compact(self, revision: int) -> None:
        self._tell(self._owner.name, f"compacts at {revision}")
        await self._read(lambda: self._mvcc.compact(revision))

    async def txn(self, members: tuple[Member, ...]) -> TxnResult:
        self._owner.require_alive()
        faults, rng = self.faults, self._rng
        if self.down or self._chance(faults.unavailable):
            await self._wait(rng.uniform(0.001, 0.1))
            raise StoreUnavailable("no leader")
        if self._chance(faults.unknown_not_applied):
            return await self._lose(members, None)
        if self._chance(faults.unknown_later):
            return await self._lose(members, rng.uniform(0.0, APPLIED_LATER_SECONDS_MAX))
        lost = self._chance(faults.unknown_applied)
        if lost:
            self._tell(self._owner.name, "a transaction's answer will be lost")
        return await self._apply(lambda: self._mvcc.txn(members), lost=lost)

    async def _lose(self, members: tuple[Member, ...], applied_after: float | None) -> TxnResult:
        """The answer never comes; the transaction is applied after a while, or not at all."""
        if applied_after is None:
            self._tell(self._owner.name, "a transaction is lost on its way")
        else:
            self._tell(self._owner.name, f"a transaction will be applied after {applied_after:.3f} s")
            self._after(applied_after, lambda: self._mvcc.txn(members))
        await self._wait(self._rng.uniform(*UNKNOWN_AFTER_SECONDS))
        raise StoreOutcomeUnknown("request timed out")

    async def _read(self, act: Callable[[], R]) -> R:
        self._owner.require_alive()
        if self.down or self._chance(self.faults.unavailable):
            await self._wait(self._rng.uniform(0.001, 0.1))
            raise StoreUnavailable("no leader")
        return await self._apply(act, lost=False)

    async def _apply(self, act: Callable[[], R], *, lost: bool) -> R:
        """Sends, applies at one instant of the world's, and waits for the answer."""
        answer: asyncio.Future[R | StoreError] = self._owner.loop.create_future()
        back = self._delay()

        def settle(outcome: R | StoreError) -> None:
            if not answer.done():
                answer.set_result(outcome)

        def apply() -> None:
            outcome: R | StoreError
            try:
                outcome = act()
            except StoreError as error:
                outcome = error
            if not lost:
                self._after(back, lambda: settle(outcome))

        self._after(self._delay(), apply)
        if lost:
            self._after(self._rng.uniform(*UNKNOWN_AFTER_SECONDS), lambda: settle(StoreOutcomeUnknown("timed out")))
        result = await answer
        self._owner.require_alive()
        if isinstance(result, StoreError):
            raise result
        return result

    def _after(self, seconds: float, act: Callable[[], object]) -> None:
        self._owner.loop.call_later(seconds, act, context=self._world)

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._owner.require_alive()

    def _delay(self) -> float:
        if self._chance(self.faults.slow):
            return self._rng.uniform(0.0, self.faults.slow_seconds_max)
        return self._rng.uniform(*self.faults.delay_seconds)

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    # Watches

    async def watch(self, prefix: bytes, *, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        assert start_revision >= 1, "a watch starts at a revision"
        self._owner.require_alive()
        following = start_revision
        while True:
            reader = self._mvcc.open_log(following)
            waker = self._mvcc.wakers[reader] = asyncio.Event()
            try:
                while (batch := await self._next_batch(reader, waker, prefix)) is not None:
                    following = batch.revision + 1
                    yield batch
                    self._owner.require_alive()
            finally:
                self._mvcc.close_log(reader)
                self._mvcc.wakers.pop(reader, None)
            self._tell(self._owner.name, f"the store's watch is lost before {following}")
            await self._wait(self._rng.uniform(*RECONNECT_SECONDS))
            while self.down or self.watch_stalled_until > self._owner.loop.time():
                await self._wait(0.05)

    async def _next_batch(self, reader: int, waker: asyncio.Event, prefix: bytes) -> WatchBatch | None:
        """None: the connection is lost before anything of the batch has arrived."""
        entry = self._mvcc.read_log(reader)
        while entry is None:
            waker.clear()
            await waker.wait()
            self._owner.require_alive()
            entry = self._mvcc.read_log(reader)
        await self._wait(self._delay() + self.watch_lag_seconds)
        while (left := self.watch_stalled_until - self._owner.loop.time()) > 0:
            await self._wait(left)
        if self._chance(self.faults.watch_lost) or self.down:
            return None
        entries = [entry]
        together = BATCH_REVISIONS_BEHIND if self.watch_lag_seconds else self._rng.randrange(BATCH_REVISIONS_MAX)
        for _ in range(together):
            entry = self._mvcc.read_log(reader)
            if entry is None:
                break
            entries.append(entry)
        events = tuple(event for item in entries for event in item.events if event.record.key.startswith(prefix))
        return WatchBatch(events, entries[-1].number)

    async def close(self) -> None:
        return
