"""Text to plain data: scalars as Kubernetes reads them, lines, duplicate keys, bounds."""

import math
from typing import Any

import pytest

from services.wire import documents
from services.wire.documents import DocumentError, line_of, resolve, yaml_documents
from services.wire.json_documents import json_documents


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("NULL", None), ("nULL", "nULL"),
        ("yes", True), ("on", True), ("y", True), ("TRUE", True), ("no", False), ("N", False), ("off", False),
        ("tRUE", "tRUE"), ("0", 0), ("-7", -7), ("+7", 7), ("1_000", 1000), ("0644", 420), ("0o644", 420),
        ("0x1F", 31), ("-0x1f", -31), ("0b101", 5), ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("08", 8.0),
        ("-.inf", -math.inf), (".INF", math.inf), ("22:22", "22:22"), ("2026-05-01", "2026-05-01"), ("1.2.3", "1.2.3"),
        ("1m", "1m"), ("0x", "0x"), ("-", "-"), (".", "."), ("+.inf", math.inf), ("9" * 401, "9" * 401),
        ("12345678901234567890123", 12345678901234567890123),
    ],
)  # fmt: skip
def test_a_plain_scalar_is_what_kubernetes_takes_it_for(text: str, value: Any) -> None:
    found = resolve(text)
    assert (found, type(found)) == (value, type(value))


def test_nan_is_a_number() -> None:
    assert math.isnan(resolve(".nan"))


def documents_of(text: str) -> list[Any]:
    return list(yaml_documents(text, 1))


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: 'yes'", {"a": "yes"}),
        ('a: "1"', {"a": "1"}),
        ("a: !!str 1", {"a": "1"}),
        ("a: !!float 1", {"a": 1.0}),
        ("a: |\n  yes\n", {"a": "yes\n"}),
        ("a: &x {b: [1]}\nc: *x", {"a": {"b": [1]}, "c": {"b": [1]}}),
        ("a: &x 5\nc: *x", {"a": 5, "c": 5}),
        ("p: &x {a: 1, b: 1}\nq: {<<: *x, b: 2}", {"p": {"a": 1, "b": 1}, "q": {"a": 1, "b": 2}}),
        (
            "p: &p {a: 1}\nq: &q {a: 2, c: 3}\nr: {<<: [*p, *q]}",
            {"p": {"a": 1}, "q": {"a": 2, "c": 3}, "r": {"a": 1, "c": 3}},
        ),
        ("'<<': a", {"<<": "a"}),
    ],
)
def test_yaml_reads_as_data(text: str, data: Any) -> None:
    assert documents_of(text) == [data]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\nb: 2\na: 3", 3, "given twice; first in line 1"),
        ("a:\n- b: {c: 1,\n    c: 2}", 3, "given twice; first in line 2"),
        ("a: *x", 1, "the alias *x has no anchor"),
        ("a: &x [1,\n *x]", 2, "the alias *x stands inside its own anchor"),
        ("? [a]\n: b", 1, "a key has to be a plain text"),
        ("x: &x [1]\n*x : 2", 2, "a key has to be a plain text"),
        ("a: !!python/object:os.system x", 1, "the tag !!python/object:os.system has no place here"),
        ("a: !mine {}", 1, "the tag !mine has no place in a manifest"),
        ("a: !!int x", 1, "the tag !!int has no place here"),
        ("a:\n  <<: 5", 2, "<< takes an object or a list of objects"),
        ("a: 1\nb: {\nc", 3, "not readable as YAML"),
        ("a: 1\n\tb: 2", 2, "not readable as YAML"),
        ("a: \x00", 1, "not readable as YAML"),
        ("a: b: c", 1, "not readable as YAML: mapping values are not allowed in this context"),
    ],
)
def test_what_cannot_be_read_says_why_and_in_which_line(text: str, line: int, says: str) -> None:
    with pytest.raises(DocumentError) as refused:
        documents_of(text)
    assert refused.value.line == line
    assert says in str(refused.value)


def test_an_error_inside_a_document_has_its_path() -> None:
    with pytest.raises(DocumentError) as refused:
        documents_of("spec:\n  containers:\n  - name: a\n  - name: b\n    name: c")
    assert refused.value.steps == ("spec", "containers", 1, "name")


