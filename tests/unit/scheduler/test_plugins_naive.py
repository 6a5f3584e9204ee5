"""The plugins that look at other pods decide as a plain reading of the rules does, whatever came and went before."""

import random
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.filtering import Filtering
from scheduler.core.framework import CycleState, no_stopwatch
from scheduler.core.node_info import NodeInfo
from scheduler.core.profile import Profile
from scheduler.core.scoring import score_nodes
from scheduler.core.table import Held, NodeTable
from scheduler.plugins.inter_pod_affinity import InterPodAffinity
from scheduler.plugins.pod_topology_spread import PodTopologySpread
from scheduler.plugins.queue_plugins import PrioritySort
from services.model.node import NodeView, Taint
from services.model.pod import PodAffinity, PodAffinityTerm, PodView, Requirement, SpreadConstraint, Toleration
from tests.transcripts.test_scheduler_machine import HOSTNAME, ZONE, node, pod
from tests.unit.scheduler import naive

NAMES = ("n1", "n2", "n3", "n4", "n5")
NAMESPACES = ("default", "default", "red", "blue")
MOVES = 30
WEB = (Requirement("app", "In", ("web",)),)
SELECTORS = (
    WEB,
    WEB,
    WEB,
    (Requirement("app", "In", ("web", "db")),),
    (Requirement("app", "NotIn", ("db",)), Requirement("tier", "Exists", ())),
    (Requirement("tier", "DoesNotExist", ()),),
    (),
    None,
)
NAMESPACE_SELECTORS = (None, None, (), (Requirement("team", "In", ("a",)),), (Requirement("team", "DoesNotExist", ()),))
LABELS = ({"app": "web"}, {"app": "web"}, {"app": "web", "tier": "front"}, {"app": "db"}, {})


