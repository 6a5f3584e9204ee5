"""The kubelets' state machine, as transcripts: events in, a line for each action out."""

import random
from dataclasses import replace

import pytest

from kubelet_sim.core.durations import Durations
from kubelet_sim.core.events import PodSeen
from kubelet_sim.core.machine import KubeletMachine
from kubelet_sim.core.pods import ContainerFacts
from tests.unit.kubelet_pods import TRACE, Script, bound_pod, deleting, pod_spec, with_phase

NEVER = pod_spec(restart="Never")


def test_a_pod_is_acknowledged_created_runs_and_succeeds() -> None:
    script = Script().node().pod(bound_pod(run_seconds=5)).wait(10)
    assert script.lines == [
        "0.0 write a Pending main:waiting:ContainerCreating",
        "0.6 write a Running main:running",
        "5.6 write a Succeeded main:terminated:Completed",
    ]


def test_a_pod_that_restarts_always_runs_until_it_is_deleted() -> None:
    pod = bound_pod()
    script = Script().node().pod(pod).wait(10_000)
    assert script.lines[-1] == "0.6 write a Running main:running"
    script.pod(deleting(with_phase(pod, "Running", running_s=1))).wait(10)
    assert script.lines[2:] == ["10000.5 remove a uid-a"]


def test_a_pod_that_is_to_end_and_does_not_say_when_ends_by_itself() -> None:
    script = Script().node().pod(bound_pod(spec=NEVER)).wait(60)
    assert script.lines[-1].endswith("write a Succeeded main:terminated:Completed")
    assert 20 <= float(script.lines[-1].split()[0]) <= 42


def test_init_containers_run_one_after_another_and_sidecars_stay() -> None:
    inits = [
        ContainerFacts("first", "i"),
        ContainerFacts("proxy", "i", sidecar=True),
        ContainerFacts("second", "i"),
    ]
    script = Script().node().pod(bound_pod(inits=inits, run_seconds=1)).wait(10)
    assert [line.split(maxsplit=1)[1] for line in script.lines] == [
        "write a Pending first:waiting:PodInitializing",
        "write a Pending first:running",
        "write a Pending proxy:running",
        "write a Running proxy:running",
        "write a Succeeded main:terminated:Completed",
    ]


def test_a_running_status_is_what_kubernetes_tools_expect() -> None:
    status = Script().node().pod(bound_pod()).wait(1).writes["a"]
    started = "2025-12-01T08:00:00Z"
    assert status == {
        "phase": "Running",
        "startTime": started,
        "hostIP": "10.0.0.1",
        "hostIPs": [{"ip": "10.0.0.1"}],
        "podIP": "10.128.0.1",
        "podIPs": [{"ip": "10.128.0.1"}],
        "qosClass": "Burstable",
        "conditions": [
            {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": started},
            {"type": "Initialized", "status": "True", "lastTransitionTime": started},
            {"type": "Ready", "status": "True", "lastTransitionTime": started},
            {"type": "ContainersReady", "status": "True", "lastTransitionTime": started},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": started},
        ],
        "containerStatuses": [
            {
                "name": "main",
                "image": "registry.example/app:1",
                "imageID": "simulated://registry.example/app:1",
                "containerID": "containerd://uid-a/main",
                "restartCount": 0,
                "ready": True,
                "started": True,
                "state": {"running": {"startedAt": started}},
            }
        ],
    }


def test_conditions_that_others_wrote_are_said_again() -> None:
    foreign = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod = replace(bound_pod(), foreign_conditions=(foreign,))
    conditions = Script().node().pod(pod).wait(1).writes["a"]["conditions"]
    assert isinstance(conditions, list)
    assert conditions[-1] == foreign


def test_devices_are_free_again_when_a_pod_has_succeeded() -> None:
    script = Script().node().pod(bound_pod("a", devices=[(0, 1000)], run_seconds=1)).wait(5)
    script.pod(bound_pod("b", devices=[(0, 1000)]))
    assert script.lines[-1] == "5.0 write b Pending main:waiting:ContainerCreating"


def test_a_device_that_is_still_in_use_is_refused() -> None:
    script = Script().node().pod(bound_pod("a", devices=[(3, 1000)])).wait(5)
    script.pod(bound_pod("b", devices=[(2, 1000), (3, 1000)]))
    assert script.lines[-1] == "5.0 write b Failed UnexpectedAdmissionError"
    assert script.writes["b"]["message"] == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
        "Requested: 2, Available: 1, which is unexpected"
    )


