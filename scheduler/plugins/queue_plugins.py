"""PrioritySort and SchedulingGates: who comes first, and who does not come yet."""

from scheduler.core.framework import ClusterEvent, EventKind, Plugin
from scheduler.core.status import SUCCESS, Code, Status
from services.model.pod import PodView


class PrioritySort(Plugin):
    """Higher priority first, then who has waited longer."""

    name = "PrioritySort"

    def sort_key(self, pod: PodView, added_at: float) -> tuple[float, ...]:
        return (-pod.spec.priority, added_at)


class SchedulingGates(Plugin):
    """A pod with gates is not tried at all."""

    name = "SchedulingGates"
    events = frozenset((EventKind.POD_CHANGED,))

    def pre_enqueue(self, pod: PodView) -> Status:
        if not pod.spec.scheduling_gates:
            return SUCCESS
        gates = " ".join(pod.spec.scheduling_gates)
        reason = f"waiting for scheduling gates: [{gates}]"
        return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (reason,), self.name)

    def wakes(self, event: ClusterEvent, pod: PodView) -> bool:
        """Only the pod's own update can take its gates."""
        return event.kind is EventKind.POD_CHANGED and event.pod is not None and event.pod.uid == pod.uid
