"""What the scheduler tells the cluster: the PodScheduled condition of pods without a place, and events.

Never in the way of binds: reports have a queue of their own, bounded, with the newest word on each pod alone. What does
not fit is dropped and counted; the next attempt says it again.
"""

import asyncio
import json
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from protos.orrery.v1.api_pb2 import Fence, Operation, PatchRequest
from protos.orrery.v1.event_pb2 import Event
from services.client.api import ApiClient
from services.client.backoff import Backoff
from services.model.clock import Clock
from services.model.errors import ApiError
from services.model.pod import PodView
from services.runtime.logging import Logger

REPORTS_MAX = 20_000
BATCH_REPORTS_MAX = 100
PERIOD_SECONDS = 0.2
SAID_MAX = 50_000
COMPONENT = "default-scheduler"


@dataclass(frozen=True, slots=True)
class Report:
    """`node_name` empty: the pod has no place, `message` says why. `preempted`: it has to go from that node.
    `fault`: a plugin's, of which the pod is told by an event alone, for it may have its place all the same.
    """

    pod: PodView
    node_name: str
    message: str
    at_ns: int
    preempted: bool = False
    fault: bool = False

    @property
    def refused(self) -> bool:
        return not self.node_name and not self.fault


class Reporter:
    """`fence` gives the current proof of leadership; without one nothing is sent, since another leader speaks now."""

    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        rng: random.Random,
        name: str,
        log: Logger,
        fence: Callable[[], Fence | None],
    ) -> None:
        self._api = api
        self._clock = clock
        self._rng = rng
        self._name = name
        self._log = log
        self._fence = fence
        # By uid and kind: "" for a refusal, "placed", "fault".
        self._waiting: OrderedDict[tuple[str, str], Report] = OrderedDict()
        self._said: OrderedDict[tuple[str, bool], str] = OrderedDict()
        self._arrived = asyncio.Event()
        self.dropped = 0

    def report(
        self, pod: PodView, node_name: str, message: str, *, preempted: bool = False, fault: bool = False
    ) -> None:
        """Queues a report, unless the pod's last one of its kind said the same."""
        about = (pod.uid, fault)
        if self._said.get(about) == message and not node_name:
            return
        self._said[about] = message
        if len(self._said) > SAID_MAX:
            self._said.popitem(last=False)
        if len(self._waiting) >= REPORTS_MAX:
            self.dropped += 1
            # A refusal is the pod's condition, and may be the last word on it for long; that a pod was placed stands in
            # the pod itself. So refusals push placements out.
            placed = None if node_name or fault else next((key for key in self._waiting if key[1]), None)
            if placed is None:
                self._said.pop(about, None)
                return
            del self._waiting[placed]
        report = Report(pod, node_name, message, self._clock.wall_ns(), preempted, fault)
        self._waiting[pod.uid, "fault" if fault else node_name and "placed"] = report
        if report.refused:
            # Ahead of a backlog of placements: somebody asks why it waits.
            self._waiting.move_to_end((pod.uid, ""), last=False)
        self._arrived.set()

    async def run(self) -> None:
        """Sends reports for ever; ends only by cancellation."""
        backoff = Backoff(self._rng)
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            await self._clock.sleep(PERIOD_SECONDS)
            while self._waiting and (fence := self._fence()) is not None:
                batch = [
                    self._waiting.popitem(last=False)[1] for _ in range(min(BATCH_REPORTS_MAX, len(self._waiting)))
                ]
                try:
                    answers = await self._api.batch(
                        [item for report in batch for item in self._operations(report)], fence=fence
                    )
                    refused = sorted({answer.status.message for answer in answers if answer.HasField("status")})
                    if refused:
                        self._log.warning("reports_refused", first=refused[0], reasons=len(refused))
                    backoff.reset()
                except ApiError as error:
                    # An event is worth a try, not a retry. A refusal goes again, unless a newer one waits already.
                    kept = [report for report in batch if report.refused]
                    self.dropped += len(batch) - len(kept)
                    for report in reversed(kept):
                        self._waiting.setdefault((report.pod.uid, ""), report)
                        self._waiting.move_to_end((report.pod.uid, ""), last=False)
                    self._log.warning("reports_dropped", reports=len(batch), reason=error.message)
                    await self._clock.sleep(backoff.next_seconds())
            self._waiting.clear()

    def _operations(self, report: Report) -> list[Operation]:
        operations = [Operation()]
        event = self._event(report)
        operations[0].create.resource = "events"
        operations[0].create.value = event.SerializeToString()
        if report.refused:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": report.message,
            }
            patch = json.dumps({"status": {"conditions": [condition]}}).encode()
            request = PatchRequest(
                resource="pods", namespace=report.pod.namespace, name=report.pod.name, uid=report.pod.uid, patch=patch
            )
            operations.append(Operation(patch_status=request))
        return operations

    def _event(self, report: Report) -> Event:
        pod = report.pod
        action, reason = ("Binding", "Scheduled") if report.node_name else ("Scheduling", "FailedScheduling")
        if report.preempted:
            action, reason = "Preempting", "Preempted"
        elif report.fault:
            action, reason = "Scheduling", "PluginFailed"
        event = Event(api_version="v1", kind="Event", action=action)
        event.metadata.namespace = pod.namespace
        event.metadata.name = f"{pod.name[:230]}.{self._rng.getrandbits(64):016x}"
        event.involved_object.api_version, event.involved_object.kind = "v1", "Pod"
        event.involved_object.namespace, event.involved_object.name = pod.namespace, pod.name
        event.involved_object.uid = pod.uid
        event.type = "Normal" if report.node_name else "Warning"
        event.reason = reason
        event.message = report.message
        event.count = 1
        event.source.component = COMPONENT
        event.reporting_component, event.reporting_instance = COMPONENT, self._name
        event.first_timestamp.seconds = event.last_timestamp.seconds = report.at_ns // 1_000_000_000
        return event
