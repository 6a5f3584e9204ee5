"""Group commit: writes that arrive while a transaction is in flight ride in the next one.

Each change gets its own answer. An outcome that the store does not tell is resolved here: the same change, with the same
comparisons and the same write id, is submitted again, alone. If it succeeds, the first attempt cannot have happened and
can no longer happen, since its comparisons are now false; if it fails, the write id on the object tells whether the
first attempt had. What stays open after ATTEMPTS_MAX is `OutcomeUnknown`, never a refusal.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from apiserver.core import header
from apiserver.core.groups import Change, Planned, RegistryPut, delete_versions, place, take_group
from apiserver.core.keys import REGISTRY
from apiserver.core.versions import pack
from apiserver.store.protocol import (
    MemberResult,
    Record,
    Store,
    StoreError,
    StoreNoSpace,
    StoreOutcomeUnknown,
    StoreTooLarge,
    StoreUnavailable,
    TxnResult,
)
from services.model.clock import Clock
from services.model.errors import ApiError, OutcomeUnknown, TooLarge, TooManyRequests, Unavailable
from services.runtime.logging import Logger

ATTEMPTS_MAX = 6
RETRY_SECONDS = 0.1
WAITING_CHANGES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a change. `versions`: one for each registry write that happened, in order; `records`: the answers
    to its `reads` when it did not happen. `group_size`: how many changes shared the transaction, which took from
    `began_ns` to `ended_ns` (wall clock).
    """

    succeeded: bool
    revision: int
    versions: tuple[int, ...]
    records: tuple[Record | None, ...]
    group_size: int
    began_ns: int = 0
    ended_ns: int = 0


# What a write noted of a transaction that it rode in, for its trace.
Ridden = tuple[Change, Committed]


