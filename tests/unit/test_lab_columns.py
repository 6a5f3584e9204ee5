"""What `orrery get` shows, in kubectl's words."""

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from protos.orrery.v1.event_pb2 import Event
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.pod_pb2 import Pod
from services.lab.columns import COLUMNS, age, align, cells, duration_words, gpus_words, header, pod_status
from services.model.kinds import KINDS
from services.wire.codec import from_json

NOW_NS = 1_000_000_000 * 1_000_000


def pod(**status: Any) -> Pod:
    return from_json(
        {
            "metadata": {"name": "web-0", "namespace": "shop"},
            "spec": {"nodeName": "n-1", "containers": [{"name": "a"}, {"name": "b"}]},
            "status": status,
        },
        Pod,
    )


def container(name: str, state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, **more}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "<invalid>"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_220, "3h7m"),
        (28_800, "8h"),
        (172_799, "47h"),
        (172_800, "2d"),
        (183_600, "2d3h"),
        (691_200, "8d"),
        (63_072_000, "2y"),
        (63_158_400, "2y1d"),
        (252_288_000, "8y"),
    ],
)
def test_ages_are_written_as_kubectl_writes_them(seconds: int, words: str) -> None:
    assert duration_words(seconds) == words


def test_what_has_no_time_has_no_age() -> None:
    assert age(None, NOW_NS) == "<unknown>"
    assert age(Timestamp(), NOW_NS) == "<unknown>"
    assert age(Timestamp(seconds=1_000_000 - 30), NOW_NS) == "30s"


RUNNING = {"running": {}}
WAITING = {"waiting": {"reason": "ContainerCreating"}}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({}, "Pending"),
        ({"phase": "Pending"}, "Pending"),
        ({"phase": "Pending", "containerStatuses": [container("a", WAITING)]}, "ContainerCreating"),
        ({"phase": "Running", "containerStatuses": [container("a", RUNNING, ready=True)]}, "Running"),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError"),
        (
            {
                "phase": "Succeeded",
                "containerStatuses": [container("a", {"terminated": {"exitCode": 0, "reason": "Completed"}})],
            },
            "Completed",
        ),
        ({"phase": "Failed", "containerStatuses": [container("a", {"terminated": {"exitCode": 3}})]}, "ExitCode:3"),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
            },
            "SchedulingGated",
        ),
    ],
)
def test_the_status_of_a_pod(status: dict[str, Any], words: str) -> None:
    assert pod_status(pod(**status)) == words


def test_a_pod_that_is_being_deleted_is_terminating() -> None:
    going = pod(phase="Running")
    going.metadata.deletion_timestamp.seconds = 5
    assert pod_status(going) == "Terminating"


def test_a_pod_row_counts_ready_containers_and_restarts() -> None:
    made = pod(
        phase="Running",
        podIP="10.0.0.7",
        containerStatuses=[
            container("a", RUNNING, ready=True, restartCount=2),
            container("b", RUNNING, restartCount=1),
        ],
    )
    made.metadata.creation_timestamp.seconds = 1_000_000 - 61
    made.placed.devices.add(index=0, milli=1000)
    assert cells("Pod", made, NOW_NS, wide=False, namespaces=False) == ["web-0", "1/2", "Running", "3", "61s"]
    wide = ["shop", "web-0", "1/2", "Running", "3", "61s", "10.0.0.7", "n-1", "0"]
    assert cells("Pod", made, NOW_NS, wide=True, namespaces=True) == wide


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([], "<none>"),
        ([(index, 1000) for index in range(8)], "0-7"),
        ([(0, 1000), (3, 1000), (4, 1000)], "0,3-4"),
        ([(1, 470)], "1 (470m)"),
    ],
)
def test_devices_are_written_as_ranges(shares: list[tuple[int, int]], words: str) -> None:
    made = Pod()
    for index, milli in shares:
        made.placed.devices.add(index=index, milli=milli)
    assert gpus_words(made) == words


@pytest.mark.parametrize(("status", "words"), [("True", "Ready"), ("False", "NotReady"), ("Unknown", "Unknown")])
def test_a_node_says_whether_it_is_ready_and_takes_pods(status: str, words: str) -> None:
    node = Node()
    node.status.conditions.add(type="Ready", status=status)
    assert cells("Node", node, NOW_NS, wide=False, namespaces=False)[1] == words
    node.spec.unschedulable = True
    assert cells("Node", node, NOW_NS, wide=False, namespaces=False)[1] == f"{words},SchedulingDisabled"


def test_an_event_tells_when_it_was_last_seen() -> None:
    event = from_json(
        {
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod", "name": "web-0"},
            "type": "Warning",
            "reason": "FailedScheduling",
            "message": "0/3 nodes are available.\n",
            "eventTime": "1970-01-12T13:46:00.000000Z",
        },
        Event,
    )
    row = cells("Event", event, NOW_NS, wide=False, namespaces=False)
    assert row == ["40s", "Warning", "FailedScheduling", "pod/web-0", "0/3 nodes are available."]


def test_every_kind_has_columns_and_an_empty_object_has_as_many_cells() -> None:
    from services.wire.kinds import message_class

    for kind in KINDS:
        for wide in (False, True):
            row = cells(kind.name, message_class(kind)(), NOW_NS, wide=wide, namespaces=kind.namespaced)
            assert len(row) == len(header(kind.name, wide=wide, namespaces=kind.namespaced)), kind.name
    assert set(COLUMNS) == {kind.name for kind in KINDS}


def test_columns_stand_three_spaces_apart_without_trailing_blanks() -> None:
    assert align([["NAME", "AGE"], ["longer", "1s"]]) == ["NAME     AGE", "longer   1s"]
    assert align([]) == []
