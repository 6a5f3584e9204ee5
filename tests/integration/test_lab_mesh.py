"""The command on one small running mesh that all these tests share: objects, explain, trace, faults, a replay."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.lab_mesh import Lab, pod, wait_until

ON_DGX = "  nodeSelector: {node.kubernetes.io/instance-type: dgx1-v100}\n"

pytestmark = pytest.mark.integration


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.good("up", "--no-fsync", "--shape", "dgx1-v100=1", "--shape", "cpu-16=1")
    yield lab
    lab.good("down", "--purge")
    assert not lab.processes()


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    """The shared mesh, whole: an earlier test may have killed a part of it."""
    if len(shared_lab.record.running) < len(shared_lab.record.processes):
        shared_lab.good("up")
    return shared_lab


def running(lab: Lab, name: str) -> None:
    wait_until(lambda: lab.phase(name) == "Running", f"{name} runs")


def test_a_pod_is_applied_shown_changed_and_deleted(lab: Lab) -> None:
    text = pod("cycle", labels="{app: cycle}")
    assert lab.good("apply", "-f", "-", stdin=text) == "pod/cycle created\n"
    running(lab, "cycle")
    assert lab.good("apply", "-f", "-", stdin=text) == "pod/cycle unchanged\n"
    assert lab.good("apply", "-f", "-", stdin=text.replace("app:1", "app:2")) == "pod/cycle configured\n"
    shown = lab.json("pod", "cycle")
    assert (shown["apiVersion"], shown["kind"]) == ("v1", "Pod")
    assert shown["spec"]["containers"][0]["image"] == "app:2"
    assert shown["metadata"]["resourceVersion"]
    header, row = lab.good("get", "pods", "-l", "app=cycle", "-o", "wide").splitlines()
    assert header.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "GPUS"]
    assert row.split()[:3] == ["cycle", "1/1", "Running"]
    assert "name: cycle" in lab.good("get", "pod/cycle", "-o", "yaml")
    assert lab.good("get", "po", "cycle", "-o", "name") == "pod/cycle\n"
    assert lab.good("delete", "pod", "cycle") == "pod/cycle deleted\n"
    gone = lab.orrery("get", "pod", "cycle")
    assert gone.code == 1
    assert "not found" in gone.err


def test_what_is_wrong_in_a_file_is_said_and_counted_and_the_rest_applied(lab: Lab, tmp_path: Path) -> None:
    good, wrong = pod("good-one"), pod("wrong-field").replace("resources:", "resorces:")
    documents = [good, wrong, good, "kind: Widget\napiVersion: v1\nmetadata: {name: w}\n", "a: [1\n", pod("Bad_Name")]
    path = tmp_path / "mixed.yaml"
    path.write_text("---\n".join(documents))
    said = lab.orrery("apply", "-f", str(path))
    assert said.code == 1
    assert said.out == "pod/good-one created\n"
    for wanted in ("spec.containers[0].resorces", "Widget", "stands already at", "Bad_Name", f"{path}:"):
        assert wanted in said.err
    assert "5 of 6 not applied" in said.err
    assert lab.good("delete", "-f", "-", stdin=good) == "pod/good-one deleted\n"


def test_a_folder_is_applied_file_by_file_and_an_empty_one_refused(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(pod("second"))
    (tmp_path / "a.json").write_text(
        '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first"},'
        ' "spec": {"containers": [{"name": "c", "image": "x"}]}}'
    )
    (tmp_path / "notes.txt").write_text("not a manifest")
    assert lab.good("apply", "-f", str(tmp_path)) == "pod/first created\npod/second created\n"
    assert lab.good("delete", "-f", str(tmp_path)) == "pod/first deleted\npod/second deleted\n"
    (tmp_path / "empty").mkdir()
    said = lab.orrery("apply", "-f", str(tmp_path / "empty"))
    assert (said.code, "holds no manifest" in said.err) == (1, True)


def test_a_pod_that_fits_nowhere_is_explained(lab: Lab) -> None:
    lab.good("apply", "-f", "-", stdin=pod("too-big", gpus=9))
    wait_until(lambda: "Insufficient nvidia.com/gpu" in lab.good("explain", "pod/too-big"), "the attempt is remembered")
    said = lab.good("explain", "pod/too-big")
    assert re.search(r"0/\d+ nodes are available", said)
    assert "Unschedulable" in said
    lab.good("delete", "pod", "too-big")


def test_a_pod_that_was_placed_is_explained_with_scores(lab: Lab) -> None:
    lab.good("apply", "-f", "-", stdin=pod("placed", gpus=2, extra=ON_DGX))
    running(lab, "placed")
    said = lab.good("explain", "placed")
    assert "Scheduled → dgx1-v100-0" in said
    assert "TOTAL" in said
    lab.good("delete", "pod", "placed")


def test_one_trace_leads_from_the_client_through_every_process(lab: Lab) -> None:
    lab.good("apply", "-f", "-", stdin=pod("traced", gpus=1))
    running(lab, "traced")

    def spans() -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(lab.good("trace", "pod/traced", "--json"))["spans"]
        return found

    wanted = {"orrery", "apiserver", "scheduler", "kubelet-sim"}
    wait_until(
        lambda: {re.sub(r"-\d+$", "", span["process"]) for span in spans()} >= wanted, "spans by every kind of process"
    )
    data = json.loads(lab.good("trace", "pod/traced", "--json"))
    assert {span["traceID"] for span in data["spans"]} == {data["traceID"]}
    by_id = {span["spanID"]: span for span in data["spans"]}
    roots = [span for span in data["spans"] if span["parentSpanID"] not in by_id]
    assert [span["process"] for span in roots] == ["orrery"]
    tree = lab.good("trace", "pod/traced")
    assert data["traceID"] in tree
    assert "└─" in tree
    lab.good("delete", "pod", "traced")


def test_topo_prints_the_matrix_and_an_unknown_machine_is_a_sentence(lab: Lab) -> None:
    lines = lab.good("topo", "dgx1-v100-0").splitlines()
    assert lines[0].split()[:2] == ["GPU0", "GPU1"]
    assert lines[1].split()[:3] == ["GPU0", "X", "NV1"]
    said = lab.orrery("topo", "nowhere")
    assert (said.code, "no machine 'nowhere'" in said.err) == (1, True)


def test_status_names_leader_epoch_queue_pods_and_processes(lab: Lab) -> None:
    wait_until(lambda: "leader scheduler-" in lab.good("status"), "a leader")
    said = lab.good("status")
    assert re.search(r"leader scheduler-\d, epoch \d+; queue: \d+ active", said)
    ready = re.search(r"nodes: (\d+) of (\d+) ready", said)
    assert ready is not None
    assert ready[1] == ready[2]
    for process in lab.record.processes:
        assert re.search(rf"{process.name} +healthy +{process.pid} +{process.address}", said)


def test_env_points_a_shell_at_the_mesh(lab: Lab) -> None:
    said = lab.good("env")
    assert f"export ORRERY_APISERVERS={','.join(lab.record.addresses('apiserver'))}\n" in said
    assert f"export ORRERY_HOME={lab.home}\n" in said


def test_logs_are_readable_and_raw(lab: Lab) -> None:
    assert re.search(
        r"^\d\d:\d\d:\d\d\.\d{3} info +listening address=", lab.good("logs", "apiserver-0", "--tail", "0"), re.MULTILINE
    )
    assert '"event": "listening"' in lab.good("logs", "apiserver-0", "--tail", "0", "--json")


def test_a_second_up_starts_nothing(lab: Lab) -> None:
    before = lab.record
    assert "is already up" in lab.good("up")
    assert lab.record == before


def test_up_with_other_options_is_refused_while_it_runs(lab: Lab) -> None:
    said = lab.orrery("up", "--schedulers", "5")
    assert (said.code, "already up with other options" in said.err) == (1, True)


def test_after_the_leader_is_killed_the_next_one_binds_and_up_brings_it_back(lab: Lab) -> None:
    wait_until(lambda: "leader scheduler-" in lab.good("status"), "a leader")
    killed = lab.good("kill", "scheduler", "--leader")
    name = re.search(r"SIGKILL to (scheduler-\d)", killed)
    assert name is not None
    assert not lab.record.process(name[1]).alive()
    assert lab.orrery("status").code == 1
    lab.good("apply", "-f", "-", stdin=pod("after-leader"))
    running(lab, "after-leader")
    assert f"starting what is missing: {name[1]}" in lab.good("up")
    assert lab.orrery("status").code == 0
    lab.good("delete", "pod", "after-leader")


def test_up_after_everything_of_ours_was_killed_continues_where_it_was(lab: Lab) -> None:
    lab.good("apply", "-f", "-", stdin=pod("survivor", gpus=1))
    running(lab, "survivor")
    uid = lab.json("pod", "survivor")["metadata"]["uid"]
    for process in lab.record.processes[1:]:
        found = process.find()
        assert found is not None
        found.send_signal(signal.SIGKILL)
    wait_until(lambda: [process.name for process in lab.record.running] == ["etcd"], "all but etcd are gone")
    assert "is not up" in lab.orrery("get", "pods").err
    lab.good("up")
    assert lab.json("pod", "survivor")["metadata"]["uid"] == uid
    lab.good("apply", "-f", "-", stdin=pod("newcomer", gpus=1))
    running(lab, "newcomer")
    lab.good("delete", "pod", "survivor", "newcomer")


FILLING = ((1, 1000), (1, 470), (0, 0), (2, 1000), (1, 250))
SMALL = ((1, 100),)


def write_trace(
    folder: Path, prefix: str, machines: int, tasks: int, wishes: tuple[tuple[int, int], ...]
) -> tuple[str, str]:
    """Paths of a node list and a pod list; `wishes` are (GPUs, milli of each) in turn, now and then of one model."""
    nodes, pods = folder / "nodes.csv", folder / "pods.csv"
    models = ("T4", "P100", "V100M32")
    nodes.write_text(
        "sn,cpu_milli,memory_mib,gpu,model\n"
        + "".join(f"{prefix}-node-{n},{32000 + 1000 * (n % 3)},131072,2,{models[n % 3]}\n" for n in range(machines))
    )
    rows = []
    for n in range(tasks):
        gpus, milli = wishes[n % len(wishes)]
        model = models[n % 3] if n % 7 == 0 and gpus else ""
        rows.append(f"{prefix}-{n},{500 * (1 + n % 3)},{1024 * (1 + n % 3)},{gpus},{milli},{model}\n")
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(rows))
    return str(nodes), str(pods)


def number_after(word: str, text: str) -> int:
    found = re.search(rf"^{word} +([\d,]+)", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1].replace(",", ""))


def test_a_small_trace_is_replayed_and_the_witness_agrees(lab: Lab, tmp_path: Path) -> None:
    nodes, pods = write_trace(tmp_path, "task", 60, 300, FILLING)
    said = lab.good("replay", "--nodes", nodes, "--pods", pods)
    placed, pending = number_after("placed", said), number_after("pending", said)
    assert number_after("machines", said) == 60
    assert placed + pending == 300
    assert placed > 100
    assert pending > 0
    assert 0 < number_after("GPU milli allocated", said) < number_after("GPU milli wanted", said)
    assert "everything agrees" in lab.good("check")
    again = lab.good("replay", "--nodes", nodes, "--pods", pods)
    assert number_after("placed", again) == placed
    assert "300 of the objects were there before" in again


def test_a_replay_goes_on_while_leader_and_api_server_are_killed(lab: Lab, tmp_path: Path) -> None:
    nodes, pods = write_trace(tmp_path, "storm", 80, 1000, SMALL)
    wait_until(lambda: "leader scheduler-" in lab.good("status"), "a leader")
    with lab.start("replay", "--nodes", nodes, "--pods", pods) as replay:
        wait_until(lambda: "storm-0 " in lab.orrery("get", "pods").out, "the first pods are there")
        lab.good("kill", "scheduler", "--leader")
        lab.good("kill", "apiserver-0")
        said, wrong = replay.communicate(timeout=100)
    assert replay.returncode == 0, wrong
    assert number_after("placed", said) + number_after("pending", said) == 1000
    lab.good("up")
    assert "everything agrees" in lab.good("check")
