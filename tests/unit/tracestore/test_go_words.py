"""Go's words: the tables were read off the real Jaeger, or Go's documentation of the function."""

from typing import Any

import pytest

from services.tracestore.go_words import (
    BadValue,
    json_text,
    parse_boolean,
    parse_duration_ns,
    parse_hexadecimal,
    parse_integer,
    text_of,
)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("300ms", 300_000_000),
        ("-1.5h", -5_400_000_000_000),
        ("2h45m", 9_900_000_000_000),
        ("1.ms", 1_000_000),
        (".5ms", 500_000),
        ("+1us", 1_000),
        ("1µs1μs", 2_000),
        ("0.000001ns", 0),
        ("0" * 5_000 + "7ns", 7),
        ("0." + "0" * 5_000 + "7h", 0),
        ("2562047h47m16.854775807s", 2**63 - 1),
    ],
)
def test_durations(text: str, nanoseconds: int) -> None:
    assert parse_duration_ns(text) == nanoseconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        ("--1ms", 'time: invalid duration "--1ms"'),
        (".ms", 'time: invalid duration ".ms"'),
        ("1.5", 'time: missing unit in duration "1.5"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("1msx", 'time: unknown unit "msx" in duration "1msx"'),
        ("2562047h47m16.854775808s", 'time: invalid duration "2562047h47m16.854775808s"'),
        ("9" * 5_000 + "s", f'time: invalid duration "{"9" * 5_000}s"'),
    ],
)
def test_what_is_no_duration(text: str, message: str) -> None:
    with pytest.raises(BadValue) as wrong:
        parse_duration_ns(text)
    assert str(wrong.value) == message


@pytest.mark.parametrize(
    ("text", "bits", "fault"),
    [
        ("9223372036854775807", 64, ""),
        ("-9223372036854775808", 64, ""),
        ("9223372036854775808", 64, "value out of range"),
        ("2147483648", 32, "value out of range"),
        ("-2147483648", 32, ""),
        ("0" * 5_000 + "1", 64, ""),
        ("9" * 5_000, 64, "value out of range"),
        ("1_000", 64, "invalid syntax"),
        ("٣", 64, "invalid syntax"),
        ("", 64, "invalid syntax"),
        ("1\n", 64, "invalid syntax"),
    ],
)
def test_integers(text: str, bits: int, fault: str) -> None:
    if not fault:
        assert parse_integer(text, bits) == int(text.lstrip("0") if len(text) > 4_000 else text)
        return
    with pytest.raises(BadValue, match=f"strconv.ParseInt: .*: {fault}"):
        parse_integer(text, bits)


def test_hexadecimals_and_booleans() -> None:
    assert parse_hexadecimal("fF") == 255
    assert parse_boolean("T") and not parse_boolean("False")
    for text in ("", "0x1", "1_0", "-1", "1\n"):
        with pytest.raises(BadValue, match=r"strconv.ParseUint: "):
            parse_hexadecimal(text)
    for text in ("yes", "tRUE", ""):
        with pytest.raises(BadValue, match=r"strconv.ParseBool: "):
            parse_boolean(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (1.2345678901234568e20, "123456789012345680000"),
        (0.000001, "0.000001"),
        (0.00000123, "0.00000123"),
        (1e-7, "1e-7"),
        (5e-324, "5e-324"),
        (100.0, "100"),
        (-0.0, "-0"),
        (2**63, "9223372036854775808"),
        ([1.0, None, True, {"bytes": "AAA="}], '[1,null,true,"AAA="]'),
        ({"b": {"y": 1, "x": []}, "a": "<&>\u2028"}, '{"a":"\\u003c\\u0026\\u003e\\u2028","b":{"x":[],"y":1}}'),
        ({}, "{}"),
        ("ü", '"ü"'),
    ],
)
def test_json(value: Any, text: str) -> None:
    assert json_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (None, ""), (True, "true"), (7, "7"), (2.0, "2"), (float("inf"), "+Inf"), ({"bytes": "AAA="}, "AAA=")],
)
def test_what_a_tag_search_compares(value: Any, text: str) -> None:
    assert text_of(value) == text
