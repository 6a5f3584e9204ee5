"""What is remembered of attempts, for `orrery explain`: the last few of each pod, of so many pods."""

from collections import OrderedDict, deque
from collections.abc import Sequence

from protos.orrery.v1.scheduler_pb2 import SchedulingAttempt
from scheduler.core.machine import Attempted

PODS_MAX = 20_000
ATTEMPTS_A_POD_MAX = 10
# (extension point, plugin, nanoseconds)
Lap = tuple[str, str, int]


class AttemptLog:
    """Bounded; the pods that were tried longest ago go first."""

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler
        self._by_key: OrderedDict[str, deque[SchedulingAttempt]] = OrderedDict()

    def add(self, attempted: Attempted, at_ns: int, laps: Sequence[Lap], trace_id: str) -> None:
        key = attempted.pod.key
        attempts = self._by_key.get(key)
        if attempts is None:
            attempts = self._by_key[key] = deque(maxlen=ATTEMPTS_A_POD_MAX)
            if len(self._by_key) > PODS_MAX:
                self._by_key.popitem(last=False)
        else:
            self._by_key.move_to_end(key)
        attempts.append(attempt_message(self._scheduler, attempted, at_ns, laps, trace_id))

    def get(self, key: str, uid: str) -> list[SchedulingAttempt]:
        """The attempts of namespace/name, oldest first; of this uid alone when one is given."""
        return [item for item in self._by_key.get(key, ()) if not uid or item.pod_uid == uid]

    def settle(self, key: str, uid: str, result: str, message: str) -> None:
        """The bind of the pod's last attempt came to something else than the attempt had hoped."""
        attempts = self._by_key.get(key)
        if attempts and attempts[-1].pod_uid == uid:
            attempts[-1].result, attempts[-1].message = result, message


def attempt_message(
    scheduler: str, attempted: Attempted, at_ns: int, laps: Sequence[Lap], trace_id: str
) -> SchedulingAttempt:
    decision = attempted.decision
    message = SchedulingAttempt(
        number=attempted.attempt,
        scheduler=scheduler,
        woken_by=attempted.woken_by,
        nodes_evaluated=decision.nodes_evaluated,
        node_name=decision.node_name,
        devices=[share.index for share in decision.devices],
        result="Scheduled" if decision.node_name else "Error" if decision.error else "Unschedulable",
        message=decision.error or decision.message,
        pod_uid=attempted.pod.uid,
        trace_id=trace_id,
    )
    message.at.FromNanoseconds(at_ns)
    for rejection in decision.rejections:
        message.rejections.add(
            plugin=rejection.plugin, reason=rejection.reason, nodes=rejection.nodes, examples=rejection.examples
        )
    for score in decision.scores:
        item = message.scores.add(node_name=score.node_name, total=score.total)
        for plugin, points, weight in score.plugins:
            item.plugins.add(plugin=plugin, score=points, weight=weight)
    for point, plugin, nanoseconds in laps:
        message.durations.add(extension_point=point, plugin=plugin, nanoseconds=nanoseconds)
    return message