def test_shares_of_one_device_are_admitted_up_to_the_whole() -> None:
    script = Script().node().pod(bound_pod("a", devices=[(3, 600)]), bound_pod("b", devices=[(3, 400)]))
    script.pod(bound_pod("c", devices=[(3, 1)]))
    assert [line.split()[2:4] for line in script.lines] == [["a", "Pending"], ["b", "Pending"], ["c", "Failed"]]


def test_after_a_forced_deletion_a_device_is_refused_until_the_containers_have_stopped() -> None:
    first = bound_pod("a", devices=[(0, 1000)])
    script = Script().node().pod(first).wait(5).gone(first)
    script.pod(bound_pod("b", devices=[(0, 1000)]))
    assert script.lines[-1] == "5.0 write b Failed UnexpectedAdmissionError"
    script.wait(1).pod(bound_pod("c", devices=[(0, 1000)]))
    assert script.lines[-1] == "6.0 write c Pending main:waiting:ContainerCreating"
    assert not [line for line in script.lines if "remove" in line], "its object is gone already"


def test_a_pod_made_again_under_its_name_does_not_take_over_what_the_first_still_holds() -> None:
    script = Script().node().pod(bound_pod("a", devices=[(0, 1000)])).wait(5)
    script.pod(bound_pod("a", uid="other", devices=[(0, 1000)]))
    assert script.lines[-1] == "5.0 write a Failed UnexpectedAdmissionError"


def test_a_pod_that_others_declared_failed_is_stopped_and_holds_until_then() -> None:
    first = bound_pod("a", devices=[(0, 1000)])
    script = Script().node().pod(first).wait(5).pod(with_phase(first, "Failed"))
    script.pod(bound_pod("b", devices=[(0, 1000)]))
    assert script.lines[-1] == "5.0 write b Failed UnexpectedAdmissionError"
    script.wait(1).pod(bound_pod("c", devices=[(0, 1000)]))
    assert script.lines[-1] == "6.0 write c Pending main:waiting:ContainerCreating"
    assert not [line for line in script.lines if "remove" in line]


REFUSALS = [
    ({"cpu": 9000}, {}, "OutOfcpu", "cpu, requested: 9000, used: 0, capacity: 8000"),
    ({"cpu": 1, "memory": 2 << 30}, {}, "OutOfmemory", "memory, requested: 2147483648, used: 0, capacity: 1073741824"),
    ({"nvidia.com/gpu": 9}, {}, "OutOfnvidia.com/gpu", "nvidia.com/gpu, requested: 9, used: 0, capacity: 8"),
    ({"vendor.example/fpga": 1}, {}, "OutOfvendor.example/fpga", "requested: 1, used: 0, capacity: 0"),
    ({"cpu": 1}, {"pods": 0}, "OutOfpods", "pods, requested: 1, used: 0, capacity: 0"),
]


@pytest.mark.parametrize(("requests", "node", "reason", "message"), REFUSALS)
def test_a_pod_that_was_put_on_a_node_without_room_fails_with_kubernetes_words(
    requests: dict[str, int], node: dict[str, int], reason: str, message: str
) -> None:
    script = Script().node(**node).pod(bound_pod(spec=pod_spec(requests=requests), placed=False)).wait(60)
    assert script.lines == [f"0.0 write a Failed {reason}"]
    text = str(script.writes["a"]["message"])
    assert text.startswith("Pod was rejected: Node didn't have enough resource: ")
    assert text.endswith(message)


def test_what_running_pods_hold_counts_against_the_next() -> None:
    script = Script().node().pod(bound_pod("a", spec=pod_spec(requests={"cpu": 7500})))
    script.pod(bound_pod("b", spec=pod_spec(requests={"cpu": 1000}), placed=False))
    assert script.lines[-1] == "0.0 write b Failed OutOfcpu"
    assert "requested: 1000, used: 7500, capacity: 8000" in str(script.writes["b"]["message"])


def test_a_pod_without_a_place_in_the_ledger_never_runs_even_where_it_would_fit() -> None:
    script = Script().node().pod(bound_pod(placed=False)).wait(60)
    assert script.lines == ["0.0 write a Failed UnexpectedAdmissionError"]


