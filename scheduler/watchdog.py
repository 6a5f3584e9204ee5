"""A plugin that does not return: seen from a second thread, interrupted, and in the end not waited for.

The scheduler computes in one thread, which also renews its lease and answers health checks, so a plugin that never comes
back stops everything. The watchdog looks at that thread's stack, a few times a second and at no cost to it. Where the same
call of a plugin stands there all the time, it has the thread interrupted by a signal, whose handler raises PluginFault in
the midst of the plugin: the attempt ends as if the plugin had raised. That reaches Python code, sleeps and waits for locks.
A plugin that catches it and goes on, or is deep in code that is not Python's, ends the process, by name: another scheduler
leads once the lease is over, and no pod is lost, for all that counts is in the store. Only code that also keeps Python's
lock for itself hides from the watchdog; then health checks go unanswered, and whoever makes them has to act.

Time is counted in looks, not by the clock: a process that was stopped and goes on has not spent that time in a plugin.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from scheduler.core.faults import PluginFault
from scheduler.core.framework import Plugin
from services.runtime.logging import Logger

LOOKS = 10
# After so many times the limit, each of which interrupted it in vain, the process ends.
LIMITS_MAX = 4
SIGNAL = signal.SIGALRM


def plugin_calls(frame: FrameType | None) -> list[FrameType]:
    """The calls of plugins on a stack whose top is `frame`, outermost first."""
    calls = []
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",) and isinstance(frame.f_locals.get("self"), Plugin):
            calls.append(frame)
        frame = frame.f_back
    return calls[::-1]


class PluginWatchdog:
    """A context, entered in the main thread, which is the one that it watches. `seconds_max`: how long a plugin may
    compute; 0: as long as it likes. `leave` ends the process.
    """

    def __init__(self, seconds_max: float, log: Logger, leave: Callable[[], None] = lambda: os._exit(1)) -> None:
        self._seconds_max = seconds_max
        self._log = log
        self._leave = leave
        self._watched = threading.get_ident()
        self._calls: list[FrameType] = []
        self._looks = 0
        self._overdue: FrameType | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="plugin-watchdog", daemon=True)

    def __enter__(self) -> "PluginWatchdog":
        if self._seconds_max:
            self._before = signal.signal(SIGNAL, self._interrupt)
            self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._seconds_max:
            self._stopped.set()
            self._thread.join()
            signal.signal(SIGNAL, self._before)

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds_max / LOOKS):
            self._look(plugin_calls(sys._current_frames().get(self._watched)))

    def _look(self, calls: list[FrameType]) -> None:
        """Takes in what stands on the stack now; acts when a call has stood there for too long."""
        kept = 0
        while kept < min(len(calls), len(self._calls)) and calls[kept] is self._calls[kept]:
            kept += 1
        if not kept:
            self._calls, self._looks = calls, 0
            return
        # Of calls within calls, what stands there still: the innermost of them is to blame.
        self._calls = calls[:kept]
        self._looks += 1
        if self._looks % LOOKS:
            return
        if self._looks >= LOOKS * LIMITS_MAX:
            fault = self._fault(self._calls[-1])
            self._log.critical("plugin_does_not_return", plugin=fault.plugin, reason=str(fault))
            self._leave()
            return
        self._overdue = self._calls[-1]
        signal.pthread_kill(self._watched, SIGNAL)

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        """In the watched thread. A call that has returned meanwhile is not on its stack any more."""
        overdue, self._overdue = self._overdue, None
        if overdue is not None and overdue in plugin_calls(frame):
            raise self._fault(overdue)

    def _fault(self, call: FrameType) -> PluginFault:
        name = call.f_locals["self"].name
        seconds = self._looks / LOOKS * self._seconds_max
        return PluginFault(name, f"did not return from {call.f_code.co_name} within {seconds:g} s, and was interrupted")
