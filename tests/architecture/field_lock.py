"""The fields that have ever been written to a store or a wire, and what may not happen to them.

`protos/orrery/v1/fields.lock` has one line a field: `orrery.v1.Pod.spec = 4 message:orrery.v1.PodSpec optional`. A field
may be added (then the lock gets its line) or removed (then its number and its name are reserved in the message, and its
line stays). It may not change number, type, format or label. Run as a module, it says what differs; with --rewrite it adds
the new lines, and refuses where something breaks.
"""

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from protos.orrery.v1 import encoding_pb2

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "protos" / "orrery" / "v1" / "fields.lock"
REWRITE = "python -m tests.architecture.field_lock --rewrite"
TYPE_NAMES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


@dataclass(frozen=True)
class Schema:
    """`fields`: name to "number type label"; `reserved`: numbers and names by message."""

    fields: dict[str, str]
    reserved: dict[str, set[int | str]] = field(default_factory=dict)


def current_schema() -> Schema:
    schema = Schema({})
    for path in sorted(LOCK.parent.glob("*.proto")):
        module = importlib.import_module(f"protos.orrery.v1.{path.stem}_pb2")
        file: FileDescriptor = module.DESCRIPTOR
        for message in file.message_types_by_name.values():
            add_message(schema, message)
        for enum in file.enum_types_by_name.values():
            add_enum(schema, enum)
    return schema


def add_message(schema: Schema, message: Descriptor) -> None:
    for item in message.fields:
        schema.fields[item.full_name] = f"{item.number} {type_text(item)}"
    raw = DescriptorProto()
    message.CopyToProto(raw)
    reserved: set[int | str] = set(raw.reserved_name)
    for gap in raw.reserved_range:
        reserved.update(range(gap.start, gap.end))
    schema.reserved[message.full_name] = reserved
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            add_message(schema, nested)
    for enum in message.enum_types:
        add_enum(schema, enum)


def add_enum(schema: Schema, enum: EnumDescriptor) -> None:
    for value in enum.values:
        schema.fields[f"{enum.full_name}.{value.name}"] = f"{value.number} value"


def type_text(item: FieldDescriptor) -> str:
    text = element_text(item)
    label = "optional" if item.has_presence else "plain"
    entry = item.message_type
    if entry is not None and entry.GetOptions().map_entry:
        text = f"map<{element_text(entry.fields_by_name['key'])},{element_text(entry.fields_by_name['value'])}>"
        label = "map"
    elif item.is_repeated:
        label = "repeated"
    form = encoding_pb2.Format.Name(item.GetOptions().Extensions[encoding_pb2.format])
    return (
        f"{text} {label}" if form == "FORMAT_UNSPECIFIED" else f"{text} {label} {form.removeprefix('FORMAT_').lower()}"
    )


def element_text(item: FieldDescriptor) -> str:
    named = item.message_type or item.enum_type
    return f"{TYPE_NAMES[item.type]}:{named.full_name}" if named else TYPE_NAMES[item.type]


def read_lock(text: str) -> dict[str, str]:
    return dict(line.split(" = ", 1) for line in text.splitlines() if line and not line.startswith("#"))


def breaks(locked: dict[str, str], schema: Schema) -> list[str]:
    """What an old reader or an old store would misread."""
    found = []
    taken: dict[tuple[str, str], str] = {}
    for name, was in locked.items():
        message, short = name.rsplit(".", 1)
        number = was.split(" ", 1)[0]
        taken[message, number] = name
        now = schema.fields.get(name)
        if now is None:
            kept = schema.reserved.get(message, set())
            if int(number) not in kept or short not in kept:
                found.append(f'{name} is gone: write `reserved {number}; reserved "{short}";` in its message')
        elif now != was:
            found.append(f"{name} was {was}, is {now}: take a new number for the new field")
    for name, now in schema.fields.items():
        message, number = name.rsplit(".", 1)[0], now.split(" ", 1)[0]
        owner = taken.get((message, number), name)
        if owner != name:
            found.append(f"{name} takes number {number}, which {owner} has had")
    return found


def unlocked(locked: dict[str, str], schema: Schema) -> list[str]:
    return [name for name in schema.fields if name not in locked]


def main(arguments: list[str]) -> int:
    locked = read_lock(LOCK.read_text()) if LOCK.exists() else {}
    schema = current_schema()
    broken, new = breaks(locked, schema), unlocked(locked, schema)
    for line in (*broken, *(f"new: {name}" for name in new)):
        sys.stdout.write(line + "\n")
    if broken:
        return 1
    if "--rewrite" in arguments:
        lines = {**locked, **schema.fields}
        head = "# Fields and their numbers, never reused. Written by: " + REWRITE + "\n"
        LOCK.write_text(head + "".join(f"{name} = {lines[name]}\n" for name in sorted(lines)))
        return 0
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
