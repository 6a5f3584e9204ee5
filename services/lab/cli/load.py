"""`orrery demo` and `orrery replay`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from services.lab.cli.root import Selection, console, context_option, run
from services.lab.errors import LabError
from services.lab.state import MeshFolder

if TYPE_CHECKING:
    from services.lab.openb import TraceNode, TracePod
    from services.lab.replay import ReplayReport

_csv = click.Path(dir_okay=False, path_type=Path)


@click.command()
@context_option
@click.option("--nodes", "nodes_path", type=_csv, required=True, metavar="CSV", help="The trace's node list.")
@click.option("--pods", "pods_path", type=_csv, required=True, metavar="CSV", help="The trace's pod list.")
@click.option("--limit", type=click.IntRange(1), help="Only the first N pods.")
@click.option("--namespace", "-n", default="default", show_default=True, help="Where the pods go.")
@click.option(
    "--trace-ratio", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Share of pods traced."
)
@click.pass_context
def replay(
    ctx: click.Context, nodes_path: Path, pods_path: Path, limit: int | None, namespace: str, trace_ratio: float
) -> None:
    """Load the openb GPU trace into the running mesh: its machines, then its pods.

    API servers and schedulers may be killed meanwhile. Run again, it finds what is there and goes on. For the trace's
    machines alone, start the mesh with: orrery up --nodes 0
    """
    from kubelet_sim.fleet import load_catalogue
    from services.lab.openb import read_nodes, read_pods

    nodes = read_nodes(nodes_path, models=load_catalogue().trace_models)
    pods = read_pods(pods_path)[:limit]
    folder = ctx.ensure_object(Selection).folder
    report = run(_replay(folder, nodes, pods, namespace, trace_ratio))
    _print_report(report)
    if report.stalled:
        raise LabError("nothing moves any more, and the schedulers do not say why; look with: orrery status")


async def _replay(
    folder: MeshFolder, nodes: "list[TraceNode]", pods: "list[TracePod]", namespace: str, trace_ratio: float
) -> "ReplayReport":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from services.lab.connect import session
    from services.lab.replay import STAGES, Replay

    out = console(stderr=True)
    columns = (TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with session(folder, traced=True, trace_ratio=trace_ratio, timeout_seconds=20.0) as client:
        with Progress(*columns, console=out, refresh_per_second=4) as bars:
            totals = {"machines registered": len(nodes), "machines ready": len(nodes)}
            tasks = {stage: bars.add_task(stage, total=totals.get(stage, len(pods)), start=False) for stage in STAGES}

            def show(stage: str, done: int, total: int) -> None:
                bars.start_task(tasks[stage])
                bars.update(tasks[stage], completed=done, total=total)

            try:
                return await Replay(client, nodes, pods, namespace, show).run()
            except BaseException:
                bars.stop()
                out.print("the objects that were created stay; remove pods with: orrery delete pods --all --now")
                raise


def _print_report(report: "ReplayReport") -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column()
    share = report.gpu_milli_allocated / report.gpu_milli_total if report.gpu_milli_total else 0.0
    rows: list[tuple[str, str, str]] = [
        ("machines", f"{report.nodes:,}", ""),
        ("pods", f"{report.pods:,}", f"{report.existed:,} of the objects were there before" if report.existed else ""),
        ("placed", f"{report.placed:,}", f"{report.running:,} running at this moment"),
        ("pending", f"{report.pending:,}", f"{report.unschedulable:,} called unschedulable"),
        ("GPU milli allocated", f"{report.gpu_milli_allocated:,}", f"of {report.gpu_milli_total:,} ({share:.1%})"),
        ("GPU milli wanted", f"{report.gpu_milli_wanted:,}", ""),
        ("time", f"{report.seconds:.1f} s", f"{report.pods_per_second:,.0f} pods placed/s" if report.seconds else ""),
    ]
    if report.resubmitted:
        rows.append(("submitted again", f"{report.resubmitted:,}", "objects, after a lost answer or a killed server"))
    for row in rows:
        table.add_row(*row)
    console().print(table)


@click.command()
@click.option("--keep", is_flag=True, help="Leave the mesh running, as mesh 'demo', to look around in.")
@click.pass_context
def demo(ctx: click.Context, keep: bool) -> None:
    """A small GPU cluster from nothing to Running, with the trace of one pod. Leaves nothing behind."""
    from services.lab.demo import Demo

    del ctx
    out: Any = console()
    Demo(out, keep=keep).run()
