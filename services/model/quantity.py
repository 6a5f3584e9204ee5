"""Resource quantities: Kubernetes strings to integers and back, without a float in between.

The grammar and the rounding are those of apimachinery's resource.Quantity: a signed decimal with a binary suffix (Ki to
Ei), a decimal one (n to E) or an exponent. `milli_value` and `value` round away from zero towards the larger
magnitude of need, that is up, as Quantity.MilliValue and Quantity.Value do.
"""

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil

from services.model.names import RESOURCE_CPU

_GRAMMAR = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d{1,4}|[numkMGTPE]|)", re.ASCII)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MEMO_MAX = 65_536
# Exponents beyond this leave every quantity that int64 can hold far behind.
_EXPONENT_MAX = 60
AMOUNT_MAX = 2**63 - 1


class QuantityError(ValueError):
    """The text is no quantity, or one that no int64 holds."""


@lru_cache(maxsize=_MEMO_MAX)
def parse_quantity(text: str) -> Fraction:
    """The exact number that `text` stands for.

    Raises:
        QuantityError: `text` is not of the grammar.
    """
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise QuantityError(
            f"{text!r} is not a quantity: wanted a number with an optional suffix, like 500m, 2, 80Gi or 1e3"
        )
    sign, digits, suffix = match.groups()
    number = Fraction(digits if not digits.endswith(".") else digits[:-1])
    if suffix in _BINARY:
        number *= 2 ** _BINARY[suffix]
    elif suffix in _DECIMAL:
        number *= Fraction(10) ** _DECIMAL[suffix]
    else:
        exponent = int(suffix[1:])
        if abs(exponent) > _EXPONENT_MAX:
            raise QuantityError(f"{text!r} is not a quantity that we can hold: the exponent is beyond {_EXPONENT_MAX}")
        number *= Fraction(10) ** exponent
    return -number if sign == "-" else number


@lru_cache(maxsize=_MEMO_MAX)
def milli_value(text: str) -> int:
    """Thousandths, rounded up ("0.1m" is 1). Raises QuantityError, also beyond int64."""
    return _bounded(ceil(parse_quantity(text) * 1000), text)


@lru_cache(maxsize=_MEMO_MAX)
def value(text: str) -> int:
    """Whole units, rounded up ("100m" is 1). Raises QuantityError, also beyond int64."""
    return _bounded(ceil(parse_quantity(text)), text)


def _bounded(amount: int, text: str) -> int:
    if abs(amount) > AMOUNT_MAX:
        raise QuantityError(f"{text!r} is larger than any machine: the limit is {AMOUNT_MAX}")
    return amount


def resource_amount(name: str, text: str) -> int:
    """`text` as the integer that ledgers and snapshots hold: cpu in thousandths of a core, everything else in base units."""
    return milli_value(text) if name == RESOURCE_CPU else value(text)


def format_amount(name: str, amount: int) -> str:
    """The canonical text of what `resource_amount` returns: "1500m", "2", "80Gi"."""
    if name == RESOURCE_CPU:
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if name == "memory" or name.endswith("storage") or name.startswith("hugepages-"):
        for suffix, shift in reversed(_BINARY.items()):
            if amount and amount % (1 << shift) == 0:
                return f"{amount >> shift}{suffix}"
    return str(amount)
