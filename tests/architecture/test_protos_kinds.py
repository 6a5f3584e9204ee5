"""Every kind of the registry has its message, in the shape that the envelope relies on."""

import pytest

from protos.orrery.v1 import envelope_pb2, meta_pb2
from services.model.kinds import KIND_BY_NAME, KIND_BY_RESOURCE, KINDS, Kind
from services.wire import kinds as wire_kinds
from services.wire.kinds import message_class
from services.wire.plans import Form, plan_of


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_has_its_message_with_the_numbers_of_the_envelope(kind: Kind) -> None:
    descriptor = message_class(kind).DESCRIPTOR
    assert descriptor.name == kind.name
    numbers = {field.name: field.number for field in descriptor.fields}
    envelope = {field.name: field.number for field in envelope_pb2.Envelope.DESCRIPTOR.fields}
    assert {name: numbers[name] for name in ("api_version", "kind", "metadata")} == {
        name: envelope[name] for name in ("api_version", "kind", "metadata")
    }
    assert all(envelope.get(name, number) == number for name, number in numbers.items())
    # No other field may take a number that the envelope reads as something else.
    by_number = {number: name for name, number in envelope.items()}
    assert all(by_number.get(number, name) == name for name, number in numbers.items())
    assert descriptor.fields_by_name["metadata"].message_type is meta_pb2.ObjectMeta.DESCRIPTOR
    if kind.has_status:
        assert "status" in numbers


def test_there_is_no_message_for_a_kind_that_is_not_in_the_registry() -> None:
    assert set(wire_kinds._MESSAGES) == {kind.name for kind in KINDS}


def test_names_of_kinds_are_unique() -> None:
    assert len(KIND_BY_NAME) == len(KIND_BY_RESOURCE) == len(KINDS)
    words = [word for kind in KINDS for word in (kind.resource, kind.name.lower(), *kind.short_names)]
    assert len(words) == len(set(words))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_of_a_kind_has_a_form_in_json_and_no_message_contains_itself(kind: Kind) -> None:
    """The codec recurses over the schema, so the schema has to end."""
    waiting: list[tuple[object, tuple[str, ...]]] = [(message_class(kind).DESCRIPTOR, ())]
    fields = 0
    while waiting:
        descriptor, above = waiting.pop()
        assert descriptor.full_name not in above
        for field in plan_of(descriptor).fields:
            fields += 1
            if field.form is Form.OBJECT:
                waiting.append((field.message_type, (*above, descriptor.full_name)))
            # Maps and lists of times and of IntOrString have no reader.
            elif field.is_list or field.is_map:
                assert field.form in (Form.STRING, Form.INT32, Form.INT64, Form.QUANTITY)
    assert fields > 10
