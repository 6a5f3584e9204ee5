"""Compaction, which is the API servers' own: etcd's automatic one knows nothing of our watches.

The target is written to a key first, compared with what stood there, so that of several servers one does it. Every
server sees that key through its watch and expires what lies at or below the target; only then is etcd compacted.
"""

from apiserver.cache import Cache
from apiserver.core.keys import COMPACTION
from apiserver.core.versions import pack_list
from apiserver.ledgers import unchanged
from apiserver.store.protocol import Member, Put, Store, StoreError
from services.model.clock import Clock
from services.runtime.logging import Logger


class Compactor:
    """Keeps `keep_seconds` of history, give or take as much again."""

    def __init__(self, store: Store, cache: Cache, clock: Clock, keep_seconds: float, log: Logger) -> None:
        self._store = store
        self._cache = cache
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._log = log

    async def run(self) -> None:
        """Compacts for ever; ends only by cancellation. Returns at once when all history is kept."""
        if not self._keep_seconds:
            return
        before = 0
        while True:
            await self._clock.sleep(self._keep_seconds)
            if before:
                try:
                    await self.compact(before)
                except StoreError as error:
                    self._log.warning("compaction_failed", reason=str(error))
            before = self._cache.registry.revision

    async def compact(self, revision: int) -> bool:
        """Announces the target, waits until this server has seen it, compacts. False when another server was faster.

        Raises:
            StoreError.
        """
        record = self._cache.registry.plain.get(COMPACTION)
        if record is not None and int(record.value) >= revision:
            return False
        known = record.mod_revision if record is not None else 0
        member = Member((unchanged(COMPACTION, known),), (Put(COMPACTION, str(revision).encode()),))
        result = await self._store.txn((member,))
        if not result.results[0].succeeded:
            return False
        await self._cache.wait_for(result.revision)
        await self._store.compact(revision)
        self._log.info("compacted", revision=revision)
        return True


def expire(cache: Cache) -> None:
    """Takes the announced target into account: called after each batch of the watch."""
    record = cache.registry.plain.get(COMPACTION)
    if record is None:
        return
    version = pack_list(int(record.value))
    for objects in cache.registry.objects.values():
        if objects.log.start_version < version:
            objects.log.expire_through(version)
