"""Selectors: the string forms of labels and fields, and node selector terms.

The label grammar is Kubernetes' (apimachinery labels.Parse): comma-separated requirements, each `key`, `!key`,
`key=value`, `key==value`, `key!=value`, `key in (a,b)` or `key notin (a,b)`. As there, `!=` and `notin` hold where the
label is absent.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.model.pod import NodeSelectorTerm, Requirement

_TOKEN = re.compile(r"\s*(?:(?P<op>==|!=|=|!|,|\(|\)|<|>)|(?P<word>[^\s=!,()<>]+))")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_FIELD = re.compile(r"(?P<path>[A-Za-z][A-Za-z0-9.]*)\s*(?P<op>==|=|!=)\s*(?P<value>.*)", re.ASCII | re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_INT64_MAX = 2**63 - 1


class SelectorError(ValueError):
    """The text is no selector; the message quotes it and says where it went wrong."""


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements must hold; none: everything matches."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement_matches(requirement, labels) for requirement in self.requirements)

    @property
    def everything(self) -> bool:
        return not self.requirements


def valid_label_key(key: str) -> bool:
    """A qualified name: an optional DNS prefix and a slash, then at most 63 of [-A-Za-z0-9_.]."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _LABEL_PREFIX.fullmatch(prefix)):
        return False
    return bool(_LABEL_NAME.fullmatch(name))


def valid_label_value(value: str) -> bool:
    """Empty, or at most 63 of [-A-Za-z0-9_.] that begin and end with a letter or digit."""
    return not value or bool(_LABEL_NAME.fullmatch(value))


def requirement_matches(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Whether one requirement holds; Gt and Lt compare integers and never hold for anything else."""
    present = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return present is not None and present in requirement.values
        case "NotIn":
            return present is None or present not in requirement.values
        case "Exists":
            return present is not None
        case "DoesNotExist":
            return present is None
        case "Gt" | "Lt":
            return _compares(requirement, present)
    return False


def _compares(requirement: Requirement, present: str | None) -> bool:
    if present is None or len(requirement.values) != 1:
        return False
    wanted = requirement.values[0]
    if not (_INTEGER.fullmatch(present) and _INTEGER.fullmatch(wanted)):
        return False
    left, right = int(present), int(wanted)
    if abs(left) > _INT64_MAX or abs(right) > _INT64_MAX:
        return False
    return left > right if requirement.operator == "Gt" else left < right


def node_selector_term_matches(term: NodeSelectorTerm, labels: Mapping[str, str], node_name: str) -> bool:
    """A term with neither expressions nor fields matches nothing (core/v1 NodeSelectorTerm)."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node_name}
    return all(requirement_matches(requirement, labels) for requirement in term.match_expressions) and all(
        requirement.key in fields and requirement_matches(requirement, fields) for requirement in term.match_fields
    )


def parse_label_selector(text: str) -> Selector:
    """Parses the string form.

    Raises:
        SelectorError: with the position of what was not understood.
    """
    return Selector(tuple(_LabelParser(text).parse()))


class _LabelParser:
    """One pass over the tokens; `at` is the next one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, int]] = []
        self.at = 0
        position = 0
        stripped = len(text.rstrip())
        while position < stripped:
            match = _TOKEN.match(text, position)
            if match is None:
                raise SelectorError(f"label selector {text!r}: cannot read it from position {position}")
            self.tokens.append(
                (
                    match.group("op") or match.group("word"),
                    match.start("op") if match.group("op") else match.start("word"),
                )
            )
            position = match.end()

    def parse(self) -> Iterable[Requirement]:
        while self.at < len(self.tokens):
            yield self._requirement()
            if self.at < len(self.tokens):
                self._expect(",")
                if self.at == len(self.tokens):
                    raise self._error("a requirement after the comma")

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self.at += 1
            return Requirement(self._key(), "DoesNotExist", ())
        key = self._key()
        operator = self._peek()
        if operator in ("=", "=="):
            self.at += 1
            return Requirement(key, "In", (self._value(),))
        if operator == "!=":
            self.at += 1
            return Requirement(key, "NotIn", (self._value(),))
        if operator in ("in", "notin"):
            self.at += 1
            return Requirement(key, "In" if operator == "in" else "NotIn", self._values())
        if operator in ("<", ">"):
            self.at += 1
            bound = self._peek() or ""
            if not _INTEGER.fullmatch(bound) or abs(int(bound)) > _INT64_MAX:
                raise self._error("an integer")
            self.at += 1
            return Requirement(key, "Lt" if operator == "<" else "Gt", (bound,))
        return Requirement(key, "Exists", ())

    def _key(self) -> str:
        key = self._peek()
        if key is None or not valid_label_key(key):
            raise self._error("a label key")
        self.at += 1
        return key

    def _value(self) -> str:
        word = self._peek()
        if word is None or word == ",":
            return ""
        if not valid_label_value(word):
            raise self._error("a label value")
        self.at += 1
        return word

    def _values(self) -> tuple[str, ...]:
        self._expect("(")
        # An empty list is the empty value, as in Kubernetes.
        values = ["" if self._peek() == ")" else self._value()]
        while self._peek() == ",":
            self.at += 1
            values.append("" if self._peek() == ")" else self._value())
        self._expect(")")
        return tuple(values)

    def _peek(self) -> str | None:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else None

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._error(repr(token))
        self.at += 1

    def _error(self, wanted: str) -> SelectorError:
        if self.at < len(self.tokens):
            token, position = self.tokens[self.at]
            return SelectorError(
                f"label selector {self.text!r}: wanted {wanted} at position {position}, found {token!r}"
            )
        return SelectorError(f"label selector {self.text!r}: wanted {wanted} at its end")


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """(path, equal, value): `path=value` or `path!=value`; all must hold."""

    requirements: tuple[tuple[str, bool, str], ...]

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all((fields.get(path, "") == value) is equal for path, equal, value in self.requirements)

    @property
    def everything(self) -> bool:
        return not self.requirements


def parse_field_selector(text: str, supported: Iterable[str]) -> FieldSelector:
    """Parses `a.b=c,d!=e`; a backslash escapes comma, equals sign and itself in a value.

    Raises:
        SelectorError: not of the grammar, or a path that is not in `supported`.
    """
    known = tuple(supported)
    requirements = []
    for part in re.split(r"(?<!\\),", text) if text.strip() else []:
        match = _FIELD.fullmatch(part.strip())
        if match is None:
            raise SelectorError(f"field selector {text!r}: {part.strip()!r} is not path=value or path!=value")
        path = match.group("path")
        if path not in known:
            raise SelectorError(
                f"field selector {text!r}: {path!r} is not supported here; supported: {', '.join(known)}"
            )
        requirements.append((path, match.group("op") != "!=", re.sub(r"\\([,=\\])", r"\1", match.group("value"))))
    return FieldSelector(tuple(requirements))
