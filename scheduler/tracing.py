"""Spans of attempts, made after the fact from what the cycle noted.

The hot path appends numbers to a list. From them, only for pods whose trace is kept, come a span for the wait in the
queue with each wake-up as an event, one for the attempt, under it one for each extension point, and under that one for
each plugin: nodes in and out, and what was said against how many. An attempt of which nothing is kept by ratio is kept
by rule when it found no place, evicted others, was slow, or follows one that was kept.
"""

from collections.abc import Callable, Mapping, Sequence

from scheduler.attempts import Lap
from scheduler.core.cycle import Decision
from scheduler.core.machine import Attempted
from services.model.pod import PodView
from services.runtime.sampling import SamplingRules
from services.runtime.telemetry import Attributes, parse_traceparent, record_span

# Points that work on many nodes; the others work on the chosen one.
_NODE_POINTS = frozenset(("PreFilter", "Filter", "PreScore", "Score", "NormalizeScore"))


class Laps:
    """Collects one attempt's laps: wall nanoseconds at its start and after each plugin."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.marks: list[tuple[str, str, int]] = []
        self.start_ns = 0

    def begin(self) -> Callable[[str, str], None]:
        """Starts anew, and returns what the cycle calls after each plugin."""
        self.marks = []
        self.start_ns = self._now_ns()
        return self._mark

    def _mark(self, point: str, plugin: str) -> None:
        self.marks.append((point, plugin, self._now_ns()))

    def durations(self) -> list[Lap]:
        """What each plugin took."""
        laps = []
        before = self.start_ns
        for point, plugin, at in self.marks:
            laps.append((point, plugin, at - before))
            before = at
        return laps


def trace_id_of(traceparent: str) -> str:
    return traceparent[3:35] if parse_traceparent(traceparent) is not None else ""


def pod_attributes(pod: PodView) -> dict[str, str | int | Sequence[str]]:
    """OpenTelemetry's names for a pod."""
    return {"k8s.namespace.name": pod.namespace, "k8s.pod.name": pod.name, "k8s.pod.uid": pod.uid}


def record_attempt(
    attempted: Attempted,
    laps: Laps,
    end_ns: int,
    monotonic_to_ns: Callable[[float], int],
    rules: SamplingRules,
    scheduler: Mapping[str, str | int],
) -> str:
    """Records the spans of one attempt; returns the attempt span's traceparent, to parent the bind with.

    `scheduler` says who tried: its attributes are on the attempt.
    """
    pod, decision = attempted.pod, attempted.decision
    parent = rules.keep(
        pod.traceparent,
        # A pod that is tried again has failed before, and what was kept then wants its end.
        failed=not decision.node_name or attempted.attempt > 1,
        preempting=bool(decision.victims),
        seconds=(end_ns - laps.start_ns) / 1e9,
    )
    if not parent:
        return pod.traceparent
    record_span(
        "scheduler.queue",
        parent=parent,
        start_ns=monotonic_to_ns(attempted.moves[0][0] if attempted.moves else attempted.queued_at),
        end_ns=laps.start_ns,
        attributes={
            **pod_attributes(pod),
            "orrery.woken_by": attempted.woken_by,
            "orrery.attempt": attempted.attempt,
        },
        events=[(what, monotonic_to_ns(at), {}) for at, what in attempted.moves],
    )
    attempt = record_span(
        "scheduler.attempt",
        parent=parent,
        start_ns=laps.start_ns,
        end_ns=end_ns,
        attributes={**_attempt_attributes(attempted), **scheduler},
        error="" if decision.node_name else decision.error or decision.message,
    )
    _record_points(attempt, laps, decision)
    return attempt


def _attempt_attributes(attempted: Attempted) -> dict[str, str | int | Sequence[str]]:
    decision = attempted.decision
    attributes = pod_attributes(attempted.pod) | {
        "k8s.node.name": decision.node_name,
        "orrery.attempt": attempted.attempt,
        "orrery.nodes.evaluated": decision.nodes_evaluated,
        "orrery.nodes.feasible": decision.feasible,
    }
    if decision.rejections:
        attributes["orrery.rejections"] = [f"{r.nodes} {r.plugin}: {r.reason}" for r in decision.rejections]
    if decision.devices:
        attributes["orrery.devices"] = [f"{share.index}:{share.milli}" for share in decision.devices]
    if decision.victims:
        attributes["orrery.nominated_node"] = decision.nominated_node
        attributes["orrery.victims"] = [held.pod.key for held in decision.victims]
    if decision.scores:
        attributes["orrery.scores"] = [f"{score.node_name}: {score.total}" for score in decision.scores]
    return attributes


def _record_points(parent: str, laps: Laps, decision: Decision) -> None:
    """A span for each extension point, in order, and under it one for each plugin."""
    nodes = decision.nodes_evaluated
    began_ns = laps.start_ns
    marks = laps.marks
    at = 0
    while at < len(marks):
        point = marks[at][0]
        end = at
        while end < len(marks) and marks[end][0] == point:
            end += 1
        plugins = []
        nodes_in = nodes
        for _, plugin, ended_ns in marks[at:end]:
            attributes, nodes = _plugin_attributes(point, plugin, nodes, decision)
            plugins.append((plugin, began_ns, ended_ns, attributes))
            began_ns = ended_ns
        about: Attributes = {"orrery.nodes.in": nodes_in, "orrery.nodes.out": nodes} if point in _NODE_POINTS else {}
        span = record_span(
            f"scheduler.{point}", parent=parent, start_ns=plugins[0][1], end_ns=began_ns, attributes=about
        )
        for plugin, start_ns, ended_ns, attributes in plugins:
            record_span(
                f"{point}/{plugin}",
                parent=span,
                start_ns=start_ns,
                end_ns=ended_ns,
                attributes=attributes,
            )
        at = end


def _plugin_attributes(point: str, plugin: str, nodes: int, decision: Decision) -> tuple[Attributes, int]:
    """What one plugin did with the nodes that came to it, and how many go on to the next."""
    attributes: dict[str, str | int | Sequence[str]] = {"orrery.extension_point": point, "orrery.plugin": plugin}
    if point not in _NODE_POINTS:
        return attributes, nodes
    attributes["orrery.nodes.in"] = nodes
    if (point, plugin) in decision.rejected:
        nodes -= decision.rejected[point, plugin]
        attributes["orrery.rejections"] = [f"{r.nodes} {r.reason}" for r in decision.rejections if r.plugin == plugin]
    attributes["orrery.nodes.out"] = nodes
    if point == "Score":
        attributes["orrery.scores"] = [
            f"{score.node_name}: {points} x {weight}"
            for score in decision.scores
            for name, points, weight in score.plugins
            if name == plugin
        ]
    return attributes, nodes
