"""One recorded cluster state through the scheduler's core, and the answer in the recording's form."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from google.protobuf.message import Message

from protos.orrery.v1.meta_pb2 import LabelSelector
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.pod_pb2 import Pod
from scheduler.core.filtering import Filtering
from scheduler.core.framework import Plugin, no_stopwatch
from scheduler.core.profile import Profile
from scheduler.core.scoring import score_nodes
from scheduler.core.status import Status
from scheduler.core.table import Bools, Held, NodeTable
from scheduler.plugins.default_preemption import DefaultPreemption, not_eligible
from scheduler.plugins.node_resources import MOST_ALLOCATED, RATIO, NodeResourcesFit
from scheduler.plugins.pod_topology_spread import PodTopologySpread
from scheduler.plugins.preemption_choice import Candidate, best
from scheduler.plugins.registry import PLUGINS, WEIGHTS
from scheduler.plugins.taints import NodeUnschedulable, TaintToleration
from services.model.cluster import BudgetView, ServiceView
from services.model.names import RESOURCE_CPU, RESOURCE_GPU, RESOURCE_MEMORY, SCHEDULER_NAME_DEFAULT
from services.model.pod import PodView
from services.wire.codec import from_json
from services.wire.node import node_view
from services.wire.pod import PodDecoder
from services.wire.pod_terms import label_requirements

Answer = dict[str, Any]
_RATIO_SHAPE = ((0, 0), (40, 3), (75, 10), (100, 6))
# The scoring of NodeResourcesFit in each profile that recordings name.
PROFILES: dict[str, Callable[[], NodeResourcesFit]] = {
    "default": NodeResourcesFit,
    "most_allocated": lambda: NodeResourcesFit(MOST_ALLOCATED, {RESOURCE_CPU: 1, RESOURCE_MEMORY: 1, RESOURCE_GPU: 5}),
    "ratio": lambda: NodeResourcesFit(RATIO, {RESOURCE_CPU: 2, RESOURCE_MEMORY: 1, RESOURCE_GPU: 3}, _RATIO_SHAPE),
}
_COMPARISON = "TaintTolerationComparisonOperators"
# Our own; the recordings are of Kubernetes' default profile.
_NOT_KUBERNETES = ("GpuTopology",)


def profile_of(question: Mapping[str, Any]) -> Profile:
    """Kubernetes' default plugins, with the arguments that the recording was made with."""
    compares = bool(question.get("feature_gates", {}).get(_COMPARISON))
    special: dict[str, Callable[[], Plugin]] = {
        "NodeResourcesFit": PROFILES[question["profile"]],
        "NodeUnschedulable": lambda: NodeUnschedulable(comparison_operators=compares),
        "TaintToleration": lambda: TaintToleration(comparison_operators=compares),
        "PodTopologySpread": lambda: PodTopologySpread(comparison_operators=compares),
    }
    plugins = [special.get(name, make)() for name, make in PLUGINS.items() if name not in _NOT_KUBERNETES]
    return Profile(SCHEDULER_NAME_DEFAULT, plugins, WEIGHTS)


