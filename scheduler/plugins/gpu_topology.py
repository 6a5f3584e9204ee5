"""GpuTopology: which nodes can give the devices that a pod asks for, which would give the best, and which ones to take.

Filter counts, for every node at once, the healthy devices of a wanted model with enough left. Score prefers good links
for pods that take several whole GPUs, and little waste for all: a share goes where a device is already opened, a whole
GPU where few would remain. Reserve chooses the devices with the same allocator that the API server and kubelets use.
"""

from collections import OrderedDict

import numpy as np

from scheduler.core.framework import (
    SCORE_MAX,
    ClusterEvent,
    CycleState,
    EventKind,
    LooksAt,
    Mask,
    Plugin,
    PreFilterResult,
    Reservation,
)
from scheduler.core.node_info import NodeInfo
from scheduler.core.status import SKIP, SUCCESS, Code, Status
from scheduler.core.table import I64, Bools, NodeTable
from scheduler.plugins.memo import RowMemo
from services.model.devices import MILLI_WHOLE, DeviceRequest, DeviceShare, allocate
from services.model.node import TopologyView
from services.model.pod import PodView

_MEMO_MAX = 65_536
# A pair of GPUs with this many NVLinks between them (NVSwitch, fourth generation) has the best link there is.
_LINKS_BEST = 18
_PATH_POINTS = {"PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}


class GpuTopology(Plugin):
    name = "GpuTopology"
    looks_at = LooksAt.NODE
    events = frozenset((EventKind.NODE_ADD, EventKind.TOPOLOGY, EventKind.POD_REMOVED))

    def __init__(self) -> None:
        self._qualities: OrderedDict[tuple[int, bytes, int, int], int] = OrderedDict()
        self._codes = RowMemo()
        self._scores = RowMemo()
        # Keeps the topologies alive whose identity is in the memo.
        self._known: dict[int, TopologyView] = {}

    def pre_filter(self, _state: CycleState, pod: PodView, _nodes: NodeTable) -> PreFilterResult:
        return PreFilterResult(SUCCESS if pod.spec.devices is not None else SKIP)

    def filter(self, _state: CycleState, pod: PodView, nodes: NodeTable) -> Mask | None:
        request = pod.spec.devices
        assert request is not None
        codes = self._codes.get(request, nodes, lambda rows: _verdicts(request, nodes, rows), None)
        if not codes.any():
            return None
        free = describe(request)

        def explain(number: int) -> tuple[Code, tuple[str, ...]]:
            if number == 2:
                return Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (f"node(s) didn't have {free}",)
            return Code.UNSCHEDULABLE, (f"node(s) didn't have {free} free",)

        return Mask(codes, explain)

    def filter_one(self, _state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        request, topology = pod.spec.devices, node.nodes.topologies[node.row]
        assert request is not None
        devices = topology.devices if topology is not None else ()
        if not devices and request.milli == MILLI_WHOLE and not request.models:
            return SUCCESS
        wanted = [device.index for device in devices if not request.models or device.model in request.models]
        if sum(node.device_free[index] >= request.milli for index in wanted) >= request.count:
            return SUCCESS
        if len(wanted) < request.count:
            never = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
            return Status(never, (f"node(s) didn't have {describe(request)}",), self.name)
        return Status(Code.UNSCHEDULABLE, (f"node(s) didn't have {describe(request)} free",), self.name)

    def pre_score(self, _state: CycleState, pod: PodView, _nodes: NodeTable, _feasible: Bools) -> Status:
        return SUCCESS if pod.spec.devices is not None else SKIP

    def score(self, _state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64:
        request = pod.spec.devices
        assert request is not None
        scores = self._scores.get(request, nodes, lambda rows: self._score(request, nodes, rows), None)
        return nodes.take(scores, feasible)

    def _score(self, request: DeviceRequest, nodes: NodeTable, rows: I64 | slice) -> I64:
        packing = _packing(request, nodes, rows)
        if request.count < 2:
            return packing
        numbers = range(nodes.size)[rows] if isinstance(rows, slice) else rows.tolist()
        links = np.array([self._quality(request, nodes, row) for row in numbers], dtype=np.int64)
        return np.asarray((3 * links + packing) // 4, dtype=np.int64)

    def _quality(self, request: DeviceRequest, nodes: NodeTable, row: int) -> int:
        """How well the devices hang together that this node would give, 0 to 100."""
        topology = nodes.topologies[row]
        if topology is None:
            return 0
        free = nodes.device_free[row]
        # Only which devices are eligible matters, not how free the others are.
        key = (id(topology), (free >= request.milli).tobytes(), request.count, hash(request.models))
        known = self._qualities.get(key)
        if known is None:
            shares = choose(request, nodes, row)
            known = quality(topology, [share.index for share in shares]) if shares is not None else 0
            self._known[id(topology)] = topology
            self._qualities[key] = known
            if len(self._qualities) > _MEMO_MAX:
                self._qualities.clear()
                self._known.clear()
        return known

    def reserve(self, _state: CycleState, pod: PodView, nodes: NodeTable, row: int) -> Reservation:
        request = pod.spec.devices
        if request is None or nodes.device_count[row] == 0:
            return Reservation(SUCCESS)
        shares = choose(request, nodes, row)
        if shares is None:
            return Reservation(Status(Code.UNSCHEDULABLE, (f"node didn't have {describe(request)} free",), self.name))
        return Reservation(SUCCESS, shares)

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """Hardware that comes or changes, or a pod that leaves devices."""
        del pod
        if event.kind is EventKind.POD_REMOVED:
            return event.pod is not None and event.pod.spec.devices is not None
        return event.kind in (EventKind.TOPOLOGY, EventKind.NODE_ADD)


def _of_model(request: DeviceRequest, nodes: NodeTable, rows: I64 | slice) -> Bools:
    models = nodes.device_model[rows]
    if not request.models:
        return models >= 0
    numbers = [nodes.models[name] for name in sorted(request.models) if name in nodes.models]
    return np.isin(models, numbers)


def _verdicts(request: DeviceRequest, nodes: NodeTable, rows: I64 | slice) -> I64:
    """0 where the devices are free, 1 where they are not, 2 where the node does not have them."""
    known = _of_model(request, nodes, rows)
    eligible = nodes.device_free[rows] >= request.milli
    if request.models:
        eligible &= known
    enough = eligible.sum(axis=1) >= request.count
    if request.milli == MILLI_WHOLE and not request.models:
        # A node that advertises GPUs but reports no hardware is counted by its totals alone.
        enough |= nodes.device_count[rows] == 0
    lacking = np.where(known.sum(axis=1) < request.count, 2, 1)
    return np.where(enough, 0, lacking).astype(np.int64)


def _packing(request: DeviceRequest, nodes: NodeTable, rows: I64 | slice) -> I64:
    """100 where nothing untouched would remain on the node; less with every device that would."""
    free = nodes.device_free[rows]
    count = np.maximum(nodes.device_count[rows], 1)
    untouched = (free == MILLI_WHOLE).sum(axis=1)
    if request.milli < MILLI_WHOLE:
        opened = ((free >= request.milli) & (free < MILLI_WHOLE)).sum(axis=1)
        taken: I64 | int = np.maximum(request.count - opened, 0)
    else:
        taken = request.count
    remaining = np.clip(untouched - taken, 0, count)
    return np.asarray(SCORE_MAX - SCORE_MAX * remaining // count, dtype=np.int64)


def describe(request: DeviceRequest) -> str:
    """The wish in words: "2 GPU(s)", "460/1000 of a GPU", "1 GPU(s) of model T4"."""
    of = f" of model {' or '.join(sorted(request.models))}" if request.models else ""
    if request.milli == MILLI_WHOLE:
        return f"{request.count} GPU(s){of}"
    each = f"{request.milli}/1000 of a GPU{of}"
    return each if request.count == 1 else f"{request.count} times {each}"


def choose(request: DeviceRequest, nodes: NodeTable, row: int) -> tuple[DeviceShare, ...] | None:
    """The devices that this node would give now."""
    topology = nodes.topologies[row]
    assert topology is not None
    free = nodes.device_free[row, : len(topology.devices)].tolist()
    return allocate(request, free, topology.devices, topology.nvlinks, topology.paths)


def quality(topology: TopologyView, indices: list[int]) -> int:
    """The mean over all pairs: NVLinks count up to 90 of 100 points, PCIe paths up to 50, in nvidia-smi's order."""
    points = pairs = 0
    for at, a in enumerate(indices):
        for b in indices[at + 1 :]:
            links = min(topology.nvlinks[a][b], topology.nvlinks[b][a])
            near = _PATH_POINTS.get(topology.paths[a][b], 0)
            points += 60 + 40 * min(links, _LINKS_BEST) // _LINKS_BEST if links else 10 * near
            pairs += 1
    return points // pairs if pairs else SCORE_MAX
