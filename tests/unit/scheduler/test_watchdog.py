"""A plugin that does not return is interrupted by name; one that only works a lot is not."""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from scheduler.configuration.read import read_configuration
from scheduler.configuration.registry import Registry
from scheduler.configuration.types import ConfigurationErrors
from scheduler.core.framework import Mask, PerNodeFilter, Plugin
from scheduler.core.machine import Attempted, LeadershipChanged, Machine, NodeChanged, PodChanged, Tick
from scheduler.core.profile import Profile
from scheduler.core.status import SUCCESS
from scheduler.plugins.queue_plugins import PrioritySort
from scheduler.plugins.registry import PLUGINS
from scheduler.watchdog import LOOKS, PluginWatchdog, plugin_calls
from services.runtime.logging import silent
from tests.transcripts.test_scheduler_machine import node, pod

LIMIT_SECONDS = 0.2


class Works(Plugin):
    """Does at filter what it is given."""

    name = "Works"

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def filter(self, _state: Any, _pod: Any, _nodes: Any) -> Mask | None:
        self.work()
        return None


class OneNodeForever(PerNodeFilter):
    """Loops in the method that the adapter calls."""

    name = "OneNodeForever"

    def filter_node(self, _state: Any, _pod: Any, _node: Any) -> Any:
        spin()
        return SUCCESS


def spin() -> None:
    while True:
        pass


def attempt(plugin: Plugin, watchdog: PluginWatchdog) -> tuple[Attempted, Machine]:
    made = Machine([Profile("default-scheduler", [PrioritySort(), plugin], {})], 1)
    made.step(LeadershipChanged(leading=True), 0.0)
    made.step(NodeChanged(None, node("n1")), 0.0)
    made.step(PodChanged(None, pod("a")), 0.0)
    with watchdog:
        (attempted, *_) = made.step(Tick(), 0.0)
    assert isinstance(attempted, Attempted)
    return attempted, made


@pytest.mark.parametrize(
    ("plugin", "method"),
    [
        (Works(spin), "filter"),
        (Works(lambda: time.sleep(3600)), "filter"),
        (Works(lambda: bool(threading.Event().wait())), "filter"),
        (Works(lambda: bool(threading.Semaphore(0).acquire())), "filter"),
        (OneNodeForever(), "filter_node"),
    ],
    ids=["loop", "sleep", "event", "lock", "adapter"],
)
def test_a_plugin_that_does_not_return_is_interrupted_by_name(plugin: Plugin, method: str) -> None:
    attempted, made = attempt(plugin, PluginWatchdog(LIMIT_SECONDS, silent()))
    decision = attempted.decision
    assert decision.faulty == plugin.name
    assert decision.error == f"plugin {plugin.name} did not return from {method} within 0.2 s, and was interrupted"
    assert made.queue.length("backoff") == 1, "the pod is tried again"


def test_one_that_does_not_let_itself_be_interrupted_ends_the_process() -> None:
    gone = threading.Event()
    stubborn = Works(lambda: None)

    def go_on() -> None:
        while not gone.is_set():
            try:
                while not gone.is_set():
                    pass
            except Exception:  # noqa: BLE001 - what this test is about
                continue

    stubborn.work = go_on
    attempted, _ = attempt(stubborn, PluginWatchdog(LIMIT_SECONDS, silent(), gone.set))
    assert gone.is_set()
    # The last interrupt found it on its way out, or not.
    assert attempted.decision.faulty in ("", "Works")


def frames_of(plugin: Works) -> list[Any]:
    """The calls on the stack at one moment within the plugin's filter."""
    seen: list[Any] = []
    plugin.work = lambda: seen.extend(plugin_calls(sys._getframe()))
    plugin.filter(None, None, None)
    return seen


def test_calls_that_come_and_go_are_never_overdue() -> None:
    left = threading.Event()
    watchdog = PluginWatchdog(1.0, silent(), left.set)
    plugin = Works(lambda: None)
    for _ in range(LOOKS * 10):
        watchdog._look(frames_of(plugin))
    assert watchdog._overdue is None and not left.is_set()


def test_a_call_that_has_returned_is_not_interrupted() -> None:
    watchdog = PluginWatchdog(1.0, silent())
    (returned,) = frames_of(Works(lambda: None))
    watchdog._overdue = returned
    watchdog._interrupt(0, sys._getframe())
    assert watchdog._overdue is None


class NeverMade(Plugin):
    """Cannot be made."""

    name = "NeverMade"

    def __init__(self, _args: Mapping[str, Any]) -> None:
        spin()


def test_a_plugin_whose_making_does_not_return_is_an_error_of_its_configuration() -> None:
    text = (
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles:\n- plugins: {multiPoint: {enabled: [{name: NeverMade}]}}\n"
    )
    registry = Registry(PLUGINS, {"NeverMade": NeverMade})
    with PluginWatchdog(LIMIT_SECONDS, silent()), pytest.raises(ConfigurationErrors) as caught:
        read_configuration(text, "f", registry)
    assert "NeverMade cannot be made: PluginFault: plugin NeverMade did not return from __init__" in str(caught.value)
