"""JSON as Kubernetes writes it, to messages and back, strictly.

`from_json` collects everything that is wrong with an object, each with its path: an unknown field with the name that was
probably meant, a value of the wrong type, a number out of range, what is no quantity or time. `null` is the absence of
the field. `to_json` shows quantities as their strings, times in RFC 3339, 64-bit integers as numbers.
"""

import base64
import difflib
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from services.wire.field_errors import ERRORS_MAX, FieldError, FieldErrors, MapKey, Steps, path_text
from services.wire.plans import FieldPlan, Form, MessagePlan, plan_of
from services.wire.scalars import (
    read_base64,
    read_bool,
    read_int_or_string,
    read_integer,
    read_quantity,
    read_raw_json,
    read_string,
    read_time,
    shown,
    write_raw_json,
    write_time,
)

__all__ = ["FieldError", "FieldErrors", "from_json", "to_json"]

M = TypeVar("M", bound=Message)
_FIELDS_LISTED_MAX = 12
_READ: dict[Form, Callable[[Any], Any]] = {
    Form.STRING: read_string,
    Form.INT32: lambda data: read_integer(data, 32),
    Form.INT64: lambda data: read_integer(data, 64),
    Form.BOOL: read_bool,
    Form.BASE64: read_base64,
    Form.RAW_JSON: read_raw_json,
    Form.QUANTITY: read_quantity,
}
_WRITE: dict[Form, Callable[[Any], Any]] = {
    Form.BASE64: lambda value: base64.b64encode(value).decode(),
    Form.RAW_JSON: write_raw_json,
    Form.TIME: lambda value: write_time(value.seconds, value.nanos, micro=False),
    Form.MICRO_TIME: lambda value: write_time(value.seconds, value.nanos, micro=True),
    Form.INT_OR_STRING: lambda value: value.str if value.HasField("str") else value.int,
}


def from_json(data: Any, cls: type[M]) -> M:
    """The message of type `cls` that `data` (as json.loads gives it) describes.

    Raises:
        FieldErrors: everything that is wrong with it.
    """
    message = cls()
    reader = _Reader()
    reader.read_object(data, message)
    if reader.errors:
        raise FieldErrors(
            tuple(FieldError(path_text(steps), text) for steps, text in reader.errors),
            tuple(steps for steps, _ in reader.errors),
        )
    return message


class _Reader:
    """One pass over one object. `path` leads to the value at hand; the schema bounds the recursion, for no kind contains
    itself.
    """

    def __init__(self) -> None:
        self.path: list[str | int] = []
        self.errors: list[tuple[Steps, str]] = []

    @property
    def full(self) -> bool:
        return len(self.errors) >= ERRORS_MAX

    def fail(self, message: str) -> None:
        if not self.full:
            self.errors.append((tuple(self.path), message))

    def read_object(self, data: Any, message: Message) -> None:
        if not isinstance(data, dict):
            self.fail(f"wanted an object, found {shown(data)}")
            return
        plan = plan_of(message.DESCRIPTOR)
        for key, item in data.items():
            if self.full:
                return
            field = plan.by_json_name.get(key)
            if field is None:
                self.path.append(str(key) if isinstance(key, str) else shown(key))
                self.fail(_unknown(key, plan))
            elif item is None:
                continue
            else:
                self.path.append(key)
                if field.is_list:
                    self.read_list(item, message, field)
                elif field.is_map:
                    self.read_map(item, message, field)
                else:
                    self.read_single(item, message, field)
            self.path.pop()

    def read_list(self, data: Any, message: Message, field: FieldPlan) -> None:
        if not isinstance(data, list):
            self.fail(f"wanted a list, found {shown(data)}")
            return
        target = getattr(message, field.name)
        for index, item in enumerate(data):
            self.path.append(index)
            if field.form is Form.OBJECT:
                self.read_object(item, target.add())
            else:
                value = self.scalar(item, field)
                if value is not None:
                    target.append(value)
            self.path.pop()

    def read_map(self, data: Any, message: Message, field: FieldPlan) -> None:
        if not isinstance(data, dict):
            self.fail(f"wanted an object, found {shown(data)}")
            return
        target = getattr(message, field.name)
        for key, item in data.items():
            self.path.append(MapKey(key) if isinstance(key, str) else MapKey(shown(key)))
            name = self.attempt(read_string, key)
            value = self.map_value(item, field)
            if name is not None and value is not None:
                target[name] = value
            self.path.pop()

    def map_value(self, data: Any, field: FieldPlan) -> Any:
        if data is None and field.form is Form.STRING:
            self.fail('wanted a string, found null; write "" for an empty one')
            return None
        return self.scalar(data, field)

    def read_single(self, data: Any, message: Message, field: FieldPlan) -> None:
        if field.form is Form.OBJECT:
            target = getattr(message, field.name)
            target.SetInParent()
            self.read_object(data, target)
        elif field.form in (Form.TIME, Form.MICRO_TIME):
            moment = self.attempt(lambda item: read_time(item, micro=field.form is Form.MICRO_TIME), data)
            if moment is not None:
                target = getattr(message, field.name)
                target.SetInParent()
                target.seconds, target.nanos = moment
        elif field.form is Form.INT_OR_STRING:
            value = self.attempt(read_int_or_string, data)
            if value is not None:
                setattr(getattr(message, field.name), "str" if isinstance(value, str) else "int", value)
        else:
            value = self.scalar(data, field)
            if value is not None:
                setattr(message, field.name, value)

    def scalar(self, data: Any, field: FieldPlan) -> Any:
        return self.attempt(_READ[field.form], data)

    def attempt(self, read: Callable[[Any], Any], data: Any) -> Any:
        try:
            return read(data)
        except ValueError as error:
            self.fail(str(error))
            return None


