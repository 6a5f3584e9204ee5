"""Kubernetes' rules of fitting, one table row for each way to be refused and each way to slip through."""

from collections.abc import Callable

import pytest

from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.pod_pb2 import Pod
from services.lab.check_fit import Room, Usage, refusal, request_key
from services.model.devices import Device
from services.model.pod import HostPort
from services.wire.node import project_node
from services.wire.pod import PodDecoder
from tests.stored_cluster import GPU, GPU_MILLI, make_node, make_pod

DEVICES = tuple(Device(index, f"GPU-{index}", "H100" if index < 2 else "A100", 0, 0, index != 3) for index in range(4))


def judged(edit: Callable[[Node, Pod, Usage], object]) -> str:
    """A pod of 1 CPU on an empty node of 4 CPUs, 10 pods and 4 GPUs (2 H100, 2 A100 of which one is broken), edited."""
    node = make_node("n", {"cpu": "4", "memory": "8Gi", "pods": "10", GPU: "3", GPU_MILLI: "3000"})
    node.metadata.labels.update({"zone": "a", "rank": "5"})
    pod, usage = make_pod("p", {"cpu": "1"}), Usage()
    edit(node, pod, usage)
    spec = PodDecoder().view(pod.SerializeToString(), "").spec
    return refusal(spec, Room(project_node(node, ""), DEVICES, usage, takes_new_pods=True))


def requests(**amounts: str) -> Callable[[Node, Pod, Usage], object]:
    named = {"gpu": GPU, "milli": GPU_MILLI}
    return lambda node, pod, usage: pod.spec.containers[0].resources.requests.update(
        {named.get(name, name): amount for name, amount in amounts.items()}
    )


def test_a_pod_fits_on_an_empty_node() -> None:
    assert judged(lambda node, pod, usage: None) == ""


@pytest.mark.parametrize(
    ("edit", "wanted"),
    [
        (requests(cpu="4"), ""),
        (requests(cpu="4001m"), "not enough cpu"),
        (requests(memory="9Gi"), "not enough memory"),
        (requests(**{"example.com/thing": "1"}), "not enough example.com/thing"),
        (requests(**{"example.com/thing": "0"}), ""),
        (lambda n, p, u: u.resources.update(cpu=3000), ""),
        (lambda n, p, u: u.resources.update(cpu=3001), "not enough cpu"),
        (lambda n, p, u: setattr(u, "pods", 9), ""),
        (lambda n, p, u: setattr(u, "pods", 10), "too many pods"),
        (requests(gpu="3"), ""),
        (requests(gpu="4"), f"not enough {GPU}"),
    ],
)
def test_resources(edit: Callable[[Node, Pod, Usage], object], wanted: str) -> None:
    assert judged(edit) == wanted


@pytest.mark.parametrize(
    ("amounts", "annotations", "used", "fits"),
    [
        ({"gpu": "3"}, {}, {}, True),
        ({"gpu": "3"}, {}, {0: 1}, False),
        ({"gpu": "2"}, {"models": "H100"}, {}, True),
        ({"gpu": "3"}, {"models": "H100"}, {}, False),
        ({"gpu": "2"}, {"models": "A100"}, {}, False),
        ({"gpu": "3"}, {"models": "H100|A100"}, {}, True),
        ({"milli": "300"}, {}, {0: 700, 1: 701, 2: 1000}, True),
        ({"milli": "300"}, {}, {0: 701, 1: 701, 2: 1000}, False),
        ({"milli": "900"}, {"count": "3"}, {0: 700, 1: 700, 2: 700}, True),
        ({"milli": "900"}, {"count": "3"}, {0: 700, 1: 700, 2: 701}, False),
    ],
)
def test_devices(amounts: dict[str, str], annotations: dict[str, str], used: dict[int, int], fits: bool) -> None:
    def edit(node: Node, pod: Pod, usage: Usage) -> None:
        requests(**amounts)(node, pod, usage)
        pod.metadata.annotations.update({f"orrery.dev/gpu-{name}": text for name, text in annotations.items()})
        usage.device_milli.update(used)

    assert (judged(edit) == "") is fits


@pytest.mark.parametrize(
    ("key", "operator", "value", "effect", "fits"),
    [
        ("k", "Equal", "v", "NoSchedule", True),
        ("k", "", "v", "", True),
        ("k", "Equal", "w", "", False),
        ("k", "Exists", "", "", True),
        ("", "Exists", "", "", True),
        ("", "Equal", "v", "", False),
        ("other", "Exists", "", "", False),
        ("k", "Exists", "", "NoExecute", False),
    ],
)
def test_taints(key: str, operator: str, value: str, effect: str, fits: bool) -> None:
    def edit(node: Node, pod: Pod, usage: Usage) -> None:
        node.spec.taints.add(key="k", value="v", effect="NoSchedule")
        pod.spec.tolerations.add(key=key, operator=operator, value=value, effect=effect)

    assert (judged(edit) == "") is fits


