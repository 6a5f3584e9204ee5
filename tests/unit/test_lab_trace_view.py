"""A trace as a tree of lines."""

from services.lab.trace_view import attributes_text, bar, duration_text, trace_json, trace_rows, trace_text
from services.spans.store import SpanRecord

MS = 1_000_000


def span(name: str, span_id: str, parent: str, start_ms: int, end_ms: int, **more: object) -> SpanRecord:
    return SpanRecord(
        "t",
        span_id,
        parent,
        "orrery-x",
        "proc-0",
        name,
        "INTERNAL",
        start_ms * MS,
        end_ms * MS,
        **more,  # type: ignore[arg-type]
    )


SPANS = [
    span("apply", "1", "", 100, 110),
    span("late", "3", "1", 104, 108),
    span("early", "2", "1", 101, 103),
    span("inner", "4", "2", 102, 103, error="FENCED", events=(("woken", 102 * MS, {"by": "NodeAdd"}),)),
    span("orphan", "5", "lost", 120, 150),
]


def test_children_stand_under_their_parents_in_order_of_start() -> None:
    assert [row.branch + row.span.name for row in trace_rows(SPANS)] == [
        "apply",
        "├─ early",
        "│  └─ inner",
        "└─ late",
        "orphan",
    ]


def test_offsets_count_from_the_first_span() -> None:
    assert [row.offset_ns // MS for row in trace_rows(SPANS)] == [0, 1, 2, 4, 20]


def test_lines_are_aligned_and_show_errors_and_events() -> None:
    assert trace_text(SPANS, 120).plain.splitlines() == [
        "SPAN             PROCESS        AT     TOOK  ",
        "apply            proc-0      +0 µs  10.0 ms  █████",
        "├─ early         proc-0    +1.0 ms   2.0 ms  █",
        "│  └─ inner      proc-0    +2.0 ms   1.0 ms  █                        FENCED",
        "│       · woken            +2.0 ms                                    by=NodeAdd",
        "└─ late          proc-0    +4.0 ms   4.0 ms   ██",
        "orphan           proc-0   +20.0 ms  30.0 ms           ██████████████",
    ]


def test_what_a_span_says_is_cut_at_the_width() -> None:
    long = [span("a", "1", "", 0, 1, attributes={"x": "y" * 40})]
    assert max(map(len, trace_text(long, 70).plain.splitlines())) == 70


def test_durations_are_written_in_the_unit_that_fits() -> None:
    assert [duration_text(ns) for ns in (0, 1_500, 999_000, 12_340_000, 1_240_000_000)] == [
        "0 µs",
        "2 µs",
        "999 µs",
        "12.3 ms",
        "1.24 s",
    ]


def test_a_bar_never_leaves_its_cells_and_is_never_empty() -> None:
    for offset in range(0, 101, 5):
        drawn = bar(offset, 1, 100, 10)
        assert "█" in drawn
        assert len(drawn) <= 10


def test_attributes_that_every_span_has_are_left_out() -> None:
    said = attributes_text(
        {"rpc.system": "grpc", "k8s.pod.name": "x", "orrery.outcome": "BOUND", "list": ["a", "b"], "none": ""}
    )
    assert said == "outcome=BOUND list=a,b"


def test_json_names_the_trace_and_the_process_of_each_span() -> None:
    data = trace_json("t", SPANS)
    assert data["traceID"] == "t"
    assert {one["traceID"] for one in data["spans"]} == {"t"}
    assert [(one["name"], one["process"], one["parentSpanID"]) for one in data["spans"]][:2] == [
        ("apply", "proc-0", ""),
        ("late", "proc-0", "1"),
    ]


def test_an_empty_trace_is_only_a_header() -> None:
    assert trace_text([], 80).plain.split() == ["SPAN", "PROCESS", "AT", "TOOK"]
