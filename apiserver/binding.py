"""Bind: one transaction that compares the pod, the leader's epoch and the node's ledger, and writes pod and ledger.

Binds to one node queue in its lane and fold into one change. Whatever would be refused from the cache is looked at once
more with what the store says now, since the cache may lag; a lost comparison brings the current records with it, and the
bind is judged again from those. What the caller learns is which comparison decided.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from apiserver.cache import Cache
from apiserver.committer import Committed, Committer
from apiserver.core.groups import Change, RegistryPut
from apiserver.core.keys import epoch_key, registry_key, taken_key
from apiserver.core.registry import Entry, entry_of
from apiserver.lanes import Lanes, TaskOwner
from apiserver.ledgers import Ledgers, unchanged
from apiserver.placing import choose_devices
from apiserver.store.protocol import Compare, Put, Store, StoreError
from protos.orrery.v1.api_pb2 import (
    ALREADY_BOUND,
    BOUND,
    CAPACITY,
    CONFLICT,
    FENCED,
    GONE,
    UNKNOWN,
    BindComparisons,
    BindGroupResponse,
    Binding,
    BindOutcome,
    BindResult,
    Fence,
)
from protos.orrery.v1.placement_pb2 import DeviceShare as WireShare
from services.model.clock import Clock
from services.model.devices import DeviceShare
from services.model.errors import ApiError, OutcomeUnknown, Unavailable
from services.model.kinds import KIND_BY_RESOURCE
from services.model.ledger import Ledger, names_what_is_asked
from services.model.pod import Placement, PodView
from services.runtime.telemetry import record_span
from services.wire.ledger import write_taken
from services.wire.pod import PodDecoder, bind_pod

ATTEMPTS_MAX = 24
GROUP_BINDINGS_MAX = 512
PODS = KIND_BY_RESOURCE["pods"]


@dataclass(slots=True)
class Attempt:
    """One binding on its way. `entry`: the pod as last read from the store, None while the cache is good enough."""

    binding: Binding
    fence: Fence | None
    write_id: bytes
    future: "asyncio.Future[BindResult]"
    started_ns: int
    entry: Entry | None = None
    fresh: bool = False
    attempts: int = 0
    lost: BindComparisons = field(default_factory=lambda: BindComparisons(pod=True, epoch=True, ledger=True))

    @property
    def key(self) -> bytes:
        return registry_key(PODS, self.binding.namespace, self.binding.name)


@dataclass(frozen=True, slots=True)
class Ready:
    """A binding that holds as far as is known: the pod's version it rests on, and the place it takes."""

    entry: Entry
    placement: Placement
    compares: tuple[Compare, ...]


