"""Every extension point is called, in its order, and what it answers counts."""

import asyncio
import random

import numpy as np
import pytest

from apiserver.store.memory import MemoryStore
from protos.orrery.v1.api_pb2 import BindResult
from protos.orrery.v1.pod_pb2 import Pod
from scheduler.binding import BindQueue, Pending
from scheduler.core.cycle import Cycle
from scheduler.core.framework import (
    ClusterEvent,
    CycleState,
    Mask,
    PerNodeFilter,
    PerNodeScore,
    Plugin,
    PostFilterResult,
    PreFilterResult,
    Reservation,
    WhatIf,
)
from scheduler.core.machine import (
    Attempted,
    Bind,
    BindDone,
    BindVerdict,
    LeadershipChanged,
    Machine,
    NodeChanged,
    PluginFailed,
    PodChanged,
    Tick,
)
from scheduler.core.profile import Profile
from scheduler.core.status import SUCCESS, Code, Status
from scheduler.core.table import I64, Bools, NodeTable
from scheduler.plugins.queue_plugins import PrioritySort
from scheduler.plugins.registry import default_profile
from scheduler.plugins.taints import NodeUnschedulable
from services.model.node import NodeView
from services.model.pod import PodView
from services.runtime.clock import RealClock
from services.runtime.logging import silent
from tests import direct
from tests.transcripts.test_scheduler_machine import node, pod


class Everywhere(Plugin):
    """Takes part at every point and notes its calls; `refuses` names the point at which it says no."""

    name = "Everywhere"

    def __init__(self, refuses: str = "") -> None:
        self.calls: list[str] = []
        self.post_bound = asyncio.Event()
        self._refuses = refuses

    def _say(self, point: str) -> Status:
        self.calls.append(point)
        return Status(Code.UNSCHEDULABLE, (f"no at {point}",)) if point == self._refuses else SUCCESS

    def pre_enqueue(self, _pod: PodView) -> Status:
        return self._say("PreEnqueue")

    def pre_filter(self, _state: CycleState, _pod: PodView, _nodes: NodeTable) -> PreFilterResult:
        return PreFilterResult(self._say("PreFilter"))

    def filter(self, _state: CycleState, _pod: PodView, nodes: NodeTable) -> Mask:
        refused = not self._say("Filter").ok
        codes = np.full(nodes.size, int(refused), dtype=np.int64)
        return Mask(codes, lambda _number: (Code.UNSCHEDULABLE, ("no at Filter",)))

    def post_filter(self, _state: CycleState, _pod: PodView, _nodes: NodeTable, _what_if: WhatIf) -> PostFilterResult:
        self._say("PostFilter")
        return PostFilterResult(Status(Code.UNSCHEDULABLE, ("nothing to preempt",)))

    def pre_score(self, _state: CycleState, _pod: PodView, _nodes: NodeTable, _feasible: Bools) -> Status:
        return self._say("PreScore")

    def score(self, _state: CycleState, _pod: PodView, _nodes: NodeTable, feasible: I64) -> I64:
        self._say("Score")
        return np.arange(len(feasible), dtype=np.int64)

    def normalize(self, _state: CycleState, _pod: PodView, scores: I64) -> I64:
        self._say("NormalizeScore")
        return 100 - scores if self._refuses != "NormalizeScore" else scores + 200

    def reserve(self, _state: CycleState, _pod: PodView, _nodes: NodeTable, _row: int) -> Reservation:
        return Reservation(self._say("Reserve"))

    def unreserve(self, _pod: PodView, _node_name: str) -> None:
        self._say("Unreserve")

    def permit(self, _state: CycleState, _pod: PodView, _node_name: str) -> tuple[Status, float]:
        return self._say("Permit"), 0.0

    async def pre_bind(self, _pod: PodView, _node_name: str) -> Status:
        return self._say("PreBind")

    async def post_bind(self, _pod: PodView, _node_name: str) -> None:
        self._say("PostBind")
        self.post_bound.set()


