"""What is kept: by ratio where a trace begins, by rule where something happens."""

import pytest

from services.runtime.sampling import SamplingRules, as_sampled
from services.runtime.settings import CommonSettings, SettingsError
from services.runtime.telemetry import is_sampled, record_span
from tests.unit.telemetry.spans import SAMPLED, TRACE_ID, UNSAMPLED, kept_spans

ALL = SamplingRules(slow_seconds=1.0)


@pytest.mark.parametrize(
    ("rules", "traceparent", "what", "kept"),
    [
        (ALL, SAMPLED, {}, SAMPLED),
        (ALL, UNSAMPLED, {}, ""),
        (ALL, "", {"failed": True}, ""),
        (ALL, UNSAMPLED, {"failed": True}, SAMPLED),
        (ALL, UNSAMPLED, {"fenced": True}, SAMPLED),
        (ALL, UNSAMPLED, {"preempting": True}, SAMPLED),
        (ALL, UNSAMPLED, {"seconds": 1.0}, SAMPLED),
        (ALL, UNSAMPLED, {"seconds": 0.999}, ""),
        (SamplingRules(frozenset()), UNSAMPLED, {"failed": True, "fenced": True, "seconds": 60.0}, ""),
        (SamplingRules(frozenset(("fenced",))), UNSAMPLED, {"failed": True}, ""),
        (SamplingRules(frozenset(("fenced",))), UNSAMPLED, {"fenced": True}, SAMPLED),
    ],
)
def test_a_rule_keeps_what_the_ratio_did_not(
    rules: SamplingRules, traceparent: str, what: dict[str, bool], kept: str
) -> None:
    assert rules.keep(traceparent, **what) == kept


def test_keeping_changes_the_flag_alone_and_leaves_other_flags() -> None:
    assert as_sampled(UNSAMPLED) == SAMPLED
    assert as_sampled(UNSAMPLED[:-2] + "02") == UNSAMPLED[:-2] + "03"
    assert as_sampled("rubbish") == "rubbish"


@pytest.mark.parametrize(
    ("flags", "kept"), [("00", False), ("01", True), ("02", False), ("03", True), ("0b", True), ("fe", False)]
)
def test_the_lowest_flag_alone_says_whether_a_trace_is_kept(flags: str, *, kept: bool) -> None:
    """02 says that the id is random (W3C level 2); the SDK sets it."""
    traceparent = SAMPLED[:-2] + flags
    assert is_sampled(traceparent) is kept
    with kept_spans() as spans:
        record_span("x", parent=traceparent, start_ns=1, end_ns=2)
    assert bool(spans.spans) is kept
    assert bool(ALL.keep(traceparent)) is kept


@pytest.mark.parametrize("parent", [UNSAMPLED, "", "rubbish", "rubbish1", f"00-{'0' * 32}-{'cd' * 8}-01"])
def test_no_span_is_made_under_a_parent_that_is_not_kept(parent: str) -> None:
    with kept_spans() as spans:
        assert record_span("x", parent=parent, start_ns=1, end_ns=2) == parent
    assert not spans.spans


def test_a_span_made_afterwards_is_whole() -> None:
    with kept_spans() as spans:
        child = record_span(
            "x",
            parent=SAMPLED,
            start_ns=10,
            end_ns=5,
            attributes={"a": 1},
            events=[("woken", 7, {"by": "NodeAdd"})],
            error="it broke",
            links=[SAMPLED, "rubbish"],
        )
    (span,) = spans.spans
    assert child == f"00-{TRACE_ID}-{span.get_span_context().span_id:016x}-01"
    assert (span.start_time, span.end_time) == (10, 10), "a span never ends before it begins"
    assert span.parent is not None and f"{span.parent.span_id:016x}" == "cd" * 8
    assert span.attributes == {"a": 1} and span.status.description == "it broke" and len(span.links) == 1
    assert [(event.name, event.timestamp) for event in span.events] == [("woken", 7)]


def test_without_a_place_for_spans_none_is_made() -> None:
    assert record_span("x", parent=SAMPLED, start_ns=1, end_ns=2) == SAMPLED


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"trace_always": ("failed", "odd")}, "'odd' is none of failed, fenced, slow, preempting, and not none alone"),
        ({"trace_slow_seconds": -1.0}, "must not be negative"),
        ({"trace_ratio": 1.5}, "not between 0 and 1"),
    ],
)
def test_settings_name_what_is_wrong(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        CommonSettings(name="x", **given)  # type: ignore[arg-type]


def test_no_rule_at_all_is_written_none() -> None:
    assert CommonSettings(name="x", trace_always=("none",)).trace_always == ("none",)
