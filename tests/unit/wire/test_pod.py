"""Pods: bytes to projections with the memo, and Bind's edit of the bytes."""

import dataclasses

import pytest
from google.protobuf.message import Message

from protos.orrery.v1 import pod_pb2
from protos.orrery.v1.envelope_pb2 import LabelEntry
from services.model.devices import DeviceRequest, DeviceShare
from services.model.pod import HostPort, NodeSelectorTerm, Placement, PodView, Requirement, Toleration
from services.wire import pod as wire_pod
from services.wire.metadata import DecodeError, object_key, read_envelope
from services.wire.pod import PodDecoder, bind_pod

NOW_NS = 1_700_000_000_123_456_789


def make(name: str = "web-0", **requests: str) -> pod_pb2.Pod:
    pod = pod_pb2.Pod(api_version="v1", kind="Pod")
    pod.metadata.name, pod.metadata.namespace, pod.metadata.uid = name, "default", f"uid-{name}"
    pod.metadata.creation_timestamp.seconds = 5
    pod.metadata.labels["app"] = "web"
    container = pod.spec.containers.add(name="main", image="nginx")
    for resource, amount in requests.items():
        container.resources.requests[resource] = amount
    return pod


def with_unknown(message: Message, number: int = 900, text: bytes = b"from a later version") -> bytes:
    """The message's bytes and a length-delimited field of a number that no message of ours has."""
    tag = (number << 3) | 2
    return message.SerializeToString() + bytes([tag & 0x7F | 0x80, tag >> 7, len(text)]) + text


def test_a_pod_projects_what_decisions_read() -> None:
    pod = make(cpu="250m", memory="1Gi")
    pod.metadata.annotations["orrery.dev/traceparent"] = "00-a-b-01"
    pod.metadata.annotations["orrery.dev/run-seconds"] = "2.5"
    pod.metadata.deletion_timestamp.seconds = 9
    pod.status.phase, pod.status.nominated_node_name = "Pending", "node-b"
    view = PodDecoder().view(pod.SerializeToString(), "17")
    assert (view.key, view.uid, view.resource_version, view.phase) == ("default/web-0", "uid-web-0", "17", "Pending")
    assert (view.created_at_ns, view.deleting, view.nominated_node_name) == (5_000_000_000, True, "node-b")
    assert (view.traceparent, view.run_seconds, view.labels) == ("00-a-b-01", 2.5, {"app": "web"})
    assert view.placed is None
    assert view.spec.requests == {"cpu": 250, "memory": 2**30}
    assert (view.spec.nonzero_milli_cpu, view.spec.nonzero_memory) == (250, 2**30)
    assert (view.spec.scheduler_name, view.spec.restart_policy) == ("default-scheduler", "Always")
    assert (view.spec.preemption_policy, view.spec.termination_grace_period_seconds) == ("PreemptLowerPriority", 30)


def test_constraints_of_a_spec_are_projected() -> None:
    pod = make()
    spec = pod.spec
    spec.termination_grace_period_seconds, spec.priority, spec.node_name = 0, -5, "node-a"
    spec.node_selector["disk"] = "ssd"
    spec.tolerations.add(key="gpu", operator="Exists", effect="NoExecute", toleration_seconds=0)
    spec.tolerations.add(operator="Exists")
    spec.scheduling_gates.add(name="wait")
    required = spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    required.node_selector_terms.add().match_expressions.add(key="zone", operator="In", values=["a", "b"])
    preferred = spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution.add(weight=7)
    preferred.preference.match_fields.add(key="metadata.name", operator="NotIn", values=["node-b"])
    spec.containers[0].ports.add(container_port=80, host_port=8080)
    spec.containers[0].ports.add(container_port=81)
    spec.init_containers.add(name="proxy", restart_policy="Always").ports.add(
        host_port=53, protocol="UDP", host_ip="1.2.3.4"
    )
    spec.init_containers.add(name="once").ports.add(host_port=99)
    view = PodDecoder().view(pod.SerializeToString(), "1").spec
    assert (view.termination_grace_period_seconds, view.priority, view.node_name) == (0, -5, "node-a")
    assert view.node_selector == {"disk": "ssd"}
    assert view.tolerations == (Toleration("gpu", "Exists", "", "NoExecute", 0), Toleration("", "Exists", "", "", None))
    assert view.scheduling_gates == ("wait",)
    assert view.node_affinity is not None
    assert view.node_affinity.required == (NodeSelectorTerm((Requirement("zone", "In", ("a", "b")),), ()),)
    node_b = Requirement("metadata.name", "NotIn", ("node-b",))
    assert view.node_affinity.preferred == ((7, NodeSelectorTerm((), (node_b,))),)
    assert view.host_ports == (HostPort("UDP", "1.2.3.4", 53), HostPort("TCP", "0.0.0.0", 8080))


def test_an_empty_required_affinity_is_not_an_absent_one() -> None:
    pod = make()
    pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution.SetInParent()
    affinity = PodDecoder().view(pod.SerializeToString(), "1").spec.node_affinity
    assert affinity is not None
    assert affinity.required == ()
    assert PodDecoder().view(make().SerializeToString(), "1").spec.node_affinity is None


