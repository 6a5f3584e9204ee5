"""Bind: one transaction that compares the pod, the leader's epoch and the node's ledger, and writes pod and ledger.

Binds to one node queue in its lane and fold into one change. Whatever would be refused from the cache is looked at once
more with what the store says now, since the cache may lag; a lost comparison brings the current records with it, and the
bind is judged again from those. What the caller learns is which comparison decided.
"""

import asyncio
from collections.abc import Sequence

from apiserver.cache import Cache
from apiserver.committer import Committed, Committer
from apiserver.core.groups import Change, RegistryPut
from apiserver.core.keys import epoch_key, taken_key
from apiserver.core.registry import entry_of
from apiserver.judging import Attempt, Base, Judge, Ready, bound
from apiserver.lanes import Lanes, TaskOwner
from apiserver.ledgers import Ledgers, unchanged
from apiserver.store.protocol import Put, Store, StoreError
from apiserver.tracing import Spans
from protos.orrery.v1.api_pb2 import CAPACITY, CONFLICT, UNKNOWN, BindComparisons, Binding, BindResult, Fence
from services.model.clock import Clock
from services.model.errors import ApiError, OutcomeUnknown, Unavailable
from services.model.ledger import Ledger
from services.wire.ledger import write_taken
from services.wire.pod import bind_pod

ATTEMPTS_MAX = 24


