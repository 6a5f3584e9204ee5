"""Create: defaults, admission, validation, and one change whose comparison is that the key is absent."""

from typing import Any

from apiserver.committer import Ridden
from apiserver.core.defaults import (
    GENERATED_ALPHABET,
    GENERATED_SUFFIX_CHARACTERS,
    begin_status,
    default_object,
)
from apiserver.core.groups import Change, RegistryPut
from apiserver.core.keys import registry_key, taken_key
from apiserver.core.validation import describe, validate
from apiserver.effects import Effects, effects_of
from apiserver.ledgers import unchanged
from apiserver.objects import (
    ATTEMPTS_MAX,
    Tools,
    check_fence,
    fence_compares,
    find_writable_kind,
    parse_object,
    raise_if_fenced,
    read_entry,
    serialize,
)
from apiserver.placing import choose_devices
from apiserver.store.protocol import Compare, Put, Relation, Target
from protos.orrery.v1.api_pb2 import Object, WriteRequest, WriteResponse
from services.model.errors import AlreadyExists, Cause, Conflict, Forbidden, Invalid, NotFound
from services.model.kinds import KIND_BY_RESOURCE, Kind
from services.model.names import ANNOTATION_TRACEPARENT
from services.model.pod import Placement
from services.model.pod_requests import DeviceRequestError
from services.wire.ledger import write_taken
from services.wire.metadata import DecodeError
from services.wire.pod import placement_message

_NAMESPACES = KIND_BY_RESOURCE["namespaces"]
_PRIORITY_CLASSES = KIND_BY_RESOURCE["priorityclasses"]
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


async def create(tools: Tools, request: WriteRequest, traceparent: str, ridden: list[Ridden]) -> WriteResponse:
    """Creates an object; `traceparent` becomes a pod's own trace when it brings none. The transactions that it took are
    added to `ridden`.

    Raises:
        BadRequest, Invalid, AlreadyExists, Forbidden, NotFound (the namespace), Fenced, and the store's faults.
    """
    kind = find_writable_kind(request.resource)
    message = parse_object(kind, request.value)
    fence = request.fence if request.HasField("fence") else None
    check_fence(tools, fence)
    generated = _prepare(tools, kind, message, traceparent)
    await _admit(tools, kind, message)
    refuse_invalid(tools, kind, message)
    if request.dry_run:
        return WriteResponse(object=Object(value=serialize(message)))
    write_id = tools.new_id()
    for _ in range(ATTEMPTS_MAX):
        try:
            return await _commit(tools, kind, message, request, write_id, ridden)
        except AlreadyExists:
            if not generated:
                raise
            message.metadata.name = _generate_name(tools, message)
    raise Conflict(
        f'the write of {kind.resource} "{message.metadata.name}" lost to others {ATTEMPTS_MAX} times; try again'
    )


def _prepare(tools: Tools, kind: Kind, message: Any, traceparent: str) -> bool:
    """Metadata, status and defaults of a new object; returns whether its name was generated."""
    metadata = message.metadata
    generated = not metadata.name and bool(metadata.generate_name)
    if generated:
        metadata.name = _generate_name(tools, message)
    for field in ("deletion_timestamp", "deletion_grace_period_seconds", "self_link", "managed_fields"):
        metadata.ClearField(field)
    metadata.uid = tools.new_uid()
    metadata.creation_timestamp.seconds = tools.clock.wall_ns() // 1_000_000_000
    metadata.generation = 1
    default_object(kind.name, message)
    begin_status(kind.name, message)
    if kind.name == "Pod" and traceparent and ANNOTATION_TRACEPARENT not in metadata.annotations:
        metadata.annotations[ANNOTATION_TRACEPARENT] = traceparent
    return generated


def _generate_name(tools: Tools, message: Any) -> str:
    suffix = "".join(tools.rng.choice(GENERATED_ALPHABET) for _ in range(GENERATED_SUFFIX_CHARACTERS))
    return str(message.metadata.generate_name)[: 253 - GENERATED_SUFFIX_CHARACTERS] + suffix


async def _admit(tools: Tools, kind: Kind, message: Any) -> None:
    """Namespace life cycle and priority classes. Raises Forbidden, Unavailable."""
    if kind.namespaced:
        namespace = tools.cache.registry.get(_NAMESPACES, message.metadata.namespace)
        if namespace is not None:
            found: Any = parse_object(_NAMESPACES, namespace.value)
            if found.metadata.HasField("deletion_timestamp"):
                raise Forbidden(
                    f"unable to create new content in namespace {message.metadata.namespace} because it is being terminated"
                )
    if kind.name == "Pod":
        name = message.spec.priority_class_name
        if name and name not in _SYSTEM_PRIORITIES and tools.cache.registry.get(_PRIORITY_CLASSES, name) is None:
            # Perhaps it was made a moment ago: a refusal must not rest on a cache that lags.
            await tools.cache.wait_fresh()
        _resolve_priority(tools, message.spec)