def test_limits_stand_in_for_absent_requests_and_overhead_counts() -> None:
    pod = make(cpu="1")
    limits = pod.spec.containers[0].resources.limits
    limits["cpu"], limits["memory"], limits["nvidia.com/gpu"] = "2", "3Ki", "2"
    pod.spec.overhead["cpu"] = "5m"
    pod.spec.init_containers.add(name="side", restart_policy="Always").resources.requests["cpu"] = "100m"
    view = PodDecoder().view(pod.SerializeToString(), "1").spec
    assert view.requests == {"cpu": 1105, "memory": 3072, "nvidia.com/gpu": 2}
    assert view.devices == DeviceRequest(2, 1000)


def test_equal_specs_and_labels_are_projected_once() -> None:
    decoder = PodDecoder()
    first, second = (decoder.view(make(name, cpu="1").SerializeToString(), "1") for name in ("web-0", "web-1"))
    assert first.spec is second.spec
    assert first.labels is second.labels
    assert first.name != second.name


def test_a_view_is_frozen_and_equal_to_one_that_is_built_field_by_field() -> None:
    view = PodDecoder().view(make(cpu="1").SerializeToString(), "1")
    assert type(view) is PodView
    assert dataclasses.replace(view) == view
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.phase = "Running"  # type: ignore[misc]


def test_annotations_that_shape_the_device_request_are_part_of_the_memo() -> None:
    decoder = PodDecoder()
    pod = make(**{"orrery.dev/gpu-milli": "1000"})
    plain = decoder.view(pod.SerializeToString(), "1")
    pod.metadata.annotations["orrery.dev/gpu-count"] = "2"
    split = decoder.view(pod.SerializeToString(), "1")
    pod.metadata.annotations["orrery.dev/gpu-models"] = "A|B"
    chosen = decoder.view(pod.SerializeToString(), "1")
    assert plain.spec.devices == DeviceRequest(1, 1000)
    assert split.spec.devices == DeviceRequest(2, 500)
    assert chosen.spec.devices == DeviceRequest(2, 500, frozenset({"A", "B"}))


def test_the_memo_is_bounded_and_what_fell_out_is_projected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_pod, "SPEC_MEMO_MAX", 2)
    monkeypatch.setattr(wire_pod, "LABELS_MEMO_MAX", 2)
    monkeypatch.setattr(wire_pod, "PLACED_MEMO_MAX", 2)
    decoder = PodDecoder()
    values = []
    for number in range(1, 5):
        pod = make(cpu=f"{number}m")
        pod.metadata.labels["number"] = str(number)
        pod.placed.fencing_token = number
        values.append(pod.SerializeToString())
    first = decoder.view(values[0], "1")
    for value in values[1:]:
        decoder.view(value, "1")
    again = decoder.view(values[0], "1")
    assert again.spec is not first.spec
    assert again.labels is not first.labels
    assert again.placed is not first.placed
    assert again == first


def test_a_pod_that_is_resized_counts_what_its_status_reports() -> None:
    """The pod of kube-scheduler's rule: the sum of what each container counts, not the larger of two sums."""
    pod = make(cpu="1")
    pod.spec.containers.add(name="second").resources.requests["cpu"] = "2"
    once = pod.spec.init_containers.add(name="once")
    once.resources.requests["cpu"] = "100m"
    decoder = PodDecoder()
    before = decoder.view(pod.SerializeToString(), "1")
    for name, actual in (("main", "2"), ("second", "1")):
        status = pod.status.container_statuses.add(name=name)
        status.allocated_resources["cpu"] = "1"
        status.resources.requests["cpu"] = actual
    # Only a sidecar can be resized among init containers.
    pod.status.init_container_statuses.add(name="once").resources.requests["cpu"] = "9"
    during = decoder.view(pod.SerializeToString(), "2")
    pod.status.conditions.add(type="PodResizePending", reason="Infeasible")
    refused = decoder.view(pod.SerializeToString(), "3")
    assert [view.spec.requests["cpu"] for view in (before, during, refused)] == [3000, 4000, 3000]
    assert decoder.view(pod.SerializeToString(), "4").spec is refused.spec
    del pod.status.container_statuses[:]
    pod.status.container_statuses.add(name="main").allocated_resources["cpu"] = "7"
    del pod.status.init_container_statuses[:]
    assert decoder.view(pod.SerializeToString(), "5").spec is before.spec


PLACEMENT = Placement(
    "node-a", "uid-node", {"cpu": 250, "memory": 2**30}, (DeviceShare(3, 1000), DeviceShare(5, 500)), 42
)


