"""Selectors: Kubernetes' label grammar, field selectors, node selector terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.model.pod import NodeSelectorTerm, Requirement
from services.model.selectors import (
    SelectorError,
    node_selector_term_matches,
    parse_field_selector,
    parse_label_selector,
)

LABELS = {"app": "web", "tier": "front", "rank": "7", "empty": "", "example.com/zone": "a"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("  ", True),
        ("app=web", True),
        ("app==web", True),
        (" app = web , tier=front ", True),
        ("app=api", False),
        ("app!=api", True),
        ("app!=web", False),
        ("missing!=web", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("! app", False),
        ("app in (api, web)", True),
        ("app in (api)", False),
        ("missing in (web)", False),
        ("app notin (api)", True),
        ("missing notin (web)", True),
        ("app notin (api,web)", False),
        ("empty=", True),
        ("empty in ()", True),
        ("app in ()", False),
        ("app in (,web)", True),
        ("missing=", False),
        ("rank>6", True),
        ("rank > 7", False),
        ("rank<8", True),
        ("app>1", False),
        ("example.com/zone=a,rank in (7)", True),
        ("in in (in)", False),
    ],
)
def test_a_label_selector_matches_as_in_kubernetes(text: str, matches: bool) -> None:
    assert parse_label_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a,", "its end"),
        (",a", "position 0"),
        ("a,,b", "position 2"),
        ("a=b c", "position 4"),
        ("a===b", "position 3"),
        ("a in", "its end"),
        ("a in b", "position 5"),
        ("a in (b", "its end"),
        ("a=-b", "position 2"),
        ("-a=b", "position 0"),
        ("UPPER.example/a=b", "position 0"),
        ("a=" + "x" * 64, "position 2"),
        ("a>b", "position 2"),
        ("a<", "its end"),
        ("!", "its end"),
        ("!a=b", "position 2"),
    ],
)
def test_what_is_no_label_selector_is_refused_where_it_goes_wrong(text: str, position: str) -> None:
    with pytest.raises(SelectorError) as refused:
        parse_label_selector(text)
    assert position in str(refused.value)
    assert repr(text) in str(refused.value)


@given(st.text(max_size=40))
def test_any_text_is_a_selector_or_a_selector_error(text: str) -> None:
    for parse in (parse_label_selector, lambda given: parse_field_selector(given, ("metadata.name",))):
        try:
            matched = parse(text).matches(LABELS)
        except SelectorError:
            continue
        assert matched in (True, False)


def test_a_field_selector_compares_whole_values_and_an_absent_field_is_empty() -> None:
    supported = ("metadata.name", "spec.nodeName", "status.phase")
    selector = parse_field_selector("spec.nodeName=, status.phase!=Running,metadata.name==a\\,b", supported)
    assert selector.matches({"metadata.name": "a,b", "status.phase": "Pending"})
    assert not selector.matches({"metadata.name": "a,b", "status.phase": "Running"})
    assert not selector.matches({"metadata.name": "a,b", "spec.nodeName": "n"})
    assert parse_field_selector("", supported).everything


def test_a_field_that_is_not_supported_is_refused_with_those_that_are() -> None:
    with pytest.raises(SelectorError, match=r"'spec\.image' is not supported here; supported: metadata\.name"):
        parse_field_selector("spec.image=a", ("metadata.name",))


def term(expressions: tuple[Requirement, ...] = (), fields: tuple[Requirement, ...] = ()) -> NodeSelectorTerm:
    return NodeSelectorTerm(expressions, fields)


def test_an_empty_node_selector_term_matches_nothing() -> None:
    assert not node_selector_term_matches(term(), LABELS, "node-a")


def test_a_node_selector_term_needs_all_expressions_and_fields() -> None:
    web, not_api = Requirement("app", "In", ("web",)), Requirement("app", "NotIn", ("api",))
    name = Requirement("metadata.name", "In", ("node-a",))
    assert node_selector_term_matches(term((web, not_api), (name,)), LABELS, "node-a")
    assert not node_selector_term_matches(term((web,), (name,)), LABELS, "node-b")
    assert not node_selector_term_matches(term((Requirement("app", "DoesNotExist", ()),)), LABELS, "node-a")


@pytest.mark.parametrize(
    ("operator", "bound", "label", "matches"),
    [
        ("Gt", "6", "7", True),
        ("Gt", "7", "7", False),
        ("Lt", "8", "7", True),
        ("Lt", "-1", "-2", True),
        ("Gt", "a", "7", False),
        ("Gt", "6", "seven", False),
        ("Gt", "1", str(2**63), False),
        ("Gt", "1", "9" * 19, False),
        ("Like", "7", "7", False),
    ],
)
def test_gt_and_lt_hold_for_int64_alone(operator: str, bound: str, label: str, matches: bool) -> None:
    found = node_selector_term_matches(term((Requirement("rank", operator, (bound,)),)), {"rank": label}, "node-a")
    assert found is matches
