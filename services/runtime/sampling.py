"""Which traces are kept: a share of all by ratio, and by rule those that one wants to read afterwards.

The ratio is decided where a trace begins and travels in its traceparent (W3C: flag 01). The rules are decided where
something happens: an attempt that found no place, a bind that was refused or fenced, a step that was slow, a preemption.
Spans are made after the fact from times that were noted anyway, so a rule can still keep them; what other processes
recorded of that pod before, unsampled, is not there. Such a trace begins with the wait in the queue, which tells when
the pod came.
"""

from dataclasses import dataclass

from services.runtime.settings import TRACE_RULES, CommonSettings
from services.runtime.telemetry import is_sampled, parse_traceparent


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """`always`: those of TRACE_RULES that are on. `slow_seconds`: from when a step counts as slow."""

    always: frozenset[str] = frozenset(TRACE_RULES)
    slow_seconds: float = 1.0

    def keep(
        self,
        traceparent: str,
        *,
        failed: bool = False,
        fenced: bool = False,
        preempting: bool = False,
        seconds: float = 0.0,
    ) -> str:
        """`traceparent` for spans that are to be kept: as it is when its trace is sampled, marked as sampled when a rule
        says so, empty when the spans are not wanted.
        """
        if not traceparent or is_sampled(traceparent):
            return traceparent
        wanted = (
            (failed and "failed" in self.always)
            or (fenced and "fenced" in self.always)
            or (preempting and "preempting" in self.always)
            or (seconds >= self.slow_seconds and "slow" in self.always)
        )
        return as_sampled(traceparent) if wanted else ""


def sampling_rules(settings: CommonSettings) -> SamplingRules:
    """The rules of a process."""
    return SamplingRules(frozenset(settings.trace_always), settings.trace_slow_seconds)


def as_sampled(traceparent: str) -> str:
    """The same place in the same trace, kept from here on. Text that is no traceparent comes back as it is."""
    if parse_traceparent(traceparent) is None:
        return traceparent
    return f"{traceparent[:-2]}{int(traceparent[-2:], 16) | 1:02x}"
