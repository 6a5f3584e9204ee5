"""One pod's scheduling cycle over the node table: filter, score, choose, reserve.

Pure: the same table, pod and profile give the same decision. Durations are noted through a `Stopwatch` that the shell
hands in; the core never looks at a clock.
"""

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from scheduler.core.columns import numbers_in
from scheduler.core.faults import PluginFault, check_answer, explained, fault_of
from scheduler.core.filtering import Filtering, Refusal, left_out_status
from scheduler.core.framework import CycleState, PostFilterResult, Reservation, Stopwatch, no_stopwatch
from scheduler.core.profile import Profile
from scheduler.core.repeats import Last, Repeats
from scheduler.core.scoring import Scores, score_nodes
from scheduler.core.status import Code, Status
from scheduler.core.table import I64, Bools, Held, NodeTable
from services.model.devices import DeviceShare
from services.model.pod import PodView

EXAMPLES_MAX = 3
SCORES_KEPT = 5


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
    """What a cycle came to. `node_name` empty: nowhere. `failed_plugins`: whose rejections an event must lift.

    `nominated_node`: where the pod may wait for room; `victims` are to go from there. `clears_nomination`: the pod waits for
    room nowhere any more. `faulty`: the plugin whose fault the `error` is.
    """

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
    faulty: str = ""
    nominated_node: str = ""
    victims: tuple[Held, ...] = ()
    clears_nomination: bool = False


