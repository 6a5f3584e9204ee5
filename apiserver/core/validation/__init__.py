"""Whether an object may be stored: Kubernetes' rules, paths and words, as lists of causes.

Objects come as protobuf messages, but only their attributes are read here; `Any` stands for "a message of that kind".
"""

from collections.abc import Callable
from typing import Any

from apiserver.core.validation.hardware import validate_node, validate_topology
from apiserver.core.validation.metadata import validate_metadata
from apiserver.core.validation.pod import validate_pod, validate_pod_update
from apiserver.core.validation.simple import (
    validate_event,
    validate_lease,
    validate_namespace,
    validate_pod_group,
    validate_priority_class,
    validate_service,
)
from services.model.errors import Cause
from services.model.kinds import Kind

_BY_KIND: dict[str, Callable[[Any], list[Cause]]] = {
    "Pod": validate_pod,
    "Node": validate_node,
    "Namespace": validate_namespace,
    "Service": validate_service,
    "Event": validate_event,
    "Lease": validate_lease,
    "PriorityClass": validate_priority_class,
    "PodGroup": validate_pod_group,
    "NodeTopology": validate_topology,
}


def validate(kind: Kind, message: Any) -> list[Cause]:
    """Everything that is wrong with an object; empty when it may be stored."""
    return [*validate_metadata(kind, message), *_BY_KIND[kind.name](message)]


def validate_update(kind: Kind, old: Any, new: Any) -> list[Cause]:
    """What an update may not change, beyond the rules for the new object itself."""
    causes: list[Cause] = []
    if kind.name == "Pod":
        causes = validate_pod_update(old, new)
    elif kind.name == "PriorityClass" and old.value != new.value:
        causes = [Cause("value", "FieldValueForbidden", "may not be changed in an update")]
    return causes


def describe(kind: Kind, name: str, causes: list[Cause]) -> str:
    """The message of an Invalid error, as Kubernetes writes it: Pod "x" is invalid: [field: what, ...]."""
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    group = f".{kind.group}" if kind.group else ""
    return f'{kind.name}{group} "{name}" is invalid: {joined}'