def machine(plugin: Plugin) -> Machine:
    made = Machine([Profile("default-scheduler", [PrioritySort(), plugin], {})], seed=1)
    made.step(LeadershipChanged(leading=True), 0.0)
    for name in ("n1", "n2"):
        made.step(NodeChanged(None, node(name)), 0.0)
    made.step(PodChanged(None, pod("a")), 0.0)
    return made


def test_the_points_of_a_cycle_come_in_kubernetes_order() -> None:
    plugin = Everywhere()
    actions = machine(plugin).step(Tick(), 0.0)
    assert any(isinstance(action, Bind) and action.node_name == "n1" for action in actions)
    assert plugin.calls == [
        "PreEnqueue",
        "PreFilter",
        "Filter",
        "PreScore",
        "Score",
        "NormalizeScore",
        "Reserve",
        "Permit",
    ]


def test_a_refusal_ends_the_cycle_where_it_is_made() -> None:
    for point, after in (
        ("PreEnqueue", []),
        ("PreFilter", ["PostFilter"]),
        ("Filter", ["PostFilter"]),
        ("Reserve", ["Unreserve"]),
        ("Permit", ["Unreserve"]),
    ):
        plugin = Everywhere(refuses=point)
        actions = machine(plugin).step(Tick(), 0.0)
        assert not any(isinstance(action, Bind) for action in actions)
        assert plugin.calls[plugin.calls.index(point) + 1 :] == after, point


def test_a_lost_bind_unreserves() -> None:
    plugin = Everywhere()
    made = machine(plugin)
    made.step(Tick(), 0.0)
    made.step(BindDone("uid-a", BindVerdict.LOST, "CAPACITY"), 1.0)
    assert plugin.calls[-1] == "Unreserve"


def test_a_score_outside_0_to_100_is_the_plugins_error_and_is_named() -> None:
    table = NodeTable()
    for name in ("n1", "n2"):
        table.put_node(node(name))
    profile = Profile("default-scheduler", [PrioritySort(), Everywhere(refuses="NormalizeScore")], {})
    decision = Cycle(profile, 1).run(pod("a"), table)
    assert decision.node_name == ""
    assert "plugin Everywhere returned the score 201, outside [0, 100]" in decision.error


class Raises(Plugin):
    """Raises at one point, and at every hint."""

    name = "Raises"

    def __init__(self, point: str) -> None:
        self._point = point

    def _at(self, point: str) -> None:
        if point == self._point:
            raise ZeroDivisionError("by nothing")

    def pre_filter(self, _state: CycleState, _pod: PodView, _nodes: NodeTable) -> PreFilterResult:
        self._at("PreFilter")
        return PreFilterResult(SUCCESS)

    def filter(self, _state: CycleState, _pod: PodView, nodes: NodeTable) -> Mask:
        self._at("Filter")
        return Mask(np.full(nodes.size, int(self._point == "wakes")), lambda _number: (Code.UNSCHEDULABLE, ("no",)))

    def score(self, _state: CycleState, _pod: PodView, _nodes: NodeTable, feasible: I64) -> I64:
        self._at("Score")
        return np.full(len(feasible), np.nan) if self._point == "NaN" else feasible[:1]  # type: ignore[return-value]

    def wakes(self, _event: ClusterEvent, _pod: PodView) -> bool:
        raise ZeroDivisionError("by nothing")


def test_a_plugin_that_raises_or_answers_nonsense_is_named_and_the_pod_is_tried_again() -> None:
    for point, said in (
        ("PreFilter", "plugin Raises raised ZeroDivisionError: by nothing"),
        ("Filter", "plugin Raises raised ZeroDivisionError: by nothing"),
        ("Score", "plugin Raises raised ZeroDivisionError: by nothing"),
        ("NaN", "plugin Raises answered float64 scores of shape (2,) for 2 nodes"),
        ("shape", "plugin Raises answered int64 scores of shape (1,) for 2 nodes"),
    ):
        made = machine(Raises(point))
        (attempted, *_) = made.step(Tick(), 0.0)
        assert isinstance(attempted, Attempted)
        assert attempted.decision.error == said
        queued = made.queue.get("uid-a")
        assert queued is not None
        assert queued.place == "backoff"


