"""The scheduler's core alone: attempts on a table of nodes, binds confirmed at once, no store and no network."""

from collections.abc import Callable
from dataclasses import replace

from bench.timing import RUNS, cpu_us
from scheduler.core.machine import (
    Attempted,
    Bind,
    LeadershipChanged,
    Machine,
    NodeChanged,
    PodChanged,
    Tick,
    TopologyChanged,
)
from scheduler.plugins.registry import default_profile
from services.model.devices import Device, DeviceRequest
from services.model.node import NodeView, TopologyView
from services.model.pod import PodAffinity, PodAffinityTerm, PodSpecView, PodView, Requirement, SpreadConstraint

PODS = 500
GPUS = 8
ZONES = 10
HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
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
    images=("registry.local/main:v1",),
    termination_grace_period_seconds=30,
    containers=("main",),
    scoring_milli_cpu=100,
    scoring_memory=256 << 20,
)
_GPU = replace(_PLAIN, requests={**_PLAIN.requests, "nvidia.com/gpu": 1}, devices=DeviceRequest(1, 1000))


def _of_app(number: int) -> tuple[Requirement, ...]:
    return (Requirement("app", "In", (f"app-{number % 20}",)),)


def _spread(number: int) -> PodSpecView:
    zones = SpreadConstraint(ZONE, 5, True, _of_app(number))
    return replace(_PLAIN, spread=(zones, SpreadConstraint(HOSTNAME, 1, False, _of_app(number))))


def _affinity(number: int) -> PodSpecView:
    near = PodAffinityTerm(_of_app(number), ZONE)
    return replace(_PLAIN, pod_affinity=PodAffinity(required=(near,), preferred=((10, near),)))


def _anti(number: int) -> PodSpecView:
    return replace(_PLAIN, pod_affinity=PodAffinity(anti_required=(PodAffinityTerm(_of_app(number), HOSTNAME),)))


def _different(number: int) -> PodSpecView:
    cpu = 100 + number % 97
    return replace(_PLAIN, nonzero_milli_cpu=cpu, scoring_milli_cpu=cpu, requests={"cpu": cpu, "memory": 256 << 20})


KINDS: dict[str, Callable[[int], PodSpecView]] = {
    "identical": lambda _number: _PLAIN,
    "basic": _different,
    "one GPU": lambda _number: _GPU,
    "spread": _spread,
    "affinity": _affinity,
    "anti": _anti,
    "mixed": lambda number: (_different, _spread, _affinity, _anti, lambda _number: _GPU)[number % 5](number),
}


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
        labels = {HOSTNAME: name, ZONE: f"zone-{number % ZONES}"}
        machine.step(NodeChanged(None, NodeView(name, f"uid-{name}", "1", labels, (), False, allocatable, True)), 0.0)
        machine.step(TopologyChanged(name, _topology(name)), 0.0)
    machine.step(LeadershipChanged(leading=True), 0.0)
    return machine


def _pod(name: str, number: int, spec: PodSpecView) -> PodView:
    labels = {"app": f"app-{number % 20}"}
    return PodView("default", name, f"uid-{name}", "1", 0, labels, spec, "Pending", False, "", None, "")


def _bound(machine: Machine, count: int, kind: str, nodes: int) -> None:
    """Pods that are there already, round the nodes."""
    for number in range(count):
        spec = replace(KINDS[kind](number), node_name=f"node-{number % nodes}")
        machine.step(PodChanged(None, _pod(f"bound-{number}", number, spec)), 0.0)


def _place(machine: Machine, pods: list[PodView]) -> int:
    for pod in pods:
        machine.step(PodChanged(None, pod), 0.0)
    placed = 0
    while any(isinstance(action, Bind) for action in machine.step(Tick(), 0.0)):
        placed += 1
    assert placed == len(pods), f"{placed} of {len(pods)} pods were placed"
    return placed


def _measure(nodes: int, kind: str, bound: int = 0) -> float:
    """Each run has a machine of its own, made before its clock starts."""
    machines = [_machine(nodes) for _ in range(RUNS)]
    for machine in machines:
        _bound(machine, bound, kind, nodes)
    pods = [_pod(f"p{number}", number, KINDS[kind](number)) for number in range(PODS)]
    return cpu_us(lambda: _place(machines.pop(), pods))


def _preempt(machine: Machine, pods: list[PodView]) -> int:
    for pod in pods:
        machine.step(PodChanged(None, pod), 0.0)
    found = 0
    while True:
        attempted = [action for action in machine.step(Tick(), 0.0) if isinstance(action, Attempted)]
        if not attempted:
            return found
        assert attempted[0].decision.victims, attempted[0].decision.message
        found += 1


def _measure_preemption(nodes: int) -> float:
    """Every node is full of ten pods of lower priority, of three priorities."""
    machines = [_machine(nodes) for _ in range(RUNS)]
    for machine in machines:
        for number in range(10 * nodes):
            cpu = 6_400
            spec = replace(
                _PLAIN,
                requests={"cpu": cpu, "memory": 1 << 30},
                nonzero_milli_cpu=cpu,
                priority=number * 7 % 3,
                node_name=f"node-{number % nodes}",
            )
            pod = replace(_pod(f"low-{number}", number, spec), started_at_ns=number + 1)
            machine.step(PodChanged(None, pod), 0.0)
    high = replace(_PLAIN, priority=1000, requests={"cpu": 12_000, "memory": 1 << 30})
    pods = [_pod(f"high-{number}", number, high) for number in range(20)]
    return cpu_us(lambda: _preempt(machines.pop(), pods))


def main() -> None:
    print("scheduler core, us of CPU a pod (every node filtered and scored)")
    print(f"{'nodes':>8}" + "".join(f"{kind:>12}" for kind in (*KINDS, "preemption")))
    for nodes in (500, 1_000, 5_000):
        figures = [_measure(nodes, kind) for kind in KINDS] + [_measure_preemption(nodes)]
        print(f"{nodes:>8,}" + "".join(f"{figure:>12.0f}" for figure in figures))
    print("the same with pods bound already, on 1,000 nodes")
    print(f"{'bound':>8}" + "".join(f"{kind:>12}" for kind in KINDS if kind != "one GPU"))
    for bound in (0, 1_000, 10_000):
        # Each app has at most one pod a node where they repel each other.
        figures = [_measure(1_000, kind, bound) for kind in KINDS if kind != "one GPU"]
        print(f"{bound:>8,}" + "".join(f"{figure:>12.0f}" for figure in figures))
