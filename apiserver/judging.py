"""What is to be said of a binding: the judgement, from the pod, the fence and the node's ledger as they are known.

A judgement does nothing. What it rests on, it names as comparisons, so that the transaction finds out whether the world
is still so.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from apiserver.cache import Cache
from apiserver.committer import Ridden
from apiserver.core.keys import epoch_key, registry_key
from apiserver.core.registry import Entry
from apiserver.ledgers import unchanged
from apiserver.placing import choose_devices
from apiserver.store.protocol import Compare
from protos.orrery.v1.api_pb2 import (
    ALREADY_BOUND,
    BOUND,
    CAPACITY,
    CONFLICT,
    FENCED,
    GONE,
    BindComparisons,
    Binding,
    BindResult,
    Fence,
)
from protos.orrery.v1.placement_pb2 import DeviceShare as WireShare
from services.model.devices import DeviceShare
from services.model.kinds import KIND_BY_RESOURCE
from services.model.ledger import Ledger, names_what_is_asked
from services.model.pod import Placement, PodView
from services.wire.pod import PodDecoder

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
    ridden: list[Ridden] = field(default_factory=list)
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


@dataclass(frozen=True, slots=True)
class Base:
    """A ledger, and the mod_revision of its `taken` that it was read at."""

    revision: int
    ledger: Ledger


class Judge:
    """`scheduler_leases`: schedulerName -> namespace/name of the Lease whose fence its binds must bring."""

    def __init__(self, cache: Cache, decoder: PodDecoder, scheduler_leases: dict[str, str]) -> None:
        self._cache = cache
        self._decoder = decoder
        self._scheduler_leases = scheduler_leases

    def judge(self, attempt: Attempt, ledger: Ledger) -> Ready | BindResult:
        """What is to be said of a binding from what is known now."""
        binding = attempt.binding
        entry = attempt.entry
        if entry is None and not attempt.fresh:
            entry = self._cache.registry.get(PODS, f"{binding.namespace}/{binding.name}")
        if entry is None:
            return BindResult(outcome=GONE, message=f"pod {binding.namespace}/{binding.name} does not exist")
        pod = self._decoder.view(entry.value, str(entry.version))
        refused = self._judge_pod(binding, pod, entry)
        if refused is None or refused.outcome == CONFLICT or not _is_its_own(attempt, pod):
            # A deposed leader is told so first: its successor has often bound the pod already, even at the same place.
            fenced = self._judge_fence(attempt, pod)
            if fenced is not None and refused is not None:
                fenced.comparisons.pod = False
            refused = fenced or refused
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
            same = pod.spec.node_name == binding.node_name and (not binding.devices or shares_of(binding) == devices)
            return BindResult(
                outcome=ALREADY_BOUND if same else CONFLICT,
                message=f"pod {pod.key} is bound to {pod.spec.node_name}",
                resource_version=str(entry.version),
                node_name=pod.spec.node_name,
                devices=wire_shares(devices),
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
        named = shares_of(binding)
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


def _is_its_own(attempt: Attempt, pod: PodView) -> bool:
    """Whether the pod's place was taken under the very fence that the attempt brings: then it had landed before."""
    token = attempt.fence.token if attempt.fence is not None else 0
    return pod.placed is None or pod.placed.fencing_token == token


def bound(item: Ready, version: int) -> BindResult:
    return BindResult(
        outcome=BOUND,
        resource_version=str(version),
        node_name=item.placement.node_name,
        devices=wire_shares(item.placement.devices),
        comparisons=BindComparisons(pod=True, epoch=True, ledger=True),
    )


def shares_of(binding: Binding) -> tuple[DeviceShare, ...]:
    return tuple(DeviceShare(share.index, share.milli) for share in binding.devices)


def wire_shares(devices: Sequence[DeviceShare]) -> list[WireShare]:
    return [WireShare(index=share.index, milli=share.milli) for share in devices]
