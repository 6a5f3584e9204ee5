"""Quantities against Kubernetes' own examples, and against exact arithmetic."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.model.quantity import (
    AMOUNT_MAX,
    QuantityError,
    canonical,
    format_amount,
    milli_value,
    parse_quantity,
    resource_amount,
    value,
)

SUFFIXES = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


# (text, canonical, MilliValue, Value): from apimachinery's quantity_test.go and its documentation.
@pytest.mark.parametrize(
    ("text", "form", "milli", "whole"),
    [
        ("0", "0", 0, 0),
        ("+0.0Ki", "0", 0, 0),
        ("1", "1", 1000, 1),
        ("0.5", "500m", 500, 1),
        ("500m", "500m", 500, 1),
        ("0.1m", "100u", 1, 1),
        ("1n", "1n", 1, 1),
        ("0.1n", "1n", 1, 1),
        ("1.5", "1500m", 1500, 2),
        ("100.5m", "100500u", 101, 1),
        ("1000", "1k", 1_000_000, 1000),
        ("1024", "1024", 1_024_000, 1024),
        ("1024Ki", "1Mi", 2**20 * 1000, 2**20),
        ("1Ki", "1Ki", 1_024_000, 1024),
        ("0.5Ki", "512", 512_000, 512),
        ("1.5Gi", "1536Mi", 1536 * 2**20 * 1000, 1536 * 2**20),
        ("1.5Ki", "1536", 1_536_000, 1536),
        ("0.3Mi", "314572800m", 314_572_800, 314_573),
        ("1e3", "1e3", 1_000_000, 1000),
        ("1E3", "1e3", 1_000_000, 1000),
        ("12e6", "12e6", 12_000_000_000, 12_000_000),
        ("1500e-3", "1500e-3", 1500, 2),
        ("1E", "1E", AMOUNT_MAX, 10**18),
        ("1Ei", "1Ei", AMOUNT_MAX, 2**60),
        (".5", "500m", 500, 1),
        ("5.", "5", 5000, 5),
        ("-0.5", "-500m", -500, -1),
        ("-1.1n", "-2n", -1, -1),
        ("00012", "12", 12_000, 12),
    ],
)
def test_a_quantity_reads_as_kubernetes_reads_it(text: str, form: str, milli: int, whole: int) -> None:
    assert (canonical(text), milli_value(text), value(text)) == (form, milli, whole)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "+",
        "-",
        ".",
        "1.1.M",
        "1+1.0M",
        "0.1mi",
        "0.1am",
        "aoeu",
        ".5i",
        "1i",
        "-3.01i",
        "-3.01e-",
        "e3",
        "1K",
        "1ki",
        "1e",
        "1e3k",
        "1Ki1",
        "0x10",
        "1,5",
        "\u0661",
        "1_000",
        "k",
        "nan",
        "inf",
        "1e99999",
        "9" * 300,
        "1\n",
    ],
)
def test_what_is_no_quantity_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_quantity(text)
    assert repr(text)[:20] in str(refused.value)
    assert len(str(refused.value)) < 500


def test_beyond_int64_a_quantity_saturates() -> None:
    """Kubernetes caps binary quantities when it parses them; ours saturate wherever they become integers."""
    assert parse_quantity("16Ei") == AMOUNT_MAX
    assert canonical("16Ei") == str(AMOUNT_MAX)
    assert value("10E") == AMOUNT_MAX
    assert milli_value("10E") == AMOUNT_MAX
    assert value("-10E") == -AMOUNT_MAX


@st.composite
def quantities(draw: st.DrawFn) -> str:
    sign = draw(st.sampled_from(("", "-", "+")))
    whole = draw(st.integers(0, 10**12))
    fraction = draw(st.one_of(st.just(""), st.integers(0, 10**9).map(lambda number: f".{number}")))
    suffix = draw(st.one_of(st.sampled_from(SUFFIXES), st.integers(-12, 12).map(lambda exponent: f"e{exponent}")))
    return f"{sign}{whole}{fraction}{suffix}"


@given(quantities())
def test_the_canonical_form_is_the_same_number_and_its_own_canonical_form(text: str) -> None:
    form = canonical(text)
    assert parse_quantity(form) == parse_quantity(text)
    assert canonical(form) == form


@given(quantities())
def test_integers_are_the_exact_number_rounded_away_from_zero(text: str) -> None:
    number = parse_quantity(text)
    for amount, exact in ((value(text), number), (milli_value(text), number * 1000)):
        if abs(exact) <= AMOUNT_MAX:
            assert abs(exact) <= abs(amount) < abs(exact) + 1
            assert amount * exact >= 0


@given(st.integers(0, AMOUNT_MAX // 1000), st.sampled_from(("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu")))
def test_an_amount_survives_its_text(amount: int, name: str) -> None:
    assert resource_amount(name, format_amount(name, amount)) == amount


def test_only_cpu_counts_in_thousandths() -> None:
    assert resource_amount("cpu", "2") == 2000
    assert resource_amount("memory", "2Ki") == 2048
    assert resource_amount("nvidia.com/gpu", "2") == 2
    assert parse_quantity("0.1") == Fraction(1, 10)