@pytest.mark.parametrize(("effect", "fits"), [("NoSchedule", False), ("NoExecute", False), ("PreferNoSchedule", True)])
def test_an_untolerated_taint_forbids_unless_it_is_a_preference(effect: str, fits: bool) -> None:
    assert (judged(lambda n, p, u: n.spec.taints.add(key="k", effect=effect)) == "") is fits


@pytest.mark.parametrize("tolerated", [True, False])
def test_an_unschedulable_node_takes_only_who_tolerates_it(tolerated: bool) -> None:
    def edit(node: Node, pod: Pod, usage: Usage) -> None:
        node.spec.unschedulable = True
        if tolerated:
            pod.spec.tolerations.add(key="node.kubernetes.io/unschedulable", operator="Exists")

    assert (judged(edit) == "") is tolerated


@pytest.mark.parametrize(("value", "fits"), [("a", True), ("b", False)])
def test_node_selector(value: str, fits: bool) -> None:
    assert (judged(lambda n, p, u: p.spec.node_selector.update(zone=value)) == "") is fits


@pytest.mark.parametrize(
    ("key", "operator", "values", "fits"),
    [
        ("zone", "In", ["b", "a"], True),
        ("zone", "In", ["b"], False),
        ("none", "In", ["a"], False),
        ("zone", "NotIn", ["b"], True),
        ("zone", "NotIn", ["a"], False),
        ("none", "NotIn", ["a"], True),
        ("zone", "Exists", [], True),
        ("none", "Exists", [], False),
        ("none", "DoesNotExist", [], True),
        ("zone", "DoesNotExist", [], False),
        ("rank", "Gt", ["4"], True),
        ("rank", "Gt", ["5"], False),
        ("rank", "Lt", ["6"], True),
        ("rank", "Lt", ["5"], False),
        ("zone", "Gt", ["1"], False),
        ("none", "Lt", ["1"], False),
    ],
)
def test_node_affinity(key: str, operator: str, values: list[str], fits: bool) -> None:
    def edit(node: Node, pod: Pod, usage: Usage) -> None:
        required = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
        required.node_selector_terms.add().match_expressions.add(key=key, operator=operator, values=values)

    assert (judged(edit) == "") is fits


@pytest.mark.parametrize(("terms", "fits"), [(["no"], False), (["no", "n"], True), ([], False), (["empty"], False)])
def test_any_term_will_do_but_an_empty_one_matches_nothing(terms: list[str], fits: bool) -> None:
    def edit(node: Node, pod: Pod, usage: Usage) -> None:
        required = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
        required.SetInParent()
        for name in terms:
            term = required.node_selector_terms.add()
            if name != "empty":
                term.match_fields.add(key="metadata.name", operator="In", values=[name])

    assert (judged(edit) == "") is fits


@pytest.mark.parametrize(
    ("port", "ip", "protocol", "fits"),
    [
        (80, "", "TCP", False),
        (81, "", "TCP", True),
        (80, "", "UDP", True),
        (80, "10.0.0.1", "TCP", False),
        (80, "10.0.0.2", "TCP", True),
    ],
)
def test_host_ports(port: int, ip: str, protocol: str, fits: bool) -> None:
    def edit(node: Node, pod: Pod, usage: Usage) -> None:
        usage.host_ports.append(HostPort("TCP", "10.0.0.1", 80))
        pod.spec.containers[0].ports.add(host_port=port, host_ip=ip, protocol=protocol)

    assert (judged(edit) == "") is fits


def test_pods_that_differ_in_anything_that_forbids_are_not_taken_for_one() -> None:
    edits: list[Callable[[Pod], object]] = [
        lambda pod: None,
        lambda pod: pod.spec.containers[0].resources.requests.update(cpu="2"),
        lambda pod: pod.spec.containers[0].resources.requests.update({GPU: "1"}),
        lambda pod: pod.spec.node_selector.update(zone="a"),
        lambda pod: pod.spec.tolerations.add(key="k"),
        lambda pod: pod.spec.containers[0].ports.add(host_port=1),
        lambda pod: pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution.SetInParent(),
    ]
    keys = set()
    for edit in edits:
        pod = make_pod("p", {"cpu": "1"})
        edit(pod)
        keys.add(request_key(PodDecoder().view(pod.SerializeToString(), "").spec))
    assert len(keys) == len(edits)