def test_a_fault_of_our_own_is_not_blamed_on_a_plugin() -> None:
    made = machine(Everywhere())
    made.nodes.alive = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        made.step(Tick(), 0.0)


def test_a_hint_that_raises_wakes() -> None:
    made = machine(Raises("wakes"))
    made.step(Tick(), 0.0)
    queued = made.queue.get("uid-a")
    assert queued is not None
    assert queued.place == "unschedulable"
    said = made.step(NodeChanged(None, node("n3")), 20.0)
    assert queued.place == "active"
    assert [action.fault.plugin for action in said if isinstance(action, PluginFailed)] == ["Raises"]


class OneByOne(PerNodeFilter):
    """NodeUnschedulable, written for one node at a time."""

    name = "OneByOne"

    def filter_node(self, _state: CycleState, _pod: PodView, view: NodeView) -> Status:
        return Status(Code.UNSCHEDULABLE, ("cordoned",)) if view.unschedulable else SUCCESS


class Names(PerNodeScore):
    name = "Names"

    def score_node(self, _state: CycleState, _pod: PodView, view: NodeView) -> int:
        return int(view.name[1:])


def test_one_node_at_a_time_gives_the_same_answer() -> None:
    table = NodeTable()
    for number in range(80):
        table.put_node(node(f"n{number}", unschedulable=number % 3 == 0))
    table.remove_node("n4")
    whole = NodeUnschedulable().filter(CycleState(), pod("a"), table)
    single = OneByOne().filter(CycleState(), pod("a"), table)
    alive = table.alive[: table.size]
    assert (whole.codes[alive] == single.codes[alive]).all()
    assert single.codes[alive].any()
    rows = np.flatnonzero(alive & (single.codes == 0))
    assert Names().score(CycleState(), pod("a"), table, rows).tolist() == [int(table.names[row][1:]) for row in rows]


async def bind_with(plugin: Everywhere) -> list[tuple[BindVerdict, str]]:
    """Binds one pod through a real API server, with the plugin's PreBind and PostBind around it."""
    answers: list[tuple[BindVerdict, str]] = []
    answered = asyncio.Event()

    def on_done(_pending: Pending, result: BindResult, done: BindDone) -> None:
        answers.append((done.verdict, result.message))
        answered.set()

    async with direct.api_servers([MemoryStore()]) as (api,):
        fence = await direct.lead(api.client)
        await api.client.create("nodes", direct.node("n1"))
        created = Pod.FromString((await api.client.create("pods", direct.pod("a"))).object.value)
        profiles = {"default-scheduler": Profile("default-scheduler", [*default_profile().plugins, plugin], {})}
        queue = BindQueue(api.client, RealClock(), random.Random(1), silent(), on_done, lambda _fence: None, profiles)
        running = asyncio.create_task(queue.run())
        queue.submit(Bind(pod("a", uid=created.metadata.uid), "n1", (), 1), fence, "")
        await answered.wait()
        if answers[0][0] is BindVerdict.BOUND:
            await plugin.post_bound.wait()
        await direct.stop(running)
    return answers


async def test_pre_bind_and_post_bind_stand_around_the_bind() -> None:
    plugin = Everywhere()
    assert await bind_with(plugin) == [(BindVerdict.BOUND, "")]
    assert plugin.calls == ["PreBind", "PostBind"]
    refusing = Everywhere(refuses="PreBind")
    assert await bind_with(refusing) == [(BindVerdict.LOST, "Everywhere: no at PreBind")]
    assert refusing.calls == ["PreBind"]
