"""One pod's scheduling cycle over the node table: filter, score, choose, reserve.

Pure: the same table, pod and profile give the same decision. Durations are noted through a `Stopwatch` that the shell
hands in; the core never looks at a clock.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from scheduler.core.framework import SCORE_MAX, CycleState, Mask, Profile, Weighted
from scheduler.core.status import Code, Status
from scheduler.core.table import I64, Bools, NodeTable
from services.model.devices import DeviceShare
from services.model.pod import PodView

EXAMPLES_MAX = 3
SCORES_KEPT = 5
Stopwatch = Callable[[str, str], None]


def no_stopwatch(_point: str, _plugin: str) -> None:
    """Times nothing."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """`nodes` nodes were rejected by `plugin` for `reason`; `examples` names a few."""

    plugin: str
    reason: str
    nodes: int
    examples: tuple[str, ...]
    code: Code


@dataclass(frozen=True, slots=True)
class NodeScore:
    """`plugins`: (name, normalised score, weight)."""

    node_name: str
    total: int
    plugins: tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class Decision:
    """What a cycle came to. `node_name` empty: nowhere. `failed_plugins`: whose rejections an event must lift."""

    node_name: str = ""
    devices: tuple[DeviceShare, ...] = ()
    nodes_evaluated: int = 0
    feasible: int = 0
    rejections: list[Rejection] = field(default_factory=list)
    # Nodes that each plugin took out, by (extension point, plugin); a node with several reasons counts once.
    rejected: dict[tuple[str, str], int] = field(default_factory=dict)
    scores: list[NodeScore] = field(default_factory=list)
    failed_plugins: frozenset[str] = frozenset()
    message: str = ""
    error: str = ""


def tie_number(seed: int, name: str) -> int:
    """The place of a node among equals: fixed for a run, without favour to any name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=7, key=seed.to_bytes(8, "big")).digest(), "big")


