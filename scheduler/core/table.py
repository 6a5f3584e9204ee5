"""Node state in columns: one NumPy row a node, updated by row as events arrive.

Plugins read columns and answer for all nodes at once. What is text (taints, labels, models) is interned into small
integers, so a plugin decides once for each distinct value and looks the answer up for every row. Rows of nodes that went
are reused; `alive` tells which rows count. What pods hold is kept by node name, whether or not the node is known, so
that a pod seen before its node is counted when the node comes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from scheduler.core.columns import ABSENT, I32, I64, Bools
from scheduler.core.images import ImageIndex
from scheduler.core.pod_index import PodIndex
from scheduler.core.row_changes import RowChanges
from services.model.cluster import BudgetView, ServiceView
from services.model.devices import MILLI_WHOLE, DeviceShare
from services.model.names import RESOURCE_CPU, RESOURCE_MEMORY, RESOURCE_PODS
from services.model.node import NodeView, Taint, TopologyView
from services.model.pod import HostPort, PodView

__all__ = ["ABSENT", "I32", "I64", "Bools", "Held", "NodeTable"]

_ROWS_FIRST = 64
_DEVICES_FIRST = 8


@dataclass(frozen=True, slots=True)
class Held:
    """What one pod holds on a node: placed, or assumed and on its way."""

    pod: PodView
    node_name: str
    devices: tuple[DeviceShare, ...]


N = TypeVar("N", bound=np.generic)


class NodeTable:
    """The columns. `static_version` moves when labels, taints, readiness or hardware of any node change, or a node comes
    or goes; what pods hold does not move it. `changes` tells which rows changed in any way. `cordoned` counts nodes.
    """

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.names: list[str] = []
        self.views: list[NodeView | None] = []
        self.topologies: list[TopologyView | None] = []
        self.static_version = 0
        self.changes = RowChanges()
        self.cordoned = 0
        self.alive: Bools = np.zeros(_ROWS_FIRST, dtype=np.bool_)
        self.unschedulable: Bools = np.zeros(_ROWS_FIRST, dtype=np.bool_)
        self.taint_set: I32 = np.zeros(_ROWS_FIRST, dtype=np.int32)
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self.allocatable: dict[str, I64] = {}
        self.requested: dict[str, I64] = {}
        self.nonzero_cpu: I64 = np.zeros(_ROWS_FIRST, dtype=np.int64)
        self.nonzero_memory: I64 = np.zeros(_ROWS_FIRST, dtype=np.int64)
        # Free thousandths of each device; ABSENT where there is no device, or an unhealthy one.
        self.device_free: I32 = np.full((_ROWS_FIRST, _DEVICES_FIRST), ABSENT, dtype=np.int32)
        self.device_model: I32 = np.full((_ROWS_FIRST, _DEVICES_FIRST), ABSENT, dtype=np.int32)
        self.device_count: I32 = np.zeros(_ROWS_FIRST, dtype=np.int32)
        self.models: dict[str, int] = {}
        self.held: dict[str, dict[str, Held]] = {}
        # (protocol, port) -> row -> ip -> how many pods.
        self.ports: dict[tuple[str, int], dict[int, dict[str, int]]] = {}
        # Questions about other pods, and the images that nodes have.
        self.pods = PodIndex()
        self.images = ImageIndex()
        # Pods that wait for room on a node, by its name and their uid; Services by namespace; budgets.
        self.nominated: dict[str, dict[str, PodView]] = {}
        self._nominated_to: dict[str, str] = {}
        self.services: dict[str, dict[str, ServiceView]] = {}
        self.services_version = 0
        self.budgets: dict[str, BudgetView] = {}
        self._taint_ids: dict[tuple[Taint, ...], int] = {(): 0}
        self._label_columns: dict[str, I32] = {}
        self._label_values: dict[str, dict[str, int]] = {}
        self._pending_topologies: dict[str, TopologyView] = {}
        self._priorities: dict[int, int] = {}
        self._all_rows: I64 = np.zeros(0, dtype=np.int64)
        self._free_rows: list[int] = []
        for name in (RESOURCE_CPU, RESOURCE_MEMORY, RESOURCE_PODS):
            self._resource(name)

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self.rows)

    @property
    def size(self) -> int:
        """How many rows the columns have that may be in use."""
        return len(self.names)

    def take(self, column: npt.NDArray[N], rows: I64) -> npt.NDArray[N]:
        """`column` at `rows`, which are ascending; the column itself where that is all of them."""
        return column[: len(rows)] if len(rows) == self.size else column[rows]

    def all_rows(self) -> I64:
        """The numbers of all rows."""
        if len(self._all_rows) != self.size:
            self._all_rows = np.arange(self.size, dtype=np.int64)
        return self._all_rows

    def _resource(self, name: str) -> None:
        if name not in self.allocatable:
            self.allocatable[name] = np.zeros(len(self.alive), dtype=np.int64)
            self.requested[name] = np.zeros(len(self.alive), dtype=np.int64)

    def _grow(self) -> None:
        def doubled(column: npt.NDArray[np.generic], fill: int) -> npt.NDArray[np.generic]:
            more = np.full_like(column, fill)
            return np.concatenate([column, more])

        for name in ("alive", "unschedulable", "taint_set", "nonzero_cpu", "nonzero_memory", "device_count"):
            setattr(self, name, doubled(getattr(self, name), 0))
        self.device_free = doubled(self.device_free, ABSENT)  # type: ignore[assignment]
        self.device_model = doubled(self.device_model, ABSENT)  # type: ignore[assignment]
        for columns in (self.allocatable, self.requested):
            for name in columns:
                columns[name] = doubled(columns[name], 0)  # type: ignore[assignment]
        for key in self._label_columns:
            self._label_columns[key] = doubled(self._label_columns[key], ABSENT)  # type: ignore[assignment]

    def _row(self, name: str) -> int:
        row = self.rows.get(name)
        if row is not None:
            return row
        if self._free_rows:
            row = self._free_rows.pop()
            self.names[row] = name
        else:
            row = len(self.names)
            if row == len(self.alive):
                self._grow()
            self.names.append(name)
            self.views.append(None)
            self.topologies.append(None)
        self.rows[name] = row
        return row

    # Nodes.

    def put_node(self, view: NodeView) -> None:
        """Adds or replaces a node."""
        row = self._row(view.name)
        old = self.views[row]
        self.views[row] = view
        self.alive[row] = True
        if old is None or _static_part(old) != _static_part(view):
            self.static_version += 1
            self.cordoned += int(view.unschedulable) - int(self.unschedulable[row])
            self.unschedulable[row] = view.unschedulable
            self.taint_set[row] = self._intern_taints(view.taints)
            self._put_labels(row, view.labels)
        self.changes.note(row)
        for name in view.allocatable:
            self._resource(name)
        for name, column in self.allocatable.items():
            column[row] = view.allocatable.get(name, 0)
        if old is None or old.images != view.images:
            self.images.put(row, view.images)
        if old is None:
            self._put_devices(row, self._pending_topologies.pop(view.name, None))
            self._recount(view.name, row)
            for held in self.held.get(view.name, {}).values():
                self.pods.place(held.pod, row, 1)

    def remove_node(self, name: str) -> None:
        """Takes a node out; what pods hold on it is remembered."""
        row = self.rows.pop(name, None)
        if row is None:
            return
        topology = self.topologies[row]
        if topology is not None:
            self._pending_topologies[name] = topology
        self.static_version += 1
        self.alive[row] = False
        self.cordoned -= int(self.unschedulable[row])
        self.unschedulable[row] = False
        self.changes.note(row)
        self.views[row] = None
        self.topologies[row] = None
        self.device_count[row] = 0
        for rows in self.ports.values():
            rows.pop(row, None)
        self.images.put(row, ())
        for held in self.held.get(name, {}).values():
            self.pods.place(held.pod, row, -1)
        for column in self._label_columns.values():
            column[row] = ABSENT
        self._free_rows.append(row)

    def put_topology(self, name: str, topology: TopologyView | None) -> None:
        """Adds, replaces or (None) removes a node's hardware."""
        row = self.rows.get(name)
        if row is None:
            if topology is None:
                self._pending_topologies.pop(name, None)
            else:
                self._pending_topologies[name] = topology
            return
        self.static_version += 1
        self._put_devices(row, topology)
        self._recount(name, row)

    def _put_devices(self, row: int, topology: TopologyView | None) -> None:
        self.topologies[row] = topology
        devices = topology.devices if topology is not None else ()
        while len(devices) > self.device_free.shape[1]:
            self.device_free = np.pad(self.device_free, ((0, 0), (0, _DEVICES_FIRST)), constant_values=ABSENT)
            self.device_model = np.pad(self.device_model, ((0, 0), (0, _DEVICES_FIRST)), constant_values=ABSENT)
        self.device_count[row] = len(devices)
        self.device_free[row] = ABSENT
        self.device_model[row] = ABSENT
        for device in devices:
            self.device_model[row, device.index] = self.models.setdefault(device.model, len(self.models))
            if device.healthy:
                self.device_free[row, device.index] = MILLI_WHOLE

    def _recount(self, name: str, row: int) -> None:
        """Counts anew what pods hold on a node."""
        self.changes.note(row)
        for column in self.requested.values():
            column[row] = 0
        self.nonzero_cpu[row] = self.nonzero_memory[row] = 0
        topology = self.topologies[row]
        for device in topology.devices if topology is not None else ():
            self.device_free[row, device.index] = MILLI_WHOLE if device.healthy else ABSENT
        for rows in self.ports.values():
            rows.pop(row, None)
        for held in self.held.get(name, {}).values():
            self._count(row, held, 1)

    # Pods.

    def has_pods_below(self, priority: int) -> bool:
        """Whether any pod of a lower priority is counted somewhere."""
        return any(known < priority for known in self._priorities)

    def hold(self, held: Held) -> None:
        """Counts a pod on its node; it must not be counted there yet."""
        priority = held.pod.spec.priority
        self._priorities[priority] = self._priorities.get(priority, 0) + 1
        pods = self.held.setdefault(held.node_name, {})
        assert held.pod.uid not in pods, f"{held.pod.key} is counted on {held.node_name} already"
        pods[held.pod.uid] = held
        row = self.rows.get(held.node_name)
        if row is not None:
            self._count(row, held, 1)
            self.pods.place(held.pod, row, 1)

    def release(self, node_name: str, uid: str) -> None:
        """Stops counting a pod."""
        pods = self.held[node_name]
        held = pods.pop(uid)
        priority = held.pod.spec.priority
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]
        if not pods:
            del self.held[node_name]
        row = self.rows.get(node_name)
        if row is not None:
            self._count(row, held, -1)
            self.pods.place(held.pod, row, -1)

    def refresh(self, held: Held) -> bool:
        """Takes in a newer version of a pod that counts as before; False, and nothing done, where it would not."""
        pods = self.held[held.node_name]
        old = pods[held.pod.uid]
        same = (
            old.devices == held.devices
            and old.pod.spec is held.pod.spec
            and old.pod.deleting == held.pod.deleting
            and old.pod.labels == held.pod.labels
        )
        if same:
            pods[held.pod.uid] = held
            row = self.rows.get(held.node_name)
            if row is not None and old.pod.started_at_ns != held.pod.started_at_ns:
                self.changes.note(row)
        return same

    def _count(self, row: int, held: Held, sign: int) -> None:
        spec = held.pod.spec
        self.changes.note(row)
        for name, amount in spec.requests.items():
            self._resource(name)
            self.requested[name][row] += sign * amount
        self.requested[RESOURCE_PODS][row] += sign
        self.nonzero_cpu[row] += sign * spec.nonzero_milli_cpu
        self.nonzero_memory[row] += sign * spec.nonzero_memory
        for share in held.devices:
            if share.index < self.device_count[row] and self.device_free[row, share.index] != ABSENT:
                self.device_free[row, share.index] -= sign * share.milli
        for port in spec.host_ports:
            self._count_port(row, port, sign)

    def _count_port(self, row: int, port: HostPort, sign: int) -> None:
        ips = self.ports.setdefault((port.protocol, port.port), {}).setdefault(row, {})
        ips[port.ip] = ips.get(port.ip, 0) + sign
        if ips[port.ip] <= 0:
            del ips[port.ip]
            if not ips:
                del self.ports[port.protocol, port.port][row]

    # Other objects.

    def nominate(self, node_name: str, pod: PodView) -> None:
        """Counts a pod among those that wait for room on a node; "" for none. It is counted for one node at most."""
        self.unnominate(pod)
        if node_name:
            self.nominated.setdefault(node_name, {})[pod.uid] = pod
            self._nominated_to[pod.uid] = node_name

    def unnominate(self, pod: PodView) -> None:
        node_name = self._nominated_to.pop(pod.uid, "")
        if node_name:
            waiting = self.nominated[node_name]
            del waiting[pod.uid]
            if not waiting:
                del self.nominated[node_name]

    def nominated_node(self, uid: str) -> str:
        """The node on which a pod waits for room; "" for none."""
        return self._nominated_to.get(uid, "")

    def put_service(self, namespace: str, name: str, service: ServiceView | None) -> None:
        """Adds, replaces or (None) removes a Service."""
        self.services_version += 1
        if service is not None:
            self.services.setdefault(namespace, {})[name] = service
        else:
            self.services.get(namespace, {}).pop(name, None)

    def put_budget(self, key: str, budget: BudgetView | None) -> None:
        """Adds, replaces or (None) removes a PodDisruptionBudget; `key` is namespace/name."""
        if budget is not None:
            self.budgets[key] = budget
        else:
            self.budgets.pop(key, None)

    # Interned text.

    def _intern_taints(self, taints: tuple[Taint, ...]) -> int:
        number = self._taint_ids.get(taints)
        if number is None:
            number = self._taint_ids[taints] = len(self.taint_sets)
            self.taint_sets.append(taints)
        return number

    def _put_labels(self, row: int, labels: Mapping[str, str]) -> None:
        for key, column in self._label_columns.items():
            column[row] = self._intern_label(key, labels.get(key))

    def _intern_label(self, key: str, value: str | None) -> int:
        if value is None:
            return ABSENT
        values = self._label_values[key]
        return values.setdefault(value, len(values))

    def label_column(self, key: str) -> tuple[I32, Mapping[str, int]]:
        """The interned value of label `key` for each row (ABSENT for none), and the number of each value.

        A column is made when it is first asked for, and kept from then on.
        """
        column = self._label_columns.get(key)
        if column is None:
            column = np.full(len(self.alive), ABSENT, dtype=np.int32)
            self._label_columns[key] = column
            self._label_values[key] = {}
            for row, view in enumerate(self.views):
                if view is not None:
                    column[row] = self._intern_label(key, view.labels.get(key))
        return column[: self.size], self._label_values[key]


def _static_part(view: NodeView) -> tuple[object, ...]:
    return (view.labels, view.taints, view.unschedulable)