class Binder:
    """The bind lanes."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        committer: Committer,
        ledgers: Ledgers,
        clock: Clock,
        owner: TaskOwner,
        judge: Judge,
        spans: Spans,
    ) -> None:
        self._store = store
        self._cache = cache
        self._committer = committer
        self._ledgers = ledgers
        self._clock = clock
        self._judge = judge
        self._spans = spans
        self._lanes: Lanes[Attempt] = Lanes(owner, self._bind_fold)

    async def bind(self, binding: Binding, fence: Fence | None, write_id: bytes) -> BindResult:
        """The outcome of one binding; faults of the store are outcomes too (UNKNOWN), or Unavailable."""
        future: asyncio.Future[BindResult] = asyncio.get_running_loop().create_future()
        attempt = Attempt(binding, fence, write_id, future, self._clock.wall_ns())
        if not (binding.namespace and binding.name and binding.node_name):
            return BindResult(outcome=CONFLICT, message="a binding names namespace, pod and node")
        self._lanes.add(binding.node_name, attempt)
        return await future

    # One fold: judge each against the ledger as the ones before it leave it, commit, answer.

    async def _bind_fold(self, node: str, attempts: list[Attempt]) -> None:
        attempts = [attempt for attempt in attempts if not attempt.future.done()]
        if not self._ledgers.taken(node)[0]:
            await self._refresh_or_fail(node, attempts)
        # What is judged is what is compared: the revision stays with the ledger that was read at it.
        base = Base(self._ledgers.taken(node)[0], self._ledgers.ledger(node))
        ready: list[tuple[Attempt, Ready]] = []
        keys: set[bytes] = set()
        later: list[Attempt] = []
        for attempt in attempts:
            if attempt.future.done():
                continue
            if attempt.key in keys:
                later.append(attempt)
                continue
            if attempt.fresh or ready:
                verdict = self._judge_in_fold(attempt, base.ledger, alone=not ready)
            else:
                base, verdict = await self._judge_twice(attempt, base, node, attempts)
            if isinstance(verdict, Ready):
                ready.append((attempt, verdict))
                keys.add(attempt.key)
                base = Base(base.revision, base.ledger.take(verdict.placement.resources, verdict.placement.devices))
            elif verdict is None:
                later.append(attempt)
            else:
                self._answer(attempt, verdict)
        if ready:
            await self._commit(node, ready, base)
        if later:
            self._lanes.put_back(node, later)

    async def _refresh_or_fail(self, node: str, attempts: list[Attempt]) -> None:
        try:
            await self._ledgers.refresh(node)
        except Unavailable as error:
            self._fail(attempts, error)

    def _judge_in_fold(self, attempt: Attempt, ledger: Ledger, *, alone: bool) -> Ready | BindResult | None:
        """The verdict beside others. None: a refusal that the others may have caused, or that needs a look at the store."""
        verdict = self._judge.judge(attempt, ledger)
        if isinstance(verdict, Ready) or alone:
            return verdict
        final = attempt.fresh and verdict.outcome != CAPACITY
        return verdict if final else None

    async def _judge_twice(
        self, attempt: Attempt, base: Base, node: str, fold: Sequence[Attempt]
    ) -> tuple[Base, Ready | BindResult | None]:
        """The verdict of a fold's first; a refusal only after a look at the store itself, which may renew the base.

        The look serves the whole fold: what a deposed leader sends late is refused one by one, but read once.
        """
        verdict = self._judge.judge(attempt, base.ledger)
        if isinstance(verdict, Ready):
            return base, verdict
        if not await self._look_again(node, [item for item in fold if not item.future.done()]):
            return base, None
        base = Base(self._ledgers.taken(node)[0], self._ledgers.ledger(node))
        return base, self._judge.judge(attempt, base.ledger)

    async def _look_again(self, node: str, attempts: list[Attempt]) -> bool:
        """Reads the pods, the ledger and the epochs of `attempts`; when the store does not answer they fail."""
        leases = sorted({attempt.fence.lease for attempt in attempts if attempt.fence is not None})
        try:
            pods = asyncio.gather(*(self._store.get(attempt.key) for attempt in attempts))
            await asyncio.gather(
                pods,
                self._ledgers.refresh(node),
                *(self._cache.read_ledger((epoch_key(lease),)) for lease in leases),
            )
        except (StoreError, Unavailable) as error:
            self._fail(attempts, Unavailable(f"the store does not answer: {error}", retry_after_seconds=1))
            return False
        for attempt, record in zip(attempts, pods.result(), strict=True):
            attempt.entry = entry_of(record) if record is not None else None
            attempt.fresh = True
        return True

    async def _commit(self, node: str, ready: list[tuple[Attempt, Ready]], base: Base) -> None:
        now_ns = self._clock.wall_ns()
        compares = dict.fromkeys(compare for _, item in ready for compare in item.compares)
        compares[unchanged(taken_key(node), base.revision)] = None
        taken = write_taken(base.ledger.taken)
        epochs = sorted({epoch_key(attempt.fence.lease) for attempt, _ in ready if attempt.fence is not None})
        change = Change(
            compares=tuple(compares),
            writes=(
                *(
                    RegistryPut(attempt.key, bind_pod(item.entry.value, item.placement, now_ns))
                    for attempt, item in ready
                ),
                Put(taken_key(node), taken),
            ),
            reads=(*(attempt.key for attempt, _ in ready), *epochs, taken_key(node)),
            write_id=ready[0][0].write_id,
        )
        attempts = [attempt for attempt, _ in ready]
        for attempt in attempts:
            attempt.attempts += 1
        try:
            committed = await self._committer.commit(change)
        except ApiError as error:
            self._fail(attempts, error)
            return
        for attempt in attempts:
            attempt.ridden.append((change, committed))
        if committed.succeeded:
            self._ledgers.wrote(taken_key(node), taken, committed.revision)
            for (attempt, item), version in zip(ready, committed.versions, strict=True):
                self._answer(attempt, bound(item, version))
        else:
            self._learn(ready, epochs, node, base.revision, committed)
            again = [attempt for attempt in attempts if not self._gives_up(attempt)]
            self._lanes.put_back(node, again)

    def _learn(
        self,
        ready: list[tuple[Attempt, Ready]],
        epochs: list[bytes],
        node: str,
        taken_revision: int,
        committed: Committed,
    ) -> None:
        """Takes in the records that a lost comparison brought."""
        if not committed.records:
            for attempt, _ in ready:
                attempt.fresh, attempt.entry = False, None
            return
        pods, rest = committed.records[: len(ready)], committed.records[len(ready) :]
        for key, record in zip((*epochs, taken_key(node)), rest, strict=True):
            self._ledgers.read(key, record)
        ledger_held = taken_revision == (rest[-1].mod_revision if rest[-1] is not None else 0)
        for (attempt, item), record in zip(ready, pods, strict=True):
            attempt.lost = BindComparisons(
                pod=record is not None and record.mod_revision == item.entry.revision,
                epoch=self._epoch_held(attempt),
                ledger=ledger_held,
            )
            attempt.entry = entry_of(record) if record is not None else None
            attempt.fresh = True

    def _epoch_held(self, attempt: Attempt) -> bool:
        if attempt.fence is None:
            return True
        record = self._cache.registry.plain.get(epoch_key(attempt.fence.lease))
        return record is not None and record.mod_revision == attempt.fence.token

    def _gives_up(self, attempt: Attempt) -> bool:
        if attempt.attempts < ATTEMPTS_MAX:
            return False
        why = f"lost its comparison {attempt.attempts} times to others; try again"
        self._answer(attempt, BindResult(outcome=CAPACITY, message=why, comparisons=attempt.lost))
        return True

    def _fail(self, attempts: Sequence[Attempt], error: ApiError) -> None:
        for attempt in attempts:
            if isinstance(error, OutcomeUnknown):
                self._answer(attempt, BindResult(outcome=UNKNOWN, message=error.message))
            elif not attempt.future.done():
                attempt.future.set_exception(type(error)(error.message, retry_after_seconds=error.retry_after_seconds))

    def _answer(self, attempt: Attempt, result: BindResult) -> None:
        if attempt.future.done():
            return
        result.attempts = attempt.attempts
        attempt.future.set_result(result)
        self._spans.bind(attempt, result, self._clock.wall_ns())
