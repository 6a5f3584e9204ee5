"""Names, labels and annotations (apimachinery ValidateObjectMeta)."""

import re
from typing import Any

from apiserver.core.validation.causes import forbidden, invalid, required
from services.model.errors import Cause
from services.model.kinds import Kind
from services.model.selectors import valid_label_key, valid_label_value

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
NAME_CHARACTERS_MAX = 253
ANNOTATIONS_BYTES_MAX = 256 * 1024
_LABEL_NAMES = ("Namespace", "Service")
_DNS_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character"
)
_DNS_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character"
)


def valid_subdomain(name: str) -> bool:
    return len(name) <= NAME_CHARACTERS_MAX and bool(DNS_SUBDOMAIN.fullmatch(name))


def name_rule_broken(kind: Kind, name: str) -> str:
    """The rule that `name` breaks as a name of `kind`; empty when it breaks none."""
    if kind.name in _LABEL_NAMES:
        return "" if DNS_LABEL.fullmatch(name) else _DNS_LABEL_RULE
    return "" if valid_subdomain(name) else _DNS_SUBDOMAIN_RULE


def validate_metadata(kind: Kind, message: Any) -> list[Cause]:
    metadata = message.metadata
    causes: list[Cause] = []
    if not metadata.name:
        causes.append(required("metadata.name", "name or generateName is required"))
    elif rule := name_rule_broken(kind, metadata.name):
        causes.append(invalid("metadata.name", metadata.name, rule))
    if kind.namespaced:
        if not metadata.namespace:
            causes.append(required("metadata.namespace"))
        elif not DNS_LABEL.fullmatch(metadata.namespace):
            causes.append(invalid("metadata.namespace", metadata.namespace, _DNS_LABEL_RULE))
    elif metadata.namespace:
        causes.append(forbidden("metadata.namespace", "not allowed on this type"))
    causes += label_causes("metadata.labels", metadata.labels)
    causes += _annotation_causes(metadata.annotations)
    for index, owner in enumerate(metadata.owner_references):
        for field in ("api_version", "kind", "name", "uid"):
            if not getattr(owner, field):
                causes.append(required(f"metadata.ownerReferences[{index}].{field.replace('_v', 'V')}"))
    return causes


def label_causes(field: str, labels: Any) -> list[Cause]:
    """What is wrong with a map of labels."""
    causes = []
    for key in sorted(labels):
        if not valid_label_key(key):
            causes.append(invalid(field, key, "name part must consist of alphanumeric characters, '-', '_' or '.'"))
        elif not valid_label_value(labels[key]):
            causes.append(
                invalid(
                    field,
                    labels[key],
                    "a valid label must be an empty string or at most 63 alphanumeric characters, '-', '_' or '.'",
                )
            )
    return causes


def _annotation_causes(annotations: Any) -> list[Cause]:
    causes = [
        invalid("metadata.annotations", key, "name part must consist of alphanumeric characters, '-', '_' or '.'")
        for key in sorted(annotations)
        if not valid_label_key(key.lower())
    ]
    size = sum(len(key) + len(annotations[key]) for key in annotations)
    if size > ANNOTATIONS_BYTES_MAX:
        causes.append(
            Cause(
                "metadata.annotations",
                "FieldValueTooLong",
                f"Too long: may not be more than {ANNOTATIONS_BYTES_MAX} bytes",
            )
        )
    return causes
