"""NodeResourcesFit and NodeResourcesBalancedAllocation: integer arithmetic over resource columns, as Kubernetes 1.36 does it."""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scheduler.core.framework import SCORE_MAX, ClusterEvent, CycleState, EventKind, LooksAt, Mask, Plugin
from scheduler.core.node_info import NodeInfo
from scheduler.core.status import SKIP, SUCCESS, Code, Status
from scheduler.core.table import I64, Bools, NodeTable
from scheduler.plugins.memo import RowMemo
from services.model.names import RESOURCE_CPU, RESOURCE_EPHEMERAL_STORAGE, RESOURCE_MEMORY, RESOURCE_PODS
from services.model.pod import PodView

F64 = npt.NDArray[np.float64]
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
    `ignored`, `ignored_groups`: extended resources, by name or by what stands before the slash, that Filter does not ask
    for (ignoredResources, ignoredResourceGroups).
    """

    name = "NodeResourcesFit"
    looks_at = LooksAt.NODE
    events = frozenset((EventKind.NODE_ADD, EventKind.NODE_ALLOCATABLE, EventKind.POD_REMOVED, EventKind.POD_UPDATED))

    def __init__(
        self,
        strategy: str = LEAST_ALLOCATED,
        resources: Mapping[str, int] = DEFAULT_RESOURCES,
        shape: Sequence[tuple[int, int]] = (),
        *,
        ignored: Collection[str] = (),
        ignored_groups: Collection[str] = (),
    ) -> None:
        assert strategy in (LEAST_ALLOCATED, MOST_ALLOCATED, RATIO), f"unknown scoring strategy {strategy}"
        assert (strategy == RATIO) == bool(shape), f"a shape goes with {RATIO}, and with it alone"
        self._least = strategy == LEAST_ALLOCATED
        self._resources = dict(resources)
        self._ratio = ratio_scores(shape) if shape else None
        self._ignored = frozenset(ignored)
        self._ignored_groups = frozenset(ignored_groups)
        self._codes = RowMemo()
        self._scores = RowMemo()

    def filter(self, _state: CycleState, pod: PodView, nodes: NodeTable) -> Mask | None:
        """Bit 0: too many pods; bit i: the i-th request does not fit; the upper half: it never would on that node."""
        wanted = self._wanted(pod)
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

    def _wanted(self, pod: PodView) -> list[tuple[str, int]]:
        """What the node has to have, beside a place among `pods`."""
        requests = pod.spec.requests.items()
        wanted = [(name, amount) for name, amount in requests if amount > 0 and name != RESOURCE_PODS]
        if self._ignored or self._ignored_groups:
            wanted = [item for item in wanted if item[0] in _NATIVE or not self._ignores(item[0])]
        return wanted

    def _ignores(self, name: str) -> bool:
        return name in self._ignored or name.partition("/")[0] in self._ignored_groups

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

    def takes_row(self, pod: PodView, nodes: NodeTable, row: int) -> bool:
        """What `filter` says of one row."""
        return not self._lacking_one(self._wanted(pod), nodes, row)

    def filter_one(self, _state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        requested, allocatable = node.requested, node.view.allocatable
        reasons: list[str] = []
        never = False
        if requested[RESOURCE_PODS] >= allocatable.get(RESOURCE_PODS, 0):
            reasons.append(_TOO_MANY)
        for name, amount in self._wanted(pod):
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
            return all(allocatable.get(name, 0) >= amount for name, amount in self._wanted(pod))
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
    """Score: by how much nearer to each other the pod brings the used fractions of some resources."""

    name = "NodeResourcesBalancedAllocation"
    looks_at = LooksAt.NODE

    def __init__(self, resources: Sequence[str] = tuple(DEFAULT_RESOURCES)) -> None:
        self._resources = tuple(resources)
        self._scores = RowMemo()
        self._before = RowMemo()

    def _asked(self, pod: PodView) -> tuple[int, ...]:
        return tuple([pod.spec.requests.get(name, 0) for name in self._resources])

    def pre_score(self, _state: CycleState, pod: PodView, _nodes: NodeTable, _feasible: Bools) -> Status:
        return SUCCESS if any(self._asked(pod)) else SKIP

    def score(self, _state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64:
        """50 + (50 + b_with - b_without) // 2, with b = int((1 - deviation) * 100) of the used fractions."""
        asked = self._asked(pod)
        scores = self._scores.get(
            asked,
            nodes,
            lambda rows: self._score(asked, nodes, rows),
            lambda row: self._score_row(asked, nodes, row),
        )
        return nodes.take(scores, feasible)

    def score_one(self, _state: CycleState, pod: PodView, nodes: NodeTable, row: int) -> int:
        return self._score_row(self._asked(pod), nodes, row)

    def _score_row(self, asked: tuple[int, ...], nodes: NodeTable, row: int) -> int:
        """One node's score, as `_score` computes all."""
        known = [(name, more) for name, more in zip(self._resources, asked, strict=True) if name in nodes.allocatable]
        columns = [(int(nodes.allocatable[name][row]), int(nodes.requested[name][row]), more) for name, more in known]
        before = _deviation([min(held / capacity, 1.0) for capacity, held, _ in columns if capacity > 0])
        after = _deviation([min((held + more) / capacity, 1.0) for capacity, held, more in columns if capacity > 0])
        return 50 + (50 + int((1 - after) * SCORE_MAX) - int((1 - before) * SCORE_MAX)) // 2

    def _score(self, asked: tuple[int, ...], nodes: NodeTable, rows: I64 | slice) -> I64:
        nothing = (0,) * len(self._resources)
        before = self._before.get((), nodes, lambda some: self._balance(nothing, nodes, some), None)
        return np.asarray(50 + (50 + self._balance(asked, nodes, rows) - before[rows]) // 2, dtype=np.int64)

    def _balance(self, asked: tuple[int, ...], nodes: NodeTable, rows: I64 | slice) -> I64:
        """How even the fractions are with `asked` more, 0 to 100. A resource that a node lacks does not count there;
        fractions are capped at 1.
        """
        count = np.zeros_like(nodes.nonzero_cpu[rows])
        fractions, present = [], []
        for name, more in zip(self._resources, asked, strict=True):
            if name not in nodes.allocatable:
                continue
            capacity = nodes.allocatable[name][rows]
            there = capacity > 0
            fractions.append(np.minimum((nodes.requested[name][rows] + more) / np.maximum(capacity, 1), 1.0))
            present.append(there)
            count += there
        if len(fractions) == 2:
            deviation = np.where(count == 2, np.abs((fractions[0] - fractions[1]) / 2), 0.0)
        else:
            # In kube-scheduler's order of operations: sums of what is there, one resource after the other.
            total, squares = np.zeros(len(count)), np.zeros(len(count))
            for fraction, there in zip(fractions, present, strict=True):
                total = total + np.where(there, fraction, 0.0)
            mean = total / np.maximum(count, 1)
            for fraction, there in zip(fractions, present, strict=True):
                squares = squares + np.where(there, (fraction - mean) * (fraction - mean), 0.0)
            several = np.sqrt(squares / np.maximum(count, 1))
            of_two = _of_two(fractions, present, len(count))
            deviation = np.where(count > 2, several, np.where(count == 2, of_two, 0.0))
        return ((1 - deviation) * SCORE_MAX).astype(np.int64)


def _of_two(fractions: list[F64], present: list[Bools], size: int) -> F64:
    """Half of the difference of the two resources that are there, where there are two."""
    signed, first = np.zeros(size), np.ones(size, dtype=np.bool_)
    for fraction, there in zip(fractions, present, strict=True):
        signed = signed + np.where(there, np.where(first, fraction, -fraction), 0.0)
        first &= ~there
    return np.abs(signed / 2)


def _deviation(fractions: list[float]) -> float:
    """The standard deviation; simplified for two, as kube-scheduler does (balancedResourceScorer)."""
    if len(fractions) == 2:
        return abs((fractions[0] - fractions[1]) / 2)
    if len(fractions) < 2:
        return 0.0
    total = 0.0
    for fraction in fractions:
        total += fraction
    mean = total / len(fractions)
    squares = 0.0
    for fraction in fractions:
        squares += (fraction - mean) * (fraction - mean)
    return math.sqrt(squares / len(fractions))
