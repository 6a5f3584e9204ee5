"""BindGroup: a gang bound whole or not at all, in one transaction.

Everything that the group rests on is read from the store first, so that a refusal is a fact; then all pods, the epoch and
the ledgers of all nodes are compared at once.
"""

import asyncio
from collections.abc import Sequence

from apiserver.cache import Cache
from apiserver.committer import Committer
from apiserver.core.groups import Change, RegistryPut
from apiserver.core.keys import epoch_key, taken_key
from apiserver.core.registry import entry_of
from apiserver.judging import Attempt, Base, Judge, Ready, bound
from apiserver.ledgers import Ledgers, unchanged
from apiserver.store.protocol import Put, Store, StoreError
from apiserver.tracing import Spans
from protos.orrery.v1.api_pb2 import (
    ALREADY_BOUND,
    BOUND,
    CAPACITY,
    CONFLICT,
    UNKNOWN,
    BindGroupResponse,
    Binding,
    BindResult,
    Fence,
)
from services.model.clock import Clock
from services.model.errors import OutcomeUnknown, Unavailable
from services.wire.ledger import write_taken
from services.wire.pod import bind_pod

ATTEMPTS_MAX = 24
GROUP_BINDINGS_MAX = 512


class GroupBinder:
    """Binds groups."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        committer: Committer,
        ledgers: Ledgers,
        clock: Clock,
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

    async def bind_group(self, bindings: Sequence[Binding], fence: Fence | None, write_id: bytes) -> BindGroupResponse:
        """All or none, in one transaction. Raises Unavailable."""
        if not 0 < len(bindings) <= GROUP_BINDINGS_MAX:
            why = f"a group has 1 to {GROUP_BINDINGS_MAX} bindings, so that it fits one transaction; this one has {len(bindings)}"
            return BindGroupResponse(outcome=CAPACITY, message=why)
        loop = asyncio.get_running_loop()
        attempts = [Attempt(item, fence, write_id, loop.create_future(), self._clock.wall_ns()) for item in bindings]
        if len({attempt.key for attempt in attempts}) != len(attempts):
            return BindGroupResponse(outcome=CONFLICT, message="the group names a pod twice")
        for _ in range(ATTEMPTS_MAX):
            answer = await self._try_group(attempts)
            if answer is not None:
                return answer
        return BindGroupResponse(
            outcome=CAPACITY, message="the group lost its comparisons to others too often; try again"
        )

    async def _try_group(self, attempts: list[Attempt]) -> BindGroupResponse | None:
        """One transaction for all of them; None when a comparison was lost and it is to be tried again."""
        await self._look(attempts)
        nodes = sorted({attempt.binding.node_name for attempt in attempts})
        bases = {node: Base(self._ledgers.taken(node)[0], self._ledgers.ledger(node)) for node in nodes}
        ready: list[tuple[Attempt, Ready]] = []
        already: list[BindResult] = []
        for attempt in attempts:
            base = bases[attempt.binding.node_name]
            verdict = self._judge.judge(attempt, base.ledger)
            if isinstance(verdict, Ready):
                ledger = base.ledger.take(verdict.placement.resources, verdict.placement.devices)
                bases[attempt.binding.node_name] = Base(base.revision, ledger)
                ready.append((attempt, verdict))
            elif verdict.outcome == ALREADY_BOUND:
                already.append(verdict)
            else:
                message = f"{attempt.binding.namespace}/{attempt.binding.name}: {verdict.message}"
                return BindGroupResponse(outcome=verdict.outcome, message=message)
        if not ready:
            return BindGroupResponse(outcome=ALREADY_BOUND, results=already)
        if already:
            return BindGroupResponse(outcome=CONFLICT, message="a part of the group is bound already", results=already)
        return await self._commit_group(ready, bases)

    async def _look(self, attempts: list[Attempt]) -> None:
        """Reads everything that the group rests on from the store."""
        try:
            for attempt in attempts:
                record = await self._store.get(attempt.key)
                attempt.entry = entry_of(record) if record is not None else None
                attempt.fresh = True
            for node in sorted({attempt.binding.node_name for attempt in attempts}):
                await self._ledgers.refresh(node)
            fence = attempts[0].fence
            if fence is not None:
                await self._cache.read_ledger((epoch_key(fence.lease),))
        except StoreError as error:
            raise Unavailable(f"the store does not answer: {error}", retry_after_seconds=1) from error

    async def _commit_group(
        self, ready: list[tuple[Attempt, Ready]], bases: dict[str, Base]
    ) -> BindGroupResponse | None:
        now_ns = self._clock.wall_ns()
        compares = dict.fromkeys(compare for _, item in ready for compare in item.compares)
        writes: list[RegistryPut | Put] = []
        for attempt, item in ready:
            writes.append(RegistryPut(attempt.key, bind_pod(item.entry.value, item.placement, now_ns)))
        for node, base in bases.items():
            compares[unchanged(taken_key(node), base.revision)] = None
            writes.append(Put(taken_key(node), write_taken(base.ledger.taken)))
        change = Change(tuple(compares), tuple(writes), (), ready[0][0].write_id)
        try:
            committed = await self._committer.commit(change)
        except OutcomeUnknown as error:
            return BindGroupResponse(outcome=UNKNOWN, message=error.message)
        for attempt, _ in ready:
            attempt.attempts += 1
            attempt.ridden.append((change, committed))
        if not committed.succeeded:
            return None
        for write in writes:
            if isinstance(write, Put):
                self._ledgers.wrote(write.key, write.value, committed.revision)
        results = []
        for (attempt, item), version in zip(ready, committed.versions, strict=True):
            result = bound(item, version)
            self._spans.bind(attempt, result, self._clock.wall_ns())
            results.append(result)
        return BindGroupResponse(outcome=BOUND, results=results)
