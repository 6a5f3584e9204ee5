"""`orrery explain` as a person reads it."""

import io
from typing import Any

from rich.console import Console

from protos.orrery.v1.event_pb2 import Event
from protos.orrery.v1.pod_pb2 import Pod
from protos.orrery.v1.scheduler_pb2 import SchedulingAttempt
from services.lab.explain_view import ATTEMPTS_SHOWN, explanation

NOW_NS = 100 * 1_000_000_000


def printed(parts: list[Any]) -> str:
    out = Console(file=io.StringIO(), width=140, highlight=False)
    for part in parts:
        out.print(part)
    assert isinstance(out.file, io.StringIO)
    return "\n".join(line.rstrip() for line in out.file.getvalue().splitlines())


def pod(node: str = "") -> Pod:
    made = Pod()
    made.metadata.name = "trainer"
    made.spec.node_name = node
    made.status.phase = "Running" if node else "Pending"
    return made


def refused() -> SchedulingAttempt:
    attempt = SchedulingAttempt(
        number=1,
        scheduler="scheduler-0",
        woken_by="PodAdd",
        nodes_evaluated=12,
        result="Unschedulable",
        message="0/12 nodes are available: 12 Insufficient nvidia.com/gpu.",
    )
    attempt.at.seconds = 70
    attempt.rejections.add(plugin="TaintToleration", reason="untolerated taint", nodes=2, examples=["c", "d"])
    attempt.rejections.add(
        plugin="GpuTopology", reason="Insufficient nvidia.com/gpu", nodes=10, examples=["a", "b", "c", "d"]
    )
    return attempt


def placed() -> SchedulingAttempt:
    attempt = SchedulingAttempt(
        number=2,
        scheduler="scheduler-1",
        woken_by="NodeAdd",
        nodes_evaluated=12,
        node_name="dgx-0",
        devices=[0, 3],
        result="Scheduled",
    )
    attempt.at.seconds = 98
    for node, total, score in (("l40s-0", 80, 40), ("dgx-0", 150, 75)):
        row = attempt.scores.add(node_name=node, total=total)
        row.plugins.add(plugin="GpuTopology", score=score, weight=2)
    attempt.durations.add(extension_point="Filter", nanoseconds=120_000)
    attempt.durations.add(extension_point="Filter", plugin="GpuTopology", nanoseconds=100_000)
    return attempt


def test_rejections_stand_largest_first_with_plugin_reason_and_examples() -> None:
    assert printed(explanation(pod(), [refused()], [], NOW_NS)).splitlines() == [
        "pod/trainer is on no node (Pending)",
        "",
        "attempt 1 by scheduler-0, 30s ago, woken by PodAdd: Unschedulable; 12 nodes looked at",
        "  0/12 nodes are available: 12 Insufficient nvidia.com/gpu.",
        "  REJECTED  BY PLUGIN        REASON                       FOR EXAMPLE",
        "        10  GpuTopology      Insufficient nvidia.com/gpu  a, b, c",
        "         2  TaintToleration  untolerated taint            c, d",
    ]


def test_one_reason_is_one_row_and_one_extension_point_one_duration() -> None:
    attempt = refused()
    attempt.rejections.add(plugin="GpuTopology", reason="Insufficient nvidia.com/gpu", nodes=1, examples=["e"])
    attempt.durations.add(extension_point="Filter", plugin="A", nanoseconds=10_000)
    attempt.durations.add(extension_point="Filter", plugin="B", nanoseconds=20_000)
    said = printed(explanation(pod(), [attempt], [], NOW_NS))
    assert "  11  GpuTopology" in said
    assert said.count("GpuTopology") == 1
    assert said.endswith("took: Filter 30 µs")


def test_scores_stand_best_first_with_the_chosen_node_marked() -> None:
    assert printed(explanation(pod("dgx-0"), [placed()], [], NOW_NS)).splitlines() == [
        "pod/trainer is on dgx-0 (Running)",
        "",
        "attempt 2 by scheduler-1, 2s ago, woken by NodeAdd: Scheduled → dgx-0 GPUs 0,3; 12 nodes looked at",
        "  NODE     TOTAL  GpuTopology",
        "  dgx-0 ✓    150       75 * 2",
        "  l40s-0      80       40 * 2",
        "  took: Filter 120 µs",
    ]


def test_earlier_attempts_are_counted_unless_all_are_wanted() -> None:
    many = [refused() for _ in range(ATTEMPTS_SHOWN + 4)]
    assert "4 earlier attempts are left out" in printed(explanation(pod(), many, [], NOW_NS))
    assert "left out" not in printed(explanation(pod(), many, [], NOW_NS, every=True))


def test_where_no_scheduler_remembers_conditions_and_events_speak() -> None:
    made = pod()
    made.status.conditions.add(type="PodScheduled", status="False", reason="Unschedulable", message="0/3 nodes.")
    event = Event(reason="FailedScheduling", message="0/3 nodes.")
    event.event_time.seconds = 40
    assert printed(explanation(made, [], [event], NOW_NS)).splitlines() == [
        "pod/trainer is on no node (Pending): 0/3 nodes.",
        "no scheduler remembers an attempt; what the pod and its events say:",
        "  PodScheduled=False  Unschedulable: 0/3 nodes.",
        "  60s  FailedScheduling  0/3 nodes.",
    ]