def test_binding_writes_node_placement_and_condition_and_keeps_what_it_does_not_know() -> None:
    pod = make(cpu="250m")
    pod.status.phase = "Pending"
    pod.status.conditions.add(type="PodScheduled", status="False", reason="Unschedulable", message="0/3 nodes")
    pod.status.conditions[0].last_transition_time.seconds = 1
    known = pod_pb2.PodSpec.FromString(with_unknown(pod.spec))
    pod.spec.CopyFrom(known)
    bound_bytes = bind_pod(with_unknown(pod), PLACEMENT, NOW_NS)
    bound = pod_pb2.Pod.FromString(bound_bytes)
    assert bound.spec.node_name == "node-a"
    [condition] = bound.status.conditions
    assert (condition.status, condition.HasField("reason"), condition.HasField("message")) == ("True", False, False)
    assert condition.last_transition_time.seconds == NOW_NS // 10**9
    assert bound_bytes.count(b"from a later version") == 2
    decoder = PodDecoder()
    assert decoder.view(bound_bytes, "2").placed == PLACEMENT
    bound.status.phase = "Running"
    assert (
        decoder.view(bound.SerializeToString(deterministic=True), "3").placed is decoder.view(bound_bytes, "2").placed
    )
    for field in ("metadata", "api_version", "kind"):
        assert getattr(bound, field) == getattr(pod, field)


def test_the_head_reads_the_same_names_and_phase_as_the_whole_pod() -> None:
    """PodHead is wire-compatible by its numbers: each of its fields has the number of the field that it stands for."""
    from protos.orrery.v1 import envelope_pb2, meta_pb2

    pairs = [
        (envelope_pb2.PodHead, pod_pb2.Pod),
        (envelope_pb2.PodHeadMeta, meta_pb2.ObjectMeta),
        (envelope_pb2.PodHeadStatus, pod_pb2.PodStatus),
        (envelope_pb2.PodHeadContainerStatus, pod_pb2.ContainerStatus),
        (envelope_pb2.Envelope, pod_pb2.Pod),
    ]
    for part, whole in pairs:
        numbers = {field.name: field.number for field in whole.DESCRIPTOR.fields}
        assert {field.name: field.number for field in part.DESCRIPTOR.fields}.items() <= numbers.items()
    entry = meta_pb2.ObjectMeta.DESCRIPTOR.fields_by_name["labels"].message_type
    assert [(f.name, f.number, f.type) for f in entry.fields] == [
        (f.name, f.number, f.type) for f in LabelEntry.DESCRIPTOR.fields
    ]


@pytest.mark.parametrize(
    "value",
    [b"\xff", b"\x1a\x05abc", b"\x22\x03abc", pod_pb2.Pod(spec=pod_pb2.PodSpec()).SerializeToString()[:-1] + b"\x09"],
    ids=["no tag", "short metadata", "spec that is none", "short spec"],
)
def test_bytes_that_are_no_pod_are_a_decode_error(value: bytes) -> None:
    with pytest.raises(DecodeError):
        PodDecoder().view(value, "1")
    with pytest.raises(DecodeError):
        bind_pod(value, PLACEMENT, NOW_NS)


@pytest.mark.parametrize(
    ("requests", "annotations", "says"),
    [
        ({"cpu": "lots"}, {}, "'lots' is not a quantity"),
        ({"nvidia.com/gpu": "1", "orrery.dev/gpu-milli": "5"}, {}, "not both"),
        ({"orrery.dev/gpu-milli": "5"}, {"orrery.dev/gpu-count": "2"}, "do not split evenly"),
    ],
)
def test_a_stored_pod_that_validation_would_refuse_names_itself(
    requests: dict[str, str], annotations: dict[str, str], says: str
) -> None:
    pod = make(**requests)
    pod.metadata.annotations.update(annotations)
    with pytest.raises(DecodeError, match=f"pod default/web-0: .*{says}"):
        PodDecoder().view(pod.SerializeToString(), "1")


def test_label_entries_that_are_no_text_are_a_decode_error() -> None:
    head = wire_pod.PodHead()
    head.metadata.labels.append(b"\x0a\x02\xff\xfe")
    with pytest.raises(DecodeError):
        PodDecoder().view(head.SerializeToString(), "1")


def test_a_placement_that_is_none_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="not a pod"):
        PodDecoder().view(wire_pod.PodHead(placed=b"\xff").SerializeToString(), "1")


def test_a_container_status_that_is_none_is_a_decode_error() -> None:
    head = wire_pod.PodHead()
    head.status.container_statuses.add(resources=b"\xff")
    with pytest.raises(DecodeError, match="not a pod"):
        PodDecoder().view(head.SerializeToString(), "1")


def test_an_object_key_is_namespace_and_name_or_the_name_alone() -> None:
    assert object_key(make().SerializeToString()) == "default/web-0"
    cluster_scoped = pod_pb2.Pod()
    cluster_scoped.metadata.name = "node-a"
    assert object_key(cluster_scoped.SerializeToString()) == "node-a"
    with pytest.raises(DecodeError, match="1 bytes are not an object"):
        object_key(b"\xff")


def test_the_envelope_written_again_keeps_every_field() -> None:
    value = with_unknown(make(cpu="1"))
    envelope = read_envelope(value)
    envelope.metadata.labels["added"] = "yes"
    again = envelope.SerializeToString()
    assert b"from a later version" in again
    assert pod_pb2.Pod.FromString(again).spec == make(cpu="1").spec
