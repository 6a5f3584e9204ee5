"""All writes about pods: many a message, one message at a time, the newest for each pod.

While a batch is under way later writes wait and replace older ones of the same pod, so there is never more than one per
pod, in the order in which pods were first written. What may not have happened (no server, no answer in time) is sent
again: statuses are whole and carry the pod's uid, so a repetition changes nothing. What can never succeed is dropped,
counted and logged. A pod that is gone takes its write with it.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kubelet_sim.alarm import Alarm
from kubelet_sim.core.events import RemovePod, WriteStatus
from protos.orrery.v1.api_pb2 import DeleteRequest, Operation, OperationResult, PatchRequest
from services.client.api import ApiClient
from services.client.backoff import Backoff
from services.model.clock import Clock
from services.model.errors import ApiError
from services.runtime.logging import Logger

BATCH_OPERATIONS_MAX = 400
# Of one write that the server answers and refuses in passing; a server that does not answer is asked until it does.
ATTEMPTS_MAX = 20
VERSIONS_REMEMBERED_MAX = 4
_PASSING = ("ServiceUnavailable", "Timeout", "TooManyRequests", "InternalError", "Conflict")
PodWrite = WriteStatus | RemovePod


@dataclass(slots=True)
class _Pending:
    write: PodWrite
    attempts: int = 0


class PodWriter:
    """`run` sends what `put` was given. `written`, `dropped` and `repeated` count."""

    def __init__(self, api: ApiClient, clock: Clock, backoff: Backoff, log: Logger) -> None:
        self.written = self.dropped = self.repeated = 0
        self._api = api
        self._clock = clock
        self._backoff = backoff
        self._log = log
        self._alarm = Alarm(clock)
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._in_flight: dict[str, _Pending] = {}
        self._gone: set[str] = set()
        self._versions: dict[str, list[str]] = {}

    @property
    def waiting(self) -> int:
        return len(self._pending) + len(self._in_flight)

    def put(self, write: PodWrite) -> None:
        pending = self._pending.get(write.uid)
        if pending is not None:
            pending.write, pending.attempts = write, 0
        else:
            self._pending[write.uid] = _Pending(write)
        self._alarm.ring()

    def forget(self, uid: str) -> None:
        """The pod with this uid is gone: nothing about it is written any more."""
        self._pending.pop(uid, None)
        self._versions.pop(uid, None)
        if uid in self._in_flight:
            self._gone.add(uid)

    def is_own(self, uid: str, resource_version: str) -> bool:
        """Whether this version of the pod is known to be one that was written here."""
        return resource_version in self._versions.get(uid, ())

    async def run(self) -> None:
        """Ends only by cancellation."""
        while True:
            if not self._pending:
                await self._alarm.wait()
                continue
            again = await self._send()
            if again:
                self.repeated += 1
                await self._clock.sleep(self._backoff.next_seconds())
            else:
                self._backoff.reset()

    async def _send(self) -> bool:
        """Sends one batch; True when something of it is to be sent again."""
        uids = [uid for uid, _ in zip(self._pending, range(BATCH_OPERATIONS_MAX), strict=False)]
        self._in_flight = {uid: self._pending.pop(uid) for uid in uids}
        try:
            results = await self._api.batch([_operation(item.write) for item in self._in_flight.values()])
        except ApiError as error:
            self._log.warning("pod_writes_repeat", count=len(self._in_flight), reason=str(error))
            for uid, item in reversed(self._in_flight.items()):
                self._take_back(uid, item)
            return True
        finally:
            sent, self._in_flight = self._in_flight, {}
            gone, self._gone = self._gone, set()
        return self._read(sent, results, gone)

    def _read(self, sent: dict[str, _Pending], results: Sequence[OperationResult], gone: set[str]) -> bool:
        again = False
        for (uid, item), result in reversed(list(zip(sent.items(), results, strict=True))):
            if result.HasField("done"):
                self.written += 1
                if uid not in gone and isinstance(item.write, WriteStatus):
                    versions = self._versions.setdefault(uid, [])
                    versions.append(result.done.object.resource_version)
                    del versions[:-VERSIONS_REMEMBERED_MAX]
                continue
            reason = result.status.reason
            item.attempts += 1
            if uid in gone or reason == "NotFound":
                continue
            if reason in _PASSING and item.attempts < ATTEMPTS_MAX:
                self._take_back(uid, item)
                again = True
                continue
            self.dropped += 1
            write = item.write
            self._log.error(
                "pod_write_refused", pod=f"{write.namespace}/{write.name}", reason=reason, message=result.status.message
            )
        return again

    def _take_back(self, uid: str, item: _Pending) -> None:
        """Puts an unsent write in front again, unless a newer one or none is wanted by now."""
        if uid in self._pending or uid in self._gone:
            return
        self._pending[uid] = item
        self._pending.move_to_end(uid, last=False)


def _operation(write: PodWrite) -> Operation:
    if isinstance(write, RemovePod):
        request = DeleteRequest(
            resource="pods", namespace=write.namespace, name=write.name, uid=write.uid, grace_period_seconds=0
        )
        return Operation(delete=request)
    patch = json.dumps({"status": write.status}, separators=(",", ":")).encode()
    return Operation(
        patch_status=PatchRequest(
            resource="pods", namespace=write.namespace, name=write.name, uid=write.uid, patch=patch
        )
    )
