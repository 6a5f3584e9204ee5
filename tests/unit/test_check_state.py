"""Each way in which a stored cluster can be wrong is found, and a sound one is not blamed."""

import json
from collections.abc import Callable

import pytest

from services.lab.check import SCHEDULER_NAMES, CheckResult, summary
from services.lab.check_state import Cluster, verify
from services.lab.check_witness import check
from services.wire.ledger import read_returned, read_taken
from services.wire.node import project_node
from services.wire.pod import PodDecoder
from services.wire.topology import project_topology
from tests.stored_cluster import GPU, GPU_MILLI, StoredCluster, make_node, make_pod, sound_cluster

Spoil = Callable[[StoredCluster], object]


def checked(spoil: Spoil = lambda cluster: None) -> CheckResult:
    return verify(read(spoil))


def read(spoil: Spoil) -> Cluster:
    stored = sound_cluster()
    spoil(stored)
    cluster = Cluster(revision=9)
    for name, node in stored.nodes.items():
        cluster.at(name).node = project_node(node, "")
    for name, topology in stored.topologies.items():
        cluster.at(name).devices = project_topology(topology).devices
    for name, taken in stored.taken.items():
        cluster.at(name).taken = read_taken(taken.SerializeToString())
    for name, returned in stored.returned.items():
        cluster.at(name).returned = read_returned(returned.SerializeToString())
    decoder = PodDecoder()
    cluster.pods = [decoder.view(pod.SerializeToString(), "") for pod in stored.pods.values()]
    return cluster


def test_a_sound_cluster_agrees_and_says_how_much_was_looked_at() -> None:
    result = checked()
    assert result.differences == ()
    assert (result.nodes, result.ledgers, result.devices, result.pods) == (2, 2, 2, 5)
    assert (result.placed, result.shares, result.finished, result.pending) == (3, 2, 1, 1)
    assert (result.requests, result.comparisons, result.comparisons_covered) == (1, 2, 2)
    assert summary(result)[-1] == "everything agrees"


def resource_off(cluster: StoredCluster) -> None:
    cluster.taken["gpu-0"].resources["cpu"] += 1


def pods_off(cluster: StoredCluster) -> None:
    cluster.taken["cpu-0"].pods = 2


def device_off(cluster: StoredCluster) -> None:
    cluster.returned["gpu-0"].device_milli[0] = 900


def release_lost(cluster: StoredCluster) -> None:
    del cluster.returned["gpu-0"]


def ledger_gone(cluster: StoredCluster) -> None:
    del cluster.taken["cpu-0"]


def pod_gone(cluster: StoredCluster) -> None:
    del cluster.pods["web"]


def place_elsewhere(cluster: StoredCluster) -> None:
    cluster.pods["web"].spec.node_name = "gpu-0"


def finished_elsewhere(cluster: StoredCluster) -> None:
    cluster.pods["done"].spec.node_name = "cpu-0"


def node_recreated(cluster: StoredCluster) -> None:
    cluster.nodes["cpu-0"].metadata.uid = "another"
    cluster.taken["cpu-0"].node_uid = "another"


def ledger_of_the_old_node(cluster: StoredCluster) -> None:
    cluster.taken["cpu-0"].node_uid = "old"


def allocatable_changed_alone(cluster: StoredCluster) -> None:
    cluster.nodes["cpu-0"].status.allocatable["cpu"] = "5"


def device_died_alone(cluster: StoredCluster) -> None:
    cluster.topologies["gpu-0"].spec.gpus[1].unhealthy = True


def node_gone(cluster: StoredCluster) -> None:
    del cluster.nodes["cpu-0"]


def bound_without_place(cluster: StoredCluster) -> None:
    cluster.pods["big"].spec.node_name = "gpu-0"


def same_uid(cluster: StoredCluster) -> None:
    cluster.pods["big"].metadata.uid = "uid-web"


def place_too_small(cluster: StoredCluster) -> None:
    cluster.pods["web"].placed.resources["cpu"] = 400
    cluster.taken["cpu-0"].resources["cpu"] = 400


def share_too_small(cluster: StoredCluster) -> None:
    cluster.pods["share"].placed.devices[0].milli = 200
    cluster.taken["gpu-0"].device_milli[1] = 200


def device_of_another_model(cluster: StoredCluster) -> None:
    cluster.pods["train"].metadata.annotations["orrery.dev/gpu-models"] = "A100|V100"


def device_that_is_not_there(cluster: StoredCluster) -> None:
    cluster.pods["share"].placed.devices[0].index = 2
    cluster.taken["gpu-0"].device_milli[:] = [2000, 0, 300]


def too_much_cpu(cluster: StoredCluster) -> None:
    cluster.nodes["cpu-0"].status.allocatable["cpu"] = "400m"
    cluster.taken["cpu-0"].allocatable["cpu"] = 400


def too_many_pods(cluster: StoredCluster) -> None:
    cluster.nodes["gpu-0"].status.allocatable["pods"] = "1"
    cluster.taken["gpu-0"].allocatable["pods"] = 1


