"""Compares the ledgers with the pods, and lets `check_fit` judge what pends. Pure: a cluster as read goes in, a result comes out.

Everything is summed from the pods' own `placed` records; the ledger is what is judged, never what is trusted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from services.lab.check import KIND_FITS, SCHEDULER_NAMES, CheckResult, Difference
from services.lab.check_fit import MILLI_WHOLE, Room, Usage, first_fit, request_key
from services.model.devices import Device, DeviceRequest
from services.model.ledger import Amounts, Taken
from services.model.node import NodeView
from services.model.pod import LabelRequirements, Placement, PodView
from services.model.selectors import requirement_matches


@dataclass(slots=True)
class NodeState:
    """All that is stored about one node's name; None for what is not there. Filled while reading."""

    name: str
    node: NodeView | None = None
    devices: tuple[Device, ...] | None = None
    taken: Taken | None = None
    returned: Amounts | None = None


@dataclass(slots=True)
class Cluster:
    """Everything at one revision. `unreadable` holds the values that could not be decoded."""

    revision: int
    nodes: dict[str, NodeState] = field(default_factory=dict)
    pods: list[PodView] = field(default_factory=list)
    unreadable: list[Difference] = field(default_factory=list)

    def at(self, name: str) -> NodeState:
        return self.nodes.setdefault(name, NodeState(name))


def verify(cluster: Cluster, scheduler_names: Sequence[str] = SCHEDULER_NAMES) -> CheckResult:
    """Checks everything that can be checked of `cluster`."""
    usages = usage_by_node(cluster.pods)
    for name in usages:
        cluster.at(name)
    differences = [*cluster.unreadable, *unchecked(cluster), *pod_differences(cluster)]
    for name in sorted(cluster.nodes):
        differences += node_differences(cluster.nodes[name], usages.get(name, Usage()))
    rooms = list(_rooms(cluster, usages))
    repelling = repelling_terms(cluster.pods)
    skipped: Counter[str] = Counter()
    waiting: dict[object, list[PodView]] = defaultdict(list)
    for pod in cluster.pods:
        if pod.finished or pod.spec.node_name or pod.placed is not None:
            continue
        if reason := not_promised(pod, scheduler_names) or looks_at_others(pod, repelling):
            skipped[reason] += 1
        else:
            waiting[request_key(pod.spec)].append(pod)
    comparisons = covered = 0
    for pods in waiting.values():
        node, looked = first_fit(pods[0].spec, rooms)
        comparisons += looked
        covered += looked * len(pods)
        for pod in pods if node else ():
            differences.append(Difference(KIND_FITS, f"pod {pod.key}", f"it waits, and would fit on node {node}"))
    holding = [pod for pod in cluster.pods if pod.placed is not None and not pod.finished]
    return CheckResult(
        revision=cluster.revision,
        nodes=sum(state.node is not None for state in cluster.nodes.values()),
        ledgers=sum(state.taken is not None for state in cluster.nodes.values()),
        devices=sum(len(state.devices or ()) for state in cluster.nodes.values()),
        pods=len(cluster.pods),
        placed=len(holding),
        shares=sum(len(pod.placed.devices) for pod in holding if pod.placed is not None),
        finished=sum(pod.finished for pod in cluster.pods),
        pending=sum(map(len, waiting.values())),
        requests=len(waiting),
        comparisons=comparisons,
        comparisons_covered=covered,
        overcommitted=sum(state.taken is not None and state.taken.overcommitted for state in cluster.nodes.values()),
        skipped=dict(sorted(skipped.items())),
        differences=tuple(differences),
    )


def not_promised(pod: PodView, scheduler_names: Sequence[str]) -> str:
    """Why nobody promises to bind this pending pod; empty when the mesh's scheduler does."""
    if pod.deleting:
        return "being deleted"
    if pod.spec.scheduling_gates:
        return "gated"
    if pod.spec.scheduler_name not in scheduler_names:
        return "of another scheduler"
    return ""


def repelling_terms(pods: Sequence[PodView]) -> set[LabelRequirements]:
    """The selectors of the required anti-affinity of the pods that are there, whatever their domains and namespaces."""
    return {
        term.selector
        for pod in pods
        if pod.placed is not None and not pod.finished and pod.spec.pod_affinity is not None
        for term in pod.spec.pod_affinity.anti_required
    }


