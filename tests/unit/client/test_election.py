"""Leader election on virtual time: who leads when, and what a leader may no longer do."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from apiserver.server import ApiService
from apiserver.settings import ApiServerSettings
from apiserver.store.memory import MemoryStore
from protos.orrery.v1.api_pb2 import Fence
from services.client.api import ApiClient
from services.client.election import ElectionSettings, LeaderElector
from services.model.errors import Unavailable
from tests.direct import DirectChannel
from tests.simulation.loop import VirtualLoop

FAST = ElectionSettings(3.0, 2.0, 0.5)


class LoopClock:
    """The virtual loop's time; the wall clock can be set wrong."""

    def __init__(self) -> None:
        self.wall_offset_ns = 0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ns(self) -> int:
        return int(self.monotonic() * 1e9) + self.wall_offset_ns + 1_700_000_000_000_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Cuttable(DirectChannel):
    """A channel that can be cut."""

    cut = False

    async def unary(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        if self.cut:
            raise Unavailable("cut")
        return await super().unary(*args, **kwargs)  # type: ignore[arg-type]


class Candidate:
    """An elector, and what it told when."""

    def __init__(self, service: ApiService, name: str, log: list[str]) -> None:
        self.channel = Cuttable(service)
        self.clock = LoopClock()
        self._log = log
        self._name = name
        self.elector = LeaderElector(
            ApiClient(self.channel),
            self.clock,
            namespace="kube-system",
            name="x",
            identity=name,
            settings=FAST,
            rng=random.Random(len(name)),
            on_started_leading=self._started,
            on_stopped_leading=lambda: self._say("stops"),
        )
        self.tokens: list[int] = []
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.elector.run())

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def _started(self, fence: Fence) -> None:
        self.tokens.append(fence.token)
        self._say("leads")

    def _say(self, what: str) -> None:
        self._log.append(f"{self.clock.monotonic():.1f} {self._name} {what}")


def run(story: Callable[[ApiService, list[str]], Awaitable[None]]) -> list[str]:
    """Plays a story on virtual time; returns what the candidates said."""
    log: list[str] = []

    async def play() -> None:
        service = ApiService(MemoryStore(), LoopClock(), ApiServerSettings(name="a"), random.Random(1))
        serving = asyncio.create_task(service.run())
        await service.ready.wait()
        await story(service, log)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(play())
    finally:
        loop.close()
    return log


def moment(line: str) -> float:
    return float(line.split()[0])


def test_one_leads_and_the_other_follows_when_it_releases() -> None:
    async def story(service: ApiService, log: list[str]) -> None:
        first, second = Candidate(service, "first", log), Candidate(service, "second", log)
        first.start()
        await asyncio.sleep(1)
        second.start()
        await asyncio.sleep(9)
        await first.stop()
        await asyncio.sleep(1)
        await second.stop()
        assert second.tokens[0] > first.tokens[0]

    log = run(story)
    assert [line.split(" ", 1)[1] for line in log] == ["first leads", "first stops", "second leads", "second stops"]
    assert moment(log[2]) - moment(log[1]) < 0.5, "a released lease is taken at once"


def test_take_over_follows_expiry_at_once() -> None:
    """The leader falls silent without a word: its lease runs out three seconds after its last renewal."""

    async def story(service: ApiService, log: list[str]) -> None:
        first, second = Candidate(service, "first", log), Candidate(service, "second", log)
        first.start()
        await asyncio.sleep(1)
        second.start()
        await asyncio.sleep(9)
        first.channel.cut = True
        log.append(f"{first.clock.monotonic():.1f} cut")
        await asyncio.sleep(10)
        await second.stop()
        await first.stop()

    log = run(story)
    said = {line.split(" ", 1)[1]: moment(line) for line in log}
    assert said["first stops"] - said["cut"] <= FAST.renew_deadline_seconds + 0.1
    assert said["first stops"] < said["second leads"], "the old leader has stopped before the new one begins"
    assert FAST.renew_deadline_seconds < said["second leads"] - said["cut"] <= FAST.lease_duration_seconds + 0.5


def test_the_wall_clock_decides_nothing() -> None:
    async def story(service: ApiService, log: list[str]) -> None:
        first, second = Candidate(service, "first", log), Candidate(service, "second", log)
        second.clock.wall_offset_ns = 3_600_000_000_000
        first.start()
        await asyncio.sleep(1)
        second.start()
        await asyncio.sleep(3)
        first.clock.wall_offset_ns = -7_200_000_000_000
        await asyncio.sleep(20)
        log.append("20.0 end")
        await second.stop()
        await first.stop()

    log = run(story)
    assert [line.split(" ", 1)[1] for line in log[:2]] == ["first leads", "end"]


def test_a_late_refusal_of_an_earlier_term_deposes_nobody() -> None:
    async def story(service: ApiService, log: list[str]) -> None:
        first = Candidate(service, "first", log)
        first.start()
        await asyncio.sleep(1)
        fence = first.elector.fence
        assert fence is not None
        first.elector.lost(Fence(lease=fence.lease, token=fence.token - 1))
        assert first.elector.fence == fence
        first.elector.lost(fence)
        assert first.elector.fence is None
        await asyncio.sleep(1)
        assert first.elector.fence is not None
        assert first.elector.fence.token > fence.token, "a new term is a new epoch"
        await first.stop()

    assert [line.split(" ", 1)[1] for line in run(story)] == [
        "first leads",
        "first stops",
        "first leads",
        "first stops",
    ]


def test_many_candidates_never_lead_together() -> None:
    async def story(service: ApiService, log: list[str]) -> None:
        candidates = [Candidate(service, f"c{number}", log) for number in range(4)]
        rng = random.Random(7)
        for candidate in candidates:
            candidate.start()
        for _ in range(60):
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            candidate = rng.choice(candidates)
            candidate.channel.cut = not candidate.channel.cut
        for candidate in candidates:
            candidate.channel.cut = False
            await candidate.stop()
        tokens = [token for candidate in candidates for token in candidate.tokens]
        assert len(tokens) == len(set(tokens)) > 3

    leading: set[str] = set()
    for line in run(story):
        _, name, what = line.split()
        if what == "leads":
            leading.add(name)
        else:
            leading.discard(name)
        assert len(leading) <= 1, line
