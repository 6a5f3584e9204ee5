"""The scheduler's core alone: attempts on a table of nodes, binds confirmed at once, no store and no network."""

from dataclasses import replace

from bench.timing import RUNS, cpu_us
from scheduler.core.machine import Bind, LeadershipChanged, Machine, NodeChanged, PodChanged, Tick, TopologyChanged
from scheduler.plugins.registry import default_profile
from services.model.devices import Device, DeviceRequest
from services.model.node import NodeView, TopologyView
from services.model.pod import PodSpecView, PodView

PODS = 1_000
GPUS = 8
KINDS = ("identical", "different", "one GPU")
_PLAIN = PodSpecView(
    requests={"cpu": 100, "memory": 256 << 20},
    nonzero_milli_cpu=100,
    nonzero_memory=256 << 20,
    devices=None,
    node_name="",
    scheduler_name="default-scheduler",
    priority=0,
    preemption_policy="PreemptLowerPriority",
    restart_policy="Always",
    node_selector={},
    node_affinity=None,
    tolerations=(),
    host_ports=(),
    scheduling_gates=(),
    images=(),
    termination_grace_period_seconds=30,
    containers=("main",),
    scoring_milli_cpu=100,
    scoring_memory=256 << 20,
)


def _topology(name: str) -> TopologyView:
    devices = tuple(Device(index, f"GPU-{name}-{index}", "H100", 80 << 30, index // 4) for index in range(GPUS))
    paths = tuple(tuple("X" if a == b else "NODE" for b in range(GPUS)) for a in range(GPUS))
    links = tuple(tuple(0 if a == b else 18 for b in range(GPUS)) for a in range(GPUS))
    return TopologyView(name, "dgx-h100", (), devices, paths, links, ())


def _machine(nodes: int) -> Machine:
    machine = Machine([default_profile()], seed=1)
    allocatable = {
        "cpu": 64_000,
        "memory": 512 << 30,
        "pods": 250,
        "nvidia.com/gpu": GPUS,
        "orrery.dev/gpu-milli": 1000 * GPUS,
    }
    for number in range(nodes):
        name = f"node-{number}"
        labels = {"kubernetes.io/hostname": name}
        machine.step(NodeChanged(None, NodeView(name, f"uid-{name}", "1", labels, (), False, allocatable, True)), 0.0)
        machine.step(TopologyChanged(name, _topology(name)), 0.0)
    machine.step(LeadershipChanged(leading=True), 0.0)
    return machine


def _spec(kind: str, number: int) -> PodSpecView:
    if kind == "different":
        cpu = 100 + number % 97
        return replace(_PLAIN, nonzero_milli_cpu=cpu, scoring_milli_cpu=cpu, requests={"cpu": cpu})
    return _GPU if kind == "one GPU" else _PLAIN


def _pods(kind: str) -> list[PodView]:
    return [
        PodView("default", f"p{n}", f"uid-{n}", "1", 0, {}, _spec(kind, n), "Pending", False, "", None, "")
        for n in range(PODS)
    ]


_GPU = replace(_PLAIN, requests={**_PLAIN.requests, "nvidia.com/gpu": 1}, devices=DeviceRequest(1, 1000))


def _place(machine: Machine, pods: list[PodView]) -> int:
    for pod in pods:
        machine.step(PodChanged(None, pod), 0.0)
    placed = 0
    while actions := machine.step(Tick(), 0.0):
        placed += sum(isinstance(action, Bind) for action in actions)
        if not any(isinstance(action, Bind) for action in actions):
            break
    return placed


def _measure(nodes: int, kind: str) -> float:
    """Each run has a machine of its own, made before its clock starts."""
    machines = [_machine(nodes) for _ in range(RUNS)]
    pods = _pods(kind)
    return cpu_us(lambda: _place(machines.pop(), pods))


def main() -> None:
    print("scheduler core, us of CPU a pod (every node filtered and scored)")
    print(f"{'nodes':>8}" + "".join(f"{kind:>12}" for kind in KINDS))
    for nodes in (500, 1_000, 5_000):
        print(f"{nodes:>8,}" + "".join(f"{_measure(nodes, kind):>12.0f}" for kind in KINDS))
