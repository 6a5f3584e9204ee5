"""What the API server fills in: Kubernetes' defaults, and what every new object gets.

Objects come as protobuf messages, but only their attributes are touched here; `Any` stands for "a message of that kind".
"""

from typing import Any

from services.model.names import SCHEDULER_NAME_DEFAULT

_GRACE_SECONDS = 30
_PROTOCOL = "TCP"
GENERATED_SUFFIX_CHARACTERS = 5
# Kubernetes' alphabet for generated names: no vowels, nothing that looks like another.
GENERATED_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def default_pod(pod: Any) -> None:
    """core/v1 SetDefaults_Pod and SetDefaults_PodSpec, as far as we read the fields."""
    spec = pod.spec
    if not spec.restart_policy:
        spec.restart_policy = "Always"
    if not spec.scheduler_name:
        spec.scheduler_name = SCHEDULER_NAME_DEFAULT
    if not spec.HasField("termination_grace_period_seconds"):
        spec.termination_grace_period_seconds = _GRACE_SECONDS
    if not spec.dns_policy:
        spec.dns_policy = "ClusterFirst"
    if not spec.HasField("enable_service_links"):
        spec.enable_service_links = True
    for container in (*spec.init_containers, *spec.containers):
        _default_container(container, host_network=spec.host_network)


def _default_container(container: Any, *, host_network: bool) -> None:
    for name in sorted(container.resources.limits):
        if name not in container.resources.requests:
            container.resources.requests[name] = container.resources.limits[name]
    if not container.image_pull_policy:
        tag = container.image.rpartition("/")[2].partition("@")[0].partition(":")[2]
        latest = "@" not in container.image and tag in ("", "latest")
        container.image_pull_policy = "Always" if latest else "IfNotPresent"
    if not container.termination_message_path:
        container.termination_message_path = "/dev/termination-log"
    if not container.termination_message_policy:
        container.termination_message_policy = "File"
    for port in container.ports:
        if not port.protocol:
            port.protocol = _PROTOCOL
        if host_network and not port.host_port:
            port.host_port = port.container_port


def quality_of_service(pod: Any) -> str:
    """status.qosClass (core/v1 helper ComputePodQOS): Guaranteed, Burstable or BestEffort."""
    requested = limited = guaranteed = False
    complete = True
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        resources = container.resources
        for name in ("cpu", "memory"):
            requested |= resources.requests.get(name, "0") not in ("", "0")
            limited |= resources.limits.get(name, "0") not in ("", "0")
            if resources.limits.get(name, "") in ("", "0") or resources.requests.get(name) != resources.limits.get(
                name
            ):
                complete = False
    guaranteed = complete and limited
    if guaranteed:
        return "Guaranteed"
    return "Burstable" if requested or limited else "BestEffort"


def begin_status(kind_name: str, message: Any) -> None:
    """The status that a new object begins with; a Node brings its own."""
    if kind_name == "Pod":
        message.ClearField("status")
        message.ClearField("placed")
        message.status.phase = "Pending"
        message.status.qos_class = quality_of_service(message)
    elif kind_name == "Namespace":
        message.ClearField("status")
        message.status.phase = "Active"
    elif kind_name in ("PodGroup", "Service"):
        message.ClearField("status")


def default_object(kind_name: str, message: Any) -> None:
    """Defaults of a kind's spec."""
    if kind_name == "Pod":
        default_pod(message)
    elif kind_name == "Service":
        if not message.spec.type:
            message.spec.type = "ClusterIP"
        for port in message.spec.ports:
            if not port.protocol:
                port.protocol = _PROTOCOL
    elif kind_name == "PriorityClass" and not message.preemption_policy:
        message.preemption_policy = "PreemptLowerPriority"
