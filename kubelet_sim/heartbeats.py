"""Signs of life of a whole fleet: leases in kube-node-lease, and from time to time the nodes' conditions.

Kubernetes' kubelet renews its Lease every 10 s (it lasts 40 s) and writes its Node's status every 5 min or when it
changed. Thousands of single renewals a second would cost more than all else, so time is cut into ticks, each node has its
tick of the period, and a tick's renewals travel in few messages. A node whose Ready condition is not True is written at
the next tick. Nothing is retried here: the next tick of the node comes soon enough.
"""

import asyncio
import json
from collections.abc import Mapping

from kubelet_sim.core.addresses import host_address
from kubelet_sim.objects import PlayedNode, heartbeat_status, lease_message
from protos.orrery.v1.api_pb2 import Operation, PatchRequest, WriteRequest
from services.client.api import ApiClient
from services.model.clock import Clock
from services.model.errors import ApiError
from services.runtime.logging import Logger

TICK_SECONDS = 0.2
LEASES_A_MESSAGE_MAX = 100
STATUS_PERIOD_SECONDS = 300.0
# A node that is not Ready is written at once, and again after this time should that not have helped.
UNREADY_SECONDS = 2.0
# Messages of one tick that may be under way at once; a tick that would need more waits for them.
MESSAGES_IN_FLIGHT_MAX = 8


class Heartbeats:
    """`nodes` is the informer's cache, read at each tick. `renewed` and `failed` count leases."""

    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        nodes: Mapping[str, PlayedNode],
        log: Logger,
        *,
        lease_duration_seconds: int,
        renew_seconds: float,
    ) -> None:
        self.renewed = self.failed = 0
        self._api = api
        self._clock = clock
        self._nodes = nodes
        self._log = log
        self._duration_seconds = lease_duration_seconds
        self._renew_seconds = renew_seconds
        self._renew_due: dict[str, float] = {}
        self._status_due: dict[str, float] = {}
        # Leases that are known to exist, so that a renewal is an update and not a create.
        self._leased: set[str] = set()

    async def run(self) -> None:
        """Ends only by cancellation."""
        while True:
            await self.tick()
            await self._clock.sleep(TICK_SECONDS)

    async def tick(self) -> None:
        """Writes what is due."""
        now = self._clock.monotonic()
        names = self._due_leases(now)
        operations = [self._lease_operation(name) for name in names]
        groups = [
            (names[at : at + LEASES_A_MESSAGE_MAX], operations[at : at + LEASES_A_MESSAGE_MAX])
            for at in range(0, len(names), LEASES_A_MESSAGE_MAX)
        ]
        statuses = self._due_statuses(now)
        for at in range(0, len(groups), MESSAGES_IN_FLIGHT_MAX):
            async with asyncio.TaskGroup() as tasks:
                for group_names, group in groups[at : at + MESSAGES_IN_FLIGHT_MAX]:
                    tasks.create_task(self._renew(group_names, group))
        for at in range(0, len(statuses), LEASES_A_MESSAGE_MAX):
            await self._write_statuses(statuses[at : at + LEASES_A_MESSAGE_MAX])

    def _due_leases(self, now: float) -> list[str]:
        """A new node renews at once; then its tick recurs. Nodes that are gone are forgotten."""
        for name in [name for name in self._renew_due if name not in self._nodes]:
            del self._renew_due[name]
            self._status_due.pop(name, None)
            self._leased.discard(name)
        due = []
        ticks = max(1, round(self._renew_seconds / TICK_SECONDS))
        for index, name in enumerate(self._nodes):
            at = self._renew_due.get(name)
            if at is None:
                # Spread over the period from the second renewal on.
                self._renew_due[name] = now + (index % ticks + 1) * TICK_SECONDS
            elif at <= now:
                self._renew_due[name] = max(at + self._renew_seconds, now)
            else:
                continue
            due.append(name)
        return due

    def _lease_operation(self, name: str) -> Operation:
        uid = self._nodes[name].view.uid
        lease = lease_message(name, uid, self._duration_seconds, self._clock.wall_ns())
        request = WriteRequest(resource="leases", value=lease.SerializeToString())
        return Operation(update=request) if name in self._leased else Operation(create=request)

    async def _renew(self, names: list[str], operations: list[Operation]) -> None:
        try:
            results = await self._api.batch(operations)
        except ApiError as error:
            self.failed += len(names)
            self._log.warning("leases_not_renewed", count=len(names), reason=str(error))
            return
        for name, result in zip(names, results, strict=True):
            if result.HasField("done"):
                self.renewed += 1
                self._leased.add(name)
            elif result.status.reason == "AlreadyExists":
                # From an earlier process: renew it at the next tick.
                self._leased.add(name)
                self._renew_due[name] = 0.0
            else:
                self.failed += 1
                if result.status.reason == "NotFound":
                    self._leased.discard(name)
                    self._renew_due[name] = 0.0

    def _due_statuses(self, now: float) -> list[str]:
        due = []
        for name, node in self._nodes.items():
            at = self._status_due.get(name)
            if at is None and node.view.ready:
                self._status_due[name] = now + STATUS_PERIOD_SECONDS
            elif at is None or at <= now or (not node.view.ready and at > now + UNREADY_SECONDS):
                self._status_due[name] = now + (STATUS_PERIOD_SECONDS if node.view.ready else UNREADY_SECONDS)
                due.append(name)
        return due

    async def _write_statuses(self, names: list[str]) -> None:
        now_ns = self._clock.wall_ns()
        operations = []
        for name in names:
            if (node := self._nodes.get(name)) is None:
                continue
            patch = {"status": heartbeat_status(node, host_address(name), now_ns)}
            request = PatchRequest(resource="nodes", name=name, uid=node.view.uid, patch=json.dumps(patch).encode())
            operations.append(Operation(patch_status=request))
        try:
            await self._api.batch(operations)
        except ApiError as error:
            self._log.warning("node_statuses_not_written", count=len(operations), reason=str(error))
            for name in names:
                self._status_due[name] = 0.0
