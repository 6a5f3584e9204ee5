"""A cycle that goes by the one before decides as a whole cycle does, whatever happens between two pods."""

import random
from dataclasses import replace

import pytest

from scheduler.core.cycle import Decision
from scheduler.core.framework import Stopwatch
from scheduler.core.machine import (
    Attempted,
    LeadershipChanged,
    Machine,
    NodeChanged,
    PodChanged,
    ServiceChanged,
    Tick,
    TopologyChanged,
)
from scheduler.core.profile import Profile
from scheduler.core.repeats import Last, Repeats
from scheduler.core.table import NodeTable
from scheduler.plugins.registry import default_profile
from services.model.cluster import ServiceView
from services.model.devices import DeviceRequest
from services.model.node import NodeView, Taint
from services.model.pod import (
    HostPort,
    PodAffinity,
    PodAffinityTerm,
    PodSpecView,
    PodView,
    Requirement,
    SpreadConstraint,
)
from tests.transcripts.test_scheduler_machine import node, pod, topology

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
OF_A = (Requirement("app", "In", ("a",)),)


class Never(Repeats):
    """The twin that always runs the whole cycle."""

    def find(self, _pod: PodView, _nodes: NodeTable, _lap: Stopwatch) -> Last | None:
        return None


class Counting(Repeats):
    found = 0

    def find(self, pod: PodView, nodes: NodeTable, lap: Stopwatch) -> Last | None:
        last = super().find(pod, nodes, lap)
        self.found += last is not None
        return last


def specs() -> list[PodSpecView]:
    plain = pod("x", cpu=20).spec
    return [
        plain,
        plain,
        pod("y", cpu=50).spec,
        replace(plain, devices=DeviceRequest(1, 1000), requests={**plain.requests, "nvidia.com/gpu": 1}),
        replace(plain, host_ports=(HostPort(port=80, protocol="TCP", ip="0.0.0.0"),)),
        replace(plain, pod_affinity=PodAffinity(anti_required=(PodAffinityTerm(OF_A, HOST),))),
        replace(plain, pod_affinity=PodAffinity(preferred=((10, PodAffinityTerm(OF_A, ZONE)),))),
        replace(plain, spread=(SpreadConstraint(ZONE, 1, True, OF_A),)),
        replace(plain, priority=100),
    ]


class Twins:
    """Two machines that are told the same; the first may go by the cycle before."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.specs = specs()
        self.repeats = Counting(default_profile())
        self.machines = [self._machine(self.repeats), self._machine(Never(default_profile()))]
        self.nodes: dict[str, NodeView] = {}
        self.bound: list[PodView] = []
        self.now = 0.0
        self.number = 0
        self.tell(LeadershipChanged(leading=True))
        for _ in range(6):
            self.add_node()

    @staticmethod
    def _machine(repeats: Repeats) -> Machine:
        profile: Profile = repeats._profile
        made = Machine([profile], 1)
        made._cycles[profile.scheduler_name]._repeats = repeats
        return made

    def tell(self, event: object) -> None:
        for machine in self.machines:
            machine.step(event, self.now)  # type: ignore[arg-type]

    def add_node(self) -> None:
        self.number += 1
        name = f"n{self.number}"
        labels = {HOST: name, ZONE: f"z{self.number % 3}"}
        self.nodes[name] = node(name, cpu=self.rng.choice((400, 1000)), labels=labels)
        self.tell(NodeChanged(None, self.nodes[name]))
        if self.rng.random() < 0.5:
            self.tell(TopologyChanged(name, topology(name, 4)))

    def change_node(self) -> None:
        name = self.rng.choice(list(self.nodes))
        old = self.nodes[name]
        change = self.rng.choice(
            [
                {"unschedulable": not old.unschedulable},
                {"taints": () if old.taints else (Taint("a", "", "PreferNoSchedule"),)},
                {"allocatable": {**old.allocatable, "cpu": self.rng.choice((300, 1200))}},
            ]
        )
        self.nodes[name] = replace(old, **change)  # type: ignore[arg-type]
        self.tell(NodeChanged(old, self.nodes[name]))

    def add_pods(self) -> None:
        spec = self.rng.choice(self.specs)
        for _ in range(self.rng.randint(1, 6)):
            self.number += 1
            made = pod(f"p{self.number}")
            labels = {"app": self.rng.choice("ab")}
            self.tell(PodChanged(None, replace(made, spec=spec, labels=labels)))

    def remove_pod(self) -> None:
        if self.bound:
            gone = self.bound.pop(self.rng.randrange(len(self.bound)))
            self.tell(PodChanged(gone, None))

    def put_service(self) -> None:
        view = self.rng.choice([None, ServiceView("default", "web", {"app": "a"})])
        self.tell(ServiceChanged("default", "web", view))

    def attempt(self) -> None:
        """Everything that is ready is tried; what is placed counts as bound."""
        while True:
            decided: list[Decision] = []
            tried: list[PodView] = []
            for machine in self.machines:
                actions = machine.step(Tick(), self.now)
                decided += [action.decision for action in actions if isinstance(action, Attempted)]
                tried += [action.pod for action in actions if isinstance(action, Attempted)]
            if not decided:
                return
            assert len(decided) == 2 and decided[0] == decided[1], (tried[0].key, decided)
            if decided[0].node_name:
                self.bound.append(tried[0])


@pytest.mark.parametrize("group", range(4))
def test_decisions_are_those_of_whole_cycles(group: int) -> None:
    found = 0
    for seed in range(group * 20, group * 20 + 20):
        twins = Twins(seed)
        rarely = twins.rng.random() < 0.7
        steps = [twins.add_pods] * 6 + [twins.remove_pod] * 3
        steps += [twins.change_node, twins.add_node, twins.put_service] if not rarely else [twins.put_service]
        twins.specs = twins.rng.choices(twins.specs, k=3)
        for _ in range(40):
            twins.rng.choice(steps)()
            twins.now += twins.rng.choice((0.0, 3.0, 20.0))
            twins.attempt()
        found += twins.repeats.found
    assert found > 100, "cycles that went by the one before"


@pytest.mark.parametrize("change", [{"unschedulable": True}, {"taints": (Taint("a", "", "NoSchedule"),)}])
def test_what_befalls_the_best_node_between_two_equal_pods_counts(change: dict[str, object]) -> None:
    twins = Twins(1)
    plain = pod("x", cpu=20).spec
    where = []
    for number in range(4):
        twins.tell(PodChanged(None, replace(pod(f"q{number}"), spec=plain)))
        twins.attempt()
        name = twins.machines[0]._where[f"uid-q{number}"]
        where.append(name)
        if number == 2:
            # The node that a further pod would take.
            scores = twins.repeats._last
            assert scores is not None
            best = scores.nodes.names[int(scores.rows[int(scores.ranks.argmax())])]
            changed = replace(twins.nodes[best], **change)  # type: ignore[arg-type]
            twins.tell(NodeChanged(twins.nodes[best], changed))
    assert twins.repeats.found == 2
    assert where[3] != best
