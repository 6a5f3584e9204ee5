"""Leader election on a Lease, with a fencing token.

The Lease holds Kubernetes' fields. A candidate never compares the holder's timestamps with its own clock: it notes, on
its own monotonic clock, when it last saw the record change, and takes over once the holder's recorded duration has
passed since (client-go's leaderelection, Kubernetes 1.36). Candidates watch the Lease and time that moment, so take-over
follows expiry at once. Each acquisition starts a new epoch; its token fences every write that the leader makes, so a
deposed leader that wakes from a pause can do nothing, whatever its clock says.

A leader that cannot renew stops leading before the renew deadline ends, counted from the moment that its last successful
renewal was *sent*.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from protos.orrery.v1.api_pb2 import Fence
from protos.orrery.v1.lease_pb2 import Lease
from services.client.api import ApiClient
from services.client.backoff import Backoff
from services.client.informer import Informer
from services.model.clock import Clock
from services.model.errors import ApiError, NotFound
from services.runtime.logging import Logger, silent

# client-go's JitterFactor for candidates.
_JITTER = 1.2


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """Kubernetes' defaults; a lab uses 3 / 2 / 0.5. lease duration > renew deadline > retry period * 1.2."""

    lease_duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease_duration_seconds > self.renew_deadline_seconds:
            raise ValueError("the lease duration must be longer than the renew deadline")
        if not self.renew_deadline_seconds > self.retry_period_seconds * _JITTER > 0:
            raise ValueError(f"the renew deadline must be longer than the retry period times {_JITTER}")


@dataclass(slots=True)
class _Observed:
    """The record as last seen, and when (monotonic) it was first seen so."""

    lease: Lease
    resource_version: str
    at_seconds: float


