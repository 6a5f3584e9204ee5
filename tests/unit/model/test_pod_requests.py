"""Pod requests: the phases of a pod, its own resources, scoring's defaults, and devices."""

from collections.abc import Mapping

import pytest

from services.model.devices import DeviceRequest
from services.model.pod_requests import (
    NONZERO_MEMORY,
    ContainerRequests,
    DeviceRequestError,
    PodResources,
    device_request,
    nonzero_requests,
    pod_requests,
    resized,
    scoring_requests,
)
from services.model.quantity import AMOUNT_MAX


def app(**requests: int) -> ContainerRequests:
    return ContainerRequests(requests)


def sidecar(**requests: int) -> ContainerRequests:
    return ContainerRequests(requests, sidecar=True)


@pytest.mark.parametrize(
    ("pod", "requests"),
    [
        (PodResources(()), {}),
        (PodResources((app(cpu=100), app(cpu=200, memory=5))), {"cpu": 300, "memory": 5}),
        # Init containers run one after another, before the rest: the peak counts.
        (PodResources((app(cpu=100),), (app(cpu=300), app(cpu=250))), {"cpu": 300}),
        (PodResources((app(cpu=100),), (app(memory=7),)), {"cpu": 100, "memory": 7}),
        # A sidecar stays: it adds to the containers, and to the init containers after it.
        (PodResources((app(cpu=100),), (sidecar(cpu=50),)), {"cpu": 150}),
        (PodResources((app(cpu=100),), (sidecar(cpu=50), app(cpu=200))), {"cpu": 250}),
        (PodResources((app(cpu=100),), (app(cpu=200), sidecar(cpu=50))), {"cpu": 200}),
        (PodResources((app(cpu=10),), (sidecar(cpu=50), app(cpu=5), sidecar(cpu=50))), {"cpu": 110}),
        # Overhead comes on top of all.
        (PodResources((app(cpu=100),), (app(cpu=300),), overhead={"cpu": 7, "memory": 1}), {"cpu": 307, "memory": 1}),
        # The pod's own request replaces the sum, resource by resource, also a smaller one.
        (PodResources((app(cpu=100, memory=5),), pod_level={"cpu": 50}), {"cpu": 50, "memory": 5}),
        (PodResources((app(cpu=100),), overhead={"cpu": 1}, pod_level={"cpu": 50}), {"cpu": 51}),
        (
            PodResources((app(cpu=1),), pod_level={"hugepages-2Mi": 4, "example.com/x": 9}),
            {"cpu": 1, "hugepages-2Mi": 4},
        ),
        # The pod's own limit stands in where neither it nor a container asks.
        (PodResources((app(cpu=100),), pod_level_limits={"cpu": 500, "memory": 9}), {"cpu": 100, "memory": 9}),
        (PodResources((app(),), pod_level={"cpu": 3}, pod_level_limits={"cpu": 500}), {"cpu": 3}),
    ],
)
def test_the_effective_request_is_that_of_kubernetes(pod: PodResources, requests: Mapping[str, int]) -> None:
    assert pod_requests(pod) == requests


@pytest.mark.parametrize(
    ("pod", "milli_cpu", "memory"),
    [
        (PodResources((app(),)), 100, NONZERO_MEMORY),
        (PodResources((app(), app(cpu=250))), 350, 2 * NONZERO_MEMORY),
        (PodResources((app(cpu=0, memory=0),)), 0, 0),
        (PodResources((app(),), (app(), app())), 100, NONZERO_MEMORY),
        (PodResources((app(),), (sidecar(),)), 200, 2 * NONZERO_MEMORY),
        # With requests of the pod itself, only what nobody names is defaulted.
        (PodResources((app(), app()), pod_level={"cpu": 50}), 50, 2 * NONZERO_MEMORY),
        (PodResources((app(memory=5), app()), pod_level={"cpu": 50}), 50, 5),
        (PodResources((app(cpu=5), app()), pod_level={"example.com/x": 1}), 105, 2 * NONZERO_MEMORY),
    ],
)
def test_scoring_counts_something_for_containers_that_ask_for_nothing(
    pod: PodResources, milli_cpu: int, memory: int
) -> None:
    assert nonzero_requests(pod) == (milli_cpu, memory)