def tie_number(seed: int, name: str) -> int:
    """The place of a node among equals: fixed for a run, without favour to any name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=7, key=seed.to_bytes(8, "big")).digest(), "big")


Faults = list[tuple[PodView, PluginFault]]


class Cycle:
    """Runs cycles of one profile. `seed` fixes the order among nodes with equal scores.

    `faults` gets what plugins did wrong where no decision can say it, each with the pod.
    """

    def __init__(self, profile: Profile, seed: int, faults: Faults | None = None) -> None:
        self._profile = profile
        self._faults = faults if faults is not None else []
        self._seed = seed
        self._ties: dict[str, int] = {}
        self._ranks_of = (0, -1)
        self._ranks: I64 = np.zeros(0, dtype=np.int64)
        self._repeats = Repeats(profile)

    def run(self, pod: PodView, nodes: NodeTable, lap: Stopwatch = no_stopwatch) -> Decision:
        """Decides where `pod` goes. A plugin that raises ends the attempt as an error that names it."""
        try:
            return self._run(pod, nodes, lap)
        except (Exception, SystemExit) as error:
            fault = fault_of(error)
            if fault is None:
                raise
            return Decision(error=str(fault), faulty=fault.plugin)

    def _run(self, pod: PodView, nodes: NodeTable, lap: Stopwatch) -> Decision:
        last = self._repeats.find(pod, nodes, lap)
        if last is not None:
            decision = Decision(nodes_evaluated=last.evaluated, feasible=len(last.rows))
            self._reserve(CycleState(), pod, nodes, _best(last, nodes, decision), decision, lap)
            return decision
        filtering = Filtering(self._profile, pod, nodes, lap)
        feasible = filtering.run()
        decision = Decision(nodes_evaluated=filtering.evaluated)
        _note_refusals(decision, filtering, nodes)
        rows = nodes.all_rows() if np.count_nonzero(feasible) == nodes.size else np.flatnonzero(feasible)
        decision.feasible = len(rows)
        if not len(rows):
            decision.message = fit_message(nodes.count, decision.rejections)
            if nodes.count:
                self._post_filter(filtering, pod, nodes, decision, lap)
            return decision
        row = self._choose(filtering, pod, nodes, feasible, rows, decision, lap)
        if row is None:
            return decision
        self._reserve(filtering.state, pod, nodes, row, decision, lap)
        return decision

    def _post_filter(
        self, filtering: Filtering, pod: PodView, nodes: NodeTable, decision: Decision, lap: Stopwatch
    ) -> None:
        """The first plugin that makes room has the word (kube-scheduler's RunPostFilterPlugins)."""
        for plugin in self._profile.post_filter:
            result = plugin.post_filter(filtering.state, pod, nodes, filtering)
            lap("PostFilter", plugin.name)
            check_answer(plugin.name, "PostFilter", result, PostFilterResult)
            decision.message = " ".join((decision.message, *result.status.reasons))
            decision.clears_nomination = decision.clears_nomination or result.clears
            if result.status.ok:
                decision.nominated_node = result.node_name
                decision.victims = result.victims
                names = ", ".join(held.pod.key for held in result.victims)
                decision.message += f" preemption: waits for room on {result.node_name}, from which {names} must go."
                return

    def unreserve(self, pod: PodView, node_name: str) -> None:
        """Tells the plugins, last first, that a reservation came to nothing."""
        for plugin in reversed(self._profile.unreserve):
            try:
                plugin.unreserve(pod, node_name)
            except (Exception, SystemExit) as error:
                fault = fault_of(error)
                if fault is None:
                    raise
                self._faults.append((pod, fault))

    def _choose(
        self,
        filtering: Filtering,
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
        scores = score_nodes(self._profile, filtering.state, pod, nodes, feasible, rows, lap)
        if scores.error:
            decision.error = scores.error
            return None
        totals = scores.totals(len(rows))
        # One number a node: by score, and among equals by the run's order.
        ranks = totals * nodes.size + nodes.take(self._rank_column(nodes), rows)
        versions = (nodes.static_version, nodes.changes.now)
        last = Last(pod, nodes, *versions, filtering, feasible, rows, scores, totals, ranks, filtering.evaluated)
        self._repeats.keep(last)
        return _best(last, nodes, decision)

    def _rank_column(self, nodes: NodeTable) -> I64:
        """By row, a number below the count of rows: the higher, the sooner it is chosen among equals. Made anew when nodes
        came or went.
        """
        key = (id(nodes), nodes.static_version)
        if self._ranks_of != key:
            for name in nodes.rows:
                if name not in self._ties:
                    self._ties[name] = tie_number(self._seed, name)
            self._ranks_of = key
            ties = np.array([self._ties.get(name, 0) for name in nodes.names], dtype=np.int64)
            self._ranks = np.empty(len(ties), dtype=np.int64)
            self._ranks[np.argsort(-ties, kind="stable")] = np.arange(len(ties))
        return self._ranks

    def _reserve(
        self, state: CycleState, pod: PodView, nodes: NodeTable, row: int, decision: Decision, lap: Stopwatch
    ) -> None:
        """Reserve and Permit; whatever ends them, what was set aside is given back."""
        try:
            if self._set_aside(state, pod, nodes, row, decision, lap) and self._permit(
                state, pod, nodes, row, decision, lap
            ):
                decision.node_name = nodes.names[row]
        finally:
            if not decision.node_name:
                self.unreserve(pod, nodes.names[row])

    def _set_aside(
        self, state: CycleState, pod: PodView, nodes: NodeTable, row: int, decision: Decision, lap: Stopwatch
    ) -> bool:
        for plugin in self._profile.reserve:
            reservation = plugin.reserve(state, pod, nodes, row)
            lap("Reserve", plugin.name)
            check_answer(plugin.name, "Reserve", reservation, Reservation)
            if not reservation.status.ok:
                decision.error = f"plugin {plugin.name} could not reserve: {', '.join(reservation.status.reasons)}"
                decision.failed_plugins = frozenset((plugin.name,))
                return False
            decision.devices = decision.devices or reservation.devices
        return True

    def _permit(
        self, state: CycleState, pod: PodView, nodes: NodeTable, row: int, decision: Decision, lap: Stopwatch
    ) -> bool:
        for plugin in self._profile.permit:
            answer = plugin.permit(state, pod, nodes.names[row])
            lap("Permit", plugin.name)
            check_answer(plugin.name, "Permit", answer, tuple)
            check_answer(plugin.name, "Permit", answer[:1] and answer[0], Status)
            if not answer[0].ok:
                decision.failed_plugins = frozenset((plugin.name,))
                decision.message = ", ".join(answer[0].reasons)
                return False
        return True


def _best(last: Last, nodes: NodeTable, decision: Decision) -> int:
    """The row with the highest rank; the best few are noted with their scores."""
    ranks, top, kept = last.ranks, [], []
    for _ in range(min(SCORES_KEPT, len(last.rows))):
        at = int(ranks.argmax())
        top.append(at)
        kept.append(ranks[at])
        ranks[at] = -1
    ranks[top] = kept
    names, rows, totals = nodes.names, last.rows, last.totals
    decision.scores = [_node_score(names[rows[at]], int(totals[at]), last.scores, at) for at in top]
    return int(rows[top[0]])


def _node_score(name: str, total: int, scores: Scores, at: int) -> NodeScore:
    plugins = tuple(
        (plugin, part if isinstance(part, int) else int(part[at]), weight) for plugin, part, weight in scores.columns
    )
    return NodeScore(name, total, plugins)


def _note_refusals(decision: Decision, filtering: Filtering, nodes: NodeTable) -> None:
    """Who rejected how many nodes, and why; in the order of the plugins."""
    failed: dict[str, None] = {}
    refused = filtering.refused
    if refused is not None:
        reason = ", ".join(refused.reasons)
        decision.rejected["PreFilter", refused.plugin] = nodes.count
        decision.rejections.append(Rejection(refused.plugin, reason, nodes.count, (), refused.code))
        decision.failed_plugins = frozenset((refused.plugin,))
        return
    if len(filtering.left_out):
        status = left_out_status(filtering.narrowed_by)
        names = ", ".join(filtering.narrowed_by)
        decision.rejected["PreFilter", names] = len(filtering.left_out)
        examples = tuple(nodes.names[row] for row in filtering.left_out[:EXAMPLES_MAX])
        decision.rejections.append(Rejection(names, status.reasons[0], len(filtering.left_out), examples, status.code))
        failed.update(dict.fromkeys(filtering.narrowed_by))
    crowded: dict[tuple[str, str, Code], list[int]] = {}
    for row, status in filtering.crowded.items():
        decision.rejected["Filter", status.plugin] = decision.rejected.get(("Filter", status.plugin), 0) + 1
        for reason in status.reasons:
            crowded.setdefault((status.plugin, reason, status.code), []).append(row)
    for (plugin, reason, code), rows in crowded.items():
        examples = tuple(nodes.names[row] for row in rows[:EXAMPLES_MAX])
        decision.rejections.append(Rejection(plugin, reason, len(rows), examples, code))
        failed[plugin] = None
    for refusal in filtering.refusals:
        failed[refusal.plugin] = None
        count = decision.rejected.get(("Filter", refusal.plugin), 0)
        decision.rejected["Filter", refusal.plugin] = count + len(refusal.rows)
        _note_refusal(decision, refusal, nodes)
    decision.failed_plugins = frozenset(failed)


def _note_refusal(decision: Decision, refusal: Refusal, nodes: NodeTable) -> None:
    codes = refusal.mask.codes[refusal.rows]
    for number in numbers_in(codes):
        code, reasons = explained(refusal.plugin, refusal.mask, number)
        rows = refusal.rows[codes == number]
        count, examples = len(rows), tuple(nodes.names[row] for row in rows[:EXAMPLES_MAX])
        for reason in reasons:
            decision.rejections.append(Rejection(refusal.plugin, reason, count, examples, code))


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