def device_twice(cluster: StoredCluster) -> None:
    cluster.pods["share"].placed.devices[0].index = 0
    cluster.taken["gpu-0"].device_milli[:] = [2300, 0]


@pytest.mark.parametrize(
    ("spoil", "kind", "subject", "words"),
    [
        (resource_off, "ledger is not the sum", "node gpu-0", "cpu: ledger 9001, pods 9000"),
        (pods_off, "ledger is not the sum", "node cpu-0", "pods: ledger 2, pods 1"),
        (device_off, "ledger is not the sum", "node gpu-0", "device 0: ledger 1100, pods 1000 thousandths"),
        (release_lost, "ledger is not the sum", "node gpu-0", "pods: ledger 3, pods 2"),
        (pod_gone, "ledger is not the sum", "node cpu-0", "cpu: ledger 500, pods 0"),
        (ledger_gone, "no ledger", "node cpu-0", "there is no taken value"),
        (place_elsewhere, "other node", "pod default/web", "nodeName is gpu-0, its place is on cpu-0"),
        (finished_elsewhere, "other node", "pod default/done", "nodeName is cpu-0, its place is on gpu-0"),
        (node_recreated, "other node uid", "pod default/web", "uid uid-cpu-0, node cpu-0 has another"),
        (ledger_of_the_old_node, "ledger of another node", "node cpu-0", "uid uid-cpu-0, in the ledger old"),
        (allocatable_changed_alone, "ledger of another node", "node cpu-0", "cpu 5000, in the ledger 4000"),
        (device_died_alone, "ledger of another node", "node gpu-0", "devices are not those"),
        (node_gone, "ledger of another node", "node cpu-0", "gone and the ledger does not say so"),
        (bound_without_place, "bound without place", "pod default/big", "on node gpu-0 and holds no place"),
        (same_uid, "uid twice", "pod default/big", "pod default/web has the same uid uid-web"),
        (place_too_small, "place is not the request", "pod default/web", "'cpu': 400"),
        (share_too_small, "place is not the request", "pod default/share", "300 thousandths and holds 200"),
        (device_of_another_model, "place is not the request", "pod default/train", "holds a H100"),
        (device_that_is_not_there, "place is not the request", "pod default/share", "does not have"),
        (too_much_cpu, "node above allocatable", "node cpu-0", "cpu: 500 are held, 400 are there"),
        (too_many_pods, "node above allocatable", "node gpu-0", "2 pods on it, 1 allowed"),
        (device_twice, "device above the whole", "node gpu-0", "device 0: 1300 thousandths"),
    ],
)
def test_a_spoilt_cluster_is_found_out(spoil: Spoil, kind: str, subject: str, words: str) -> None:
    found = [each for each in checked(spoil).differences if (each.kind, each.subject) == (kind, subject)]
    assert any(words in each.message for each in found), found


def test_a_pending_pod_that_fits_is_found_with_the_node_that_would_hold_it() -> None:
    def grow(cluster: StoredCluster) -> None:
        cluster.pods["small"] = make_pod("small", {"cpu": "1"})
        cluster.pods["small-too"] = make_pod("small-too", {"cpu": "1"})

    result = checked(grow)
    assert [(each.kind, each.subject, each.message) for each in result.differences] == [
        ("pending pod fits", f"pod default/{name}", "it waits, and would fit on node cpu-0")
        for name in ("small", "small-too")
    ]


@pytest.mark.parametrize("why", ["gated", "being deleted", "of another scheduler"])
def test_a_pending_pod_that_nobody_promised_to_bind_is_counted_and_not_blamed(why: str) -> None:
    def grow(cluster: StoredCluster) -> None:
        pod = cluster.pods["small"] = make_pod("small", {"cpu": "1"})
        if why == "gated":
            pod.spec.scheduling_gates.add(name="wait")
        elif why == "being deleted":
            pod.metadata.deletion_timestamp.seconds = 1
        else:
            pod.spec.scheduler_name = "somebody-else"

    result = checked(grow)
    assert (result.differences, dict(result.skipped)) == ((), {why: 1})


def test_a_node_that_shrank_is_not_blamed_when_its_ledger_says_so_and_takes_no_new_pods() -> None:
    def shrink(cluster: StoredCluster) -> None:
        too_much_cpu(cluster)
        cluster.taken["cpu-0"].overcommitted = True
        # It asks for nothing, so nothing but the mark keeps it away; gpu-0 is made to refuse it by a taint.
        cluster.pods["tiny"] = make_pod("tiny", {})
        cluster.nodes["gpu-0"].spec.taints.add(key="k", effect="NoSchedule")

    result = checked(shrink)
    assert (result.differences, result.overcommitted, result.pending) == ((), 1, 2)


