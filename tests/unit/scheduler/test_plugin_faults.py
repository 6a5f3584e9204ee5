"""A plugin that raises, leaves, or answers what is no answer, at any point: it is named, and no pod and no scheduler is lost."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apiserver.store.memory import MemoryStore
from protos.orrery.v1.api_pb2 import BindResult
from protos.orrery.v1.pod_pb2 import Pod
from scheduler import binding
from scheduler.binding import BindQueue, Pending
from scheduler.core.events import PluginFailed, ProfilesChanged
from scheduler.core.faults import PluginFault
from scheduler.core.framework import CycleState, Key, Mask, Plugin, PostFilterResult, PreFilterResult, Reservation
from scheduler.core.machine import (
    Attempted,
    Bind,
    BindDone,
    BindVerdict,
    LeadershipChanged,
    Machine,
    NodeChanged,
    PodChanged,
    Tick,
)
from scheduler.core.profile import Profile
from scheduler.core.status import SKIP, SUCCESS, Code, Status
from scheduler.plugins.queue_plugins import PrioritySort
from services.model.pod import PodView
from services.runtime.clock import RealClock
from services.runtime.logging import silent
from tests import direct
from tests.transcripts.test_scheduler_machine import node, pod

Answer = Callable[[Any], Any]


def boom(_answer: Any) -> Any:
    raise ZeroDivisionError("by nothing")


def leave(_answer: Any) -> Any:
    raise SystemExit(3)


def nothing(_answer: Any) -> Any:
    return None


class Faulty(Plugin):
    """Takes part at every point; at one of them its answer goes through `spoil`."""

    name = "Faulty"

    def __init__(self, point: str, spoil: Answer) -> None:
        self._point = point
        self._spoil = spoil
        self.unreserved: list[str] = []

    def _say(self, point: str, answer: Any) -> Any:
        return self._spoil(answer) if point == self._point else answer

    def sort_key(self, view: PodView, added_at: float) -> Any:
        return self._say("QueueSort", (-view.spec.priority, added_at))

    def pre_enqueue(self, _pod: Any) -> Any:
        return self._say("PreEnqueue", SUCCESS)

    def pre_filter(self, *_: Any) -> Any:
        return self._say("PreFilter", PreFilterResult(SUCCESS))

    def filter(self, _state: Any, _pod: Any, nodes: Any) -> Any:
        refuses = self._point in ("PostFilter", "explain")
        mask = Mask(
            np.full(nodes.size, int(refuses)), lambda _number: self._say("explain", (Code.UNSCHEDULABLE, ("no",)))
        )
        return self._say("Filter", mask)

    def post_filter(self, *_: Any) -> Any:
        return self._say("PostFilter", PostFilterResult(Status(Code.UNSCHEDULABLE)))

    def pre_score(self, *_: Any) -> Any:
        return self._say("PreScore", SUCCESS)

    def score(self, _state: Any, _pod: Any, _nodes: Any, rows: Any) -> Any:
        return self._say("Score", np.zeros(len(rows), dtype=np.int64))

    def normalize(self, _state: Any, _pod: Any, scores: Any) -> Any:
        return self._say("NormalizeScore", scores)

    def reserve(self, *_: Any) -> Any:
        return self._say("Reserve", Reservation(SUCCESS))

    def unreserve(self, _pod: Any, node_name: str) -> None:
        self.unreserved.append(node_name)
        self._say("Unreserve", None)

    def permit(self, *_: Any) -> Any:
        return self._say("Permit", (SUCCESS, 0.0))

    async def pre_bind(self, *_: Any) -> Any:
        answer = self._say("PreBind", SUCCESS)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def post_bind(self, *_: Any) -> Any:
        answer = self._say("PostBind", None)
        return await answer if asyncio.iscoroutine(answer) else answer


def machine(plugin: Plugin) -> tuple[Machine, list[PluginFailed]]:
    """With two nodes and one pod that waits; and what was said of faults until then."""
    made = Machine([Profile("default-scheduler", [plugin], {plugin.name: 1})], 1)
    made.step(LeadershipChanged(leading=True), 0.0)
    made.step(NodeChanged(None, node("n1")), 0.0)
    made.step(NodeChanged(None, node("n2")), 0.0)
    said = made.step(PodChanged(None, pod("a")), 0.0)
    return made, [action for action in said if isinstance(action, PluginFailed)]


def with_codes(codes: Any) -> Answer:
    return lambda mask: Mask(codes, mask.explain)


RAISED = "plugin Faulty raised ZeroDivisionError: by nothing"
LEFT = "plugin Faulty raised SystemExit: 3"
POINTS = ("PreFilter", "Filter", "PostFilter", "PreScore", "Score", "NormalizeScore", "Reserve", "Permit")


@pytest.mark.parametrize(
    ("point", "spoil", "said"),
    [
        *((point, boom, RAISED) for point in POINTS),
        *((point, leave, LEFT) for point in POINTS),
        ("explain", boom, "plugin Faulty could not explain its verdict: ZeroDivisionError: by nothing"),
        ("explain", nothing, "plugin Faulty could not explain its verdict: TypeError: cannot unpack"),
        ("explain", lambda _: ("no", "why"), "plugin Faulty explained its verdict by tuple"),
        ("PreFilter", nothing, "plugin Faulty answered nothing at PreFilter, wanted a PreFilterResult"),
        ("PreFilter", lambda _: SUCCESS, "plugin Faulty answered Status at PreFilter, wanted a PreFilterResult"),
        ("Filter", lambda mask: mask.codes, "plugin Faulty answered ndarray at Filter, wanted a Mask"),
        ("Filter", with_codes(np.zeros(1)), "plugin Faulty answered float64 codes of shape (1,) for 2 rows at Filter"),
        ("Filter", with_codes(np.zeros(1, int)), "plugin Faulty answered int64 codes of shape (1,) for 2 rows"),
        ("Filter", with_codes(np.full(2, np.nan)), "plugin Faulty answered float64 codes of shape (2,) for 2 rows"),
        ("Filter", with_codes([0, 0]), "plugin Faulty answered no codes of shape None for 2 rows at Filter"),
        ("PostFilter", nothing, "plugin Faulty answered nothing at PostFilter, wanted a PostFilterResult"),
        ("PreScore", nothing, "plugin Faulty answered nothing at PreScore, wanted a Status"),
        ("Score", nothing, "plugin Faulty answered nothing at Score, wanted a column of integers"),
        ("Score", lambda _: 101, "plugin Faulty returned the score 101, outside [0, 100]"),
        ("Score", lambda scores: scores - 1, "plugin Faulty returned the score -1, outside [0, 100]"),
        ("Score", lambda _: float("nan"), "plugin Faulty answered float at Score, wanted a column of integers"),
        ("NormalizeScore", lambda scores: scores * np.nan, "plugin Faulty answered float64 scores of shape (2,)"),
        ("NormalizeScore", lambda scores: scores[:1], "plugin Faulty answered int64 scores of shape (1,) for 2 nodes"),
        ("Reserve", nothing, "plugin Faulty answered nothing at Reserve, wanted a Reservation"),
        ("Permit", nothing, "plugin Faulty answered nothing at Permit, wanted a tuple"),
        ("Permit", lambda _: (), "plugin Faulty answered tuple at Permit, wanted a Status"),
        ("Permit", lambda _: ("yes", 1.0), "plugin Faulty answered str at Permit, wanted a Status"),
    ],
)
def test_in_an_attempt_the_plugin_is_named_and_the_pod_is_tried_again(point: str, spoil: Answer, said: str) -> None:
    plugin = Faulty(point, spoil)
    made, _ = machine(plugin)
    (attempted, *_) = made.step(Tick(), 0.0)
    assert isinstance(attempted, Attempted)
    assert said in attempted.decision.error and attempted.decision.faulty == "Faulty"
    assert not attempted.decision.node_name and made.assumed == 0
    queued = made.queue.get("uid-a")
    assert queued is not None and queued.place == "backoff"
    assert len(plugin.unreserved) == int(point in ("Reserve", "Permit")), "what was set aside is given back"
    (again, *_) = made.step(Tick(), 1.0)
    assert isinstance(again, Attempted) and again.attempt == 2


@pytest.mark.parametrize(
    ("spoil", "said"), [(boom, RAISED), (leave, LEFT), (nothing, "answered nothing at PreEnqueue, wanted a Status")]
)
def test_a_pod_whose_gate_fails_is_asked_again_and_not_let_past(spoil: Answer, said: str) -> None:
    plugin = Faulty("PreEnqueue", spoil)
    made, failed = machine(plugin)
    assert [said in str(action.fault) and action.pod.name for action in failed] == ["a"]
    assert made.queue.length("backoff") == 1
    assert any(isinstance(action, PluginFailed) for action in made.step(Tick(), 20.0)), "asked again"
    assert made.queue.length("backoff") == 1 and made.attempts == 0
    plugin._spoil = lambda answer: answer
    made.step(Tick(), 40.0)
    assert made.attempts == 1


@pytest.mark.parametrize("spoil", [boom, leave, nothing, lambda _: (float("nan"),), lambda _: ("first",), lambda _: 3])
def test_without_a_key_priority_and_age_decide(spoil: Answer) -> None:
    plugin = Faulty("QueueSort", spoil)
    made = Machine([Profile("default-scheduler", [plugin], {"Faulty": 1})], 1)
    failed = [*made.step(PodChanged(None, pod("low")), 0.0), *made.step(PodChanged(None, pod("high", priority=5)), 1.0)]
    assert all(isinstance(action, PluginFailed) and action.fault.plugin == "Faulty" for action in failed)
    assert len(failed) == 2
    order = [made.queue.pop(2.0), made.queue.pop(2.0)]
    assert [queued is not None and queued.pod.name for queued in order] == ["high", "low"]


@pytest.mark.parametrize("spoil", [boom, leave])
def test_an_unreserve_that_fails_loses_no_pod(spoil: Answer) -> None:
    made, _ = machine(Faulty("Unreserve", spoil))
    made.step(Tick(), 0.0)
    (failed,) = made.step(BindDone("uid-a", BindVerdict.LOST, "CAPACITY"), 1.0)
    assert isinstance(failed, PluginFailed) and failed.fault.plugin == "Faulty"
    assert made.assumed == 0 and made.queue.length("backoff") == 1


def test_a_gate_that_a_new_configuration_brings_holds_pods_that_back_off() -> None:
    made, _ = machine(Faulty("Permit", boom))
    made.step(Tick(), 0.0)
    gate = Faulty("PreEnqueue", lambda _: Status(Code.UNSCHEDULABLE, ("closed",)))
    made.step(ProfilesChanged((Profile("default-scheduler", [gate], {}),), 1.0, 10.0), 0.5)
    assert made.queue.length("backoff") == 1
    made.step(Tick(), 5.0)
    assert made.queue.length("gated") == 1 and made.attempts == 1


async def hang() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("point", "spoil", "said"),
    [
        ("PreBind", boom, "plugin Faulty raised ZeroDivisionError at PreBind: by nothing"),
        ("PreBind", leave, "plugin Faulty raised SystemExit at PreBind: 3"),
        ("PreBind", nothing, "plugin Faulty answered nothing at PreBind, wanted a Status"),
        ("PreBind", lambda _: hang(), "plugin Faulty did not answer at PreBind within 0.05 s"),
        ("PostBind", boom, "plugin Faulty raised ZeroDivisionError at PostBind: by nothing"),
        ("PostBind", lambda _: hang(), "plugin Faulty did not answer at PostBind within 0.05 s"),
    ],
)
async def test_around_a_bind_the_plugin_is_named_and_the_bind_gets_its_outcome(
    point: str, spoil: Answer, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "PLUGIN_SECONDS_MAX", 0.05)
    faults: list[str] = []
    told = asyncio.Event()
    answers: asyncio.Queue[BindVerdict] = asyncio.Queue()

    def on_done(_pending: Pending, _result: BindResult, done: BindDone) -> None:
        answers.put_nowait(done.verdict)

    def on_fault(_pod: PodView, fault: PluginFault) -> None:
        faults.append(str(fault))
        told.set()

    async with direct.api_servers([MemoryStore()]) as (api,):
        fence = await direct.lead(api.client)
        await api.client.create("nodes", direct.node("n1"))
        profile = Profile("default-scheduler", [Faulty(point, spoil)], {})
        queue = BindQueue(
            api.client,
            RealClock(),
            random.Random(1),
            silent(),
            on_done,
            lambda _fence: None,
            {"default-scheduler": profile},
            on_fault=on_fault,
        )
        running = asyncio.create_task(queue.run())
        # Twice: the queue goes on after a fault.
        for name in ("a", "b"):
            created = Pod.FromString((await api.client.create("pods", direct.pod(name))).object.value)
            queue.submit(Bind(pod(name, uid=created.metadata.uid), "n1", (), 1), fence, "")
            assert await answers.get() is (BindVerdict.LOST if point == "PreBind" else BindVerdict.BOUND)
            await told.wait()
            told.clear()
        await direct.stop(running)
    assert faults == [said, said]


NOTED: Key[int] = Key("Notes")


class Notes(Plugin):
    """Has nothing to say of any node, and counts on the state at Reserve; at the point `spoils` it answers
    nonsense from the second pod on."""

    name = "Notes"

    def __init__(self, spoils: str = "") -> None:
        self._spoils = spoils
        self.calls = 0

    def pre_filter(self, *_: Any) -> Any:
        self.calls += 1
        return None if self._spoils == "PreFilter" and self.calls > 1 else PreFilterResult(SKIP)

    def pre_score(self, state: CycleState, *_: Any) -> Any:
        state.write(NOTED, 7)
        return None if self._spoils == "PreScore" and self.calls > 1 else SUCCESS

    def score(self, *_: Any) -> Any:
        return None if self._spoils == "Score" and self.calls > 1 else 3


class Reserves(Notes):
    """Reads at Reserve what it wrote at PreScore."""

    def reserve(self, state: CycleState, *_: Any) -> Reservation:
        assert state.read(NOTED) == 7
        return Reservation(SUCCESS)


def two_alike(plugin: Plugin) -> list[Attempted]:
    """The attempts of two pods that ask for the same."""
    made = Machine([Profile("default-scheduler", [PrioritySort(), plugin], {plugin.name: 1})], 1)
    made.step(LeadershipChanged(leading=True), 0.0)
    for name in ("n1", "n2", "n3"):
        made.step(NodeChanged(None, node(name)), 0.0)
    first = pod("a")
    made.step(PodChanged(None, first), 0.0)
    made.step(PodChanged(None, replace(first, name="b", uid="uid-b")), 1.0)
    actions = [action for at in (2.0, 3.0) for action in made.step(Tick(), at)]
    return [action for action in actions if isinstance(action, Attempted)]


def test_a_plugin_that_reads_the_state_at_reserve_has_it_for_a_pod_like_the_one_before() -> None:
    for attempted in two_alike(Reserves()):
        assert attempted.decision.node_name, attempted.decision.error


@pytest.mark.parametrize("point", ["PreFilter", "PreScore", "Score"])
def test_nonsense_about_a_pod_like_the_one_before_is_a_fault_too(point: str) -> None:
    good, bad = two_alike(Notes(point))
    assert good.decision.node_name
    assert bad.decision.faulty == "Notes" and f"answered nothing at {point}" in bad.decision.error
