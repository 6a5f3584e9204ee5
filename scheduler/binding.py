"""Binds in the background, many a message; the outcome of each goes back to the machine.

A bind is submitted, with the fence under which it was decided, until the API server says what became of it. After an
unknown outcome the same binding goes again: it is answered ALREADY_BOUND if it had landed, and FENCED if the leader has
changed, in which case it can no longer land.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from protos.orrery.v1.api_pb2 import (
    ALREADY_BOUND,
    BOUND,
    CONFLICT,
    FENCED,
    GONE,
    UNKNOWN,
    Binding,
    BindOutcome,
    BindResult,
    Fence,
)
from scheduler.core.faults import PluginFault, check_answer
from scheduler.core.machine import Bind, BindDone, BindVerdict
from scheduler.core.profile import Profile
from scheduler.core.status import Status as PluginStatus
from scheduler.tracing import pod_attributes
from services.client.api import ApiClient
from services.client.backoff import Backoff
from services.model.clock import Clock
from services.model.errors import ApiError
from services.model.pod import PodView
from services.runtime.logging import Logger
from services.runtime.sampling import SamplingRules
from services.runtime.telemetry import context_from, is_sampled, record_span, traceparent_of, tracer

BATCH_BINDINGS_MAX = 128
BATCHES_IN_FLIGHT_MAX = 4
WAITING_BINDS_MAX = 256
# How long a PreBind or PostBind plugin is waited for: the deadline of a bind.
PLUGIN_SECONDS_MAX = 30.0


T = TypeVar("T")


@dataclass(slots=True)
class Pending:
    """A bind that is not answered yet. `span` is its first submission, where its trace is kept; it ends with its answer."""

    bind: Bind
    fence: Fence
    binding: Binding
    traceparent: str
    submitted_ns: int
    span: Span | None
    submissions: int = 0


class BindQueue:
    """`on_done(pending, result or None, done)` gets each answer; `on_fenced(fence)` is told that this fence holds no more;
    `on_fault(pod, fault)` is told of plugins that raise, answer nonsense or do not answer.
    """

    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        rng: random.Random,
        log: Logger,
        on_done: Callable[[Pending, BindResult, BindDone], None],
        on_fenced: Callable[[Fence], None],
        profiles: Mapping[str, Profile],
        rules: SamplingRules | None = None,
        on_fault: Callable[[PodView, PluginFault], None] = lambda _pod, _fault: None,
    ) -> None:
        self._api = api
        self._on_fault = on_fault
        self._clock = clock
        self._rng = rng
        self._log = log
        self._on_done = on_done
        self._on_fenced = on_fenced
        self.profiles = profiles
        self._rules = rules or SamplingRules()
        self._waiting: deque[Pending] = deque()
        self._arrived = asyncio.Event()
        self._slots = asyncio.Semaphore(BATCHES_IN_FLIGHT_MAX)

    @property
    def full(self) -> bool:
        """So many binds wait that deciding more would only decide on old news."""
        return len(self._waiting) >= WAITING_BINDS_MAX

    def submit(self, bind: Bind, fence: Fence, traceparent: str) -> None:
        span = None
        now_ns = self._clock.wall_ns()
        if is_sampled(traceparent):
            span = tracer().start_span(
                "scheduler.bind",
                context=context_from(traceparent),
                kind=SpanKind.CLIENT,
                attributes=_attributes(bind, fence),
                start_time=now_ns,
            )
        binding = Binding(
            namespace=bind.pod.namespace,
            name=bind.pod.name,
            uid=bind.pod.uid,
            node_name=bind.node_name,
            traceparent=traceparent_of(span) if span is not None else traceparent,
        )
        for share in bind.devices:
            binding.devices.add(index=share.index, milli=share.milli)
        self._waiting.append(Pending(bind, fence, binding, traceparent, now_ns, span))
        self._arrived.set()

    async def run(self) -> None:
        """Sends batches for ever; ends only by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._waiting:
                    await self._slots.acquire()
                    batch = self._take_batch()
                    tasks.create_task(self._send(batch))

    def _take_batch(self) -> list[Pending]:
        """Those that were decided under one fence, in order."""
        fence = self._waiting[0].fence
        batch: list[Pending] = []
        while self._waiting and len(batch) < BATCH_BINDINGS_MAX and self._waiting[0].fence == fence:
            batch.append(self._waiting.popleft())
        return batch

    async def _send(self, batch: list[Pending]) -> None:
        try:
            backoff = Backoff(self._rng)
            if any(profile.pre_bind for profile in self.profiles.values()):
                # At once: one that is slow with one pod does not hold up the others.
                passed = await asyncio.gather(*(self._pre_bind(item) for item in batch))
                batch = [item for item, good in zip(batch, passed, strict=True) if good]
            while batch:
                batch = await self._submit(batch)
                if batch:
                    await self._clock.sleep(backoff.next_seconds())
        finally:
            self._slots.release()

    def _profile(self, item: Pending) -> Profile | None:
        """The pod's; None when a configuration since has none of that name."""
        return self.profiles.get(item.bind.pod.spec.scheduler_name)

    async def _pre_bind(self, item: Pending) -> bool:
        """Whether every PreBind plugin lets it pass; if not, the place is given up."""
        profile = self._profile(item)
        for plugin in profile.pre_bind if profile is not None else ():
            status = await self._call(item, plugin.name, "PreBind", plugin.pre_bind, PluginStatus)
            if status is None or not status.ok:
                why = f"{plugin.name}: {', '.join(status.reasons) if status is not None else 'failed'}"
                self._give_up(item, why)
                return False
        return True

    def _give_up(self, item: Pending, why: str) -> None:
        """It was not submitted, so it cannot have landed: the place is free."""
        self._end_span(item, BindResult(message=why), "PREBIND")
        self._on_done(item, BindResult(message=why), BindDone(item.bind.pod.uid, BindVerdict.LOST, "PreBind"))

    async def _call(
        self,
        item: Pending,
        name: str,
        point: str,
        method: Callable[[PodView, str], Awaitable[T]],
        wanted: type[T],
    ) -> T | None:
        """What the plugin answers; None, and its fault is told, when it raises, answers nonsense or does not answer."""
        pod = item.bind.pod
        try:
            async with asyncio.timeout(PLUGIN_SECONDS_MAX):
                answer = await method(pod, item.bind.node_name)
            check_answer(name, point, answer, wanted)
        except PluginFault as fault:
            self._on_fault(pod, fault)
        except TimeoutError:
            self._on_fault(pod, PluginFault(name, f"did not answer at {point} within {PLUGIN_SECONDS_MAX:g} s"))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - plugins are anybody's code
            self._on_fault(pod, PluginFault(name, f"raised {type(error).__name__} at {point}: {error}"))
        else:
            return answer
        return None

    async def _submit(self, batch: list[Pending]) -> list[Pending]:
        """One round; returns what is to be submitted again."""
        for item in batch:
            item.submissions += 1
        try:
            results = await self._api.bind_batch([item.binding for item in batch], fence=batch[0].fence)
        except ApiError as error:
            # Whether it happened or not, submitting the same again finds out.
            self._log.warning("bind_unanswered", binds=len(batch), reason=error.message)
            return batch
        again = []
        for item, result in zip(batch, results, strict=True):
            if result.outcome == UNKNOWN:
                again.append(item)
            else:
                self._finish(item, result)
                if result.outcome in (BOUND, ALREADY_BOUND):
                    profile = self._profile(item)
                    for plugin in profile.post_bind if profile is not None else ():
                        await self._call(item, plugin.name, "PostBind", plugin.post_bind, type(None))
        return again

    def _finish(self, item: Pending, result: BindResult) -> None:
        outcome = BindOutcome.Name(result.outcome)
        self._end_span(item, result, outcome)
        if result.outcome not in (BOUND, ALREADY_BOUND):
            self._log.warning(
                "bind_refused", pod=item.bind.pod.key, node=item.bind.node_name, outcome=outcome, reason=result.message
            )
        self._on_done(item, result, BindDone(item.bind.pod.uid, _verdict(result), outcome))
        if result.outcome == FENCED:
            self._on_fenced(item.fence)

    def _end_span(self, item: Pending, result: BindResult, outcome: str) -> None:
        """Ends the bind's span; one that was not kept so far may be by rule, for what came of it."""
        now_ns = self._clock.wall_ns()
        error = "" if result.outcome in (BOUND, ALREADY_BOUND) else f"{outcome}: {result.message}"
        about: dict[str, str | int] = {"orrery.bind.outcome": outcome, "orrery.bind.submissions": item.submissions}
        if item.span is not None:
            item.span.set_attributes(about)
            if error:
                item.span.set_status(Status(StatusCode.ERROR, error))
            item.span.end(now_ns)
            return
        seconds = (now_ns - item.submitted_ns) / 1e9
        parent = self._rules.keep(
            item.traceparent, failed=bool(error), fenced=result.outcome == FENCED, seconds=seconds
        )
        if parent:
            record_span(
                "scheduler.bind",
                parent=parent,
                start_ns=item.submitted_ns,
                end_ns=now_ns,
                kind=SpanKind.CLIENT,
                attributes={**_attributes(item.bind, item.fence), **about},
                error=error,
            )


def _attributes(bind: Bind, fence: Fence) -> dict[str, str | int | Sequence[str]]:
    return pod_attributes(bind.pod) | {
        "k8s.node.name": bind.node_name,
        "orrery.fencing_token": fence.token,
        "orrery.lease": fence.lease,
    }


def _verdict(result: BindResult) -> BindVerdict:
    if result.outcome in (BOUND, ALREADY_BOUND):
        return BindVerdict.BOUND
    if result.outcome == GONE or (result.outcome == CONFLICT and result.node_name):
        return BindVerdict.SETTLED
    return BindVerdict.LOST
