"""NodeResourcesFit and NodeResourcesBalancedAllocation: integer arithmetic over resource columns, as Kubernetes 1.36 does it."""

from collections.abc import Mapping

import numpy as np

from scheduler.core.framework import SCORE_MAX, ClusterEvent, CycleState, EventKind, Mask, Plugin
from scheduler.core.status import SKIP, SUCCESS, Code, Status
from scheduler.core.table import I64, Bools, NodeTable
from services.model.names import RESOURCE_CPU, RESOURCE_EPHEMERAL_STORAGE, RESOURCE_MEMORY, RESOURCE_PODS
from services.model.pod import PodView

LEAST_ALLOCATED = "LeastAllocated"
MOST_ALLOCATED = "MostAllocated"
DEFAULT_RESOURCES: Mapping[str, int] = {RESOURCE_CPU: 1, RESOURCE_MEMORY: 1}
_NATIVE = (RESOURCE_CPU, RESOURCE_MEMORY, RESOURCE_EPHEMERAL_STORAGE)
_TOO_MANY = "Too many pods"


class NodeResourcesFit(Plugin):
    """Filter: every request fits what is left. Score: by what would be left (LeastAllocated) or used (MostAllocated).

    `resources`: the weight of each resource in the score.
    """

    name = "NodeResourcesFit"

    def __init__(self, strategy: str = LEAST_ALLOCATED, resources: Mapping[str, int] = DEFAULT_RESOURCES) -> None:
        assert strategy in (LEAST_ALLOCATED, MOST_ALLOCATED), f"unknown scoring strategy {strategy}"
        self._least = strategy == LEAST_ALLOCATED
        self._resources = dict(resources)

    def filter(self, _state: CycleState, pod: PodView, nodes: NodeTable) -> Mask:
        """Bit 0: too many pods; bit i: the i-th request does not fit; the upper half: it never would on that node."""
        size = nodes.size
        codes = (nodes.requested[RESOURCE_PODS][:size] >= nodes.allocatable[RESOURCE_PODS][:size]).astype(np.int64)
        wanted = [(name, amount) for name, amount in pod.spec.requests.items() if amount > 0 and name != RESOURCE_PODS]
        shift = len(wanted) + 1
        for bit, (name, amount) in enumerate(wanted, start=1):
            allocatable = nodes.allocatable.get(name)
            if allocatable is None:
                codes |= (1 << bit) | (1 << (bit + shift))
                continue
            # Subtracted, not added: amounts saturate at 2^63 - 1.
            lacking = allocatable[:size] - nodes.requested[name][:size] < amount
            if lacking.any():
                codes |= lacking.astype(np.int64) << bit
                codes |= (allocatable[:size] < amount).astype(np.int64) << (bit + shift)
        reasons = (_TOO_MANY, *(f"Insufficient {name}" for name, _ in wanted))

        def explain(number: int) -> tuple[Code, tuple[str, ...]]:
            never = number >> shift
            said = tuple(reason for bit, reason in enumerate(reasons) if number >> bit & 1)
            return Code.UNSCHEDULABLE_AND_UNRESOLVABLE if never else Code.UNSCHEDULABLE, said

        return Mask(codes, explain)

    def score(self, _state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64:
        total = np.zeros(len(feasible), dtype=np.int64)
        weights = np.zeros(len(feasible), dtype=np.int64)
        for name, weight in self._resources.items():
            amount = self._score_request(pod, name)
            if (amount == 0 and name not in _NATIVE) or name not in nodes.allocatable:
                continue
            capacity = nodes.allocatable[name][feasible]
            used = self._score_used(nodes, name)[feasible] + amount
            there = capacity > 0
            safe = np.where(there, capacity, 1)
            if self._least:
                part = np.where(used > capacity, 0, (capacity - used) * SCORE_MAX // safe)
            else:
                part = np.minimum(used, capacity) * SCORE_MAX // safe
            total += np.where(there, part * weight, 0)
            weights += np.where(there, weight, 0)
        return np.where(weights > 0, total // np.where(weights > 0, weights, 1), 0)

    @staticmethod
    def _score_request(pod: PodView, name: str) -> int:
        if name == RESOURCE_CPU:
            return pod.spec.scoring_milli_cpu
        if name == RESOURCE_MEMORY:
            return pod.spec.scoring_memory
        return pod.spec.requests.get(name, 0)

    @staticmethod
    def _score_used(nodes: NodeTable, name: str) -> I64:
        if name == RESOURCE_CPU:
            return nodes.nonzero_cpu
        if name == RESOURCE_MEMORY:
            return nodes.nonzero_memory
        return nodes.requested[name]

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """A node that could hold the pod when empty, or a pod that leaves some of what this one asks for."""
        if event.kind in (EventKind.NODE_ADD, EventKind.NODE_ALLOCATABLE) and event.node is not None:
            allocatable = event.node.allocatable
            return all(allocatable.get(name, 0) >= amount for name, amount in pod.spec.requests.items())
        # A pod that leaves always leaves its place among `pods`.
        return event.kind is EventKind.POD_REMOVED


class NodeResourcesBalancedAllocation(Plugin):
    """Score: by how much nearer to each other the pod brings the used fractions of cpu and memory."""

    name = "NodeResourcesBalancedAllocation"

    def pre_score(self, _state: CycleState, pod: PodView, _nodes: NodeTable, _feasible: Bools) -> Status:
        asks = any(pod.spec.requests.get(name, 0) for name in DEFAULT_RESOURCES)
        return SUCCESS if asks else SKIP

    def score(self, _state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64:
        """50 + (50 + b_with - b_without) // 2, with b = int((1 - |f_cpu - f_memory| / 2) * 100)."""
        capacities = [nodes.allocatable[name][feasible] for name in DEFAULT_RESOURCES]
        used = [nodes.requested[name][feasible] for name in DEFAULT_RESOURCES]
        asked = [pod.spec.requests.get(name, 0) for name in DEFAULT_RESOURCES]
        after = _balance([held + more for held, more in zip(used, asked, strict=True)], capacities)
        before = _balance(used, capacities)
        return np.asarray(50 + (50 + after - before) // 2, dtype=np.int64)


def _balance(used: list[I64], capacities: list[I64]) -> I64:
    """100 where a resource is missing; fractions are capped at 1."""
    fractions = [
        np.minimum(held / np.where(capacity > 0, capacity, 1), 1.0)
        for held, capacity in zip(used, capacities, strict=True)
    ]
    balance = ((1 - np.abs(fractions[0] - fractions[1]) / 2) * SCORE_MAX).astype(np.int64)
    return np.where((capacities[0] > 0) & (capacities[1] > 0), balance, SCORE_MAX)
