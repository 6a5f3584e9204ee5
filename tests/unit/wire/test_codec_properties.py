"""What holds for every message of every kind."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.orrery.v1 import meta_pb2
from services.model.kinds import KINDS, Kind
from services.wire.codec import FieldErrors, from_json, to_json
from services.wire.kinds import message_class
from services.wire.manifests import Manifest, read_manifests
from services.wire.metadata import read_envelope
from services.wire.yaml_text import to_yaml
from tests.unit.wire.messages import messages, texts, with_every_field

FEW = settings(max_examples=40)
EACH_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.sampled_from(("metadata", "spec", "containers", "labels", "name", "status")), st.text(max_size=5)
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@EACH_KIND
def test_a_message_with_every_field_survives_json(kind: Kind) -> None:
    message = with_every_field(message_class(kind))
    assert from_json(json.loads(json.dumps(to_json(message))), message_class(kind)) == message


@EACH_KIND
@FEW
@given(data=st.data())
def test_any_message_survives_json(kind: Kind, data: st.DataObject) -> None:
    message = data.draw(messages(message_class(kind)))
    assert from_json(json.loads(json.dumps(to_json(message))), message_class(kind)) == message


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.read_only], ids=lambda kind: kind.name)
@FEW
@given(data=st.data(), name=texts.filter(bool))
def test_any_object_survives_yaml_and_a_json_file(kind: Kind, data: st.DataObject, name: str) -> None:
    message = data.draw(messages(message_class(kind)))
    message.api_version, message.kind, message.metadata.name = kind.api_version, kind.name, name
    form = to_json(message)
    for text in (to_yaml(form, form), json.dumps(form) + json.dumps(form)):
        read = read_manifests(text, "source")
        assert [found.message for found in read if isinstance(found, Manifest)] == [message, message], read


@EACH_KIND
@FEW
@given(data=st.data(), unknown=st.binary(min_size=1, max_size=20), number=st.integers(200, 2000))
def test_an_envelope_that_is_written_again_loses_nothing(
    kind: Kind, data: st.DataObject, unknown: bytes, number: int
) -> None:
    message = data.draw(messages(message_class(kind)))
    tag = (number << 3) | 2
    later = bytes([tag & 0x7F | 0x80, tag >> 7, len(unknown)]) + unknown
    envelope = read_envelope(message.SerializeToString() + later)
    again = envelope.SerializeToString()
    assert later in again
    assert message_class(kind).FromString(again.replace(later, b"", 1)) == message
    assert envelope.metadata == (message.metadata or meta_pb2.ObjectMeta())


@EACH_KIND
@FEW
@given(data=PLAIN)
def test_any_json_is_an_object_or_field_errors(kind: Kind, data: Any) -> None:
    try:
        message = from_json(data, message_class(kind))
    except FieldErrors as refused:
        assert refused.errors
        assert len(refused.errors) == len(refused.steps)
    else:
        assert isinstance(data, dict)
        assert message.DESCRIPTOR.name == kind.name
