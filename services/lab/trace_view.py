"""A trace as a tree: spans under their parents, in order of start, with offsets from the first and durations. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.tracestore.store import SpanRecord

BAR_CELLS = 24
VALUE_CHARACTERS_MAX = 48
# What every span of ours has anyway, or what its place in the tree says.
_ATTRIBUTES_HIDDEN = ("rpc.", "orrery.caller", "k8s.pod.", "orrery.source")


@dataclass(frozen=True, slots=True)
class Row:
    """One span in the order of the tree. `branch` is the drawing before its name."""

    branch: str
    span: SpanRecord
    offset_ns: int
    events_branch: str

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

    def walk(span: SpanRecord, branch: str, below: str) -> None:
        under = children.get(span.span_id, [])
        rows.append(Row(branch, span, span.start_ns - begin, below + ("│ " if under else "  ")))
        for at, child in enumerate(under):
            last = at == len(under) - 1
            walk(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))

    for root in children.get("", []):
        walk(root, "", "")
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


def trace_table(spans: Sequence[SpanRecord], *, events: bool = True) -> Any:
    """The tree as a rich table: span, process, offset, duration, place in time, what it says."""
    from rich.table import Table
    from rich.text import Text

    rows = trace_rows(spans)
    total = max((row.offset_ns + row.duration_ns for row in rows), default=0)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("SPAN", no_wrap=True)
    table.add_column("PROCESS", no_wrap=True)
    table.add_column("AT", justify="right", no_wrap=True)
    table.add_column("TOOK", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, width=BAR_CELLS)
    table.add_column("", overflow="ellipsis", no_wrap=True, ratio=1)
    for row in rows:
        name = Text.assemble((row.branch, "dim"), (row.span.name, "red" if row.span.error else ""))
        said = row.span.error or attributes_text(row.span.attributes)
        table.add_row(
            name,
            row.span.instance,
            f"+{duration_text(row.offset_ns)}",
            duration_text(row.duration_ns),
            Text(bar(row.offset_ns, row.duration_ns, total), style="red" if row.span.error else "cyan"),
            Text(said, style="dim"),
        )
        for event_name, at_ns, attributes in row.span.events if events else ():
            table.add_row(
                Text(f"{row.events_branch}· {event_name}", style="dim"),
                "",
                Text(f"+{duration_text(at_ns - row.span.start_ns + row.offset_ns)}", style="dim"),
                "",
                "",
                Text(attributes_text(attributes), style="dim"),
            )
    return table
