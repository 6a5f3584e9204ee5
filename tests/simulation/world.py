"""A mesh in one event loop: processes, network, store, and what watches over them.

`run_seed` is one run: a mesh under load and faults for a while, then an end to both and a bounded time in which every
pod that fits somewhere must be bound and every promise kept. The same seed is the same run, event by event.
"""

import asyncio
import contextvars
import random
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from apiserver.server import ApiService
from apiserver.store.mvcc import Revision
from apiserver.store.protocol import Member, Store
from protos.orrery.v1.lease_pb2 import Lease
from services.model.clock import Clock
from tests.simulation import processes
from tests.simulation.answers import Answers
from tests.simulation.endings import Endings
from tests.simulation.invariants import LEASE, Checker
from tests.simulation.load import Load, Memory
from tests.simulation.loop import Deadlock, Owner, SimulatedClock, StepsExceeded, VirtualLoop
from tests.simulation.nemesis import Nemesis
from tests.simulation.network import Network, NetworkFaults
from tests.simulation.processes import Life
from tests.simulation.store import FaultyStore, ObservedMvcc, StoreFaults
from tests.simulation.story import FAULT, Story, Violation
from tests.simulation.transport import SimulatedTransport
from tests.simulation.witness import PodWitness

SKEW_SECONDS_MAX = 40.0
FAULTS_SECONDS = 60.0
# Lease 3 s, kept deadlines 2 s, calls 3 s, back-offs up to 10 s, silence of a stream 8 s: what recovery may add up to.
SETTLE_SECONDS_MAX = 60.0
LAGS_SECONDS = (0.0, 0.1, 0.3, 0.6)
COMPANY = ("reckless", "gangs", "stale", "operator")


@dataclass(frozen=True, slots=True)
class Plants:
    """Faults of the product, made here by twins; the product knows nothing of them."""

    mvcc: Callable[[], ObservedMvcc] = ObservedMvcc
    store: Callable[[Store], Store] = lambda store: store


@dataclass(frozen=True, slots=True)
class Report:
    """What a run was. `violation` is empty when nothing was found."""

    seed: int
    steps: int
    checks: dict[str, int]
    revisions: int
    messages: int
    pods: int
    placements: int
    faults: dict[str, int]
    seconds: float
    digest: str
    faults_seconds: float
    violation: str = ""
    invariant: str = ""
    story: tuple[str, ...] = ()

    @property
    def checks_total(self) -> int:
        return sum(self.checks.values())


@dataclass(slots=True)
class _Process:
    name: str
    main: Callable[[Life], Awaitable[None]]
    lives: int = 0
    owner: Owner | None = None
    wanted: bool = True


