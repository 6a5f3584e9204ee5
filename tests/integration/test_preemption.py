"""A pod of high priority really takes the place of a lower one: real etcd, real processes, a simulated machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.lab_mesh import Lab, wait_until

pytestmark = pytest.mark.integration

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  priority: {priority}
  terminationGracePeriodSeconds: 1
  containers: [{{name: c, image: "app:1", resources: {{requests: {{cpu: "{cpu}"}}}}}}]
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    lab.good("up", "--no-fsync", "--shape", "cpu-16=1")
    yield lab
    lab.good("down", "--purge")


def apply(lab: Lab, name: str, priority: int, cpu: int) -> None:
    lab.good("apply", "-f", "-", stdin=POD.format(name=name, priority=priority, cpu=cpu))


def test_a_high_priority_pod_evicts_the_least_of_those_in_its_way_and_runs(lab: Lab) -> None:
    apply(lab, "least", 0, 7)
    apply(lab, "middle", 5, 7)
    for name in ("least", "middle"):
        wait_until(lambda name=name: lab.phase(name) == "Running", f"{name} runs")
    apply(lab, "high", 100, 6)
    wait_until(lambda: lab.phase("high") == "Running", "the preemptor runs")
    assert lab.orrery("get", "pod", "least").code == 1
    assert lab.phase("middle") == "Running"
    high = lab.json("pod", "high")
    assert high["status"]["nominatedNodeName"] == high["spec"]["nodeName"]
    said = lab.good("explain", "pod/high", "--all")
    assert "preemption: waits for room on cpu-16-0, from which default/least must go" in " ".join(said.split())