def _unknown(key: Any, plan: MessagePlan) -> str:
    if not isinstance(key, str):
        return f"a field's name is a string, found {shown(key)}"
    meant = plan.by_name.get(key)
    if meant is None:
        folded = {name.lower(): name for name in plan.by_json_name}
        close = difflib.get_close_matches(key.lower()[:80], folded, n=1, cutoff=0.6)
        meant = plan.by_json_name[folded[close[0]]] if close else None
    if meant is not None:
        return f'unknown field; did you mean "{meant.json_name}"?'
    if not plan.fields:
        return "unknown field; this object has none"
    if len(plan.fields) <= _FIELDS_LISTED_MAX:
        return f"unknown field; known here: {', '.join(sorted(plan.by_json_name))}"
    return "unknown field"


def to_json(message: Message) -> dict[str, Any]:
    """The object as json.dumps takes it, in the order of the message's fields; keys of maps are sorted.

    Raises:
        FieldErrors: a value that has no form in JSON: a time beyond year 9999, bytes that should be JSON and are not.
    """
    return _write_object(message, ())


def _write_object(message: Message, steps: Steps) -> dict[str, Any]:
    plan = plan_of(message.DESCRIPTOR)
    if plan.has_always:
        present = [
            (field, getattr(message, field.name)) for field in plan.fields if field.always or _is_set(message, field)
        ]
    else:
        present = [(plan.by_name[field.name], value) for field, value in message.ListFields()]
    written: dict[str, Any] = {}
    for field, value in present:
        here = (*steps, field.json_name)
        if field.is_list:
            written[field.json_name] = [_write_value(item, field, (*here, at)) for at, item in enumerate(value)]
        elif field.is_map:
            written[field.json_name] = {
                key: _write_value(value[key], field, (*here, MapKey(key))) for key in sorted(value)
            }
        else:
            written[field.json_name] = _write_value(value, field, here)
    return written


def _is_set(message: Message, field: FieldPlan) -> bool:
    if field.is_list or field.is_map:
        return bool(getattr(message, field.name))
    return message.HasField(field.name)


def _write_value(value: Any, field: FieldPlan, steps: Steps) -> Any:
    if field.form is Form.OBJECT:
        return _write_object(value, steps)
    write = _WRITE.get(field.form)
    if write is None:
        return value
    try:
        return write(value)
    except ValueError as error:
        raise FieldErrors((FieldError(path_text(steps), str(error)),), (steps,)) from error
