"""`orrery explain`, `trace`, `topo`, `check`."""

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from services.lab.cli.root import Selection, console, context_option, run
from services.lab.errors import LabError, MeshDown
from services.lab.state import MeshFolder

if TYPE_CHECKING:
    from services.spans.store import SpanRecord

TRACE_ID = re.compile(r"[0-9a-f]{32}")

_namespace = click.option("--namespace", "-n", default="default", show_default=True, help="Namespace of the pod.")


def pod_name(word: str) -> str:
    """The name in `pod/NAME` or `NAME`. Raises click.UsageError for another kind."""
    kind, slash, name = word.partition("/")
    if not slash:
        return word
    if kind not in ("pod", "pods", "po") or not name:
        raise click.UsageError(f"{word!r} is no pod; write pod/NAME")
    return name


@click.command()
@context_option
@click.argument("pod", metavar="pod/NAME")
@_namespace
@click.option("--all", "every", is_flag=True, help="All attempts that are remembered.")
@click.pass_context
def explain(ctx: click.Context, pod: str, namespace: str, every: bool) -> None:
    """Say why a pod went where it went, or why it went nowhere.

    For each attempt: nodes looked at, rejections by plugin and reason, scores of the best nodes by plugin.
    """
    run(_explain(ctx.ensure_object(Selection).folder, namespace, pod_name(pod), every=every))


async def _explain(folder: MeshFolder, namespace: str, name: str, *, every: bool) -> None:
    from protos.orrery.v1.event_pb2 import Event
    from protos.orrery.v1.pod_pb2 import Pod
    from protos.orrery.v1.scheduler_pb2 import ExplainRequest
    from services.lab.connect import explanations, patiently, session
    from services.lab.explain_view import explanation

    async with session(folder) as client:
        stored = await patiently(lambda: client.api.get("pods", name, namespace), client.clock, client.rng)
        pod = Pod.FromString(stored.value)
        request = ExplainRequest(namespace=namespace, name=name, uid=pod.metadata.uid)
        attempts = await explanations(client.transport, client.record.of("scheduler"), request)
        events: list[Event] = []
        if not attempts:
            found, _ = await client.api.list("events", namespace, field_selector=f"involvedObject.name={name}")
            events = [Event.FromString(item.value) for item in found]
    out = console()
    for part in explanation(pod, attempts, events, time.time_ns(), every=every):
        out.print(part)


