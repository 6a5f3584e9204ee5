"""Devices of a node and what pods ask of them. The allocator that chooses devices lives here too: one pure piece that
scheduler, API server (for callers that name none) and kubelet share.
"""

from dataclasses import dataclass

MILLI_WHOLE = 1000


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What one pod asks: `count` devices, `milli` thousandths of each (1000 = whole), of one of `models` (empty: any)."""

    count: int
    milli: int
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """`milli` thousandths of the device at `index` of its node."""

    index: int
    milli: int


@dataclass(frozen=True, slots=True)
class Device:
    index: int
    uuid: str
    model: str
    memory_bytes: int
    numa_node: int
    healthy: bool = True
