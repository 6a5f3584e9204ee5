"""Our messages hold every field of Kubernetes' API: the models of its Python client are walked and compared."""

import re
from types import SimpleNamespace
from typing import Any

import kubernetes.client
import pytest
from google.protobuf.descriptor import Descriptor

from services.model.kinds import KINDS
from services.wire.kinds import message_class
from services.wire.plans import FieldPlan, Form, plan_of

KUBERNETES = {
    "Pod": kubernetes.client.V1Pod,
    "Node": kubernetes.client.V1Node,
    "Namespace": kubernetes.client.V1Namespace,
    "Lease": kubernetes.client.V1Lease,
    "Event": kubernetes.client.CoreV1Event,
    "PriorityClass": kubernetes.client.V1PriorityClass,
    "Service": kubernetes.client.V1Service,
    "PodGroup": kubernetes.client.V1beta1PodGroup,
}
# What one value of a type of the client may be with us. The client knows no quantities and no bytes: both are str.
FORMS = {
    "str": {Form.STRING, Form.QUANTITY, Form.BASE64},
    "int": {Form.INT32, Form.INT64},
    "bool": {Form.BOOL},
    "datetime": {Form.TIME, Form.MICRO_TIME},
    "object": {Form.RAW_JSON, Form.INT_OR_STRING, Form.OBJECT},
    "IntOrString": {Form.INT_OR_STRING},
}
PROTO_TYPES = {
    "str": "optional string",
    "int": "optional int32",
    "bool": "optional bool",
    "datetime": "google.protobuf.Timestamp",
    "object": "EmptyObject",
    "IntOrString": "IntOrString",
}
CONTAINER = re.compile(r"(?:list|List)\[(?P<item>.+)\]|(?:dict\(|Dict\[)str, (?P<value>.+)[)\]]")


def split_type(type_name: str) -> tuple[str, str]:
    """("list" | "map" | "single", type of one value)."""
    match = CONTAINER.fullmatch(type_name)
    if match is None:
        return "single", type_name
    return ("list", match.group("item")) if match.group("item") else ("map", match.group("value"))


def proto_line(descriptor: Descriptor, attribute: str, json_name: str, type_name: str) -> str:
    """The line that would add the field."""
    shape, element = split_type(type_name)
    number = max((field.number for field in descriptor.fields if field.number < 100), default=0) + 1
    bare = PROTO_TYPES.get(element, re.sub(r"^(Core)?V\d+((alpha|beta)\d+)?", "", element))
    if shape != "single":
        bare = bare.removeprefix("optional ")
    typed = {"list": f"repeated {bare}", "map": f"map<string, {bare}>", "single": bare}[shape]
    name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", json_name).lower() if attribute.startswith("_") else attribute
    return f'{typed} {name} = {number} [json_name = "{json_name}"];'


def shape_of(field: FieldPlan) -> str:
    return "list" if field.is_list else "map" if field.is_map else "single"


def differences(model: Any, descriptor: Descriptor) -> list[str]:
    """Every field below `model` that `descriptor` lacks or holds as something else."""
    found: list[str] = []
    waiting, seen = [(model, descriptor)], set()
    while waiting:
        model, descriptor = waiting.pop()
        if (id(model), descriptor.full_name) in seen:
            continue
        seen.add((id(model), descriptor.full_name))
        plan = plan_of(descriptor)
        for attribute, type_name in model.openapi_types.items():
            json_name = model.attribute_map[attribute]
            field = plan.by_json_name.get(json_name)
            shape, element = split_type(type_name)
            below = getattr(kubernetes.client, element, None) if element not in FORMS else None
            if field is None:
                found.append(
                    f"message {descriptor.name} lacks: {proto_line(descriptor, attribute, json_name, type_name)}"
                )
            elif shape_of(field) != shape or field.form not in ({Form.OBJECT} if below else FORMS[element]):
                found.append(
                    f"{descriptor.name}.{field.name} is {shape_of(field)} {field.form.name}, wanted {type_name}"
                )
            elif below is not None and field.message_type is not None:
                waiting.append((below, field.message_type))
            elif field.form is Form.OBJECT and field.message_type is not None and field.message_type.fields:
                found.append(f"{descriptor.name}.{field.name} is {field.message_type.name}, wanted an empty object")
    return found


def test_every_kind_of_kubernetes_is_compared() -> None:
    assert set(KUBERNETES) == {kind.name for kind in KINDS if kind.group != "orrery.dev"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in KUBERNETES], ids=lambda kind: kind.name)
def test_a_kind_holds_every_field_of_kubernetes(kind: Any) -> None:
    found = differences(KUBERNETES[kind.name], message_class(kind).DESCRIPTOR)
    assert not found, "\n".join(found)


def test_a_missing_field_is_found_with_the_line_that_adds_it() -> None:
    found = differences(
        kubernetes.client.V1Lease, message_class(next(k for k in KINDS if k.name == "Event")).DESCRIPTOR
    )
    assert found == ['message Event lacks: LeaseSpec spec = 20 [json_name = "spec"];']


def test_a_field_of_another_type_is_found() -> None:
    types = {"metadata": "V1ObjectMeta", "spec": "str", "kind": "List[str]"}
    changed = SimpleNamespace(openapi_types=types, attribute_map={name: name for name in types})
    found = differences(changed, message_class(next(k for k in KINDS if k.name == "Lease")).DESCRIPTOR)
    assert found == ["Lease.spec is single OBJECT, wanted str", "Lease.kind is single STRING, wanted List[str]"]
