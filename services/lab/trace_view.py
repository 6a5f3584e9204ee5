"""A trace as a tree: spans under their parents, in order of start, with offsets from the first and durations. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.spans.store import SpanRecord

BAR_CELLS = 24
VALUE_CHARACTERS_MAX = 48
# What every span of ours has anyway, or what its place in the tree says.
_ATTRIBUTES_HIDDEN = (
    "rpc.",
    "db.",
    "orrery.caller",
    "orrery.source",
    "k8s.pod.",
    "k8s.namespace.",
    "orrery.extension_point",
    "orrery.plugin",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One span in the order of the tree. `branch` is the drawing before its name; a root's `depth` is 0."""

    branch: str
    span: SpanRecord
    offset_ns: int
    events_branch: str
    depth: int

    @property
    def duration_ns(self) -> int:
        return self.span.end_ns - self.span.start_ns


def trace_rows(spans: Sequence[SpanRecord]) -> list[Row]:
    """The spans depth first. One whose parent is not there (lost, or not written yet) is a root."""
    known = {span.span_id for span in spans}
    children: dict[str, list[SpanRecord]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        parent = span.parent_id if span.parent_id in known else ""
        children.setdefault(parent, []).append(span)
    begin = min((span.start_ns for span in spans), default=0)
    rows: list[Row] = []

    def walk(span: SpanRecord, branch: str, below: str, depth: int) -> None:
        under = children.get(span.span_id, [])
        rows.append(Row(branch, span, span.start_ns - begin, below + ("│ " if under else "  "), depth))
        for at, child in enumerate(under):
            last = at == len(under) - 1
            walk(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "), depth + 1)

    for root in children.get("", []):
        walk(root, "", "", 0)
    return rows


def duration_text(nanoseconds: int) -> str:
    """ "840 µs", "12.3 ms", "1.24 s"."""
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1_000:.0f} µs"
    if nanoseconds < 1_000_000_000:
        return f"{nanoseconds / 1_000_000:.1f} ms"
    return f"{nanoseconds / 1_000_000_000:.2f} s"


def bar(offset_ns: int, duration_ns: int, total_ns: int, cells: int = BAR_CELLS) -> str:
    """The span's place in the whole trace; the shortest one still has a mark."""
    if total_ns <= 0:
        return "█"
    start = min(cells - 1, offset_ns * cells // total_ns)
    length = max(1, min(cells - start, round(duration_ns * cells / total_ns)))
    return " " * start + "█" * length


def attributes_text(attributes: Mapping[str, Any]) -> str:
    """What a span says beyond its name, short enough for a terminal."""
    pairs = []
    for key, value in attributes.items():
        if key.startswith(_ATTRIBUTES_HIDDEN) or value in ("", None):
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if len(text) > VALUE_CHARACTERS_MAX:
            text = text[: VALUE_CHARACTERS_MAX - 1] + "…"
        pairs.append(f"{key.removeprefix('orrery.')}={text}")
    return " ".join(pairs)


def trace_json(trace_id: str, spans: Sequence[SpanRecord]) -> dict[str, Any]:
    """The whole trace for programs; times in Unix nanoseconds."""
    return {
        "traceID": trace_id,
        "spans": [
            {
                "traceID": span.trace_id,
                "spanID": span.span_id,
                "parentSpanID": span.parent_id,
                "name": span.name,
                "kind": span.kind,
                "process": span.instance,
                "service": span.service,
                "startTimeUnixNano": span.start_ns,
                "endTimeUnixNano": span.end_ns,
                "error": span.error,
                "attributes": dict(span.attributes),
                "events": [
                    {"name": name, "timeUnixNano": at, "attributes": dict(attributes)}
                    for name, at, attributes in span.events
                ],
                "links": list(span.links),
            }
            for span in spans
        ],
    }


def trace_text(spans: Sequence[SpanRecord], width: int, *, events: bool = True, depth_max: int | None = None) -> Any:
    """The tree as a rich Text of aligned lines: span, process, offset, duration, place in time, what it says. Lines are
    cut at `width`, within what a span says; what lies deeper than `depth_max` is left out.
    """
    from rich.text import Text

    lines = _lines(spans, events=events, depth_max=depth_max)
    widths = [max((len(line.cells[at]) for line in lines), default=0) for at in range(4)]
    text = Text()
    for line in lines:
        name, process, offset, took = line.cells
        head = name.ljust(widths[0]) + "  " + process.ljust(widths[1])
        middle = "  " + offset.rjust(widths[2]) + "  " + took.rjust(widths[3]) + "  "
        text.append(head, line.style)
        text.append(middle, "dim" if line.style == "dim" else "")
        text.append(line.bar.ljust(BAR_CELLS) if line.said else line.bar, "red" if line.style == "red" else "cyan")
        room = width - len(head) - len(middle) - BAR_CELLS - 1
        said = line.said if len(line.said) <= room else line.said[: max(0, room - 1)] + "…"
        text.append(f" {said}\n" if said else "\n", "red" if line.style == "red" else "dim")
    text.right_crop(1)
    return text


@dataclass(frozen=True, slots=True)
class _Line:
    cells: tuple[str, str, str, str]
    bar: str
    said: str
    style: str = ""


def _lines(spans: Sequence[SpanRecord], *, events: bool, depth_max: int | None) -> list[_Line]:
    rows = [row for row in trace_rows(spans) if depth_max is None or row.depth <= depth_max]
    total = max((row.offset_ns + row.duration_ns for row in rows), default=0)
    lines = [_Line(("SPAN", "PROCESS", "AT", "TOOK"), "", "", "bold")]
    for row in rows:
        span = row.span
        lines.append(
            _Line(
                (
                    row.branch + span.name,
                    span.instance,
                    f"+{duration_text(row.offset_ns)}",
                    duration_text(row.duration_ns),
                ),
                bar(row.offset_ns, row.duration_ns, total),
                " ".join(filter(None, (span.error, attributes_text(span.attributes)))),
                "red" if span.error else "",
            )
        )
        for name, at_ns, attributes in span.events if events else ():
            at = f"+{duration_text(at_ns - span.start_ns + row.offset_ns)}"
            lines.append(_Line((f"{row.events_branch}· {name}", "", at, ""), "", attributes_text(attributes), "dim"))
    return lines
