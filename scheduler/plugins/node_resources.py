"""NodeResourcesFit and NodeResourcesBalancedAllocation: integer arithmetic over resource columns, as Kubernetes 1.36 does it."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from scheduler.core.framework import SCORE_MAX, ClusterEvent, CycleState, EventKind, Mask, Plugin
from scheduler.core.node_info import NodeInfo
from scheduler.core.status import SKIP, SUCCESS, Code, Status
from scheduler.core.table import I64, Bools, NodeTable
from scheduler.plugins.memo import RowMemo
from services.model.names import RESOURCE_CPU, RESOURCE_EPHEMERAL_STORAGE, RESOURCE_MEMORY, RESOURCE_PODS
from services.model.pod import PodView

LEAST_ALLOCATED = "LeastAllocated"
MOST_ALLOCATED = "MostAllocated"
RATIO = "RequestedToCapacityRatio"
# The scores of a shape run from 0 to this.
_SHAPE_SCORE_MAX = 10
DEFAULT_RESOURCES: Mapping[str, int] = {RESOURCE_CPU: 1, RESOURCE_MEMORY: 1}
_NATIVE = (RESOURCE_CPU, RESOURCE_MEMORY, RESOURCE_EPHEMERAL_STORAGE)
_TOO_MANY = "Too many pods"


class NodeResourcesFit(Plugin):
    """Filter: every request fits what is left. Score: by what would be left (LeastAllocated), used (MostAllocated), or by a
    function of the used share (RequestedToCapacityRatio).

    `resources`: the weight of each resource in the score. `shape`: the function's points, (utilisation in %, score 0-10).
    """

    name = "NodeResourcesFit"
    events = frozenset((EventKind.NODE_ADD, EventKind.NODE_ALLOCATABLE, EventKind.POD_REMOVED, EventKind.POD_UPDATED))

    def __init__(
        self,
        strategy: str = LEAST_ALLOCATED,
        resources: Mapping[str, int] = DEFAULT_RESOURCES,
        shape: Sequence[tuple[int, int]] = (),
    ) -> None:
        assert strategy in (LEAST_ALLOCATED, MOST_ALLOCATED, RATIO), f"unknown scoring strategy {strategy}"
        assert (strategy == RATIO) == bool(shape), f"a shape goes with {RATIO}, and with it alone"
        self._least = strategy == LEAST_ALLOCATED
        self._resources = dict(resources)
        self._ratio = ratio_scores(shape) if shape else None
        self._codes = RowMemo()
        self._scores = RowMemo()

    def filter(self, _state: CycleState, pod: PodView, nodes: NodeTable) -> Mask | None:
        """Bit 0: too many pods; bit i: the i-th request does not fit; the upper half: it never would on that node."""
        wanted = [(name, amount) for name, amount in pod.spec.requests.items() if amount > 0 and name != RESOURCE_PODS]
        shift = len(wanted) + 1
        codes = self._codes.get(
            tuple(wanted),
            nodes,
            lambda rows: self._lacking(wanted, nodes, rows),
            lambda row: self._lacking_one(wanted, nodes, row),
        )
        if not codes.any():
            return None
        reasons = (_TOO_MANY, *(f"Insufficient {name}" for name, _ in wanted))

        def explain(number: int) -> tuple[Code, tuple[str, ...]]:
            never = number >> shift
            said = tuple(reason for bit, reason in enumerate(reasons) if number >> bit & 1)
            return Code.UNSCHEDULABLE_AND_UNRESOLVABLE if never else Code.UNSCHEDULABLE, said

        return Mask(codes, explain)

    @staticmethod
    def _lacking(wanted: list[tuple[str, int]], nodes: NodeTable, rows: I64 | slice) -> I64:
        codes = (nodes.requested[RESOURCE_PODS][rows] >= nodes.allocatable[RESOURCE_PODS][rows]).astype(np.int64)
        shift = len(wanted) + 1
        for bit, (name, amount) in enumerate(wanted, start=1):
            allocatable = nodes.allocatable.get(name)
            if allocatable is None:
                codes |= (1 << bit) | (1 << (bit + shift))
                continue
            # Subtracted, not added: amounts saturate at 2^63 - 1.
            lacking = allocatable[rows] - nodes.requested[name][rows] < amount
            if lacking.any():
                codes |= lacking.astype(np.int64) << bit
                codes |= (allocatable[rows] < amount).astype(np.int64) << (bit + shift)
        return codes

    @staticmethod
    def _lacking_one(wanted: list[tuple[str, int]], nodes: NodeTable, row: int) -> int:
        code = int(nodes.requested[RESOURCE_PODS][row] >= nodes.allocatable[RESOURCE_PODS][row])
        shift = len(wanted) + 1
        for bit, (name, amount) in enumerate(wanted, start=1):
            capacity = int(nodes.allocatable[name][row]) if name in nodes.allocatable else 0
            used = int(nodes.requested[name][row]) if name in nodes.allocatable else 0
            if capacity - used < amount:
                code |= 1 << bit | int(capacity < amount) << (bit + shift)
        return code

    def filter_one(self, _state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        requested, allocatable = node.requested, node.view.allocatable
        reasons: list[str] = []
        never = False
        if requested[RESOURCE_PODS] >= allocatable.get(RESOURCE_PODS, 0):
            reasons.append(_TOO_MANY)
        for name, amount in pod.spec.requests.items():
            if amount > 0 and name != RESOURCE_PODS:
                capacity = allocatable.get(name, 0)
                if capacity - requested.get(name, 0) < amount:
                    reasons.append(f"Insufficient {name}")
                    never = never or capacity < amount
        if not reasons:
            return SUCCESS
        code = Code.UNSCHEDULABLE_AND_UNRESOLVABLE if never else Code.UNSCHEDULABLE
        return Status(code, tuple(reasons), self.name)

    def score(self, _state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64:
        """The weighted mean over the resources that count: those that the node has, and of the extended ones those that
        the pod asks for. A resource that RequestedToCapacityRatio scores 0 does not count either.
        """
        amounts = tuple(self._score_request(pod, name) for name in self._resources)
        scores = self._scores.get(
            amounts,
            nodes,
            lambda rows: self._score(amounts, nodes, rows),
            lambda row: self._score_row(amounts, nodes, row),
        )
        return nodes.take(scores, feasible)

    def score_one(self, _state: CycleState, pod: PodView, nodes: NodeTable, row: int) -> int:
        return self._score_row(tuple(self._score_request(pod, name) for name in self._resources), nodes, row)

    def _score_row(self, amounts: tuple[int, ...], nodes: NodeTable, row: int) -> int:
        """One node's score, as `_score` computes all."""
        total = weights = 0
        for (name, weight), amount in zip(self._resources.items(), amounts, strict=True):
            if (amount == 0 and name not in _NATIVE) or name not in nodes.allocatable:
                continue
            capacity = int(nodes.allocatable[name][row])
            if capacity <= 0:
                continue
            used = int(self._score_used(nodes, name)[row]) + amount
            if self._ratio is not None:
                part = int(self._ratio[SCORE_MAX if used > capacity else used * SCORE_MAX // capacity])
                if not part:
                    continue
            elif self._least:
                part = 0 if used > capacity else (capacity - used) * SCORE_MAX // capacity
            else:
                part = min(used, capacity) * SCORE_MAX // capacity
            total += part * weight
            weights += weight
        if not weights:
            return 0
        return math.floor(total / weights + 0.5) if self._ratio is not None else total // weights

    def _score(self, amounts: tuple[int, ...], nodes: NodeTable, rows: I64 | slice) -> I64:
        total = np.zeros_like(nodes.nonzero_cpu[rows])
        weights: I64 | int = 0
        for (name, weight), amount in zip(self._resources.items(), amounts, strict=True):
            if (amount == 0 and name not in _NATIVE) or name not in nodes.allocatable:
                continue
            capacity = nodes.allocatable[name][rows]
            used = self._score_used(nodes, name)[rows] + amount
            part, counts = self._part(used, capacity)
            if counts is None:
                total += part * weight
                weights = weights + weight
            else:
                total += np.where(counts, part * weight, 0)
                weights = weights + np.where(counts, weight, 0)
        safe = np.maximum(weights, 1)
        if self._ratio is not None:
            # Half away from zero, as Go rounds; nothing here is negative.
            return np.floor(total / safe + 0.5).astype(np.int64)
        return total // safe

    def _part(self, used: I64, capacity: I64) -> tuple[I64, Bools | None]:
        """One resource's score on each node, and where it counts; None for everywhere."""
        there = capacity > 0
        everywhere = bool(there.all())
        safe = capacity if everywhere else np.where(there, capacity, 1)
        if self._ratio is not None:
            part = self._ratio[np.where(used > capacity, SCORE_MAX, used * SCORE_MAX // safe)]
            return part, there & (part > 0)
        used = np.minimum(used, capacity)
        part = ((capacity - used) if self._least else used) * SCORE_MAX // safe
        return part, None if everywhere else there

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
        """A node that could hold the pod when empty, or a pod that leaves (or shrinks) some of what this one asks for."""
        if event.kind in (EventKind.NODE_ADD, EventKind.NODE_ALLOCATABLE) and event.node is not None:
            allocatable = event.node.allocatable
            return all(allocatable.get(name, 0) >= amount for name, amount in pod.spec.requests.items())
        if event.kind is EventKind.POD_UPDATED and event.pod is not None and event.old_pod is not None:
            now = event.pod.spec.requests
            return any(now.get(name, 0) < amount for name, amount in event.old_pod.spec.requests.items())
        # A pod that leaves always leaves its place among `pods`.
        return event.kind is EventKind.POD_REMOVED


def ratio_scores(shape: Sequence[tuple[int, int]]) -> I64:
    """The score, 0 to 100, for each utilisation from 0 to 100 %: straight lines between the points of `shape`, flat beyond
    them, in integers that truncate towards zero (helper.BuildBrokenLinearFunction).
    """
    points = [(utilisation, score * SCORE_MAX // _SHAPE_SCORE_MAX) for utilisation, score in shape]

    def at(share: int) -> int:
        for number, (utilisation, score) in enumerate(points):
            if share <= utilisation:
                if number == 0:
                    return score
                before, low = points[number - 1]
                rise = (score - low) * (share - before)
                step = abs(rise) // (utilisation - before)
                return low + (step if rise >= 0 else -step)
        return points[-1][1]

    return np.array([at(share) for share in range(SCORE_MAX + 1)], dtype=np.int64)


class NodeResourcesBalancedAllocation(Plugin):
    """Score: by how much nearer to each other the pod brings the used fractions of cpu and memory."""

    name = "NodeResourcesBalancedAllocation"

    def __init__(self) -> None:
        self._scores = RowMemo()
        self._before = RowMemo()

    def pre_score(self, _state: CycleState, pod: PodView, _nodes: NodeTable, _feasible: Bools) -> Status:
        asks = any(pod.spec.requests.get(name, 0) for name in DEFAULT_RESOURCES)
        return SUCCESS if asks else SKIP

    def score(self, _state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64:
        """50 + (50 + b_with - b_without) // 2, with b = int((1 - |f_cpu - f_memory| / 2) * 100)."""
        asked = tuple(pod.spec.requests.get(name, 0) for name in DEFAULT_RESOURCES)
        scores = self._scores.get(
            asked,
            nodes,
            lambda rows: self._score(asked, nodes, rows),
            lambda row: self._score_row(asked, nodes, row),
        )
        return nodes.take(scores, feasible)

    def score_one(self, _state: CycleState, pod: PodView, nodes: NodeTable, row: int) -> int:
        return self._score_row(tuple(pod.spec.requests.get(name, 0) for name in DEFAULT_RESOURCES), nodes, row)

    @staticmethod
    def _score_row(asked: tuple[int, ...], nodes: NodeTable, row: int) -> int:
        """One node's score, as `_score` computes all."""
        capacities = [int(nodes.allocatable[name][row]) for name in DEFAULT_RESOURCES]
        if min(capacities) <= 0:
            return 50 + 50 // 2
        used = [int(nodes.requested[name][row]) for name in DEFAULT_RESOURCES]
        before = [min(held / capacity, 1.0) for held, capacity in zip(used, capacities, strict=True)]
        after = [
            min((held + more) / capacity, 1.0) for held, more, capacity in zip(used, asked, capacities, strict=True)
        ]
        gained = int((1 - abs(after[0] - after[1]) / 2) * SCORE_MAX) - int(
            (1 - abs(before[0] - before[1]) / 2) * SCORE_MAX
        )
        return 50 + (50 + gained) // 2

    def _score(self, asked: tuple[int, ...], nodes: NodeTable, rows: I64 | slice) -> I64:
        before = self._before.get((), nodes, lambda some: _balance((0, 0), nodes, some), None)
        return np.asarray(50 + (50 + _balance(asked, nodes, rows) - before[rows]) // 2, dtype=np.int64)


def _balance(asked: tuple[int, ...], nodes: NodeTable, rows: I64 | slice) -> I64:
    """How even the fractions of cpu and memory are with `asked` more, 0 to 100: 100 where a resource is missing. Fractions
    are capped at 1.
    """
    capacities = [nodes.allocatable[name][rows] for name in DEFAULT_RESOURCES]
    there = (capacities[0] > 0) & (capacities[1] > 0)
    everywhere = bool(there.all())
    fractions = [
        np.minimum((nodes.requested[name][rows] + more) / (capacity if everywhere else np.maximum(capacity, 1)), 1.0)
        for name, more, capacity in zip(DEFAULT_RESOURCES, asked, capacities, strict=True)
    ]
    balance = ((1 - np.abs(fractions[0] - fractions[1]) / 2) * SCORE_MAX).astype(np.int64)
    return balance if everywhere else np.where(there, balance, SCORE_MAX)
