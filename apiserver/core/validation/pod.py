"""Pods (core/v1 validation, as far as scheduling, binding and running read them)."""

from typing import Any

from apiserver.core.validation.causes import duplicate, forbidden, invalid, one_of, required
from apiserver.core.validation.metadata import DNS_LABEL, label_causes, valid_subdomain
from apiserver.core.validation.resources import validate_amounts, validate_requirements
from services.model.errors import Cause
from services.model.selectors import valid_label_key

_RESTART = ("Always", "OnFailure", "Never")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TOLERATION_OPERATORS = ("Equal", "Exists", "Lt", "Gt")
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
PORT_MAX = 65_535


def validate_pod(pod: Any) -> list[Cause]:
    spec = pod.spec
    causes: list[Cause] = []
    if not spec.containers:
        causes.append(required("spec.containers"))
    names: set[str] = set()
    for field, containers in (("spec.initContainers", spec.init_containers), ("spec.containers", spec.containers)):
        for index, container in enumerate(containers):
            causes += _container(f"{field}[{index}]", container, names)
    causes += one_of("spec.restartPolicy", spec.restart_policy, _RESTART)
    causes += one_of("spec.preemptionPolicy", spec.preemption_policy, ("PreemptLowerPriority", "Never"))
    causes += validate_amounts("spec.overhead", spec.overhead)
    causes += validate_requirements("spec.resources", spec.resources)
    causes += label_causes("spec.nodeSelector", spec.node_selector)
    if spec.node_name and not valid_subdomain(spec.node_name):
        causes.append(invalid("spec.nodeName", spec.node_name, "is not a name that a node can have"))
    if spec.termination_grace_period_seconds < 0:
        causes.append(
            invalid("spec.terminationGracePeriodSeconds", spec.termination_grace_period_seconds, "must be positive")
        )
    for index, toleration in enumerate(spec.tolerations):
        causes += _toleration(f"spec.tolerations[{index}]", toleration)
    causes += _node_affinity(spec)
    causes += _gates(spec)
    return causes


def _container(field: str, container: Any, names: set[str]) -> list[Cause]:
    causes: list[Cause] = []
    if not container.name:
        causes.append(required(f"{field}.name"))
    elif not DNS_LABEL.fullmatch(container.name):
        causes.append(invalid(f"{field}.name", container.name, "a lowercase RFC 1123 label is wanted"))
    elif container.name in names:
        causes.append(duplicate(f"{field}.name", container.name))
    names.add(container.name)
    if not container.image:
        causes.append(required(f"{field}.image"))
    causes += validate_requirements(f"{field}.resources", container.resources)
    causes += one_of(f"{field}.imagePullPolicy", container.image_pull_policy, ("Always", "IfNotPresent", "Never"))
    for index, port in enumerate(container.ports):
        path = f"{field}.ports[{index}]"
        if not 0 < port.container_port <= PORT_MAX:
            causes.append(
                invalid(f"{path}.containerPort", port.container_port, "must be between 1 and 65535, inclusive")
            )
        if not 0 <= port.host_port <= PORT_MAX:
            causes.append(invalid(f"{path}.hostPort", port.host_port, "must be between 1 and 65535, inclusive"))
        causes += one_of(f"{path}.protocol", port.protocol, _PROTOCOLS)
    for index, variable in enumerate(container.env):
        if not variable.name:
            causes.append(required(f"{field}.env[{index}].name"))
    return causes


