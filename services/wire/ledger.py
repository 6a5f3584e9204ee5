"""The ledger's two stored values and their plain form."""

from typing import TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError

from protos.orrery.v1.ledger_pb2 import LedgerReturned, LedgerTaken
from services.model.devices import Device
from services.model.ledger import Amounts, Taken
from services.wire.metadata import DecodeError

L = TypeVar("L", LedgerTaken, LedgerReturned)


def read_taken(value: bytes) -> Taken:
    """Raises DecodeError."""
    message = _parse(LedgerTaken, value)
    devices = tuple(
        Device(index, item.uuid, item.model, 0, 0, healthy=not item.unhealthy)
        for index, item in enumerate(message.devices)
    )
    return Taken(
        node_uid=message.node_uid,
        allocatable=dict(sorted(message.allocatable.items())),
        devices=devices,
        amounts=Amounts(dict(sorted(message.resources.items())), tuple(message.device_milli), message.pods),
        overcommitted=message.overcommitted,
        node_deleted=message.node_deleted,
    )


def write_taken(taken: Taken) -> bytes:
    message = LedgerTaken(
        node_uid=taken.node_uid,
        allocatable=taken.allocatable,
        resources=taken.amounts.resources,
        device_milli=taken.amounts.device_milli,
        pods=taken.amounts.pods,
        overcommitted=taken.overcommitted,
        node_deleted=taken.node_deleted,
    )
    for device in taken.devices:
        message.devices.add(uuid=device.uuid, model=device.model, unhealthy=not device.healthy)
    return message.SerializeToString(deterministic=True)


def read_returned(value: bytes) -> Amounts:
    """Raises DecodeError."""
    message = _parse(LedgerReturned, value)
    return Amounts(dict(sorted(message.resources.items())), tuple(message.device_milli), message.pods)


def write_returned(amounts: Amounts) -> bytes:
    message = LedgerReturned(resources=amounts.resources, device_milli=amounts.device_milli, pods=amounts.pods)
    return message.SerializeToString(deterministic=True)


def _parse(message_type: type[L], value: bytes) -> L:
    try:
        return message_type.FromString(value)
    except ProtobufDecodeError as error:
        raise DecodeError(f"ledger value of {len(value)} bytes: {error}") from error
