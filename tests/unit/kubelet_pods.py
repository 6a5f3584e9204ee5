"""Pods as a kubelet sees them, and a script that plays events to its state machine and keeps what it answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kubelet_sim.core.durations import Durations
from kubelet_sim.core.events import (
    Action,
    Event,
    Instant,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    RemovePod,
    Settle,
    Trace,
    WriteStatus,
)
from kubelet_sim.core.machine import KubeletMachine
from kubelet_sim.core.pods import ContainerFacts, KubeletPod, PodContainers
from services.model.devices import DeviceShare
from services.model.pod import HostPort, NodeAffinity, Placement, PodSpecView, PodView

EPOCH_NS = 1_764_576_000_000_000_000  # 2025-12-01T08:00:00Z
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def pod_spec(
    *,
    node: str = "n",
    requests: Mapping[str, int] | None = None,
    restart: str = "Always",
    node_selector: Mapping[str, str] | None = None,
    node_affinity: NodeAffinity | None = None,
    ports: Sequence[HostPort] = (),
    grace: int = 30,
) -> PodSpecView:
    return PodSpecView(
        requests=requests if requests is not None else {"cpu": 1000},
        nonzero_milli_cpu=0,
        nonzero_memory=0,
        devices=None,
        node_name=node,
        scheduler_name="default-scheduler",
        priority=0,
        preemption_policy="",
        restart_policy=restart,
        node_selector=node_selector or {},
        node_affinity=node_affinity,
        tolerations=(),
        host_ports=tuple(ports),
        scheduling_gates=(),
        images=(),
        termination_grace_period_seconds=grace,
        containers=("main",),
    )


def bound_pod(
    name: str = "a",
    *,
    uid: str = "",
    spec: PodSpecView | None = None,
    placed: bool = True,
    devices: Sequence[tuple[int, int]] = (),
    run_seconds: float | None = None,
    inits: Sequence[ContainerFacts] = (),
    created: int = 0,
) -> KubeletPod:
    spec = spec or pod_spec()
    placement = Placement(
        spec.node_name, f"uid-{spec.node_name}", spec.requests, tuple(DeviceShare(*share) for share in devices), 1
    )
    view = PodView(
        namespace="default",
        name=name,
        uid=uid or f"uid-{name}",
        resource_version="1",
        created_at_ns=created,
        labels={},
        spec=spec,
        phase="Pending",
        deleting=False,
        nominated_node_name="",
        placed=placement if placed else None,
        traceparent=TRACE,
        run_seconds=run_seconds,
    )
    main = (ContainerFacts("main", "registry.example/app:1"),)
    return KubeletPod(view, PodContainers(tuple(inits), main, "Burstable"), scheduled_ns=EPOCH_NS)


def with_phase(pod: KubeletPod, phase: str, *, acknowledged_s: int = 0, running_s: int = 0) -> KubeletPod:
    """The pod as the API shows it later; seconds after the epoch of the script."""
    return replace(
        pod,
        view=replace(pod.view, phase=phase),
        acknowledged_ns=EPOCH_NS + acknowledged_s * 10**9,
        running_ns=EPOCH_NS + running_s * 10**9 if phase == "Running" else 0,
        pod_ip="10.128.0.1" if phase == "Running" else "",
    )


def deleting(pod: KubeletPod, grace: int = 30) -> KubeletPod:
    return replace(pod, view=replace(pod.view, deleting=True), grace_seconds=grace)


@dataclass
class Script:
    """Plays events and keeps a line for each action: `seconds verb pod detail`."""

    machine: KubeletMachine = field(default_factory=lambda: KubeletMachine(Durations(seed=1)))
    at_seconds: float = 0.0
    lines: list[str] = field(default_factory=list)
    writes: dict[str, Mapping[str, object]] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)

    def node(self, name: str = "n", *, labels: Mapping[str, str] | None = None, **allocatable: int) -> "Script":
        amounts = {"cpu": 8000, "memory": 1 << 30, "pods": 110, "nvidia.com/gpu": 8, **allocatable}
        return self.play(NodeSeen(name, labels or {}, amounts, "10.0.0.1"))

    def pod(self, *pods: KubeletPod) -> "Script":
        return self.play(*(PodSeen(pod) for pod in pods), Settle())

    def gone(self, pod: KubeletPod) -> "Script":
        return self.play(PodGone(pod.key, pod.node_name), Settle())

    def node_gone(self, name: str = "n") -> "Script":
        return self.play(NodeGone(name))

    def play(self, *events: Event) -> "Script":
        for event in events:
            for action in self.machine.step(event, self._now()):
                self._note(action)
        return self

    def wait(self, seconds: float) -> "Script":
        """Lets time pass, settling whenever a timer is due."""
        end = self.at_seconds + seconds
        while (due := self.machine.next_due) is not None and due <= end:
            self.at_seconds = max(self.at_seconds, due)
            self.play(Settle())
        self.at_seconds = end
        return self

    def _now(self) -> Instant:
        return Instant(self.at_seconds, EPOCH_NS + round(self.at_seconds * 10**9))

    def _note(self, action: Action) -> None:
        if isinstance(action, Trace):
            self.traces.append(action)
        elif isinstance(action, WriteStatus):
            phase, status = action.status["phase"], action.status
            self.writes[action.name] = status
            detail = status.get("reason") or first_state(status)
            self.lines.append(f"{self.at_seconds:.1f} write {action.name} {phase} {detail}")
        else:
            assert isinstance(action, RemovePod)
            self.lines.append(f"{self.at_seconds:.1f} remove {action.name} {action.uid}")


def first_state(status: Mapping[str, object]) -> str:
    """The state of the container that matters: the first init container that is not done, else the first container."""
    for name in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(name, []):  # type: ignore[attr-defined]
            (kind, state), *_ = container["state"].items()
            if kind == "terminated" and name == "initContainerStatuses":
                continue
            return f"{container['name']}:{kind}{':' + state['reason'] if 'reason' in state else ''}"
    return ""
