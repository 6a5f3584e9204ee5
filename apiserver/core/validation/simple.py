"""The kinds whose rules are few."""

from typing import Any

from apiserver.core.validation.causes import forbidden, invalid, one_of, required
from services.model.errors import Cause

# scheduling.k8s.io: above this only the system's own classes may go.
USER_PRIORITY_MAX = 1_000_000_000
_SYSTEM_PREFIX = "system-"
_SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def validate_namespace(_namespace: Any) -> list[Cause]:
    return []


def validate_service(service: Any) -> list[Cause]:
    causes: list[Cause] = []
    for index, port in enumerate(service.spec.ports):
        if not 0 < port.port <= 65_535:
            causes.append(invalid(f"spec.ports[{index}].port", port.port, "must be between 1 and 65535, inclusive"))
    return causes


def validate_event(event: Any) -> list[Cause]:
    causes: list[Cause] = []
    if event.involved_object.namespace and event.involved_object.namespace != event.metadata.namespace:
        causes.append(
            invalid("involvedObject.namespace", event.involved_object.namespace, "does not match event.namespace")
        )
    return causes


def validate_lease(lease: Any) -> list[Cause]:
    spec = lease.spec
    causes: list[Cause] = []
    if spec.HasField("lease_duration_seconds") and spec.lease_duration_seconds <= 0:
        causes.append(invalid("spec.leaseDurationSeconds", spec.lease_duration_seconds, "must be greater than 0"))
    if spec.lease_transitions < 0:
        causes.append(invalid("spec.leaseTransitions", spec.lease_transitions, "must be greater than or equal to 0"))
    return causes


def validate_priority_class(priority_class: Any) -> list[Cause]:
    causes = one_of("preemptionPolicy", priority_class.preemption_policy, ("PreemptLowerPriority", "Never"))
    name, value = priority_class.metadata.name, priority_class.value
    if name.startswith(_SYSTEM_PREFIX):
        if _SYSTEM_CLASSES.get(name) != value:
            causes.append(
                forbidden(
                    "metadata.name", "priority class names with 'system-' prefix are reserved for system use only"
                )
            )
    elif value > USER_PRIORITY_MAX:
        causes.append(forbidden("value", f"maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}"))
    return causes


def validate_pod_group(group: Any) -> list[Cause]:
    policy = group.spec.scheduling_policy
    chosen = [name for name in ("basic", "gang") if policy.HasField(name)]
    if len(chosen) != 1:
        return [required("spec.schedulingPolicy", "exactly one of basic and gang")]
    if chosen == ["gang"] and policy.gang.min_count < 1:
        return [invalid("spec.schedulingPolicy.gang.minCount", policy.gang.min_count, "must be greater than 0")]
    return []
