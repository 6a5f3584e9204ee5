"""A configuration file in a running mesh: several profiles, a change while it runs, a wrong one that changes nothing."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.lab_mesh import Lab, pod, wait_until

pytestmark = pytest.mark.integration
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
ONE = f"{HEAD}profiles: [{{schedulerName: default-scheduler}}]\n"
TWO = f"{HEAD}profiles: [{{schedulerName: default-scheduler}}, {{schedulerName: batch}}]\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "scheduler.yaml"
    path.write_text(ONE)
    return path


@pytest.fixture
def lab(tmp_path: Path, config: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "lab")
    made.good("up", "--no-fsync", "--shape", "cpu-16=1", "--schedulers", "1", "--scheduler-config", str(config))
    yield made
    made.good("down", "--purge")


def test_a_file_is_taken_into_force_while_pods_wait_for_it(lab: Lab, config: Path) -> None:
    lab.good("apply", "-f", "-", stdin=pod("early", extra="  schedulerName: batch\n"))
    lab.good("apply", "-f", "-", stdin=pod("usual"))
    wait_until(lambda: lab.phase("usual") == "Running", "the pod of the first profile runs")
    assert lab.phase("early") == "Pending"
    config.write_text(TWO)
    assert "profile batch" in lab.good("scheduler", "reload")
    wait_until(lambda: lab.phase("early") == "Running", "the pod that waited for its profile runs")
    config.write_text(f"{TWO}parallelism: -1\n")
    refused = lab.orrery("scheduler", "reload")
    assert refused.code == 1 and "line 4: parallelism: -1 should be" in refused.err
    lab.good("apply", "-f", "-", stdin=pod("later", extra="  schedulerName: batch\n"))
    wait_until(lambda: lab.phase("later") == "Running", "the last good configuration is in force")
    # Without a word from us: the file is watched.
    config.write_text(TWO.replace("batch", "nightly"))
    wait_until(lambda: "profile nightly" in lab.orrery("scheduler", "config").out, "the file is watched")
    assert lab.good("scheduler", "validate", str(config)).endswith("is good: 2 profiles\n")
    assert lab.orrery("scheduler", "validate", str(config.with_name("none"))).code == 2


PLUGINS = """
import time

from scheduler.core.framework import PerNodeFilter
from scheduler.core.status import SUCCESS


class Awkward(PerNodeFilter):
    name = "Awkward"

    def __init__(self, args):
        self.label = args["label"]

    def filter_node(self, state, pod, node):
        does = pod.labels.get(self.label, "")
        if does == "loop":
            while True:
                pass
        if does == "sleep":
            time.sleep(3600)
        if does == "raise":
            raise ValueError("I would rather not")
        return SUCCESS


class Stubborn(PerNodeFilter):
    name = "Stubborn"

    def __init__(self, args):
        pass

    def filter_node(self, state, pod, node):
        while pod.name == "poison":
            try:
                while True:
                    pass
            except Exception:
                pass
        return SUCCESS
"""
ENTRY_POINTS = """[orrery.scheduler.plugins]
Awkward = awkward_plugins:Awkward
Stubborn = awkward_plugins:Stubborn
Broken = awkward_plugins:Missing
"""
WITH = HEAD + "profiles:\n- plugins: {multiPoint: {enabled: [{name: %s}]}}\n"
AWKWARD = WITH % "Awkward" + "  pluginConfig: [{name: Awkward, args: {label: does}}]\n"


@pytest.fixture
def foreign(tmp_path: Path) -> Lab:
    """A lab whose processes find an installed package with plugins; nothing of it runs yet."""
    site = tmp_path / "site"
    about = site / "awkward_plugins-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "awkward_plugins.py").write_text(PLUGINS)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: awkward-plugins\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join(part for part in (str(site), os.environ.get("PYTHONPATH", "")) if part)
    return Lab(tmp_path / "lab", more=(("PYTHONPATH", path), ("ORRERY_SCHEDULER_PLUGIN_SECONDS_MAX", "0.5")))


def test_an_installed_plugin_that_misbehaves_is_named_and_everybody_else_is_scheduled(
    foreign: Lab, config: Path
) -> None:
    config.write_text(WITH % "Broken")
    refused = foreign.orrery("scheduler", "validate", str(config))
    assert refused.code == 1
    assert "line 4: profiles[0].plugins.multiPoint.enabled[0].name: the plugin Broken cannot be loaded" in refused.err
    config.write_text(WITH % "Awkward")
    assert "Awkward cannot be made: KeyError: 'label'" in foreign.orrery("scheduler", "validate", str(config)).err
    config.write_text(AWKWARD)
    assert "filter      NodeUnschedulable, " in foreign.good("scheduler", "validate", str(config))
    foreign.good("up", "--no-fsync", "--shape", "cpu-16=1", "--schedulers", "1", "--scheduler-config", str(config))
    try:
        for does in ("loop", "sleep", "raise"):
            foreign.good("apply", "-f", "-", stdin=pod(does, labels=f"{{does: {does}}}"))
        foreign.good("apply", "-f", "-", stdin=pod("good"))
        wait_until(lambda: foreign.phase("good") == "Running", "the pod of nobody's complaint runs")
        overdue = "plugin Awkward did not return from filter_node within 0.5 s, and was interrupted"
        for does, said in (
            ("loop", overdue),
            ("sleep", overdue),
            ("raise", "plugin Awkward raised ValueError: I would rather not"),
        ):
            wait_until(lambda does=does, said=said: said in events(foreign, does), f"the event of {does} names it")  # type: ignore[misc]
        wait_until(lambda: "faults of plugins: Awkward" in foreign.good("status"), "the status counts them")
        # Better rules: the pods were not lost.
        config.write_text(ONE)
        for does in ("loop", "sleep", "raise"):
            wait_until(lambda does=does: foreign.phase(does) == "Running", f"{does} runs without the plugin")  # type: ignore[misc]
    finally:
        foreign.good("down", "--purge")


def test_a_plugin_that_cannot_be_interrupted_ends_its_scheduler_by_name(foreign: Lab, config: Path) -> None:
    config.write_text(WITH % "Stubborn")
    foreign.good("up", "--no-fsync", "--shape", "cpu-16=1", "--schedulers", "1", "--scheduler-config", str(config))
    try:
        (scheduler,) = foreign.record.of("scheduler")
        foreign.good("apply", "-f", "-", stdin=pod("poison"))
        wait_until(lambda: not scheduler.alive(), "it ends")
        said = foreign.folder.log_path(scheduler.name).read_text()
        assert "plugin_does_not_return" in said and "plugin Stubborn did not return from filter_node" in said
        assert foreign.phase("poison") == "Pending"
    finally:
        foreign.good("down", "--purge")


def events(lab: Lab, name: str) -> str:
    """What was said of the pod."""
    listed = lab.json("events")["items"]
    return "\n".join(event["message"] for event in listed if event["involvedObject"]["name"] == name)
