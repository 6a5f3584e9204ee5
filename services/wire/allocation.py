"""A node's ledger as the NodeAllocation that clients see."""

from protos.orrery.v1.node_allocation_pb2 import NodeAllocation
from services.model.ledger import Ledger
from services.model.names import RESOURCE_PODS
from services.model.quantity import format_amount


def allocation_message(node: str, ledger: Ledger) -> NodeAllocation:
    """The view of one node."""
    message = NodeAllocation(api_version="orrery.dev/v1", kind="NodeAllocation")
    message.metadata.name = node
    status = message.status
    for name, amount in sorted(ledger.taken.allocatable.items()):
        status.allocatable[name] = format_amount(name, amount)
    for name in sorted(ledger.taken.amounts.resources):
        status.in_use[name] = format_amount(name, ledger.in_use(name))
    status.in_use[RESOURCE_PODS] = str(ledger.pods_in_use)
    for index, device in enumerate(ledger.taken.devices):
        status.devices.add(index=index, uuid=device.uuid, model=device.model, in_use_milli=ledger.device_in_use(index))
    if ledger.taken.overcommitted and ledger.above_allocatable():
        status.overcommitted = True
    return message
