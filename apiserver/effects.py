"""What a write of one object must change elsewhere, in the same transaction.

A Lease's epoch; a node's `taken` when its allocatable, devices or existence change. Each effect brings the comparison it
rests on.
"""

from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message

from apiserver.core.groups import RegistryPut
from apiserver.core.keys import epoch_key, returned_key, taken_key
from apiserver.ledgers import Ledgers, unchanged
from apiserver.store.protocol import Compare, Delete, Put
from protos.orrery.v1.lease_pb2 import Lease
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.node_topology_pb2 import NodeTopology
from services.model.devices import Device
from services.model.ledger import Ledger, Taken
from services.model.quantity import resource_amount
from services.wire.ledger import write_taken
from services.wire.node import allocatable


@dataclass(frozen=True, slots=True)
class Effects:
    """Comparisons and writes that go with an object's own. `epoch_lease`: the write begins a new epoch of it."""

    compares: tuple[Compare, ...] = ()
    writes: tuple[RegistryPut | Put | Delete, ...] = ()
    epoch_lease: str = ""


NONE = Effects()


def effects_of(ledgers: Ledgers, old: Message | None, new: Message | None) -> Effects:
    """What goes with replacing `old` by `new`; None: it is not there before, or not after."""
    some: Any = new if new is not None else old
    if isinstance(some, Lease):
        return _lease_effects(old, new)  # type: ignore[arg-type]
    if isinstance(some, Node):
        return _node_effects(ledgers, old, new)  # type: ignore[arg-type]
    if isinstance(some, NodeTopology):
        return _topology_effects(ledgers, old, new)  # type: ignore[arg-type]
    return NONE


def _lease_effects(old: Lease | None, new: Lease | None) -> Effects:
    some = new if new is not None else old
    assert some is not None
    name = f"{some.metadata.namespace}/{some.metadata.name}"
    if old is not None and new is not None:
        before, after = old.spec, new.spec
        same = (
            before.holder_identity == after.holder_identity
            and before.acquire_time == after.acquire_time
            and before.lease_transitions == after.lease_transitions
        )
        if same:
            return NONE
    holder = new.spec.holder_identity if new is not None else ""
    return Effects(writes=(Put(epoch_key(name), holder.encode()),), epoch_lease=name)


def _node_effects(ledgers: Ledgers, old: Node | None, new: Node | None) -> Effects:
    some = new if new is not None else old
    assert some is not None
    name = some.metadata.name
    revision, taken = ledgers.taken(name)
    if new is None:
        return _node_gone(ledgers, name)
    fresh = replace(taken, node_uid=new.metadata.uid, allocatable=allocatable(new), node_deleted=False)
    return _rewrite(ledgers, name, revision, taken, fresh)


def _node_gone(ledgers: Ledgers, name: str) -> Effects:
    revision, taken = ledgers.taken(name)
    if revision == 0:
        return NONE
    # While its NodeTopology is there the ledger stays: the devices that a Node of this name will have stand in it alone.
    if not taken.devices and (end := _end(ledgers, name)) is not None:
        return end
    gone = replace(taken, node_deleted=True, allocatable={})
    return Effects((unchanged(taken_key(name), revision),), (Put(taken_key(name), write_taken(gone)),))


def _end(ledgers: Ledgers, name: str) -> Effects | None:
    """The ledger goes; None while somebody is on the node."""
    revision, taken = ledgers.taken(name)
    returned_revision, returned = ledgers.returned(name)
    if not Ledger(taken, returned).empty():
        return None
    return Effects(
        (unchanged(taken_key(name), revision), unchanged(returned_key(name), returned_revision)),
        (Delete(taken_key(name)), Delete(returned_key(name))),
    )


def _topology_effects(ledgers: Ledgers, old: NodeTopology | None, new: NodeTopology | None) -> Effects:
    some = new if new is not None else old
    assert some is not None
    name = some.metadata.name
    revision, taken = ledgers.taken(name)
    devices: tuple[Device, ...] = ()
    if new is not None:
        devices = tuple(
            Device(
                gpu.index,
                gpu.uuid,
                gpu.model,
                resource_amount("memory", gpu.memory or "0"),
                gpu.numa_node,
                not gpu.unhealthy,
            )
            for gpu in new.spec.gpus
        )
    if new is None and revision == 0:
        return NONE
    if new is None and (taken.node_deleted or not taken.node_uid) and (end := _end(ledgers, name)) is not None:
        return end
    return _rewrite(ledgers, name, revision, taken, replace(taken, devices=devices))


def _rewrite(ledgers: Ledgers, name: str, revision: int, taken: Taken, fresh: Taken) -> Effects:
    """`taken` with new facts, marked overcommitted when the node now holds more than it has."""
    fresh = replace(fresh, overcommitted=Ledger(fresh, ledgers.returned(name)[1]).above_allocatable())
    value = write_taken(fresh)
    if revision and value == write_taken(taken):
        return NONE
    return Effects((unchanged(taken_key(name), revision),), (Put(taken_key(name), value),))