@pytest.mark.parametrize(
    ("pod", "milli_cpu", "memory"),
    [
        (PodResources((app(cpu=300), app())), 400, 2 * NONZERO_MEMORY),
        (PodResources((app(cpu=300, memory=1),), overhead={"cpu": 5}), 305, 1),
        # Not the pod's own requests, which count everywhere else.
        (PodResources((app(cpu=300, memory=1),), pod_level={"cpu": 900, "memory": 900}), 300, 1),
    ],
)
def test_the_pod_at_hand_is_scored_without_its_pod_level_requests(
    pod: PodResources, milli_cpu: int, memory: int
) -> None:
    assert scoring_requests(pod) == (milli_cpu, memory)


@pytest.mark.parametrize(
    ("infeasible", "counts"), [(False, {"cpu": 300, "memory": 9, "x": 1}), (True, {"cpu": 200, "memory": 9})]
)
def test_a_container_that_is_resized_counts_the_most_of_what_it_asks_has_and_was_promised(
    infeasible: bool, counts: Mapping[str, int]
) -> None:
    asked, actual, allocated = {"cpu": 300, "memory": 5, "x": 1}, {"cpu": 200}, {"cpu": 100, "memory": 9}
    assert resized(asked, actual, allocated, infeasible=infeasible) == counts


def test_sums_saturate_at_int64() -> None:
    pod = PodResources((app(memory=AMOUNT_MAX), app(memory=AMOUNT_MAX)), overhead={"memory": 1})
    assert pod_requests(pod) == {"memory": AMOUNT_MAX}


GPU, MILLI = "nvidia.com/gpu", "orrery.dev/gpu-milli"


@pytest.mark.parametrize(
    ("requests", "annotations", "wanted"),
    [
        ({}, {}, None),
        ({GPU: 0, MILLI: 0}, {}, None),
        ({GPU: 4}, {}, DeviceRequest(4, 1000)),
        ({GPU: 1}, {"orrery.dev/gpu-models": "A|B|"}, DeviceRequest(1, 1000, frozenset({"A", "B"}))),
        ({MILLI: 250}, {}, DeviceRequest(1, 250)),
        ({MILLI: 1000}, {"orrery.dev/gpu-count": "2"}, DeviceRequest(2, 500)),
        ({MILLI: 8000}, {"orrery.dev/gpu-count": "8"}, DeviceRequest(8, 1000)),
    ],
)
def test_devices_come_from_resources_and_annotations(
    requests: Mapping[str, int], annotations: Mapping[str, str], wanted: DeviceRequest | None
) -> None:
    assert device_request(requests, annotations) == wanted


@pytest.mark.parametrize(
    ("requests", "annotations", "path"),
    [
        ({GPU: 1, MILLI: 500}, {}, "spec.containers"),
        ({GPU: -1}, {}, "spec.containers"),
        ({MILLI: 1001}, {}, "spec.containers"),
        ({MILLI: 1001}, {"orrery.dev/gpu-count": "2"}, "metadata.annotations[orrery.dev/gpu-count]"),
        ({MILLI: 500}, {"orrery.dev/gpu-count": "0"}, "metadata.annotations[orrery.dev/gpu-count]"),
        ({MILLI: 500}, {"orrery.dev/gpu-count": "-1"}, "metadata.annotations[orrery.dev/gpu-count]"),
        ({MILLI: 500}, {"orrery.dev/gpu-count": "9" * 5000}, "metadata.annotations[orrery.dev/gpu-count]"),
    ],
)
def test_a_wish_that_contradicts_itself_is_refused_with_its_path(
    requests: Mapping[str, int], annotations: Mapping[str, str], path: str
) -> None:
    with pytest.raises(DeviceRequestError) as refused:
        device_request(requests, annotations)
    assert refused.value.path == path
