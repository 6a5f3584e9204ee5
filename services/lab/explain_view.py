"""`orrery explain`: why a pod is where it is, or nowhere. Attempts as the schedulers remember them, as rich tables; where
none does any more, what the pod's conditions and events say.
"""

from collections.abc import Sequence
from typing import Any

from protos.orrery.v1.event_pb2 import Event
from protos.orrery.v1.pod_pb2 import Pod
from protos.orrery.v1.scheduler_pb2 import SchedulingAttempt
from services.lab.columns import age, gpus_words
from services.lab.trace_view import duration_text

SCORES_SHOWN = 5
ATTEMPTS_SHOWN = 3
EVENTS_SHOWN = 10
_SECOND = 1_000_000_000


def explanation(
    pod: Pod, attempts: Sequence[SchedulingAttempt], events: Sequence[Event], now_ns: int, *, every: bool = False
) -> list[Any]:
    """What to print, top to bottom. `every`: all attempts rather than the last ones."""
    parts: list[Any] = [_headline(pod)]
    if attempts:
        shown = attempts if every else attempts[-ATTEMPTS_SHOWN:]
        if len(shown) < len(attempts):
            parts.append(f"[dim]{len(attempts) - len(shown)} earlier attempts are left out; --all shows them[/]")
        for attempt in shown:
            parts += _attempt(attempt, now_ns)
        return parts
    parts.append("[dim]no scheduler remembers an attempt; what the pod and its events say:[/]")
    for condition in pod.status.conditions:
        said = ": ".join(filter(None, (condition.reason, condition.message)))
        parts.append(f"  {condition.type}={condition.status}  {said}")
    parts += [f"  {_event_age(event, now_ns)}  {event.reason}  {event.message}" for event in events[-EVENTS_SHOWN:]]
    return parts


def _headline(pod: Pod) -> str:
    name = f"[bold]pod/{pod.metadata.name}[/]"
    if pod.spec.node_name:
        gpus = f", GPUs {gpus_words(pod)}" if pod.placed.devices else ""
        return f"{name} is on [bold]{pod.spec.node_name}[/]{gpus} ({pod.status.phase or 'Pending'})"
    reason = next((item.message for item in pod.status.conditions if item.type == "PodScheduled" and item.message), "")
    return f"{name} is on no node ({pod.status.phase or 'Pending'})" + (f": {reason}" if reason else "")


def _event_age(event: Event, now_ns: int) -> str:
    return age(event.last_timestamp if event.HasField("last_timestamp") else event.event_time, now_ns)


def _attempt(attempt: SchedulingAttempt, now_ns: int) -> list[Any]:
    when = age(attempt.at, now_ns)
    woken = f", woken by {attempt.woken_by}" if attempt.woken_by else ""
    style = "green" if attempt.result == "Scheduled" else "yellow"
    to = f" → [bold]{attempt.node_name}[/]" if attempt.node_name else ""
    devices = f" GPUs {','.join(map(str, attempt.devices))}" if attempt.devices else ""
    head = f"[bold]attempt {attempt.number}[/] by {attempt.scheduler}, {when} ago{woken}"
    outcome = f"[{style}]{attempt.result}[/]{to}{devices}; {attempt.nodes_evaluated} nodes looked at"
    parts: list[Any] = ["", f"{head}: {outcome}"]
    if attempt.message:
        parts.append(f"  {attempt.message}")
    if attempt.rejections:
        parts.append(_rejections(attempt))
    if attempt.scores:
        parts.append(_scores(attempt))
    if attempt.durations:
        steps = [f"{point} {duration_text(spent)}" for point, spent in _durations(attempt).items()]
        parts.append(f"  [dim]took: {', '.join(steps)}[/]")
    return parts


def _durations(attempt: SchedulingAttempt) -> dict[str, int]:
    """Nanoseconds by extension point: its own number where there is one, else the sum of its plugins'."""
    whole = {step.extension_point: step.nanoseconds for step in attempt.durations if not step.plugin}
    summed: dict[str, int] = {}
    for step in attempt.durations:
        summed[step.extension_point] = summed.get(step.extension_point, 0) + step.nanoseconds
    return summed | whole


def _rejections(attempt: SchedulingAttempt) -> Any:
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("REJECTED", justify="right")
    for column in ("BY PLUGIN", "REASON", "FOR EXAMPLE"):
        table.add_column(column)
    nodes: dict[tuple[str, str], int] = {}
    examples: dict[tuple[str, str], list[str]] = {}
    for rejection in attempt.rejections:
        # A node that lacks two things stands in one entry of each.
        key = (rejection.plugin, rejection.reason)
        nodes[key] = nodes.get(key, 0) + rejection.nodes
        examples.setdefault(key, []).extend(rejection.examples)
    for plugin, reason in sorted(nodes, key=lambda key: (-nodes[key], key)):
        key = (plugin, reason)
        table.add_row(str(nodes[key]), plugin, reason, ", ".join(examples[key][:3]))
    return Padding(table, (0, 0, 0, 2))


def _scores(attempt: SchedulingAttempt) -> Any:
    """One row a node, one column a plugin: score times weight."""
    from rich.padding import Padding
    from rich.table import Table

    best = sorted(attempt.scores, key=lambda score: (-score.total, score.node_name != attempt.node_name))[:SCORES_SHOWN]
    plugins = list(dict.fromkeys(part.plugin for score in best for part in score.plugins))
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("NODE")
    table.add_column("TOTAL", justify="right")
    for plugin in plugins:
        table.add_column(plugin, justify="right")
    for score in best:
        by_plugin = {part.plugin: part for part in score.plugins}
        cells = []
        for plugin in plugins:
            part = by_plugin.get(plugin)
            cells.append("-" if part is None else f"{part.score}" + (f" * {part.weight}" if part.weight != 1 else ""))
        chosen = score.node_name == attempt.node_name
        table.add_row(f"[green]{score.node_name} ✓[/]" if chosen else score.node_name, str(score.total), *cells)
    return Padding(table, (0, 0, 0, 2))
