"""The faults of a run, at random moments from the seed: crashes, pauses, cuts, an etcd that fails in all its ways."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.invariants import SCHEDULER_EPOCH
from tests.simulation.network import NetworkFaults
from tests.simulation.store import StoreFaults

if TYPE_CHECKING:
    from tests.simulation.world import World

PAUSE_SECONDS = (0.5, 8.0)  # the lease lasts 3
RESTART_SECONDS = (0.05, 3.0)
DEPOSED_SECONDS_MAX = 6.0
BETWEEN_SECONDS = (0.5, 4.0)

CALM_NETWORK = NetworkFaults(slow=0.01, lost_request=0.001, lost_reply=0.002, doubled_request=0.01, broken_stream=0.002)
CALM_STORE = StoreFaults(
    slow=0.01,
    unavailable=0.002,
    unknown_applied=0.005,
    unknown_not_applied=0.003,
    unknown_later=0.003,
    watch_lost=0.005,
)
ROUGH_NETWORK = NetworkFaults(slow=0.1, lost_request=0.03, lost_reply=0.05, doubled_request=0.05, broken_stream=0.03)
ROUGH_STORE = StoreFaults(
    slow=0.1,
    unavailable=0.05,
    unknown_applied=0.08,
    unknown_not_applied=0.05,
    unknown_later=0.08,
    watch_lost=0.05,
)


class Nemesis:
    """`run` goes on until `active` is false; `counts` says what was done."""

    def __init__(self, world: "World") -> None:
        self.active = True
        self.counts: dict[str, int] = {}
        self._world = world
        self._rng = world.random("nemesis")
        self._deposing_until = 0.0
        # Every fifth run is about leaders above all.
        depose = 24 if world.seed % 5 == 0 else 4
        self._acts: tuple[tuple[int, Callable[[], None]], ...] = (
            (4, self._crash),
            (4, self._pause),
            (2, self._cut_pair),
            (1, self._cut_off),
            (2, self._store_down),
            (2, self._watch_stalled),
            (2, self._rough_network),
            (3, self._rough_store),
            (depose, self._depose),
        )

    async def run(self) -> None:
        world = self._world
        world.set_faults(CALM_NETWORK, CALM_STORE)
        while self.active:
            await world.sleep(self._rng.uniform(*BETWEEN_SECONDS))
            if not self.active:
                return
            weights = [weight for weight, _ in self._acts]
            self._rng.choices([act for _, act in self._acts], weights)[0]()

    def _tell(self, kind: str, text: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._world.tell_fault(text)

    def _any(self) -> str:
        return self._rng.choice(list(self._world.processes))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._world.network.after(seconds, act)

    def _crash(self) -> None:
        name = self._any()
        after = self._rng.uniform(*RESTART_SECONDS)
        self._tell("crash", f"{name} is killed; it starts again after {after:.2f} s")
        self._world.kill(name)
        self._later(after, lambda: self._world.start(name))

    def _pause(self) -> None:
        self._pause_one(self._any(), self._rng.uniform(*PAUSE_SECONDS))

    def _pause_one(self, name: str, seconds: float) -> None:
        self._tell("pause", f"{name} is stopped for {seconds:.2f} s")
        self._world.stop(name)
        self._later(seconds, lambda: self._world.go_on(name))

    def _cut_pair(self) -> None:
        client, server = self._any(), self._rng.choice(self._world.servers)
        seconds = self._rng.uniform(0.5, 10.0)
        way = self._rng.choice(("both ways", "to", "from"))
        self._tell("cut", f"{client} and {server} are cut off ({way}) for {seconds:.2f} s")
        if way != "from":
            self._world.network.cut(client, server)
        if way != "to":
            self._world.network.cut(server, client)
        self._later(seconds, self._world.network.heal)

    def _cut_off(self) -> None:
        name = self._any()
        seconds = self._rng.uniform(0.5, 6.0)
        self._tell("cut", f"{name} is cut off from all for {seconds:.2f} s")
        for other in self._world.processes:
            self._world.network.cut(name, other)
            self._world.network.cut(other, name)
        self._later(seconds, self._world.network.heal)

    def _store_down(self) -> None:
        servers = self._rng.choice(([self._rng.choice(self._world.servers)], self._world.servers))
        seconds = self._rng.uniform(0.2, 4.0)
        self._tell("store down", f"the store does not answer {', '.join(servers)} for {seconds:.2f} s")
        for name in servers:
            self._world.set_store_down(name, down=True)
            self._later(seconds, lambda name=name: self._world.set_store_down(name, down=False))  # type: ignore[misc]

    def _watch_stalled(self) -> None:
        name = self._rng.choice(self._world.servers)
        seconds = self._rng.uniform(0.5, 6.0)
        self._tell("stalled watch", f"{name} hears nothing of the store for {seconds:.2f} s")
        self._world.stall_watch(name, seconds)

    def _rough_network(self) -> None:
        seconds = self._rng.uniform(1.0, 6.0)
        self._tell("rough network", f"the network is rough for {seconds:.2f} s")
        self._world.network.faults = ROUGH_NETWORK
        self._later(seconds, lambda: setattr(self._world.network, "faults", CALM_NETWORK))

    def _rough_store(self) -> None:
        seconds = self._rng.uniform(1.0, 6.0)
        self._tell("rough store", f"the store is rough for {seconds:.2f} s")
        self._world.store_faults_now(ROUGH_STORE)
        self._later(seconds, lambda: self._world.store_faults_now(CALM_STORE))

    def _depose(self) -> None:
        """What a fence is for: the leader sleeps through its lease, and its API server has not heard of the successor."""
        leader = self._world.leader()
        now = self._world.loop.time()
        if leader is None or now < self._deposing_until:
            return
        server = self._world.network.last_target.get(leader, self._world.servers[0])
        # It hears of new pods, which the leader finds when it wakes, but not of the next epoch.
        deaf_after = self._rng.uniform(1.8, 2.6)
        self._later(deaf_after, lambda: self._world.stall_watch(server, DEPOSED_SECONDS_MAX - deaf_after))
        self._deposing_until = now + DEPOSED_SECONDS_MAX + 1.0
        self._tell("pause", f"{leader} is stopped until another leads, {server} does not hear of it")
        self._world.stop(leader)
        self._wake_when_deposed(leader, len(self._world.checker.epochs[SCHEDULER_EPOCH]), now + DEPOSED_SECONDS_MAX)

    def _wake_when_deposed(self, leader: str, epochs: int, until: float) -> None:
        """Looks every few milliseconds: the successor must not have had the time to do all that there is to do."""
        if len(self._world.checker.epochs[SCHEDULER_EPOCH]) > epochs or self._world.loop.time() >= until:
            self._world.go_on(leader)
        else:
            self._later(self._rng.uniform(0.001, 0.02), lambda: self._wake_when_deposed(leader, epochs, until))
