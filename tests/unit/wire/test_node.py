"""Nodes: bytes to projections, and conditions edited on the message."""

import pytest

from protos.orrery.v1 import node_pb2
from services.model.node import Taint
from services.wire.conditions import set_condition
from services.wire.metadata import DecodeError
from services.wire.node import node_view


def make() -> node_pb2.Node:
    node = node_pb2.Node()
    node.metadata.name, node.metadata.uid = "node-a", "uid-a"
    node.metadata.labels["zone"] = "a"
    node.status.capacity["cpu"], node.status.capacity["memory"], node.status.capacity["pods"] = "8", "16Gi", "110"
    return node


def test_a_node_projects_allocatable_in_ledger_units() -> None:
    node = make()
    node.spec.unschedulable = True
    node.spec.taints.add(key="gpu", value="h100", effect="NoSchedule")
    node.status.allocatable["cpu"], node.status.allocatable["nvidia.com/gpu"] = "7500m", "8"
    node.status.conditions.add(type="Ready", status="True")
    view = node_view(node.SerializeToString(), "9")
    assert (view.name, view.uid, view.resource_version, view.labels) == ("node-a", "uid-a", "9", {"zone": "a"})
    assert view.allocatable == {"cpu": 7500, "nvidia.com/gpu": 8}
    assert view.taints == (Taint("gpu", "h100", "NoSchedule"),)
    assert view.unschedulable
    assert view.ready


def test_without_allocatable_capacity_counts_and_without_condition_a_node_is_not_ready() -> None:
    view = node_view(make().SerializeToString(), "1")
    assert view.allocatable == {"cpu": 8000, "memory": 16 * 2**30, "pods": 110}
    assert not view.ready


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_ready_is_the_condition_with_status_true(status: str) -> None:
    node = make()
    set_condition(node, "Ready", status, 1)
    assert not node_view(node.SerializeToString(), "1").ready


def test_bytes_that_are_no_node_are_a_decode_error() -> None:
    node = make()
    node.status.allocatable["cpu"] = "many"
    with pytest.raises(DecodeError, match="'many' is not a quantity"):
        node_view(node.SerializeToString(), "1")
    with pytest.raises(DecodeError):
        node_view(b"\x1a\x7f", "1")


def test_a_condition_moves_its_transition_time_only_with_its_status() -> None:
    node = make()
    assert set_condition(node, "Ready", "True", 5_999_999_999, reason="KubeletReady", text="up")
    assert not set_condition(node, "Ready", "True", 9_000_000_000, reason="KubeletReady", text="up")
    assert set_condition(node, "Ready", "True", 9_000_000_000, reason="StillReady")
    [condition] = node.status.conditions
    assert (condition.last_transition_time.seconds, condition.last_transition_time.nanos) == (5, 0)
    assert (condition.reason, condition.HasField("message")) == ("StillReady", False)
    assert set_condition(node, "Ready", "False", 9_000_000_000)
    assert condition.last_transition_time.seconds == 9
    assert not condition.HasField("reason")
