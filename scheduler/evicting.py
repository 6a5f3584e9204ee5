"""Preemption carried out: the nomination told to the store, and the victims deleted, in the background.

Each victim first gets the condition DisruptionTarget (reason PreemptionByScheduler) and is then deleted with its own grace
period. All of it carries the fence under which it was decided: a deposed leader evicts nobody. What has no certain answer is
done again, since a deletion of the same uid twice is one deletion.
"""

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable

from protos.orrery.v1.api_pb2 import DeleteRequest, Fence, Operation, PatchRequest
from scheduler.core.events import Evict, EvictionFailed, Nominate
from services.client.api import ApiClient
from services.client.backoff import Backoff
from services.model.clock import Clock
from services.model.errors import ApiError, Fenced
from services.model.names import CONDITION_DISRUPTION_TARGET, REASON_PREEMPTION
from services.model.pod import PodView
from services.runtime.logging import Logger

WAITING_MAX = 10_000
# After so many tries the pod is tried again instead: the cluster looks otherwise by then.
TRIES_MAX = 20
# Answers after which there is nothing left to do: it is gone, or another pod has its name.
_SETTLED = ("NotFound", "Conflict")


class EvictionQueue:
    """`on_failed` is told of pods whose victims could not be evicted."""

    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        rng: random.Random,
        log: Logger,
        on_failed: Callable[[EvictionFailed], None],
    ) -> None:
        self._api = api
        self._clock = clock
        self._rng = rng
        self._log = log
        self._on_failed = on_failed
        self._waiting: deque[tuple[Evict | Nominate, Fence]] = deque()
        self._arrived = asyncio.Event()
        self.evicted = 0

    def submit(self, action: Evict | Nominate, fence: Fence) -> None:
        """Queues it; a full queue gives the preemption up, and the pod is tried again."""
        if len(self._waiting) >= WAITING_MAX:
            self._give_up(action, "too many wait")
            return
        self._waiting.append((action, fence))
        self._arrived.set()

    async def run(self) -> None:
        """Works for ever; ends only by cancellation."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                action, fence = self._waiting.popleft()
                if isinstance(action, Nominate):
                    await self._settle(action, [nomination(action.pod, action.node_name)], fence)
                    continue
                marked = await self._settle(
                    action, [disruption(victim, action.pod) for victim in action.victims], fence
                )
                if marked and await self._settle(action, [deletion(victim) for victim in action.victims], fence):
                    self.evicted += len(action.victims)
                    self._log.info(
                        "preempted",
                        pod=action.pod.key,
                        node=action.node_name,
                        victims=[victim.key for victim in action.victims],
                    )

    async def _settle(self, action: Evict | Nominate, operations: list[Operation], fence: Fence) -> bool:
        """Submits until each has an answer that stands; False when that never came, or another leader decides now."""
        backoff = Backoff(self._rng)
        reason = ""
        for _ in range(TRIES_MAX):
            try:
                answers = await self._api.batch(operations, fence=fence)
            except Fenced:
                return False
            except ApiError as error:
                reason = error.message
            else:
                refused = [answer.status if answer.HasField("status") else None for answer in answers]
                if any(status is not None and status.reason == Fenced.reason for status in refused):
                    return False
                reason = next((status.message for status in refused if status is not None), "")
                operations = [
                    operation
                    for operation, status in zip(operations, refused, strict=True)
                    if status is not None and status.reason not in _SETTLED
                ]
                if not operations:
                    return True
            await self._clock.sleep(backoff.next_seconds())
        self._give_up(action, reason)
        return False

    def _give_up(self, action: Evict | Nominate, reason: str) -> None:
        self._log.warning("preemption_given_up", pod=action.pod.key, node=action.node_name, reason=reason)
        if isinstance(action, Evict):
            self._on_failed(EvictionFailed(action.pod.uid))


def nomination(pod: PodView, node_name: str) -> Operation:
    """status.nominatedNodeName set, or taken away for ""."""
    return _patch(pod, {"nominatedNodeName": node_name or None})


def disruption(victim: PodView, pod: PodView) -> Operation:
    """The condition that says for whose sake the victim goes."""
    condition = {
        "type": CONDITION_DISRUPTION_TARGET,
        "status": "True",
        "reason": REASON_PREEMPTION,
        "message": f"{pod.spec.scheduler_name}: preempting to accommodate a higher priority pod",
    }
    return _patch(victim, {"conditions": [condition]})


def deletion(victim: PodView) -> Operation:
    """The victim and no other of its name."""
    request = DeleteRequest(resource="pods", namespace=victim.namespace, name=victim.name, uid=victim.uid)
    return Operation(delete=request)


def _patch(pod: PodView, status: dict[str, object]) -> Operation:
    patch = json.dumps({"status": status}).encode()
    request = PatchRequest(resource="pods", namespace=pod.namespace, name=pod.name, uid=pod.uid, patch=patch)
    return Operation(patch_status=request)