class Committer:
    """One transaction in flight; everything that arrives meanwhile waits for the next."""

    def __init__(self, store: Store, clock: Clock, log: Logger) -> None:
        self._store = store
        self._clock = clock
        self._log = log
        self._waiting: deque[Change] = deque()
        self._futures: dict[int, asyncio.Future[Committed]] = {}
        self._arrived = asyncio.Event()
        self._resolving: set[asyncio.Task[None]] = set()

    async def commit(self, change: Change) -> Committed:
        """Submits one change and waits for its outcome.

        Raises:
            TooManyRequests: the queue is full; it did not happen.
            Unavailable, TooLarge: it did not happen.
            OutcomeUnknown: nobody knows.
        """
        if len(self._waiting) >= WAITING_CHANGES_MAX:
            raise TooManyRequests("the write queue is full", retry_after_seconds=1)
        future: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self._futures[id(change)] = future
        self._waiting.append(change)
        self._arrived.set()
        try:
            return await future
        finally:
            self._futures.pop(id(change), None)

    async def run(self) -> None:
        """Commits for ever; ends only by cancellation, which also ends what is being resolved."""
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._waiting:
                    await self._commit_group(take_group(self._waiting))
        finally:
            for task in list(self._resolving):
                task.cancel()

    async def _commit_group(self, group: list[Change]) -> None:
        planned = place(group)
        began_ns = self._clock.wall_ns()
        try:
            result = await self._store.txn(tuple(plan.member for plan in planned))
        except StoreOutcomeUnknown as error:
            self._log.warning("outcome_unknown", changes=len(group), reason=str(error))
            for change in group:
                task = asyncio.create_task(self._resolve(change))
                self._resolving.add(task)
                task.add_done_callback(self._resolving.discard)
        except StoreTooLarge as error:
            await self._split(group, error)
        except StoreError as error:
            for change in group:
                self._fail(change, _refusal(error))
        else:
            self._answer_group(group, planned, result, began_ns)

    async def _split(self, group: list[Change], error: StoreTooLarge) -> None:
        if len(group) == 1:
            self._fail(group[0], TooLarge(str(error)))
            return
        half = len(group) // 2
        await self._commit_group(group[:half])
        await self._commit_group(group[half:])

    def _answer_group(self, group: list[Change], planned: list[Planned], result: TxnResult, began_ns: int) -> None:
        ended_ns = self._clock.wall_ns()
        succeeded = [item.succeeded for item in result.results]
        versions = delete_versions(planned, succeeded, result.revision)
        for change, answer, mine in zip(group, result.results, versions, strict=True):
            committed = Committed(
                answer.succeeded, result.revision, mine, answer.records, len(group), began_ns, ended_ns
            )
            self._answer(change, committed)

    def _answer(self, change: Change, committed: Committed) -> None:
        future = self._futures.get(id(change))
        if future is not None and not future.done():
            future.set_result(committed)

    def _fail(self, change: Change, error: ApiError) -> None:
        future = self._futures.get(id(change))
        if future is not None and not future.done():
            future.set_exception(error)

    async def _resolve(self, change: Change) -> None:
        """Finds out what became of one change whose transaction was not answered."""
        for attempt in range(ATTEMPTS_MAX):
            await self._clock.sleep(RETRY_SECONDS * 2**attempt)
            planned = place([change])
            began_ns = self._clock.wall_ns()
            try:
                result = await self._store.txn((planned[0].member,))
                if result.results[0].succeeded:
                    self._answer_group([change], planned, result, began_ns)
                    return
                self._answer(change, await self._after_lost_comparison(change, result.results[0], result.revision))
                return
            except (StoreOutcomeUnknown, StoreUnavailable):
                continue
            except StoreError as error:
                # The first attempt may still stand: this refusal is of the second one only.
                self._log.warning("resolution_refused", reason=str(error))
                continue
        self._fail(change, OutcomeUnknown("the store did not say what became of the write; it may have happened"))

    async def _after_lost_comparison(self, change: Change, result: MemberResult, revision: int) -> Committed:
        """Whether the comparison was lost to the change's own first attempt: then its objects carry its write id."""
        lost = Committed(succeeded=False, revision=revision, versions=(), records=result.records, group_size=1)
        put = next((write for write in change.writes if isinstance(write, RegistryPut)), None)
        if put is None:
            return lost
        compared = next((compare for compare in change.compares if compare.key == put.key), None)
        assert compared is not None, "a registry write compares its own key"
        record = await self._store.get(put.key)
        since = compared.revision + 1
        if record is None:
            # Created and deleted again, or never there: only a creation can tell, by what it compared.
            return lost if compared.revision == 0 else await self._unknown()
        if record.mod_revision < since:
            return lost
        landed = await self._find(change.write_id, put.key, max(since, record.create_revision), record.mod_revision)
        if landed is None:
            return lost
        versions = await self._versions_at(landed, change)
        return Committed(succeeded=True, revision=landed, versions=versions, records=(), group_size=1)

    async def _find(self, write_id: bytes, key: bytes, first: int, last: int) -> int | None:
        """The revision at which `key` was written with `write_id`, between two revisions; None when it was not."""
        async for batch in self._store.watch(key, start_revision=first):
            for event in batch.events:
                if event.record.key == key and not event.deleted:
                    stored = header.decode(event.record.value)
                    if stored.write_id == write_id:
                        return event.record.mod_revision
            if batch.revision >= last:
                return None
        raise AssertionError("a watch does not end")

    async def _versions_at(self, revision: int, change: Change) -> tuple[int, ...]:
        """The versions of the change's registry writes, which happened at `revision`, perhaps beside those of others:
        a delete's place follows from the events before it.
        """
        async for batch in self._store.watch(REGISTRY, start_revision=revision):
            index, versions = -1, {}
            for event in batch.events:
                record = event.record
                if record.mod_revision == revision:
                    index = index + 1 if event.deleted else header.decode(record.value).index
                    versions[record.key] = pack(revision, index)
            return tuple(versions[write.key] for write in change.writes if write.key.startswith(REGISTRY))
        raise AssertionError("a watch does not end")

    @staticmethod
    async def _unknown() -> Committed:
        raise StoreOutcomeUnknown("the object is gone; whether the write had happened before, nobody can tell")


def _refusal(error: StoreError) -> ApiError:
    if isinstance(error, StoreNoSpace):
        return Unavailable(str(error), retry_after_seconds=30)
    return Unavailable(f"the store does not take writes: {error}", retry_after_seconds=1)