class Cycle:
    """Runs cycles of one profile. `seed` fixes the order among nodes with equal scores."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self._profile = profile
        self._seed = seed
        self._ties: dict[str, int] = {}
        self._ties_of = (0, -1)
        self._ties_column: I64 = np.zeros(0, dtype=np.int64)

    def run(self, pod: PodView, nodes: NodeTable, lap: Stopwatch = no_stopwatch) -> Decision:
        """Decides where `pod` goes."""
        state = CycleState()
        decision = Decision(nodes_evaluated=nodes.count)
        alive = nodes.alive[: nodes.size]
        feasible = self._filter(state, pod, nodes, alive.copy(), decision, lap)
        rows = np.flatnonzero(feasible)
        decision.feasible = len(rows)
        if not len(rows):
            decision.message = fit_message(nodes.count, decision.rejections)
            for plugin in self._profile.post_filter:
                status = plugin.post_filter(state, pod, nodes)
                lap("PostFilter", plugin.name)
                decision.message = " ".join((decision.message, *status.reasons))
            return decision
        row = self._choose(state, pod, nodes, feasible, rows, decision, lap)
        if row is None:
            return decision
        self._reserve(state, pod, nodes, row, decision, lap)
        return decision

    def unreserve(self, pod: PodView, node_name: str) -> None:
        """Tells the plugins, last first, that a reservation came to nothing."""
        for plugin in reversed(self._profile.unreserve):
            plugin.unreserve(pod, node_name)

    def _filter(
        self, state: CycleState, pod: PodView, nodes: NodeTable, feasible: Bools, decision: Decision, lap: Stopwatch
    ) -> Bools:
        failed: set[str] = set()
        skipped: set[str] = set()
        for pre in self._profile.pre_filter:
            result = pre.pre_filter(state, pod, nodes)
            lap("PreFilter", pre.name)
            if result.status.code is Code.SKIP:
                skipped.add(pre.name)
            elif not result.status.ok:
                count = decision.rejected["PreFilter", pre.name] = int(np.count_nonzero(feasible))
                reason = ", ".join(result.status.reasons)
                decision.rejections.append(Rejection(pre.name, reason, count, (), result.status.code))
                decision.failed_plugins = frozenset((pre.name,))
                return np.zeros_like(feasible)
            elif result.rows is not None:
                narrowed = np.zeros_like(feasible)
                narrowed[result.rows] = True
                feasible = self._narrow(feasible, narrowed, pre.name, decision, failed, nodes)
        for plugin in self._profile.filter:
            if plugin.name in skipped:
                continue
            mask = plugin.filter(state, pod, nodes)
            passes = mask.codes == 0
            lap("Filter", plugin.name)
            rejected = feasible & ~passes
            if rejected.any():
                failed.add(plugin.name)
                rows = np.flatnonzero(rejected)
                decision.rejected["Filter", plugin.name] = len(rows)
                _note_rejections(decision, plugin.name, mask, rows, nodes)
                feasible &= passes
        decision.failed_plugins = frozenset(failed)
        return feasible

    @staticmethod
    def _narrow(
        feasible: Bools, narrowed: Bools, plugin: str, decision: Decision, failed: set[str], nodes: NodeTable
    ) -> Bools:
        left_out = np.flatnonzero(feasible & ~narrowed)
        if len(left_out):
            failed.add(plugin)
            examples = tuple(nodes.names[row] for row in left_out[:EXAMPLES_MAX])
            reason = "node(s) didn't satisfy plugin(s) [" + plugin + "]"
            code = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
            decision.rejected["PreFilter", plugin] = len(left_out)
            decision.rejections.append(Rejection(plugin, reason, len(left_out), examples, code))
        return feasible & narrowed

    def _choose(
        self,
        state: CycleState,
        pod: PodView,
        nodes: NodeTable,
        feasible: Bools,
        rows: I64,
        decision: Decision,
        lap: Stopwatch,
    ) -> int | None:
        if len(rows) == 1:
            decision.scores = [NodeScore(nodes.names[rows[0]], 0, ())]
            return int(rows[0])
        totals = np.zeros(len(rows), dtype=np.int64)
        columns: list[tuple[str, I64, int]] = []
        skipped: set[str] = set()
        for item in self._profile.score:
            if item.pre_score is not None:
                if item.pre_score.pre_score(state, pod, nodes, feasible).code is Code.SKIP:
                    skipped.add(item.plugin.name)
                lap("PreScore", item.plugin.name)
        for item in self._profile.score:
            if item.plugin.name in skipped:
                continue
            scores = self._score(item, state, pod, nodes, rows, decision)
            lap("Score", item.plugin.name)
            if scores is None:
                return None
            columns.append((item.plugin.name, scores, item.weight))
            totals += scores * item.weight
        best = np.flatnonzero(totals == totals.max())
        chosen = int(best[np.argmin(self._tie_column(nodes)[rows[best]])]) if len(best) > 1 else int(best[0])
        self._note_scores(decision, nodes, rows, totals, columns, chosen)
        return int(rows[chosen])

    def _score(
        self, item: Weighted, state: CycleState, pod: PodView, nodes: NodeTable, rows: I64, decision: Decision
    ) -> I64 | None:
        plugin = item.plugin
        scores = plugin.score(state, pod, nodes, rows)
        if item.normalize is not None:
            scores = item.normalize.normalize(state, pod, scores)
        if scores.shape != rows.shape or scores.dtype.kind != "i":
            decision.error = (
                f"plugin {plugin.name} answered {scores.dtype} scores of shape {scores.shape} for {len(rows)} nodes"
            )
            return None
        low, high = int(scores.min()), int(scores.max())
        if low < 0 or high > SCORE_MAX:
            wrong = low if low < 0 else high
            decision.error = f"plugin {plugin.name} returned the score {wrong}, outside [0, {SCORE_MAX}]"
            return None
        return scores

    def _tie_column(self, nodes: NodeTable) -> I64:
        """The tie number of each row; made anew when nodes came or went."""
        key = (id(nodes), nodes.static_version)
        if self._ties_of != key:
            for name in nodes.rows:
                if name not in self._ties:
                    self._ties[name] = tie_number(self._seed, name)
            self._ties_of = key
            self._ties_column = np.array([self._ties.get(name, 0) for name in nodes.names], dtype=np.int64)
        return self._ties_column

    @staticmethod
    def _note_scores(
        decision: Decision,
        nodes: NodeTable,
        rows: I64,
        totals: I64,
        columns: list[tuple[str, I64, int]],
        chosen: int,
    ) -> None:
        """The chosen node first, then the best of the others."""
        kept = min(SCORES_KEPT, len(rows))
        top = np.argpartition(-totals, kept - 1)[:kept]
        others = sorted(
            (at for at in top.tolist() if at != chosen), key=lambda at: (-int(totals[at]), nodes.names[rows[at]])
        )
        for at in [chosen, *others][:SCORES_KEPT]:
            plugins = tuple((name, int(scores[at]), weight) for name, scores, weight in columns)
            decision.scores.append(NodeScore(nodes.names[rows[at]], int(totals[at]), plugins))

    def _reserve(
        self, state: CycleState, pod: PodView, nodes: NodeTable, row: int, decision: Decision, lap: Stopwatch
    ) -> None:
        for plugin in self._profile.reserve:
            reservation = plugin.reserve(state, pod, nodes, row)
            lap("Reserve", plugin.name)
            if not reservation.status.ok:
                decision.error = f"plugin {plugin.name} could not reserve: {', '.join(reservation.status.reasons)}"
                decision.failed_plugins = frozenset((plugin.name,))
                self.unreserve(pod, nodes.names[row])
                return
            decision.devices = decision.devices or reservation.devices
        for permit in self._profile.permit:
            status, _ = permit.permit(state, pod, nodes.names[row])
            lap("Permit", permit.name)
            if not status.ok:
                decision.failed_plugins = frozenset((permit.name,))
                decision.message = ", ".join(status.reasons)
                self.unreserve(pod, nodes.names[row])
                return
        decision.node_name = nodes.names[row]


def _note_rejections(decision: Decision, plugin: str, mask: Mask, rows: I64, nodes: NodeTable) -> None:
    codes = mask.codes[rows]
    numbers, first, counts = np.unique(codes, return_index=True, return_counts=True)
    del first
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        code, reasons = mask.explain(number)
        examples = tuple(nodes.names[row] for row in rows[codes == number][:EXAMPLES_MAX])
        for reason in reasons:
            decision.rejections.append(Rejection(plugin, reason, count, examples, code))


def fit_message(nodes: int, rejections: list[Rejection]) -> str:
    """Kubernetes' words: 0/12 nodes are available: 3 Insufficient cpu, 9 node(s) had untolerated taint(s)."""
    if not nodes:
        return "no nodes available to schedule pods"
    counts: dict[str, int] = {}
    for rejection in rejections:
        counts[rejection.reason] = counts.get(rejection.reason, 0) + rejection.nodes
    texts = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{nodes} nodes are available: {', '.join(texts)}."


def unschedulable(plugin: str, *reasons: str) -> Status:
    return Status(Code.UNSCHEDULABLE, reasons, plugin)
