"""A configuration that changes while the scheduler runs: the last good one stays, and pods keep their place."""

import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.configuration.types import SchedulerConfiguration
from scheduler.core.events import ProfilesChanged
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
from scheduler.plugins.queue_plugins import PrioritySort
from scheduler.plugins.registry import default_profile
from scheduler.reloading import ConfigurationKeeper, profiles_changed
from services.model.pod import PodView
from services.runtime.clock import RealClock
from services.runtime.logging import silent
from tests.transcripts.test_scheduler_machine import node, pod

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
NO_FILTERS = HEAD + "profiles:\n- plugins: {filter: {disabled: [{name: '*'}]}}\n"


class Kept:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes: list[SchedulerConfiguration] = []
        self.keeper = ConfigurationKeeper(str(path), RealClock(), silent(), self.changes.append)

    def write(self, text: str) -> None:
        self.path.write_text(text)
        self.keeper.look()


def kept(tmp_path: Path) -> Kept:
    path = tmp_path / "scheduler.yaml"
    path.write_text(HEAD)
    return Kept(path)


def test_a_file_that_changes_comes_into_force_once(tmp_path: Path) -> None:
    it = kept(tmp_path)
    it.keeper.look()
    assert not it.changes
    it.write(NO_FILTERS)
    it.keeper.look()
    assert len(it.changes) == 1 and it.keeper.current is it.changes[0]
    assert not it.changes[0].profiles[0].points["filter"]


def test_a_file_that_is_wrong_leaves_the_last_good_one_in_force_and_says_so(tmp_path: Path) -> None:
    it = kept(tmp_path)
    it.write(NO_FILTERS)
    before = it.keeper.status()
    it.write(HEAD + "parallelism: 0\n")
    assert it.keeper.current is it.changes[0] and len(it.changes) == 1
    told = it.keeper.status()
    assert told.hash == before.hash and "line 3: parallelism" in told.problems[0] and it.keeper.error
    it.write(NO_FILTERS)
    assert not it.keeper.error and len(it.changes) == 1, "the same as is in force already"


def test_a_file_that_goes_away_leaves_the_last_good_one_in_force(tmp_path: Path) -> None:
    it = kept(tmp_path)
    it.path.unlink()
    it.keeper.look()
    assert "No such file" in it.keeper.error
    it.write(NO_FILTERS)
    assert len(it.changes) == 1 and not it.keeper.error


def test_a_file_that_is_wrong_at_the_start_ends_the_process_with_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(HEAD + "parallelism: 0\n")
    with pytest.raises(OSError, match=r"the configuration is wrong:\n.*line 3: parallelism: 0 should be"):
        Kept(path)


def attempt(machine: Machine, now: float) -> Attempted | None:
    actions = machine.step(Tick(), now)
    return next((action for action in actions if isinstance(action, Attempted)), None)


def change(tmp_path: Path, text: str) -> SchedulerConfiguration:
    it = kept(tmp_path)
    it.write(text)
    return it.changes[0]


def test_a_pod_that_waited_for_the_old_rules_is_tried_by_the_new_ones(tmp_path: Path) -> None:
    machine = Machine([default_profile()], 1)
    machine.step(LeadershipChanged(leading=True), 0.0)
    machine.step(NodeChanged(None, node("n", cpu=1)), 0.0)
    machine.step(PodChanged(None, pod("big", cpu=500)), 0.0)
    first = attempt(machine, 0.0)
    assert first is not None and not first.decision.node_name
    assert attempt(machine, 100.0) is None, "it sleeps"
    machine.step(profiles_changed(change(tmp_path, NO_FILTERS)), 100.0)
    second = attempt(machine, 100.0)
    assert second is not None and second.decision.node_name == "n" and second.woken_by == "ConfigurationChange"


def test_pods_of_a_profile_that_is_gone_leave_the_queue_and_those_of_a_new_one_are_ours(tmp_path: Path) -> None:
    machine = Machine([default_profile()], 1)
    machine.step(PodChanged(None, pod("a")), 0.0)
    assert machine.queue.length("active") == 1
    machine.step(profiles_changed(change(tmp_path, HEAD + "profiles: [{schedulerName: other}]\n")), 1.0)
    assert machine.queue.length("active") == 0
    assert not machine.queue.is_ours(pod("a"))


