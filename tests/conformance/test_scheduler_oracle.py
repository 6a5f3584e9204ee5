"""The decisions of kube-scheduler 1.36, from recorded cluster states, and the command that compares ours with them."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from services.lab.cli.root import orrery
from services.lab.conformance import check, records
from tests.shared_data import shared_data

GIVEN = "oracle/given.jsonl.gz"
SEQUENCES = "oracle/given_sequences.jsonl.gz"


def told(tally: Any) -> str:
    return "\n".join(f"{item.case} {item.part}: {item.expected} / ours {item.ours}" for item in tally.differences[:3])


@pytest.mark.parametrize(("name", "cases", "apart"), [(GIVEN, 2511, 3), (SEQUENCES, 39, 0)])
def test_every_recorded_decision_is_ours(name: str, cases: int, apart: int) -> None:
    tally = check([shared_data(name)])
    assert (tally.checked, tally.apart) == (cases, apart)
    assert tally.agree == tally.checked, told(tally)
    assert tally.passes


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(orrery, ["conformance", "oracle", *map(str, arguments)])


def first_case(family: str) -> dict[str, Any]:
    found: Iterator[Any] = (case for case in records(shared_data(GIVEN)) if case["families"][0] == family)
    return json.loads(json.dumps(next(found)))


def write(path: Path, *cases: dict[str, Any]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(case) + "\n" for case in cases)
    return path


def test_what_agrees_is_counted_by_family_and_by_part(tmp_path: Path) -> None:
    result = run(write(tmp_path / "one.jsonl.gz", first_case("spread_hard"), first_case("preemption_pdb")))
    assert result.exit_code == 0, result.output
    assert "2 of 2 checked cases agree in every part" in result.output
    assert [line.split() for line in result.output.splitlines() if line.startswith("spread_hard")] == [
        ["spread_hard", "1", "1", "100"]
    ]


def change(answer: dict[str, Any], part: str) -> None:
    """Makes one part of a recorded answer wrong."""
    node = min(answer["filter"])
    match part:
        case "prefilter":
            answer["prefilter"] = {"ok": False, "plugin": "NodeAffinity", "code": "Unschedulable", "reasons": []}
        case "filter":
            answer["filter"][node] = {"ok": False, "plugin": "NodeName", "code": "Unschedulable", "reasons": []}
        case "scores":
            answer["scores"]["ImageLocality"] = dict.fromkeys(answer["feasible"], 77)
        case "best":
            answer["best"] = [*answer["best"], "elsewhere"]
        case "preemption":
            answer["preemption"]["victims"] = answer["preemption"]["victims"][1:]


@pytest.mark.parametrize(
    ("part", "family"),
    [
        ("prefilter", "taints"),
        ("filter", "taints"),
        ("scores", "image_locality"),
        ("best", "image_locality"),
        ("preemption", "preemption_pdb"),
    ],
)
def test_a_changed_answer_is_noticed_in_its_part(tmp_path: Path, part: str, family: str) -> None:
    outcome = "preempt" if part == "preemption" else "feasible"
    cases = (case for case in records(shared_data(GIVEN)) if case["families"][0] == family)
    case = json.loads(json.dumps(next(case for case in cases if case["expected"]["outcome"] == outcome)))
    change(case["expected"], part)
    result = run(write(tmp_path / "changed.jsonl.gz", case))
    assert result.exit_code == 1
    assert f"{case['id']}, {part}\n  kube-scheduler  " in result.output
    assert "0 of 1 checked cases agree" in result.output


def test_a_changed_step_is_noticed(tmp_path: Path) -> None:
    sequence = json.loads(json.dumps(next(iter(records(shared_data(SEQUENCES))))))
    sequence["steps"][0]["chosen"] = "elsewhere"
    result = run(write(tmp_path / "changed.jsonl.gz", sequence))
    assert result.exit_code == 1
    assert f"{sequence['id']}, sequence" in result.output


def test_a_missing_step_is_noticed(tmp_path: Path) -> None:
    sequence = json.loads(json.dumps(next(iter(records(shared_data(SEQUENCES))))))
    sequence["steps"].pop()
    assert run(write(tmp_path / "short.jsonl.gz", sequence)).exit_code == 1


def test_the_answer_does_not_depend_on_what_is_expected(tmp_path: Path) -> None:
    case = first_case("spread_hard")
    case["expected"] = {"outcome": "gated", "feasible": [], "best": []}
    result = run(write(tmp_path / "empty.jsonl.gz", case))
    assert result.exit_code == 1
    assert '"outcome": "gated"' in result.output


def test_cases_in_which_we_follow_the_documentation_are_counted_apart(tmp_path: Path) -> None:
    tagged = [case for case in records(shared_data(GIVEN)) if "quirk_negated_namespace_selector" in case["families"]]
    result = run(write(tmp_path / "apart.jsonl.gz", *map(dict, tagged)))
    assert "3 cases tagged quirk_negated_namespace_selector counted apart" in result.output
    # Nothing else was there to check.
    assert result.exit_code == 1


def test_nothing_checked_is_no_success(tmp_path: Path) -> None:
    result = run(write(tmp_path / "none.jsonl.gz"))
    assert (result.exit_code, "nothing was checked" in result.output) == (1, True)


@pytest.mark.parametrize(
    "content",
    [
        b"\x1f\x8bnot really",
        b"\x00\xff\xfe",
        b"{}\n",
        b"[1]\n",
        b'{"id": 1',
        b'{"id": "x", "families": [], "profile": "default", "objects": {}, "pod": {}, "expected": {}}\n',
        b'{"id": "x", "families": ["f"], "profile": "other", "objects": {}, "pod": {}, "expected": {}}\n',
        b'{"id": "x", "families": ["f"], "profile": "default", "objects": {}, "pod": 7, "expected": {}}\n',
        b'{"id": "x", "families": ["f"], "profile": "default", "objects": {"nodes": [{}]}, "pod": {}, "expected": {}}\n',
        b'{"id": "x", "families": ["f"], "profile": "default", "objects": {"pods": 3}, "pod": {}, "expected": {}}\n',
        b'{"id": "x", "families": ["f"], "profile": "default", "objects": {}, "pod": {}, "expected": 5}\n',
        b'{"id": "x", "families": ["f"], "profile": "default", "objects": {}, "pods": [], "steps": [7]}\n',
    ],
)
def test_a_file_that_is_no_recording_ends_with_2_and_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.jsonl.gz"
    path.write_bytes(content)
    result = run(path)
    assert result.exit_code == 2, result.output
    assert "other.jsonl.gz" in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_file_that_is_not_there_ends_with_2(tmp_path: Path) -> None:
    assert run(tmp_path / "absent.jsonl.gz").exit_code == 2