@click.command()
@context_option
@click.argument("pod", metavar="pod/NAME")
@_namespace
@click.option("--json", "as_json", is_flag=True, help='Print {"traceID": ..., "spans": [...]}.')
@click.option("--events/--no-events", default=True, help="Whether events within spans are listed.")
@click.option("--depth", type=click.IntRange(0), help="Leave out what lies deeper; 2 shows no single plugins.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture there, and print nothing."
)
@click.option("--store", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Another span store.")
@click.pass_context
def trace(
    ctx: click.Context,
    pod: str,
    namespace: str,
    as_json: bool,
    events: bool,
    depth: int | None,
    svg: Path | None,
    store: Path | None,
) -> None:
    """Show the trace of a pod: every process that worked on it, as a tree with durations.

    In place of pod/NAME the id of any trace may be given.
    """
    from services.lab.spans import settled_trace, trace_source
    from services.lab.trace_view import trace_json, trace_text

    folder = ctx.ensure_object(Selection).folder
    trace_id = pod if TRACE_ID.fullmatch(pod) else run(_trace_id(folder, namespace, pod_name(pod)))
    source = trace_source(folder, store)
    try:
        spans = settled_trace(source, trace_id)
    finally:
        source.close()
    if as_json:
        click.echo(json.dumps(trace_json(trace_id, spans), indent=2))
        return
    if not spans:
        raise LabError(
            f"trace {trace_id} has no spans in {source.where}: it was not sampled (a replay traces its "
            "--trace-ratio of the pods), or it is so old that it made room for others"
        )
    if svg is not None:
        from services.lab.trace_svg import trace_svg

        svg.write_text(trace_svg(spans, _title(trace_id, spans), depth), encoding="utf-8")
        return
    out = console()
    out.print(f"trace [bold]{trace_id}[/], {len(spans)} spans by {', '.join(sorted({s.instance for s in spans}))}\n")
    out.print(trace_text(spans, out.width, events=events, depth_max=depth), soft_wrap=True)


def _title(trace_id: str, spans: "list[SpanRecord]") -> str:
    pod = next((name for span in spans if (name := span.attributes.get("k8s.pod.name"))), "")
    return f"pod/{pod}, trace {trace_id}" if pod else f"trace {trace_id}"


@click.command()
@context_option
@click.option("--service", default="orrery-scheduler", show_default=True, help="With a span of this service,")
@click.option("--operation", default="", metavar="NAME", help="of this name,")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="with this attribute; repeatable.")
@click.option(
    "--process", "processes", multiple=True, metavar="NAME", help="And with spans of this process; repeatable."
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many to list.")
@click.option("--count", is_flag=True, help="Print how many there are, and nothing else.")
@click.pass_context
def traces(
    ctx: click.Context,
    service: str,
    operation: str,
    tags: tuple[str, ...],
    processes: tuple[str, ...],
    limit: int,
    count: bool,
) -> None:
    """Find traces: fenced binds, failed attempts, slow ones, those that two leaders worked on.

    \b
    orrery traces --tag orrery.bind.outcome=FENCED
    orrery traces --process scheduler-0 --process scheduler-1
    """
    from services.lab.spans import find_traces

    wanted = dict(_tag(tag) for tag in tags)
    found = find_traces(ctx.ensure_object(Selection).folder, service, operation, wanted, processes)
    if count:
        click.echo(len(found))
        return
    for line in _trace_table(found[:limit]):
        click.echo(line)
    if not found:
        raise LabError("no such trace")
    if len(found) > limit:
        click.echo(f"... and {len(found) - limit} more (--limit)", err=True)


def _tag(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise click.UsageError(f"--tag {text!r} is not KEY=VALUE, such as orrery.bind.outcome=FENCED")
    return key, value


def _trace_table(found: "list[list[SpanRecord]]") -> list[str]:
    from services.lab.columns import align
    from services.lab.trace_view import duration_text

    rows = [["TRACE", "POD", "SPANS", "TOOK", "PROCESSES", "SAYS"]]
    for spans in found:
        pod = next((name for span in spans if (name := span.attributes.get("k8s.pod.name"))), "-")
        took = max(span.end_ns for span in spans) - min(span.start_ns for span in spans)
        processes = ",".join(sorted({span.instance for span in spans}))
        said = next((span.error for span in spans if span.error), "")
        rows.append([spans[0].trace_id, str(pod), str(len(spans)), duration_text(took), processes, said[:80]])
    return align(rows)


async def _trace_id(folder: MeshFolder, namespace: str, name: str) -> str:
    from services.lab.connect import patiently, session
    from services.model.names import ANNOTATION_TRACEPARENT
    from services.runtime.telemetry import parse_traceparent
    from services.wire.metadata import read_envelope

    async with session(folder) as client:
        stored = await patiently(lambda: client.api.get("pods", name, namespace), client.clock, client.rng)
    annotations = read_envelope(stored.value).metadata.annotations
    context = parse_traceparent(annotations.get(ANNOTATION_TRACEPARENT, ""))
    if context is None:
        raise LabError(
            f"pod/{name} carries no trace (annotation {ANNOTATION_TRACEPARENT}); it was created without telemetry"
        )
    return f"{context.trace_id:032x}"


@click.command()
@context_option
@click.argument("node")
@click.pass_context
def topo(ctx: click.Context, node: str) -> None:
    """Print a machine's GPU topology as `nvidia-smi topo -m` would."""
    click.echo(run(_topo(ctx.ensure_object(Selection).folder, node.removeprefix("node/"))), nl=False)


async def _topo(folder: MeshFolder, node: str) -> str:
    from services.lab.connect import patiently, session
    from services.model.errors import NotFound
    from services.model.topology import topology_matrix
    from services.wire.topology import topology_view

    async with session(folder) as client:
        try:
            stored = await patiently(lambda: client.api.get("nodetopologies", node), client.clock, client.rng)
        except NotFound:
            raise LabError(f"no machine {node!r} has reported its hardware; orrery get nodes lists them") from None
    return topology_matrix(topology_view(stored.value))


@click.command()
@context_option
@click.option(
    "--settle", type=click.FloatRange(0), default=5.0, show_default=True, help="Seconds that a busy scheduler is given."
)
@click.option("--json", "as_json", is_flag=True, help="The result for programs.")
@click.pass_context
def check(ctx: click.Context, settle: float, as_json: bool) -> None:
    """Read etcd independently and verify: ledgers equal the pods, and nothing that pends would fit.

    Exit code 1 on any difference, and when there was nothing to check.
    """
    from services.lab.check import CheckError, run_check, summary

    folder = ctx.ensure_object(Selection).folder
    record = folder.read()
    members = [process for process in record.of("etcd") if process.alive() and process.port] if record else []
    if not members:
        raise MeshDown(folder.name)
    try:
        result = run_check(members[0].address, settle_seconds=settle)
    except CheckError as error:
        raise LabError(str(error)) from error
    click.echo(json.dumps(result.to_json(), indent=2) if as_json else "\n".join(summary(result)))
    if not result.agrees:
        raise LabError(f"{len(result.differences)} differences")
    if not result.nodes and not result.pods:
        raise LabError("nothing was checked: the mesh holds neither nodes nor pods")
