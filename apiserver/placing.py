"""Devices for callers that name none: the same pure allocator that the scheduler uses, over this node's topology."""

from apiserver.cache import Cache
from services.model.devices import DeviceRequest, DeviceShare, allocate
from services.model.kinds import KIND_BY_RESOURCE
from services.model.ledger import Ledger
from services.wire.topology import topology_view

_TOPOLOGIES = KIND_BY_RESOURCE["nodetopologies"]


def choose_devices(cache: Cache, request: DeviceRequest, node: str, ledger: Ledger) -> tuple[DeviceShare, ...] | None:
    """The devices that a pod gets on `node`; None when they are not free."""
    entry = cache.registry.get(_TOPOLOGIES, node)
    if entry is None:
        return allocate(request, ledger.free_milli(), ledger.taken.devices, (), ())
    view = topology_view(entry.value)
    return allocate(request, ledger.free_milli(), ledger.taken.devices, view.nvlinks, view.paths)