class Dice:
    """Dense clusters from a seed: most pods mean one another."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pick = self.rng.choice

    def often(self, chance: float) -> bool:
        return self.rng.random() < chance

    def term(self) -> PodAffinityTerm:
        namespaces = self.pick((frozenset(), frozenset(), frozenset(("red",)), frozenset(("default", "blue"))))
        return PodAffinityTerm(self.pick(SELECTORS), self.key(), namespaces, self.pick(NAMESPACE_SELECTORS))

    def key(self) -> str:
        return self.pick((HOSTNAME, ZONE, ZONE, "rack"))

    def terms(self, chance: float) -> tuple[PodAffinityTerm, ...]:
        return tuple(self.term() for _ in range(2) if self.often(chance))

    def weighted(self) -> tuple[tuple[int, PodAffinityTerm], ...]:
        return tuple((self.pick((1, 7, 50)), term) for term in self.terms(0.4))

    def spread(self) -> tuple[SpreadConstraint, ...]:
        return tuple(
            SpreadConstraint(
                key,
                self.pick((1, 1, 2, 3)),
                self.often(0.6),
                self.pick(SELECTORS),
                self.pick((1, 1, 2, 3)),
                self.often(0.5),
                self.often(0.5),
            )
            for key in (HOSTNAME, ZONE, "rack")
            if self.often(0.4)
        )

    def pod(self) -> PodView:
        affinity = PodAffinity(self.terms(0.2), self.terms(0.15), self.weighted(), self.weighted())
        made = pod(
            "p",
            labels=self.pick(LABELS),
            pod_affinity=affinity if self.often(0.5) else None,
            spread=self.spread(),
            node_selector=self.pick(({}, {}, {"disk": "ssd"})),
            tolerations=(Toleration("dedicated", "Exists", "", "", None),) if self.often(0.5) else (),
        )
        return replace(made, namespace=self.pick(NAMESPACES), deleting=self.often(0.2))

    def node(self, name: str) -> NodeView:
        labels = {
            **({HOSTNAME: name} if self.often(0.9) else {}),
            **({ZONE: self.pick(("a", "b"))} if self.often(0.9) else {}),
            **({"rack": self.pick(("1", "2"))} if self.often(0.7) else {}),
            **({"disk": "ssd"} if self.often(0.5) else {}),
        }
        return node(name, labels=labels, taints=(Taint("dedicated", "x", "NoSchedule"),) if self.often(0.3) else ())


class Cluster:
    """A table, and beside it plainly what it has been told."""

    def __init__(self, asking: PodView) -> None:
        self.asking = asking
        self.table = NodeTable()
        self.nodes: dict[str, NodeView] = {}
        self.pods: list[Held] = []
        self.namespaces: dict[str, dict[str, str]] = {}
        self.count = 0
        self.plugins = Profile("default-scheduler", [PrioritySort(), PodTopologySpread(), InterPodAffinity()], {})

    def play(self, dice: Dice) -> None:
        """Pods come and go, nodes change or go and come, namespaces get labels; and somebody asks in between, so that what
        is kept is brought up to date rather than counted anew.
        """
        name, chance = dice.pick(NAMES), dice.rng.random()
        if chance < 0.5:
            self.count += 1
            held = Held(replace(dice.pod(), uid=f"uid-{self.count}"), name, ())
            self.pods.append(held)
            self.table.hold(held)
        elif chance < 0.6 and self.pods:
            held = self.pods.pop(dice.rng.randrange(len(self.pods)))
            self.table.release(held.node_name, held.pod.uid)
        elif chance < 0.7:
            self.nodes[name] = dice.node(name)
            self.table.put_node(self.nodes[name])
        elif chance < 0.75 and name in self.nodes and len(self.nodes) > 1:
            del self.nodes[name]
            self.table.remove_node(name)
        elif chance < 0.85:
            namespace = dice.pick(NAMESPACES)
            self.namespaces[namespace] = dice.pick(({}, {"team": "a"}))
            self.table.pods.put_namespace(namespace, self.namespaces[namespace])
        else:
            self.ask()

    def ask(self) -> None:
        filtering = Filtering(self.plugins, self.asking, self.table, no_stopwatch)
        rows = np.flatnonzero(filtering.run())
        if len(rows):
            feasible = np.zeros(self.table.size, dtype=np.bool_)
            feasible[rows] = True
            score_nodes(self.plugins, filtering.state, self.asking, self.table, feasible, rows, no_stopwatch)

    def naive(self) -> naive.Naive:
        placed = tuple((held.pod, held.node_name) for held in self.pods if held.node_name in self.nodes)
        return naive.Naive(self.nodes, placed, self.namespaces)


def cluster_of(seed: int) -> tuple[Cluster, Dice]:
    dice = Dice(seed)
    cluster = Cluster(dice.pod())
    for name in NAMES[:4]:
        cluster.nodes[name] = dice.node(name)
        cluster.table.put_node(cluster.nodes[name])
    for _ in range(MOVES):
        cluster.play(dice)
    return cluster, dice


SEEDS = st.integers(0, 1 << 32)


@settings(max_examples=250, deadline=None)
@given(SEEDS)
def test_filters_reject_what_a_plain_reading_rejects(seed: int) -> None:
    cluster, _ = cluster_of(seed)
    asking = cluster.asking
    world = cluster.naive()
    filtering = Filtering(cluster.plugins, asking, cluster.table, no_stopwatch)
    feasible = filtering.run()
    for name, view in cluster.nodes.items():
        row = cluster.table.rows[name]
        expected = naive.spread_refusal(world, asking, view) or naive.affinity_refusal(world, asking, view)
        status = filtering.verdict(row)
        said = " ".join(status.reasons) if status is not None else ""
        assert bool(feasible[row]) == (not expected), (name, expected, said)
        assert expected in said


@settings(max_examples=250, deadline=None)
@given(SEEDS)
def test_scores_are_those_of_a_plain_reading(seed: int) -> None:
    cluster, _ = cluster_of(seed)
    asking = cluster.asking
    table, world = cluster.table, cluster.naive()
    mask = table.alive[: table.size]
    rows = np.flatnonzero(mask)
    names = [table.names[row] for row in rows]
    scores = score_nodes(cluster.plugins, CycleState(), asking, table, mask, rows, no_stopwatch)
    assert not scores.error
    ours = {
        plugin: dict.fromkeys(names, part) if isinstance(part, int) else dict(zip(names, part.tolist(), strict=True))
        for plugin, part, _ in scores.columns
    }
    nothing = dict.fromkeys(names, 0)
    assert ours.get("InterPodAffinity", nothing) == naive.affinity_scores(world, asking, names)
    if any(not item.hard for item in asking.spec.spread):
        assert ours["PodTopologySpread"] == naive.spread_scores(world, asking, names)
    else:
        assert "PodTopologySpread" not in ours


@settings(max_examples=250, deadline=None)
@given(SEEDS)
def test_a_question_about_one_node_is_answered_as_if_it_were_so(seed: int) -> None:
    """With one pod more on a node, and with that pod taken away again, as when it was really there and when it was not."""
    cluster, dice = cluster_of(seed)
    asking = cluster.asking
    name, coming = dice.pick(sorted(cluster.nodes)), dice.pod()
    # A pod that is being deleted, and {} as a selector, are counted otherwise in questions (kube-scheduler 1.36).
    coming = replace(coming, uid="coming", deleting=False)
    asking = replace(
        asking, spec=replace(asking.spec, spread=tuple(item for item in asking.spec.spread if item.selector != ()))
    )
    profile, table = cluster.plugins, cluster.table
    row = table.rows[name]
    before = Filtering(profile, asking, table, no_stopwatch)
    fits_before = bool(before.run()[row])
    state, info = before.state.clone(), NodeInfo(table, row)
    asked = {plugin.name for plugin in profile.filter} - before.skipped
    held = info.admit(coming)
    info.remove(held)
    before.add(state, info, held)
    with_it = before.fits(state, info).ok
    before.remove(state, info, held)
    assert before.fits(state, info).ok == fits_before
    table.hold(Held(coming, name, ()))
    after = Filtering(profile, asking, table, no_stopwatch)
    fits_after = bool(after.run()[row])
    # What PreFilter skipped is not asked again, even where the pod that comes would change that.
    if asked == {plugin.name for plugin in profile.filter} - after.skipped:
        assert with_it == fits_after
