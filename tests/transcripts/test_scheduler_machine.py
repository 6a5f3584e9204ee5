"""What the scheduler's machine does with events, as transcripts: one file a story, rewritten with ORRERY_REWRITE=1.

A story is a list of steps at given seconds; the transcript holds, for each, what was put in, the actions that came out,
and where each pod is then.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.core.machine import (
    Action,
    Attempted,
    Bind,
    BindDone,
    BindVerdict,
    Event,
    Evict,
    EvictionFailed,
    LeadershipChanged,
    Machine,
    NamespaceChanged,
    NodeChanged,
    Nominate,
    PodChanged,
    Tick,
    TopologyChanged,
    WakeAt,
)
from scheduler.plugins.registry import default_profile
from services.model.devices import Device, DeviceRequest
from services.model.node import NodeView, Taint, TopologyView
from services.model.pod import (
    HostPort,
    NodeAffinity,
    NodeSelectorTerm,
    Placement,
    PodAffinity,
    PodAffinityTerm,
    PodSpecView,
    PodView,
    Requirement,
    SpreadConstraint,
)

FOLDER = Path(__file__).parent / "scheduler"
Step = tuple[float, Event | None]


def spec(*, cpu: int = 100, **changes: object) -> PodSpecView:
    plain = PodSpecView(
        requests={"cpu": cpu},
        nonzero_milli_cpu=cpu,
        nonzero_memory=200 << 20,
        devices=None,
        node_name="",
        scheduler_name="default-scheduler",
        priority=0,
        preemption_policy="PreemptLowerPriority",
        restart_policy="Always",
        node_selector={},
        node_affinity=None,
        tolerations=(),
        host_ports=(),
        scheduling_gates=(),
        images=(),
        termination_grace_period_seconds=30,
        containers=("main",),
        scoring_milli_cpu=cpu,
        scoring_memory=200 << 20,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def pod(name: str, uid: str = "", labels: Mapping[str, str] | None = None, **facts: object) -> PodView:
    return PodView(
        namespace="default",
        name=name,
        uid=uid or f"uid-{name}",
        resource_version="1",
        created_at_ns=0,
        labels=labels or {},
        spec=spec(**facts),  # type: ignore[arg-type]
        phase="Pending",
        deleting=False,
        nominated_node_name="",
        placed=None,
        traceparent="",
    )


def placed(view: PodView, node_name: str) -> PodView:
    """The pod as the store tells it once it is bound."""
    placement = Placement(node_name, f"uid-{node_name}", view.spec.requests, (), 5)
    return replace(view, spec=replace(view.spec, node_name=node_name), placed=placement, resource_version="2")


def node(name: str, *, cpu: int = 1000, **changes: object) -> NodeView:
    plain = NodeView(
        name,
        f"uid-{name}",
        "1",
        {"kubernetes.io/hostname": name},
        (),
        False,
        {"cpu": cpu, "memory": 8 << 30, "pods": 110},
        True,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def topology(name: str, gpus: int) -> TopologyView:
    devices = tuple(Device(index, f"GPU-{index}", "A100", 80 << 30, 0) for index in range(gpus))
    paths = tuple(tuple("X" if a == b else "SYS" for b in range(gpus)) for a in range(gpus))
    links = tuple(tuple(0 if a == b else 12 for b in range(gpus)) for a in range(gpus))
    return TopologyView(name, "", (), devices, paths, links, ())


def tell(event: Event | None) -> str:
    match event:
        case PodChanged(None, new) if new is not None:
            return f"pod {new.name} added"
        case PodChanged(old, None) if old is not None:
            return f"pod {old.name} gone" + (f" from {old.spec.node_name}" if old.spec.node_name else "")
        case PodChanged(_, new) if new is not None:
            return f"pod {new.name} is now on {new.spec.node_name}" if new.spec.node_name else f"pod {new.name} changed"
        case NodeChanged(None, new_node) if new_node is not None:
            return f"node {new_node.name} added"
        case NodeChanged(_, new_node):
            return f"node {new_node.name} changed" if new_node is not None else "node gone"
        case TopologyChanged(name, _):
            return f"hardware of {name} reported"
        case NamespaceChanged(name, labels):
            return f"namespace {name} has the labels {dict(labels or {})}"
        case EvictionFailed(uid):
            return f"the victims of {uid} could not be evicted"
        case BindDone(uid, verdict, why):
            return f"bind of {uid} answered {verdict.value} {why}".rstrip()
        case LeadershipChanged(leading):
            return "leads" if leading else "no longer leads"
    return "time passes"


def say(action: Action) -> str | None:
    match action:
        case Bind():
            devices = f", GPUs {[share.index for share in action.devices]}" if action.devices else ""
            return f"bind {action.pod.name} to {action.node_name}{devices}"
        case Attempted():
            outcome = action.decision.node_name or action.decision.error or action.decision.message
            return f"attempt {action.attempt} of {action.pod.name}, woken by {action.woken_by}: {outcome}"
        case Nominate(waiting, node_name):
            return f"nominate {waiting.name} to {node_name or 'nowhere'}"
        case Evict():
            return f"evict {', '.join(victim.name for victim in action.victims)} from {action.node_name}"
        case WakeAt(at):
            return f"wake at {at:g}"
    return None


def play(steps: Sequence[Step]) -> str:
    machine = Machine([default_profile()], seed=1)
    pods: dict[str, str] = {}
    lines = []
    machine.step(LeadershipChanged(leading=True), 0.0)
    for at, event in steps:
        lines.append(f"{at:g} s: {tell(event)}")
        if isinstance(event, PodChanged) and event.new is not None:
            pods[event.new.uid] = event.new.name
        if event is not None:
            machine.step(event, at)
        while True:
            said = [text for action in machine.step(Tick(), at) if (text := say(action)) is not None]
            lines += [f"    {text}" for text in said]
            if not any(text.startswith("attempt") for text in said):
                break
        places = [
            f"{name} {entry.place}" for uid, name in pods.items() if (entry := machine.queue.get(uid)) is not None
        ]
        lines.append(f"  queue: {', '.join(places) or 'empty'}; assumed {machine.assumed}; counted {machine.pods}")
    return "\n".join(lines) + "\n"


A, B, BIG = pod("a", cpu=600), pod("b", cpu=600), pod("big", cpu=4000)
GPU = pod("gpu", devices=DeviceRequest(2, 1000))
PORT = HostPort("TCP", "0.0.0.0", 80)
WEB = pod("web", host_ports=(PORT,))
ON_SSD = NodeAffinity((NodeSelectorTerm((Requirement("disk", "In", ("ssd",)),), ()),), ())
SSD = pod("ssd", node_affinity=ON_SSD)
TAINTED = node("n1", taints=(Taint("dedicated", "x", "NoSchedule"),))
GATED = pod("gated", scheduling_gates=("example.com/hold",))
WEB_PODS = (Requirement("app", "In", ("web",)),)
HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
NEAR = PodAffinity(required=(PodAffinityTerm(WEB_PODS, HOSTNAME),))
NEAR_TEAM = PodAffinity(
    required=(PodAffinityTerm(WEB_PODS, HOSTNAME, namespace_selector=(Requirement("team", "In", ("red",)),)),)
)
AWAY = PodAffinity(anti_required=(PodAffinityTerm(WEB_PODS, HOSTNAME),))
ONE_A_ZONE = (SpreadConstraint(ZONE, 1, True, WEB_PODS),)


def web(name: str, **facts: object) -> PodView:
    return pod(name, labels={"app": "web"}, **facts)


def elsewhere(view: PodView) -> PodView:
    """The same in another namespace."""
    return replace(view, namespace="red")


def zoned(name: str, zone: str) -> NodeView:
    return node(name, labels={HOSTNAME: name, ZONE: zone})


LOW, LOWER = placed(pod("low", cpu=600, priority=5), "n1"), placed(pod("lower", cpu=300, priority=1), "n1")
HIGH, LATER = pod("high", cpu=600, priority=100), pod("later", cpu=600, priority=50)
GOING = replace(LOW, deleting=True, preempted=True)

STORIES: dict[str, list[Step]] = {
    "preemption": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, LOW)),
        (0, PodChanged(None, LOWER)),
        (0, PodChanged(None, HIGH)),
        (1, PodChanged(HIGH, replace(HIGH, nominated_node_name="n1"))),
        (2, PodChanged(LOW, GOING)),
        (3, PodChanged(GOING, None)),
        (3, BindDone(HIGH.uid, BindVerdict.BOUND)),
        (4, PodChanged(replace(HIGH, nominated_node_name="n1"), placed(HIGH, "n1"))),
    ],
    "preemption-keeps-the-room-for-who-preempted": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, LOW)),
        (0, PodChanged(None, HIGH)),
        (2, PodChanged(LOW, None)),
        (2, PodChanged(None, pod("replacement", cpu=600, priority=5))),
        (3, PodChanged(HIGH, None)),
    ],
    "preemption-by-a-still-higher-one": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, LOW)),
        (0, PodChanged(None, LATER)),
        (1, PodChanged(None, HIGH)),
        (2, PodChanged(LOW, GOING)),
        (5, PodChanged(GOING, None)),
    ],
    "preemption-is-not-repeated-while-a-victim-goes": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, LOW)),
        (0, PodChanged(None, LOWER)),
        (0, PodChanged(None, HIGH)),
        (1, PodChanged(LOW, GOING)),
        (2, NodeChanged(node("n1"), node("n1", cpu=1100))),
        (9, NodeChanged(None, node("n2", cpu=100))),
    ],
    "preemption-backs-off-longer-each-time": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, LOW)),
        (0, PodChanged(None, HIGH)),
        (0.1, EvictionFailed(HIGH.uid)),
        (1, None),
        (1.1, EvictionFailed(HIGH.uid)),
        (3, None),
        (3.1, EvictionFailed(HIGH.uid)),
        (7, None),
    ],
    "preemption-called-off": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, LOW)),
        (0, PodChanged(None, HIGH)),
        (0.2, PodChanged(LOW, None)),
        (0.3, PodChanged(None, pod("kept-out", cpu=600))),
        (0.5, PodChanged(HIGH, None)),
    ],
    "preemption-never": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, LOW)),
        (0, PodChanged(None, pod("polite", cpu=600, priority=100, preemption_policy="Never"))),
    ],
    "pod-affinity-hint": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, pod("follower", pod_affinity=NEAR))),
        (5, PodChanged(None, placed(A, "n1"))),
        (6, PodChanged(None, placed(web("leader"), "n1"))),
    ],
    "pod-affinity-hint-by-an-assumed-pod": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, pod("follower", pod_affinity=NEAR))),
        (5, PodChanged(None, web("leader"))),
        (5.5, None),
    ],
    "pod-anti-affinity-hint": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, placed(web("there"), "n1"))),
        (0, PodChanged(None, placed(A, "n1"))),
        (0, PodChanged(None, web("second", pod_affinity=AWAY))),
        (5, PodChanged(placed(A, "n1"), None)),
        (6, PodChanged(placed(web("there"), "n1"), None)),
    ],
    "anti-affinity-of-others-hint": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, placed(pod("guard", pod_affinity=AWAY), "n1"))),
        (0, PodChanged(None, placed(A, "n1"))),
        (0, PodChanged(None, web("kept-out"))),
        (5, PodChanged(placed(A, "n1"), None)),
        (6, PodChanged(placed(pod("guard", pod_affinity=AWAY), "n1"), None)),
    ],
    "namespace-hint": [
        (0, NodeChanged(None, node("n1"))),
        (0, NamespaceChanged("red", {})),
        (0, PodChanged(None, placed(elsewhere(web("leader")), "n1"))),
        (0, PodChanged(None, pod("follower", pod_affinity=NEAR_TEAM))),
        (5, NamespaceChanged("blue", {})),
        (6, NamespaceChanged("red", {"team": "red"})),
    ],
    "spread-hint": [
        (0, NodeChanged(None, zoned("n1", "a"))),
        (0, NodeChanged(None, replace(zoned("n2", "b"), unschedulable=True))),
        (0, PodChanged(None, placed(web("first"), "n1"))),
        (0, PodChanged(None, web("second", spread=ONE_A_ZONE))),
        (5, PodChanged(None, placed(A, "n1"))),
        (6, PodChanged(None, placed(web("other"), "n2"))),
    ],
    "spread-hint-by-a-pod-that-begins-to-go": [
        (0, NodeChanged(None, zoned("n1", "a"))),
        (0, NodeChanged(None, replace(zoned("n2", "b"), unschedulable=True))),
        (0, PodChanged(None, placed(web("first"), "n1"))),
        (0, PodChanged(None, web("second", spread=ONE_A_ZONE))),
        (5, PodChanged(placed(web("first"), "n1"), replace(placed(web("first"), "n1"), deleting=True))),
    ],
    "a-domain-that-goes-hint": [
        (0, NodeChanged(None, zoned("n1", "a"))),
        (0, NodeChanged(None, replace(zoned("n2", "b"), unschedulable=True))),
        (0, PodChanged(None, placed(web("first"), "n1"))),
        (0, PodChanged(None, web("second", spread=ONE_A_ZONE))),
        (5, NodeChanged(zoned("n2", "b"), None)),
    ],
    "bind-confirmed": [
        (0, NodeChanged(None, node("n1"))),
        (1, PodChanged(None, A)),
        (1, BindDone(A.uid, BindVerdict.BOUND)),
        (2, PodChanged(A, placed(A, "n1"))),
    ],
    "backoff-doubles-to-ten-seconds": [
        (0, NodeChanged(None, node("n1"))),
        *[
            step
            for n in range(6)
            for step in (
                (20 * n, PodChanged(None, A) if n == 0 else None),
                (20 * n, BindDone(A.uid, BindVerdict.LOST, "CAPACITY")),
            )
        ],
    ],
    "a-lost-bind-gives-its-room-back": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, A)),
        (0, PodChanged(None, B)),
        (1, BindDone(A.uid, BindVerdict.LOST, "FENCED")),
        (2.5, None),
    ],
    "settled-elsewhere": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, A)),
        (1, BindDone(A.uid, BindVerdict.SETTLED, "CONFLICT")),
        (2, PodChanged(A, placed(A, "n2"))),
    ],
    "a-pod-that-leaves-wakes-who-waits-for-room": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, placed(A, "n1"))),
        (0, PodChanged(None, B)),
        (5, PodChanged(placed(A, "n1"), None)),
    ],
    "resources-hint": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, BIG)),
        (5, NodeChanged(None, node("n2", cpu=2000))),
        (6, NodeChanged(None, node("n3", cpu=8000))),
    ],
    "taint-hint": [
        (0, NodeChanged(None, TAINTED)),
        (0, PodChanged(None, A)),
        (5, NodeChanged(TAINTED, replace(TAINTED, labels={"x": "y"}))),
        (6, NodeChanged(replace(TAINTED, labels={"x": "y"}), node("n1"))),
    ],
    "affinity-hint": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, SSD)),
        (5, NodeChanged(node("n1"), node("n1", labels={"disk": "hdd"}))),
        (6, NodeChanged(node("n1", labels={"disk": "hdd"}), node("n1", labels={"disk": "ssd"}))),
    ],
    "unschedulable-hint": [
        (0, NodeChanged(None, node("n1", unschedulable=True))),
        (0, PodChanged(None, A)),
        (5, NodeChanged(node("n1", unschedulable=True), node("n1", unschedulable=True, labels={"a": "b"}))),
        (6, NodeChanged(node("n1", unschedulable=True, labels={"a": "b"}), node("n1", labels={"a": "b"}))),
    ],
    "ports-hint": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, placed(pod("holder", host_ports=(PORT,)), "n1"))),
        (0, PodChanged(None, placed(A, "n1"))),
        (0, PodChanged(None, WEB)),
        (5, PodChanged(placed(A, "n1"), None)),
        (6, PodChanged(placed(pod("holder", host_ports=(PORT,)), "n1"), None)),
    ],
    "hardware-hint": [
        (0, NodeChanged(None, node("n1"))),
        (0, TopologyChanged("n1", topology("n1", 1))),
        (0, PodChanged(None, GPU)),
        (5, NodeChanged(node("n1"), node("n1", labels={"a": "b"}))),
        (6, TopologyChanged("n1", topology("n1", 4))),
    ],
    "gates": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, GATED)),
        (5, NodeChanged(None, node("n2"))),
        (6, PodChanged(GATED, replace(GATED, spec=replace(GATED.spec, scheduling_gates=())))),
    ],
    "an-event-while-a-bind-is-in-flight-is-not-missed": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, A)),
        (0.5, NodeChanged(None, node("n2"))),
        (1, BindDone(A.uid, BindVerdict.LOST, "CAPACITY")),
        (3, None),
    ],
    "a-pod-deleted-in-flight-leaves-nothing": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, A)),
        (1, PodChanged(A, None)),
        (2, BindDone(A.uid, BindVerdict.SETTLED, "GONE")),
    ],
    "same-name-another-uid": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, A)),
        (1, PodChanged(A, pod("a", uid="second", cpu=600))),
        (2, BindDone(A.uid, BindVerdict.SETTLED, "GONE")),
    ],
    "a-standby-tries-nobody": [
        (0, LeadershipChanged(leading=False)),
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, A)),
        (9, LeadershipChanged(leading=True)),
    ],
    "a-pod-seen-before-its-node": [
        (0, PodChanged(None, placed(A, "n1"))),
        (1, PodChanged(None, B)),
        (2, NodeChanged(None, node("n1"))),
        (3, NodeChanged(None, node("n2"))),
    ],
    "flush-is-a-detector": [
        (0, NodeChanged(None, node("n1"))),
        (0, PodChanged(None, BIG)),
        (299, None),
        (300, None),
    ],
}


@pytest.mark.parametrize("story", sorted(STORIES))
def test_the_machine_does_what_its_transcript_says(story: str) -> None:
    path = FOLDER / f"{story}.txt"
    played = play(STORIES[story])
    if os.environ.get("ORRERY_REWRITE"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(played)
    assert played == path.read_text()


@pytest.mark.parametrize("story", sorted(STORIES))
def test_the_same_events_give_the_same_actions(story: str) -> None:
    assert play(STORIES[story]) == play(STORIES[story])
