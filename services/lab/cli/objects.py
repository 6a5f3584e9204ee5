"""`orrery apply`, `get`, `delete`."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from services.lab.cli.root import Selection, context_option, run
from services.lab.errors import LabError
from services.lab.state import MeshFolder

if TYPE_CHECKING:
    from services.client.api import Stored
    from services.lab.connect import Session
    from services.model.kinds import Kind

DELETE_WAIT_SECONDS = 60.0
DELETES_IN_FLIGHT_MAX = 32
RECONNECT_SECONDS = 0.3

_namespace = click.option("--namespace", "-n", default="default", show_default=True, help="Namespace of the objects.")
_files = click.option(
    "--filename", "-f", "files", multiple=True, metavar="FILE|DIR|-", help="Manifests, YAML or JSON; repeatable."
)


@click.command()
@context_option
@_files
@_namespace
@click.pass_context
def apply(ctx: click.Context, files: tuple[str, ...], namespace: str) -> None:
    """Create or update objects from manifests. Prints a line for each; one that is wrong does not stop the others."""
    from services.lab.objects import read_sources

    if not files:
        raise click.UsageError("name what to apply: orrery apply -f FILE, -f DIR, or -f - for standard input")
    items = read_sources(files, sys.stdin.read() if "-" in files else None)
    wrong = run(_apply(ctx.ensure_object(Selection).folder, items, namespace))
    if not items:
        raise LabError("nothing to apply: no document in what was given")
    if wrong:
        raise LabError(f"{wrong} of {len(items)} not applied")


async def _apply(folder: MeshFolder, items: list[Any], namespace: str) -> int:
    from services.lab.connect import session
    from services.lab.objects import apply_all

    wrong = 0
    async with session(folder, traced=True) as client:
        async for outcome in apply_all(client, items, namespace):
            click.echo(outcome.text, err=not outcome.ok)
            wrong += not outcome.ok
    return wrong


def _targets(words: Sequence[str]) -> list[tuple[str, str]]:
    """(kind, name) of `pod x y`, `pod/x node/y`; the name is empty for `pods`."""
    if not words:
        raise click.UsageError("name a kind, such as pods, or an object, such as pod/NAME")
    if any("/" in word for word in words):
        pairs = [word.partition("/") for word in words]
        if not all(slash and name for _, slash, name in pairs):
            raise click.UsageError("write either KIND NAME ... or KIND/NAME ..., not both")
        return [(kind, name) for kind, _, name in pairs]
    kinds = words[0].split(",")
    if len(words) == 1:
        return [(kind, "") for kind in kinds]
    if len(kinds) > 1:
        raise click.UsageError("several kinds and a name do not go together")
    return [(words[0], name) for name in words[1:]]


@click.command()
@context_option
@click.argument("words", nargs=-1, metavar="KIND [NAME]...")
@_namespace
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="Objects of all namespaces.")
@click.option("--output", "-o", type=click.Choice(["wide", "yaml", "json", "name"]), help="How to print.")
@click.option("--watch", "-w", is_flag=True, help="Go on printing changes until Ctrl-C.")
@click.option("--selector", "-l", default="", metavar="SELECTOR", help="Labels, such as app=web,tier!=db.")
@click.option("--field-selector", default="", metavar="SELECTOR", help="Fields, such as status.phase=Running.")
@click.option("--no-headers", is_flag=True, help="Rows only.")
@click.pass_context
def get(
    ctx: click.Context,
    words: tuple[str, ...],
    namespace: str,
    everywhere: bool,
    output: str | None,
    watch: bool,
    selector: str,
    field_selector: str,
    no_headers: bool,
) -> None:
    """List objects, or show some. KIND is pods, nodes, events, leases, nodetopologies, ... or a short name (po, no).

    \b
    orrery get pods -o wide
    orrery get pod/trainer -o yaml
    orrery get events -A -w
    """
    from services.lab.objects import kind_named

    targets = [(kind_named(kind), name) for kind, name in _targets(words)]
    if watch and (len({kind for kind, _ in targets}) > 1 or len(targets) > 1):
        raise click.UsageError("--watch follows one kind or one object")
    view = _View("" if everywhere else namespace, everywhere, output, selector, field_selector, not no_headers)
    run(_get(ctx.ensure_object(Selection).folder, targets, view, watch=watch))


class _View:
    """What to select and how to print it."""

    def __init__(
        self, namespace: str, everywhere: bool, output: str | None, selector: str, fields: str, headers: bool
    ) -> None:
        self.namespace = namespace
        self.everywhere = everywhere
        self.output = output
        self.selector = selector
        self.fields = fields
        self.headers = headers

    def place(self, kind: "Kind") -> str:
        return self.namespace if kind.namespaced else ""

    def rows(self, kind: "Kind", items: "Sequence[Stored]") -> list[list[str]]:
        from services.lab.columns import cells
        from services.lab.objects import parse

        now_ns, wide = time.time_ns(), self.output == "wide"
        namespaces = self.everywhere and kind.namespaced
        return [cells(kind.name, parse(kind, item), now_ns, wide=wide, namespaces=namespaces) for item in items]

    def header(self, kind: "Kind") -> list[list[str]]:
        from services.lab.columns import header

        if not self.headers:
            return []
        return [header(kind.name, wide=self.output == "wide", namespaces=self.everywhere and kind.namespaced)]


async def _get(folder: MeshFolder, targets: "list[tuple[Kind, str]]", view: _View, *, watch: bool) -> None:
    from services.lab.connect import patiently, session

    async with session(folder) as client:
        found: list[tuple[Kind, list[Stored]]] = []
        for kind, name in targets:
            if name:
                if view.everywhere and kind.namespaced:
                    raise LabError("an object is named within one namespace: leave out -A, or give -n")
                items = [
                    await patiently(
                        lambda kind=kind, name=name: client.api.get(kind.resource, name, view.place(kind)),  # type: ignore[misc]
                        client.clock,
                        client.rng,
                    )
                ]
                version = items[0].resource_version
            else:
                items, version = await patiently(
                    lambda kind=kind: client.api.list(  # type: ignore[misc]
                        kind.resource, view.place(kind), label_selector=view.selector, field_selector=view.fields
                    ),
                    client.clock,
                    client.rng,
                )
            if found and found[-1][0] == kind:
                found[-1][1].extend(items)
            else:
                found.append((kind, list(items)))
        _print(found, view, single=len(targets) == 1 and bool(targets[0][1]))
        if watch:
            await _follow(client, targets[0], view, version, found[0][1])


def _print(found: "list[tuple[Kind, list[Stored]]]", view: _View, *, single: bool) -> None:
    from services.lab.columns import align
    from services.lab.objects import shown

    if view.output in ("yaml", "json"):
        objects = [shown(kind, item) for kind, items in found for item in items]
        data = objects[0] if single else {"apiVersion": "v1", "kind": "List", "items": objects}
        click.echo(_text(data, view.output), nl=False)
        return
    if view.output == "name":
        for kind, items in found:
            for item in items:
                click.echo(f"{kind.name.lower()}/{shown(kind, item)['metadata']['name']}")
        return
    if not any(items for _, items in found):
        place = "" if view.everywhere or not found[0][0].namespaced else f" in namespace {view.namespace}"
        click.echo(f"no {found[0][0].resource} found{place}", err=True)
        return
    blocks = ["\n".join(align([*view.header(kind), *view.rows(kind, items)])) for kind, items in found if items]
    click.echo("\n\n".join(blocks))


def _text(data: dict[str, Any], output: str) -> str:
    if output == "json":
        return json.dumps(data, indent=4) + "\n"
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, width=110, allow_unicode=True))


async def _follow(
    client: "Session", target: "tuple[Kind, str]", view: _View, version: str, first: "list[Stored]"
) -> None:
    """Prints each change as a row; columns keep the widths that the first rows had, and grow."""
    from protos.orrery.v1.api_pb2 import BOOKMARK, ERROR
    from services.client.api import Stored
    from services.lab.columns import align
    from services.model.errors import OutcomeUnknown, Unavailable
    from services.runtime.status import error_of

    kind, name = target
    fields = f"metadata.name={name}" if name else view.fields
    shape = [*view.header(kind), *view.rows(kind, first)]
    while True:
        try:
            async for response in client.api.watch(
                kind.resource,
                view.place(kind),
                resource_version=version,
                label_selector=view.selector,
                field_selector=fields,
            ):
                for event in response.events:
                    if event.type == ERROR:
                        raise error_of(event.status)
                    version = event.resource_version
                    if event.type == BOOKMARK:
                        continue
                    item = Stored(event.value, event.resource_version)
                    if view.output in ("yaml", "json", "name"):
                        _print([(kind, [item])], view, single=True)
                        continue
                    shape = [*shape[-50:], *view.rows(kind, [item])]
                    click.echo(align(shape)[-1])
        except (Unavailable, OutcomeUnknown):
            await client.clock.sleep(RECONNECT_SECONDS)


@click.command()
@context_option
@click.argument("words", nargs=-1, metavar="[KIND NAME...]")
@_files
@_namespace
@click.option("--all", "every", is_flag=True, help="All objects of KIND in the namespace.")
@click.option("--selector", "-l", default="", metavar="SELECTOR", help="All objects of KIND with these labels.")
@click.option("--grace-period", type=click.IntRange(0), help="Seconds that a pod has to end; its own by default.")
@click.option("--now", is_flag=True, help="The same as --grace-period 0.")
@click.option("--wait/--no-wait", default=True, help="Whether to wait until the objects are gone.")
@click.pass_context
def delete(
    ctx: click.Context,
    words: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str,
    every: bool,
    selector: str,
    grace_period: int | None,
    now: bool,
    wait: bool,
) -> None:
    """Delete objects by name, by label, or those of a manifest (-f)."""
    from services.lab.objects import kind_named, place, read_sources

    if bool(words) == bool(files):
        raise click.UsageError("name either objects (KIND NAME) or manifests (-f FILE)")
    targets: list[tuple[Kind, str, str]] = []
    errors: list[str] = []
    if files:
        from services.wire.manifests import Manifest

        for item in read_sources(files, sys.stdin.read() if "-" in files else None):
            if isinstance(item, Manifest):
                object_namespace, name = place(item, namespace)
                targets.append((item.kind, name, object_namespace))
            else:
                errors.append(getattr(item, "text", str(item)))
    else:
        targets = [(kind_named(kind), name, namespace) for kind, name in _targets(words)]
        if any(not name for _, name, _ in targets) and not (every or selector):
            raise click.UsageError("name the object, or say which: --all, or --selector")
    for error in errors:
        click.echo(error, err=True)
    grace = 0 if now else grace_period
    wrong = run(_delete(ctx.ensure_object(Selection).folder, targets, selector, grace, wait=wait))
    if wrong or errors:
        raise LabError(f"{wrong + len(errors)} not deleted")


async def _delete(
    folder: MeshFolder, targets: "list[tuple[Kind, str, str]]", selector: str, grace: int | None, *, wait: bool
) -> int:
    from services.lab.connect import session
    from services.lab.objects import delete as delete_one
    from services.lab.objects import shown

    wrong, seconds = 0, DELETE_WAIT_SECONDS if wait else 0.0
    async with session(folder) as client:
        wanted = []
        for kind, name, namespace in targets:
            if name:
                wanted.append((kind, name, namespace))
                continue
            items, _ = await client.api.list(
                kind.resource, namespace if kind.namespaced else "", label_selector=selector
            )
            wanted += [(kind, shown(kind, item)["metadata"]["name"], namespace) for item in items]
        for start in range(0, len(wanted), DELETES_IN_FLIGHT_MAX):
            outcomes = await asyncio.gather(
                *(
                    delete_one(client, kind, name, namespace, grace_seconds=grace, wait_seconds=seconds)
                    for kind, name, namespace in wanted[start : start + DELETES_IN_FLIGHT_MAX]
                )
            )
            for outcome in outcomes:
                click.echo(outcome.text, err=not outcome.ok)
                wrong += not outcome.ok
    return wrong