class Binder:
    """`scheduler_leases`: schedulerName -> namespace/name of the Lease whose fence its binds must bring."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        committer: Committer,
        ledgers: Ledgers,
        clock: Clock,
        owner: TaskOwner,
        decoder: PodDecoder,
        scheduler_leases: dict[str, str],
    ) -> None:
        self._store = store
        self._cache = cache
        self._committer = committer
        self._ledgers = ledgers
        self._clock = clock
        self._decoder = decoder
        self._scheduler_leases = scheduler_leases
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
        ledger = self._ledgers.ledger(node)
        ready: list[tuple[Attempt, Ready]] = []
        keys: set[bytes] = set()
        later: list[Attempt] = []
        for attempt in attempts:
            if attempt.future.done():
                continue
            if attempt.key in keys:
                later.append(attempt)
                continue
            verdict = await self._judge_twice(attempt, ledger, node, alone=not ready)
            if isinstance(verdict, Ready):
                ready.append((attempt, verdict))
                keys.add(attempt.key)
                ledger = ledger.take(verdict.placement.resources, verdict.placement.devices)
            elif verdict is None:
                later.append(attempt)
            else:
                self._answer(attempt, verdict)
        if ready:
            await self._commit(node, ready, ledger)
        if later:
            self._lanes.put_back(node, later)

    async def _refresh_or_fail(self, node: str, attempts: list[Attempt]) -> None:
        try:
            await self._ledgers.refresh(node)
        except Unavailable as error:
            self._fail(attempts, error)

    async def _judge_twice(
        self, attempt: Attempt, ledger: Ledger, node: str, *, alone: bool
    ) -> Ready | BindResult | None:
        """The verdict; a refusal only after a look at the store itself. None: wait for the next fold, without the others."""
        verdict = self.judge(attempt, ledger)
        if isinstance(verdict, Ready) or attempt.fresh:
            if isinstance(verdict, BindResult) and verdict.outcome == CAPACITY and not alone:
                return None
            return verdict
        if not alone:
            return None
        try:
            record = await self._store.get(attempt.key)
            attempt.entry = entry_of(record) if record is not None else None
            await self._ledgers.refresh(node)
            if attempt.fence is not None:
                await self._cache.read_ledger((epoch_key(attempt.fence.lease),))
        except (StoreError, Unavailable) as error:
            self._fail([attempt], Unavailable(f"the store does not answer: {error}", retry_after_seconds=1))
            return None
        attempt.fresh = True
        return self.judge(attempt, self._ledgers.ledger(node))

    def judge(self, attempt: Attempt, ledger: Ledger) -> Ready | BindResult:
        """What is to be said of a binding from what is known now."""
        binding = attempt.binding
        entry = attempt.entry
        if entry is None and not attempt.fresh:
            entry = self._cache.registry.get(PODS, f"{binding.namespace}/{binding.name}")
        if entry is None:
            return BindResult(outcome=GONE, message=f"pod {binding.namespace}/{binding.name} does not exist")
        pod = self._decoder.view(entry.value, str(entry.version))
        refused = self._judge_pod(binding, pod, entry) or self._judge_fence(attempt, pod)
        if refused is not None:
            return refused
        placed = self._place(binding, pod, ledger)
        if isinstance(placed, BindResult):
            return placed
        token = attempt.fence.token if attempt.fence is not None else 0
        placement = Placement(binding.node_name, ledger.taken.node_uid, pod.spec.requests, placed, token)
        compares = [unchanged(attempt.key, entry.revision)]
        if attempt.fence is not None:
            compares.append(unchanged(epoch_key(attempt.fence.lease), attempt.fence.token))
        return Ready(entry, placement, tuple(compares))

    def _judge_pod(self, binding: Binding, pod: PodView, entry: Entry) -> BindResult | None:
        if binding.uid and pod.uid != binding.uid:
            return BindResult(outcome=GONE, message=f"pod {pod.key} has uid {pod.uid}, not {binding.uid}")
        if pod.spec.node_name:
            devices = pod.placed.devices if pod.placed is not None else ()
            same = pod.spec.node_name == binding.node_name and (not binding.devices or _shares(binding) == devices)
            return BindResult(
                outcome=ALREADY_BOUND if same else CONFLICT,
                message=f"pod {pod.key} is bound to {pod.spec.node_name}",
                resource_version=str(entry.version),
                node_name=pod.spec.node_name,
                devices=_wire_shares(devices),
                comparisons=BindComparisons(pod=False, epoch=True, ledger=True),
            )
        if pod.deleting or pod.finished:
            return BindResult(outcome=GONE, message=f"pod {pod.key} is being deleted or has ended")
        if pod.spec.scheduling_gates:
            gates = ", ".join(pod.spec.scheduling_gates)
            return BindResult(outcome=CONFLICT, message=f"pod {pod.key} is held by scheduling gates: {gates}")
        return None

    def _judge_fence(self, attempt: Attempt, pod: PodView) -> BindResult | None:
        lease = self._scheduler_leases.get(pod.spec.scheduler_name)
        fence = attempt.fence
        lost = BindComparisons(pod=True, epoch=False, ledger=True)
        if lease is not None and (fence is None or fence.lease != lease):
            why = f"pods of {pod.spec.scheduler_name} are bound under the lease {lease}; the binding brings no fence of it"
            return BindResult(outcome=FENCED, message=why, comparisons=lost)
        if fence is None:
            return None
        record = self._cache.registry.plain.get(epoch_key(fence.lease))
        if record is not None and record.mod_revision > fence.token:
            why = f"the epoch of {fence.lease} is {record.mod_revision}, the fence is of {fence.token}"
            return BindResult(outcome=FENCED, message=why, comparisons=lost)
        if record is None and attempt.fresh:
            return BindResult(outcome=FENCED, message=f"nobody has ever held the lease {fence.lease}", comparisons=lost)
        return None

    def _place(self, binding: Binding, pod: PodView, ledger: Ledger) -> tuple[DeviceShare, ...] | BindResult:
        """The devices that the pod gets, or why the node cannot hold it."""
        named = _shares(binding)
        if named and (why := names_what_is_asked(pod.spec.devices, named, ledger)):
            return self._lacks(binding, why)
        devices = named
        if pod.spec.devices is not None and not named:
            chosen = choose_devices(self._cache, pod.spec.devices, binding.node_name, ledger)
            if chosen is None:
                return self._lacks(binding, ledger.lacks(pod.spec.requests, ()) or "Insufficient devices")
            devices = chosen
        if why := ledger.lacks(pod.spec.requests, devices):
            return self._lacks(binding, why)
        return devices

    @staticmethod
    def _lacks(binding: Binding, why: str) -> BindResult:
        lost = BindComparisons(pod=True, epoch=True, ledger=False)
        return BindResult(outcome=CAPACITY, message=f"node {binding.node_name}: {why}", comparisons=lost)

    async def _commit(self, node: str, ready: list[tuple[Attempt, Ready]], ledger: Ledger) -> None:
        now_ns = self._clock.wall_ns()
        compares = dict.fromkeys(compare for _, item in ready for compare in item.compares)
        compares[unchanged(taken_key(node), self._ledgers.taken(node)[0])] = None
        taken = write_taken(ledger.taken)
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
        if committed.succeeded:
            self._ledgers.wrote(taken_key(node), taken, committed.revision)
            for (attempt, item), version in zip(ready, committed.versions, strict=True):
                self._answer(attempt, _bound(item, version), committed)
        else:
            self._learn(ready, epochs, node, committed)
            again = [attempt for attempt in attempts if not self._gives_up(attempt)]
            self._lanes.put_back(node, again)

    def _learn(self, ready: list[tuple[Attempt, Ready]], epochs: list[bytes], node: str, committed: Committed) -> None:
        """Takes in the records that a lost comparison brought."""
        if not committed.records:
            for attempt, _ in ready:
                attempt.fresh, attempt.entry = False, None
            return
        pods, rest = committed.records[: len(ready)], committed.records[len(ready) :]
        taken_before = self._ledgers.taken(node)[0]
        for key, record in zip((*epochs, taken_key(node)), rest, strict=True):
            self._ledgers.read(key, record)
        ledger_held = taken_before == self._ledgers.taken(node)[0]
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

    def _answer(self, attempt: Attempt, result: BindResult, committed: Committed | None = None) -> None:
        if attempt.future.done():
            return
        result.attempts = attempt.attempts
        attempt.future.set_result(result)
        binding, outcome = attempt.binding, BindOutcome.Name(result.outcome)
        attributes: dict[str, str | int | bool] = {
            "k8s.namespace.name": binding.namespace,
            "k8s.pod.name": binding.name,
            "k8s.pod.uid": binding.uid,
            "k8s.node.name": binding.node_name,
            "orrery.bind.outcome": outcome,
            "orrery.bind.transactions": attempt.attempts,
            "orrery.compare.pod": result.comparisons.pod,
            "orrery.compare.epoch": result.comparisons.epoch,
            "orrery.compare.ledger": result.comparisons.ledger,
            "db.system": "etcd",
            "db.operation": "txn",
        }
        if committed is not None:
            attributes |= {"orrery.etcd.revision": committed.revision, "orrery.etcd.group_size": committed.group_size}
        record_span(
            "apiserver.bind",
            parent=binding.traceparent,
            start_ns=attempt.started_ns,
            end_ns=self._clock.wall_ns(),
            attributes=attributes,
            error="" if result.outcome in (BOUND, ALREADY_BOUND) else f"{outcome}: {result.message}",
        )

    # Groups.

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
        ledgers: dict[str, Ledger] = {}
        ready: list[tuple[Attempt, Ready]] = []
        already: list[BindResult] = []
        for attempt in attempts:
            node = attempt.binding.node_name
            verdict = self.judge(attempt, ledgers.get(node) or self._ledgers.ledger(node))
            if isinstance(verdict, Ready):
                ledger = ledgers.get(node) or self._ledgers.ledger(node)
                ledgers[node] = ledger.take(verdict.placement.resources, verdict.placement.devices)
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
        return await self._commit_group(ready, ledgers)

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
        self, ready: list[tuple[Attempt, Ready]], ledgers: dict[str, Ledger]
    ) -> BindGroupResponse | None:
        now_ns = self._clock.wall_ns()
        compares = dict.fromkeys(compare for _, item in ready for compare in item.compares)
        writes: list[RegistryPut | Put] = []
        for attempt, item in ready:
            writes.append(RegistryPut(attempt.key, bind_pod(item.entry.value, item.placement, now_ns)))
        for node, ledger in ledgers.items():
            compares[unchanged(taken_key(node), self._ledgers.taken(node)[0])] = None
            writes.append(Put(taken_key(node), write_taken(ledger.taken)))
        change = Change(tuple(compares), tuple(writes), (), ready[0][0].write_id)
        try:
            committed = await self._committer.commit(change)
        except OutcomeUnknown as error:
            return BindGroupResponse(outcome=UNKNOWN, message=error.message)
        if not committed.succeeded:
            return None
        for write in writes:
            if isinstance(write, Put):
                self._ledgers.wrote(write.key, write.value, committed.revision)
        results = []
        for (attempt, item), version in zip(ready, committed.versions, strict=True):
            attempt.attempts += 1
            self._answer(attempt, _bound(item, version), committed)
            results.append(attempt.future.result())
        return BindGroupResponse(outcome=BOUND, results=results)


def _bound(item: Ready, version: int) -> BindResult:
    return BindResult(
        outcome=BOUND,
        resource_version=str(version),
        node_name=item.placement.node_name,
        devices=_wire_shares(item.placement.devices),
        comparisons=BindComparisons(pod=True, epoch=True, ledger=True),
    )


def _shares(binding: Binding) -> tuple[DeviceShare, ...]:
    return tuple(DeviceShare(share.index, share.milli) for share in binding.devices)


def _wire_shares(devices: Sequence[DeviceShare]) -> list[WireShare]:
    return [WireShare(index=share.index, milli=share.milli) for share in devices]
