"""Reported faults of schedulers, each as a small input with the answer that is right: rows of the list of reported cases.

Faults of the queue go through the whole machine, as they did where they were reported.
"""

from dataclasses import dataclass, field, replace

from protos.orrery.v1.pod_pb2 import Pod
from scheduler.core.machine import (
    Bind,
    BindDone,
    BindVerdict,
    BudgetChanged,
    Evict,
    LeadershipChanged,
    Machine,
    NamespaceChanged,
    NodeChanged,
    PodChanged,
    Tick,
)
from scheduler.plugins.registry import default_profile
from services.model.cluster import BudgetView
from services.model.node import NodeView, Taint
from services.model.pod import (
    HostPort,
    NodeAffinity,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodView,
    Requirement,
    SpreadConstraint,
)
from services.wire.codec import from_json
from services.wire.pod import project_spec
from tests.transcripts.test_scheduler_machine import HOSTNAME, WEB_PODS, ZONE, node, placed, pod, web

ON_HOSTS = SpreadConstraint(HOSTNAME, 1, True, WEB_PODS)
TAINT = Taint("dedicated", "x", "NoSchedule")


@dataclass
class Cluster:
    """A machine that leads; binds are confirmed at once, with the store's own words."""

    now: float = 0.0
    machine: Machine = field(default_factory=lambda: Machine([default_profile()], seed=1))
    evicted: list[str] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)
    confirm: bool = True

    def __post_init__(self) -> None:
        self.machine.step(LeadershipChanged(leading=True), 0.0)

    def nodes(self, *views: NodeView) -> "Cluster":
        for view in views:
            self.machine.step(NodeChanged(None, view), self.now)
        return self

    def pods(self, *views: PodView) -> "Cluster":
        """Comes one after another; those with a node are there already."""
        for view in views:
            self.tell(PodChanged(None, view))
        return self

    def tell(self, event: object) -> "Cluster":
        self.machine.step(event, self.now)  # type: ignore[arg-type]
        return self.settle()

    def wait(self, seconds: float) -> "Cluster":
        self.now += seconds
        return self.settle()

    def settle(self) -> "Cluster":
        while True:
            actions = self.machine.step(Tick(), self.now)
            for action in actions:
                if isinstance(action, Bind):
                    self.where[action.pod.name] = action.node_name
                    if self.confirm:
                        self.machine.step(BindDone(action.pod.uid, BindVerdict.BOUND), self.now)
                        self.machine.step(PodChanged(action.pod, placed(action.pod, action.node_name)), self.now)
                elif isinstance(action, Evict):
                    self.evicted += [f"{victim.name} from {action.node_name}" for victim in action.victims]
            if not any(isinstance(action, Bind) for action in actions) and len(actions) < 2:
                return self

    def pending(self, name: str) -> bool:
        return name not in self.where

    def place(self, name: str) -> str | None:
        queued = self.machine.queue.get(f"uid-{name}")
        return queued.place if queued is not None else None


def replicas(count: int, *constraints: SpreadConstraint) -> list[PodView]:
    return [web(f"r{number}", cpu=1, spread=constraints) for number in range(count)]


def test_r01_a_tainted_node_counts_as_a_domain_unless_taints_are_honoured() -> None:
    """#107464. By default (Ignore) the tainted node is an empty domain that nobody can fill: two run, four pend. With Honor
    it is none: three and three.
    """
    three = (node("n1"), node("n2"), node("n3", taints=(TAINT,)))
    ignoring = Cluster().nodes(*three).pods(*replicas(6, ON_HOSTS))
    assert sorted(ignoring.where.values()) == ["n1", "n2"]
    honouring = Cluster().nodes(*three).pods(*replicas(6, replace(ON_HOSTS, honor_taints=True)))
    assert sorted(honouring.where.values()) == ["n1"] * 3 + ["n2"] * 3


def test_r03_with_fewer_domains_than_min_domains_the_minimum_is_read_as_0() -> None:
    """KEP-3022. Three nodes with a pod each and minDomains 4: a fourth would make a skew of two."""
    cluster = Cluster().nodes(node("n1"), node("n2"), node("n3"))
    cluster.pods(*replicas(4, replace(ON_HOSTS, min_domains=4)))
    assert sorted(cluster.where.values()) == ["n1", "n2", "n3"]
    assert cluster.pending("r3")


