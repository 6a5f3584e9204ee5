"""What a pod asks of its node: Kubernetes' pod-request arithmetic over plain numbers.

The effective request is the larger of two phases, plus overhead: the sum of the containers and of all sidecars (init
containers with restartPolicy Always), and the peak while init containers run one after another, each beside the
sidecars started before it. Pod-level resources replace the sum for the resources that they name
(component-helpers/resource PodRequests, Kubernetes 1.36). Sums saturate at int64, as quantities do.

A pod that is being resized in place counts by its status as well (UseStatusResources): `resized` says what a container
then enters the sum with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.model.devices import MILLI_WHOLE, DeviceRequest
from services.model.names import (
    ANNOTATION_GPU_COUNT,
    ANNOTATION_GPU_MODELS,
    RESOURCE_CPU,
    RESOURCE_GPU,
    RESOURCE_GPU_MILLI,
    RESOURCE_MEMORY,
)
from services.model.quantity import saturated

# What scoring counts for a container that asks for nothing (kube-scheduler's DefaultMilliCPURequest, DefaultMemoryRequest).
NONZERO_MILLI_CPU = 100
NONZERO_MEMORY = 200 * 1024 * 1024
_POD_LEVEL = (RESOURCE_CPU, RESOURCE_MEMORY)


@dataclass(frozen=True, slots=True)
class ContainerRequests:
    """`requests` in ledger units, limits already standing in for absent requests. `sidecar`: an init container that stays."""

    requests: Mapping[str, int] = field(default_factory=dict)
    sidecar: bool = False


class DeviceRequestError(ValueError):
    """The pod's wish for devices contradicts itself; `path` names the field or annotation."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


@dataclass(frozen=True, slots=True)
class PodResources:
    """What the arithmetic reads of one pod, in ledger units. `pod_level` and `pod_level_limits` are spec.resources."""

    containers: tuple[ContainerRequests, ...]
    init_containers: tuple[ContainerRequests, ...] = ()
    overhead: Mapping[str, int] = field(default_factory=dict)
    pod_level: Mapping[str, int] = field(default_factory=dict)
    pod_level_limits: Mapping[str, int] = field(default_factory=dict)


def pod_requests(pod: PodResources) -> dict[str, int]:
    """The effective request by resource name, in ledger units; resources that nobody names are absent."""
    return _effective(pod, _pod_level(pod), {})


def nonzero_requests(pod: PodResources) -> tuple[int, int]:
    """(milli-CPU, memory bytes) as scoring counts them: a container that names none counts 100m and 200Mi; an explicit 0
    stays 0. Where the pod has requests of its own, only a resource that nobody names is defaulted so
    (kube-scheduler's getNonMissingContainerRequests).
    """
    pod_level = _pod_level(pod)
    missing = {RESOURCE_CPU: NONZERO_MILLI_CPU, RESOURCE_MEMORY: NONZERO_MEMORY}
    if pod_level:
        known = _effective(pod, pod_level, {})
        missing = {name: amount for name, amount in missing.items() if name not in known}
    requests = _effective(pod, pod_level, missing)
    return requests.get(RESOURCE_CPU, 0), requests.get(RESOURCE_MEMORY, 0)


def scoring_requests(pod: PodResources) -> tuple[int, int]:
    """(milli-CPU, memory bytes) that NodeResourcesFit's score counts for the pod at hand: as `nonzero_requests`, but the
    pod's own requests are left out, as kube-scheduler 1.36 does (it honours them everywhere else).
    """
    requests = _effective(pod, {}, {RESOURCE_CPU: NONZERO_MILLI_CPU, RESOURCE_MEMORY: NONZERO_MEMORY})
    return requests.get(RESOURCE_CPU, 0), requests.get(RESOURCE_MEMORY, 0)


def resized(
    requests: Mapping[str, int], actual: Mapping[str, int], allocated: Mapping[str, int], *, infeasible: bool
) -> dict[str, int]:
    """What a container counts whose status reports resources: the largest of what it asks, has and was promised; what it
    asks is left out once the node has found it infeasible (component-helpers determineContainerReqs).
    """
    largest: dict[str, int] = {}
    for source in (actual, allocated) if infeasible else (requests, actual, allocated):
        _raise_to(largest, source)
    return largest


