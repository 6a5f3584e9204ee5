"""Update, UpdateStatus, PatchStatus: an edit of the current object, committed while it is still current.

All three are one loop: read the entry, edit its message, write with a comparison of its revision. Where the caller named
a version, losing that comparison is a Conflict; otherwise the edit is made again on what is there now. A pod that enters
a terminal phase gives back its place in the same transaction.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from apiserver.committer import Committed
from apiserver.core.groups import Change, RegistryPut
from apiserver.core.keys import epoch_key, registry_key
from apiserver.core.merge import merge_patch
from apiserver.core.registry import Entry
from apiserver.core.validation import describe, validate_update
from apiserver.core.versions import parse_version, revision_of
from apiserver.create import note_ledger_writes, refuse_invalid
from apiserver.effects import Effects, effects_of
from apiserver.ledgers import unchanged
from apiserver.objects import (
    ATTEMPTS_MAX,
    Tools,
    cached_entry,
    check_fence,
    fence_compares,
    find_writable_kind,
    from_record,
    not_found,
    parse_object,
    raise_if_fenced,
    read_entry,
    serialize,
    stored_object,
)
from apiserver.removal import remove_entry
from protos.orrery.v1.api_pb2 import Fence, Object, PatchRequest, WriteRequest, WriteResponse
from services.model.errors import BadRequest, Cause, Conflict, Invalid
from services.model.kinds import Kind
from services.wire.pod import placement_view
from services.wire.status_patch import PatchError, patch_status_of

TERMINAL = ("Succeeded", "Failed")
# Set by the server, kept over every update.
_KEPT_METADATA = ("uid", "creation_timestamp", "generation", "deletion_timestamp", "deletion_grace_period_seconds")
# `edit(old) -> new`: a new message; it may raise ApiError.
Edit = Callable[[Any], Any]


async def update(tools: Tools, request: WriteRequest) -> WriteResponse:
    """Replaces everything but status and what the server owns."""
    kind = find_writable_kind(request.resource)
    given = parse_object(kind, request.value)

    def edit(old: Any) -> Any:
        new = type(old)()
        new.CopyFrom(given)
        _keep_server_fields(kind, old, new)
        if given.metadata.uid and given.metadata.uid != old.metadata.uid:
            raise Conflict(f"uid {given.metadata.uid} is not that of the object, {old.metadata.uid}")
        if _differ_in_spec(kind, old, new):
            new.metadata.generation = old.metadata.generation + 1
        if causes := validate_update(kind, old, new):
            raise Invalid(describe(kind, new.metadata.name, causes), causes=tuple(causes))
        refuse_invalid(tools, kind, new)
        return new

    version = request.resource_version or given.metadata.resource_version
    fence = request.fence if request.HasField("fence") else None
    return await _apply(
        tools, kind, given.metadata.namespace, given.metadata.name, edit, version, fence, dry_run=request.dry_run
    )


def _keep_server_fields(kind: Kind, old: Any, new: Any) -> None:
    for field in _KEPT_METADATA:
        new.metadata.ClearField(field)
        if old.metadata.HasField(field):
            value = getattr(old.metadata, field)
            if isinstance(value, Message):
                getattr(new.metadata, field).CopyFrom(value)
            else:
                setattr(new.metadata, field, value)
    if kind.has_status:
        new.ClearField("status")
        new.status.CopyFrom(old.status)
    if kind.name == "Pod":
        new.ClearField("placed")
        if old.HasField("placed"):
            new.placed.CopyFrom(old.placed)


def _differ_in_spec(kind: Kind, old: Any, new: Any) -> bool:
    return kind.name not in ("Event", "PriorityClass", "Lease") and bool(old.spec != new.spec)


async def update_status(tools: Tools, request: WriteRequest) -> WriteResponse:
    """Replaces status and nothing else."""
    kind = find_writable_kind(request.resource)
    _refuse_without_status(kind)
    given = parse_object(kind, request.value)

    def edit(old: Any) -> Any:
        new = type(old)()
        new.CopyFrom(old)
        new.status.CopyFrom(given.status)
        _refuse_bad_status(tools, kind, old, new)
        return new

    version = request.resource_version or given.metadata.resource_version
    fence = request.fence if request.HasField("fence") else None
    return await _apply(
        tools, kind, given.metadata.namespace, given.metadata.name, edit, version, fence, dry_run=request.dry_run
    )


async def patch_status(tools: Tools, request: PatchRequest) -> WriteResponse:
    """Merges a patch into status and nothing else."""
    kind = find_writable_kind(request.resource)
    _refuse_without_status(kind)

    def edit(old: Any) -> Any:
        if request.uid and request.uid != old.metadata.uid:
            raise Conflict(f'{kind.resource} "{request.name}" has uid {old.metadata.uid}, not {request.uid}')
        try:
            new = patch_status_of(old, request.patch, merge_patch)
        except PatchError as error:
            causes = tuple(Cause(path, "FieldValueInvalid", why) for path, why in error.errors)
            if causes:
                raise Invalid(f"the patch does not apply: {error}", causes=causes) from error
            raise BadRequest(f"the patch cannot be read: {error}") from error
        _refuse_bad_status(tools, kind, old, new)
        return new

    fence = request.fence if request.HasField("fence") else None
    return await _apply(tools, kind, request.namespace, request.name, edit, request.resource_version, fence)


def _refuse_without_status(kind: Kind) -> None:
    if not kind.has_status:
        raise BadRequest(f"{kind.resource} has no status")


def _refuse_bad_status(tools: Tools, kind: Kind, old: Any, new: Any) -> None:
    if kind.name == "Pod" and old.status.phase in TERMINAL and new.status.phase != old.status.phase:
        why = f'Forbidden: a pod that has {old.status.phase.lower()} stays so; "{new.status.phase}" is refused'
        cause = Cause("status.phase", "FieldValueForbidden", why)
        raise Invalid(describe(kind, old.metadata.name, [cause]), causes=(cause,))
    if kind.name == "Node":
        refuse_invalid(tools, kind, new)


async def _apply(
    tools: Tools,
    kind: Kind,
    namespace: str,
    name: str,
    edit: Edit,
    version: str,
    fence: Fence | None,
    *,
    dry_run: bool = False,
) -> WriteResponse:
    """The loop. Raises NotFound, Conflict, Fenced, whatever `edit` raises, and the store's faults."""
    check_fence(tools, fence)
    path = f"{namespace}/{name}" if kind.namespaced else name
    entry = cached_entry(tools, kind, namespace, name)
    fresh = False
    if version and (entry is None or str(entry.version) != version):
        await _wait_for_version(tools, version)
        entry, fresh = await read_entry(tools, kind, namespace, name), True
    for _ in range(ATTEMPTS_MAX):
        if entry is None and not fresh:
            entry, fresh = await read_entry(tools, kind, namespace, name), True
        if entry is None:
            raise not_found(kind, path)
        if version and str(entry.version) != version:
            raise _outdated(kind, path, version, entry)
        old = stored_object(kind, entry)
        new = edit(old)
        if new == old or dry_run:
            return _unchanged_answer(tools, kind, entry, serialize(new))
        effects = effects_of(tools.ledgers, old, new)
        committed = await _commit(tools, kind, entry, old, new, effects, fence)
        if committed.succeeded:
            note_ledger_writes(tools, effects, committed.revision)
            return _answer(tools, kind, new, committed, effects)
        await raise_if_fenced(tools, fence)
        if effects.compares:
            await tools.ledgers.refresh(name)
        entry, fresh = await _look_again(tools, kind, entry, committed), True
    raise Conflict(f'the write of {kind.resource} "{name}" lost to others {ATTEMPTS_MAX} times; try again')


