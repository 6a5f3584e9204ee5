"""An asyncio event loop on virtual time, and the processes whose callbacks it runs.

There is no selector and no socket: when nothing is ready, time jumps to the next timer. Callbacks run one at a time, in
the order in which they became ready; timers of one moment in the order in which they were set. Tasks and futures are
hashed by a running number, so that sets of them (asyncio keeps some) are iterated in the same order in every run.

Every task belongs to the `Owner` (a simulated process) in whose context it was made, and so does every callback. That
makes faults exact. A stopped owner's callbacks wait, as those of a process under SIGSTOP do, and run when it goes on. A
killed owner's tasks are cancelled, and what they do while they unwind reaches nobody: the seams (clock, network, store)
cancel whoever still calls them. Unwinding is not counted as steps.
"""

import asyncio
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

STEPS_MAX = 20_000_000
UNWINDING_STEPS_MAX = 100_000
EPOCH_NS = 1_760_000_000_000_000_000


class Owner:
    """One life of a simulated process."""

    def __init__(self, loop: "VirtualLoop", name: str, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.alive = True
        self.stopped = False
        self.loop = loop
        self.parked: list[asyncio.Handle] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def context(self) -> Context:
        """A context whose tasks are this owner's."""
        context = copy_context()
        context.run(OWNER.set, self)
        return context

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return self.loop.create_task(work, context=self.context())

    def stop(self) -> None:
        """SIGSTOP: nothing of it runs, time goes on."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT. As in any asyncio loop that was held up, what has arrived comes before the timers that are due."""
        self.stopped = False
        self.loop.take_back(sorted(self.parked, key=lambda handle: isinstance(handle, asyncio.TimerHandle)))
        self.parked = []

    def kill(self) -> None:
        """SIGKILL: from now on nothing that it does has an effect."""
        self.alive = False
        self.go_on()
        for task in list(self.tasks):
            task.cancel()

    def require_alive(self) -> None:
        """Called by every seam: a process that is gone waits for nothing any more."""
        if not self.alive:
            raise asyncio.CancelledError


OWNER: ContextVar[Owner | None] = ContextVar("OWNER", default=None)


class Deadlock(Exception):
    """Nothing is ready and no timer is set: whoever waits would wait for ever."""


class StepsExceeded(Exception):
    """The bound on steps; a loop that does not let time pass ends here."""


class _Task(asyncio.Task):  # type: ignore[type-arg]
    def __init__(self, number: int, *args: Any, **kwargs: Any) -> None:
        self.number = number  # before the base class, which hashes its tasks at once
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number

    __eq__ = object.__eq__


class _Future(asyncio.Future):  # type: ignore[type-arg]
    def __init__(self, number: int, *args: Any, **kwargs: Any) -> None:
        self.number = number
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number

    __eq__ = object.__eq__


class VirtualLoop(asyncio.BaseEventLoop):
    """`on_step` is called after every callback of a living process or of the world itself."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.on_step: Callable[[], None] = lambda: None
        # What asyncio reports to a loop's exception handler: a callback or a task that failed and that nobody awaits.
        self.failures: list[str] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._now = 0.0
        self._number = 0
        self._unwinding = 0

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self._next_number(), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None, **_: Any
    ) -> "asyncio.Task[Any]":
        self._check_closed()
        task = _Task(self._next_number(), coro, loop=self, name=name, context=context)
        owner = OWNER.get() if context is None else context.get(OWNER)
        if owner is not None:
            owner.tasks[task] = None
            task.add_done_callback(lambda done: owner.tasks.pop(done, None))
            if not owner.alive:
                task.cancel()
        return task

    def create_future(self) -> "asyncio.Future[Any]":
        return _Future(self._next_number(), loop=self)

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        task = context.get("task") or context.get("future")
        message = str(context.get("message"))
        if "never retrieved" in message or "destroyed but it is pending" in message:
            return  # told by the garbage collector, at a moment of its own; process roots are awaited by the world
        self.failures.append(f"{message}: {context.get('exception')!r} in {task!r}")

    # What BaseEventLoop asks of an implementation.

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _write_to_self(self) -> None:
        """There is no other thread to wake us for."""

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _run_once(self) -> None:
        if not self._ready:
            self._advance()
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        owner = handle._context.get(OWNER)
        if owner is not None and not owner.alive:
            self._unwinding += 1
            if self._unwinding > UNWINDING_STEPS_MAX:
                raise StepsExceeded(f"{owner.name} was killed and does not end")
            handle._run()
            return
        if owner is not None and owner.stopped:
            owner.parked.append(handle)
            return
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise StepsExceeded(f"{STEPS_MAX} steps at {self._now:.3f} s")
        handle._run()
        self.on_step()

    def _advance(self) -> None:
        """Lets time pass to the next timer, and makes all timers of that moment ready."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            if self._stopping:
                self._ready.append(events.Handle(lambda: None, (), self))
                return
            raise Deadlock(f"at {self._now:.3f} s nothing is ready and no timer is set")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:
                self._ready.append(handle)


class SimulatedClock:
    """`services.model.clock.Clock` for one owner; its wall clock is wrong by `skew_seconds`."""

    def __init__(self, owner: Owner, skew_seconds: float = 0.0) -> None:
        self._owner = owner
        self._skew_ns = round(skew_seconds * 1e9)
        # Monotonic clocks of two machines have nothing to do with each other.
        self._start = owner.rng.uniform(0.0, 1e6)

    def monotonic(self) -> float:
        return self._start + self._owner.loop.time()

    def wall_ns(self) -> int:
        return EPOCH_NS + self._skew_ns + round(self._owner.loop.time() * 1e9)

    async def sleep(self, seconds: float) -> None:
        self._owner.require_alive()
        await asyncio.sleep(seconds)
        self._owner.require_alive()