def test_r04_a_zone_that_is_tainted_whole_drops_out_of_min_domains() -> None:
    """enhancements#6211. As 1.36 decides: with Honor the zone is no domain, two are fewer than three, and pods pend."""
    zones = [node(name, labels={HOSTNAME: name, ZONE: zone}) for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "c"))]
    zones[2] = replace(zones[2], taints=(TAINT,))
    constraint = SpreadConstraint(ZONE, 1, True, WEB_PODS, min_domains=3, honor_taints=True)
    cluster = Cluster().nodes(*zones).pods(*replicas(3, constraint))
    assert sorted(cluster.where.values()) == ["n1", "n2"]
    assert cluster.pending("r2")


def test_r05_pods_of_another_revision_do_not_count_with_match_label_keys() -> None:
    """#98215. Old pods stand unevenly; with the hash among the keys the new ones are spread by themselves."""
    hashed = replace(ON_HOSTS, match_label_keys=("pod-template-hash",))

    def of(revision: str, view: PodView) -> PodView:
        return replace(view, labels={"app": "web", "pod-template-hash": revision})

    old = [of("old", placed(web(f"old{number}"), "n1")) for number in range(3)]
    new = [of("new", view) for view in replicas(5, hashed)]
    cluster = Cluster().nodes(node("n1"), node("n2"), node("n3")).pods(*old, *new)
    counts = sorted(list(cluster.where.values()).count(name) for name in ("n1", "n2", "n3"))
    assert counts == [1, 2, 2]


NEAR_WEB, NEAR_FRONT = (
    PodAffinityTerm(WEB_PODS, HOSTNAME),
    PodAffinityTerm((Requirement("tier", "In", ("front",)),), HOSTNAME),
)


def test_r07_the_first_pod_rule_holds_unless_a_pod_matches_all_terms() -> None:
    """#62232. A pod that matches one of two terms is not of the kind: the first of its kind may go anywhere."""
    first = replace(
        web("first", pod_affinity=PodAffinity(required=(NEAR_WEB, NEAR_FRONT))),
        labels={"app": "web", "tier": "front"},
    )
    cluster = Cluster().nodes(node("n1")).pods(placed(web("other"), "n1"), first)
    assert cluster.where == {"first": "n1"}


def test_r08_the_first_pod_rule_needs_every_topology_key_and_counts_only_nodes_that_have_them() -> None:
    """#129319, decided as 1.36's code does: a match on a node without the key leaves the rule open, and the pod itself may
    go only where the key is.
    """
    in_zone = PodAffinity(required=(PodAffinityTerm(WEB_PODS, ZONE),))
    cluster = Cluster().nodes(node("bare"), node("n1", labels={HOSTNAME: "n1", ZONE: "a"}))
    cluster.pods(placed(web("there"), "bare"), web("first", pod_affinity=in_zone))
    assert cluster.where == {"first": "n1"}
    nowhere = Cluster().nodes(node("bare")).pods(web("first", pod_affinity=in_zone))
    assert nowhere.pending("first")


def test_r09_a_replacement_wakes_when_the_peer_goes_that_held_it() -> None:
    """#141354. The terminating peer on a cordoned node still draws its replacement there; when it is gone the replacement is
    the first of its kind, and must not wait for the flush.
    """
    near = PodAffinity(required=(NEAR_WEB,))
    peer = replace(placed(web("peer", pod_affinity=near), "n1"), deleting=True)
    cluster = Cluster().nodes(node("n1", unschedulable=True), node("n2"))
    cluster.pods(peer, web("replacement", pod_affinity=near))
    assert cluster.place("replacement") == "unschedulable"
    cluster.wait(2).tell(PodChanged(peer, None))
    assert cluster.where == {"replacement": "n2"}


