"""The end of a run: faults have stopped, and within a bounded time everything must come to rest as promised.

No pod that fits somewhere is left unbound (proved by trying every node), every pod that is bound is Running or has ended
or is gone, the watching client and the API servers' caches have what the store has.
"""

from typing import TYPE_CHECKING

from apiserver.core.keys import REGISTRY, registry_key
from protos.orrery.v1.ledger_pb2 import LedgerTaken
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.pod_pb2 import Pod
from services.model.kinds import KIND_BY_RESOURCE
from services.wire.pod import PodDecoder
from tests.simulation.invariants import TERMINAL, WHOLE_DEVICE_MILLI, Use
from tests.simulation.story import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

ASK_SECONDS = 0.5
REST_SECONDS = 3.0
NODES = b"/orrery/registry/core/nodes/"


class Endings:
    """`wait` returns when all is at rest; raises Violation when it takes too long, or when the rest is wrong."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._checker = world.checker
        self._decoder = PodDecoder()

    async def wait(self, seconds_max: float) -> None:
        """Rest must last: late messages may still have something to say."""
        until = self._world.loop.time() + seconds_max
        rest_since: float | None = None
        while rest_since is None or self._world.loop.time() - rest_since < REST_SECONDS:
            open_ = self._unfinished()
            if open_ is None:
                rest_since = self._world.loop.time() if rest_since is None else rest_since
            else:
                rest_since = None
                if self._world.loop.time() >= until:
                    raise open_
            await self._world.sleep(ASK_SECONDS)

    def _unfinished(self) -> Violation | None:
        return self._unbound() or self._not_running() or self._watchers() or self._caches()

    def _unbound(self) -> Violation | None:
        """7: the pods that a real scheduler should have bound by now."""
        for key, pod in sorted(self._checker.pods().items()):
            if pod.spec.node_name or pod.metadata.HasField("deletion_timestamp"):
                continue
            if pod.spec.scheduler_name != "default-scheduler":
                continue
            node = self._room_for(pod)
            if node:
                path = f"{pod.metadata.namespace}/{pod.metadata.name}"
                why = next((item.message for item in pod.status.conditions if item.type == "PodScheduled"), "")
                message = f"pod {path} fits on {node} and is not bound; it says {why!r}"
                return Violation("7", message, (path, key.decode()))
        return None

    def _room_for(self, pod: Pod) -> str:
        """The first node that could hold the pod; empty when there is none."""
        view = self._decoder.view(pod.SerializeToString(), "")
        for key, version in self._checker.current(NODES).items():
            self._checker.checks["7"] += 1
            node = Node.FromString(version.value)
            name = key.rpartition(b"/")[2].decode()
            taken = self._checker.taken.get(name, LedgerTaken())
            use = self._checker.uses.get(name, Use())
            if node.spec.unschedulable or node.spec.taints or taken.overcommitted:
                continue
            if use.pods + 1 > taken.allocatable.get("pods", 0):
                continue
            if any(
                use.resources[resource] + amount > taken.allocatable.get(resource, 0)
                for resource, amount in view.spec.requests.items()
            ):
                continue
            request = view.spec.devices
            if request is not None:
                rooms = [
                    index
                    for index, device in enumerate(taken.devices)
                    if not device.unhealthy and use.devices[index] + request.milli <= WHOLE_DEVICE_MILLI
                ]
                if len(rooms) < request.count:
                    continue
            return name
        return ""

    def _not_running(self) -> Violation | None:
        for key, pod in sorted(self._checker.pods().items()):
            self._checker.checks["7"] += 1
            path = f"{pod.metadata.namespace}/{pod.metadata.name}"
            deleting = pod.metadata.HasField("deletion_timestamp")
            if deleting:
                return Violation("7", f"pod {path} is deleted and does not go", (path, key.decode()))
            if pod.spec.node_name and not deleting and pod.status.phase not in ("Running", *TERMINAL):
                return Violation("7", f"pod {path} is bound and still {pod.status.phase}", (path, key.decode()))
        return None

    def _watchers(self) -> Violation | None:
        witness = self._world.witness
        assert witness is not None
        difference = witness.difference()
        return Violation("6", f"the watcher ends unequal to the store: {difference}") if difference else None

    def _caches(self) -> Violation | None:
        """Each API server's cache holds exactly what the store holds."""
        stored = {key: item.version for key, item in self._checker.current(REGISTRY).items()}
        for name, service in sorted(self._world.services.items()):
            self._checker.checks["6"] += 1
            registry = service.cache.registry
            held = {
                registry_key(KIND_BY_RESOURCE[resource], entry.namespace, entry.path.rpartition("/")[2]): entry.version
                for resource, objects in registry.objects.items()
                for entry in objects.by_path.values()
            }
            if held != stored or registry.revision != self._world.mvcc.revision:
                wrong = sorted(key for key in {**held, **stored} if held.get(key) != stored.get(key))
                message = f"{name} is at {registry.revision}, the store at {self._world.mvcc.revision}: {wrong[:5]}"
                return Violation("6", message, (name,))
        return None