def _resolve_priority(tools: Tools, spec: Any) -> None:
    """spec.priority and preemptionPolicy from the named class, else from the global default (admission plugin Priority)."""
    classes = tools.cache.registry.objects["priorityclasses"].by_path
    name = spec.priority_class_name
    if name in _SYSTEM_PRIORITIES and name not in classes:
        spec.priority = _SYSTEM_PRIORITIES[name]
        return
    if name:
        entry = classes.get(name)
        if entry is None:
            raise Forbidden(f"no PriorityClass with name {name} was found")
        chosen: Any = parse_object(_PRIORITY_CLASSES, entry.value)
    else:
        parsed: list[Any] = [parse_object(_PRIORITY_CLASSES, entry.value) for entry in classes.values()]
        defaults = [item for item in parsed if item.global_default]
        chosen = min(defaults, key=lambda item: item.value) if defaults else None
    if chosen is None:
        if not spec.HasField("priority"):
            spec.priority = 0
    else:
        spec.priority_class_name = chosen.metadata.name
        spec.priority = chosen.value
        if not spec.preemption_policy:
            spec.preemption_policy = chosen.preemption_policy
    if not spec.preemption_policy:
        spec.preemption_policy = "PreemptLowerPriority"


def refuse_invalid(tools: Tools, kind: Kind, message: Any) -> None:
    """Raises Invalid with every cause."""
    causes = validate(kind, message)
    if not causes and kind.name == "Pod":
        causes = device_causes(tools, message)
    if causes:
        raise Invalid(describe(kind, message.metadata.name, causes), causes=tuple(causes))


def device_causes(tools: Tools, pod: Any) -> list[Cause]:
    """What is wrong with a pod's wish for devices, and with quantities taken together."""
    try:
        tools.decoder.view(serialize(pod), "")
    except DecodeError as error:
        cause = error.__cause__
        field = cause.path if isinstance(cause, DeviceRequestError) else "spec"
        why = cause.message if isinstance(cause, DeviceRequestError) else str(cause or error)
        return [Cause(field, "FieldValueInvalid", f"Invalid value: {why}")]
    return []


async def _commit(
    tools: Tools, kind: Kind, message: Any, request: WriteRequest, write_id: bytes, ridden: list[Ridden]
) -> WriteResponse:
    """One object's transaction, tried again while what it lost was not its own key."""
    fence = request.fence if request.HasField("fence") else None
    namespace, name = message.metadata.namespace, message.metadata.name
    key = registry_key(kind, namespace, name)
    node = message.spec.node_name if kind.name == "Pod" else message.metadata.name
    for _ in range(ATTEMPTS_MAX):
        effects = _placing_effects(tools, message) if kind.name == "Pod" else effects_of(tools.ledgers, None, message)
        value = serialize(message)
        compares = [Compare(key, Target.CREATE_REVISION, Relation.EQUAL, 0), *fence_compares(fence), *effects.compares]
        reads = [key]
        if kind.namespaced:
            namespace_key = registry_key(_NAMESPACES, "", namespace)
            compares.append(Compare(namespace_key, Target.MOD_REVISION, Relation.GREATER, 0))
            reads.append(namespace_key)
        change = Change(tuple(compares), (RegistryPut(key, value), *effects.writes), tuple(reads), write_id)
        committed = await tools.committer.commit(change)
        ridden.append((change, committed))
        if committed.succeeded:
            note_ledger_writes(tools, effects, committed.revision)
            token = committed.revision if effects.epoch_lease else 0
            stored = Object(value=value, resource_version=str(committed.versions[0]))
            return WriteResponse(object=stored, fencing_token=token)
        records = committed.records or (None,) * len(reads)
        if records[0] is not None:
            raise AlreadyExists(f'{kind.resource} "{name}" already exists')
        if kind.namespaced and records[1] is None and committed.records:
            raise NotFound(f'namespaces "{namespace}" not found')
        await raise_if_fenced(tools, fence)
        if effects.compares:
            await tools.ledgers.refresh(node)
        elif await read_entry(tools, kind, namespace, name) is not None:
            raise AlreadyExists(f'{kind.resource} "{name}" already exists')
    raise Conflict(f'the write of {kind.resource} "{name}" lost to others {ATTEMPTS_MAX} times; try again')


def _placing_effects(tools: Tools, pod: Any) -> Effects:
    """A pod that names its node takes its place there at once; where it does not fit it is created without one."""
    pod.ClearField("placed")
    node = pod.spec.node_name
    if not node:
        return Effects()
    view = tools.decoder.view(serialize(pod), "")
    ledger = tools.ledgers.ledger(node)
    devices = choose_devices(tools.cache, view.spec.devices, node, ledger) if view.spec.devices is not None else ()
    if devices is None or ledger.lacks(view.spec.requests, devices):
        return Effects()
    placement = Placement(node, ledger.taken.node_uid, view.spec.requests, devices, 0)
    pod.placed.CopyFrom(placement_message(placement))
    taken = ledger.take(placement.resources, placement.devices).taken
    key = taken_key(node)
    return Effects((unchanged(key, tools.ledgers.taken(node)[0]),), (Put(key, write_taken(taken)),))


def note_ledger_writes(tools: Tools, effects: Effects, revision: int) -> None:
    """This server's own ledger writes are known at once, ahead of the watch."""
    for write in effects.writes:
        if isinstance(write, Put):
            tools.ledgers.wrote(write.key, write.value, revision)