class Cluster:
    """The objects of a recording in a table. Raises ValueError for what is no object of its kind."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.nodes = NodeTable()
        self._decoder = PodDecoder()
        self._uids = 0
        for manifest in objects.get("nodes", []):
            self.nodes.put_node(node_view(self._message(manifest, Node), "1"))
        for manifest in objects.get("namespaces", []):
            metadata = manifest["metadata"]
            self.nodes.pods.put_namespace(metadata["name"], metadata.get("labels", {}))
        for manifest in objects.get("services", []):
            metadata, selector = manifest["metadata"], manifest["spec"].get("selector") or {}
            service = ServiceView(metadata["namespace"], metadata["name"], selector)
            self.nodes.put_service(service.namespace, service.name, service)
        for manifest in objects.get("pdbs", []):
            budget = _budget(manifest)
            self.nodes.put_budget(f"{budget.namespace}/{budget.name}", budget)
        for manifest in objects.get("pods", []):
            pod = self.pod(manifest)
            if pod.finished:
                continue
            if pod.spec.node_name:
                self.nodes.hold(Held(pod, pod.spec.node_name, ()))
            else:
                self.nodes.nominate(pod.nominated_node_name, pod)

    def _message(self, manifest: Mapping[str, Any], cls: type[Message]) -> bytes:
        message = cast("Any", from_json(dict(manifest), cls))
        self._uids += 1
        message.metadata.uid = f"uid-{self._uids}"
        return cast("bytes", message.SerializeToString())

    def pod(self, manifest: Mapping[str, Any]) -> PodView:
        return self._decoder.view(self._message(manifest, Pod), "1")


def _budget(manifest: Mapping[str, Any]) -> BudgetView:
    metadata, status = manifest["metadata"], manifest.get("status", {})
    selector = manifest["spec"].get("selector")
    return BudgetView(
        metadata["namespace"],
        metadata["name"],
        label_requirements(from_json(selector, LabelSelector)) if selector is not None else None,
        int(status.get("disruptionsAllowed", 0)),
        frozenset(status.get("disruptedPods") or {}),
    )


def decide(question: Mapping[str, Any]) -> Answer:
    """Our answer to one case."""
    profile = profile_of(question)
    cluster = Cluster(question["objects"])
    pod = cluster.pod(question["pod"])
    for plugin in profile.pre_enqueue:
        status = plugin.pre_enqueue(pod)
        if not status.ok:
            return {"outcome": "gated", "preenqueue": _refusal(status), "feasible": [], "best": []}
    cluster.nodes.nominate(pod.nominated_node_name, pod)
    filtering = Filtering(profile, pod, cluster.nodes, no_stopwatch)
    feasible = filtering.run()
    answer: Answer = {"prefilter": _prefilter(filtering)}
    answer["filter"] = _verdicts(filtering, cluster.nodes, feasible)
    answer |= _scores(profile, filtering, pod, cluster.nodes, feasible)
    if not answer["feasible"]:
        answer["preemption"] = _preemption(filtering, pod, cluster.nodes)
    answer["outcome"] = (
        "feasible" if answer["feasible"] else "preempt" if answer["preemption"]["node"] else "infeasible"
    )
    return answer


def decide_sequence(question: Mapping[str, Any]) -> list[Answer]:
    """Our answers to pods that come one after another; each stays where the first of the best names puts it."""
    profile = profile_of(question)
    cluster = Cluster(question["objects"])
    answers = []
    for manifest in question["pods"]:
        pod = cluster.pod(manifest)
        filtering = Filtering(profile, pod, cluster.nodes, no_stopwatch)
        answer = _scores(profile, filtering, pod, cluster.nodes, filtering.run())
        answer["chosen"] = min(answer["best"], default="")
        if answer["chosen"]:
            cluster.nodes.hold(Held(pod, answer["chosen"], ()))
        answers.append(answer)
    return answers


def _refusal(status: Status) -> Answer:
    refusal = {"ok": False, "code": status.code.value, "reasons": sorted(status.reasons)}
    return {**refusal, "plugin": status.plugin} if status.plugin else refusal


def _prefilter(filtering: Filtering) -> Answer:
    if filtering.refused is not None:
        return _refusal(filtering.refused)
    if filtering.named is None:
        return {"ok": True}
    return {"ok": True, "nodes": sorted(filtering.named)}


def _verdicts(filtering: Filtering, nodes: NodeTable, feasible: Bools) -> Answer:
    """By node, as the recording lists them: one alone where the pod waits for that node and fits."""
    rows = nodes.rows.items()
    if filtering.on_nominated_node:
        rows = {nodes.names[row]: row for row in np.flatnonzero(feasible).tolist()}.items()
    masks = filtering.masks() if filtering.refused is None else {}
    verdicts: dict[str, Answer] = {}
    for name, row in rows:
        status = None if feasible[row] else filtering.verdict(row)
        verdicts[name] = {"ok": True} if status is None else _refusal(status)
        every = {
            plugin: mask.explain(int(mask.codes[row]))[0].value for plugin, mask in masks.items() if mask.codes[row]
        }
        if every:
            verdicts[name]["every"] = every
    return verdicts


def _scores(profile: Profile, filtering: Filtering, pod: PodView, nodes: NodeTable, feasible: Bools) -> Answer:
    rows = np.flatnonzero(feasible)
    if not len(rows):
        return {"feasible": [], "best": []}
    names = [nodes.names[row] for row in rows]
    scores = score_nodes(profile, filtering.state, pod, nodes, feasible, rows, no_stopwatch)
    if scores.error:
        raise ValueError(scores.error)
    total = dict(zip(names, scores.totals(len(rows)).tolist(), strict=True))
    highest = max(total.values())
    return {
        "feasible": sorted(names),
        "scores": {
            plugin: dict.fromkeys(names, column)
            if isinstance(column, int)
            else dict(zip(names, column.tolist(), strict=True))
            for plugin, column, _ in scores.columns
        },
        "total": total,
        "best": sorted(name for name in names if total[name] == highest),
    }


def _preemption(filtering: Filtering, pod: PodView, nodes: NodeTable) -> Answer:
    """Every candidate, and the one that is chosen."""
    refusal = not_eligible(pod, nodes, filtering)
    if refusal:
        return {"node": "", "victims": [], "message": refusal}
    found = DefaultPreemption().search(pod, nodes, filtering, enough=nodes.count + 1).candidates
    if not found:
        return {"node": "", "victims": []}
    chosen = best(found)
    return {
        "node": chosen.node_name,
        "victims": _names(chosen),
        "candidates": {item.node_name: {"victims": _names(item), "pdb_violations": item.violations} for item in found},
    }


def _names(candidate: Candidate) -> list[str]:
    return [held.pod.key for held in candidate.victims]
