"""Random messages of any kind, for property tests: every field has its turn, few at a time."""

from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from services.wire.plans import FieldPlan, Form, plan_of

FIELDS_MAX = 4
texts = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.sampled_from(
        ("yes", "null", "~", "1e3", "08", "0x1f", "22:22", "<<", "=", "2026-05-01", "- a", "a: b", "#", "---")
    ),
)
quantities = st.sampled_from(("0", "500m", "80Gi", "1e3", "1.5", "-3k", "9223372036854775807"))
SCALARS: dict[Form, st.SearchStrategy[Any]] = {
    Form.STRING: texts,
    Form.INT32: st.integers(-(2**31), 2**31 - 1),
    Form.INT64: st.integers(-(2**63), 2**63 - 1),
    Form.BOOL: st.booleans(),
    Form.BASE64: st.binary(max_size=8),
    Form.RAW_JSON: st.sampled_from((b"{}", b'{"f:a":{".":{}},"l":[1,2.5,null,true,"\xc3\xa4"]}')),
    Form.QUANTITY: quantities,
}
seconds = st.integers(-62_135_596_800, 253_402_300_799)
micros = st.integers(0, 999_999)


def set_field(draw: st.DrawFn, message: Any, field: FieldPlan) -> None:
    target = getattr(message, field.name)
    if field.is_map:
        for key in draw(st.lists(texts, min_size=1, max_size=2)):
            target[key] = draw(SCALARS[field.form])
    elif field.is_list and field.form is Form.OBJECT:
        for _ in range(draw(st.integers(1, 2))):
            fill(draw, target.add())
    elif field.is_list:
        target.extend(draw(st.lists(SCALARS[field.form], min_size=1, max_size=3)))
    elif field.form is Form.OBJECT:
        target.SetInParent()
        fill(draw, target)
    elif field.form in (Form.TIME, Form.MICRO_TIME):
        target.SetInParent()
        target.seconds = draw(seconds)
        target.nanos = draw(micros) * 1000 if field.form is Form.MICRO_TIME else 0
    elif field.form is Form.INT_OR_STRING:
        if draw(st.booleans()):
            target.int = draw(SCALARS[Form.INT32])
        else:
            target.str = draw(texts)
    else:
        setattr(message, field.name, draw(SCALARS[field.form]))


def fill(draw: st.DrawFn, message: Message) -> None:
    fields = plan_of(message.DESCRIPTOR).fields
    if fields:
        for field in draw(st.lists(st.sampled_from(fields), max_size=FIELDS_MAX, unique_by=lambda field: field.name)):
            set_field(draw, message, field)


@st.composite
def messages(draw: st.DrawFn, cls: type[Message]) -> Any:
    message = cls()
    fill(draw, message)
    return message


def with_every_field(cls: type[Message]) -> Any:
    """A message in which every field below it is set, to something other than its default where there is one."""
    message = cls()
    _fill_all(message, cls.DESCRIPTOR)
    return message


ONE: dict[Form, Any] = {
    Form.STRING: "text",
    Form.INT32: 7,
    Form.INT64: 2**40,
    Form.BOOL: True,
    Form.BASE64: b"bytes",
    Form.RAW_JSON: b'{"a":1}',
    Form.QUANTITY: "500m",
}


def _fill_all(message: Any, descriptor: Descriptor) -> None:
    for field in plan_of(descriptor).fields:
        target = getattr(message, field.name)
        if field.is_map:
            target["key"] = ONE[field.form]
        elif field.form is Form.OBJECT:
            inner = target.add() if field.is_list else target
            inner.SetInParent()
            assert field.message_type is not None
            _fill_all(inner, field.message_type)
        elif field.is_list:
            target.append(ONE[field.form])
        elif field.form in (Form.TIME, Form.MICRO_TIME):
            target.seconds = 1_700_000_000
        elif field.form is Form.INT_OR_STRING:
            target.int = 80
        else:
            setattr(message, field.name, ONE[field.form])
