"""The small header before each registry value: format, index, and the write id that tells whose write it was."""

import struct
from dataclasses import dataclass

_LAYOUT = struct.Struct(">4sBBH16s")
HEADER_BYTES = _LAYOUT.size
MAGIC = b"orr1"
STORAGE_VERSION = 1
ENCODING_PROTOBUF = 1
WRITE_ID_BYTES = 16


class HeaderError(ValueError):
    """The bytes do not begin with a header that this version can read."""


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A registry value taken apart. `index`: see `versions`; `write_id`: 16 bytes, unique for each write."""

    index: int
    write_id: bytes
    value: bytes


def encode(index: int, write_id: bytes, value: bytes) -> bytes:
    """The bytes to store."""
    assert len(write_id) == WRITE_ID_BYTES, "a write id has 16 bytes"
    return _LAYOUT.pack(MAGIC, STORAGE_VERSION, ENCODING_PROTOBUF, index, write_id) + value


def decode(stored: bytes) -> StoredValue:
    """Raises HeaderError."""
    if len(stored) < HEADER_BYTES:
        raise HeaderError(f"{len(stored)} bytes are shorter than a header")
    magic, storage_version, encoding, index, write_id = _LAYOUT.unpack_from(stored)
    if magic != MAGIC or storage_version != STORAGE_VERSION or encoding != ENCODING_PROTOBUF:
        raise HeaderError(f"magic {magic!r}, storage version {storage_version}, encoding {encoding} are not ours")
    return StoredValue(index, write_id, stored[HEADER_BYTES:])
