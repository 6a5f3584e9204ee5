"""Creating many objects over a network that loses answers: each object once, whatever happens."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from protos.orrery.v1.api_pb2 import BatchRequest, BatchResponse, Operation
from services.client.api import ApiClient
from services.lab.bulk import ATTEMPTS_MAX, BulkResult, create_all
from services.lab.connect import Session
from services.lab.errors import LabError
from services.lab.openb import TracePod
from services.lab.replay import PodState, _Tracker, pod_state
from services.lab.state import MeshFolder, MeshOptions, MeshRecord
from services.lab.trace_objects import create, pod_message
from services.model.errors import ApiError, Forbidden, OutcomeUnknown, Unavailable
from services.runtime.transport import Channel
from services.wire.metadata import object_key

Fault = Callable[[int, int], str]


class InstantClock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ns(self) -> int:
        return int(self.now * 1e9)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Server:
    """Keeps what was created. `fault(call, index)` says what becomes of an operation: "", "before", "after", "refuse"."""

    def __init__(self, fault: Fault) -> None:
        self.created: list[str] = []
        self.calls = 0
        self._fault = fault

    async def unary(self, _method: str, request: Message, _response_type: Any, **_options: Any) -> BatchResponse:
        batch = cast("BatchRequest", request)
        self.calls += 1
        response = BatchResponse()
        for index, operation in enumerate(batch.operations):
            self._answer(response, self._fault(self.calls, index), object_key(operation.create.value))
        return response

    def _answer(self, response: BatchResponse, fault: str, key: str) -> None:
        if fault == "lost call":
            raise Unavailable("no server answers")
        answer = response.results.add()
        if fault == "refuse":
            answer.status.reason, answer.status.message = Forbidden.reason, f"{key} is forbidden"
        elif fault == "before":
            answer.status.reason = Unavailable.reason
        elif key in self.created:
            answer.status.reason = "AlreadyExists"
        else:
            self.created.append(key)
            if fault == "after":
                answer.status.reason = OutcomeUnknown.reason
            else:
                answer.done.SetInParent()


def operations(count: int) -> list[Operation]:
    return [create("pods", pod_message(TracePod(f"p-{number}", 1, 1, 0, 0, ()), "ns")) for number in range(count)]


async def run(fault: Fault, count: int = 250) -> tuple[Server, BulkResult, int]:
    server = Server(fault)
    api = ApiClient(cast("Channel", server))
    folder = MeshFolder(Path("nowhere"), "x")
    unused: Any = None
    session = Session(folder, MeshRecord("x", MeshOptions()), api, unused, InstantClock(), random.Random(1))
    done = 0

    def note(more: int) -> None:
        nonlocal done
        done += more

    result = await create_all(session, operations(count), note)
    return server, result, done


KEYS = sorted(f"ns/p-{number}" for number in range(250))


async def test_everything_is_created_in_few_calls() -> None:
    server, result, done = await run(lambda _call, _index: "")
    assert sorted(server.created) == KEYS
    assert (server.calls, result.created, done, result.resubmitted) == (3, 250, 250, 0)


async def test_what_certainly_did_not_happen_is_submitted_again() -> None:
    server, result, done = await run(lambda call, index: "before" if call <= 3 and index % 2 else "")
    assert sorted(server.created) == KEYS
    assert (result.created, result.existed, done) == (250, 0, 250)
    assert result.resubmitted >= 50


async def test_what_may_have_happened_is_not_created_twice_and_counts_as_ours() -> None:
    server, result, done = await run(lambda call, _index: "after" if call <= 3 else "")
    assert sorted(server.created) == KEYS
    assert (result.created, result.existed, done) == (250, 0, 250)


async def test_a_call_that_no_server_took_is_repeated_whole() -> None:
    server, result, _ = await run(lambda call, _index: "lost call" if call in (1, 2) else "")
    assert sorted(server.created) == KEYS
    assert result.created == 250


async def test_what_was_there_before_is_told_apart() -> None:
    server = Server(lambda _call, _index: "")
    server.created = ["ns/p-0", "ns/p-1"]
    api = ApiClient(cast("Channel", server))
    unused: Any = None
    session = Session(
        MeshFolder(Path("nowhere"), "x"), MeshRecord("x", MeshOptions()), api, unused, InstantClock(), random.Random(1)
    )
    result = await create_all(session, operations(5), lambda _count: None)
    assert (result.created, result.existed) == (3, 2)


async def test_a_refusal_for_good_ends_it_with_the_servers_words() -> None:
    with pytest.raises(LabError, match="ns/p-7 is forbidden"):
        await run(lambda _call, index: "refuse" if index == 7 else "")


async def test_servers_that_never_answer_end_it_after_a_bounded_number_of_attempts() -> None:
    with pytest.raises(LabError, match="no API server answers for long"):
        await run(lambda _call, _index: "lost call", count=1)
    assert ATTEMPTS_MAX < 1000


async def test_an_error_of_the_whole_call_is_not_retried() -> None:
    class Refusing(Server):
        async def unary(self, *_arguments: Any, **_options: Any) -> BatchResponse:
            self.calls += 1
            raise Forbidden("not you")

    server = Refusing(lambda _call, _index: "")
    unused: Any = None
    session = Session(
        MeshFolder(Path("nowhere"), "x"),
        MeshRecord("x", MeshOptions()),
        ApiClient(cast("Channel", server)),
        unused,
        InstantClock(),
        random.Random(1),
    )
    with pytest.raises((LabError, ApiError), match="not you"):
        await create_all(session, operations(1), lambda _count: None)
    assert server.calls == 1


def test_the_tracker_counts_each_pod_once_whatever_order_its_changes_take() -> None:
    tracker = _Tracker(frozenset({"ns/a", "ns/b"}))
    waiting, refused = PodState("", 0, False, "Pending"), PodState("", 0, True, "Pending")
    bound, running = PodState("n", 470, True, "Pending"), PodState("n", 470, False, "Running")
    for key, old, new in (
        ("ns/a", None, waiting),
        ("ns/b", None, refused),
        ("ns/other", None, running),
        ("ns/a", waiting, bound),
        ("ns/a", bound, running),
        ("ns/a", running, running),
    ):
        tracker.on_event(key, old, new)
    assert (tracker.seen, tracker.placed, tracker.unschedulable, tracker.running, tracker.gpu_milli) == (
        2,
        1,
        1,
        1,
        470,
    )
    tracker.on_event("ns/a", running, None)
    assert (tracker.seen, tracker.placed, tracker.running, tracker.gpu_milli) == (1, 0, 0, 0)


def test_a_pod_is_placed_by_its_record_and_unschedulable_by_its_condition() -> None:
    pod = pod_message(TracePod("a", 1, 1, 1, 470, ()), "ns")
    assert pod_state(pod.SerializeToString(), "1") == PodState("", 0, False, "")
    pod.status.conditions.add(type="PodScheduled", status="False", reason="Unschedulable")
    assert pod_state(pod.SerializeToString(), "2").unschedulable
    pod.placed.node_name = "n"
    pod.placed.devices.add(index=0, milli=470)
    assert pod_state(pod.SerializeToString(), "3") == PodState("n", 470, True, "")


@pytest.mark.parametrize(
    ("row", "requests", "annotations"),
    [
        (TracePod("a", 1500, 1024, 0, 0, ()), {"cpu": "1500m", "memory": "1Gi"}, {}),
        (TracePod("a", 2000, 1, 8, 1000, ()), {"cpu": "2", "memory": "1Mi", "nvidia.com/gpu": "8"}, {}),
        (
            TracePod("a", 1, 1, 1, 470, ("T4", "P100")),
            {"cpu": "1m", "memory": "1Mi", "orrery.dev/gpu-milli": "470"},
            {"orrery.dev/gpu-models": "T4|P100"},
        ),
        (
            TracePod("a", 1, 1, 2, 500, ()),
            {"cpu": "1m", "memory": "1Mi", "orrery.dev/gpu-milli": "1000"},
            {"orrery.dev/gpu-count": "2"},
        ),
    ],
)
def test_a_row_becomes_a_pod_that_asks_for_the_same(
    row: TracePod, requests: dict[str, str], annotations: dict[str, str]
) -> None:
    pod = pod_message(row, "ns")
    assert dict(pod.spec.containers[0].resources.requests) == requests
    assert dict(pod.metadata.annotations) == annotations
