"""The registry kept up to date: one list at a revision, one watch from the next, and ways to wait for a revision.

A read that must be fresh asks the store for its revision (a quorum read) and waits until the cache has reached it; many
reads that wait together share one such question. Where nothing of ours was written at that revision the watch brings
nothing, so after a moment a barrier key is written, which the watch does bring.
"""

import asyncio
from collections.abc import Callable

from apiserver.core.keys import BARRIER, LEDGER, ROOT
from apiserver.core.registry import Registry
from apiserver.store.protocol import (
    Member,
    Put,
    Record,
    Store,
    StoreCompacted,
    StoreError,
)
from services.model.clock import Clock
from services.model.errors import Unavailable
from services.runtime.logging import Logger

LIST_PAGE = 2_000
BARRIER_AFTER_SECONDS = 0.2
FRESH_SECONDS_MAX = 5.0
RETRY_SECONDS = 0.25


class Cache:
    """`name` distinguishes the barrier keys of API servers."""

    def __init__(self, store: Store, clock: Clock, name: str, log: Logger) -> None:
        self.registry = Registry()
        self.filled = asyncio.Event()
        self.store_error = ""
        self._store = store
        self._clock = clock
        self._barrier = BARRIER + name.encode()
        self._log = log
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._changed: dict[str, asyncio.Event] = {}
        self._fresh: asyncio.Task[int] | None = None
        self._next_fresh: asyncio.Task[int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Called after each batch of the watch has been applied.
        self.on_batch: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Fills the registry and keeps it filled; ends only by cancellation."""
        while True:
            try:
                await self._fill()
                await self._follow()
            except StoreCompacted:
                self._log.warning("watch_compacted", revision=self.registry.revision)
            except StoreError as error:
                self.store_error = str(error)
                self._log.warning("store_unavailable", reason=str(error))
                await self._clock.sleep(RETRY_SECONDS)

    async def _fill(self) -> None:
        records: list[Record] = []
        page = await self._store.list(ROOT, limit=LIST_PAGE)
        revision = page.revision
        records.extend(page.records)
        while page.more:
            page = await self._store.list(ROOT, after=page.records[-1].key, limit=LIST_PAGE, revision=revision)
            records.extend(page.records)
        self.registry.fill(records, revision)
        self.store_error = ""
        self.filled.set()
        for resource in list(self._changed):
            self._notify(resource)
        self._wake()
        self._log.info("cache_filled", revision=revision, records=len(records))

    async def _follow(self) -> None:
        async for batch in self._store.watch(ROOT, start_revision=self.registry.revision + 1):
            for resource in sorted(self.registry.apply(batch.events, batch.revision)):
                self._notify(resource)
            for callback in self.on_batch:
                callback()
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiters = self._waiters, []
        for revision, future in waiting:
            if future.done():
                continue
            if self.registry.revision >= revision:
                future.set_result(None)
            else:
                self._waiters.append((revision, future))

    def _notify(self, resource: str) -> None:
        event = self._changed.pop(resource, None)
        if event is not None:
            event.set()

    def changed(self, resource: str) -> asyncio.Event:
        """An event that is set at the next change of `resource` (or when the registry is filled anew)."""
        return self._changed.setdefault(resource, asyncio.Event())

    async def wait_for(self, revision: int, seconds_max: float = FRESH_SECONDS_MAX) -> bool:
        """Waits until the registry has everything up to `revision`; False when it takes longer than `seconds_max`."""
        if self.registry.revision >= revision:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((revision, future))
        try:
            try:
                async with asyncio.timeout(min(BARRIER_AFTER_SECONDS, seconds_max)):
                    await asyncio.shield(future)
                return True
            except TimeoutError:
                pass
            await self._write_barrier()
            async with asyncio.timeout(seconds_max):
                await future
            return True
        except TimeoutError:
            return False
        finally:
            future.cancel()

    async def _write_barrier(self) -> None:
        try:
            await self._store.txn((Member((), (Put(self._barrier, b""),)),))
        except StoreError as error:
            self._log.warning("barrier_failed", reason=str(error))

    async def wait_fresh(self) -> None:
        """Waits until the registry is at least as new as the store was at the call.

        Raises:
            Unavailable: the store does not answer, or the watch lags too far.
        """
        revision = await self._quorum_revision()
        if not await self.wait_for(revision):
            raise Unavailable(
                f"this API server lags behind the store: it is at {self.registry.revision}, not at {revision}"
            )

    async def _quorum_revision(self) -> int:
        """The store's revision, asked after the call; callers that wait for the same question share its answer."""
        if self._fresh is None:
            self._fresh = asyncio.create_task(self._ask_revision())
            return await asyncio.shield(self._fresh)
        # One is under way, and may have been answered before this call: share the next one.
        if self._next_fresh is None:
            self._next_fresh = asyncio.create_task(self._ask_after(self._fresh))
        return await asyncio.shield(self._next_fresh)

    async def _ask_after(self, running: asyncio.Task[int]) -> int:
        await asyncio.wait([running])
        self._fresh, self._next_fresh = self._next_fresh, None
        return await self._ask_revision()

    async def _ask_revision(self) -> int:
        mine = asyncio.current_task()
        try:
            return await self._store.revision()
        except StoreError as error:
            raise Unavailable(f"the store does not answer: {error}", retry_after_seconds=1) from error
        finally:
            if self._fresh is mine and self._next_fresh is None:
                self._fresh = None

    async def read_ledger(self, keys: tuple[bytes, ...]) -> None:
        """Reads ledger or epoch records again from the store and notes them.

        Raises:
            Unavailable, OutcomeUnknown: the store does not answer.
        """
        for key in keys:
            assert not key.startswith(b"/orrery/registry/"), "registry objects come in order, through the watch"
            try:
                record = await self._store.get(key)
            except StoreError as error:
                raise Unavailable(f"the store does not answer: {error}", retry_after_seconds=1) from error
            if record is not None:
                self.registry.learn_plain(record)
            elif key.startswith(LEDGER):
                self.registry.plain.pop(key, None)
