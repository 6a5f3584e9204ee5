"""Applying and deleting objects: one result line each, whatever becomes of the others.

Create is tried first; where the object is there already, the manifest is merged into it and the update is fenced by the
version that was read, again and again while others write. A call whose outcome is unknown is repeated: creating by name
and deleting by uid are safe to repeat.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from google.protobuf.message import Message

from services.client.api import Stored
from services.lab.connect import Session, patiently, span
from services.lab.errors import LabError
from services.lab.merge import LAST_APPLIED, three_way
from services.model.errors import AlreadyExists, ApiError, Conflict, NotFound, Unavailable
from services.model.kinds import KINDS, Kind, find_kind
from services.wire.codec import from_json, to_json
from services.wire.kinds import message_class
from services.wire.manifests import Manifest, ManifestError, read_manifests

UPDATE_ATTEMPTS_MAX = 8
GONE_POLL_SECONDS = 0.1
_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One object's line. `ok` False: the text says what is wrong and where."""

    text: str
    ok: bool = True


def kind_named(word: str) -> Kind:
    """Raises LabError for a word that names no kind."""
    kind = find_kind(word)
    if kind is None:
        known = ", ".join(
            f"{kind.resource} ({kind.short_names[0]})" if kind.short_names else kind.resource for kind in KINDS
        )
        raise LabError(f"there is no kind {word!r}; there are {known}")
    return kind


def read_sources(sources: Sequence[str], stdin: str | None) -> list[Manifest | ManifestError | Outcome]:
    """The manifests of files, of the manifest files in folders, and of `-` (`stdin`), in that order; an Outcome stands
    for what could not be read. A second object of the same name is a failed Outcome.

    Raises:
        LabError: a folder without any manifest.
    """
    read: list[Manifest | ManifestError | Outcome] = []
    for source in sources:
        if source == "-":
            read += read_manifests(stdin or "", "standard input")
            continue
        path = Path(source)
        paths = [path]
        if path.is_dir():
            paths = sorted(item for item in path.iterdir() if item.suffix in _SUFFIXES and item.is_file())
            if not paths:
                raise LabError(f"{source} holds no manifest: no file ends in {', '.join(_SUFFIXES)}")
        for item in paths:
            try:
                read += read_manifests(item.read_text(encoding="utf-8"), str(item))
            except OSError as error:
                read.append(Outcome(f"{item}: cannot be read: {error.strerror}", ok=False))
            except UnicodeDecodeError as error:
                read.append(Outcome(f"{item}: is not UTF-8 text (byte {error.start})", ok=False))
    return read


def place(manifest: Manifest, namespace: str) -> tuple[str, str]:
    """Puts the object into `namespace` where it names none; returns its namespace and name."""
    metadata = cast("Any", manifest.message).metadata
    if manifest.kind.namespaced and not metadata.namespace:
        metadata.namespace = namespace
    return metadata.namespace, metadata.name


def where(item: Manifest) -> str:
    return f"{item.source}:{item.line}"


async def apply_all(
    client: Session, items: Sequence[Manifest | ManifestError | Outcome], namespace: str
) -> AsyncIterator[Outcome]:
    """Applies one after the other and yields each one's line. Raises Unavailable when no server answers for long."""
    first: dict[tuple[str, str, str], str] = {}
    for item in items:
        if isinstance(item, Outcome):
            yield item
            continue
        if isinstance(item, ManifestError):
            yield Outcome(str(item), ok=False)
            continue
        object_namespace, name = place(item, namespace)
        title = f"{item.kind.name.lower()}/{name}" if name else item.kind.name.lower()
        identity = (item.kind.resource, object_namespace, name)
        if name and identity in first:
            yield Outcome(f"{where(item)}: {title} stands already at {first[identity]}; give it another name", ok=False)
            continue
        first[identity] = where(item)
        try:
            async with span(f"apply {title}", **{"orrery.source": where(item)}):
                name, done = await _apply(client, item, object_namespace, name)
            yield Outcome(f"{item.kind.name.lower()}/{name} {done}")
        except Unavailable:
            # Waited for long enough; the rest would only wait as long again, each.
            raise
        except ApiError as error:
            causes = "".join(f"\n    {cause.field}: {cause.message}" for cause in error.causes)
            shown = error.message if not causes else f"{error.reason}{causes}"
            yield Outcome(f"{where(item)}: {title}: {shown}", ok=False)