def test_r11_affinity_by_namespace_wakes_on_pods_and_on_the_namespaces_labels() -> None:
    """#141953. Either the matching pod or the label of its namespace may come last."""
    term = PodAffinityTerm(WEB_PODS, HOSTNAME, namespace_selector=(Requirement("team", "In", ("red",)),))
    follower = pod("follower", pod_affinity=PodAffinity(required=(term,)))
    leader = replace(placed(web("leader"), "n1"), namespace="far")
    pod_last = Cluster().nodes(node("n1")).tell(NamespaceChanged("far", {"team": "red"})).pods(follower)
    assert pod_last.place("follower") == "unschedulable"
    assert pod_last.wait(2).pods(leader).where == {"follower": "n1"}
    label_last = Cluster().nodes(node("n1")).tell(NamespaceChanged("far", {})).pods(leader, follower)
    assert label_last.place("follower") == "unschedulable"
    assert label_last.wait(2).tell(NamespaceChanged("far", {"team": "red"})).where == {"follower": "n1"}


def test_r13_a_pod_that_waits_for_a_label_wakes_when_the_node_is_ready_at_last() -> None:
    """#122284. The node came with the label but not ready (tainted so); what rejected the pod then was the taint."""
    not_ready = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")
    bare, ssd = node("n1", taints=(not_ready,)), node("n1", labels={"disk": "ssd"}, taints=(not_ready,))
    on_ssd = NodeAffinity((NodeSelectorTerm((Requirement("disk", "In", ("ssd",)),), ()),), ())
    cluster = Cluster().nodes(bare).pods(pod("waits", node_affinity=on_ssd))
    assert cluster.place("waits") == "unschedulable"
    cluster.wait(20).tell(NodeChanged(bare, ssd))
    cluster.wait(20).tell(NodeChanged(ssd, replace(ssd, taints=())))
    assert cluster.where == {"waits": "n1"}


def test_r14_a_pod_deleted_and_made_again_in_mid_bind_leaves_nothing_in_flight() -> None:
    """#138316. The answer to the first one's bind names its uid, and touches nothing of the second's."""
    cluster = Cluster(confirm=False).nodes(node("n1")).pods(pod("a", uid="first"))
    cluster.tell(PodChanged(pod("a", uid="first"), pod("a", uid="second")))
    assert cluster.machine.queue.length("flight") == 1
    cluster.tell(BindDone("first", BindVerdict.SETTLED, "GONE")).tell(BindDone("second", BindVerdict.BOUND))
    cluster.tell(PodChanged(pod("a", uid="second"), placed(pod("a", uid="second"), "n1")))
    assert (cluster.machine.queue.length("flight"), cluster.machine.assumed, cluster.machine.pods) == (0, 0, 1)


def test_r15_a_pod_that_is_being_deleted_before_its_cycle_is_skipped() -> None:
    """PR 126962. A finalizer keeps it; it is neither tried nor left in flight, and events stop being kept for it."""
    held = replace(pod("a"), deleting=True)
    cluster = Cluster().nodes(node("n1"))
    cluster.machine.step(PodChanged(None, pod("a")), 0.0)
    cluster.tell(PodChanged(pod("a"), held))
    assert cluster.where == {}
    assert [cluster.machine.queue.length(place) for place in ("active", "flight", "unschedulable")] == [0, 0, 0]


GUARDED = {"app": "guarded"}
BUDGET = BudgetView("default", "guard", (Requirement("app", "In", ("guarded",)),), 0)


def victim(name: str, on: str, priority: int, cpu: int, *, guarded: bool = False) -> PodView:
    return placed(pod(name, cpu=cpu, priority=priority, labels=GUARDED if guarded else {}), on)


def test_r18_with_equal_violations_the_lower_top_priority_decides() -> None:
    """PR 128307. n1 would lose a safe high pod besides; n2 loses only a middling one."""
    cluster = Cluster().nodes(node("n1"), node("n2")).tell(BudgetChanged("default/guard", BUDGET))
    cluster.pods(
        victim("high", "n1", 50, 500),
        victim("low", "n1", 1, 500, guarded=True),
        victim("mid", "n2", 20, 1000, guarded=True),
        pod("preemptor", cpu=1000, priority=100),
    )
    assert cluster.evicted == ["mid from n2"]


def test_r19_only_violations_of_those_who_really_go_count() -> None:
    """#129136, decided as 1.36 does: low could stay on n1, so evicting high there violates nothing; n2 would violate."""
    cluster = Cluster().nodes(node("n1"), node("n2")).tell(BudgetChanged("default/guard", BUDGET))
    cluster.pods(
        victim("high", "n1", 50, 500),
        victim("low", "n1", 1, 500, guarded=True),
        victim("mid", "n2", 20, 1000, guarded=True),
        pod("preemptor", cpu=500, priority=100),
    )
    assert cluster.evicted == ["high from n1"]


