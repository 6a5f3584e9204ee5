"""What each container is allowed, what its health check knows, and how the mesh takes the loss of one."""

import json

import pytest

from tests.compose.project import Project

pytestmark = pytest.mark.timeout(600)
OURS = {
    "apiserver-0": 6443,
    "apiserver-1": 6443,
    "scheduler-0": 10259,
    "scheduler-1": 10259,
    "kubelet-sim-0": 10250,
    "tracestore": 4317,
}
ETCDS = ("etcd-0", "etcd-1", "etcd-2")


@pytest.mark.parametrize("service", [*OURS, *ETCDS])
def test_a_container_has_no_more_than_it_needs(project: Project, service: str) -> None:
    found = project.inspect(service)
    host = found["HostConfig"]
    assert found["State"]["Health"]["Status"] == "healthy"
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["Privileged"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["Memory"] > 0 and host["NanoCpus"] > 0 and host["PidsLimit"] > 0
    assert {binding["HostIp"] for bound in host["PortBindings"].values() for binding in bound} <= {"127.0.0.1"}
    if service in OURS:
        assert found["Config"]["User"] == "10001:10001"
        written = project.run("docker", "exec", project.container(service), "touch", "/opt/orrery/x", check=False)
        assert "Read-only file system" in written.stderr


@pytest.mark.parametrize("service", ["apiserver-0", "scheduler-0", "kubelet-sim-0", "tracestore"])
def test_as_process_1_a_container_stops_by_itself_within_its_grace(project: Project, service: str) -> None:
    project.run("docker", "stop", "--time", "3", project.container(service))
    assert project.inspect(service)["State"]["ExitCode"] == 0, "137 is Docker's SIGKILL after 3 s"


def test_health_knows_the_dependency_and_comes_back(project: Project) -> None:
    asking = ("apiserver-0", "scheduler-0", "kubelet-sim-0")

    def serving() -> set[str]:
        return {service for service in asking if project.serves(service, OURS[service])}

    assert serving() == set(asking)
    for member in ETCDS:
        project.run("docker", "pause", project.container(member))
    try:
        project.wait_until("nobody serves without etcd", lambda: not serving())
    finally:
        for member in ETCDS:
            project.run("docker", "unpause", project.container(member))
    project.wait_until("all serve with etcd", lambda: serving() == set(asking))


def test_the_orrery_command_works_inside_and_from_the_host(project: Project) -> None:
    inside = project.compose("run", "--rm", "--no-deps", "-T", "lab", "get", "nodes", "-o", "name").stdout
    outside = project.orrery("get", "nodes", "-o", "name")
    assert len(outside.splitlines()) == 100 and inside == outside
    assert "leader scheduler-" in project.orrery("status")
    settings = project.orrery("env")
    assert f"ORRERY_ETCD=127.0.0.1:{project.environment['ORRERY_ETCD_PORT']}" in settings
    refused = project.run(".venv/bin/orrery", "--context", "compose", "down", check=False)
    assert refused.returncode == 1 and "Docker Compose starts and stops this mesh" in refused.stderr


def test_one_etcd_member_that_is_down_at_the_start_keeps_nobody_from_working(project: Project) -> None:
    project.compose("stop", "--timeout", "3")
    for service in (*ETCDS[:2], *OURS):
        project.run("docker", "start", project.container(service))
    project.wait_until(
        "a leader",
        lambda: (
            project.run(".venv/bin/orrery", "--context", "compose", "leader", "--timeout", "5", check=False).returncode
            == 0
        ),
    )
    try:
        said = project.orrery("storm", "--app", "two-of-three", "--pods", "20", "--timeout", "60")
        assert "20 of 20 bound" in said
        table = project.orrery("status", check=False)
        assert next(line for line in table.splitlines() if line.startswith("etcd-2")).split()[1:3] == ["not", "running"]
    finally:
        project.orrery("delete", "pods", "-l", "app=two-of-three", "--now")


def test_without_the_trace_store_spans_are_lost_and_nothing_else(project: Project) -> None:
    # The leader's spans arrive: an outage before this one, without a span since, would still be the same to it.
    project.wait_until("a trace", lambda: _traced(project, "before"))
    project.run("docker", "stop", "--time", "3", project.container("tracestore"))
    leader = project.orrery("leader").strip()
    before = project.log(leader).count('"spans_dropped"')
    try:
        assert "50 of 50 bound" in project.orrery("storm", "--app", "untraced", "--pods", "50", "--timeout", "60")
        project.wait_until("the warning", lambda: project.log(leader).count('"spans_dropped"') == before + 1)
        project.run("docker", "start", project.container("tracestore"))
        project.wait_until("a trace", lambda: _traced(project, "after"))
        entries = [json.loads(line) for line in project.log(leader).splitlines() if '"spans_taken_again"' in line]
        assert entries[-1]["dropped"] > 0
        assert project.log(leader).count('"spans_dropped"') == before + 1, "one warning for all of it"
    finally:
        project.orrery("delete", "pods", "-l", "app=untraced", "--now")


def _traced(project: Project, app: str) -> bool:
    """Whether the trace of a pod that is placed now arrives."""
    project.orrery("storm", "--app", app, "--pods", "1", "--timeout", "60")
    project.orrery("delete", "pod", f"{app}-0", "--now")
    return project.orrery("traces", "--tag", f"k8s.pod.name={app}-0", "--count", check=False).strip() not in ("", "0")


def test_without_jaeger_the_trace_store_says_so_once_and_keeps_the_spans(project: Project) -> None:
    log = project.log("tracestore")
    started = log.rfind('"listening"')
    assert log[started:].count('"forward_dropped"') == 1
    assert int(project.orrery("traces", "--service", "orrery-apiserver", "--count")) > 0
