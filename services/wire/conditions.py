"""Edits of status.conditions on the message itself, so that fields which this version does not know survive."""

from protos.orrery.v1 import node_pb2, pod_pb2


def set_condition(
    message: pod_pb2.Pod | node_pb2.Node, kind: str, status: str, now_ns: int, *, reason: str = "", text: str = ""
) -> bool:
    """Sets the condition of type `kind`, adding it where there is none; True when that changed anything.

    lastTransitionTime (whole seconds) moves only when the status does. An empty `reason` or `text` removes what stood there.
    """
    conditions = message.status.conditions
    condition = next((item for item in conditions if item.type == kind), None)
    if condition is None:
        condition = conditions.add(type=kind)
    before = (condition.status, condition.reason, condition.message)
    if condition.status != status:
        condition.status = status
        condition.last_transition_time.Clear()
        condition.last_transition_time.seconds = now_ns // 1_000_000_000
    condition.reason, condition.message = reason, text
    if not reason:
        condition.ClearField("reason")
    if not text:
        condition.ClearField("message")
    return before != (status, reason, text)