@dataclass(slots=True)
class World:
    """All of a run. Built inside the loop's own context, which belongs to no process."""

    seed: int
    loop: VirtualLoop
    plants: Plants
    processes: dict[str, _Process] = field(default_factory=dict)
    servers: list[str] = field(default_factory=lambda: list(processes.APISERVERS))
    stores: dict[str, FaultyStore] = field(default_factory=dict)
    services: dict[str, ApiService] = field(default_factory=dict)
    violation: Violation | None = None
    store_faults: StoreFaults = field(default_factory=StoreFaults)
    witness: PodWitness | None = None
    load: Load | None = None
    lags: dict[str, float] = field(default_factory=dict)
    story: Story = field(default_factory=Story)
    checker: Checker = field(default_factory=Checker)
    mvcc: ObservedMvcc = field(init=False)
    network: Network = field(init=False)
    memory: Memory = field(init=False)
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def __post_init__(self) -> None:
        self.loop.on_step = self._on_step
        self.mvcc = self.plants.mvcc()
        self.mvcc.observe = self._observe
        answers = Answers(self.checker)
        self.memory = Memory(self.tell)
        self.network = Network(
            self.loop,
            self.random("network"),
            self.tell,
            lambda *reply: self._guard(lambda: answers.check(*reply)),
            self._on_bug,
        )
        # In most runs one of the API servers is slow to hear of the other's writes.
        self.lags = {self.servers[0]: 0.0, self.servers[1]: self.random("lag").choice(LAGS_SECONDS)}
        for name in self.servers:
            self._add(name, self._run_apiserver)
        self._add("scheduler-0", processes.run_scheduler)
        self._add("scheduler-1", processes.run_scheduler)
        self._add("kubelet-sim-0", processes.run_kubelet)
        self._add("client", self._run_client)
        self._add("watcher", lambda life: processes.run_witness(life, self._made_witness))
        self._add("reckless-0", processes.run_reckless)
        self._add("reckless-1", processes.run_reckless)
        self._add("gangs-0", processes.run_gangs)
        self._add("gangs-1", processes.run_gangs)
        if self.seed % 3:
            # Leads a good part of the time, so it is not in every run.
            self._add("stale-leader", processes.run_stale_leader)
        self._add("operator", processes.run_operator)

    def _add(self, name: str, main: Callable[[Life], Awaitable[None]]) -> None:
        self.processes[name] = _Process(name, main)

    def random(self, what: str) -> random.Random:
        return random.Random(f"{self.seed}/{what}")

    # Watching over it

    def tell(self, actor: str, text: str) -> None:
        self.story.tell(self.loop.time(), actor, text)

    def tell_fault(self, text: str) -> None:
        self.tell(FAULT, text)

    def report(self, violation: Violation) -> None:
        """The first one ends the run, at the end of the step in which it was seen."""
        if self.violation is None:
            self.violation = violation

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Violation as violation:
            self.report(violation)

    def _on_step(self) -> None:
        if self.violation is not None:
            raise self.violation
        if self.loop.failures:
            raise Violation("process", self.loop.failures[0])

    def _observe(self, _members: tuple[Member, ...], revision: Revision) -> None:
        for event in revision.events:
            key = event.record.key.decode().removeprefix("/orrery/")
            self.tell("store", f"{revision.number} {'deletes' if event.deleted else 'puts'} {key}")
        self._guard(lambda: self.checker.observe(revision))

    def _on_bug(self, server: str, method: str, error: BaseException) -> None:
        self.report(Violation("process", f"{server}: {method} failed by its own fault: {_where(error)}", (server,)))

    # Processes

    def start(self, name: str) -> None:
        process = self.processes[name]
        if process.owner is not None or not process.wanted:
            return
        process.lives += 1
        rng = random.Random(f"{self.seed}/{name}/{process.lives}")
        owner = process.owner = Owner(self.loop, name, rng)
        self.tell(name, f"starts (life {process.lives})")
        clock: Clock = SimulatedClock(owner, rng.uniform(-SKEW_SECONDS_MAX, SKEW_SECONDS_MAX))
        life = Life(owner, clock, SimulatedTransport(self.network, owner), self.checker, self.report)
        if name in self.servers:
            self._make_store(name, owner)
        main = owner.start(process.main(life))  # type: ignore[arg-type]
        main.add_done_callback(lambda task: self._ended(owner, task), context=self._context)

    def _ended(self, owner: Owner, task: "asyncio.Task[None]") -> None:
        if owner.alive and not task.cancelled() and (error := task.exception()) is not None:
            self.report(Violation("process", f"{owner.name} died by its own fault: {_where(error)}", (owner.name,)))
        elif owner.alive:
            self.report(Violation("process", f"{owner.name} ended by itself", (owner.name,)))

    def kill(self, name: str) -> None:
        process = self.processes[name]
        if process.owner is not None:
            owner, process.owner = process.owner, None
            self.tell(name, "is killed")
            owner.kill()
            self.network.died(owner)
            self.services.pop(name, None)

    def stop(self, name: str) -> None:
        if (owner := self.processes[name].owner) is not None:
            owner.stop()

    def go_on(self, name: str) -> None:
        if (owner := self.processes[name].owner) is not None and owner.stopped:
            self.tell(name, "goes on")
            owner.go_on()

    def _make_store(self, name: str, owner: Owner) -> None:
        down = name in self.stores and self.stores[name].down
        store = FaultyStore(self.mvcc, owner, self.store_faults, owner.rng, self.tell)
        store.down = down
        store.watch_lag_seconds = self.lags[name]
        self.stores[name] = store

    async def _run_apiserver(self, life: Life) -> None:
        store = self.plants.store(self.stores[life.owner.name])
        await processes.run_apiserver(life, store, lambda service: self._made_service(life.owner.name, service))

    def _made_service(self, name: str, service: ApiService) -> None:
        self.services[name] = service

    def _made_witness(self, witness: PodWitness) -> None:
        self.witness = witness

    async def _run_client(self, life: Life) -> None:
        names = (processes.RECKLESS, "default-scheduler", "default-scheduler")
        active = self.load is None or self.load.active
        self.load = Load(life.client(), life.clock, life.owner.rng, self.memory, names)
        self.load.active = active
        await self.load.run()

    def leader(self) -> str | None:
        """The process that holds the scheduler's lease, None when none that is alive does."""
        leases = self.checker.current(f"/orrery/registry/coordination.k8s.io/leases/{LEASE}".encode())
        for version in leases.values():
            holder = Lease.FromString(version.value).spec.holder_identity
            for name, process in self.processes.items():
                if holder.startswith(name) and process.owner is not None:
                    return name
        return None

    # Faults

    def set_faults(self, network: NetworkFaults, store: StoreFaults) -> None:
        self.network.faults = network
        self.store_faults_now(store)

    def store_faults_now(self, faults: StoreFaults) -> None:
        self.store_faults = faults
        for store in self.stores.values():
            store.faults = faults

    def set_store_down(self, name: str, *, down: bool) -> None:
        self.stores[name].down = down

    def stall_watch(self, name: str, seconds: float) -> None:
        self.stores[name].watch_stalled_until = self.loop.time() + seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def make_peace(self) -> None:
        """No fault any more; who was killed or stopped is back, and the rough company is gone."""
        self.tell_fault("all faults end")
        self.set_faults(NetworkFaults(), StoreFaults())
        self.network.heal()
        for name in self.stores:
            self.set_store_down(name, down=False)
            self.stall_watch(name, 0.0)
            self.lags[name] = self.stores[name].watch_lag_seconds = 0.0
        for name, process in self.processes.items():
            if name.startswith(COMPANY):
                process.wanted = False
                self.kill(name)
            elif name.startswith("kubelet"):
                self.kill(name)  # when it starts it registers what is missing of its fleet
            self.go_on(name)
            self.start(name)
        if self.load is not None:
            self.load.active = False

    # The run

    async def run(self, faults_seconds: float) -> Nemesis:
        nemesis = Nemesis(self)
        for name in self.processes:
            self.start(name)
        task = asyncio.create_task(nemesis.run())
        await self.sleep(faults_seconds)
        nemesis.active = False
        await task
        self.make_peace()
        await Endings(self).wait(SETTLE_SECONDS_MAX)
        self.memory.check(self.checker)
        return nemesis


