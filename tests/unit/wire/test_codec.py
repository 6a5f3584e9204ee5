"""JSON to messages and back: forms, strictness, paths."""

from typing import Any

import pytest

from protos.orrery.v1 import event_pb2, lease_pb2, meta_pb2, node_pb2, node_topology_pb2, pod_pb2, service_pb2
from services.wire.codec import FieldErrors, from_json, to_json
from services.wire.field_errors import ERRORS_MAX


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


def errors_of(data: Any, cls: Any = pod_pb2.Pod) -> list[tuple[str, str]]:
    with pytest.raises(FieldErrors) as refused:
        from_json(data, cls)
    return [tuple(error) for error in refused.value.errors]


FORMS = [
    (container(resources={"limits": {"cpu": "500m", "memory": "1Gi"}}), pod_pb2.Pod),
    (container(ports=[{"containerPort": 80, "hostIP": "1.2.3.4"}], command=["a", ""], tty=False), pod_pb2.Pod),
    (container(livenessProbe={"httpGet": {"port": "http"}}, readinessProbe={"httpGet": {"port": 8080}}), pod_pb2.Pod),
    ({"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "priority": 0, "hostNetwork": False}}, pod_pb2.Pod),
    ({"metadata": {"labels": {"a": "", "b.c/d": "e"}, "generation": 2**63 - 1}}, pod_pb2.Pod),
    ({"metadata": {"creationTimestamp": "2026-05-01T12:00:00Z"}}, pod_pb2.Pod),
    ({"metadata": {"creationTimestamp": "0001-01-01T00:00:00Z"}}, pod_pb2.Pod),
    ({"metadata": {"managedFields": [{"fieldsV1": {"f:a": {".": {}, "n": [None, 1.5, True]}}}]}}, pod_pb2.Pod),
    ({"spec": {"renewTime": "1969-12-31T23:59:59.000001Z", "leaseDurationSeconds": 15}}, lease_pb2.Lease),
    ({"eventTime": "9999-12-31T23:59:59.999999Z", "type": "Normal"}, event_pb2.Event),
    ({"spec": {"clusterIP": "None", "ports": [{"port": 80, "targetPort": -1}]}}, service_pb2.Service),
    ({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}}, node_pb2.Node),
]


@pytest.mark.parametrize(("data", "cls"), FORMS)
def test_json_in_kubernetes_form_comes_back_as_it_went_in(data: Any, cls: Any) -> None:
    assert to_json(from_json(data, cls)) == data


def test_null_is_the_absence_of_a_field() -> None:
    data = {
        "metadata": {"name": "a", "creationTimestamp": None, "labels": None},
        "spec": {"containers": None},
        "status": None,
    }
    assert to_json(from_json(data, pod_pb2.Pod)) == {"metadata": {"name": "a"}, "spec": {}}


def test_an_empty_object_is_not_an_absent_one() -> None:
    pod = from_json({"spec": {"securityContext": {}}}, pod_pb2.Pod)
    assert pod.spec.HasField("security_context")
    assert to_json(pod) == {"spec": {"securityContext": {}}}


def test_plain_numbers_are_shown_also_when_they_are_zero() -> None:
    topology = node_topology_pb2.NodeTopology()
    topology.spec.gpus.add(model="H100")
    topology.spec.gpus.add(index=1, numa_node=1)
    assert to_json(topology)["spec"]["gpus"] == [
        {"index": 0, "model": "H100", "numaNode": 0},
        {"index": 1, "numaNode": 1},
    ]


@pytest.mark.parametrize(
    ("given", "text"), [(1, "1"), (0.5, "0.5"), (1e9, "1000000000"), (10**30, "1" + "0" * 30), (1e-7, "1e-07")]
)
def test_a_number_is_a_quantity_too(given: float, text: str) -> None:
    pod = from_json(container(resources={"requests": {"cpu": given}}), pod_pb2.Pod)
    assert pod.spec.containers[0].resources.requests["cpu"] == text


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2026-05-01T14:30:00+02:30", "2026-05-01T12:00:00Z"),
        ("2026-05-01T12:00:00.999Z", "2026-05-01T12:00:00Z"),
        ("2026-05-01t12:00:00z", "2026-05-01T12:00:00Z"),
        ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59Z"),
        ("2024-02-29T00:00:00-00:01", "2024-02-29T00:01:00Z"),
    ],
)
def test_a_time_is_kept_in_utc_and_whole_seconds(given: str, kept: str) -> None:
    meta = from_json({"creationTimestamp": given}, meta_pb2.ObjectMeta)
    assert to_json(meta) == {"creationTimestamp": kept}


