"""Kubernetes' rules about other pods once more, node by node and pod by pod, as its documentation words them.

Slow, and apart from the plugins' code: dictionaries of domains counted anew for every question.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from services.model.node import NodeView, Taint
from services.model.pod import PodAffinityTerm, PodView, Requirement, SpreadConstraint

Placed = tuple[PodView, str]


@dataclass(frozen=True)
class Naive:
    nodes: Mapping[str, NodeView]
    placed: tuple[Placed, ...]
    namespaces: Mapping[str, Mapping[str, str]]

    def on(self, name: str) -> list[PodView]:
        return [pod for pod, node in self.placed if node == name]


def holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    return {
        "In": value is not None and value in requirement.values,
        "NotIn": value is None or value not in requirement.values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[requirement.operator]


def chosen(selector: tuple[Requirement, ...] | None, labels: Mapping[str, str]) -> bool:
    return selector is not None and all(holds(item, labels) for item in selector)


def means(world: Naive, term: PodAffinityTerm, owner: PodView, other: PodView) -> bool:
    namespaces = set(term.namespaces)
    if not namespaces and term.namespace_selector is None:
        namespaces = {owner.namespace}
    if other.namespace not in namespaces and not chosen(
        term.namespace_selector, world.namespaces.get(other.namespace, {})
    ):
        return False
    return chosen(term.selector, other.labels)


def tolerated(pod: PodView, taint: Taint) -> bool:
    return any(
        item.effect in ("", taint.effect)
        and item.key in ("", taint.key)
        and (item.operator == "Exists" or item.value == taint.value)
        for item in pod.spec.tolerations
    )


def affinity_refusal(world: Naive, pod: PodView, node: NodeView) -> str:
    terms = pod.spec.pod_affinity
    required = terms.required if terms else ()
    shunned = terms.anti_required if terms else ()
    if required and not all(term.topology_key in node.labels for term in required):
        return "didn't match pod affinity rules"
    wanted = [(other, name) for other, name in world.placed if all(means(world, term, pod, other) for term in required)]
    pairs = Counter(
        (term.topology_key, world.nodes[name].labels[term.topology_key])
        for _, name in wanted
        for term in required
        if term.topology_key in world.nodes[name].labels
    )
    if required and not all(pairs[term.topology_key, node.labels[term.topology_key]] for term in required):
        itself = all(means(world, term, pod, pod) for term in required)
        if pairs or not itself:
            return "didn't match pod affinity rules"
    for term in shunned:
        for other, name in world.placed:
            if means(world, term, pod, other) and together(world.nodes[name], node, term.topology_key):
                return "didn't match pod anti-affinity rules"
    for other, name in world.placed:
        for term in other.spec.pod_affinity.anti_required if other.spec.pod_affinity else ():
            if means(world, term, other, pod) and together(world.nodes[name], node, term.topology_key):
                return "didn't satisfy existing pods anti-affinity rules"
    return ""


def together(one: NodeView, other: NodeView, key: str) -> bool:
    return key in one.labels and one.labels[key] == other.labels.get(key)


def affinity_scores(world: Naive, pod: PodView, feasible: list[str]) -> dict[str, int]:
    raw = {}
    for name in feasible:
        node, total = world.nodes[name], 0
        for weight, key, there in affinity_weights(world, pod):
            if together(world.nodes[there], node, key):
                total += weight
        raw[name] = total
    low, high = min(raw.values()), max(raw.values())
    if low == high:
        return dict.fromkeys(feasible, 0)
    return {name: int(100.0 * ((total - low) / (high - low))) for name, total in raw.items()}


def affinity_weights(world: Naive, pod: PodView) -> Iterator[tuple[int, str, str]]:
    mine = pod.spec.pod_affinity
    for other, name in world.placed:
        for weight, term in mine.preferred if mine else ():
            if means(world, term, pod, other):
                yield weight, term.topology_key, name
        for weight, term in mine.anti_preferred if mine else ():
            if means(world, term, pod, other):
                yield -weight, term.topology_key, name
        theirs = other.spec.pod_affinity
        if theirs is None:
            continue
        for term in theirs.required:
            if means(world, term, other, pod):
                yield 1, term.topology_key, name
        for weight, term in theirs.preferred:
            if means(world, term, other, pod):
                yield weight, term.topology_key, name
        for weight, term in theirs.anti_preferred:
            if means(world, term, other, pod):
                yield -weight, term.topology_key, name


def counted(world: Naive, pod: PodView, constraint: SpreadConstraint, name: str) -> int:
    if not constraint.selector:
        return 0
    return sum(
        other.namespace == pod.namespace and not other.deleting and chosen(constraint.selector, other.labels)
        for other in world.on(name)
    )


def eligible(pod: PodView, node: NodeView, constraint: SpreadConstraint, keys: list[str]) -> bool:
    if not all(key in node.labels for key in keys):
        return False
    if constraint.honor_affinity and any(
        node.labels.get(key) != value for key, value in pod.spec.node_selector.items()
    ):
        return False
    return not constraint.honor_taints or all(
        tolerated(pod, taint) for taint in node.taints if taint.effect in ("NoSchedule", "NoExecute")
    )


def spread_refusal(world: Naive, pod: PodView, node: NodeView) -> str:
    hard = [item for item in pod.spec.spread if item.hard]
    keys = [item.topology_key for item in hard]
    for item in hard:
        domains: Counter[str] = Counter()
        for name, other in world.nodes.items():
            if eligible(pod, other, item, keys):
                domains[other.labels[item.topology_key]] += counted(world, pod, item, name)
        if item.topology_key not in node.labels:
            return "missing required label"
        lowest = min(domains.values()) if len(domains) >= item.min_domains and domains else 0
        here = domains.get(node.labels[item.topology_key], 0)
        if here + int(chosen(item.selector, pod.labels)) - lowest > item.max_skew:
            return "topology spread constraints"
    return ""


def spread_scores(world: Naive, pod: PodView, feasible: list[str]) -> dict[str, int]:
    soft = [item for item in pod.spec.spread if not item.hard]
    keys = [item.topology_key for item in soft]
    scored = [name for name in feasible if all(key in world.nodes[name].labels for key in keys)]
    raw = {}
    for name in scored:
        total = 0.0
        for item in soft:
            if item.topology_key == "kubernetes.io/hostname":
                size, count = len(scored), counted(world, pod, item, name)
            else:
                value = world.nodes[name].labels[item.topology_key]
                size = len({world.nodes[other].labels[item.topology_key] for other in scored})
                count = sum(
                    counted(world, pod, item, other)
                    for other, node in world.nodes.items()
                    if eligible(pod, node, item, keys) and node.labels[item.topology_key] == value
                )
            total += count * math.log(size + 2) + float(item.max_skew - 1)
        raw[name] = math.floor(total + 0.5)
    if not raw:
        return dict.fromkeys(feasible, 0)
    low, high = min(raw.values()), max(raw.values())
    final = {name: 100 if high == 0 else 100 * (high + low - total) // high for name, total in raw.items()}
    return {name: final.get(name, 0) for name in feasible}