def looks_at_others(pod: PodView, repelling: Iterable[LabelRequirements]) -> str:
    """Why this brute force cannot say where the pod fits: who else is where decides. Empty when it does not."""
    affinity = pod.spec.pod_affinity
    if affinity is not None and (affinity.required or affinity.anti_required):
        return "with required pod affinity, not judged"
    if any(constraint.hard for constraint in pod.spec.spread):
        return "with a required spread, not judged"
    for selector in repelling:
        if selector is not None and all(requirement_matches(item, pod.labels) for item in selector):
            return "that others' anti-affinity may repel, not judged"
    return ""


def usage_by_node(pods: Sequence[PodView]) -> dict[str, Usage]:
    """What the unfinished pods hold, by the node of their `placed` record."""
    usages: dict[str, Usage] = defaultdict(Usage)
    for pod in pods:
        if pod.placed is None or pod.finished:
            continue
        usage = usages[pod.placed.node_name]
        usage.pods += 1
        usage.host_ports.extend(pod.spec.host_ports)
        for name, amount in pod.placed.resources.items():
            usage.resources[name] = usage.resources.get(name, 0) + amount
        for share in pod.placed.devices:
            usage.device_milli[share.index] = usage.device_milli.get(share.index, 0) + share.milli
    return dict(usages)


def unchecked(cluster: Cluster) -> Iterator[Difference]:
    """A check that looked at nothing has found nothing."""
    if not any(state.node is not None for state in cluster.nodes.values()):
        yield Difference("nothing to check", "nodes", "etcd holds no node")
    if not cluster.pods:
        yield Difference("nothing to check", "pods", "etcd holds no pod")


def pod_differences(cluster: Cluster) -> Iterator[Difference]:
    """Each uid once; a bound pod's place is the node that it names, and holds what it asks for."""
    uids: dict[str, PodView] = {}
    for pod in cluster.pods:
        subject = f"pod {pod.key}"
        if pod.uid in uids:
            first = uids[pod.uid]
            where = f"{first.spec.node_name or 'no node'} and {pod.spec.node_name or 'no node'}"
            yield Difference("uid twice", subject, f"pod {first.key} has the same uid {pod.uid}; they are on {where}")
        uids.setdefault(pod.uid, pod)
        if pod.placed is None:
            if pod.spec.node_name and not pod.finished:
                yield Difference(
                    "bound without place", subject, f"it is on node {pod.spec.node_name} and holds no place"
                )
            continue
        yield from _placed_differences(cluster, subject, pod, pod.placed)


def _placed_differences(cluster: Cluster, subject: str, pod: PodView, placed: Placement) -> Iterator[Difference]:
    if placed.node_name != pod.spec.node_name:
        said = pod.spec.node_name or "none"
        yield Difference("other node", subject, f"nodeName is {said}, its place is on {placed.node_name}")
    if pod.finished:
        return
    state = cluster.nodes.get(placed.node_name)
    if state is not None and state.node is not None:
        uid = state.node.uid
    else:
        uid = state.taken.node_uid if state is not None and state.taken is not None else ""
    if placed.node_uid != uid:
        said = f"node {placed.node_name} has {uid}" if uid else f"there is no node {placed.node_name}"
        yield Difference("other node uid", subject, f"its place is on the node with uid {placed.node_uid}, {said}")
    if _positive(placed.resources) != _positive(pod.spec.requests):
        yield Difference(
            "place is not the request",
            subject,
            f"it asks for {_positive(pod.spec.requests)}, holds {_positive(placed.resources)}",
        )
    devices = (state.devices or ()) if state is not None else ()
    if why := _wrong_devices(pod.spec.devices, placed, devices):
        yield Difference("place is not the request", subject, why)


def _wrong_devices(request: DeviceRequest | None, placed: Placement, devices: tuple[Device, ...]) -> str:
    if request is None:
        return f"it asks for no devices and holds {len(placed.devices)}" if placed.devices else ""
    if len(placed.devices) != request.count or len({share.index for share in placed.devices}) != request.count:
        return f"it asks for {request.count} device(s) and holds {len(placed.devices)}"
    models = {device.index: device.model for device in devices}
    for share in placed.devices:
        if share.milli != request.milli:
            return f"it asks for {request.milli} thousandths and holds {share.milli} of device {share.index}"
        if share.index not in models:
            return f"it holds device {share.index}, which the node does not have"
        if request.models and models[share.index] not in request.models:
            return f"it holds a {models[share.index]} and asks for {'|'.join(sorted(request.models))}"
    return ""


