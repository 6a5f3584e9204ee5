"""JSON with its lines, into the same builder as YAML: no recursion, duplicate keys are errors."""

import json
import re
from collections.abc import Iterator
from typing import Any

from services.wire.documents import Builder, DocumentError, LinedDict, LinedList

_NUMBER_TEXT_MAX = 400
_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(
    r"""(?P<mark>[{}\[\]:,])
    |(?P<string>"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*")
    |(?P<number>-?(?:0|[1-9]\d*)(?P<part>(?:\.\d+)?(?:[eE][+-]?\d+)?))
    |(?P<word>true|false|null)""",
    re.VERBOSE | re.ASCII,
)
_WORDS = {"true": True, "false": False, "null": None}
# What may come next: a value, a value or the end of an empty list, a key, a key or the end of an empty object, a colon,
# a comma or an end.
_VALUE, _FIRST, _KEY, _FIRST_KEY, _COLON, _NEXT = (
    "a value",
    "a value or ]",
    "a key",
    "a key or }",
    "a colon",
    "a comma or the end",
)


def json_documents(text: str, first_line: int) -> Iterator[Any]:
    """The documents of a text of one JSON value after another.

    Raises:
        DocumentError: what follows cannot be read.
    """
    scanner = _Scanner(text, first_line)
    while scanner.more():
        yield scanner.document()


class _Scanner:
    def __init__(self, text: str, first_line: int) -> None:
        self.text = text
        self.at = 0
        self.line = first_line
        self.counted = 0

    def more(self) -> bool:
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        return self.at < len(self.text)

    def document(self) -> Any:
        builder = Builder()
        wanted = _VALUE
        while not builder.done:
            if not self.more():
                raise DocumentError(f"not readable as JSON: wanted {wanted}, found the end of the text", self.line)
            token = _TOKEN.match(self.text, self.at)
            if token is None:
                raise self.wrong(wanted)
            wanted = (
                self.mark(token.group(), wanted, builder)
                if token.group("mark")
                else self.scalar(token, wanted, builder)
            )
            self.at = token.end()
        return builder.result

    def mark(self, mark: str, wanted: str, builder: Builder) -> str:
        if mark in "{[" and wanted in (_VALUE, _FIRST):
            builder.begin(LinedDict(self.line) if mark == "{" else LinedList(self.line))
            return _FIRST_KEY if mark == "{" else _FIRST
        inside = builder.stack[-1].container if builder.stack else None
        if mark == "}" and isinstance(inside, LinedDict) and wanted in (_FIRST_KEY, _NEXT):
            builder.end()
            return _NEXT
        if mark == "]" and isinstance(inside, LinedList) and wanted in (_FIRST, _NEXT):
            builder.end()
            return _NEXT
        if mark == "," and wanted == _NEXT:
            return _KEY if isinstance(inside, LinedDict) else _VALUE
        if mark == ":" and wanted == _COLON:
            return _VALUE
        raise self.wrong(wanted)

    def scalar(self, token: re.Match[str], wanted: str, builder: Builder) -> str:
        is_key = wanted in (_KEY, _FIRST_KEY)
        if not (is_key and token.group("string")) and wanted not in (_VALUE, _FIRST):
            raise self.wrong(wanted)
        builder.scalar(self.value(token), self.line)
        return _COLON if is_key else _NEXT

    def value(self, token: re.Match[str]) -> Any:
        text = token.group()
        if token.group("word"):
            return _WORDS[text]
        if token.group("number"):
            if len(text) > _NUMBER_TEXT_MAX:
                raise DocumentError(f"not readable as JSON: a number of {len(text)} digits", self.line)
            return float(text) if token.group("part") else int(text)
        try:
            return json.loads(text)
        except ValueError as error:
            raise DocumentError(f"not readable as JSON: {error}", self.line) from error

    def wrong(self, wanted: str) -> DocumentError:
        found = self.text[self.at : self.at + 20].split("\n", 1)[0]
        return DocumentError(f"not readable as JSON: wanted {wanted}, found {found!a}", self.line)