def test_a_node_that_does_not_match_the_pods_selector_refuses_it() -> None:
    script = Script().node(labels={"zone": "a"}).pod(bound_pod("x", spec=pod_spec(node_selector={"zone": "b"})))
    assert script.lines == ["0.0 write x Failed NodeAffinity"]
    assert script.writes["x"]["message"] == (
        "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    )


def test_a_refused_pod_leaves_an_error_in_its_trace() -> None:
    script = Script().node().pod(bound_pod(placed=False))
    (trace,) = script.traces
    assert (trace.name, trace.parent) == ("kubelet.admit", TRACE)
    assert trace.error.startswith("UnexpectedAdmissionError: ")


def test_admission_and_start_are_spans_under_the_pods_own_trace() -> None:
    script = Script().node().pod(bound_pod(devices=[(4, 1000), (5, 1000)])).wait(2)
    assert [(trace.name, trace.parent, trace.error) for trace in script.traces] == [
        ("kubelet.admit", TRACE, ""),
        ("kubelet.start", TRACE, ""),
    ]
    assert script.traces[0].attributes["orrery.devices"] == "4,5"
    assert 200_000_000 <= script.traces[1].end_ns - script.traces[1].start_ns <= 800_000_000


def test_running_pods_are_adopted_before_waiting_ones_are_admitted_and_older_before_newer() -> None:
    late = bound_pod("a", created=2, placed=False, spec=pod_spec(requests={"cpu": 4000}))
    early = bound_pod("b", created=1, spec=pod_spec(requests={"cpu": 2000}))
    running = with_phase(bound_pod("c", spec=pod_spec(requests={"cpu": 3000})), "Running", running_s=0)
    script = Script().node().pod(late, early, running)
    assert script.lines == ["0.0 write b Pending main:waiting:ContainerCreating", "0.0 write a Failed OutOfcpu"]
    assert "used: 5000" in str(script.writes["a"]["message"])


def test_a_kubelet_that_starts_again_ends_a_running_pod_when_it_would_have_ended() -> None:
    pod = with_phase(bound_pod(run_seconds=100), "Running", running_s=10)
    script = Script(at_seconds=70.0).node().pod(pod).wait(1000)
    assert script.lines == ["110.0 write a Succeeded main:terminated:Completed"]


def test_a_pod_that_should_have_ended_while_the_kubelet_was_down_ends_at_once() -> None:
    pod = with_phase(bound_pod(run_seconds=5), "Running", running_s=10)
    script = Script(at_seconds=70.0).node().pod(pod).wait(1)
    assert script.lines == ["70.0 write a Succeeded main:terminated:Completed"]


def test_a_pod_that_was_acknowledged_before_the_restart_is_started_without_new_checks() -> None:
    pod = with_phase(bound_pod(spec=pod_spec(node_selector={"zone": "gone"})), "Pending", acknowledged_s=1)
    script = Script(at_seconds=5.0).node().pod(pod).wait(2)
    assert script.lines == ["5.6 write a Running main:running"]


def test_a_deletion_that_was_under_way_before_the_restart_is_finished() -> None:
    pod = deleting(with_phase(bound_pod(), "Running", running_s=1))
    script = Script(at_seconds=5.0).node().pod(pod).wait(2)
    assert script.lines == ["5.5 remove a uid-a"]


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_a_deleted_pod_without_containers_is_removed_at_once(phase: str) -> None:
    pod = bound_pod()
    ended = deleting(replace(pod, view=replace(pod.view, phase=phase)))
    assert Script().node().pod(ended).lines == ["0.0 remove a uid-a"]


def test_containers_are_killed_at_the_end_of_a_short_grace() -> None:
    pod = bound_pod()
    script = Script().node().pod(pod).wait(5).pod(deleting(with_phase(pod, "Running"), grace=0)).wait(1)
    assert script.lines[-1] == "5.0 remove a uid-a"


def test_an_echo_that_is_older_than_a_decision_does_not_undo_it() -> None:
    pod = bound_pod(run_seconds=1)
    script = Script().node().pod(pod).wait(5)
    lines = list(script.lines)
    script.pod(with_phase(pod, "Running", acknowledged_s=0, running_s=0)).wait(60)
    script.pod(with_phase(pod, "Succeeded")).wait(60)
    assert script.lines == lines


def test_a_late_write_of_an_earlier_stage_is_corrected_and_an_own_echo_is_not() -> None:
    pod = bound_pod()
    script = Script().node().pod(pod).wait(5)
    late = with_phase(pod, "Pending", acknowledged_s=0)
    script.play(PodSeen(late, own=True))
    assert len(script.lines) == 2
    script.play(PodSeen(late))
    assert script.lines[2:] == ["5.0 write a Running main:running"]


def test_pods_of_other_nodes_are_left_alone_until_the_node_is_ours() -> None:
    pod = bound_pod(spec=pod_spec(node="elsewhere"))
    script = Script().node().pod(pod).wait(5)
    assert script.lines == []
    script.node("elsewhere").pod().wait(5)
    assert [line.split()[3] for line in script.lines] == ["Pending", "Running"]


def test_a_pod_that_goes_before_its_node_is_ours_is_forgotten() -> None:
    pod = bound_pod(spec=pod_spec(node="elsewhere"))
    assert Script().node().pod(pod).gone(pod).node("elsewhere").pod().wait(5).lines == []


def test_a_machine_that_goes_takes_its_containers_with_it() -> None:
    pod = bound_pod(devices=[(0, 1000)], run_seconds=30)
    script = Script().node().pod(pod).wait(5).node_gone().wait(60)
    assert script.lines[-1] == "0.6 write a Running main:running"
    assert script.machine.holdings("n") is None


def test_speed_shortens_every_step() -> None:
    slow = Script().node().pod(bound_pod(run_seconds=30)).wait(100)
    fast = Script(KubeletMachine(Durations(seed=1, speed=10.0))).node().pod(bound_pod(run_seconds=30)).wait(100)
    ends = [float(script.lines[-1].split()[0]) for script in (slow, fast)]
    assert ends[0] == pytest.approx(10 * ends[1], abs=1)


def test_durations_follow_from_the_seed_and_the_name_alone() -> None:
    first, again, other = Durations(seed=1), Durations(seed=1), Durations(seed=2)
    names = [f"default/p{number}" for number in range(50)]
    assert [first.create(name) for name in names] == [again.create(name) for name in reversed(names)][::-1]
    assert [first.create(name) for name in names] != [other.create(name) for name in names]
    assert len({first.create(name) for name in names}) == 50


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_usage_is_the_sum_of_what_runs_and_no_device_is_over_full(seed: int) -> None:
    """Random events on two nodes; at the end everything is deleted and nothing may be held."""
    rng = random.Random(seed)
    script = Script().node("n").node("m")
    pods = {}
    for number in range(60):
        kind = rng.choice(["new", "new", "delete", "force", "echo", "finish", "wait", "node"])
        name = rng.choice(sorted(pods)) if pods else ""
        if kind == "new" or not name:
            pod = bound_pod(
                f"p{number}",
                spec=pod_spec(node=rng.choice("nm"), requests={"cpu": rng.choice([500, 3000])}),
                devices=[(index, rng.choice([1000, 500])) for index in rng.sample(range(8), rng.randint(0, 2))],
                run_seconds=rng.choice([None, 0.5, 3]),
                placed=rng.random() < 0.9,
                created=number,
            )
            pods[pod.view.name] = pod
            script.pod(pod)
        elif kind == "delete":
            script.pod(deleting(pods[name], grace=rng.choice([0, 30])))
        elif kind == "force":
            script.gone(pods.pop(name))
        elif kind == "echo":
            script.pod(pods[name])
        elif kind == "finish":
            pods[name] = with_phase(pods[name], "Failed")
            script.pod(pods[name])
        elif kind == "node" and rng.random() < 0.2:
            script.node_gone("m").node("m")
        script.wait(rng.random())
        for node in "nm":
            usage = script.machine.holdings(node)
            assert usage is not None
            assert max(usage.device_milli.values(), default=0) <= 1000
            assert min([0, *usage.device_milli.values(), *usage.resources.values(), usage.pods]) == 0
            assert usage.resources.get("cpu", 0) <= 8000
    for pod in pods.values():
        script.gone(pod)
    script.wait(60)
    for node in "nm":
        usage = script.machine.holdings(node)
        assert usage is not None
        assert usage.pods == sum(usage.device_milli.values()) == sum(usage.resources.values()) == 0
    assert set(script.machine.count_by_stage().values()) == {0}