@pytest.mark.parametrize(
    "text",
    ["[" * 200, "{a: " * 200, "- " * 200 + "a", "[" * 200_000, "".join(f"{' ' * level}a:\n" for level in range(200))],
    ids=["lists", "objects", "block lists", "many lists", "block objects"],
)
def test_nesting_is_bounded(text: str) -> None:
    # libyaml has a bound of its own on brackets in a row, which may speak first.
    with pytest.raises(DocumentError, match=r"nested deeper than 100 levels|exceeded maximum nesting depth"):
        documents_of(text)
    if text.startswith("["):
        with pytest.raises(DocumentError, match="nested deeper than 100 levels"):
            list(json_documents(text, 1))


def test_nesting_through_aliases_is_bounded() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{number}: &a{number} [[[[[[[[[[*a{number - 1}]]]]]]]]]]" for number in range(1, 12)]
    with pytest.raises(DocumentError, match="nested deeper than 100 levels"):
        documents_of("\n".join(lines))


def test_aliases_that_multiply_are_bounded() -> None:
    """The billion laughs: a few lines that stand for more than any memory holds."""
    lines = ["a0: &a0 [x]"]
    for number in range(1, 20):
        copies = ", ".join([f"*a{number - 1}"] * 10)
        lines.append(f"a{number}: &a{number} [{copies}]")
    with pytest.raises(DocumentError, match="more than 1000000 values, aliases counted each time"):
        documents_of("\n".join(lines))


def test_lines_are_those_of_the_keys() -> None:
    [data] = yaml_documents("spec:\n  containers:\n  - name: a\n    image:\n      x\n  - name: b\n", 10)
    assert line_of(data, ()) == 10
    assert line_of(data, ("spec", "containers", 0, "image")) == 13
    assert line_of(data, ("spec", "containers", 1)) == 15
    assert line_of(data, ("spec", "containers", 7)) == 11
    assert line_of(data, ("spec", "containers", 1, "absent", "more")) == 15


@pytest.mark.parametrize("loader", ["C", "pure"])
def test_the_pure_parser_reads_the_same(loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML comes without libyaml on some machines."""
    import yaml

    monkeypatch.setattr(documents, "_LOADER", yaml.SafeLoader if loader == "pure" else yaml.CSafeLoader)
    assert documents_of("a: {b: [yes, 0644, 'x', &a 1, *a]}\n---\n- c") == [{"a": {"b": [True, 420, "x", 1, 1]}}, ["c"]]
    with pytest.raises(DocumentError) as refused:
        documents_of("a: 1\nb: \x07")
    assert refused.value.line == 2


def json_of(text: str) -> list[Any]:
    return list(json_documents(text, 1))


def test_json_values_follow_one_another() -> None:
    text = '{"a": [1, -2.5e3, true, false, null, "\\u00e4\\ud83d\\ude00\\/"], "b": {}}\n[]  "x"'
    assert json_of(text) == [{"a": [1, -2500.0, True, False, None, "ä\U0001f600/"], "b": {}}, [], "x"]
    assert json_of(" \n") == []


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('{"a": 1,\n "a": 2}', 2, "given twice; first in line 1"),
        ("{\n", 2, "wanted a key or }, found the end of the text"),
        ('{"a"\n1}', 2, "wanted a colon, found '1}'"),
        ('{"a": 1,}', 1, "wanted a key, found '}'"),
        ("[1,]", 1, "wanted a value, found ']'"),
        ("[1 2]", 1, "wanted a comma or the end, found '2]'"),
        ("[1}", 1, "wanted a comma or the end, found '}'"),
        ("{1: 2}", 1, "wanted a key or }, found '1: 2}'"),
        ("[01]", 1, "wanted a comma or the end, found '1]'"),
        ('["a\nb"]', 1, "wanted a value or ]"),
        ('["\\x"]', 1, "not readable as JSON: Invalid \\escape"),
        ("[NaN]", 1, "wanted a value or ], found 'NaN]'"),
        ("[" + "9" * 500 + "]", 1, "a number of 500 digits"),
        ("]", 1, "wanted a value, found ']'"),
        (":", 1, "wanted a value, found ':'"),
    ],
)
def test_what_is_no_json_says_what_was_wanted(text: str, line: int, says: str) -> None:
    with pytest.raises(DocumentError) as refused:
        json_of(text)
    assert refused.value.line == line
    assert says in str(refused.value)