def test_a_ledger_that_outlives_its_node_is_not_blamed() -> None:
    def delete(cluster: StoredCluster) -> None:
        node_gone(cluster)
        cluster.taken["cpu-0"].node_deleted = True

    assert checked(delete).differences == ()


@pytest.mark.parametrize("what", ["node", "pod"])
def test_a_check_of_nothing_fails(what: str) -> None:
    def empty(cluster: StoredCluster) -> None:
        for each in (cluster.nodes, cluster.topologies, cluster.taken, cluster.returned, cluster.pods):
            each.clear()
        if what == "node":
            cluster.pods["alone"] = make_pod("alone", {})
        else:
            cluster.nodes["n"] = make_node("n", {"cpu": "1"})

    kinds = {(each.kind, each.message) for each in checked(empty).differences}
    assert ("nothing to check", f"etcd holds no {what}") in kinds


def test_only_so_many_differences_are_printed_and_all_are_counted() -> None:
    def grow(cluster: StoredCluster) -> None:
        for number in range(30):
            cluster.pods[f"p{number}"] = make_pod(f"p{number}", {"cpu": "1"})

    lines = summary(checked(grow))
    assert "30 difference(s):" in lines
    assert lines[-1] == "  and 10 more"


def test_a_whole_device_does_not_fit_beside_a_share() -> None:
    """train leaves; big wants two whole devices and share still holds 300 of one."""

    def leave(cluster: StoredCluster) -> None:
        cluster.pods["train"].status.phase = "Succeeded"
        cluster.returned["gpu-0"].device_milli[0] += 1000
        cluster.returned["gpu-0"].pods += 1
        for name, amount in (("cpu", 8000), (GPU, 1)):
            cluster.returned["gpu-0"].resources[name] += amount

    assert checked(leave).differences == ()

    def leave_too(cluster: StoredCluster) -> None:
        leave(cluster)
        cluster.pods["share"].status.phase = "Failed"
        cluster.returned["gpu-0"].device_milli.append(300)
        cluster.returned["gpu-0"].pods += 1
        for name, amount in (("cpu", 1000), (GPU_MILLI, 300)):
            cluster.returned["gpu-0"].resources[name] += amount

    assert [each.subject for each in checked(leave_too).differences] == ["pod default/big"]


def test_a_result_survives_its_way_through_json() -> None:
    result = checked(resource_off)
    assert CheckResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def one_waits(cluster: StoredCluster) -> None:
    cluster.pods["small"] = make_pod("small", {"cpu": "1"})


def one_waits_and_a_ledger_is_off(cluster: StoredCluster) -> None:
    one_waits(cluster)
    resource_off(cluster)


@pytest.mark.parametrize(
    ("looks", "looked", "agrees"),
    [
        ([one_waits, one_waits, lambda cluster: None], 3, True),
        ([one_waits] * 9, 4, False),
        ([one_waits_and_a_ledger_is_off] * 9, 1, False),
        ([lambda cluster: None] * 9, 1, True),
    ],
    ids=["bound at last", "never bound", "time does not mend a ledger", "nothing to wait for"],
)
def test_only_a_pod_that_may_yet_be_bound_is_waited_for(looks: list[Spoil], looked: int, agrees: bool) -> None:
    clusters = [read(spoil) for spoil in looks]
    clock = [0.0]

    def pause(seconds: float) -> None:
        clock[0] += seconds

    left = iter(clusters)
    result = check(lambda: next(left), SCHEDULER_NAMES, 3.0, now=lambda: clock[0], pause=pause)
    assert (len(clusters) - len(list(left)), result.agrees) == (looked, agrees)


def affine(cluster: StoredCluster) -> None:
    term = cluster.pods["big"].spec.affinity.pod_affinity.required_during_scheduling_ignored_during_execution.add()
    term.topology_key = "zone"


def spread(cluster: StoredCluster) -> None:
    cluster.pods["big"].spec.topology_spread_constraints.add(
        topology_key="zone", max_skew=1, when_unsatisfiable="DoNotSchedule"
    )


def repelled(cluster: StoredCluster) -> None:
    cluster.pods["big"].metadata.labels["app"] = "big"
    anti = cluster.pods["web"].spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution.add()
    anti.topology_key = "zone"
    anti.label_selector.match_labels["app"] = "big"


@pytest.mark.parametrize(
    ("others", "why"),
    [
        (affine, "with required pod affinity, not judged"),
        (spread, "with a required spread, not judged"),
        (repelled, "that others' anti-affinity may repel, not judged"),
    ],
)
def test_a_pod_whose_place_depends_on_others_is_counted_and_not_judged(others: Spoil, why: str) -> None:
    def spoil(cluster: StoredCluster) -> None:
        # There would be room.
        cluster.pods["big"].spec.containers[0].resources.requests["nvidia.com/gpu"] = "1"
        cluster.pods["big"].spec.containers[0].resources.requests["cpu"] = "1"
        others(cluster)

    result = checked(spoil)
    assert (result.differences, dict(result.skipped), result.pending) == ((), {why: 1}, 0)
