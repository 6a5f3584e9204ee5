"""What the demo prints at its end: the pods, why the last one waits, and one trace."""

import time
from pathlib import Path
from typing import Any

from services.lab.columns import gpus_words
from services.lab.demo_cluster import PodRun
from services.lab.explain_view import explanation
from services.lab.spans import settled_trace, trace_source
from services.lab.state import MeshFolder
from services.lab.trace_view import duration_text, trace_text
from services.model.names import ANNOTATION_TRACEPARENT
from services.model.topology import describe_links
from services.runtime.telemetry import parse_traceparent


def print_report(out: Any, folder: MeshFolder, pods: list[PodRun], traces: Path) -> None:
    """`traces` is where the spans stay."""
    out.print()
    out.print(pod_table(pods))
    for run in pods:
        if run.seconds is None:
            out.rule(f"why {run.name} waits", align="left", style="dim")
            for part in explanation(run.pod, run.attempts, (), time.time_ns()):
                out.print(part)
    shown = most_gpus(pods)
    if shown is None:
        return
    context = parse_traceparent(shown.pod.metadata.annotations.get(ANNOTATION_TRACEPARENT, ""))
    if context is None:
        return
    trace_id = f"{context.trace_id:032x}"
    source = trace_source(folder)
    spans = settled_trace(source, trace_id)
    source.close()
    out.print()
    out.rule(f"the trace of {shown.name}", align="left", style="dim")
    out.print(trace_text(spans, out.width), soft_wrap=True)
    out.print(f"\ntrace {trace_id}, {len(spans)} spans by {', '.join(sorted({span.instance for span in spans}))}")
    out.print(f"again: orrery trace {trace_id} --store {traces}", soft_wrap=True)


def most_gpus(pods: list[PodRun]) -> PodRun | None:
    """The running pod with the most devices."""
    running = [run for run in pods if run.seconds is not None]
    return max(running, key=lambda run: len(run.pod.placed.devices), default=None)


def pod_table(pods: list[PodRun]) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("POD", "NODE", "GPUS", "LINKS BETWEEN THEM"):
        table.add_column(column)
    table.add_column("CREATED → RUNNING", justify="right")
    for run in pods:
        devices = [share.index for share in run.pod.placed.devices]
        links = describe_links(run.topology, devices) if run.topology is not None else ""
        if run.seconds is None:
            table.add_row(run.name, "[yellow]none[/]", "", "", "[yellow]pending[/]")
            continue
        gpus = gpus_words(run.pod) if devices else "-"
        table.add_row(run.name, run.pod.spec.node_name, gpus, links or "-", duration_text(int(run.seconds * 1e9)))
    return table
