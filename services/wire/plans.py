"""How each field of a kind is written in JSON: read from the descriptors once, then looked up.

A protobuf type alone does not say it: quantities, times and free JSON carry the (format) option of encoding.proto, and
IntOrString is a message that is written as a number or a string.
"""

from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from protos.orrery.v1 import encoding_pb2

_MEMO_MAX = 1024


class Form(Enum):
    """One value's form in JSON."""

    STRING = auto()
    INT32 = auto()
    INT64 = auto()
    BOOL = auto()
    BASE64 = auto()
    RAW_JSON = auto()
    QUANTITY = auto()
    TIME = auto()
    MICRO_TIME = auto()
    INT_OR_STRING = auto()
    OBJECT = auto()


_BY_FORMAT = {
    encoding_pb2.FORMAT_QUANTITY: Form.QUANTITY,
    encoding_pb2.FORMAT_TIME: Form.TIME,
    encoding_pb2.FORMAT_MICRO_TIME: Form.MICRO_TIME,
    encoding_pb2.FORMAT_RAW_JSON: Form.RAW_JSON,
}
_BY_TYPE = {
    FieldDescriptor.TYPE_STRING: Form.STRING,
    FieldDescriptor.TYPE_INT32: Form.INT32,
    FieldDescriptor.TYPE_INT64: Form.INT64,
    FieldDescriptor.TYPE_BOOL: Form.BOOL,
    FieldDescriptor.TYPE_BYTES: Form.BASE64,
    FieldDescriptor.TYPE_MESSAGE: Form.OBJECT,
}


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """`form` is that of one value: of each element where `is_list`, of each value where `is_map` (keys are strings).
    `always`: a plain scalar, which JSON shows also when it is 0.
    """

    name: str
    json_name: str
    form: Form
    is_list: bool
    is_map: bool
    always: bool
    message_type: Descriptor | None


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """`fields` in order of their numbers."""

    fields: tuple[FieldPlan, ...]
    by_json_name: dict[str, FieldPlan]
    by_name: dict[str, FieldPlan]
    has_always: bool


@lru_cache(maxsize=_MEMO_MAX)
def plan_of(descriptor: Descriptor) -> MessagePlan:
    """The plan of one message type; those inside it are looked up when they are reached.

    Raises:
        TypeError: the message has a field of a type that no kind uses.
    """
    fields = tuple(_field_plan(field) for field in sorted(descriptor.fields, key=lambda field: field.number))
    return MessagePlan(
        fields,
        {field.json_name: field for field in fields},
        {field.name: field for field in fields},
        any(field.always for field in fields),
    )


def _field_plan(field: FieldDescriptor) -> FieldPlan:
    element = field
    entry = field.message_type if field.message_type is not None and field.message_type.GetOptions().map_entry else None
    if entry is not None:
        if entry.fields_by_name["key"].type != FieldDescriptor.TYPE_STRING:
            raise TypeError(f"{field.full_name}: keys of maps are strings in JSON")
        element = entry.fields_by_name["value"]
    form = _BY_FORMAT.get(field.GetOptions().Extensions[encoding_pb2.format])
    if form is None and element.message_type is encoding_pb2.IntOrString.DESCRIPTOR:
        form = Form.INT_OR_STRING
    if form is None:
        form = _BY_TYPE.get(element.type)
    if form is None:
        raise TypeError(f"{field.full_name}: no JSON form for protobuf type {element.type}")
    is_list = bool(field.is_repeated) and entry is None
    return FieldPlan(
        field.name,
        field.json_name,
        form,
        is_list,
        entry is not None,
        not (field.has_presence or field.is_repeated),
        element.message_type,
    )