def _pod_level(pod: PodResources) -> dict[str, int]:
    """The pod-level requests with the API server's defaults (defaultPodRequests): where there are pod-level limits, a
    resource without a pod-level request takes what the containers ask for it, or else the pod-level limit. On an object
    that the API server has defaulted already this changes nothing.
    """
    requests = {name: amount for name, amount in pod.pod_level.items() if _has_pod_level(name)}
    if pod.pod_level_limits:
        for source in (_aggregate(pod, {}), pod.pod_level_limits):
            for name, amount in source.items():
                if _has_pod_level(name):
                    requests.setdefault(name, amount)
    return requests


def _has_pod_level(name: str) -> bool:
    return name in _POD_LEVEL or name.startswith("hugepages-")


def _effective(pod: PodResources, pod_level: Mapping[str, int], missing: Mapping[str, int]) -> dict[str, int]:
    total = _aggregate(pod, missing)
    total.update(pod_level)
    _add(total, pod.overhead)
    return total


def _aggregate(pod: PodResources, missing: Mapping[str, int]) -> dict[str, int]:
    """The containers' part. `missing` stands in, container by container, for a resource that one does not name."""
    total: dict[str, int] = {}
    for container in pod.containers:
        _add(total, {**missing, **container.requests})
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.init_containers:
        requests = {**missing, **container.requests}
        if container.sidecar:
            _add(total, requests)
            _add(sidecars, requests)
            _raise_to(peak, sidecars)
        else:
            _add(requests, sidecars)
            _raise_to(peak, requests)
    _raise_to(total, peak)
    return total


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = saturated(total.get(name, 0) + amount)


def _raise_to(total: dict[str, int], floor: Mapping[str, int]) -> None:
    for name, amount in floor.items():
        if amount > total.get(name, 0):
            total[name] = amount
        else:
            total.setdefault(name, amount)


def device_request(requests: Mapping[str, int], annotations: Mapping[str, str]) -> DeviceRequest | None:
    """The devices that a pod asks for, None for none.

    `nvidia.com/gpu: N` is N whole devices. `orrery.dev/gpu-milli: M` is M thousandths in all, split evenly over
    `orrery.dev/gpu-count` devices (1 when absent). `orrery.dev/gpu-models: "A|B"` names the models that will do.

    Raises:
        DeviceRequestError: both resources at once, or a share that no device can give.
    """
    whole = requests.get(RESOURCE_GPU, 0)
    milli = requests.get(RESOURCE_GPU_MILLI, 0)
    if whole < 0 or milli < 0:
        raise DeviceRequestError("spec.containers", f"asks for {min(whole, milli)} of a device")
    models = frozenset(model for model in annotations.get(ANNOTATION_GPU_MODELS, "").split("|") if model)
    if whole and milli:
        raise DeviceRequestError(
            "spec.containers",
            f"asks for {RESOURCE_GPU} and for {RESOURCE_GPU_MILLI}; a pod takes whole GPUs or shares, not both",
        )
    if whole:
        return DeviceRequest(whole, MILLI_WHOLE, models)
    if not milli:
        return None
    count = _device_count(annotations)
    if milli % count:
        raise DeviceRequestError(
            f"metadata.annotations[{ANNOTATION_GPU_COUNT}]",
            f"{milli} thousandths do not split evenly over {count} devices",
        )
    if milli // count > MILLI_WHOLE:
        raise DeviceRequestError(
            "spec.containers",
            f"{RESOURCE_GPU_MILLI}: {milli} over {count} device(s) is more than {MILLI_WHOLE} each; "
            f"raise the annotation {ANNOTATION_GPU_COUNT} or ask for {RESOURCE_GPU}",
        )
    return DeviceRequest(count, milli // count, models)


def _device_count(annotations: Mapping[str, str]) -> int:
    text = annotations.get(ANNOTATION_GPU_COUNT, "1")
    if not (text.isascii() and text.isdigit() and len(text) <= 4) or int(text) < 1:
        raise DeviceRequestError(f"metadata.annotations[{ANNOTATION_GPU_COUNT}]", f"{text!r} is not a count of devices")
    return int(text)
