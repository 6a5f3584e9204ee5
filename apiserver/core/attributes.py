"""What selectors may ask of an object: its labels, and the fields that Kubernetes supports for its kind."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.model.errors import BadRequest
from services.model.kinds import Kind
from services.model.selectors import (
    FieldSelector,
    Selector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)

_COMMON = ("metadata.name", "metadata.namespace")
SUPPORTED_FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        *_COMMON,
        "spec.nodeName",
        "spec.schedulerName",
        "spec.restartPolicy",
        "status.phase",
        "status.nominatedNodeName",
    ),
    "nodes": (*_COMMON, "spec.unschedulable"),
    "namespaces": (*_COMMON, "status.phase"),
    "events": (
        *_COMMON,
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "reason",
        "type",
    ),
}


@dataclass(frozen=True, slots=True)
class Attributes:
    """Labels and fields of one version of one object."""

    labels: Mapping[str, str]
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ObjectFilter:
    """A namespace ("" for all) and both selectors of a list or watch."""

    namespace: str
    labels: Selector
    fields: FieldSelector

    @property
    def needs_attributes(self) -> bool:
        return not (self.labels.everything and self.fields.everything)

    def matches(self, attributes: Attributes) -> bool:
        return self.labels.matches(attributes.labels) and self.fields.matches(attributes.fields)


def parse_filter(kind: Kind, namespace: str, label_selector: str, field_selector: str) -> ObjectFilter:
    """The filter of a request. Raises BadRequest for a selector that cannot be understood."""
    try:
        return ObjectFilter(
            namespace if kind.namespaced else "",
            parse_label_selector(label_selector),
            parse_field_selector(field_selector, SUPPORTED_FIELDS.get(kind.resource, _COMMON)),
        )
    except SelectorError as error:
        raise BadRequest(str(error)) from error