def _where(error: BaseException) -> str:
    """The innermost error of a group, and the line that raised it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    at = " < ".join(
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in reversed(frames[-5:])
    )
    return f"{type(error).__name__}: {error} ({at})"


def run_seed(
    seed: int,
    *,
    plants: Plants | None = None,
    faults_seconds: float = FAULTS_SECONDS,
) -> Report:
    """One run. Never raises for what it finds: that is in the report."""
    loop = VirtualLoop()
    context = contextvars.Context()
    world = context.run(World, seed, loop, plants or Plants())
    found: Violation | None = None
    faults: dict[str, int] = {}
    try:
        faults = context.run(loop.run_until_complete, world.run(faults_seconds)).counts
    except Violation as violation:
        found = violation
    except Deadlock as error:
        found = Violation("7", str(error))
    except StepsExceeded as error:
        found = Violation("process", str(error))
    finally:
        report = _report(world, found, faults, faults_seconds)
        context.run(_unwind, world, loop)
    return report


def _unwind(world: World, loop: VirtualLoop) -> None:
    """Ends what still runs, without looking at it any more."""
    loop.on_step = lambda: None
    for name in world.processes:
        world.processes[name].wanted = False
        world.kill(name)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(_turns(loop))
    loop.close()


async def _turns(loop: VirtualLoop) -> None:
    me = asyncio.current_task()
    while any(task is not me for task in asyncio.all_tasks(loop)):  # noqa: ASYNC110 - others end, none of them tells
        await asyncio.sleep(0.1)


def _report(world: World, found: Violation | None, faults: dict[str, int], faults_seconds: float) -> Report:
    return Report(
        seed=world.seed,
        steps=world.loop.steps,
        checks=dict(sorted(world.checker.checks.items())),
        revisions=world.mvcc.revision,
        messages=world.network.messages,
        pods=sum(world.checker.creations.values()),
        placements=world.checker.placements,
        faults=faults,
        seconds=world.loop.time(),
        digest=world.story.digest,
        faults_seconds=faults_seconds,
        violation=str(found) if found is not None else "",
        invariant=found.invariant if found is not None else "",
        story=tuple(world.story.about(found.subjects)) if found is not None else (),
    )