def node_differences(state: NodeState, usage: Usage) -> Iterator[Difference]:
    """The ledger says what the pods say, and stays within the node."""
    subject = f"node {state.name}"
    taken = state.taken
    if taken is None:
        if state.node is not None or usage.pods or state.returned is not None:
            yield Difference("no ledger", subject, "there is no taken value for it")
        return
    if state.node is not None and state.node.uid != taken.node_uid:
        yield Difference("ledger of another node", subject, f"uid {state.node.uid}, in the ledger {taken.node_uid}")
    if state.node is not None and _positive(state.node.allocatable) != _positive(taken.allocatable):
        yield Difference(
            "ledger of another node", subject, f"allocatable {_changed(state.node.allocatable, taken.allocatable)}"
        )
    if state.devices is not None and _hardware(state.devices) != _hardware(taken.devices):
        yield Difference("ledger of another node", subject, "its devices are not those of its NodeTopology")
    if state.node is None and taken.node_uid and not taken.node_deleted:
        yield Difference("ledger of another node", subject, "the node is gone and the ledger does not say so")
    yield from _sum_differences(subject, taken.amounts, state.returned or Amounts({}, (), 0), usage)
    if not taken.overcommitted and state.node is not None:
        yield from _excess(subject, state.node.allocatable, usage)
    for index, milli in sorted(usage.device_milli.items()):
        if milli > MILLI_WHOLE:
            yield Difference("device above the whole", subject, f"device {index}: {milli} thousandths are held")


def _sum_differences(subject: str, taken: Amounts, returned: Amounts, usage: Usage) -> Iterator[Difference]:
    kind = "ledger is not the sum"
    for name in sorted({*taken.resources, *returned.resources, *usage.resources}):
        ledger = taken.resources.get(name, 0) - returned.resources.get(name, 0)
        if ledger != usage.resources.get(name, 0):
            yield Difference(kind, subject, f"{name}: ledger {ledger}, pods {usage.resources.get(name, 0)}")
    if taken.pods - returned.pods != usage.pods:
        yield Difference(kind, subject, f"pods: ledger {taken.pods - returned.pods}, pods {usage.pods}")
    length = max(len(taken.device_milli), len(returned.device_milli), *(index + 1 for index in usage.device_milli), 0)
    for index in range(length):
        ledger = sum(taken.device_milli[index : index + 1]) - sum(returned.device_milli[index : index + 1])
        if ledger != usage.device_milli.get(index, 0):
            held = usage.device_milli.get(index, 0)
            yield Difference(kind, subject, f"device {index}: ledger {ledger}, pods {held} thousandths")


def _excess(subject: str, allocatable: Mapping[str, int], usage: Usage) -> Iterator[Difference]:
    kind = "node above allocatable"
    if usage.pods > allocatable.get("pods", 0):
        yield Difference(kind, subject, f"{usage.pods} pods on it, {allocatable.get('pods', 0)} allowed")
    for name, amount in sorted(usage.resources.items()):
        if amount > allocatable.get(name, 0):
            yield Difference(kind, subject, f"{name}: {amount} are held, {allocatable.get(name, 0)} are there")


def _rooms(cluster: Cluster, usages: Mapping[str, Usage]) -> Iterator[Room]:
    for name in sorted(cluster.nodes):
        state = cluster.nodes[name]
        if state.node is not None:
            open_ = state.taken is not None and not state.taken.overcommitted and not state.taken.node_deleted
            yield Room(state.node, state.devices or (), usages.get(name, Usage()), takes_new_pods=open_)


def _positive(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in sorted(amounts.items()) if amount}


def _changed(node: Mapping[str, int], ledger: Mapping[str, int]) -> str:
    names = [name for name in sorted({*node, *ledger}) if node.get(name, 0) != ledger.get(name, 0)]
    return ", ".join(f"{name} {node.get(name, 0)}, in the ledger {ledger.get(name, 0)}" for name in names)


def _hardware(devices: Sequence[Device]) -> list[tuple[str, str, bool]]:
    return [(device.uuid, device.model, device.healthy) for device in devices]
