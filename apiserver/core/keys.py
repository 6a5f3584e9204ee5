"""Where things stand in the store."""

from dataclasses import dataclass

from services.model.kinds import KIND_BY_RESOURCE, Kind

ROOT = b"/orrery/"
REGISTRY = b"/orrery/registry/"
EPOCHS = b"/orrery/epochs/"
LEDGER = b"/orrery/ledger/"
BARRIER = b"/orrery/barrier/"
COMPACTION = b"/orrery/compaction"
FORMAT = b"/orrery/format"
TAKEN, RETURNED = b"/taken", b"/returned"


@dataclass(frozen=True, slots=True)
class RegistryKey:
    """A parsed registry key; `name` is namespace/name for namespaced kinds."""

    kind: Kind
    namespace: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def registry_prefix(kind: Kind, namespace: str = "") -> bytes:
    """The prefix of all objects of a kind, or of those in one namespace."""
    prefix = REGISTRY + f"{kind.storage_group}/{kind.resource}/".encode()
    return prefix + namespace.encode() + b"/" if namespace else prefix


def registry_key(kind: Kind, namespace: str, name: str) -> bytes:
    """The key of one object."""
    return registry_prefix(kind, namespace if kind.namespaced else "") + name.encode()


_KIND_BY_PREFIX = {(kind.storage_group, kind.resource): kind for kind in KIND_BY_RESOURCE.values()}


def parse_registry_key(key: bytes) -> RegistryKey | None:
    """What a registry key names; None for a kind that this version does not know."""
    group, resource, *rest = key[len(REGISTRY) :].decode().split("/")
    kind = _KIND_BY_PREFIX.get((group, resource))
    if kind is None or len(rest) != (2 if kind.namespaced else 1):
        return None
    return RegistryKey(kind, rest[0], rest[1]) if kind.namespaced else RegistryKey(kind, "", rest[0])


def epoch_key(lease: str) -> bytes:
    """The epoch of the lease namespace/name."""
    return EPOCHS + lease.encode()


def taken_key(node_name: str) -> bytes:
    return LEDGER + node_name.encode() + TAKEN


def returned_key(node_name: str) -> bytes:
    return LEDGER + node_name.encode() + RETURNED
