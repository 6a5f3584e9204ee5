"""Resource quantities: Kubernetes strings to integers and back, without a float in between.

The grammar is the one that apimachinery documents for resource.Quantity: a signed decimal with a binary suffix (Ki to
Ei), a decimal one (n to E) or an exponent. As there, nothing is finer than a nano (what is finer is rounded away from
zero), and `milli_value` and `value` round away from zero: who asks for some gets some.

Kubernetes caps a binary quantity at 2^63-1 and lets others overflow int64 in Value() and MilliValue(). Here every
integer saturates at AMOUNT_MAX: a request that no machine can hold stays one that no machine can hold. (Kubernetes also
reads a suffix without digits, "k", as zero, against its own grammar; here that is an error.)
"""

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from services.model.names import RESOURCE_CPU

_GRAMMAR = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d{1,4}|[numkMGTPE]|)", re.ASCII)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_MEMO_MAX = 65_536
# Longer ones are no quantity that a person or a program means; Python's own limit on digits is near.
_LENGTH_MAX = 256
# Exponents beyond this leave every quantity that int64 can hold far behind.
_EXPONENT_MAX = 60
_NANO = 10**9
AMOUNT_MAX = 2**63 - 1


class QuantityError(ValueError):
    """The text is no quantity; the message quotes it."""


@lru_cache(maxsize=_MEMO_MAX)
def parse_quantity(text: str) -> Fraction:
    """The number that `text` stands for, exact down to a nano.

    Raises:
        QuantityError: `text` is not of the grammar.
    """
    return _parse(text)[0]


def _parse(text: str) -> tuple[Fraction, str]:
    """The number, and the format that its canonical form keeps: binary, decimal or exponent."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    if match is None:
        quoted = repr(text) if len(text) <= _LENGTH_MAX else f"{text[:32]!r}..."
        raise QuantityError(
            f"{quoted} is not a quantity: wanted a number with an optional suffix, like 500m, 2, 80Gi or 1e3"
        )
    sign, digits, suffix = match.groups()
    number = Fraction(digits.removesuffix("."))
    if suffix in _BINARY:
        # The cap is Kubernetes' own, and for binary quantities alone.
        number, form = min(number * 2 ** _BINARY[suffix], Fraction(AMOUNT_MAX)), "binary"
    elif suffix in _DECIMAL:
        number, form = number * Fraction(10) ** _DECIMAL[suffix], "decimal"
    else:
        exponent = int(suffix[1:])
        if abs(exponent) > _EXPONENT_MAX:
            raise QuantityError(f"{text!r} is not a quantity that we can hold: the exponent is beyond {_EXPONENT_MAX}")
        number, form = number * Fraction(10) ** exponent, "exponent"
    number = Fraction(_ceil(number * _NANO), _NANO)
    return (-number if sign == "-" else number), form


def _ceil(number: Fraction) -> int:
    """The nearest integer away from zero."""
    magnitude = -(-abs(number.numerator) // number.denominator)
    return magnitude if number >= 0 else -magnitude


def saturated(amount: int) -> int:
    """`amount`, kept within int64."""
    return max(-AMOUNT_MAX, min(AMOUNT_MAX, amount))


@lru_cache(maxsize=_MEMO_MAX)
def milli_value(text: str) -> int:
    """Thousandths, rounded away from zero ("0.1m" is 1), saturating. Raises QuantityError."""
    return saturated(_ceil(parse_quantity(text) * 1000))


@lru_cache(maxsize=_MEMO_MAX)
def value(text: str) -> int:
    """Whole units, rounded away from zero ("100m" is 1), saturating. Raises QuantityError."""
    return saturated(_ceil(parse_quantity(text)))


def resource_amount(name: str, text: str) -> int:
    """`text` as the integer that ledgers and snapshots hold: cpu in thousandths of a core, everything else in base units."""
    return milli_value(text) if name == RESOURCE_CPU else value(text)


def resource_amounts(texts: Iterable[tuple[str, str]]) -> dict[str, int]:
    """`resource_amount` for each (name, text), in order of name. Raises QuantityError."""
    return {name: resource_amount(name, text) for name, text in sorted(texts)}


def canonical(text: str) -> str:
    """The form in which Kubernetes writes `text` back: "1024Ki" is "1Mi", "0.5" is "500m", "1000" is "1k", "1500e0"
    is "1500". The format (binary, decimal, exponent) stays, except that a binary one becomes decimal below 1024 and
    where it holds a fraction.

    Raises:
        QuantityError: `text` is not of the grammar.
    """
    number, form = _parse(text)
    if number == 0:
        return "0"
    if form == "binary" and abs(number) >= 1024 and number.denominator == 1:
        return _binary(number.numerator)
    mantissa, exponent = _ceil(number * _NANO), -9
    # A decimal suffix exists up to E; an exponent has no such end.
    while mantissa % 1000 == 0 and (form == "exponent" or exponent < 18):
        mantissa, exponent = mantissa // 1000, exponent + 3
    if form == "exponent":
        return f"{mantissa}e{exponent}" if exponent else str(mantissa)
    return f"{mantissa}{_DECIMAL_SUFFIX[exponent]}"


def _binary(amount: int) -> str:
    for suffix, shift in reversed(_BINARY.items()):
        if amount and amount % (1 << shift) == 0:
            return f"{amount >> shift}{suffix}"
    return str(amount)


def format_amount(name: str, amount: int) -> str:
    """A text that `resource_amount` reads as `amount`, as people write it: "1500m", "2", "80Gi"."""
    if name == RESOURCE_CPU:
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if name == "memory" or name.endswith("storage") or name.startswith("hugepages-"):
        return _binary(amount)
    return str(amount)
