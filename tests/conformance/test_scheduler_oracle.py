"""The verdicts and scores of kube-scheduler 1.36, for the plugins that we have, from recorded cluster states.

Each case is decided by our own table and plugins from the objects alone; the recorded answer is only compared with.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.pod_pb2 import Pod
from scheduler.core.framework import CycleState, NormalizePlugin, PreScorePlugin, Profile
from scheduler.core.status import Code
from scheduler.core.table import Held, NodeTable
from scheduler.plugins.node_resources import MOST_ALLOCATED, NodeResourcesFit
from scheduler.plugins.registry import PLUGINS, WEIGHTS
from services.model.pod import PodView
from services.wire.codec import from_json
from services.wire.node import node_view
from services.wire.pod import PodDecoder
from tests.shared_data import shared_data

# Families that the plugins of the default profile so far decide.
FAMILIES = (
    "resources",
    "extended_resources",
    "init_containers",
    "sidecars",
    "overhead",
    "pod_level_resources",
    "node_selector",
    "node_affinity_required",
    "match_fields",
    "node_affinity_preferred",
    "taints",
    "unschedulable",
    "host_ports",
    "node_name",
)
FIT_RESOURCES = {"cpu": 1, "memory": 1, "nvidia.com/gpu": 5}
DIFFERENCES_SHOWN = 3
Case = dict[str, Any]


def cases(family: str) -> Iterator[Case]:
    path = shared_data("oracle/given.jsonl.gz")
    with gzip.open(path, "rt") as lines:
        for line in lines:
            case = json.loads(line)
            # Nominated pods are another extension point's business.
            nominated = any("nominatedNodeName" in pod.get("status", {}) for pod in case["objects"]["pods"])
            if case["families"][0] == family and case["profile"] != "ratio" and not nominated:
                yield case


def profile(case: Case) -> Profile:
    plugins = [make() for name, make in PLUGINS.items() if name != "GpuTopology"]
    if case["profile"] == "most_allocated":
        fit = NodeResourcesFit(MOST_ALLOCATED, FIT_RESOURCES)
        plugins = [fit if plugin.name == fit.name else plugin for plugin in plugins]
    return Profile("default-scheduler", plugins, WEIGHTS)


def pod_view(decoder: PodDecoder, manifest: dict[str, Any], uid: str) -> PodView:
    message = from_json(manifest, Pod)
    message.metadata.uid = uid
    return decoder.view(message.SerializeToString(), "1")


def table_of(case: Case, decoder: PodDecoder) -> NodeTable:
    table = NodeTable()
    for manifest in case["objects"]["nodes"]:
        message = from_json(manifest, Node)
        message.metadata.uid = f"uid-{manifest['metadata']['name']}"
        table.put_node(node_view(message.SerializeToString(), "1"))
    for number, manifest in enumerate(case["objects"]["pods"]):
        pod = pod_view(decoder, manifest, f"uid-{number}")
        if pod.spec.node_name and not pod.finished:
            table.hold(Held(pod, pod.spec.node_name, ()))
    return table


def own_verdicts(our: Profile, pod: PodView, table: NodeTable) -> dict[str, dict[str, Any]]:
    """For each node the verdict of every one of our plugins that rejects it, in order, as the recording writes it."""
    state = CycleState()
    skipped, narrowed = set(), None
    for pre in our.pre_filter:
        result = pre.pre_filter(state, pod, table)
        if result.status.code is Code.SKIP:
            skipped.add(pre.name)
        elif not result.status.ok:
            refused = {"plugin": pre.name, "code": result.status.code.value, "reasons": sorted(result.status.reasons)}
            return dict.fromkeys(table.rows, refused)
        elif result.rows is not None:
            narrowed = {table.names[row] for row in result.rows}
    verdicts: dict[str, dict[str, Any]] = {name: {"ok": True} for name in table.rows}
    for plugin in reversed(our.filter):
        if plugin.name in skipped:
            continue
        mask = plugin.filter(state, pod, table)
        for name, row in table.rows.items():
            if mask.codes[row]:
                code, reasons = mask.explain(int(mask.codes[row]))
                verdicts[name] = {"plugin": plugin.name, "code": code.value, "reasons": sorted(reasons)}
    if narrowed is not None:
        for name in table.rows:
            if name not in narrowed:
                verdicts[name] = {"left_out": True}
    return verdicts


def filter_differences(case: Case, checked: Counter[str]) -> list[str]:
    decoder, our = PodDecoder(), profile(case)
    table = table_of(case, decoder)
    pod = pod_view(decoder, case["pod"], "uid-pod")
    verdicts = own_verdicts(our, pod, table)
    different = []
    for name, expected in case["expected"].get("filter", {}).items():
        mine = verdicts[name]
        if not expected.get("ok") and "plugin" in expected and expected["plugin"] not in our.by_name:
            # Rejected by a plugin that we lack: none of ours may have said no, since the first one counts.
            same = bool(mine.get("ok"))
        elif expected.get("ok"):
            same = bool(mine.get("ok"))
        elif "plugin" not in expected:
            same = "left_out" in mine
        else:
            same = all(mine.get(part) == expected.get(part) for part in ("plugin", "code", "reasons"))
        checked["verdicts"] += 1
        if not same:
            different.append(f"{case['id']} {name}: expected {expected}, ours {mine}")
    return different


def score_differences(case: Case, checked: Counter[str]) -> list[str]:
    decoder, our = PodDecoder(), profile(case)
    table = table_of(case, decoder)
    pod = pod_view(decoder, case["pod"], "uid-pod")
    feasible = case["expected"].get("feasible", [])
    expected_scores = case["expected"].get("scores", {})
    if not feasible:
        return []
    rows = np.array([table.rows[name] for name in feasible], dtype=np.int64)
    mask = np.zeros(table.size, dtype=np.bool_)
    mask[rows] = True
    different = []
    state = CycleState()
    for item in our.score:
        plugin = item.plugin
        skips = isinstance(plugin, PreScorePlugin) and plugin.pre_score(state, pod, table, mask).code is Code.SKIP
        expected = expected_scores.get(plugin.name)
        if skips or expected is None:
            if (expected is None) != skips and any((expected or {}).values()):
                different.append(f"{case['id']} {plugin.name}: expected {expected}, ours skips: {skips}")
            continue
        scores = plugin.score(state, pod, table, rows)
        if isinstance(plugin, NormalizePlugin):
            scores = plugin.normalize(state, pod, scores)
        mine = dict(zip(feasible, scores.tolist(), strict=True))
        checked["scores"] += len(feasible)
        if mine != expected:
            different.append(f"{case['id']} {plugin.name}: expected {expected}, ours {mine}")
    return different


@pytest.mark.parametrize("family", FAMILIES)
def test_filters_decide_as_kube_scheduler_does(family: str) -> None:
    checked: Counter[str] = Counter()
    different = [text for case in cases(family) for text in filter_differences(case, checked)]
    assert checked["verdicts"] > 0
    assert not different, f"{len(different)} of {checked['verdicts']} verdicts differ:\n" + "\n".join(
        different[:DIFFERENCES_SHOWN]
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_kube_scheduler(family: str) -> None:
    checked: Counter[str] = Counter()
    different = [text for case in cases(family) for text in score_differences(case, checked)]
    assert checked["scores"] > 0 or family == "node_name"
    assert not different, f"{len(different)} score columns differ:\n" + "\n".join(different[:DIFFERENCES_SHOWN])
