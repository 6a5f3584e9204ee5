"""The registry of kinds: one literal table that the API server, the clients and the command line all read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind and its names, as `kubectl api-resources` lists them."""

    name: str
    resource: str
    group: str
    version: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    has_status: bool = False
    read_only: bool = False

    @property
    def api_version(self) -> str:
        """`v1` for the core group, `group/version` otherwise."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage_group(self) -> str:
        """The group's place in a registry key; the core group is `core`."""
        return self.group or "core"


KINDS: tuple[Kind, ...] = (
    Kind("Pod", "pods", "", "v1", True, ("po",), has_status=True),
    Kind("Node", "nodes", "", "v1", False, ("no",), has_status=True),
    Kind("Namespace", "namespaces", "", "v1", False, ("ns",), has_status=True),
    Kind("Service", "services", "", "v1", True, ("svc",), has_status=True),
    Kind("Event", "events", "", "v1", True, ("ev",)),
    Kind("Lease", "leases", "coordination.k8s.io", "v1", True),
    Kind("PriorityClass", "priorityclasses", "scheduling.k8s.io", "v1", False, ("pc",)),
    Kind("PodGroup", "podgroups", "scheduling.k8s.io", "v1beta1", True, ("pg",), has_status=True),
    Kind("NodeTopology", "nodetopologies", "orrery.dev", "v1", False, ("topo",)),
    Kind("NodeAllocation", "nodeallocations", "orrery.dev", "v1", False, ("alloc",), read_only=True),
)

KIND_BY_RESOURCE: dict[str, Kind] = {kind.resource: kind for kind in KINDS}
KIND_BY_NAME: dict[tuple[str, str], Kind] = {(kind.api_version, kind.name): kind for kind in KINDS}


def find_kind(word: str) -> Kind | None:
    """The kind that a person means by `pod`, `pods`, `po` or `Pod`; None when there is none."""
    lowered = word.lower()
    for kind in KINDS:
        if lowered in (kind.resource, kind.name.lower(), *kind.short_names):
            return kind
    return None
