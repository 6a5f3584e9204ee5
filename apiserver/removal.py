"""Delete: grace for bound pods, finalizers, preconditions; the removal itself, which gives back what a pod held."""

from typing import Any

from apiserver.committer import Committed
from apiserver.core.groups import Change, RegistryPut
from apiserver.core.keys import registry_key
from apiserver.core.registry import Entry
from apiserver.effects import effects_of
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
    raise_if_fenced,
    read_entry,
    serialize,
    stored_object,
)
from apiserver.store.protocol import Delete, Put
from protos.orrery.v1.api_pb2 import DeleteRequest, Fence, Object, WriteResponse
from services.model.errors import Conflict, Forbidden
from services.model.kinds import KINDS, Kind
from services.model.names import NAMESPACE_DEFAULT, NAMESPACE_NODE_LEASE, NAMESPACE_SYSTEM
from services.wire.pod import placement_view

_TERMINAL = ("Succeeded", "Failed")
_LASTING_NAMESPACES = (NAMESPACE_DEFAULT, NAMESPACE_SYSTEM, NAMESPACE_NODE_LEASE)


async def delete(tools: Tools, request: DeleteRequest) -> WriteResponse:
    """Deletes an object, or begins its deletion.

    Raises:
        NotFound, Conflict (uid or version), Forbidden (a namespace that stays), Fenced, and the store's faults.
    """
    kind = find_writable_kind(request.resource)
    fence = request.fence if request.HasField("fence") else None
    check_fence(tools, fence)
    path = f"{request.namespace}/{request.name}" if kind.namespaced else request.name
    entry = cached_entry(tools, kind, request.namespace, request.name)
    fresh = False
    for _ in range(ATTEMPTS_MAX):
        if (entry is None or _precondition(request, kind, entry)) and not fresh:
            entry, fresh = await read_entry(tools, kind, request.namespace, request.name), True
        if entry is None:
            raise not_found(kind, path)
        if (why := _precondition(request, kind, entry)) is not None:
            raise why
        old = stored_object(kind, entry)
        if kind.name == "Namespace":
            await tools.cache.wait_fresh()
            _refuse_namespace(tools, request.name)
        committed, answer = await _step(tools, kind, entry, old, request, fence)
        if committed is None or committed.succeeded:
            return answer
        await raise_if_fenced(tools, fence)
        if kind.name in ("Node", "NodeTopology"):
            await tools.ledgers.refresh(request.name)
        entry, fresh = await _look_again(tools, kind, request, committed), True
    raise Conflict(f'the deletion of {kind.resource} "{request.name}" lost to others {ATTEMPTS_MAX} times; try again')


async def _look_again(tools: Tools, kind: Kind, request: DeleteRequest, committed: Committed) -> Entry | None:
    if committed.records:
        return from_record(committed.records[0])
    return await read_entry(tools, kind, request.namespace, request.name)


def _precondition(request: DeleteRequest, kind: Kind, entry: Entry) -> Conflict | None:
    uid = str(stored_object(kind, entry).metadata.uid) if request.uid else ""
    if request.uid and uid != request.uid:
        return Conflict(f"Precondition failed: UID in precondition: {request.uid}, UID in object meta: {uid}")
    if request.resource_version and str(entry.version) != request.resource_version:
        return Conflict(
            f"Precondition failed: ResourceVersion in precondition: {request.resource_version}, "
            f"ResourceVersion in object meta: {entry.version}",
            resource_version=str(entry.version),
        )
    return None


def _refuse_namespace(tools: Tools, name: str) -> None:
    """The system's namespaces stay; any other must be empty, since nothing here empties it."""
    if name in _LASTING_NAMESPACES:
        raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
    for kind in KINDS:
        if kind.namespaced and (left := tools.cache.registry.objects[kind.resource].paths_after(name, "")):
            raise Conflict(f'namespaces "{name}" still has {len(left)} {kind.resource}; delete them first')


async def _step(
    tools: Tools, kind: Kind, entry: Entry, old: Any, request: DeleteRequest, fence: Fence | None
) -> tuple[Committed | None, WriteResponse]:
    """One attempt. No commit means that there was nothing to do: the deletion is under way already."""
    grace = _grace_seconds(kind, old, request)
    if grace == 0 and not old.metadata.finalizers:
        committed = await remove_entry(tools, kind, entry, old, fence)
        version = str(committed.versions[0]) if committed.versions else ""
        return committed, WriteResponse(object=Object(value=entry.value, resource_version=version))
    deleting = old.metadata.HasField("deletion_timestamp")
    if deleting and old.metadata.deletion_grace_period_seconds <= grace:
        return None, WriteResponse(
            object=Object(value=entry.value, resource_version=str(entry.version)), terminating=True
        )
    new = type(old)()
    new.CopyFrom(old)
    new.metadata.deletion_timestamp.seconds = tools.clock.wall_ns() // 1_000_000_000 + grace
    new.metadata.deletion_grace_period_seconds = grace
    new.metadata.generation = old.metadata.generation + 1
    key = registry_key(kind, entry.namespace, request.name)
    value = serialize(new)
    change = Change(
        (unchanged(key, entry.revision), *fence_compares(fence)), (RegistryPut(key, value),), (key,), tools.new_id()
    )
    committed = await tools.committer.commit(change)
    version = str(committed.versions[0]) if committed.versions else ""
    return committed, WriteResponse(object=Object(value=value, resource_version=version), terminating=True)


def _grace_seconds(kind: Kind, old: Any, request: DeleteRequest) -> int:
    """Only a pod that a kubelet may be running gets grace (pod strategy CheckGracefulDelete)."""
    if kind.name != "Pod" or not old.spec.node_name or old.status.phase in _TERMINAL:
        return 0
    if request.HasField("grace_period_seconds"):
        return max(0, request.grace_period_seconds)
    return int(old.spec.termination_grace_period_seconds)


async def remove_entry(tools: Tools, kind: Kind, entry: Entry, old: Any, fence: Fence | None) -> Committed:
    """Removes the object while it is still `entry`; a pod's place is given back in the same transaction."""
    key = registry_key(kind, entry.namespace, old.metadata.name)
    compares = (unchanged(key, entry.revision), *fence_compares(fence))
    if kind.name == "Pod" and old.HasField("placed") and old.status.phase not in _TERMINAL:
        return await tools.releaser.release(placement_view(old.placed), compares, Delete(key), tools.new_id())
    effects = effects_of(tools.ledgers, old, None)
    change = Change((*compares, *effects.compares), (Delete(key), *effects.writes), (key,), tools.new_id())
    committed = await tools.committer.commit(change)
    if committed.succeeded:
        for write in effects.writes:
            if isinstance(write, Put):
                tools.ledgers.wrote(write.key, write.value, committed.revision)
    return committed
