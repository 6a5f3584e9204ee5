"""No change of a .proto file may misread what an older version has stored or sent."""

import pytest

from tests.architecture.field_lock import LOCK, REWRITE, Schema, breaks, current_schema, read_lock, unlocked

LOCKED = {"p.M.a": "1 string optional", "p.M.b": "2 int32 optional"}


def test_no_field_breaks_what_is_stored() -> None:
    locked = read_lock(LOCK.read_text())
    assert len(locked) > 900
    assert not breaks(locked, current_schema())


def test_every_field_is_in_the_lock() -> None:
    new = unlocked(read_lock(LOCK.read_text()), current_schema())
    assert not new, f"run `{REWRITE}` and commit protos/orrery/v1/fields.lock: {', '.join(new)}"


@pytest.mark.parametrize(
    ("fields", "reserved", "says"),
    [
        ({"p.M.a": "1 string optional", "p.M.b": "3 int32 optional"}, set(), "p.M.b was 2 int32 optional, is 3"),
        ({"p.M.a": "1 string optional", "p.M.b": "2 int64 optional"}, set(), "p.M.b was 2 int32 optional, is 2 int64"),
        ({"p.M.a": "1 string repeated", "p.M.b": "2 int32 optional"}, set(), "p.M.a was 1 string optional"),
        ({"p.M.a": "1 string optional"}, set(), 'p.M.b is gone: write `reserved 2; reserved "b";`'),
        ({"p.M.a": "1 string optional"}, {2}, "p.M.b is gone"),
        ({"p.M.a": "1 string optional"}, {"b"}, "p.M.b is gone"),
        (
            {"p.M.a": "1 string optional", "p.M.c": "2 int32 optional"},
            {2, "b"},
            "p.M.c takes number 2, which p.M.b has had",
        ),
    ],
)
def test_a_breaking_change_is_found(fields: dict[str, str], reserved: set[int | str], says: str) -> None:
    found = breaks(LOCKED, Schema(fields, {"p.M": reserved}))
    assert len(found) == 1
    assert found[0].startswith(says)


def test_adding_a_field_and_removing_a_reserved_one_break_nothing() -> None:
    schema = Schema({"p.M.a": "1 string optional", "p.M.c": "3 bytes optional"}, {"p.M": {2, "b"}})
    assert not breaks(LOCKED, schema)
    assert unlocked(LOCKED, schema) == ["p.M.c"]
