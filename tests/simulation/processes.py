"""What runs in the simulated processes: the product's shells, wired as their `__main__` wires them, and rough company.

Company are clients that the product has to withstand. One binder has no lease and binds whatever is its own to any node,
full or not; one does so with whole gangs; one campaigns for the scheduler's lease and goes on binding with its old fence
after it has lost it. And an operator shrinks nodes, lets them grow again, and breaks devices.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache

from apiserver.server import DESCRIPTOR, ApiService
from apiserver.settings import ApiServerSettings
from apiserver.store.protocol import Store
from kubelet_sim.core.shapes import Machine
from kubelet_sim.fleet import fleet_machines, load_catalogue
from kubelet_sim.settings import KubeletSettings
from kubelet_sim.shell import KubeletShell
from protos.orrery.v1.api_pb2 import Binding, Fence
from protos.orrery.v1.lease_pb2 import Lease
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.node_topology_pb2 import NodeTopology
from scheduler.settings import SchedulerSettings
from scheduler.shell import SchedulerShell
from services.client.api import ApiClient
from services.client.election import ElectionSettings, LeaderElector
from services.client.informer import Informer
from services.model.clock import Clock
from services.model.errors import ApiError
from services.model.names import LEASE_SCHEDULER, NAMESPACE_SYSTEM, SCHEDULER_NAME_DEFAULT
from services.model.pod import PodView
from services.runtime.transport import Service, Transport
from services.wire.metadata import object_key
from services.wire.pod import PodDecoder
from tests.simulation.invariants import GANG_SIZE, LABEL_GANG, Checker
from tests.simulation.load import GANG_SCHEDULER
from tests.simulation.loop import Owner
from tests.simulation.story import Violation
from tests.simulation.witness import PodWitness

APISERVERS = ("apiserver-0", "apiserver-1")
FLEET = ("dgx-h100=1", "l40s-4=2", "t4-2=1", "cpu-16=1")
RECKLESS = "reckless"
ELECTION = ElectionSettings(lease_duration_seconds=3.0, renew_deadline_seconds=2.0, retry_period_seconds=0.5)
COMPACTION_SECONDS = 10.0
CALL_SECONDS = 3.0
STUBBORN_BINDS = 10


@dataclass(frozen=True, slots=True)
class Life:
    """What one life of a process is given. `report` takes a violation that a process of the harness has found."""

    owner: Owner
    clock: Clock
    transport: Transport
    checker: Checker
    report: Callable[[Violation], None]

    def client(self, *servers: str) -> ApiClient:
        channel = self.transport.connect(servers or APISERVERS, caller=self.owner.name)
        return ApiClient(channel, timeout_seconds=CALL_SECONDS)


Main = Callable[[Life], Awaitable[None]]


async def run_apiserver(life: Life, store: Store, made: Callable[[ApiService], None]) -> None:
    settings = ApiServerSettings(name=life.owner.name, compaction_seconds=COMPACTION_SECONDS)
    service = ApiService(store, life.clock, settings, life.owner.rng)
    made(service)
    server = await life.transport.serve(life.owner.name, [Service(DESCRIPTOR, service)])
    try:
        await service.run()
    finally:
        await server.stop(0.0)


@cache
def fleet() -> tuple[Machine, ...]:
    return tuple(fleet_machines(load_catalogue(), FLEET))


async def run_kubelet(life: Life) -> None:
    settings = KubeletSettings(name=life.owner.name, apiserver=("127.0.0.1:1",), fleet=FLEET, seed=1)
    shell = KubeletShell(life.client(), life.clock, settings, life.owner.rng, machines=fleet())
    await shell.run()


async def run_scheduler(life: Life) -> None:
    name = life.owner.name
    settings = SchedulerSettings(
        name=name,
        lease_duration_seconds=ELECTION.lease_duration_seconds,
        renew_deadline_seconds=ELECTION.renew_deadline_seconds,
        retry_period_seconds=ELECTION.retry_period_seconds,
    )
    identity = f"{name}_{life.owner.rng.getrandbits(64):016x}"
    await SchedulerShell(life.client(), life.clock, settings, life.owner.rng, identity).run()


async def run_witness(life: Life, made: Callable[[PodWitness], None]) -> None:
    witness = PodWitness(life.client(), life.clock, life.owner, life.checker, life.report)
    made(witness)
    await witness.run()


class _Company:
    """Binds the pods that it watches to random nodes, now and then."""

    def __init__(self, life: Life, scheduler_name: str) -> None:
        decoder = PodDecoder()
        self.life = life
        self.api = life.client()
        self.fence: Fence | None = None
        rng = life.owner.rng
        self._pods: Informer[PodView] = Informer(
            self.api,
            life.clock,
            "pods",
            decoder.view,
            lambda _key, _old, _new: None,
            rng=rng,
            field_selector=f"spec.schedulerName={scheduler_name},spec.nodeName=",
        )
        self._nodes: Informer[str] = Informer(
            self.api, life.clock, "nodes", lambda value, _: object_key(value), lambda _key, _old, _new: None, rng=rng
        )

    async def watch(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            tasks.create_task(self._nodes.run())

    async def bind(self) -> None:
        while True:
            await self.life.clock.sleep(self.life.owner.rng.uniform(0.05, 0.6))
            await self.bind_some(self.api)

    async def bind_some(self, api: ApiClient) -> None:
        rng = self.life.owner.rng
        pods, nodes = list(self._pods.cache.values()), list(self._nodes.cache)
        if not pods or not nodes:
            return
        bindings = [
            Binding(namespace=pod.namespace, name=pod.name, uid=pod.uid, node_name=rng.choice(nodes))
            for pod in rng.sample(pods, min(len(pods), rng.randint(1, 4)))
        ]
        try:
            await api.bind_batch(bindings, fence=self.fence)
        except ApiError:
            return

    async def bind_gangs(self) -> None:
        rng = self.life.owner.rng
        while True:
            await self.life.clock.sleep(rng.uniform(0.05, 1.0))
            gangs: dict[str, list[PodView]] = {}
            for pod in self._pods.cache.values():
                gangs.setdefault(pod.labels[LABEL_GANG], []).append(pod)
            whole = [gang for gang in gangs.values() if len(gang) == GANG_SIZE]
            nodes = list(self._nodes.cache)
            if not whole or not nodes:
                continue
            bindings = [
                Binding(namespace=pod.namespace, name=pod.name, uid=pod.uid, node_name=rng.choice(nodes))
                for pod in rng.choice(whole)
            ]
            try:
                await self.api.bind_group(bindings)
            except ApiError:
                continue


async def run_reckless(life: Life) -> None:
    company = _Company(life, RECKLESS)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(company.watch())
        tasks.create_task(company.bind())


async def run_gangs(life: Life) -> None:
    """Binds gangs that it knows whole, each in one call."""
    company = _Company(life, GANG_SCHEDULER)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(company.watch())
        tasks.create_task(company.bind_gangs())


async def run_operator(life: Life) -> None:
    """Nodes shrink and grow, go and come back; devices break and are mended."""
    api, rng = life.client(), life.owner.rng
    while True:
        await life.clock.sleep(rng.uniform(1.0, 8.0))
        machine = rng.choice(fleet())
        name = machine.node.name
        try:
            chosen = rng.choices(("resize", "break", "remove"), (4, 4, 2))[0]
            if chosen == "remove":
                await _remove_for_a_while(life, api, name)
            elif chosen == "resize":
                cpu = machine.node.allocatable["cpu"] // rng.choice((1, 1, 4, 16))
                await api.patch_status("nodes", name, "", {"allocatable": {"cpu": f"{cpu}m"}})
            else:
                stored = await api.get("nodetopologies", name)
                topology = NodeTopology.FromString(stored.value)
                for gpu in topology.spec.gpus:
                    gpu.unhealthy = rng.random() < 0.15
                await api.update("nodetopologies", topology, resource_version=stored.resource_version)
        except ApiError:
            continue


async def _remove_for_a_while(life: Life, api: ApiClient, name: str) -> None:
    """The Node goes, with all that runs on it left behind, and comes back as another of the same name."""
    rng = life.owner.rng
    node = Node.FromString((await api.get("nodes", name)).value)
    await api.delete("nodes", name)
    await life.clock.sleep(rng.uniform(0.1, 4.0))
    node.metadata.uid = ""
    await api.create("nodes", node)


async def run_stale_leader(life: Life) -> None:
    """Leads when it can, and does not accept that it is over: then it binds with its old fence, through every server."""
    company = _Company(life, SCHEDULER_NAME_DEFAULT)
    lost = asyncio.Event()

    def started(fence: Fence) -> None:
        company.fence = fence
        lost.clear()

    def lease_changed(_key: str, _old: str | None, holder: str | None) -> None:
        if company.fence is not None and holder != identity:
            lost.set()

    identity = f"{life.owner.name}-{life.owner.rng.getrandbits(32):08x}"
    elector = LeaderElector(
        company.api,
        life.clock,
        namespace=NAMESPACE_SYSTEM,
        name=LEASE_SCHEDULER,
        identity=identity,
        settings=ELECTION,
        rng=life.owner.rng,
        on_started_leading=started,
        on_stopped_leading=lambda: None,
    )
    leases: Informer[str] = Informer(
        life.client(),
        life.clock,
        "leases",
        lambda value, _version: Lease.FromString(value).spec.holder_identity,
        lease_changed,
        rng=life.owner.rng,
        namespace=NAMESPACE_SYSTEM,
        field_selector=f"metadata.name={LEASE_SCHEDULER}",
    )

    async def bind_as_ever() -> None:
        while True:
            await life.clock.sleep(life.owner.rng.uniform(0.05, 0.5))
            if company.fence is not None:
                await company.bind_some(company.api)

    async def bind_when_lost(api: ApiClient) -> None:
        while True:
            await lost.wait()
            for _ in range(STUBBORN_BINDS):
                await company.bind_some(api)
                await life.clock.sleep(life.owner.rng.uniform(0.0, 0.1))
            lost.clear()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(company.watch())
        tasks.create_task(leases.run())
        tasks.create_task(elector.run())
        tasks.create_task(bind_as_ever())
        for server in APISERVERS:
            tasks.create_task(bind_when_lost(life.client(server)))
