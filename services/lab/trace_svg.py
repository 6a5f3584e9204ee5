"""A trace as a picture: a row for each span, in the tree's order, its bar where it lies in time, a colour for each process.

Pure; the SVG stands alone (no fonts or styles from elsewhere), so that it can be put into a page or a report.
"""

from collections.abc import Sequence
from html import escape

from services.lab.trace_view import Row, duration_text, trace_rows
from services.spans.store import SpanRecord

WIDTH, ROW, HEAD, LEFT, RIGHT = 1180, 20, 64, 330, 150
BAR_WIDTH_MIN = 2.0
# Colours that stay apart for people who see red and green alike (Okabe and Ito, 2008).
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a8a", "#b59f00")
_ERROR = "#c00000"
_FONT = 'font-family="Helvetica, Arial, sans-serif" font-size="12"'


def trace_svg(spans: Sequence[SpanRecord], title: str, depth_max: int | None = None) -> str:
    """The picture. `depth_max` leaves out what lies deeper in the tree."""
    rows = [row for row in trace_rows(spans) if depth_max is None or row.depth <= depth_max]
    total = max((row.offset_ns + row.duration_ns for row in rows), default=1) or 1
    colours = _process_colours(spans)
    height = HEAD + ROW * len(rows) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" {_FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold" fill="#222">{escape(title)}</text>',
        *_legend(colours),
        *_axis(total, height),
    ]
    for at, row in enumerate(rows):
        parts += _row(row, HEAD + at * ROW, total, colours[row.span.instance])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _process_colours(spans: Sequence[SpanRecord]) -> dict[str, str]:
    names = sorted({span.instance for span in spans})
    return {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(names)}


def _legend(colours: dict[str, str]) -> list[str]:
    parts, x = [], 12
    for name, colour in colours.items():
        parts.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="39" fill="#444">{escape(name)}</text>')
        x += 30 + 7 * len(name)
    return parts


def _axis(total: int, height: int) -> list[str]:
    parts = []
    for quarter in range(5):
        x = LEFT + (WIDTH - LEFT - RIGHT) * quarter / 4
        parts.append(f'<line x1="{x:.1f}" y1="{HEAD - 6}" x2="{x:.1f}" y2="{height - 10}" stroke="#e4e4e4"/>')
        text = duration_text(total * quarter // 4)
        parts.append(f'<text x="{x:.1f}" y="{HEAD - 10}" fill="#888" font-size="10" text-anchor="middle">{text}</text>')
    return parts


def _row(row: Row, y: int, total: int, colour: str) -> list[str]:
    scale = (WIDTH - LEFT - RIGHT) / total
    x = LEFT + row.offset_ns * scale
    width = max(BAR_WIDTH_MIN, row.duration_ns * scale)
    ink = _ERROR if row.span.status == "ERROR" else "#222"
    parts = [
        f'<text x="{12 + 14 * row.depth}" y="{y + 14}" fill="{ink}">{escape(row.span.name)}</text>',
        f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="12" rx="2" fill="{colour}"'
        + (f' stroke="{_ERROR}" stroke-width="2"' if row.span.status == "ERROR" else "")
        + f"><title>{escape(_tooltip(row))}</title></rect>",
    ]
    said = _said(row)
    right = x + width + 5
    if right + 6 * len(said) < WIDTH:
        parts.append(f'<text x="{right:.1f}" y="{y + 14}" fill="{ink}" font-size="11">{escape(said)}</text>')
    else:
        parts.append(
            f'<text x="{x - 5:.1f}" y="{y + 14}" fill="{ink}" font-size="11" text-anchor="end">{escape(said)}</text>'
        )
    return parts


def _said(row: Row) -> str:
    attributes = row.span.attributes
    outcome = attributes.get("orrery.bind.outcome")
    place = attributes.get("k8s.node.name") if row.span.name == "scheduler.attempt" else None
    words = [duration_text(row.duration_ns)]
    if outcome:
        words.append(str(outcome))
    elif place:
        words.append(str(place))
    elif row.span.error:
        words.append(row.span.error[:60] + ("…" if len(row.span.error) > 60 else ""))
    return "  ".join(words)


def _tooltip(row: Row) -> str:
    lines = [f"{row.span.name} by {row.span.instance}, +{duration_text(row.offset_ns)}", row.span.error]
    lines += [f"{key}: {value}" for key, value in row.span.attributes.items()]
    return "\n".join(line for line in lines if line)
