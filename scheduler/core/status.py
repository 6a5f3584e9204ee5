"""Verdicts of plugins: Kubernetes' status codes (pkg/scheduler/framework, 1.36). A refusal is a value, not an exception."""

from dataclasses import dataclass
from enum import Enum


class Code(Enum):
    SUCCESS = "Success"
    ERROR = "Error"
    UNSCHEDULABLE = "Unschedulable"
    # Preemption would not help.
    UNSCHEDULABLE_AND_UNRESOLVABLE = "UnschedulableAndUnresolvable"
    WAIT = "Wait"
    SKIP = "Skip"
    PENDING = "Pending"


@dataclass(frozen=True, slots=True)
class Status:
    """A code, the reasons in words, and the plugin that says so."""

    code: Code
    reasons: tuple[str, ...] = ()
    plugin: str = ""

    @property
    def ok(self) -> bool:
        return self.code is Code.SUCCESS


SUCCESS = Status(Code.SUCCESS)
SKIP = Status(Code.SKIP)
