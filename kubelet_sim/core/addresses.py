"""IP addresses of simulated machines (10.0.0.0/9, by name) and of their pods (10.128.0.0/9, one after another)."""

import hashlib
from ipaddress import IPv4Address

_HOSTS = int(IPv4Address("10.0.0.0"))
_PODS = int(IPv4Address("10.128.0.0"))
_SPAN = 1 << 23


def host_address(node_name: str) -> str:
    """The same address for the same name; two of thousands of machines may share one, which nothing relies on."""
    digest = hashlib.blake2b(node_name.encode(), digest_size=4).digest()
    return str(IPv4Address(_HOSTS + 1 + int.from_bytes(digest, "big") % (_SPAN - 2)))


class PodAddresses:
    """Hands out addresses that no pod of this process has. There are far more of them than pods."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._next = 0

    def take(self) -> str:
        while True:
            self._next = self._next % (_SPAN - 2) + 1
            address = str(IPv4Address(_PODS + self._next))
            if address not in self._used:
                self._used.add(address)
                return address

    def keep(self, address: str) -> str:
        """Marks the address of a pod that already runs as used, and returns it."""
        if address:
            self._used.add(address)
        return address

    def give_back(self, address: str) -> None:
        self._used.discard(address)
