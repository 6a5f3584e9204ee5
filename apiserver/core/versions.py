"""Resource versions: `revision << 12 | index`.

All writes of one etcd transaction share its revision, so the index, the write's place among the registry writes of that
transaction, tells them apart: a watch can resume between two of them. Lists and bookmarks carry the highest index.
"""

INDEX_BITS = 12
INDEX_MAX = (1 << INDEX_BITS) - 1
# The highest index belongs to lists and bookmarks, so a transaction has one registry write less.
REGISTRY_WRITES_MAX = INDEX_MAX
_REVISION_MAX = (1 << (63 - INDEX_BITS)) - 1


def pack(revision: int, index: int) -> int:
    """The version of the registry write at `index` of the transaction at `revision`."""
    assert 0 <= index <= INDEX_MAX, f"index {index} is out of range"
    return revision << INDEX_BITS | index


def pack_list(revision: int) -> int:
    """The version of a list or bookmark that has everything up to `revision`."""
    return revision << INDEX_BITS | INDEX_MAX


def revision_of(version: int) -> int:
    """The etcd revision of a version."""
    return version >> INDEX_BITS


def parse_version(text: str) -> int | None:
    """The version that a client sent, None for what is none (it is opaque to clients, but not to us)."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        return None
    version = int(text)
    return version if revision_of(version) <= _REVISION_MAX else None
