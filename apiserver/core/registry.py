"""What the API server knows of the store: every object's bytes by kind, the event windows, ledgers and epochs.

Fed with whole revisions in order, from one list and one watch. It answers reads and gives writers the versions that
their comparisons name; it may lag behind the store, which a comparison then finds out.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass

from apiserver.core import header
from apiserver.core.eventlog import EventLog, LogEvent
from apiserver.core.keys import LEDGER, REGISTRY, parse_registry_key
from apiserver.core.versions import pack, pack_list
from apiserver.store.protocol import Record, StoreEvent
from services.model.kinds import KINDS, Kind


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored object. `version` is its resource version, `revision` the mod_revision that writers compare."""

    path: str
    namespace: str
    value: bytes
    version: int
    revision: int
    create_revision: int
    write_id: bytes


def entry_of(record: Record) -> Entry:
    """A registry record as an entry. Raises HeaderError."""
    key = parse_registry_key(record.key)
    assert key is not None, f"{record.key!r} is no key of a kind that we know"
    stored = header.decode(record.value)
    version = pack(record.mod_revision, stored.index)
    return Entry(
        key.path, key.namespace, stored.value, version, record.mod_revision, record.create_revision, stored.write_id
    )


class Objects:
    """The objects of one kind, in key order, and their event window."""

    def __init__(self, start_version: int) -> None:
        self.by_path: dict[str, Entry] = {}
        self.log = EventLog(start_version)
        # The version of the last change of this kind: a page of an older list is still right when nothing came after.
        self.changed_version = start_version
        self._paths: list[str] = []

    def put(self, entry: Entry) -> Entry | None:
        old = self.by_path.get(entry.path)
        if old is None:
            insort(self._paths, entry.path)
        self.by_path[entry.path] = entry
        return old

    def remove(self, path: str) -> Entry | None:
        old = self.by_path.pop(path, None)
        if old is not None:
            del self._paths[bisect_left(self._paths, path)]
        return old

    def replace_all(self, entries: Iterable[Entry], version: int) -> None:
        self.by_path = {entry.path: entry for entry in entries}
        self._paths = sorted(self.by_path)
        self.changed_version = version

    def paths_after(self, namespace: str, after: str) -> list[str]:
        """Paths greater than `after`, of one namespace or of all."""
        start = bisect_right(self._paths, after) if after else 0
        if not namespace:
            return self._paths[start:]
        prefix = namespace + "/"
        low = max(start, bisect_left(self._paths, prefix))
        high = bisect_left(self._paths, namespace + "0")  # "0" follows "/" in ASCII
        return self._paths[low:high]


class Registry:
    """All of it. `revision`: everything up to it has been applied."""

    def __init__(self) -> None:
        self.revision = 0
        self.objects: dict[str, Objects] = {kind.resource: Objects(0) for kind in KINDS}
        # Ledger and epoch records by key, as they are stored.
        self.plain: dict[bytes, Record] = {}

    def fill(self, records: Iterable[Record], revision: int) -> None:
        """Begins anew from a list at `revision`."""
        version = pack_list(revision)
        entries: dict[str, list[Entry]] = {kind.resource: [] for kind in KINDS}
        self.plain = {}
        for record in records:
            if not record.key.startswith(REGISTRY):
                self.plain[record.key] = record
            elif (key := parse_registry_key(record.key)) is not None:
                entries[key.kind.resource].append(entry_of(record))
        for resource, found in entries.items():
            objects = Objects(version)
            objects.replace_all(found, version)
            self.objects[resource] = objects
        self.revision = revision

    def apply(self, events: Iterable[StoreEvent], revision: int) -> set[str]:
        """Applies whole revisions up to `revision`; returns the resources that changed."""
        changed: set[str] = set()
        at_revision, index = 0, -1
        for event in events:
            record = event.record
            if record.mod_revision != at_revision:
                at_revision, index = record.mod_revision, -1
            if record.key.startswith(REGISTRY):
                index = self._apply_registry(event, index, changed)
            elif event.deleted:
                self.plain.pop(record.key, None)
            else:
                self.learn_plain(record)
        self.revision = max(self.revision, revision)
        return changed

    def _apply_registry(self, event: StoreEvent, index: int, changed: set[str]) -> int:
        """Applies one registry event; returns its index in its revision."""
        record = event.record
        index = index + 1 if event.deleted else header.decode(record.value).index
        key = parse_registry_key(record.key)
        if key is None:
            return index
        objects = self.objects[key.kind.resource]
        version = pack(record.mod_revision, index)
        if event.deleted:
            old = objects.remove(key.path)
            value = b""
        else:
            entry = entry_of(record)
            old = objects.put(entry)
            value = entry.value
        if old is not None or value:
            objects.log.append(LogEvent(version, key.path, key.namespace, value, old.value if old is not None else b""))
            objects.changed_version = version
            changed.add(key.kind.resource)
        return index

    def learn_plain(self, record: Record) -> None:
        """Takes note of a ledger or epoch record, unless a newer one is known already."""
        known = self.plain.get(record.key)
        if known is None or known.mod_revision < record.mod_revision:
            self.plain[record.key] = record

    def get(self, kind: Kind, path: str) -> Entry | None:
        return self.objects[kind.resource].by_path.get(path)

    def ledger_nodes(self) -> list[str]:
        """The names of all nodes that have a ledger, in order."""
        names = {key[len(LEDGER) : key.rindex(b"/")].decode() for key in self.plain if key.startswith(LEDGER)}
        return sorted(names)
