"""PreFilter and Filter of one cycle, and the questions that preemption asks afterwards.

All nodes are filtered at once. Nodes on which pods of equal or higher priority wait for room are asked one by one, first
with those pods and then without (kube-scheduler's RunFilterPluginsWithNominatedPods): few have any.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.core.columns import numbers_in
from scheduler.core.faults import check_answer, check_mask, explained
from scheduler.core.framework import CycleState, FilterPlugin, Mask, PreFilterExtensions, PreFilterResult, Stopwatch
from scheduler.core.node_info import NodeInfo
from scheduler.core.profile import Profile
from scheduler.core.status import SUCCESS, Code, Status
from scheduler.core.table import I64, Bools, Held, NodeTable
from services.model.pod import PodView

FIT = "NodeResourcesFit"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a plugin rejected: these rows, and why by the numbers in the mask."""

    plugin: str
    mask: Mask
    rows: I64


class Filtering:
    """One pod against the table. `run` first; what it found stays for the questions (see framework.WhatIf).

    `refusals` are disjoint: a row stands where the first plugin rejected it. `crowded`: rows that only the pods which wait
    for them fill. `named`: the nodes to look at, if PreFilter names some (`narrowed_by` these plugins); `left_out`: the
    rows of the others. `skipped`: plugins with nothing to say of this pod. `refused`: PreFilter's word on the pod as a whole.
    """

    def __init__(self, profile: Profile, pod: PodView, nodes: NodeTable, lap: Stopwatch) -> None:
        self.state = CycleState()
        self.refused: Status | None = None
        self.refusals: list[Refusal] = []
        self.crowded: dict[int, Status] = {}
        self.left_out: I64 = np.zeros(0, dtype=np.int64)
        self.narrowed_by: list[str] = []
        self.named: frozenset[str] | None = None
        self.skipped: set[str] = set()
        self.on_nominated_node = False
        self.evaluated = 0
        self._profile = profile
        self._pod = pod
        self._nodes = nodes
        self._lap = lap
        self._filters: list[FilterPlugin] = []
        self._extensions: list[PreFilterExtensions] = []
        self._masks: dict[str, Mask | None] = {}

    def run(self) -> Bools:
        """The rows on which the pod fits."""
        alive = self._nodes.alive[: self._nodes.size]
        self.evaluated = self._nodes.count
        self._pre_filter()
        if self.refused is not None:
            return np.zeros_like(alive)
        nominated = self._nominated_row()
        if nominated is not None:
            self.evaluated = 1
            self.on_nominated_node = True
            only = np.zeros_like(alive)
            only[nominated] = True
            return only
        feasible = alive.copy()
        if self.named is not None:
            rows = [self._nodes.rows[name] for name in self.named if name in self._nodes.rows]
            feasible[:] = False
            feasible[rows] = True
            self.left_out = np.flatnonzero(alive & ~feasible)
        self._crowd(feasible)
        for plugin in self._filters:
            mask = self._mask(plugin)
            self._lap("Filter", plugin.name)
            if mask is None or not mask.codes.any():
                continue
            rejected = np.flatnonzero(feasible & (mask.codes != 0))
            if len(rejected):
                self.refusals.append(Refusal(plugin.name, mask, rejected))
                feasible[rejected] = False
        return feasible

    def _pre_filter(self) -> None:
        for plugin in self._profile.pre_filter:
            result = plugin.pre_filter(self.state, self._pod, self._nodes)
            self._lap("PreFilter", plugin.name)
            check_answer(plugin.name, "PreFilter", result, PreFilterResult)
            status = result.status
            if status.code is Code.SKIP:
                self.skipped.add(plugin.name)
            elif not status.ok:
                self.refused = Status(status.code, status.reasons, plugin.name)
                return
            elif result.node_names is not None:
                self.named = result.node_names if self.named is None else self.named & result.node_names
                self.narrowed_by.append(plugin.name)
        self._filters = [plugin for plugin in self._profile.filter if plugin.name not in self.skipped]
        self._extensions = [plugin for plugin in self._profile.extensions if plugin.name not in self.skipped]

    def _mask(self, plugin: FilterPlugin) -> Mask | None:
        if plugin.name not in self._masks:
            mask = plugin.filter(self.state, self._pod, self._nodes)
            if mask is not None:
                check_mask(plugin.name, mask, self._nodes.size)
            self._masks[plugin.name] = mask
        return self._masks[plugin.name]

    def _nominated_row(self) -> int | None:
        """The node that the pod waits for, if it has room now: then no other is looked at."""
        row = self._nodes.rows.get(self._nodes.nominated_node(self._pod.uid))
        if row is None:
            return None
        return row if self.fits(self.state, NodeInfo(self._nodes, row)).ok else None

    def _crowd(self, feasible: Bools) -> None:
        """Takes out the rows that are full once the pods are there that wait for them."""
        for name in self._nodes.nominated:
            row = self._nodes.rows.get(name)
            if row is None or not feasible[row]:
                continue
            info = NodeInfo(self._nodes, row)
            status = self._fits_with_waiting(self.state, info)
            if not status.ok:
                self.crowded[row] = status
                feasible[row] = False

    # Questions.

    def add(self, state: CycleState, node: NodeInfo, held: Held) -> None:
        node.add(held)
        for plugin in self._extensions:
            plugin.add_pod(state, self._pod, held.pod, node)

    def remove(self, state: CycleState, node: NodeInfo, held: Held) -> None:
        node.remove(held)
        for plugin in self._extensions:
            plugin.remove_pod(state, self._pod, held.pod, node)

    def fits(self, state: CycleState, node: NodeInfo) -> Status:
        status = self._fits_with_waiting(state, node)
        return self._check(state, node) if status.ok else status

    def _fits_with_waiting(self, state: CycleState, node: NodeInfo) -> Status:
        """The verdict with the pods that wait for the node and may not be passed over; Success where there are none."""
        waiting = self._nodes.nominated.get(node.name)
        if not waiting:
            return SUCCESS
        priority = self._pod.spec.priority
        others = [pod for pod in waiting.values() if pod.uid != self._pod.uid and pod.spec.priority >= priority]
        if not others:
            return SUCCESS
        state, node = state.clone(), node.copy()
        for other in others:
            node.admit(other)
            for plugin in self._extensions:
                plugin.add_pod(state, self._pod, other, node)
        return self._check(state, node)

    def _check(self, state: CycleState, node: NodeInfo) -> Status:
        """The first filter that rejects the node says why."""
        for plugin in self._filters:
            one = self._profile.filter_one.get(plugin.name)
            if one is not None:
                status = one.filter_one(state, self._pod, node)
                check_answer(plugin.name, "Filter of one node", status, Status)
                if not status.ok:
                    return Status(status.code, status.reasons, plugin.name)
                continue
            mask = self._mask(plugin)
            number = int(mask.codes[node.row]) if mask is not None else 0
            if mask is not None and number:
                code, reasons = explained(plugin.name, mask, number)
                return Status(code, reasons, plugin.name)
        return SUCCESS

    def resolvable(self) -> Bools:
        rows = np.zeros(self._nodes.size, dtype=np.bool_)
        if self.refused is not None:
            if self.refused.code is Code.UNSCHEDULABLE:
                rows |= self._nodes.alive[: self._nodes.size]
            return rows
        for row, status in self.crowded.items():
            rows[row] = status.code is Code.UNSCHEDULABLE
        for refusal in self.refusals:
            numbers = refusal.mask.codes[refusal.rows]
            for number in numbers_in(numbers):
                if explained(refusal.plugin, refusal.mask, number)[0] is Code.UNSCHEDULABLE:
                    rows[refusal.rows[numbers == number]] = True
        return rows

    def only_resources(self) -> Bools:
        rows = np.zeros(self._nodes.size, dtype=np.bool_)
        asked = [plugin.name for plugin in self._filters if plugin.name in self._profile.filter_one]
        if asked != [FIT]:
            return rows
        rows |= self._nodes.alive[: self._nodes.size]
        for plugin in self._filters:
            mask = self._mask(plugin) if plugin.name != FIT else None
            if mask is not None:
                rows &= mask.codes == 0
        for name in self._nodes.nominated:
            row = self._nodes.rows.get(name)
            if row is not None:
                rows[row] = False
        return rows

    def unresolvable(self, node_name: str) -> bool:
        row = self._nodes.rows.get(node_name)
        if row is None:
            return False
        status = self.verdict(row)
        return status is not None and status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE

    def verdict(self, row: int) -> Status | None:
        """Why a node was rejected; None where it was not. Without a plugin: PreFilter did not name it."""
        if self.refused is not None:
            return self.refused
        if row in self.crowded:
            return self.crowded[row]
        if row in self.left_out:
            return left_out_status(self.narrowed_by)
        for refusal in self.refusals:
            if row in refusal.rows:
                code, reasons = explained(refusal.plugin, refusal.mask, int(refusal.mask.codes[row]))
                return Status(code, reasons, refusal.plugin)
        return None

    def masks(self) -> dict[str, Mask]:
        """What each Filter that was not skipped says of every row when it is asked alone."""
        masks = {plugin.name: self._mask(plugin) for plugin in self._filters}
        return {name: mask for name, mask in masks.items() if mask is not None}


def left_out_status(plugins: list[str]) -> Status:
    """Kubernetes' word on a node that PreFilter did not name."""
    reason = f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}]"
    return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (reason,))
