"""The invariants, checked on every transaction from what the store itself holds.

The checker sees each revision as it is applied, keeps its own sums and its own history, and decodes values by the
documented header; nothing of the API server's caches is used. What an API server answers is held against that history at
the moment at which the answer leaves it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from apiserver.core import header
from apiserver.core.keys import EPOCHS, LEDGER, REGISTRY, RETURNED, TAKEN, epoch_key, parse_registry_key
from apiserver.core.versions import pack
from apiserver.store.mvcc import Revision
from apiserver.store.protocol import StoreEvent
from protos.orrery.v1.ledger_pb2 import LedgerReturned, LedgerTaken
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.node_topology_pb2 import NodeTopology
from protos.orrery.v1.pod_pb2 import Pod
from services.model.names import LEASE_SCHEDULER, NAMESPACE_SYSTEM
from services.model.quantity import resource_amount
from tests.simulation.story import Violation

WHOLE_DEVICE_MILLI = 1000
TERMINAL = ("Succeeded", "Failed")
LEASE = f"{NAMESPACE_SYSTEM}/{LEASE_SCHEDULER}"
# All pods with the same value of this label are one gang of GANG_SIZE.
LABEL_GANG = "simulation/gang"
GANG_SIZE = 3
M = TypeVar("M")
SCHEDULER_EPOCH = epoch_key(LEASE)


@dataclass(frozen=True, slots=True)
class Held:
    """What one unfinished pod holds, read off its `placed` record."""

    uid: str
    node: str
    resources: Mapping[str, int]
    devices: tuple[tuple[int, int], ...]
    token: int
    gang: str


@dataclass(slots=True)
class Use:
    """The sum of the placed, unfinished pods of one node."""

    resources: Counter[str] = field(default_factory=Counter)
    devices: Counter[int] = field(default_factory=Counter)
    pods: int = 0

    def add(self, held: Held, sign: int) -> None:
        for name, amount in held.resources.items():
            self.resources[name] += sign * amount
        for index, milli in held.devices:
            self.devices[index] += sign * milli
        self.pods += sign


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one object. `value` is empty for a deletion."""

    version: int
    deleted: bool
    value: bytes


