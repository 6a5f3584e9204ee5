"""A node's ledger: what was ever taken of it, and what was ever given back.

Both only grow; in use = taken - returned. Binds compare and write `Taken`; releases write `Returned`. A reader whose
`Returned` is old sees more in use than there is, so a bind that believes it errs on the safe side.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from services.model.devices import MILLI_WHOLE, Device, DeviceRequest, DeviceShare
from services.model.names import RESOURCE_PODS


@dataclass(frozen=True, slots=True)
class Amounts:
    """A sum of placements: resources in ledger units, thousandths a device (in device order), pods."""

    resources: Mapping[str, int]
    device_milli: tuple[int, ...]
    pods: int

    def plus(self, resources: Mapping[str, int], devices: tuple[DeviceShare, ...]) -> "Amounts":
        """This and one pod more."""
        total = dict(self.resources)
        for name, amount in resources.items():
            total[name] = total.get(name, 0) + amount
        milli = list(self.device_milli)
        for share in devices:
            if share.index >= len(milli):
                milli.extend([0] * (share.index + 1 - len(milli)))
            milli[share.index] += share.milli
        return Amounts(total, tuple(milli), self.pods + 1)


NOTHING = Amounts({}, (), 0)


@dataclass(frozen=True, slots=True)
class Taken:
    """`node_uid` empty: no Node yet, only its NodeTopology. `devices` are those of the NodeTopology."""

    node_uid: str
    allocatable: Mapping[str, int]
    devices: tuple[Device, ...]
    amounts: Amounts
    overcommitted: bool = False
    node_deleted: bool = False


EMPTY_TAKEN = Taken("", {}, (), NOTHING)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Both halves of a node's ledger."""

    taken: Taken
    returned: Amounts

    @property
    def pods_in_use(self) -> int:
        return self.taken.amounts.pods - self.returned.pods

    def in_use(self, name: str) -> int:
        return self.taken.amounts.resources.get(name, 0) - self.returned.resources.get(name, 0)

    def device_in_use(self, index: int) -> int:
        taken, returned = self.taken.amounts.device_milli, self.returned.device_milli
        return (taken[index] if index < len(taken) else 0) - (returned[index] if index < len(returned) else 0)

    def free_milli(self) -> tuple[int, ...]:
        """Free thousandths of each device."""
        return tuple(MILLI_WHOLE - self.device_in_use(index) for index in range(len(self.taken.devices)))

    def empty(self) -> bool:
        return self.pods_in_use == 0

    def lacks(self, requests: Mapping[str, int], devices: tuple[DeviceShare, ...]) -> str:
        """Why one pod more does not fit, in Kubernetes' words where it has them; empty when it fits."""
        if self.taken.node_deleted or not self.taken.node_uid:
            return "node is gone" if self.taken.node_deleted else "node is not registered"
        if self.taken.overcommitted and self.above_allocatable():
            return "node shrank below what it holds and takes no new pods"
        if self.pods_in_use + 1 > self.taken.allocatable.get(RESOURCE_PODS, 0):
            return "Too many pods"
        for name, amount in requests.items():
            if amount > 0 and self.in_use(name) + amount > self.taken.allocatable.get(name, 0):
                return f"Insufficient {name}"
        for share in devices:
            if share.index >= len(self.taken.devices):
                return f"there is no device {share.index}"
            if not self.taken.devices[share.index].healthy:
                return f"device {share.index} is unhealthy"
            if self.device_in_use(share.index) + share.milli > MILLI_WHOLE:
                return f"device {share.index} is in use"
        return ""

    def above_allocatable(self) -> bool:
        """Whether more is in use than the node has."""
        if self.pods_in_use > self.taken.allocatable.get(RESOURCE_PODS, 0) and self.pods_in_use > 0:
            return True
        if any(self.in_use(name) > self.taken.allocatable.get(name, 0) for name in self.taken.amounts.resources):
            return True
        return any(
            self.device_in_use(index) > (MILLI_WHOLE if index < len(self.taken.devices) else 0)
            for index in range(len(self.taken.amounts.device_milli))
        )

    def take(self, requests: Mapping[str, int], devices: tuple[DeviceShare, ...]) -> "Ledger":
        """The ledger with one pod more."""
        return replace(self, taken=replace(self.taken, amounts=self.taken.amounts.plus(requests, devices)))

    def give_back(self, requests: Mapping[str, int], devices: tuple[DeviceShare, ...]) -> "Ledger":
        """The ledger after one pod's release."""
        return replace(self, returned=self.returned.plus(requests, devices))


def names_what_is_asked(request: DeviceRequest | None, devices: tuple[DeviceShare, ...], ledger: Ledger) -> str:
    """Why the named devices are not what the pod asks for; empty when they are."""
    if request is None:
        return "the pod asks for no devices" if devices else ""
    if len(devices) != request.count or len({share.index for share in devices}) != request.count:
        return f"the pod asks for {request.count} distinct device(s), the binding names {len(devices)}"
    for share in devices:
        if share.milli != request.milli:
            return f"the pod asks for {request.milli} thousandths of each device, the binding names {share.milli}"
        known = ledger.taken.devices
        if request.models and share.index < len(known) and known[share.index].model not in request.models:
            return f"device {share.index} is a {known[share.index].model}, the pod asks for {'|'.join(sorted(request.models))}"
    return ""
