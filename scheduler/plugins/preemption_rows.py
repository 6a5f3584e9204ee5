"""Preemption on many nodes at once, where nothing but resources depends on the pods there.

The pods of each node are kept in columns, the most important first, and made anew for nodes that changed. Then giving
pods back is arithmetic: step by step, all nodes at once, the next pod of each stays if there is room for it beside the
newcomer. Same answer as `default_preemption.displaced`, which asks every filter pod by pod.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from scheduler.core.table import I64, Bools, Held, NodeTable
from scheduler.plugins.preemption_choice import NEVER, PRIORITY_SHIFT, Candidate, by_budgets, importance
from services.model.names import RESOURCE_PODS
from services.model.pod import PodView


class RowPods:
    """The pods of one node, the most important first."""

    __slots__ = ("_amounts", "downward", "held", "priorities", "starts")

    def __init__(self, held: Sequence[Held]) -> None:
        keyed = sorted([(importance(item), item) for item in held], key=itemgetter(0))
        self.held = [item for _, item in keyed]
        self.downward = [key[0] for key, _ in keyed]
        self.priorities = -np.array(self.downward, dtype=np.int64)
        self.starts = np.array([key[1] for key, _ in keyed], dtype=np.int64)
        self._amounts: dict[str, I64] = {}

    def amounts(self, resource: str) -> I64:
        known = self._amounts.get(resource)
        if known is None:
            known = np.array([item.pod.spec.requests.get(resource, 0) for item in self.held], dtype=np.int64)
            self._amounts[resource] = known
        return known

    def below(self, priority: int) -> int:
        """Where the pods of lower priority begin."""
        return bisect_right(self.downward, -priority)


class RowPodsMemo:
    """The pods of nodes that did not change since they were last asked for."""

    def __init__(self) -> None:
        self._table: NodeTable | None = None
        self._rows: dict[int, tuple[int, RowPods]] = {}

    def get(self, nodes: NodeTable, row: int) -> RowPods:
        if self._table is not nodes:
            self._rows.clear()
            self._table = nodes
        version = nodes.changes.last.get(row, 0)
        known = self._rows.get(row)
        if known is None or known[0] != version:
            known = self._rows[row] = (version, RowPods(list(nodes.held.get(nodes.names[row], {}).values())))
        return known[1]


@dataclass(slots=True)
class _Lower:
    """Pods of lower priority on some nodes, end to end. `begins`, `counts`: by node; `violating`: how many of the first
    would violate a budget. `order`: where they stand among the node's pods.
    """

    rows: I64
    pods: list[RowPods]
    order: Sequence[slice | list[int]]
    counts: I64
    begins: I64
    violating: I64
    priorities: I64
    starts: I64

    def amounts(self, resource: str) -> I64:
        return np.concatenate(
            [item.amounts(resource)[order] for item, order in zip(self.pods, self.order, strict=True)]
        )


def search_rows(
    pod: PodView, nodes: NodeTable, rows: Sequence[int], pods: list[RowPods]
) -> tuple[list[Candidate], list[int]]:
    """(the candidates among `rows`, in their order; the rows on which not even the removal of all would help).

    `pods`: those of each row. Rows without any pod of lower priority may not be among them.
    """
    lower = _lower(pod, nodes, rows, pods)
    wanted = [(name, amount) for name, amount in pod.spec.requests.items() if amount > 0 and name != RESOURCE_PODS]
    sizes = {name: lower.amounts(name) for name, _ in wanted}
    # What would be left beside the newcomer once all of them are gone.
    room = {
        name: _free(nodes, name, lower.rows) + np.add.reduceat(sizes[name], lower.begins) - amount
        for name, amount in wanted
    }
    places = _free(nodes, RESOURCE_PODS, lower.rows) + lower.counts - 1
    helps = np.logical_and.reduce([places >= 0, *(left >= 0 for left in room.values())])
    victim = _give_back(lower, sizes, room, places)
    return _candidates(lower, victim, helps, nodes), lower.rows[~helps].tolist()


def _free(nodes: NodeTable, name: str, rows: I64) -> I64:
    if name not in nodes.allocatable:
        return np.zeros(len(rows), dtype=np.int64)
    return nodes.allocatable[name][rows] - nodes.requested[name][rows]


def _lower(pod: PodView, nodes: NodeTable, rows: Sequence[int], pods: list[RowPods]) -> _Lower:
    firsts = [item.below(pod.spec.priority) for item in pods]
    orders: list[slice | list[int]] = [slice(first, None) for first in firsts]
    violating = np.zeros(len(rows), dtype=np.int64)
    if nodes.budgets:
        for at, item in enumerate(pods):
            place = {held.pod.uid: number for number, held in enumerate(item.held)}
            breaking, others = by_budgets(item.held[firsts[at] :], nodes.budgets.values())
            violating[at] = len(breaking)
            orders[at] = [place[held.pod.uid] for held in (*breaking, *others)]
    counts = np.array([len(item.held) - first for first, item in zip(firsts, pods, strict=True)], dtype=np.int64)
    return _Lower(
        np.array(rows, dtype=np.int64),
        pods,
        orders,
        counts,
        np.concatenate([[0], np.cumsum(counts)[:-1]]),
        violating,
        np.concatenate([item.priorities[order] for item, order in zip(pods, orders, strict=True)]),
        np.concatenate([item.starts[order] for item, order in zip(pods, orders, strict=True)]),
    )


def _give_back(lower: _Lower, sizes: dict[str, I64], room: dict[str, I64], places: I64) -> Bools:
    """Which of the pods, end to end, have to go. `room` and `places` are used up."""
    victim = np.ones(len(lower.priorities), dtype=np.bool_)
    for step in range(int(lower.counts.max())):
        nodes = np.flatnonzero(lower.counts > step)
        at = lower.begins[nodes] + step
        stays = places[nodes] > 0
        for name, left in room.items():
            stays &= left[nodes] >= sizes[name][at]
        victim[at] = ~stays
        nodes, at = nodes[stays], at[stays]
        places[nodes] -= 1
        for name, left in room.items():
            left[nodes] -= sizes[name][at]
    return victim


def _candidates(lower: _Lower, victim: Bools, helps: Bools, nodes: NodeTable) -> list[Candidate]:
    begins = lower.begins
    numbers = np.add.reduceat(victim.astype(np.int64), begins)
    step = np.arange(len(victim)) - np.repeat(begins, lower.counts)
    violations = np.add.reduceat((victim & (step < np.repeat(lower.violating, lower.counts))).astype(np.int64), begins)
    tops = np.maximum.reduceat(np.where(victim, lower.priorities, -NEVER), begins)
    sums = np.add.reduceat(np.where(victim, lower.priorities + PRIORITY_SHIFT, 0), begins)
    at_top = victim & (lower.priorities == np.repeat(tops, lower.counts))
    earliest = np.minimum.reduceat(np.where(at_top, lower.starts, NEVER), begins)
    costs = list(
        zip(violations.tolist(), tops.tolist(), sums.tolist(), numbers.tolist(), (-earliest).tolist(), strict=True)
    )

    def victims(at: int) -> tuple[Held, ...]:
        gone = victim[begins[at] : begins[at] + lower.counts[at]]
        held = lower.pods[at].held
        places = np.arange(len(held))[lower.order[at]][gone]
        return tuple(held[place] for place in sorted(places.tolist()))

    return [
        Candidate(nodes.names[lower.rows[at]], costs[at], lambda at=at: victims(at))  # type: ignore[misc]
        for at in np.flatnonzero(helps & (numbers > 0)).tolist()
    ]
