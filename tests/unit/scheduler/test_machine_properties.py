"""Whatever happens, in whatever order: nobody sleeps who could be placed, and the table counts what is there."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.cycle import Cycle
from scheduler.core.machine import (
    Attempted,
    Bind,
    BindDone,
    BindVerdict,
    Evict,
    LeadershipChanged,
    Machine,
    NamespaceChanged,
    NodeChanged,
    Nominate,
    PodChanged,
    Tick,
    TopologyChanged,
)
from scheduler.core.table import NodeTable
from scheduler.plugins.registry import default_profile
from services.model.devices import DeviceRequest
from services.model.node import NodeView, Taint, TopologyView
from services.model.pod import HostPort, PodAffinity, PodAffinityTerm, PodView, Requirement, SpreadConstraint
from tests.transcripts.test_scheduler_machine import ZONE, node, placed, pod, topology

NAMES = ("n1", "n2", "n3")
NODES = st.builds(
    lambda name, cpu, labels, taints, cordoned: node(
        name, cpu=cpu, labels=labels, taints=taints, unschedulable=cordoned
    ),
    st.sampled_from(NAMES),
    st.sampled_from([500, 1000, 4000]),
    st.sampled_from([{}, {"disk": "ssd"}, {ZONE: "a"}, {ZONE: "b"}, {ZONE: "b", "disk": "ssd"}]),
    st.sampled_from([(), (Taint("dedicated", "x", "NoSchedule"),)]),
    st.booleans(),
)
WEB = (Requirement("app", "In", ("web",)),)
NOT_DB = (Requirement("app", "NotIn", ("db",)),)
RED = (Requirement("team", "In", ("red",)),)
NEAR, APART = PodAffinityTerm(WEB, ZONE), PodAffinityTerm(NOT_DB, ZONE)
NEAR_RED = PodAffinityTerm(WEB, ZONE, namespace_selector=RED)
AFFINITIES = st.sampled_from(
    [
        None,
        None,
        PodAffinity(required=(NEAR,)),
        PodAffinity(required=(NEAR_RED,)),
        PodAffinity(anti_required=(APART,)),
        PodAffinity(anti_required=(NEAR_RED,), preferred=((5, NEAR),)),
    ]
)
SPREADS = st.sampled_from(
    [
        (),
        (),
        (SpreadConstraint(ZONE, 1, True, WEB),),
        (SpreadConstraint(ZONE, 1, True, NOT_DB, honor_taints=True, min_domains=2),),
    ]
)
PODS = st.builds(
    lambda number, cpu, selector, ports, devices, labels, affinity, spread, priority: pod(
        f"p{number}",
        cpu=cpu,
        node_selector=selector,
        host_ports=ports,
        devices=devices,
        labels=labels,
        pod_affinity=affinity,
        spread=spread,
        priority=priority,
    ),
    st.integers(0, 5),
    st.sampled_from([100, 600, 2000]),
    st.sampled_from([{}, {"disk": "ssd"}]),
    st.sampled_from([(), (HostPort("TCP", "0.0.0.0", 80),)]),
    st.sampled_from([None, DeviceRequest(1, 1000), DeviceRequest(1, 400), DeviceRequest(2, 1000)]),
    st.sampled_from([{}, {"app": "web"}, {"app": "db"}]),
    AFFINITIES,
    SPREADS,
    st.sampled_from([0, 0, 10]),
)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("node"), NODES),
        st.tuples(st.just("no-node"), st.sampled_from(NAMES)),
        st.tuples(st.just("hardware"), st.sampled_from(NAMES), st.integers(0, 3)),
        st.tuples(st.just("pod"), PODS),
        st.tuples(st.just("no-pod"), st.integers(0, 5)),
        st.tuples(st.just("going"), st.integers(0, 5)),
        st.tuples(st.just("told"), st.integers(0, 5)),
        st.tuples(st.just("namespace"), st.sampled_from([{}, {"team": "red"}])),
        st.tuples(st.just("answer"), st.sampled_from(list(BindVerdict))),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 3.0, 12.0])),
    ),
    max_size=40,
)
# Two zones with a node each and room for all: what decides is who else is where.
SOCIAL_NODES = (node("n1", cpu=1000, labels={ZONE: "a"}), node("n2", cpu=1000, labels={ZONE: "b"}))
SOCIAL_PODS = st.builds(
    lambda number, cpu, labels, affinity, spread, priority: pod(
        f"p{number}", cpu=cpu, labels=labels, pod_affinity=affinity, spread=spread, priority=priority
    ),
    st.integers(0, 5),
    st.sampled_from([100, 100, 700]),
    st.sampled_from([{"app": "web"}, {"app": "web"}, {"app": "db"}]),
    AFFINITIES,
    SPREADS,
    st.sampled_from([0, 0, 10, 20]),
)
SOCIAL_MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), SOCIAL_PODS),
        st.tuples(st.just("pod"), SOCIAL_PODS),
        st.tuples(st.just("no-pod"), st.integers(0, 5)),
        st.tuples(st.just("going"), st.integers(0, 5)),
        st.tuples(st.just("told"), st.integers(0, 5)),
        st.tuples(st.just("node"), st.sampled_from(SOCIAL_NODES)),
        st.tuples(st.just("node"), st.sampled_from([replace(item, unschedulable=True) for item in SOCIAL_NODES])),
        st.tuples(st.just("no-node"), st.sampled_from(("n1", "n2"))),
        st.tuples(st.just("namespace"), st.sampled_from([{}, {"team": "red"}])),
        st.tuples(st.just("answer"), st.sampled_from(list(BindVerdict))),
        st.tuples(st.just("wait"), st.just(12.0)),
    ),
    min_size=6,
    max_size=40,
)


class World:
    """The cluster that the machine is told of, and what it has been told."""

    def __init__(self) -> None:
        self.machine = Machine([default_profile()], seed=3)
        self.nodes: dict[str, NodeView] = {}
        self.hardware: dict[str, TopologyView] = {}
        self.pods: dict[str, PodView] = {}
        self.binds: list[Bind] = []
        self.nominations: dict[str, str] = {}
        self.actions: list[object] = []
        self.now = 0.0
        self.uids = 0
        self.machine.step(LeadershipChanged(leading=True), 0.0)

    def play(self, move: tuple[object, ...]) -> None:
        match move:
            case ("node", NodeView() as new):
                self._step(NodeChanged(self.nodes.get(new.name), new))
                self.nodes[new.name] = new
            case ("no-node", str(name)) if name in self.nodes:
                self._step(NodeChanged(self.nodes.pop(name), None))
            case ("hardware", str(name), int(gpus)):
                self.hardware[name] = topology(name, gpus)
                self._step(TopologyChanged(name, self.hardware[name]))
            case ("pod", PodView() as new) if new.name not in self.pods:
                self.uids += 1
                made = replace(new, uid=f"uid-{self.uids}")
                self.pods[new.name] = made
                self._step(PodChanged(None, made))
            case ("no-pod", int(number)) if f"p{number}" in self.pods:
                self._step(PodChanged(self.pods.pop(f"p{number}"), None))
            case ("going", int(number)) if f"p{number}" in self.pods:
                self._change(f"p{number}", deleting=True)
            case ("told", int(number)) if f"p{number}" in self.pods:
                # The store learns what the machine has decided about the pod's nomination.
                self._change(f"p{number}", nominated_node_name=self.nominations.get(self.pods[f"p{number}"].uid, ""))
            case ("namespace", dict(labels)):
                self._step(NamespaceChanged("default", labels))
            case ("answer", BindVerdict() as verdict) if self.binds:
                self._answer(self.binds.pop(0), verdict)
            case ("wait", float(seconds)):
                self.now += seconds
        self.settle()

    def _change(self, name: str, **changes: object) -> None:
        old = self.pods[name]
        self.pods[name] = replace(old, **changes)  # type: ignore[arg-type]
        self._step(PodChanged(old, self.pods[name]))

    def _answer(self, bind: Bind, verdict: BindVerdict) -> None:
        current = self.pods.get(bind.pod.name)
        there = current is not None and current.uid == bind.pod.uid
        if verdict is BindVerdict.BOUND and there:
            bound = placed(current, bind.node_name)
            self.pods[bind.pod.name] = bound
            self._step(BindDone(bind.pod.uid, verdict))
            self._step(PodChanged(current, bound))
        else:
            # Settled is said only of pods that are gone.
            self._step(BindDone(bind.pod.uid, BindVerdict.LOST if there else BindVerdict.SETTLED))

    def _step(self, event: object) -> None:
        self.actions += self.machine.step(event, self.now)  # type: ignore[arg-type]

    def settle(self) -> None:
        while True:
            actions = self.machine.step(Tick(), self.now)
            self.actions += [action for action in actions if isinstance(action, Bind | Attempted)]
            self.binds += [action for action in actions if isinstance(action, Bind)]
            for action in actions:
                if isinstance(action, Nominate):
                    self.nominations[action.pod.uid] = action.node_name
                elif isinstance(action, Evict):
                    for victim in action.victims:
                        if self.pods.get(victim.name, victim).uid == victim.uid and victim.name in self.pods:
                            self._change(victim.name, deleting=True, preempted=True)
            if not any(isinstance(action, Attempted) for action in actions):
                return

    def sleepers(self) -> list[str]:
        """Pods that wait for an event although there is a place for them."""
        found = []
        for queued in self.machine.queue.waiting():
            decision = Cycle(default_profile(), seed=3).run(queued.pod, self.machine.nodes)
            if decision.node_name:
                found.append(f"{queued.pod.name} sleeps, but fits {decision.node_name}")
        return found


def columns(table: NodeTable, name: str) -> list[object]:
    row = table.rows[name]
    return [
        {key: int(column[row]) for key, column in table.requested.items() if column[row]},
        int(table.nonzero_cpu[row]),
        int(table.nonzero_memory[row]),
        [int(free) for free in table.device_free[row][: table.device_count[row]]],
        {key: rows[row] for key, rows in sorted(table.ports.items()) if row in rows},
    ]


def fresh_table(world: World) -> NodeTable:
    table = NodeTable()
    for name, view in world.hardware.items():
        table.put_topology(name, view)
    for held in [held for pods in world.machine.nodes.held.values() for held in pods.values()]:
        table.hold(held)
    for view in world.nodes.values():
        table.put_node(view)
    return table


@settings(max_examples=300, deadline=None)
@given(MOVES)
def test_nobody_sleeps_who_could_be_placed(moves: list[tuple[object, ...]]) -> None:
    world = World()
    for move in moves:
        world.play(move)
        assert not world.sleepers()


@settings(max_examples=500, deadline=None)
@given(SOCIAL_MOVES)
def test_nobody_sleeps_among_pods_that_seek_and_shun_each_other(moves: list[tuple[object, ...]]) -> None:
    world = World()
    for view in SOCIAL_NODES:
        world.play(("node", view))
    for move in moves:
        world.play(move)
        assert not world.sleepers()


@settings(max_examples=200, deadline=None)
@given(MOVES)
def test_the_table_is_the_one_that_a_fresh_look_would_make(moves: list[tuple[object, ...]]) -> None:
    world = World()
    for move in moves:
        world.play(move)
    fresh = fresh_table(world)
    assert sorted(fresh.rows) == sorted(world.machine.nodes.rows)
    for name in fresh.rows:
        assert columns(world.machine.nodes, name) == columns(fresh, name)
    assert int(np.count_nonzero(world.machine.nodes.alive)) == len(fresh.rows)


@settings(max_examples=100, deadline=None)
@given(MOVES)
def test_the_same_events_give_the_same_actions(moves: list[tuple[object, ...]]) -> None:
    first, second = World(), World()
    for move in moves:
        first.play(move)
        second.play(move)
    assert repr(first.actions) == repr(second.actions)
