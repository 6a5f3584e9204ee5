"""The lab's traces in the real Jaeger, and in our trace store: the same questions of a mesh that runs."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from protos.orrery.v1.api_pb2 import FENCED, Binding, BindResult, Fence
from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import ApiClient
from services.runtime.grpc_transport import GrpcTransport
from tests.integration.lab_mesh import Lab, pod, wait_until
from tests.integration.trace_query import ask
from tests.jaeger import BUILD_SECONDS_MAX, running_jaeger

pytestmark = [pytest.mark.integration, pytest.mark.jaeger, pytest.mark.timeout(BUILD_SECONDS_MAX)]
SERVICES = {"orrery", "orrery-apiserver", "orrery-scheduler", "orrery-kubelet-sim"}
# Of a pod that fits at once, each after the one before.
ORDER = (
    "apply pod/traced",
    "orrery.v1.Api/Create",
    "apiserver.create",
    "scheduler.queue",
    "scheduler.attempt",
    "scheduler.Filter",
    "Filter/NodeResourcesFit",
    "scheduler.Score",
    "scheduler.bind",
    "apiserver.bind",
    "kubelet.admit",
    "kubelet.start",
)


WHOLE = set(ORDER)


@dataclass(frozen=True)
class Traced:
    """A mesh whose spans go to both; `urls` are the query APIs by name."""

    lab: Lab
    urls: dict[str, str]
    trace_id: str


async def bind_late(address: str, made: Pod) -> BindResult:
    """What a leader of long ago would send."""
    channel = GrpcTransport(random.Random(0)).connect([address], caller="test")
    try:
        late = Binding(
            namespace="default",
            name=made.metadata.name,
            uid=made.metadata.uid,
            node_name="cpu-16-0",
            traceparent=made.metadata.annotations["orrery.dev/traceparent"],
        )
        return await ApiClient(channel).bind(late, fence=Fence(lease="kube-system/orrery-scheduler", token=1))
    finally:
        await channel.close()


async def stored_pod(address: str, name: str) -> Pod:
    channel = GrpcTransport(random.Random(0)).connect([address], caller="test")
    try:
        return Pod.FromString((await ApiClient(channel).get("pods", name, "default")).value)
    finally:
        await channel.close()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("jaeger")
    with running_jaeger(folder) as (otlp, jaeger):
        lab = Lab(folder / "lab")
        lab.good("up", "--no-fsync", "--shape", "cpu-16=2", "--forward", otlp)
        try:
            store = lab.record.process("tracestore")
            lab.good("apply", "-f", "-", stdin=pod("traced"))
            wait_until(lambda: lab.phase("traced") == "Running", "the pod runs")
            address = lab.record.process("apiserver-0").address
            made = asyncio.run(stored_pod(address, "traced"))
            assert asyncio.run(bind_late(address, made)).outcome == FENCED
            trace_id = made.metadata.annotations["orrery.dev/traceparent"][3:35]
            urls = {"tracestore": f"http://127.0.0.1:{store.peer_port}", "jaeger": jaeger}
            for url in urls.values():
                wait_until(lambda url=url: bool(fenced(url)) and names(url, trace_id) >= WHOLE, f"all is in {url}")
            yield Traced(lab, urls, trace_id)
        finally:
            lab.good("down", "--purge")


def fenced(url: str) -> list[dict[str, Any]]:
    """The traces with a fenced bind, as a search finds them."""
    wanted = {"service": "orrery-apiserver", "operation": "apiserver.bind", "tag": "orrery.bind.outcome:FENCED"}
    found: list[dict[str, Any]] = ask(url, "/api/traces", **wanted)[1]["data"]
    return found


def spans(url: str, trace_id: str) -> list[dict[str, Any]]:
    data = ask(url, f"/api/traces/{trace_id}")[1]["data"]
    return data[0]["spans"] if data else []


def names(url: str, trace_id: str) -> set[str]:
    return {span["operationName"] for span in spans(url, trace_id)}


def tags(span: dict[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


@pytest.fixture(params=["tracestore", "jaeger"])
def url(traced: Traced, request: pytest.FixtureRequest) -> str:
    return traced.urls[request.param]


def test_every_process_is_a_service(url: str) -> None:
    assert set(ask(url, "/api/services")[1]["data"]) >= SERVICES


def test_a_pods_trace_is_whole_and_in_order(traced: Traced, url: str) -> None:
    found = spans(url, traced.trace_id)
    first = {}
    for span in sorted(found, key=lambda span: span["startTime"]):
        first.setdefault(span["operationName"], span["startTime"])
    assert [name for name in ORDER if name not in first] == []
    assert [first[name] for name in ORDER] == sorted(first[name] for name in ORDER)
    known = {span["spanID"] for span in found}
    roots = [span for span in found if not any(item["spanID"] in known for item in span["references"])]
    assert [span["operationName"] for span in roots] == ["apply pod/traced"]
    transactions = [tags(span) for span in found if span["operationName"] == "etcd.txn"]
    assert len(transactions) == 2, "the creation's and the bind's"
    assert all(item["orrery.etcd.succeeded"] for item in transactions)


def test_a_fenced_bind_is_found_by_tag(traced: Traced, url: str) -> None:
    (trace,) = fenced(url)
    assert trace["traceID"] == traced.trace_id
    (bind,) = (tags(span) for span in trace["spans"] if tags(span).get("orrery.bind.outcome") == "FENCED")
    assert bind["error"] is True and bind["orrery.compare.epoch"] is False


def test_both_tell_the_same_of_the_trace(traced: Traced) -> None:
    def told(url: str) -> list[tuple[Any, ...]]:
        return sorted(
            (
                span["spanID"],
                span["operationName"],
                span["startTime"],
                span["duration"],
                str(sorted(tags(span).items())),
            )
            for span in spans(url, traced.trace_id)
        )

    ours, theirs = (told(traced.urls[which]) for which in ("tracestore", "jaeger"))
    assert len(ours) > 20 and ours == theirs
