"""Rules for what arguments have inside them: node selectors, shapes, weighted resources, durations (Kubernetes 1.36).

Each takes the message, the steps to it from whatever `fail` stands for, and `fail(steps, message)`.
"""

import re
from collections.abc import Callable, Sequence

from protos.orrery.v1 import pod_pb2
from protos.orrery.v1 import scheduler_configuration_pb2 as pb
from services.model.selectors import valid_label_key
from services.wire.field_errors import Steps

Fail = Callable[[Steps, str], None]
SHAPE_SCORE_MAX = 10
WEIGHT_MAX = 100
_INT64 = range(-(2**63), 2**63)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def duration_seconds(text: str) -> float | None:
    """A duration as Go writes it (1m30s, 1.5h, 0); None when it is none."""
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    parts = list(_PART.finditer(rest))
    if not parts or "".join(part.group() for part in parts) != rest:
        return None
    return sign * sum(float(part.group(1)) * _SECONDS[part.group(2)] for part in parts)


def check_within(fail: Fail, steps: Steps, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        fail(steps, f"{value} is not in the range {low} to {high}")


def check_name(fail: Fail, steps: Steps, name: str) -> None:
    """A qualified name, as labels and resources have."""
    if not valid_label_key(name):
        fail(steps, f"{name[:WEIGHT_MAX]!r} is no qualified name, such as example.com/foo")


def check_shape(points: Sequence[pb.UtilizationShapePoint], steps: Steps, fail: Fail) -> None:
    """Points of (utilization, score); utilization only grows."""
    for at, point in enumerate(points):
        check_within(fail, (*steps, at, "utilization"), point.utilization, 0, 100)
        check_within(fail, (*steps, at, "score"), point.score, 0, SHAPE_SCORE_MAX)
        if at and point.utilization <= points[at - 1].utilization:
            fail((*steps, at, "utilization"), "utilization values must be sorted in increasing order")


def weighted_resources(
    resources: Sequence[pb.WeightedResource], steps: Steps, fail: Fail, weight_max: int = WEIGHT_MAX
) -> dict[str, int]:
    """Resources and their weights; one that is not given, or 0, is 1."""
    weights: dict[str, int] = {}
    for at, item in enumerate(resources):
        weight = item.weight or 1
        if not item.name:
            fail((*steps, at, "name"), "is missing")
        elif item.name in weights:
            fail((*steps, at, "name"), f"{item.name!r} stands there twice")
        check_within(fail, (*steps, at, "weight"), weight, 1, weight_max)
        weights[item.name] = weight
    return weights


def check_selector_term(term: pod_pb2.NodeSelectorTerm, steps: Steps, fail: Fail) -> None:
    """core/v1 NodeSelectorTerm: without any requirement it matches no node."""
    for at, item in enumerate(term.match_expressions):
        where: Steps = (*steps, "matchExpressions", at)
        check_name(fail, (*where, "key"), item.key)
        _check_values(item, where, fail)
    for at, item in enumerate(term.match_fields):
        where = (*steps, "matchFields", at)
        if item.key != "metadata.name":
            fail((*where, "key"), f"{item.key!r} is no field of a node to select by; there is metadata.name")
        if item.operator not in ("In", "NotIn"):
            fail((*where, "operator"), f"{item.operator!r} is none of In, NotIn")
        elif len(item.values) != 1:
            fail((*where, "values"), "must have one value")


def _check_values(item: pod_pb2.NodeSelectorRequirement, steps: Steps, fail: Fail) -> None:
    values: Steps = (*steps, "values")
    if item.operator not in _OPERATORS:
        fail((*steps, "operator"), f"{item.operator!r} is none of {', '.join(_OPERATORS)}")
    elif item.operator in ("In", "NotIn") and not item.values:
        fail(values, f"must have a value when the operator is {item.operator}")
    elif item.operator in ("Exists", "DoesNotExist") and item.values:
        fail(values, f"must be empty when the operator is {item.operator}")
    elif item.operator in ("Gt", "Lt"):
        if len(item.values) != 1:
            fail(values, f"must have one value when the operator is {item.operator}")
        elif not _INTEGER.fullmatch(item.values[0]) or int(item.values[0]) not in _INT64:
            fail((*values, 0), f"{item.values[0][:WEIGHT_MAX]!r} is no integer, which {item.operator} compares")