def _toleration(field: str, toleration: Any) -> list[Cause]:
    causes = one_of(f"{field}.operator", toleration.operator, _TOLERATION_OPERATORS)
    causes += one_of(f"{field}.effect", toleration.effect, _EFFECTS)
    if toleration.key and not valid_label_key(toleration.key):
        causes.append(invalid(f"{field}.key", toleration.key, "is not a qualified name"))
    if not toleration.key and toleration.operator != "Exists":
        causes.append(invalid(f"{field}.operator", toleration.operator, "operator must be Exists when `key` is empty"))
    if toleration.operator == "Exists" and toleration.value:
        causes.append(invalid(f"{field}.operator", toleration.value, "value must be empty when `operator` is 'Exists'"))
    if toleration.HasField("toleration_seconds") and toleration.effect != "NoExecute":
        causes.append(
            invalid(f"{field}.effect", toleration.effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        )
    return causes


def _node_affinity(spec: Any) -> list[Cause]:
    if not spec.affinity.HasField("node_affinity"):
        return []
    affinity = spec.affinity.node_affinity
    field = "spec.affinity.nodeAffinity"
    causes: list[Cause] = []
    if affinity.HasField("required_during_scheduling_ignored_during_execution"):
        path = f"{field}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        terms = affinity.required_during_scheduling_ignored_during_execution.node_selector_terms
        if not terms:
            causes.append(required(path, "must have at least one node selector term"))
        for index, term in enumerate(terms):
            causes += _term(f"{path}[{index}]", term)
    for index, preferred in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        path = f"{field}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        if not 1 <= preferred.weight <= 100:
            causes.append(invalid(f"{path}.weight", preferred.weight, "must be in the range 1-100"))
        causes += _term(f"{path}.preference", preferred.preference)
    return causes


def _term(field: str, term: Any) -> list[Cause]:
    causes: list[Cause] = []
    for index, item in enumerate(term.match_expressions):
        path = f"{field}.matchExpressions[{index}]"
        causes += one_of(f"{path}.operator", item.operator, _SELECTOR_OPERATORS, empty=False)
        if not valid_label_key(item.key):
            causes.append(invalid(f"{path}.key", item.key, "is not a qualified name"))
        if item.operator in ("In", "NotIn") and not item.values:
            causes.append(required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        if item.operator in ("Exists", "DoesNotExist") and item.values:
            causes.append(
                forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
            )
        if item.operator in ("Gt", "Lt") and len(item.values) != 1:
            causes.append(required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"))
    for index, item in enumerate(term.match_fields):
        path = f"{field}.matchFields[{index}]"
        causes += one_of(f"{path}.operator", item.operator, ("In", "NotIn"), empty=False)
        if item.key != "metadata.name":
            causes.append(invalid(f"{path}.key", item.key, "not a valid field selector key"))
        elif len(item.values) != 1:
            causes.append(
                required(
                    f"{path}.values", "must be only one value for `operator` 'In' or 'NotIn' for node field selector"
                )
            )
    return causes


def _gates(spec: Any) -> list[Cause]:
    causes = []
    seen: set[str] = set()
    for index, gate in enumerate(spec.scheduling_gates):
        if not valid_label_key(gate.name):
            causes.append(invalid(f"spec.schedulingGates[{index}]", gate.name, "is not a qualified name"))
        elif gate.name in seen:
            causes.append(duplicate(f"spec.schedulingGates[{index}]", gate.name))
        seen.add(gate.name)
    if spec.scheduling_gates and spec.node_name:
        causes.append(forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return causes


_MUTABLE = (
    "spec.containers[*].image",
    "spec.activeDeadlineSeconds",
    "spec.terminationGracePeriodSeconds",
    "spec.tolerations (only additions)",
    "spec.schedulingGates (only removals)",
)


def validate_pod_update(old: Any, new: Any) -> list[Cause]:
    """A pod's spec stands, but for what Kubernetes lets change (ValidatePodUpdate); nodeName is Bind's."""
    causes = []
    if list(new.spec.tolerations)[: len(old.spec.tolerations)] != list(old.spec.tolerations):
        causes.append(
            forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
        )
    old_gates = [gate.name for gate in old.spec.scheduling_gates]
    if any(gate.name not in old_gates for gate in new.spec.scheduling_gates):
        causes.append(forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate"))
    left, right = _frozen_part(old), _frozen_part(new)
    if left != right:
        changed = sorted(_names_that_differ(left, right)) or ["spec"]
        why = f"pod updates may not change fields other than {', '.join(_MUTABLE)}; changed: {', '.join(changed)}"
        causes.append(forbidden("spec", why))
    return causes


def _frozen_part(pod: Any) -> Any:
    """A copy of the spec without what may change."""
    spec = type(pod.spec)()
    spec.CopyFrom(pod.spec)
    for name in ("tolerations", "scheduling_gates", "active_deadline_seconds", "termination_grace_period_seconds"):
        spec.ClearField(name)
    for container in (*spec.init_containers, *spec.containers):
        container.ClearField("image")
    return spec


def _names_that_differ(left: Any, right: Any) -> list[str]:
    fields = type(left).DESCRIPTOR.fields
    return [f"spec.{field.json_name}" for field in fields if getattr(left, field.name) != getattr(right, field.name)]
