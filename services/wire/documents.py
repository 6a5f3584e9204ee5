"""Text to plain data that remembers its lines: YAML 1.1 as Kubernetes reads it, and JSON.

Built from events rather than by a loader, because a manifest's reader owes its user what loaders drop: the line of every
key, duplicate keys as errors, and bounds that hold against hostile input (depth, and size with all aliases expanded).
Plain scalars resolve as in Kubernetes' YAML library, not as in PyYAML: dates, times of day and 22:22 are strings, 0644 is
octal, a bare yes or on is a boolean.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from services.wire.field_errors import Steps

DEPTH_MAX = 100
NODES_MAX = 1_000_000
_NUMBER_TEXT_MAX = 400
# libyaml's parser where PyYAML was built with it; the same events, ten times faster.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_WORDS: dict[str, bool | None] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_WORDS |= dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True)
_WORDS |= dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False)
_INTEGER = re.compile(r"([-+]?)(?:0b([01]+)|0o?([0-7]+)|0x([0-9a-fA-F]+)|(0|[1-9][0-9]*))", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_SPECIAL = re.compile(r"([-+]?)\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII)


class LinedDict(dict[Any, Any]):
    """An object; `lines` has the line of each key, `line` its own. `size` and `depth` count with aliases expanded."""

    __slots__ = ("closed", "depth", "line", "lines", "size")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[Any, int] = {}
        self.size = self.depth = 1
        self.closed = False


class LinedList(list[Any]):
    """A list; `lines` has the line of each element."""

    __slots__ = ("closed", "depth", "line", "lines", "size")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []
        self.size = self.depth = 1
        self.closed = False


def line_of(data: Any, steps: Steps) -> int:
    """The line of what `steps` leads to, or of the nearest thing around it."""
    line = int(getattr(data, "line", 1))
    for step in steps:
        if isinstance(data, LinedDict):
            if step not in data:
                break
            line, data = data.lines[step], data[step]
        elif isinstance(data, LinedList) and isinstance(step, int) and step < len(data):
            line, data = data.lines[step], data[step]
        else:
            break
    return line


class DocumentError(ValueError):
    """The text cannot be read at `line`; `steps` leads to the place where one is known."""

    def __init__(self, message: str, line: int, steps: Steps = ()) -> None:
        super().__init__(message)
        self.line = line
        self.steps = steps


@dataclass
class Frame:
    """A container that is still open. `key`: the key that waits for its value."""

    container: LinedDict | LinedList
    key: Any = None
    key_line: int = 0
    has_key: bool = False
    merges: list[Any] = field(default_factory=list)


class _MergeKey:
    """Stands for the plain key `<<`."""


_MERGE = _MergeKey()


class Builder:
    """Events in, one document out: `result` once `done`."""

    def __init__(self) -> None:
        self.stack: list[Frame] = []
        self.anchors: dict[str, Any] = {}
        self.result: Any = None
        self.done = False

    def begin(self, container: LinedDict | LinedList, anchor: str | None = None) -> None:
        if len(self.stack) >= DEPTH_MAX:
            raise self.error(f"nested deeper than {DEPTH_MAX} levels", container.line)
        if self.stack and isinstance(self.stack[-1].container, LinedDict) and not self.stack[-1].has_key:
            raise self.error("a key has to be a plain text", container.line)
        if anchor is not None:
            self.anchors[anchor] = container
        self.stack.append(Frame(container))

    def end(self) -> None:
        frame = self.stack.pop()
        frame.container.closed = True
        if isinstance(frame.container, LinedDict):
            for source in frame.merges:
                self.merge(frame.container, source)
        self.add(frame.container, frame.container.line)

    def scalar(self, value: Any, line: int, anchor: str | None = None) -> None:
        if anchor is not None:
            self.anchors[anchor] = value
        self.add(value, line)

    def alias(self, name: str | None, line: int) -> None:
        if name is None or name not in self.anchors:
            raise self.error(f"the alias *{name} has no anchor", line)
        value = self.anchors[name]
        if isinstance(value, LinedDict | LinedList):
            if not value.closed:
                raise self.error(f"the alias *{name} stands inside its own anchor", line)
            if len(self.stack) + value.depth > DEPTH_MAX:
                raise self.error(f"nested deeper than {DEPTH_MAX} levels", line)
        self.add(value, line)

    def add(self, value: Any, line: int) -> None:
        """Puts a finished value where it belongs: the document, an element, a key or a key's value."""
        if not self.stack:
            self.result, self.done = value, True
            return
        frame = self.stack[-1]
        container = frame.container
        if isinstance(container, LinedList):
            container.append(value)
            container.lines.append(line)
        elif not frame.has_key:
            self.take_key(frame, value, line)
            return
        elif frame.key is _MERGE:
            frame.merges.append(value)
            frame.has_key = False
        else:
            container[frame.key] = value
            container.lines[frame.key] = frame.key_line
            frame.has_key = False
        container.size += getattr(value, "size", 1)
        container.depth = max(container.depth, getattr(value, "depth", 0) + 1)
        if container.size > NODES_MAX:
            raise self.error(f"more than {NODES_MAX} values, aliases counted each time", line)

    def take_key(self, frame: Frame, key: Any, line: int) -> None:
        if isinstance(key, LinedDict | LinedList):
            raise self.error("a key has to be a plain text", line)
        container = frame.container
        if isinstance(container, LinedDict) and key in container:
            raise self.error(f"given twice; first in line {container.lines[key]}", line, key)
        frame.key, frame.key_line, frame.has_key = key, line, True

    def merge(self, target: LinedDict, source: Any) -> None:
        """YAML's merge key: what the target does not say itself; the first source wins."""
        for part in source if isinstance(source, LinedList) else (source,):
            if not isinstance(part, LinedDict):
                raise self.error("<< takes an object or a list of objects", target.line)
            for key, value in part.items():
                if key not in target:
                    target[key] = value
                    target.lines[key] = part.lines[key]

    def error(self, message: str, line: int, key: Any = None) -> DocumentError:
        steps: list[str | int] = []
        for frame in self.stack:
            if isinstance(frame.container, LinedList):
                steps.append(len(frame.container))
            elif frame.has_key:
                steps.append(str(frame.key))
        if key is not None:
            steps.append(str(key))
        return DocumentError(message, line, tuple(steps))