async def _apply(client: Session, item: Manifest, namespace: str, name: str) -> tuple[str, str]:
    """The object's name and "created", "configured" or "unchanged"."""
    resource = item.kind.resource
    given = to_json(item.message)
    mark = json.dumps(given, sort_keys=True, separators=(",", ":"))
    cast("Any", item.message).metadata.annotations[LAST_APPLIED] = mark
    try:
        created = await patiently(lambda: client.api.create(resource, item.message), client.clock, client.rng)
    except AlreadyExists:
        return name, await _update(client, item, namespace, name, mark)
    return cast("Any", message_class(item.kind).FromString(created.object.value)).metadata.name, "created"


async def _update(client: Session, item: Manifest, namespace: str, name: str, mark: str) -> str:
    resource, cls = item.kind.resource, message_class(item.kind)
    given = json.loads(mark)
    for attempt in range(UPDATE_ATTEMPTS_MAX):
        stored = await patiently(lambda: client.api.get(resource, name, namespace), client.clock, client.rng)
        live = to_json(cls.FromString(stored.value))
        last = json.loads(live["metadata"].get("annotations", {}).get(LAST_APPLIED, "{}"))
        wanted = three_way(last, given, live)
        wanted.setdefault("metadata", {}).setdefault("annotations", {})[LAST_APPLIED] = mark
        if wanted == live:
            return "unchanged"
        changed = from_json(wanted, cls)
        try:
            await client.api.update(resource, changed, resource_version=stored.resource_version)
        except Conflict:
            if attempt == UPDATE_ATTEMPTS_MAX - 1:
                raise
        else:
            return "configured"
    raise AssertionError("the last attempt returns or raises")


async def delete(
    client: Session, kind: Kind, name: str, namespace: str, *, grace_seconds: int | None, wait_seconds: float
) -> Outcome:
    """Deletes one object and, with `wait_seconds` above 0, waits until it is gone."""
    title = f"{kind.name.lower()}/{name}"
    place = namespace if kind.namespaced else ""
    try:
        stored = await patiently(lambda: client.api.get(kind.resource, name, place), client.clock, client.rng)
        uid = cast("Any", message_class(kind).FromString(stored.value)).metadata.uid
        try:
            answer = await patiently(
                lambda: client.api.delete(kind.resource, name, place, uid=uid, grace_period_seconds=grace_seconds),
                client.clock,
                client.rng,
            )
        except NotFound:
            # An earlier attempt of ours whose answer was lost, or somebody else: gone is gone.
            return Outcome(f"{title} deleted")
        waiting = answer.terminating and wait_seconds > 0
        if waiting and not await _wait_gone(client, kind, name, place, uid, wait_seconds):
            return Outcome(f"{title} is still terminating after {wait_seconds:.0f} s", ok=False)
        return Outcome(f"{title} deleted")
    except ApiError as error:
        return Outcome(f"{title}: {error.message}", ok=False)


async def _wait_gone(client: Session, kind: Kind, name: str, namespace: str, uid: str, seconds_max: float) -> bool:
    deadline = client.clock.monotonic() + seconds_max
    while client.clock.monotonic() < deadline:
        try:
            stored = await patiently(lambda: client.api.get(kind.resource, name, namespace), client.clock, client.rng)
        except NotFound:
            return True
        if cast("Any", message_class(kind).FromString(stored.value)).metadata.uid != uid:
            return True
        await client.clock.sleep(GONE_POLL_SECONDS)
    return False


def shown(kind: Kind, stored: Stored) -> dict[str, Any]:
    """An object as `-o yaml` and `-o json` show it: apiVersion and kind first, the version in the metadata."""
    message = message_class(kind).FromString(stored.value)
    data = {"apiVersion": kind.api_version, "kind": kind.name, **to_json(message)}
    data["metadata"] = {**data.get("metadata", {}), "resourceVersion": stored.resource_version}
    return data


def parse(kind: Kind, stored: Stored) -> Message:
    return message_class(kind).FromString(stored.value)
