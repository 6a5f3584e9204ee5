"""What a pod asks of its node: Kubernetes' pod-request arithmetic over plain numbers.

The effective request is the larger of two phases, plus overhead: the sum of the containers and of all sidecars (init
containers with restartPolicy Always), and the peak while init containers run one after another, each beside the
sidecars started before it. Pod-level resources replace the sum for the resources that they name
(component-helpers/resource PodRequests, Kubernetes 1.36).
"""

from collections.abc import Iterable, Mapping
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


def pod_requests(
    containers: Iterable[ContainerRequests],
    init_containers: Iterable[ContainerRequests],
    overhead: Mapping[str, int],
    pod_level: Mapping[str, int],
) -> dict[str, int]:
    """The effective request by resource name, in ledger units; resources that nobody names are absent."""
    total: dict[str, int] = {}
    for container in containers:
        _add(total, container.requests)
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in init_containers:
        if container.sidecar:
            _add(total, container.requests)
            _add(sidecars, container.requests)
            _raise_to(peak, sidecars)
        else:
            running = dict(sidecars)
            _add(running, container.requests)
            _raise_to(peak, running)
    _raise_to(total, peak)
    for name, amount in pod_level.items():
        if name in _POD_LEVEL or name.startswith("hugepages-"):
            total[name] = amount
    _add(total, overhead)
    return total


def nonzero_requests(
    containers: Iterable[ContainerRequests],
    init_containers: Iterable[ContainerRequests],
    overhead: Mapping[str, int],
    pod_level: Mapping[str, int],
) -> tuple[int, int]:
    """(milli-CPU, memory bytes) with scoring's defaults for containers that name none; an explicit 0 stays 0."""
    with_defaults = [_defaulted(container) for container in containers]
    init_with_defaults = [_defaulted(container) for container in init_containers]
    requests = pod_requests(with_defaults, init_with_defaults, overhead, pod_level)
    return requests.get(RESOURCE_CPU, 0), requests.get(RESOURCE_MEMORY, 0)


def _defaulted(container: ContainerRequests) -> ContainerRequests:
    requests = {RESOURCE_CPU: NONZERO_MILLI_CPU, RESOURCE_MEMORY: NONZERO_MEMORY, **container.requests}
    return ContainerRequests(requests, container.sidecar)


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


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
    if not (text.isascii() and text.isdigit()) or int(text) < 1 or len(text) > 4:
        raise DeviceRequestError(f"metadata.annotations[{ANNOTATION_GPU_COUNT}]", f"{text!r} is not a count of devices")
    return int(text)
