"""`orrery check`: is what etcd holds true? The witness is a process of its own and shares no store code with the mesh.

`services.lab.check_witness` reads etcd with another client library, in pages at one revision; `check_state` compares the
ledgers with the pods, `check_fit` proves by brute force that nothing that waits would fit. Here are the words of the
result, and the call that runs the witness.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

WITNESS_SECONDS_MAX = 600.0
LINES_MAX = 20
EXIT_AGREES, EXIT_DIFFERS, EXIT_CANNOT_CHECK = 0, 1, 2
SCHEDULER_NAMES = ("default-scheduler",)
# The kind of a difference that a busy mesh has for a moment: a pod that would fit and is not bound yet.
KIND_FITS = "pending pod fits"


class CheckError(Exception):
    """Nothing could be said: etcd does not answer, or the witness failed. The message is a sentence."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`kind` is one of a few constant phrases; `subject` is "pod ns/name" or "node name"."""

    kind: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was looked at, and what did not agree.

    `comparisons` were made one by one, for each different request and each node; they cover `comparisons_covered` pairs of
    a pending pod and a node. `skipped` counts pending pods that nothing promises to bind, or whose place depends on other
    pods, by reason.
    """

    revision: int
    nodes: int
    ledgers: int
    devices: int
    pods: int
    placed: int
    shares: int
    finished: int
    pending: int
    requests: int
    comparisons: int
    comparisons_covered: int
    overcommitted: int
    differences: tuple[Difference, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CheckResult":
        differences = tuple(Difference(**each) for each in data["differences"])
        return cls(**{**data, "differences": differences})


def run_check(
    endpoint: str, *, scheduler_names: tuple[str, ...] = SCHEDULER_NAMES, settle_seconds: float = 0.0
) -> CheckResult:
    """Runs the witness on the etcd at `endpoint` (host:port). While nothing differs but that pending pods fit, it looks again
    for at most `settle_seconds`: a scheduler that is at work needs a moment.

    Raises:
        CheckError: it could not be checked.
    """
    command = [
        sys.executable,
        "-m",
        "services.lab.check_witness",
        f"--endpoint={endpoint}",
        f"--settle-seconds={settle_seconds}",
        *(f"--scheduler-name={name}" for name in scheduler_names),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=WITNESS_SECONDS_MAX + settle_seconds
        )
    except subprocess.TimeoutExpired:
        raise CheckError(f"the check did not end within {WITNESS_SECONDS_MAX + settle_seconds:.0f} s") from None
    if done.returncode not in (EXIT_AGREES, EXIT_DIFFERS):
        said = done.stderr.strip().splitlines()
        raise CheckError(said[-1] if said else f"the witness ended with code {done.returncode} and said nothing")
    return CheckResult.from_json(json.loads(done.stdout))


def summary(result: CheckResult) -> list[str]:
    """The result as lines for a terminal: how much was checked, then each difference."""
    skipped = "".join(f", {count:,} {reason}" for reason, count in result.skipped.items())
    hardware = f"{result.nodes:,} nodes, {result.ledgers:,} ledgers, {result.devices:,} devices"
    placed = f"{result.placed:,} placed with {result.shares:,} device shares, {result.finished:,} finished"
    made = f"{result.requests:,} different requests, {result.comparisons:,} comparisons made"
    lines = [
        f"checked at revision {result.revision:,} in {result.seconds:.1f} s:",
        f"  {hardware}; {result.overcommitted:,} nodes overcommitted",
        f"  {result.pods:,} pods: {placed}, {result.pending:,} pending{skipped}",
        f"  {result.comparisons_covered:,} pairs of pending pod and node compared ({made})",
    ]
    if result.agrees:
        return [*lines, "everything agrees"]
    lines.append(f"{len(result.differences):,} difference(s):")
    lines += [f"  {each.kind}: {each.subject}: {each.message}" for each in result.differences[:LINES_MAX]]
    if len(result.differences) > LINES_MAX:
        lines.append(f"  and {len(result.differences) - LINES_MAX:,} more")
    return lines
