"""Any kind's bytes, read as far as the metadata; spec and status stay bytes."""

from google.protobuf.message import DecodeError as ProtobufDecodeError

from protos.orrery.v1.envelope_pb2 import Envelope


class DecodeError(ValueError):
    """Bytes that are no object of ours."""


def read_envelope(value: bytes) -> Envelope:
    """Parses the outer fields of any kind.

    Raises:
        DecodeError: the bytes are not a message of that shape.
    """
    try:
        return Envelope.FromString(value)
    except ProtobufDecodeError as error:
        raise DecodeError(f"{len(value)} bytes are not an object: {error}") from error


def object_key(value: bytes) -> str:
    """namespace/name, or the name alone where there is no namespace."""
    metadata = read_envelope(value).metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
