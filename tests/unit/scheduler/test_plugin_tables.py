"""Tables of single plugins: arguments and corners that no recorded cluster state has."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler.core.filtering import Filtering
from scheduler.core.framework import CycleState, Plugin, no_stopwatch
from scheduler.core.profile import Profile
from scheduler.core.scoring import score_nodes
from scheduler.core.table import Held, NodeTable
from scheduler.plugins.image_locality import ImageLocality, normalized_name
from scheduler.plugins.inter_pod_affinity import InterPodAffinity
from scheduler.plugins.node_affinity import NodeAffinity
from scheduler.plugins.node_resources import (
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    RATIO,
    NodeResourcesBalancedAllocation,
    NodeResourcesFit,
    ratio_scores,
)
from scheduler.plugins.pod_topology_spread import PodTopologySpread
from scheduler.plugins.queue_plugins import PrioritySort
from scheduler.plugins.taints import tolerates
from services.model.cluster import ServiceView
from services.model.node import Image, NodeView, Taint
from services.model.pod import NodeAffinity as Terms
from services.model.pod import (
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodView,
    Requirement,
    SpreadConstraint,
    Toleration,
)
from tests.transcripts.test_scheduler_machine import HOSTNAME, WEB_PODS, ZONE, node, placed, pod, web

MIB = 1 << 20


def table_of(*nodes: NodeView, pods: tuple[tuple[PodView, str], ...] = ()) -> NodeTable:
    table = NodeTable()
    for view in nodes:
        table.put_node(view)
    for number, (view, name) in enumerate(pods):
        table.hold(Held(replace(view, uid=f"uid-{number}"), name, ()))
    return table


def scores_of(plugin: Plugin, asking: PodView, table: NodeTable) -> dict[str, int] | None:
    """By node; None where the plugin skips."""
    mask = table.alive[: table.size]
    rows = np.flatnonzero(mask)
    profile = Profile("default-scheduler", [PrioritySort(), plugin], {})
    scores = score_nodes(profile, CycleState(), asking, table, mask, rows, no_stopwatch)
    assert not scores.error
    if not scores.columns:
        return None
    part = scores.columns[0][1]
    values = [part] * len(rows) if isinstance(part, int) else part.tolist()
    return {table.names[row]: value for row, value in zip(rows.tolist(), values, strict=True)}


def refusals_of(plugin: Plugin, asking: PodView, table: NodeTable) -> dict[str, str]:
    filtering = Filtering(Profile("default-scheduler", [PrioritySort(), plugin], {}), asking, table, no_stopwatch)
    filtering.run()
    found = {name: filtering.verdict(row) for name, row in table.rows.items()}
    return {name: status.reasons[0] for name, status in found.items() if status is not None}


@pytest.mark.parametrize(
    ("operator", "wanted", "there", "compares", "expected"),
    [
        ("Lt", "10", "9", True, True),
        ("Lt", "10", "10", True, False),
        ("Gt", "10", "11", True, True),
        ("Gt", "-3", "-2", True, True),
        ("Gt", "10", "11", False, False),
        # Only canonical integers are numbers.
        ("Gt", "10", "011", True, False),
        ("Gt", "10", "+11", True, False),
        ("Gt", "010", "11", True, False),
        ("Lt", "10", "", True, False),
        ("Gt", "0", str(1 << 63), True, False),
        ("Lt", "0", "-0", True, False),
    ],
)
def test_tolerations_compare_numbers_only_where_the_feature_is_on(
    operator: str, wanted: str, there: str, compares: bool, expected: bool
) -> None:
    toleration = Toleration("k", operator, wanted, "NoSchedule", None)
    assert tolerates(toleration, Taint("k", there, "NoSchedule"), comparison_operators=compares) is expected


SSD = NodeSelectorTerm((Requirement("disk", "In", ("ssd",)),), ())


def test_added_affinity_holds_for_every_pod_and_has_its_own_reason() -> None:
    table = table_of(node("n1", labels={"disk": "ssd"}), node("n2"))
    demanding = NodeAffinity(Terms((SSD,), ()))
    reason = "node(s) didn't match scheduler-enforced node affinity"
    assert refusals_of(demanding, pod("any"), table) == {"n2": reason}
    picky = pod("picky", node_selector={"disk": "hdd"})
    mismatch = "node(s) didn't match Pod's node affinity/selector"
    assert refusals_of(demanding, picky, table) == {"n1": mismatch, "n2": reason}


def test_added_preferences_score_every_pod() -> None:
    table = table_of(node("n1", labels={"disk": "ssd"}), node("n2"))
    assert scores_of(NodeAffinity(), pod("any"), table) is None
    preferring = NodeAffinity(Terms(None, ((10, SSD),)))
    assert scores_of(preferring, pod("any"), table) == {"n1": 100, "n2": 0}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (((0, 0), (100, 10)), {0: 0, 1: 1, 50: 50, 100: 100}),
        (((0, 10), (100, 0)), {0: 100, 1: 99, 50: 50, 100: 0}),
        # Falling: towards zero, so -100 * 1 // 3 is -33.
        (((0, 10), (3, 0)), {0: 100, 1: 67, 2: 34, 3: 0, 100: 0}),
        (((40, 3), (75, 10)), {0: 30, 40: 30, 41: 32, 75: 100, 100: 100}),
    ],
)
def test_a_shape_is_straight_between_its_points_in_integers(
    shape: tuple[tuple[int, int], ...], expected: dict[int, int]
) -> None:
    scores = ratio_scores(shape)
    assert {share: int(scores[share]) for share in expected} == expected


@pytest.mark.parametrize("strategy", [LEAST_ALLOCATED, MOST_ALLOCATED, RATIO])
def test_scores_of_rows_that_changed_are_those_of_all_rows_anew(strategy: str) -> None:
    shape = ((0, 0), (60, 10), (100, 3)) if strategy == RATIO else ()
    kept = [NodeResourcesFit(strategy, shape=shape), NodeResourcesBalancedAllocation()]
    table = table_of(*[node(f"n{number}", cpu=1000 + 100 * number) for number in range(40)])
    asking = pod("asking", cpu=150)
    asking = replace(asking, spec=replace(asking.spec, requests={"cpu": 150, "memory": 1 << 30}))
    for step in range(60):
        for held in range(step % 25):
            name = f"n{(7 * step + held) % 40}"
            table.hold(Held(pod(f"p{step}-{held}", uid=f"{step}-{held}", cpu=90 + step), name, ()))
        if step % 10 == 9:
            table.put_node(node(f"n{step % 40}", cpu=5000))
        if step % 20 == 19:
            table.remove_node(f"n{step % 37}")
        anew = [NodeResourcesFit(strategy, shape=shape), NodeResourcesBalancedAllocation()]
        for old, new in zip(kept, anew, strict=True):
            assert scores_of(old, asking, table) == scores_of(new, asking, table)
        assert refusals_of(kept[0], asking, table) == refusals_of(anew[0], asking, table)


@pytest.mark.parametrize(
    "resources", [("cpu",), ("cpu", "memory"), ("cpu", "memory", "pods"), ("cpu", "memory", "none")]
)
def test_balance_over_any_resources_is_the_same_for_one_node_and_for_all(resources: tuple[str, ...]) -> None:
    plugin = NodeResourcesBalancedAllocation(resources)
    table = table_of(*[node(f"n{number}", cpu=1000 + 10 * number) for number in range(30)])
    table.put_node(node("bare", allocatable={"cpu": 1000}))
    for number in range(30):
        table.hold(Held(pod(f"p{number}", cpu=30 * number), f"n{number}", ()))
    asking = pod("asking", cpu=100)
    asking = replace(asking, spec=replace(asking.spec, requests={"cpu": 100, "memory": 1 << 30}))
    scores = scores_of(plugin, asking, table)
    assert scores is not None
    assert scores == {name: plugin.score_one(CycleState(), asking, table, row) for name, row in table.rows.items()}


def test_three_resources_are_balanced_by_their_standard_deviation() -> None:
    table = table_of(node("n1", allocatable={"cpu": 100, "memory": 100, "x": 100}))
    asking = pod("asking")
    asking = replace(asking, spec=replace(asking.spec, requests={"cpu": 100, "memory": 50}))
    # Fractions 1, 0.5 and 0: deviation sqrt(1/6), so 59 after and 100 before.
    assert scores_of(NodeResourcesBalancedAllocation(("cpu", "memory", "x")), asking, table) == {"n1": 54}


def test_ignored_extended_resources_are_not_asked_for() -> None:
    table = table_of(node("n1"))
    asking = pod("asking")
    asking = replace(asking, spec=replace(asking.spec, requests={"cpu": 1, "example.com/nic": 1, "other.io/x": 1}))
    assert refusals_of(NodeResourcesFit(), asking, table) == {"n1": "Insufficient example.com/nic"}
    assert refusals_of(NodeResourcesFit(ignored=("example.com/nic",)), asking, table) == {
        "n1": "Insufficient other.io/x"
    }
    both = NodeResourcesFit(ignored=("example.com/nic",), ignored_groups=("other.io",))
    assert refusals_of(both, asking, table) == {}
    # Not the native ones.
    assert "n1" in refusals_of(NodeResourcesFit(ignored=("cpu",)), pod("big", cpu=9000), table)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("app", "app:latest"),
        ("app:v1", "app:v1"),
        ("host:5000/app", "host:5000/app:latest"),
        ("host:5000/app:v1", "host:5000/app:v1"),
        ("app@sha256:0123", "app@sha256:0123"),
    ],
)
def test_an_image_without_a_tag_is_its_latest(image: str, name: str) -> None:
    assert normalized_name(image) == name


def test_an_image_counts_by_its_size_and_by_the_share_of_nodes_that_have_it() -> None:
    big = Image(("app:v1", "app@sha256:01"), 1000 * MIB)
    table = table_of(node("n1", images=(big,)), node("n2"))
    # Half of the nodes have it: 500 MiB of at most 1000, of which 23 do not count.
    assert scores_of(ImageLocality(), pod("p", images=("app:v1",)), table) == {"n1": 48, "n2": 0}
    small = table_of(node("n1", images=(Image(("app:v1",), 40 * MIB),)), node("n2"))
    assert scores_of(ImageLocality(), pod("p", images=("app:v1",)), small) == {"n1": 0, "n2": 0}


def test_an_image_that_leaves_a_node_no_longer_counts_there() -> None:
    big = Image(("app:v1",), 800 * MIB)
    table = table_of(node("n1", images=(big,)), node("n2", images=(big,)))
    table.put_node(node("n2"))
    table.put_node(node("n3", images=(big,)))
    table.remove_node("n1")
    assert scores_of(ImageLocality(), pod("p", images=("app:v1",)), table) == {"n2": 0, "n3": 38}
    table.put_node(node("n3"))
    assert table.images.by_name == {}


def service(name: str, **selector: str) -> ServiceView:
    return ServiceView("default", name, selector)


def test_pods_of_a_service_are_spread_by_default_and_others_not() -> None:
    table = table_of(
        node("n1", labels={HOSTNAME: "n1", ZONE: "a"}),
        node("n2", labels={HOSTNAME: "n2", ZONE: "b"}),
        pods=((placed(web("there"), "n1"), "n1"),),
    )
    plugin = PodTopologySpread()
    assert scores_of(plugin, web("asking"), table) is None
    table.put_service("default", "web", service("web", app="web"))
    spread = scores_of(plugin, web("asking"), table)
    assert spread is not None
    assert spread["n2"] == 100 > spread["n1"]
    assert scores_of(plugin, pod("asking"), table) is None
    table.put_service("default", "web", None)
    assert scores_of(plugin, web("asking"), table) is None


def test_own_defaults_may_demand_and_do_not_hold_for_pods_with_constraints_of_their_own() -> None:
    table = table_of(node("n1"), node("n2"), pods=((placed(web("there"), "n1"), "n1"),))
    table.put_service("default", "web", service("web", app="web"))
    plugin = PodTopologySpread((SpreadConstraint(HOSTNAME, 1, True, None),))
    assert list(refusals_of(plugin, web("asking"), table)) == ["n1"]
    own = (SpreadConstraint(HOSTNAME, 5, True, WEB_PODS),)
    assert refusals_of(plugin, web("asking", spread=own), table) == {}


def test_the_hard_weight_counts_required_terms_of_others_and_0_turns_them_off() -> None:
    near = PodAffinity(required=(PodAffinityTerm(WEB_PODS, HOSTNAME),))
    table = table_of(node("n1"), node("n2"), pods=((placed(pod("fan", pod_affinity=near), "n1"), "n1"),))
    assert scores_of(InterPodAffinity(), web("star"), table) == {"n1": 100, "n2": 0}
    assert scores_of(InterPodAffinity(hard_weight=0), web("star"), table) is None


def test_preferences_of_others_can_be_ignored_for_pods_that_have_none() -> None:
    near = PodAffinity(preferred=((5, PodAffinityTerm(WEB_PODS, HOSTNAME)),))
    table = table_of(node("n1"), node("n2"), pods=((placed(pod("fan", pod_affinity=near), "n1"), "n1"),))
    ignoring = InterPodAffinity(ignore_preferred_of_others=True)
    assert scores_of(InterPodAffinity(), web("star"), table) == {"n1": 100, "n2": 0}
    assert scores_of(ignoring, web("star"), table) is None
    assert scores_of(ignoring, web("star", pod_affinity=near), table) == {"n1": 100, "n2": 0}


def test_match_label_keys_are_merged_once() -> None:
    """A selector that the API server has merged already is left as it is, also if the pod's label changed since."""
    keys = PodAffinityTerm(WEB_PODS, HOSTNAME, match_label_keys=("rev",), mismatch_label_keys=("team",))
    table = table_of(
        node("n1"),
        node("n2"),
        pods=(
            (replace(placed(web("same"), "n1"), labels={"app": "web", "rev": "2", "team": "b"}), "n1"),
            (replace(placed(web("old"), "n2"), labels={"app": "web", "rev": "1", "team": "b"}), "n2"),
        ),
    )
    asking = replace(
        web("asking", pod_affinity=PodAffinity(required=(keys,))), labels={"app": "web", "rev": "2", "team": "a"}
    )
    assert list(refusals_of(InterPodAffinity(), asking, table)) == ["n2"]
    merged = replace(keys, selector=(*WEB_PODS, Requirement("rev", "In", ("1",))))
    asking = replace(asking, spec=replace(asking.spec, pod_affinity=PodAffinity(required=(merged,))))
    assert list(refusals_of(InterPodAffinity(), asking, table)) == ["n1"]
