"""Manifests: YAML or JSON text, any number of documents, to the objects that they describe.

One bad document does not lose the others. Each error says source and line, which document, which field, and what would be
right.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from google.protobuf.message import Message

from services.model.kinds import KIND_BY_NAME, KINDS, Kind
from services.wire.codec import from_json
from services.wire.documents import DocumentError, line_of, yaml_documents
from services.wire.field_errors import FieldErrors, Steps, path_text
from services.wire.json_documents import json_documents
from services.wire.kinds import message_class
from services.wire.scalars import shown

_SEPARATOR = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_NOTHING = re.compile(r"(?:(?:---)?[ \t]*(?:#.*|%.*)?(?:\r?\n|\Z))*", re.ASCII)
_JSON_START = re.compile(r'(?:---)?\s*\{\s*["}]')


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object, as its author wrote it, in `document` (from 1) of `source`, beginning at `line`."""

    kind: Kind
    message: Message
    source: str
    line: int
    document: int

    @property
    def name(self) -> str:
        """metadata.name, or generateName where the server is to choose."""
        message: Any = self.message  # every kind has metadata; Message does not say so
        return str(message.metadata.name or message.metadata.generate_name)


@dataclass(frozen=True, slots=True)
class Problem:
    """`path` is empty where the whole document cannot be read."""

    line: int
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class ManifestError:
    """One object that could not be read, and all that is wrong with it. `name`: "Pod web-0" as far as it is known."""

    source: str
    line: int
    document: int
    name: str
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        return "\n".join(
            f"{self.source}:{problem.line}: document {self.document}: "
            + (f"{problem.path}: {problem.message}" if problem.path else problem.message)
            for problem in self.problems
        )


def read_manifests(text: str, source: str) -> list[Manifest | ManifestError]:
    """All objects of `text`, in order, errors in the places of the objects that they are about. Never raises."""
    found: list[Manifest | ManifestError] = []
    document = 0
    text = text.removeprefix("\ufeff")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        return [ManifestError(source, line, 1, "", (Problem(line, "", "not valid Unicode"),))]
    for part, line in _split(text):
        documents = _documents(part, line)
        while True:
            document += 1
            try:
                data = next(documents)
            except StopIteration:
                document -= 1
                break
            except DocumentError as error:
                problem = Problem(error.line, path_text(error.steps), str(error))
                found.append(ManifestError(source, error.line, document, "", (problem,)))
                break
            if data is None:
                document -= 1
            else:
                found.extend(_Document(data, source, document).objects(data, (), None))
    return found


def _split(text: str) -> Iterator[tuple[str, int]]:
    """The parts between lines of `---`, each with its first line: so an unreadable one does not lose the others."""
    starts = [0, *(match.start() for match in _SEPARATOR.finditer(text)), len(text)]
    line = 1
    for start, end in pairwise(starts):
        part = text[start:end]
        if not _NOTHING.fullmatch(part):
            yield part, line
        line += part.count("\n")


def _documents(text: str, line: int) -> Iterator[Any]:
    if not _JSON_START.match(text):
        yield from yaml_documents(text, line)
        return
    body = text.removeprefix("---")
    try:
        parsed = list(json_documents(body, line))
    except DocumentError as error:
        # `{"a": b}` is YAML all the same; what is neither was meant as JSON.
        try:
            parsed = list(yaml_documents(text, line))
        except DocumentError:
            raise error from None
    yield from parsed


class _Document:
    """Reads the objects of one document: itself, or the items of a List."""

    def __init__(self, root: Any, source: str, document: int) -> None:
        self.root = root
        self.source = source
        self.document = document

    def objects(self, data: Any, steps: Steps, of: Kind | None) -> Iterator[Manifest | ManifestError]:
        """`of`: the kind that the items of a typed list have where they do not say."""
        if not isinstance(data, dict):
            yield self.error("", [(steps, f"wanted an object with apiVersion and kind, found {shown(data)}")])
            return
        api_version: Any = data.get("apiVersion") or (of.api_version if of else None)
        kind_name: Any = data.get("kind") or (of.name if of else None)
        if not isinstance(api_version, str) or not isinstance(kind_name, str):
            wrong: list[tuple[Steps, str]] = [
                ((*steps, field), "is missing" if value is None else f"wanted a string, found {shown(value)}")
                for field, value in (("apiVersion", api_version), ("kind", kind_name))
                if not isinstance(value, str)
            ]
            yield self.error(_name(kind_name, data), wrong)
            return
        item_kind = KIND_BY_NAME.get((api_version, kind_name.removesuffix("List"))) if kind_name != "List" else None
        if (api_version, kind_name) == ("v1", "List") or (item_kind and kind_name.endswith("List")):
            yield from self.items(data, steps, item_kind)
            return
        kind = KIND_BY_NAME.get((api_version, kind_name))
        if kind is None:
            yield self.error(_name(kind_name, data), [_unknown_kind(api_version, kind_name, steps)])
        else:
            yield self.single(data, steps, kind)

    def items(self, data: dict[Any, Any], steps: Steps, of: Kind | None) -> Iterator[Manifest | ManifestError]:
        odd = [
            ((*steps, str(key)), "unknown field; a list has apiVersion, kind, metadata and items")
            for key in data
            if key not in ("apiVersion", "kind", "metadata", "items")
        ]
        items = data.get("items")
        if items is not None and not isinstance(items, list):
            odd.append(((*steps, "items"), f"wanted a list, found {shown(items)}"))
            items = None
        if odd:
            yield self.error("List", odd)
        for index, item in enumerate(items or ()):
            yield from self.objects(item, (*steps, "items", index), of)

    def single(self, data: dict[Any, Any], steps: Steps, kind: Kind) -> Manifest | ManifestError:
        wrong: list[tuple[Steps, str]] = []
        if kind.read_only:
            wrong.append(((*steps, "kind"), f"{kind.name} is read-only: the API server writes it"))
        metadata = data.get("metadata")
        if metadata is None or (
            isinstance(metadata, dict) and not metadata.get("name") and not metadata.get("generateName")
        ):
            wrong.append(((*steps, "metadata", "name"), "is missing"))
        try:
            message = from_json(data, message_class(kind))
        except FieldErrors as error:
            wrong.extend(((*steps, *path), text) for path, (_, text) in zip(error.steps, error.errors, strict=True))
        if wrong:
            return self.error(_name(kind.name, data), wrong)
        named: Any = message
        named.api_version, named.kind = kind.api_version, kind.name
        return Manifest(kind, message, self.source, line_of(self.root, steps), self.document)

    def error(self, name: str, wrong: list[tuple[Steps, str]]) -> ManifestError:
        problems = tuple(Problem(line_of(self.root, steps), path_text(steps), text) for steps, text in wrong)
        return ManifestError(self.source, problems[0].line, self.document, name, problems)


def _name(kind: Any, data: dict[Any, Any]) -> str:
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return " ".join(word for word in (kind, name) if isinstance(word, str))


def _unknown_kind(api_version: str, name: str, steps: Steps) -> tuple[Steps, str]:
    same = [kind.api_version for kind in KINDS if kind.name == name]
    if same:
        return (*steps, "apiVersion"), f"{name} is served as {' or '.join(same)}, not as {api_version[:80]!a}"
    names = [kind.name for kind in KINDS]
    close = difflib.get_close_matches(name[:80].capitalize(), names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    known = ", ".join(f"{kind.name} ({kind.api_version})" for kind in KINDS if not kind.read_only)
    return (*steps, "kind"), f"unknown kind {name[:80]!a} in {api_version[:80]!a}{hint} (known: {known})"
