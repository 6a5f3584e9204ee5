"""The status that a kubelet writes for a pod, in Kubernetes' JSON form: phase, conditions, container statuses.

Built whole from the pod and the times of its stages, so that the same stage always gives the same status and a write
may be repeated or skipped for a newer one.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubelet_sim.core.admission import Refusal
from kubelet_sim.core.pods import ContainerFacts, KubeletPod

Status = dict[str, Any]
# The conditions that a kubelet writes; it leaves those of others as they are.
OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Unix nanoseconds at which the pod was acknowledged, began its init container `inits_done`, ran, ended; 0: not yet."""

    acknowledged_ns: int
    init_started_ns: int = 0
    inits_done: int = 0
    running_ns: int = 0
    finished_ns: int = 0


def rfc3339(at_ns: int) -> str:
    """Kubernetes' metav1.Time: whole seconds, UTC."""
    return datetime.fromtimestamp(at_ns // _SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def refused_status(pod: KubeletPod, refusal: Refusal, now_ns: int) -> Status:
    """Phase Failed with the kubelet's reason, as `kubectl describe` shows it."""
    return {
        "phase": "Failed",
        "reason": refusal.reason,
        "message": f"Pod was rejected: {refusal.message}",
        "startTime": rfc3339(now_ns),
        "qosClass": pod.containers.qos_class,
    }


def creating_status(pod: KubeletPod, times: StageTimes, host_ip: str) -> Status:
    """Admitted; nothing runs yet."""
    waiting = "PodInitializing" if pod.containers.init else "ContainerCreating"
    status = _base(pod, times, host_ip)
    status["phase"] = "Pending"
    status["conditions"] = _conditions(pod, times, ready=False, initialized=not pod.containers.init, sandbox=False)
    status["containerStatuses"] = [_waiting(container, waiting) for container in pod.containers.main]
    if pod.containers.init:
        status["initContainerStatuses"] = [_waiting(container, "PodInitializing") for container in pod.containers.init]
    return status


def initializing_status(pod: KubeletPod, times: StageTimes, host_ip: str, pod_ip: str) -> Status:
    """Its init container number `inits_done` runs."""
    status = _base(pod, times, host_ip, pod_ip)
    status["phase"] = "Pending"
    status["conditions"] = _conditions(pod, times, ready=False, initialized=False, sandbox=True)
    status["containerStatuses"] = [_waiting(container, "PodInitializing") for container in pod.containers.main]
    status["initContainerStatuses"] = _init_statuses(pod, times)
    return status


def running_status(pod: KubeletPod, times: StageTimes, host_ip: str, pod_ip: str) -> Status:
    status = _base(pod, times, host_ip, pod_ip)
    status["phase"] = "Running"
    status["conditions"] = _conditions(pod, times, ready=True, initialized=True, sandbox=True)
    status["containerStatuses"] = [_running(pod, container, times.running_ns) for container in pod.containers.main]
    if pod.containers.init:
        status["initContainerStatuses"] = _init_statuses(pod, times)
    return status


def succeeded_status(pod: KubeletPod, times: StageTimes, host_ip: str, pod_ip: str) -> Status:
    status = _base(pod, times, host_ip, pod_ip)
    status["phase"] = "Succeeded"
    status["conditions"] = _conditions(
        pod, times, ready=False, initialized=True, sandbox=False, reason="PodCompleted", changed_ns=times.finished_ns
    )
    status["containerStatuses"] = [_ended(pod, container, times) for container in pod.containers.main]
    if pod.containers.init:
        status["initContainerStatuses"] = _init_statuses(pod, times)
    return status


def container_id(pod: KubeletPod, container: str) -> str:
    """Made of the pod's uid, so that a kubelet that starts again names the same container."""
    return f"containerd://{pod.view.uid}/{container}"


def _base(pod: KubeletPod, times: StageTimes, host_ip: str, pod_ip: str = "") -> Status:
    status: Status = {
        "startTime": rfc3339(times.acknowledged_ns),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "qosClass": pod.containers.qos_class,
    }
    if pod_ip:
        status["podIP"] = pod_ip
        status["podIPs"] = [{"ip": pod_ip}]
    return status


def _conditions(
    pod: KubeletPod,
    times: StageTimes,
    *,
    ready: bool,
    initialized: bool,
    sandbox: bool,
    reason: str = "",
    changed_ns: int = 0,
) -> list[Status]:
    """The five conditions of a kubelet. A merge patch replaces the list, so PodScheduled is said again."""
    began = times.running_ns or times.init_started_ns or times.acknowledged_ns
    changed = changed_ns or began
    names = " ".join(container.name for container in pod.containers.main)
    unready = reason or "ContainersNotReady"
    unready_text = "" if reason else f"containers with unready status: [{names}]"
    conditions = [
        _condition("PodReadyToStartContainers", sandbox, changed),
        _condition("Initialized", initialized, times.running_ns or times.acknowledged_ns, reason=reason),
        _condition("Ready", ready, changed, reason="" if ready else unready, message="" if ready else unready_text),
        _condition(
            "ContainersReady", ready, changed, reason="" if ready else unready, message="" if ready else unready_text
        ),
        _condition("PodScheduled", True, pod.scheduled_ns or times.acknowledged_ns),
    ]
    if not initialized:
        missing = " ".join(container.name for container in pod.containers.init)
        conditions[1] |= {
            "reason": "ContainersNotInitialized",
            "message": f"containers with incomplete status: [{missing}]",
        }
    return [*conditions, *map(dict, pod.foreign_conditions)]


def _condition(kind: str, status: bool, at_ns: int, *, reason: str = "", message: str = "") -> Status:
    condition = {"type": kind, "status": str(status), "lastTransitionTime": rfc3339(at_ns)}
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition


def _common(container: ContainerFacts) -> Status:
    return {"name": container.name, "image": container.image, "restartCount": 0}


def _waiting(container: ContainerFacts, reason: str) -> Status:
    return {
        **_common(container),
        "imageID": "",
        "ready": False,
        "started": False,
        "state": {"waiting": {"reason": reason}},
    }


def _running(pod: KubeletPod, container: ContainerFacts, started_ns: int) -> Status:
    return {
        **_common(container),
        "imageID": f"simulated://{container.image}",
        "containerID": container_id(pod, container.name),
        "ready": True,
        "started": True,
        "state": {"running": {"startedAt": rfc3339(started_ns)}},
    }


def _ended(pod: KubeletPod, container: ContainerFacts, times: StageTimes) -> Status:
    return _completed(pod, container, times.running_ns, times.finished_ns)


def _completed(pod: KubeletPod, container: ContainerFacts, started_ns: int, finished_ns: int) -> Status:
    return {
        **_common(container),
        "imageID": f"simulated://{container.image}",
        "containerID": container_id(pod, container.name),
        "ready": False,
        "started": False,
        "state": {
            "terminated": {
                "exitCode": 0,
                "reason": "Completed",
                "startedAt": rfc3339(started_ns),
                "finishedAt": rfc3339(finished_ns),
                "containerID": container_id(pod, container.name),
            }
        },
    }


def _init_statuses(pod: KubeletPod, times: StageTimes) -> list[Status]:
    """Plain init containers are done, running or waiting by their number; a sidecar runs once its turn has come."""
    statuses: list[Status] = []
    number = 0
    began = times.init_started_ns or times.acknowledged_ns
    for container in pod.containers.init:
        if container.sidecar:
            reached = times.running_ns or number <= times.inits_done
            if times.finished_ns:
                statuses.append(_completed(pod, container, began, times.finished_ns))
            else:
                statuses.append(_running(pod, container, began) if reached else _waiting(container, "PodInitializing"))
            continue
        if times.running_ns or number < times.inits_done:
            statuses.append({**_completed(pod, container, times.acknowledged_ns, began), "ready": True})
        elif number == times.inits_done:
            statuses.append({**_running(pod, container, began), "ready": False})
        else:
            statuses.append(_waiting(container, "PodInitializing"))
        number += 1
    return statuses