def test_a_micro_time_keeps_six_digits() -> None:
    lease = from_json({"spec": {"renewTime": "2026-05-01T12:00:00.123456789Z"}}, lease_pb2.Lease)
    assert lease.spec.renew_time.nanos == 123_456_000
    assert to_json(lease) == {"spec": {"renewTime": "2026-05-01T12:00:00.123456Z"}}


@pytest.mark.parametrize(
    "given",
    [
        "", "2026-05-01", "2026-05-01 12:00:00Z", "2026-05-01T12:00:00", "2026-13-01T12:00:00Z", "2026-02-30T00:00:00Z",
        "2026-05-01T24:00:00Z", "2026-05-01T12:00:60Z", "2026-05-01T12:00:00+24:00", "0001-01-01T00:00:00+00:01", 5, True,
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused(given: Any) -> None:
    [(path, message)] = errors_of({"creationTimestamp": given}, meta_pb2.ObjectMeta)
    assert path == "creationTimestamp"
    assert message.startswith('wanted a time like "2026-05-01T12:00:00Z", found ')


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        (container(resorces={}), "spec.containers[0].resorces", 'unknown field; did you mean "resources"?'),
        (container(volume_mounts=[]), "spec.containers[0].volume_mounts", 'unknown field; did you mean "volumeMounts"?'),
        (container(Image="a"), "spec.containers[0].Image", 'unknown field; did you mean "image"?'),
        ({"spec": {"zzz": 1}}, "spec.zzz", "unknown field"),
        ({"metadata": {"ownerReferences": [{"x": 1}]}}, "metadata.ownerReferences[0].x",
         "unknown field; known here: apiVersion, blockOwnerDeletion, controller, kind, name, uid"),
        ({"a.b": 1}, "[a.b]", "unknown field; known here: apiVersion, kind, metadata, placed, spec, status"),
        ({1: 2}, "[the number 1]", "a field's name is a string, found the number 1"),
        ({"spec": []}, "spec", "wanted an object, found a list"),
        ({"spec": {"containers": {}}}, "spec.containers", "wanted a list, found an object"),
        ({"spec": {"containers": [None]}}, "spec.containers[0]", "wanted an object, found null"),
        (container(args=["a", None]), "spec.containers[0].args[1]", "wanted a string, found null"),
        (container(args=[1]), "spec.containers[0].args[0]", "wanted a string, found the number 1; put it in quotes"),
        (container(image={}), "spec.containers[0].image", "wanted a string, found an object"),
        (container(tty="true"), "spec.containers[0].tty",
         'wanted true or false, found the string "true"; remove the quotes'),
        (container(tty=1), "spec.containers[0].tty", "wanted true or false, found the number 1"),
        (container(ports=[{"containerPort": "80"}]), "spec.containers[0].ports[0].containerPort",
         'wanted an integer, found the string "80"; remove the quotes'),
        (container(ports=[{"containerPort": True}]), "spec.containers[0].ports[0].containerPort",
         "wanted an integer, found the boolean true"),
        (container(ports=[{"containerPort": 80.0}]), "spec.containers[0].ports[0].containerPort",
         "wanted an integer, found the number 80.0"),
        ({"spec": {"priority": 2**31}}, "spec.priority",
         "wanted an integer from -2147483648 to 2147483647, found the number 2147483648"),
        ({"spec": {"activeDeadlineSeconds": -(2**63) - 1}}, "spec.activeDeadlineSeconds",
         f"wanted an integer from {-(2**63)} to {2**63 - 1}, found the number {-(2**63) - 1}"),
        ({"spec": {"priority": 10**5000}}, "spec.priority",
         "wanted an integer from -2147483648 to 2147483647, found a number of more than 40 digits"),
        ({"metadata": {"labels": {"a": 1.1}}}, "metadata.labels[a]",
         "wanted a string, found the number 1.1; put it in quotes"),
        ({"metadata": {"labels": {"a": None}}}, "metadata.labels[a]",
         'wanted a string, found null; write "" for an empty one'),
        ({"metadata": {"labels": {5: "a"}}}, "metadata.labels[the number 5]",
         "wanted a string, found the number 5; put it in quotes"),
        ({"metadata": {"labels": []}}, "metadata.labels", "wanted an object, found a list"),
        ({"metadata": {"name": "\ud800"}}, "metadata.name", "not valid Unicode at character 0"),
        ({"metadata": {"managedFields": [{"fieldsV1": []}]}}, "metadata.managedFields[0].fieldsV1",
         "wanted an object, found a list"),
        ({"metadata": {"managedFields": [{"fieldsV1": {"a": float("nan")}}]}}, "metadata.managedFields[0].fieldsV1",
         "JSON cannot hold the number nan"),
        (container(resources={"limits": {"cpu": True}}), "spec.containers[0].resources.limits[cpu]",
         "wanted a quantity like 500m, 2 or 80Gi, found the boolean true"),
        (container(resources={"limits": {"cpu": float("inf")}}), "spec.containers[0].resources.limits[cpu]",
         "wanted a quantity like 500m, 2 or 80Gi, found the number inf"),
        (container(livenessProbe={"tcpSocket": {"port": True}}), "spec.containers[0].livenessProbe.tcpSocket.port",
         "wanted an integer or a string, found the boolean true"),
        (container(livenessProbe={"tcpSocket": {"port": 2**31}}), "spec.containers[0].livenessProbe.tcpSocket.port",
         "wanted an integer from -2147483648 to 2147483647, found the number 2147483648"),
        ("text", "", 'wanted an object, found the string "text"'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_path(data: Any, path: str, message: str) -> None:
    assert errors_of(data) == [(path, message)]


def test_what_free_json_cannot_hold_is_refused() -> None:
    data = {"metadata": {"managedFields": [{"fieldsV1": {"a": {"b": float("inf")}}}]}}
    [(_, message)] = errors_of(data)
    assert message == "JSON cannot hold the number inf"


def test_a_bare_boolean_where_a_string_belongs_explains_yaml() -> None:
    [(path, message)] = errors_of(container(env=[{"name": "DEBUG", "value": True}]))
    assert path == "spec.containers[0].env[0].value"
    assert "put it in quotes (a bare yes, no, on, off, true or false is a boolean in YAML)" in message


def test_every_error_is_collected_up_to_a_bound() -> None:
    data = {"metadata": {"name": 1}, "spec": {"containers": [{"resorces": 1, "image": 2}], "priority": "x"}}
    paths = [path for path, _ in errors_of(data)]
    assert paths == ["metadata.name", "spec.containers[0].resorces", "spec.containers[0].image", "spec.priority"]
    assert len(errors_of({"metadata": {"labels": {str(number): number for number in range(10_000)}}})) == ERRORS_MAX
    assert len(errors_of({str(number): number for number in range(10_000)})) == ERRORS_MAX


def test_free_json_that_is_nested_too_deep_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    [(path, message)] = errors_of({"managedFields": [{"fieldsV1": deep}]}, meta_pb2.ObjectMeta)
    assert (path, message) == ("managedFields[0].fieldsV1", "nested deeper than 100 levels")
    while deep:
        deep = deep.pop("a")


@pytest.mark.parametrize("value", [b"{", b"\xff", b"[" * 100_000], ids=["cut off", "no text", "too deep"])
def test_stored_bytes_that_are_no_json_are_an_error_with_their_path(value: bytes) -> None:
    meta = meta_pb2.ObjectMeta(managed_fields=[meta_pb2.ManagedFieldsEntry(fields_v1=value)])
    with pytest.raises(FieldErrors) as refused:
        to_json(meta)
    assert refused.value.errors[0].path == "managedFields[0].fieldsV1"


@pytest.mark.parametrize(("seconds", "nanos"), [(2**62, 0), (-(2**62), 0), (0, -1), (0, 10**9)])
def test_a_stored_time_that_no_calendar_has_is_an_error_with_its_path(seconds: int, nanos: int) -> None:
    meta = meta_pb2.ObjectMeta()
    meta.creation_timestamp.seconds, meta.creation_timestamp.nanos = seconds, nanos
    with pytest.raises(FieldErrors) as refused:
        to_json(meta)
    assert refused.value.errors[0].path == "creationTimestamp"