class LeaderElector:
    """Runs for one lease. `fence` is the proof of leadership, None while another leads.

    `on_started_leading(fence)` and `on_stopped_leading()` are called on the event loop; the latter before the renew
    deadline has passed, so that no decision follows it. `identity` must be unique for each start of a process.
    """

    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        *,
        namespace: str,
        name: str,
        identity: str,
        settings: ElectionSettings,
        rng: random.Random,
        on_started_leading: Callable[[Fence], None],
        on_stopped_leading: Callable[[], None],
        log: Logger | None = None,
    ) -> None:
        self.fence: Fence | None = None
        self.holder = ""
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._settings = settings
        self._rng = rng
        self._on_started = on_started_leading
        self._on_stopped = on_stopped_leading
        self._log = log or silent()
        self._observed: _Observed | None = None
        self._renewed_at = 0.0
        self._changed = asyncio.Event()
        self._informer: Informer[tuple[Lease, str]] = Informer(
            api,
            clock,
            "leases",
            lambda value, version: (Lease.FromString(value), version),
            self._on_lease,
            rng=rng,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            log=log,
        )

    @property
    def key(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _on_lease(self, _key: str, _old: object, new: tuple[Lease, str] | None) -> None:
        if new is None:
            self._observed = None
            self.holder = ""
        elif self._observed is None or int(new[1]) > int(self._observed.resource_version):
            # Not an echo of what an answer had told already: versions of one resource are ordered (Kubernetes 1.35).
            self._observe(*new)
        self._changed.set()

    def _observe(self, lease: Lease, version: str) -> None:
        """Notes a record; the time of observation moves only when the record did."""
        if self._observed is None or self._observed.lease.spec != lease.spec:
            self._observed = _Observed(lease, version, self._clock.monotonic())
        else:
            self._observed.resource_version = version
        self.holder = lease.spec.holder_identity

    async def run(self) -> None:
        """Campaigns, leads, campaigns again; on cancellation releases the lease if it is held."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._informer.run())
            await self._informer.wait_synced()
            try:
                while True:
                    await self._campaign()
                    await self._lead()
            finally:
                watching.cancel()

    def lost(self, fence: Fence) -> None:
        """A write under `fence` came back FENCED, so another epoch has begun: stop at once, if that fence is still ours."""
        if self.fence == fence:
            self._stop_leading()
            self._changed.set()

    async def _campaign(self) -> None:
        """Returns once the lease is held."""
        backoff = Backoff(self._rng, self._settings.retry_period_seconds / 8, self._settings.retry_period_seconds)
        while True:
            self._changed.clear()
            wait_seconds = self._seconds_to_expiry()
            if wait_seconds > 0:
                await self._wait_changed(wait_seconds)
                continue
            sent_at = self._clock.monotonic()
            try:
                token = await self._write(self._acquisition())
            except ApiError as error:
                self._log.info("election_lost_round", lease=self.key, reason=str(error))
                await self._wait_changed(backoff.next_seconds())
                continue
            self._renewed_at = sent_at
            self.fence = Fence(lease=self.key, token=token)
            self._log.info("started_leading", lease=self.key, identity=self._identity, token=token)
            self._on_started(self.fence)
            return

    def _seconds_to_expiry(self) -> float:
        if self._observed is None or not self._observed.lease.spec.holder_identity:
            return 0.0
        if self._observed.lease.spec.holder_identity == self._identity:
            return 0.0
        duration = self._observed.lease.spec.lease_duration_seconds or self._settings.lease_duration_seconds
        return self._observed.at_seconds + duration - self._clock.monotonic()

    async def _lead(self) -> None:
        """Renews until that fails for the renew deadline or another holder shows; on cancellation releases."""
        settings = self._settings
        try:
            while self.fence is not None:
                deadline = self._renewed_at + settings.renew_deadline_seconds
                self._changed.clear()
                await self._wait_changed(min(settings.retry_period_seconds, deadline - self._clock.monotonic()))
                if self._observed is not None and self.holder != self._identity:
                    self._log.warning("leadership_taken", lease=self.key, holder=self.holder)
                    break
                if self._clock.monotonic() >= deadline:
                    self._log.warning("renew_deadline_passed", lease=self.key)
                    break
                await self._renew(deadline)
        except asyncio.CancelledError:
            await self._release()
            raise
        finally:
            self._stop_leading()

    async def _renew(self, deadline: float) -> None:
        sent_at = self._clock.monotonic()
        if sent_at - self._renewed_at < self._settings.retry_period_seconds:
            return
        try:
            async with asyncio.timeout(max(0.0, deadline - sent_at)):
                await self._write(self._renewal())
            self._renewed_at = sent_at
        except (ApiError, TimeoutError) as error:
            # Also an unknown outcome: the renewal may stand or not; either way the old deadline holds until one is answered.
            self._log.warning("renew_failed", lease=self.key, reason=str(error) or "timed out")
            await self._refresh(deadline)

    async def _refresh(self, deadline: float) -> None:
        """Reads the record again after a failed renewal, so that the next one compares with what is there."""
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                stored = await self._api.get("leases", self._name, self._namespace)
            self._observe(Lease.FromString(stored.value), stored.resource_version)
        except (ApiError, TimeoutError) as error:
            self._log.warning("lease_unreadable", lease=self.key, reason=str(error) or "timed out")
            await self._clock.sleep(
                min(self._settings.retry_period_seconds / 4, max(0.0, deadline - self._clock.monotonic()))
            )

    async def _write(self, lease: Lease) -> int:
        """Creates or replaces the record as observed; returns the epoch's token. Raises ApiError."""
        if self._observed is None:
            answer = await self._api.create("leases", lease)
        else:
            try:
                answer = await self._api.update("leases", lease, resource_version=self._observed.resource_version)
            except NotFound:
                self._observed = None
                raise
        self._observe(Lease.FromString(answer.object.value), answer.object.resource_version)
        return answer.fencing_token

    def _acquisition(self) -> Lease:
        now_ns = self._clock.wall_ns()
        lease = Lease()
        transitions = 0
        if self._observed is not None:
            lease.CopyFrom(self._observed.lease)
            transitions = lease.spec.lease_transitions + (self._observed.lease.spec.holder_identity != self._identity)
        lease.metadata.name = self._name
        lease.metadata.namespace = self._namespace
        lease.spec.holder_identity = self._identity
        lease.spec.lease_duration_seconds = max(1, round(self._settings.lease_duration_seconds))
        lease.spec.lease_transitions = transitions
        lease.spec.acquire_time.FromNanoseconds(now_ns // 1000 * 1000)
        lease.spec.renew_time.FromNanoseconds(now_ns // 1000 * 1000)
        return lease

    def _renewal(self) -> Lease:
        assert self._observed is not None
        lease = Lease()
        lease.CopyFrom(self._observed.lease)
        lease.spec.renew_time.FromNanoseconds(self._clock.wall_ns() // 1000 * 1000)
        return lease

    async def _release(self) -> None:
        """Gives the lease up, so that the successor need not wait; within a second, or not at all."""
        if self.fence is None or self._observed is None or self.holder != self._identity:
            return
        self._stop_leading()
        lease = self._renewal()
        lease.spec.holder_identity = ""
        lease.spec.lease_duration_seconds = 1
        try:
            async with asyncio.timeout(1.0):
                await self._write(lease)
        except (ApiError, TimeoutError) as error:
            self._log.warning("release_failed", lease=self.key, reason=str(error) or "timed out")

    def _stop_leading(self) -> None:
        if self.fence is not None:
            self.fence = None
            self._log.info("stopped_leading", lease=self.key, identity=self._identity)
            self._on_stopped()

    async def _wait_changed(self, seconds: float) -> None:
        """Returns when the record changes, or after `seconds`."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            return