async def _look_again(tools: Tools, kind: Kind, entry: Entry, committed: Committed) -> Entry | None:
    if committed.records:
        return from_record(committed.records[0])
    return await read_entry(tools, kind, entry.namespace, entry.path.rpartition("/")[2])


async def _wait_for_version(tools: Tools, version: str) -> None:
    parsed = parse_version(version)
    if parsed is None:
        raise BadRequest(f"resourceVersion {version!r} is not one that this server gave")
    await tools.cache.wait_for(revision_of(parsed), seconds_max=0.5)


def _outdated(kind: Kind, path: str, version: str, entry: Entry) -> Conflict:
    name = path.rpartition("/")[2]
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return Conflict(
        f'Operation cannot be fulfilled on {kind.resource} "{name}": {why} (it is at {entry.version}, not at {version})',
        resource_version=str(entry.version),
    )


async def _commit(
    tools: Tools, kind: Kind, entry: Entry, old: Any, new: Any, effects: Effects, fence: Fence | None
) -> Committed:
    """Writes `new` over `entry`; a pod that ends, or whose last finalizer goes, gives back its place with it."""
    if new.metadata.HasField("deletion_timestamp") and not new.metadata.finalizers and _only_waits_for_finalizers(old):
        return await remove_entry(tools, kind, entry, old, fence)
    key = registry_key(kind, entry.namespace, new.metadata.name)
    compares = (unchanged(key, entry.revision), *fence_compares(fence), *effects.compares)
    put = RegistryPut(key, serialize(new))
    if kind.name == "Pod" and ends(old, new):
        return await tools.releaser.release(placement_view(old.placed), compares, put, tools.new_id())
    return await tools.committer.commit(Change(compares, (put, *effects.writes), (key,), tools.new_id()))


def _only_waits_for_finalizers(old: Any) -> bool:
    return bool(old.metadata.finalizers) and old.metadata.deletion_grace_period_seconds == 0


def ends(old: Any, new: Any) -> bool:
    """Whether this write takes a placed pod into a terminal phase."""
    return bool(old.HasField("placed") and old.status.phase not in TERMINAL and new.status.phase in TERMINAL)


def _unchanged_answer(tools: Tools, kind: Kind, entry: Entry, value: bytes) -> WriteResponse:
    response = WriteResponse(object=Object(value=value, resource_version=str(entry.version)))
    if kind.name == "Lease":
        response.fencing_token = current_token(tools, entry.path)
    return response


def _answer(tools: Tools, kind: Kind, new: Any, committed: Committed, effects: Effects) -> WriteResponse:
    stored = Object(value=serialize(new), resource_version=str(committed.versions[0]) if committed.versions else "")
    response = WriteResponse(object=stored)
    if kind.name == "Lease":
        lease = f"{new.metadata.namespace}/{new.metadata.name}"
        response.fencing_token = committed.revision if effects.epoch_lease else current_token(tools, lease)
    return response


def current_token(tools: Tools, lease: str) -> int:
    """The epoch's token as the cache knows it; 0 when it knows none."""
    record = tools.cache.registry.plain.get(epoch_key(lease))
    return record.mod_revision if record is not None else 0