def test_r20_budgets_are_debited_here_while_their_status_lags() -> None:
    """#91492. One disruption is allowed: of two guarded pods on n1 only one may go, so n2's unguarded pair goes."""
    cluster = Cluster().nodes(node("n1"), node("n2"))
    cluster.tell(BudgetChanged("default/guard", replace(BUDGET, disruptions_allowed=1)))
    cluster.pods(
        victim("g1", "n1", 1, 500, guarded=True),
        victim("g2", "n1", 1, 500, guarded=True),
        victim("u1", "n2", 5, 500),
        victim("u2", "n2", 5, 500),
        pod("preemptor", cpu=1000, priority=100),
    )
    assert sorted(cluster.evicted) == ["u1 from n2", "u2 from n2"]


def test_r21_the_nomination_counts_before_anybody_goes() -> None:
    """#93505. The victim's replacement comes before the store knows of the nomination, and stays out."""
    low = victim("low", "n1", 1, 1000)
    cluster = Cluster().nodes(node("n1")).pods(low, pod("preemptor", cpu=1000, priority=100))
    assert cluster.evicted == ["low from n1"]
    cluster.tell(PodChanged(low, None)).pods(pod("replacement", cpu=1000, priority=1))
    assert cluster.pending("replacement")
    assert cluster.wait(2).where == {"preemptor": "n1"}


def test_r23_among_equals_the_older_filler_wins_and_a_higher_priority_preempts() -> None:
    """#140984. One slot is freed: the filler that waited longest takes it; a DaemonSet's pod of higher priority preempts."""
    there = victim("there", "n1", 0, 1000)
    cluster = Cluster().nodes(node("n1")).pods(there)
    cluster.pods(*[pod(f"filler-{number}", cpu=1000) for number in range(15)])
    cluster.wait(1).pods(pod("daemon", cpu=1000))
    cluster.wait(20).tell(PodChanged(there, None))
    assert cluster.where == {"filler-0": "n1"}
    cluster.pods(pod("daemon-high", cpu=1000, priority=10))
    assert cluster.evicted == ["filler-0 from n1"]


def test_r24_an_assumption_never_expires_while_its_bind_has_no_answer() -> None:
    """#106361. However long the bind takes, the room is not given to another."""
    cluster = Cluster(confirm=False).nodes(node("n1")).pods(pod("slow", cpu=1000), pod("other", cpu=1000))
    cluster.wait(3600)
    assert cluster.machine.assumed == 1
    assert cluster.pending("other")


def test_r26_a_bind_whose_answer_was_lost_is_settled_by_the_pod_itself() -> None:
    """#96579. The store says where the pod is: nothing is left to do, whatever becomes of the answer."""
    cluster = Cluster(confirm=False).nodes(node("n1")).pods(pod("a"))
    cluster.tell(PodChanged(pod("a"), placed(pod("a"), "n1")))
    assert (cluster.machine.assumed, cluster.machine.queue.get("uid-a")) == (0, None)


def test_r41_a_sidecar_and_overhead_count_beside_the_container() -> None:
    """#127868. One CPU each: three."""
    one = {"requests": {"cpu": "1"}}
    spec = {
        "containers": [{"name": "main", "resources": one}],
        "initContainers": [{"name": "mesh", "restartPolicy": "Always", "resources": one}],
        "overhead": {"cpu": "1"},
    }
    message = from_json({"metadata": {"name": "p"}, "spec": spec}, Pod)
    assert project_spec(message.spec, {}).requests["cpu"] == 3000


def test_r43_a_host_port_of_a_sidecar_is_taken() -> None:
    """#132037. Two pods with the port in a sidecar: the second pends on a cluster of one node."""
    spec = {
        "containers": [{"name": "main"}],
        "initContainers": [
            {"name": "mesh", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 80}]}
        ],
    }
    view = project_spec(from_json({"metadata": {"name": "p"}, "spec": spec}, Pod).spec, {})
    assert view.host_ports == (HostPort("TCP", "0.0.0.0", 80),)
    cluster = Cluster().nodes(node("n1"))
    cluster.pods(replace(pod("one"), spec=view), replace(pod("two"), spec=view))
    assert cluster.where == {"one": "n1"}
