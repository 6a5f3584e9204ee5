"""Devices of a node, what pods ask of them, and the allocator that chooses them: one pure piece that scheduler, API server
(for callers that name none) and kubelet share, so that all three give the same answer to the same question.

Whole devices are chosen by how they hang together (`services.model.fabric`); shares go by best fit: onto the fullest
device that still holds them, and a fresh device is broken only when none does, then the one whose loss hurts the rest
least. Unhealthy devices and models that were not asked for are never chosen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from services.model.fabric import Fabric, LinkTable, PathTable, fabric_of

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
    """`numa_node` -1: the machine does not say."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    numa_node: int
    healthy: bool = True


class DevicePolicy(Enum):
    """Where shares go: onto the fullest device that holds them, or onto the emptiest. Whole devices know no difference."""

    BEST_FIT = "best-fit"
    SPREAD = "spread"


def allocate(
    request: DeviceRequest,
    free_milli: Sequence[int],
    devices: Sequence[Device],
    nvlinks: LinkTable,
    paths: PathTable,
    *,
    policy: DevicePolicy = DevicePolicy.BEST_FIT,
) -> tuple[DeviceShare, ...] | None:
    """The devices for `request`, in order of index, each at most once; None when it does not fit.

    `free_milli[i]` is what is free of `devices[i]`; a missing number means nothing. The tables are those of a
    TopologyView; where they are short, there is no link and no known path. Same arguments, same answer.
    """
    eligible = _eligible(request, free_milli, devices)
    if request.count < 1 or request.milli < 1 or len(eligible) < request.count:
        return None
    fabric = fabric_of(nvlinks, paths, tuple(device.numa_node for device in devices))
    if request.milli >= MILLI_WHOLE:
        chosen = _positions(fabric.choose(_mask(eligible), request.count))
    else:
        chosen = _choose_shares(request.count, eligible, free_milli, fabric, policy)
    return tuple(DeviceShare(devices[position].index, request.milli) for position in chosen)


def fits(request: DeviceRequest, free_milli: Sequence[int], devices: Sequence[Device]) -> bool:
    """Whether `allocate` would find devices, without choosing any."""
    return request.count >= 1 and request.milli >= 1 and len(_eligible(request, free_milli, devices)) >= request.count


def free_after(free_milli: Sequence[int], shares: Iterable[DeviceShare]) -> tuple[int, ...]:
    """What is free once `shares` are taken."""
    left = list(free_milli)
    for share in shares:
        left[share.index] -= share.milli
    return tuple(left)


def _eligible(request: DeviceRequest, free_milli: Sequence[int], devices: Sequence[Device]) -> list[int]:
    """Positions of healthy devices of a wanted model with enough left."""
    return [
        position
        for position, (device, free) in enumerate(zip(devices, free_milli, strict=False))
        if free >= request.milli and device.healthy and (not request.models or device.model in request.models)
    ]


def _choose_shares(
    count: int, eligible: list[int], free_milli: Sequence[int], fabric: Fabric, policy: DevicePolicy
) -> list[int]:
    if policy is DevicePolicy.SPREAD:
        return sorted(sorted(eligible, key=lambda position: (-free_milli[position], position))[:count])
    opened = sorted(
        (position for position in eligible if free_milli[position] < MILLI_WHOLE),
        key=lambda position: (free_milli[position], position),
    )[:count]
    fresh = [position for position in eligible if free_milli[position] >= MILLI_WHOLE]
    return sorted([*opened, *_positions(fabric.choose(_mask(fresh), count - len(opened)))])


def _mask(positions: Iterable[int]) -> int:
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


def _positions(mask: int) -> list[int]:
    return [position for position in range(mask.bit_length()) if mask >> position & 1]
