"""Projections of a pod: the parts that decisions read, with quantities already integers.

Built by `services.wire.pod` from bytes; frozen, shared and compared by identity where the spec bytes are the same.
Resource maps hold cpu in thousandths of a core and everything else in its base unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from services.model.devices import DeviceRequest, DeviceShare


@dataclass(frozen=True, slots=True)
class Toleration:
    """core/v1 Toleration; empty strings where the manifest has none. `operator` is as given ("" means Equal)."""

    key: str
    operator: str
    value: str
    effect: str
    seconds: int | None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A label or field requirement: In, NotIn, Exists, DoesNotExist, and for nodes Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """All of both lists must hold; a term with neither matches nothing."""

    match_expressions: tuple[Requirement, ...]
    match_fields: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    """`required` None: no requirement; an empty tuple matches no node. `preferred`: (weight 1-100, term)."""

    required: tuple[NodeSelectorTerm, ...] | None
    preferred: tuple[tuple[int, NodeSelectorTerm], ...]


# The requirements of a label selector, all of which must hold; () selects everything, None nothing.
LabelRequirements = tuple[Requirement, ...] | None


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Pods of some namespaces that match a selector, in one domain of `topology_key`.

    Namespaces are the union of `namespaces` and of those whose labels match `namespace_selector`; with neither, the
    namespace of the pod that has the term. `match_label_keys` and `mismatch_label_keys` add the pod's own values to the
    selector, where the API server has not done so yet.
    """

    selector: LabelRequirements
    topology_key: str
    namespaces: frozenset[str] = frozenset()
    namespace_selector: LabelRequirements = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


WeightedTerms = tuple[tuple[int, PodAffinityTerm], ...]


@dataclass(frozen=True, slots=True)
class PodAffinity:
    """podAffinity and podAntiAffinity. The preferred ones are (weight 1-100, term)."""

    required: tuple[PodAffinityTerm, ...] = ()
    anti_required: tuple[PodAffinityTerm, ...] = ()
    preferred: WeightedTerms = ()
    anti_preferred: WeightedTerms = ()


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """core/v1 TopologySpreadConstraint with its defaults: nodeAffinityPolicy Honor, nodeTaintsPolicy Ignore, minDomains 1.

    `hard` is whenUnsatisfiable DoNotSchedule.
    """

    topology_key: str
    max_skew: int
    hard: bool
    selector: LabelRequirements
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False
    match_label_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostPort:
    """`ip` "0.0.0.0" where the manifest has none; `protocol` TCP, UDP or SCTP."""

    protocol: str
    ip: str
    port: int


@dataclass(frozen=True, slots=True)
class PodSpecView:
    """What scheduling, admission and binding read of a pod's spec.

    `requests` is the effective request (Kubernetes' pod-request arithmetic: containers, init containers, sidecars,
    overhead, pod-level resources), without the pod itself. `nonzero_milli_cpu` and `nonzero_memory` replace an absent
    request by 100m and 200Mi per container, as scoring does for the pods on a node (kube-scheduler's NonZeroRequested).
    `scoring_milli_cpu` and `scoring_memory` are what it counts for the pod at hand: without pod-level requests.
    """

    requests: Mapping[str, int]
    nonzero_milli_cpu: int
    nonzero_memory: int
    devices: DeviceRequest | None
    node_name: str
    scheduler_name: str
    priority: int
    preemption_policy: str
    restart_policy: str
    node_selector: Mapping[str, str]
    node_affinity: NodeAffinity | None
    tolerations: tuple[Toleration, ...]
    host_ports: tuple[HostPort, ...]
    scheduling_gates: tuple[str, ...]
    images: tuple[str, ...]
    termination_grace_period_seconds: int
    containers: tuple[str, ...]
    scoring_milli_cpu: int = 0
    scoring_memory: int = 0
    pod_affinity: PodAffinity | None = None
    spread: tuple[SpreadConstraint, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """The pod's `placed` record: what its node's ledger holds for it."""

    node_name: str
    node_uid: str
    resources: Mapping[str, int]
    devices: tuple[DeviceShare, ...]
    fencing_token: int


@dataclass(frozen=True, slots=True)
class PodView:
    """One version of one pod. `resource_version` is opaque to all but the API server.

    `started_at_ns` is status.startTime, 0 where there is none. `preempted`: it is being deleted to make room for a pod of
    higher priority (condition DisruptionTarget, reason PreemptionByScheduler).
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    created_at_ns: int
    labels: Mapping[str, str]
    spec: PodSpecView
    phase: str
    deleting: bool
    nominated_node_name: str
    placed: Placement | None
    traceparent: str
    run_seconds: float | None = None
    started_at_ns: int = 0
    preempted: bool = False

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        """In a terminal phase: holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")
