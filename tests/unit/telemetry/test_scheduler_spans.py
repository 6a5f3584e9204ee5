"""The spans of an attempt: the wait, the attempt, each extension point, each plugin with nodes in and out."""

from dataclasses import replace

import pytest

from scheduler.core.machine import Attempted, LeadershipChanged, Machine, NodeChanged, PodChanged, Tick
from scheduler.plugins.registry import default_profile
from scheduler.tracing import Laps, record_attempt
from services.model.node import Taint
from services.model.pod import PodView
from services.runtime.sampling import SamplingRules
from tests.transcripts.test_scheduler_machine import node, pod
from tests.unit.telemetry.spans import SAMPLED, UNSAMPLED, Kept, kept_spans

SCHEDULER = {"orrery.scheduler": "scheduler-0", "orrery.fencing_token": 7}


class Attempts:
    """A machine of four nodes: one tainted, one too small, two that do."""

    def __init__(self) -> None:
        self._ticks = 0
        self.laps = Laps(self._now_ns)
        self.machine = Machine([default_profile()], 1, self.laps.begin)
        self.machine.step(LeadershipChanged(leading=True), 0.0)
        tainted = replace(node("tainted"), taints=(Taint("gpu", "", "NoSchedule"),))
        for view in (tainted, node("small", cpu=100), node("a"), node("b")):
            self.machine.step(NodeChanged(None, view), 0.0)

    def _now_ns(self) -> int:
        self._ticks += 1000
        return self._ticks

    def attempt(self, view: PodView, now: float = 1.0) -> Attempted:
        self.machine.step(PodChanged(None, view), 0.5)
        return next(action for action in self.machine.step(Tick(), now) if isinstance(action, Attempted))

    def record(self, attempted: Attempted, rules: SamplingRules | None = None) -> tuple[str, Kept]:
        with kept_spans() as spans:
            told = record_attempt(
                attempted, self.laps, self._now_ns(), lambda at: int(at * 1e9), rules or SamplingRules(), SCHEDULER
            )
        return told, spans


def test_an_attempt_is_a_tree_of_points_and_plugins() -> None:
    attempts = Attempts()
    told, spans = attempts.record(attempts.attempt(replace(pod("a", cpu=200), traceparent=SAMPLED)))
    tree = spans.tree()
    assert tree["scheduler.queue"] == tree["scheduler.attempt"] == ""
    assert tree["scheduler.Filter"] == tree["scheduler.Score"] == tree["scheduler.Reserve"] == "scheduler.attempt"
    assert tree["Filter/TaintToleration"] == "scheduler.Filter"
    assert tree["Score/NodeResourcesFit"] == "scheduler.Score"
    assert told.endswith("-01") and f"{spans.one('scheduler.attempt').get_span_context().span_id:016x}" in told
    attempt = spans.one("scheduler.attempt").attributes
    assert attempt is not None
    assert attempt["orrery.fencing_token"] == 7 and attempt["orrery.nodes.feasible"] == 2


def test_a_filter_says_how_many_nodes_came_and_how_many_went_on() -> None:
    attempts = Attempts()
    _, spans = attempts.record(attempts.attempt(replace(pod("a", cpu=200), traceparent=SAMPLED)))

    def nodes(name: str) -> tuple[object, object]:
        attributes = spans.one(name).attributes
        assert attributes is not None
        return attributes["orrery.nodes.in"], attributes["orrery.nodes.out"]

    assert nodes("Filter/TaintToleration") == (4, 3)
    assert nodes("Filter/NodeResourcesFit") == (3, 2)
    assert nodes("scheduler.Filter") == (4, 2)
    assert nodes("scheduler.Score") == (2, 2)
    fit = spans.one("Filter/NodeResourcesFit").attributes
    assert fit is not None and fit["orrery.rejections"] == ["1 Insufficient cpu"]


def test_spans_lie_inside_their_parents_and_in_order() -> None:
    attempts = Attempts()
    _, spans = attempts.record(attempts.attempt(replace(pod("a"), traceparent=SAMPLED)))
    by_id = {span.get_span_context().span_id: span for span in spans.spans}
    for span in spans.spans:
        parent = by_id.get(span.parent.span_id)
        if parent is not None:
            assert parent.start_time <= span.start_time <= span.end_time <= parent.end_time, span.name
    points = [span for span in spans.spans if span.name.startswith("scheduler.") and span.name != "scheduler.queue"]
    begun = [span.start_time for span in points if span.name != "scheduler.attempt"]
    assert begun == sorted(begun)


def test_the_wait_tells_each_wake_up() -> None:
    attempts = Attempts()
    attempts.attempt(replace(pod("big", cpu=50_000), traceparent=UNSAMPLED))
    attempts.machine.step(NodeChanged(None, node("huge", cpu=60_000)), 2.0)
    again = next(item for item in attempts.machine.step(Tick(), 60.0) if isinstance(item, Attempted))
    _, spans = attempts.record(again)
    queue = spans.one("scheduler.queue")
    assert [event.name for event in queue.events] == [
        "unschedulable: no place",
        "active: NodeAdd",
        "flight: attempt",
    ]
    assert queue.attributes is not None and queue.attributes["orrery.woken_by"] == "NodeAdd"


@pytest.mark.parametrize(
    ("cpu", "rules", "kept"),
    [
        (50_000, SamplingRules(), True),
        (50_000, SamplingRules(frozenset(("fenced",))), False),
        (10, SamplingRules(slow_seconds=60.0), False),
        (10, SamplingRules(slow_seconds=0.0), True),
    ],
)
def test_an_unsampled_attempt_is_kept_by_rule(cpu: int, rules: SamplingRules, *, kept: bool) -> None:
    attempts = Attempts()
    told, spans = attempts.record(attempts.attempt(replace(pod("a", cpu=cpu), traceparent=UNSAMPLED)), rules)
    assert ("scheduler.attempt" in spans.names()) is kept
    assert told.endswith("-01") is kept


def test_an_attempt_that_evicts_others_is_kept_by_its_own_rule_and_names_them() -> None:
    attempts = Attempts()
    low = pod("low", cpu=900)
    for name in ("a", "b"):
        bound = replace(low, name=f"low-{name}", uid=f"low-{name}", spec=replace(low.spec, node_name=name))
        attempts.machine.step(PodChanged(None, bound), 0.0)
    high = replace(pod("high", cpu=500), traceparent=UNSAMPLED)
    attempted = attempts.attempt(replace(high, spec=replace(high.spec, priority=1000)))
    for rule, kept in (("preempting", True), ("fenced", False)):
        _, spans = attempts.record(attempted, SamplingRules(frozenset((rule,))))
        assert ("scheduler.attempt" in spans.names()) is kept
        if kept:
            attributes = spans.one("scheduler.attempt").attributes
            assert attributes is not None and attributes["orrery.nominated_node"] in ("a", "b")
            assert attributes["orrery.victims"] == [f"default/low-{attributes['orrery.nominated_node']}"]