class Checker:
    """`observe` is called at each revision; raises Violation. `checks` counts, by invariant."""

    def __init__(self) -> None:
        self.checks: Counter[str] = Counter()
        self.versions: dict[bytes, list[Version]] = {}
        self.pod_versions: list[tuple[int, str, bool]] = []  # (version, namespace/name, deleted), in order
        self.creations: Counter[str] = Counter()  # how often each pod key came into existence
        self.uses: dict[str, Use] = {}
        self.taken: dict[str, LedgerTaken] = {}
        self.returned: dict[str, LedgerReturned] = {}
        self.epochs: dict[bytes, list[int]] = {}
        self.revision = 0
        self.placements = 0
        self.releases = 0
        self.gangs = 0
        self._nodes: dict[str, Node] = {}
        self._topologies: dict[str, NodeTopology] = {}
        self._pods: dict[bytes, Pod] = {}
        self._held: dict[bytes, Held] = {}
        self._node_of_uid: dict[str, str] = {}
        self._ended: dict[str, str] = {}

    @property
    def total(self) -> int:
        return sum(self.checks.values())

    def pods(self) -> dict[bytes, Pod]:
        """The pods that are there now, by key."""
        return self._pods

    def current(self, prefix: bytes) -> dict[bytes, Version]:
        """The objects below `prefix` as they are now."""
        return {
            key: versions[-1]
            for key, versions in sorted(self.versions.items())
            if key.startswith(prefix) and not versions[-1].deleted
        }

    def at(self, prefix: bytes, version: int) -> dict[bytes, Version]:
        """The objects below `prefix` as they were at `version`."""
        found: dict[bytes, Version] = {}
        for key, versions in self.versions.items():
            if key.startswith(prefix):
                past = [item for item in versions if item.version <= version]
                if past and not past[-1].deleted:
                    found[key] = past[-1]
        return found

    # One revision

    def observe(self, revision: Revision) -> None:
        self.revision = revision.number
        touched: dict[str, bool] = {}  # node -> whether something was added to it
        placed: list[Held] = []
        index = -1
        for event in revision.events:
            key = event.record.key
            if key.startswith(REGISTRY):
                index = self._registry(event, revision.number, index, touched, placed)
            elif key.startswith(EPOCHS):
                self.epochs.setdefault(key, []).append(0 if event.deleted else revision.number)
            elif key.startswith(LEDGER):
                self._ledger(event, touched)
        for held in placed:
            self._check_epoch(held, revision.number)
            self._check_health(held)
        self._check_gangs(placed)
        for node, added in touched.items():
            self._check_node(node, added=added)

    def _registry(
        self, event: StoreEvent, revision: int, index: int, touched: dict[str, bool], placed: list[Held]
    ) -> int:
        key = event.record.key
        stored = None if event.deleted else header.decode(event.record.value)
        here = index + 1 if stored is None else stored.index
        self.checks["6"] += 1
        if here <= index:
            raise Violation("6", f"two writes of revision {revision} have index {here}", (key.decode(),))
        version = pack(revision, here)
        value = b"" if stored is None else stored.value
        self.versions.setdefault(key, []).append(Version(version, event.deleted, value))
        parsed = parse_registry_key(key)
        if parsed is not None and parsed.kind.resource == "pods":
            self.pod_versions.append((version, parsed.path, event.deleted))
            self._pod(key, parsed.path, None if stored is None else Pod.FromString(value), touched, placed)
        elif parsed is not None and parsed.kind.resource == "nodes":
            _note(self._nodes, parsed.name, None if stored is None else Node.FromString(value))
            touched.setdefault(parsed.name, False)
        elif parsed is not None and parsed.kind.resource == "nodetopologies":
            _note(self._topologies, parsed.name, None if stored is None else NodeTopology.FromString(value))
            touched.setdefault(parsed.name, False)
        return here

    def _pod(self, key: bytes, path: str, pod: Pod | None, touched: dict[str, bool], placed: list[Held]) -> None:
        before = self._pods.pop(key, None)
        if pod is not None:
            self._pods[key] = pod
            if before is None:
                self.creations[path] += 1
            elif before.metadata.uid != pod.metadata.uid:
                raise Violation("1", f"pod {path} changed its uid without being deleted", (path,))
            self._check_one_node(path, pod)
            self._check_ended(path, pod)
        held = None if pod is None else held_by(pod)
        earlier = self._held.pop(key, None)
        if held is not None:
            self._held[key] = held
        if held == earlier:
            return
        if held is not None and earlier is not None:
            raise Violation("1", f"pod {path} held {earlier} and now holds {held}", (path,))
        change = held or earlier
        assert change is not None
        self.uses.setdefault(change.node, Use()).add(change, 1 if held is not None else -1)
        touched[change.node] = touched.get(change.node, False) or held is not None
        if held is not None:
            self.placements += 1
            placed.append(held)
        else:
            self.releases += 1

    def _check_one_node(self, path: str, pod: Pod) -> None:
        self.checks["1"] += 1
        uid, node = pod.metadata.uid, pod.spec.node_name
        known = self._node_of_uid.setdefault(uid, node) if node else self._node_of_uid.get(uid, "")
        if known != node:
            raise Violation("1", f"pod {path} ({uid}) was on node {known!r} and is now on {node!r}", (path, uid))

    def _check_ended(self, path: str, pod: Pod) -> None:
        self.checks["ended"] += 1
        uid, phase = pod.metadata.uid, pod.status.phase
        if phase in TERMINAL:
            self._ended.setdefault(uid, phase)
        if uid in self._ended and self._ended[uid] != phase:
            raise Violation("2", f"pod {path} had ended as {self._ended[uid]} and is now {phase}", (path, uid))

    def _ledger(self, event: StoreEvent, touched: dict[str, bool]) -> None:
        key = event.record.key
        node = key[len(LEDGER) : key.rindex(b"/")].decode()
        touched.setdefault(node, False)
        if key.endswith(TAKEN):
            self.taken[node] = LedgerTaken.FromString(event.record.value)
        else:
            assert key.endswith(RETURNED)
            self.returned[node] = LedgerReturned.FromString(event.record.value)

    def _check_epoch(self, held: Held, revision: int) -> None:
        """5: the token under which a pod was placed is the epoch in force, before the transaction and after it."""
        if not held.token:
            return
        self.checks["5"] += 1
        epochs = self.epochs.get(SCHEDULER_EPOCH, [])
        if not epochs or epochs[-1] != held.token:
            now = epochs[-1] if epochs else "none"
            raise Violation(
                "5",
                f"pod uid {held.uid} was placed at revision {revision} with token {held.token}; the epoch is {now}",
                (held.uid, LEASE),
            )

    def _check_node(self, node: str, *, added: bool) -> None:
        """2: the ledger is the sum of the pods; what was added fits; a device is at most whole."""
        self.checks["2"] += 1
        use = self.uses.get(node, Use())
        taken = self.taken.get(node, LedgerTaken())
        returned = self.returned.get(node, LedgerReturned())
        self._check_facts(node, taken)
        for name in sorted({*taken.resources, *returned.resources, *use.resources}):
            ledger = taken.resources.get(name, 0) - returned.resources.get(name, 0)
            self._equal(node, name, ledger, use.resources[name])
        self._equal(node, "pods", taken.pods - returned.pods, use.pods)
        length = max(len(taken.device_milli), len(returned.device_milli), *(index + 1 for index in use.devices), 0)
        for index in range(length):
            ledger = sum(taken.device_milli[index : index + 1]) - sum(returned.device_milli[index : index + 1])
            self._equal(node, f"device {index}", ledger, use.devices[index])
            if use.devices[index] > WHOLE_DEVICE_MILLI:
                raise Violation("2", f"device {index} of {node}: {use.devices[index]} thousandths are held", (node,))
        if not added:
            return
        for name, amount in sorted(use.resources.items()):
            if amount > (there := taken.allocatable.get(name, 0)):
                raise Violation("2", f"{node}: {amount} {name} are held, {there} are there", (node,))
        if use.pods > (allowed := taken.allocatable.get("pods", 0)):
            raise Violation("2", f"{node}: {use.pods} pods, {allowed} are allowed", (node,))
        if any(milli and index >= len(taken.devices) for index, milli in use.devices.items()):
            raise Violation("2", f"{node}: a device is held that is not there", (node,))

    def _check_facts(self, node: str, taken: LedgerTaken) -> None:
        """2: the ledger changes with the node whose facts it holds."""
        there = self._nodes.get(node)
        if there is not None:
            allocatable = {name: resource_amount(name, text) for name, text in there.status.allocatable.items()}
            if taken.node_uid != there.metadata.uid or dict(taken.allocatable) != allocatable or taken.node_deleted:
                raise Violation("2", f"the ledger of {node} holds other facts than the node: {_facts(taken)}", (node,))
        topology = self._topologies.get(node)
        if topology is not None:
            devices = [(gpu.uuid, gpu.unhealthy) for gpu in topology.spec.gpus]
            if [(device.uuid, device.unhealthy) for device in taken.devices] != devices:
                raise Violation("2", f"the ledger of {node} has other devices than its topology", (node,))

    def _check_health(self, held: Held) -> None:
        taken = self.taken.get(held.node, LedgerTaken())
        for index, _ in held.devices:
            self.checks["2"] += 1
            if index < len(taken.devices) and taken.devices[index].unhealthy:
                raise Violation(
                    "2", f"pod uid {held.uid} was placed on broken device {index} of {held.node}", (held.uid,)
                )

    def _check_gangs(self, placed: list[Held]) -> None:
        """3: who is placed together with others is placed with all of them."""
        members = Counter(held.gang for held in placed if held.gang)
        for gang, count in members.items():
            self.checks["3"] += 1
            self.gangs += 1
            if count != GANG_SIZE:
                raise Violation("3", f"{count} of the {GANG_SIZE} pods of gang {gang} were bound", (gang,))

    @staticmethod
    def _equal(node: str, name: str, ledger: int, pods: int) -> None:
        if ledger != pods:
            raise Violation("2", f"{node} {name}: the ledger has {ledger} in use, its pods hold {pods}", (node,))

    # What was acknowledged

    def has_version(self, key: bytes, version: int, *, deleted: bool) -> bool:
        return any(item.version == version and item.deleted == deleted for item in reversed(self.versions.get(key, [])))

    def has_epoch(self, lease: str, token: int) -> bool:
        return token in self.epochs.get(epoch_key(lease), [])


def held_by(pod: Pod) -> Held | None:
    """None for a pod that holds nothing: not placed, or ended."""
    if not pod.HasField("placed") or pod.status.phase in TERMINAL:
        return None
    placed = pod.placed
    return Held(
        pod.metadata.uid,
        placed.node_name,
        dict(sorted(placed.resources.items())),
        tuple((share.index, share.milli) for share in placed.devices),
        placed.fencing_token,
        pod.metadata.labels.get(LABEL_GANG, ""),
    )


def _note(known: dict[str, M], name: str, message: M | None) -> None:
    if message is None:
        known.pop(name, None)
    else:
        known[name] = message


def _facts(taken: LedgerTaken) -> str:
    return f"uid {taken.node_uid!r}, {dict(sorted(taken.allocatable.items()))}, deleted {taken.node_deleted}"