def yaml_documents(text: str, first_line: int) -> Iterator[Any]:
    """The documents of a YAML text, one by one; None for an empty one.

    Raises:
        DocumentError: what follows cannot be read.
    """
    builder = Builder()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            mark: Any = event.start_mark
            line = mark.line + first_line
            if isinstance(event, yaml.ScalarEvent):
                builder.scalar(_scalar(event, builder, line), line, event.anchor)
            elif isinstance(event, yaml.MappingStartEvent):
                _check_tag(event.tag, "map", builder, line)
                builder.begin(LinedDict(line), event.anchor)
            elif isinstance(event, yaml.SequenceStartEvent):
                _check_tag(event.tag, "seq", builder, line)
                builder.begin(LinedList(line), event.anchor)
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                builder.end()
            elif isinstance(event, yaml.AliasEvent):
                builder.alias(event.anchor, line)
            elif isinstance(event, yaml.DocumentEndEvent):
                yield builder.result
                builder = Builder()
    except yaml.MarkedYAMLError as error:
        problem = error.problem_mark or error.context_mark
        # The end of the text is no line that an editor shows.
        line = first_line + min(problem.line, text.count("\n")) if problem else first_line
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise DocumentError(f"not readable as YAML: {said}", line) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + first_line
        raise DocumentError(f"not readable as YAML: {error.reason}", line) from error


def _check_tag(tag: str | None, wanted: str, builder: Builder, line: int) -> None:
    if tag not in (None, "!", _TAG + wanted):
        raise builder.error(f"the tag {_short(tag)} has no place in a manifest", line)


def _short(tag: str | None) -> str:
    return (tag or "").replace(_TAG, "!!")[:80]


def _scalar(event: yaml.ScalarEvent, builder: Builder, line: int) -> Any:
    text: str = event.value
    if event.tag is None:
        if not event.implicit[0]:
            return text
        in_key = builder.stack and isinstance(builder.stack[-1].container, LinedDict) and not builder.stack[-1].has_key
        return _MERGE if in_key and text == "<<" else resolve(text)
    if event.tag in ("!", _TAG + "str"):
        return text
    value = resolve(text)
    kinds = {"int": int, "float": float, "bool": bool, "null": type(None)}
    wanted = kinds.get(event.tag.removeprefix(_TAG))
    if wanted is float and type(value) is int:
        return float(value)
    if wanted is None or type(value) is not wanted:
        raise builder.error(f"the tag {_short(event.tag)} has no place here", line)
    return value


def resolve(text: str) -> Any:
    """A plain YAML scalar as Kubernetes' YAML library reads it."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or len(text) > _NUMBER_TEXT_MAX:
        return text
    special = _SPECIAL.fullmatch(text)
    if special:
        return float(f"{special.group(1)}inf") if special.group(1) is not None else float("nan")
    digits = text.replace("_", "")
    integer = _INTEGER.fullmatch(digits)
    if integer:
        for group, base in ((2, 2), (3, 8), (4, 16), (5, 10)):
            if integer.group(group) is not None:
                return int(integer.group(1) + integer.group(group), base)
    return float(digits) if _FLOAT.fullmatch(digits) else text
