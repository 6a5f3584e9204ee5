"""The client of a run: creates and deletes pods, and remembers what it was told.

A name is used for one pod only. So afterwards the store's history tells whether each answer was true: an acknowledged
creation happened once, a refused one never, one with an unknown outcome at most as often as it was tried.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from protos.orrery.v1.pod_pb2 import Pod
from services.client.api import ApiClient
from services.model.clock import Clock
from services.model.errors import AlreadyExists, ApiError, NotFound, OutcomeUnknown
from services.model.names import ANNOTATION_RUN_SECONDS, RESOURCE_GPU, RESOURCE_GPU_MILLI
from services.wire.metadata import read_envelope
from tests.simulation.invariants import GANG_SIZE, LABEL_GANG, Checker
from tests.simulation.story import Violation

GANG_SCHEDULER = "gang"
TRIES_MAX = 4
HANDS = 2
PODS_ALIVE_MAX = 80
DELETIONS_AT_ONCE = 25


@dataclass(slots=True)
class Told:
    """What the client was told of one name, over all lives of the client."""

    uids: list[str] = field(default_factory=list)
    unknown: int = 0
    refused: int = 0
    deleted: bool = False


class Memory:
    """Outlives the client's process: the harness's own record. A creation under way when the client dies is unknown."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self.told: dict[str, Told] = {}
        self.tell = tell
        self._next = 0

    def new_number(self) -> int:
        self._next += 1
        return self._next

    def new_name(self) -> str:
        name = f"pod-{self.new_number():04d}"
        self.told[name] = Told()
        return name

    def check(self, checker: Checker) -> None:
        """4: what was acknowledged is there, what was refused is not. Raises Violation."""
        for name, told in self.told.items():
            checker.checks["4"] += 1
            key = f"default/{name}"
            happened = checker.creations[key]
            if not len(told.uids) <= happened <= len(told.uids) + told.unknown:
                raise Violation(
                    "4",
                    f"pod {key} came into existence {happened} times; {len(told.uids)} creations were acknowledged, "
                    f"{told.refused} refused, {told.unknown} unknown",
                    (key, name),
                )


def make_pod(rng: random.Random, name: str, scheduler_name: str) -> Pod:
    """One that fits nearly anywhere, one that needs CPU, whole GPUs, or a share of one."""
    pod = Pod()
    pod.metadata.name, pod.metadata.namespace = name, "default"
    pod.spec.scheduler_name = scheduler_name
    pod.spec.termination_grace_period_seconds = rng.choice((0, 1, 3, 30))
    container = pod.spec.containers.add(name="main", image="example/app:1")
    resources = container.resources
    kind = rng.choices(("small", "cpu", "gpu", "share"), (4, 2, 3, 2))[0]
    resources.requests["cpu"] = "100m" if kind == "small" else rng.choice(("100m", "1", "4", "7500m"))
    resources.requests["memory"] = "64Mi" if kind == "small" else rng.choice(("64Mi", "1Gi", "20Gi"))
    if kind == "gpu":
        resources.limits[RESOURCE_GPU] = rng.choice(("1", "1", "2", "4", "8"))
    elif kind == "share":
        milli = rng.choice(("250", "500", "700"))
        resources.requests[RESOURCE_GPU_MILLI] = milli
        resources.limits[RESOURCE_GPU_MILLI] = milli
    # Some may take the place of others.
    pod.spec.priority = rng.choice((0, 0, 0, 10, 100))
    if rng.random() < 0.85:
        pod.metadata.annotations[ANNOTATION_RUN_SECONDS] = f"{rng.uniform(0.2, 6.0):.2f}"
    return pod


class Load:
    """One life of the client. `names`: schedulerNames that its pods get."""

    def __init__(
        self, api: ApiClient, clock: Clock, rng: random.Random, memory: Memory, names: tuple[str, ...]
    ) -> None:
        self._api = api
        self._clock = clock
        self._rng = rng
        self._memory = memory
        self._names = names
        self.active = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(HANDS):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            await self._clock.sleep(self._rng.uniform(0.05, 1.2))
            if not self.active:
                continue
            alive = [name for name, told in self._memory.told.items() if told.uids and not told.deleted]
            if len(alive) >= PODS_ALIVE_MAX:
                for name in self._rng.sample(alive, DELETIONS_AT_ONCE):
                    await self._delete(name)
            elif not alive or self._rng.random() < 0.75:
                if self._rng.random() < 0.2:
                    await self._create_gang()
                else:
                    for _ in range(self._rng.randint(1, 6)):
                        await self._create()
            else:
                await self._delete(self._rng.choice(alive))

    async def _create_gang(self) -> None:
        gang = f"gang-{self._memory.new_number()}"
        for _ in range(GANG_SIZE):
            await self._create(gang)

    async def _create(self, gang: str = "") -> None:
        memory = self._memory
        name = memory.new_name()
        told = memory.told[name]
        pod = make_pod(self._rng, name, GANG_SCHEDULER if gang else self._rng.choice(self._names))
        if gang:
            pod.metadata.labels[LABEL_GANG] = gang
        for _ in range(TRIES_MAX):
            told.unknown += 1  # until an answer is here; stays so if this client dies first
            try:
                answer = await self._api.create("pods", pod)
            except AlreadyExists:
                told.unknown -= 1
                told.refused += 1
                return
            except OutcomeUnknown:
                memory.tell("client", f"creation of {name}: outcome unknown")
                continue
            except ApiError as error:
                told.unknown -= 1
                told.refused += 1
                memory.tell("client", f"creation of {name}: {error.reason}")
                await self._clock.sleep(self._rng.uniform(0.05, 0.5))
                continue
            told.unknown -= 1
            told.uids.append(read_envelope(answer.object.value).metadata.uid)
            memory.tell("client", f"created {name} uid {told.uids[-1]}")
            return

    async def _delete(self, name: str) -> None:
        if not self.active:
            return
        told = self._memory.told[name]
        grace = self._rng.choice((None, None, 0, 2))
        try:
            await self._api.delete("pods", name, "default", uid=told.uids[-1], grace_period_seconds=grace)
            told.deleted = True
            self._memory.tell("client", f"deleted {name}")
        except NotFound:
            told.deleted = True
        except ApiError as error:
            self._memory.tell("client", f"deletion of {name}: {error.reason}")
