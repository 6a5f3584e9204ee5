"""A configuration file in a running mesh: several profiles, a change while it runs, a wrong one that changes nothing."""

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