def test_the_backoff_times_of_the_file_count(tmp_path: Path) -> None:
    machine = Machine([default_profile()], 1)
    text = HEAD + "podInitialBackoffSeconds: 7\npodMaxBackoffSeconds: 9\n"
    machine.step(profiles_changed(change(tmp_path, text)), 0.0)
    machine.step(LeadershipChanged(leading=True), 0.0)
    machine.step(NodeChanged(None, node("n", cpu=1)), 0.0)
    machine.step(PodChanged(None, pod("big", cpu=500)), 0.0)
    attempt(machine, 0.0)
    machine.step(NodeChanged(node("n", cpu=1), node("n", cpu=1000)), 1.0)
    assert attempt(machine, 6.9) is None and attempt(machine, 7.0) is not None


def line(machine: Machine) -> list[str]:
    """Who comes when, to the end of the active queue."""
    names = []
    while (queued := machine.queue.pop(100.0)) is not None:
        names.append(queued.pod.name)
    return names


def test_pods_keep_their_place_in_line_over_many_changes(tmp_path: Path) -> None:
    machine = Machine([default_profile()], 1)
    names = [f"p{number}" for number in range(20)]
    for at, name in enumerate(names):
        # All as old as each other by twos, and every third before the others.
        machine.step(PodChanged(None, pod(name, priority=10 * (at % 3 == 0))), float(at // 2))
    wanted = [name for at, name in enumerate(names) if at % 3 == 0] + [n for at, n in enumerate(names) if at % 3]
    for _ in range(3):
        machine.step(profiles_changed(change(tmp_path, NO_FILTERS)), 50.0)
    first = machine.queue.get("uid-p0")
    assert first is not None and first.woken_by == "PodAdd" and first.enqueued_at == 0.0
    assert len(machine.queue._active) == len(names), "nobody stands in line twice"
    assert line(machine) == wanted


class Backwards(PrioritySort):
    """Another order."""

    name = "Backwards"

    def sort_key(self, pod: PodView, added_at: float) -> tuple[float, ...]:
        return (pod.spec.priority, -added_at)


def test_a_new_order_counts_for_those_who_stand_in_line_already() -> None:
    machine = Machine([default_profile()], 1)
    for at in range(4):
        machine.step(PodChanged(None, pod(f"p{at}")), float(at))
    others = [plugin for plugin in default_profile().plugins if plugin.name != "PrioritySort"]
    machine.step(ProfilesChanged((Profile("default-scheduler", [Backwards(), *others], {}),), 1.0, 10.0), 9.0)
    assert line(machine) == ["p3", "p2", "p1", "p0"]


def test_room_that_was_kept_for_a_pod_of_a_profile_that_is_gone_is_free(tmp_path: Path) -> None:
    machine = Machine([default_profile()], 1)
    machine.step(NodeChanged(None, node("n")), 0.0)
    machine.step(PodChanged(None, replace(pod("waits"), nominated_node_name="n")), 0.0)
    assert machine.nodes.nominated_node("uid-waits") == "n"
    machine.step(profiles_changed(change(tmp_path, HEAD + "profiles: [{schedulerName: other}]\n")), 1.0)
    assert not machine.nodes.nominated_node("uid-waits")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (1 << 22), b"", b"- [" * 100_000])
def test_whatever_stands_in_the_file_the_last_good_one_stays_in_force(tmp_path: Path, content: bytes) -> None:
    it = kept(tmp_path)
    it.path.write_bytes(content)
    it.keeper.look()
    it.keeper.look()
    assert it.keeper.error and not it.changes
    it.write(NO_FILTERS)
    assert not it.keeper.error and len(it.changes) == 1 and it.keeper.hash == it.keeper.status().hash


def test_a_pipe_or_a_folder_is_no_configuration(tmp_path: Path) -> None:
    it = kept(tmp_path)
    it.path.unlink()
    os.mkfifo(it.path)
    it.keeper.look()
    assert "no regular file" in it.keeper.error
    it.path.unlink()
    it.path.mkdir()
    it.keeper.look()
    assert "no regular file" in it.keeper.error and not it.changes


