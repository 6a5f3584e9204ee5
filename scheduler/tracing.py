"""Spans of attempts, made after the fact from what the cycle noted.

The hot path appends numbers to a list. From them, only for pods whose trace is kept, come a span for the wait in the
queue, one for the attempt, and one for each extension point, with each plugin's share as attributes.
"""

from collections.abc import Callable, Sequence

from scheduler.attempts import Lap
from scheduler.core.machine import Attempted
from services.runtime.telemetry import parse_traceparent, record_span


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


def sampled(traceparent: str) -> bool:
    context = parse_traceparent(traceparent)
    return context is not None and bool(context.trace_flags & 1)


def trace_id_of(traceparent: str) -> str:
    return traceparent[3:35] if parse_traceparent(traceparent) is not None else ""


def record_attempt(attempted: Attempted, laps: Laps, end_ns: int, monotonic_to_ns: Callable[[float], int]) -> str:
    """Records the spans of one attempt; returns the attempt span's traceparent, to parent the bind with."""
    pod, decision = attempted.pod, attempted.decision
    if not sampled(pod.traceparent):
        return pod.traceparent
    record_span(
        "scheduler.queue",
        parent=pod.traceparent,
        start_ns=monotonic_to_ns(attempted.moves[0][0] if attempted.moves else attempted.queued_at),
        end_ns=laps.start_ns,
        attributes={"orrery.woken_by": attempted.woken_by, "orrery.attempt": attempted.attempt},
        events=[(what, monotonic_to_ns(at), {}) for at, what in attempted.moves],
    )
    attributes: dict[str, str | int | Sequence[str]] = {
        "k8s.namespace.name": pod.namespace,
        "k8s.pod.name": pod.name,
        "k8s.pod.uid": pod.uid,
        "k8s.node.name": decision.node_name,
        "orrery.attempt": attempted.attempt,
        "orrery.nodes.evaluated": decision.nodes_evaluated,
        "orrery.nodes.feasible": decision.feasible,
    }
    if decision.rejections:
        attributes["orrery.rejections"] = [f"{r.nodes} {r.plugin}: {r.reason}" for r in decision.rejections]
    if decision.devices:
        attributes["orrery.devices"] = [f"{share.index}:{share.milli}" for share in decision.devices]
    attempt = record_span(
        "scheduler.attempt",
        parent=pod.traceparent,
        start_ns=laps.start_ns,
        end_ns=end_ns,
        attributes=attributes,
        error="" if decision.node_name else decision.error or decision.message,
    )
    _record_points(attempt, laps)
    return attempt


def _record_points(parent: str, laps: Laps) -> None:
    """One span for each extension point, in order, with the microseconds of each plugin."""
    point_start, before = laps.start_ns, laps.start_ns
    shares: dict[str, float] = {}
    for at, (point, plugin, end_ns) in enumerate(laps.marks):
        shares[f"orrery.plugin.{plugin}.us"] = (end_ns - before) / 1000
        before = end_ns
        if at + 1 == len(laps.marks) or laps.marks[at + 1][0] != point:
            record_span(f"scheduler.{point}", parent=parent, start_ns=point_start, end_ns=end_ns, attributes=shares)
            point_start, shares = end_ns, {}