NAMES = ("default-scheduler", "batch", "nightly")


class Told:
    """A machine, and beside it the plain truth of which pods there are."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = Machine([default_profile(name) for name in NAMES], 1)
        self.ours = set(NAMES)
        self.pods: dict[str, PodView] = {}
        self.flying: list[str] = []
        self.made = 0
        self.now = 0.0
        self.machine.step(LeadershipChanged(leading=True), 0.0)
        self.machine.step(NodeChanged(None, node("n", cpu=400)), 0.0)

    def step(self) -> None:
        self.now += self.rng.choice((0.0, 0.5, 3.0))
        self.rng.choice(
            (self.add, self.add, self.remove, self.attempt, self.attempt, self.lose, self.reload, self.node)
        )()

    def add(self) -> None:
        self.made += 1
        facts: dict[str, object] = {
            "cpu": self.rng.choice((1, 900)),
            "scheduling_gates": self.rng.choice(((), (), ("g",))),
        }
        view = pod(f"p{self.made}", **facts)
        view = replace(view, spec=replace(view.spec, scheduler_name=self.rng.choice(NAMES)))
        self.pods[view.uid] = view
        self.machine.step(PodChanged(None, view), self.now)

    def remove(self) -> None:
        if self.pods:
            view = self.pods.pop(self.rng.choice(sorted(self.pods)))
            self.machine.step(PodChanged(view, None), self.now)

    def attempt(self) -> None:
        actions = self.machine.step(Tick(), self.now)
        self.flying += [action.pod.uid for action in actions if isinstance(action, Bind)]

    def lose(self) -> None:
        if self.flying:
            uid = self.flying.pop(0)
            self.machine.step(BindDone(uid, BindVerdict.LOST, "CAPACITY"), self.now)

    def node(self) -> None:
        self.machine.step(NodeChanged(None, node(f"n{self.rng.randrange(3)}", cpu=400)), self.now)

    def reload(self) -> None:
        """As the shell does it."""
        names = {name for name in NAMES if self.rng.random() < 0.6} or {NAMES[0]}
        profiles = tuple(default_profile(name) for name in sorted(names))
        self.machine.step(ProfilesChanged(profiles, 1.0, 10.0), self.now)
        new, self.ours = names - self.ours, names
        for view in list(self.pods.values()):
            if view.spec.scheduler_name in new:
                self.machine.step(PodChanged(None, view), self.now)

    def check(self) -> None:
        queue = self.machine.queue
        assumed = set(self.machine._assumed)
        known = {uid for uid in self.pods if queue.get(uid) is not None}
        wanted = {uid for uid, view in self.pods.items() if view.spec.scheduler_name in self.ours}
        assert known | (assumed & wanted) == wanted, "each pod of ours waits or is being bound, and no other waits"
        places = Counter(queued.place for uid in known if (queued := queue.get(uid)) is not None)
        for place in ("active", "backoff", "unschedulable", "gated", "flight"):
            assert queue.length(place) == places[place], place
        assert self.machine.nodes.nominated == {} or all(
            uid in wanted for waiting in self.machine.nodes.nominated.values() for uid in waiting
        )


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_between_changes_no_pod_is_lost_and_none_is_kept_that_is_not_ours(seed: int) -> None:
    told = Told(seed)
    for _ in range(150):
        told.step()
        told.check()


def test_a_pod_that_changes_while_it_is_bound_is_tried_again_as_it_is_then() -> None:
    machine = Machine([default_profile()], 1)
    machine.step(LeadershipChanged(leading=True), 0.0)
    machine.step(NodeChanged(None, node("n")), 0.0)
    machine.step(PodChanged(None, pod("a")), 0.0)
    assert attempt(machine, 0.0) is not None and machine.assumed == 1
    machine.step(PodChanged(pod("a"), pod("a", labels={"app": "new"})), 0.5)
    machine.step(BindDone("uid-a", BindVerdict.LOST, "CAPACITY"), 1.0)
    again = attempt(machine, 20.0)
    assert again is not None and again.pod.labels == {"app": "new"}
