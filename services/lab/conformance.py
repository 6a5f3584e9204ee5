"""Recorded answers of a real kube-scheduler, and ours beside them.

A file holds one JSON object a line: a cluster's objects, a pod (or several, one after another) and what the real
scheduler said (`expected`, or the answers within `steps`). Each is decided by our own core from the objects alone
(`conformance_core` never sees the answers); then the two are compared, part by part.
"""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.lab.conformance_core import PROFILES, Answer, decide, decide_sequence
from services.lab.errors import LabError

Record = Mapping[str, Any]
PARTS = ("gates", "prefilter", "filter", "scores", "best", "preemption", "sequence")
# In cases with this tag kube-scheduler's code departs from its documentation; we follow the documentation.
DOCUMENTED_OTHERWISE = "quirk_negated_namespace_selector"
_ANSWER_TYPES: dict[str, type] = {
    **dict.fromkeys(("preenqueue", "prefilter", "filter", "scores", "total", "preemption"), dict),
    **dict.fromkeys(("feasible", "best"), list),
}
# What one line may hold: far more than any recording has.
LINE_CHARACTERS_MAX = 64 << 20


class NotARecording(LabError):
    """The file is none of recorded scheduling decisions."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of one case in which we decide otherwise."""

    case: str
    part: str
    expected: Any
    ours: Any


@dataclass(slots=True)
class Tally:
    """`agree`, `checked`: cases; by family and by part. `apart`: those that are not held to the recording."""

    checked: int = 0
    agree: int = 0
    by_family: dict[str, Counter[str]] = field(default_factory=dict)
    by_part: dict[str, Counter[str]] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    apart: int = 0
    apart_agree: int = 0

    @property
    def passes(self) -> bool:
        """Something was checked, and all of it agrees."""
        return self.checked > 0 and self.agree == self.checked

    def add(self, record: Record, parts: Mapping[str, tuple[Any, Any]]) -> None:
        """`parts`: (expected, ours) of each part that the recording answers."""
        differences = [
            Difference(record["id"], part, expected, ours)
            for part, (expected, ours) in parts.items()
            if expected != ours
        ]
        if DOCUMENTED_OTHERWISE in record["families"]:
            self.apart += 1
            self.apart_agree += not differences
            return
        self.checked += 1
        self.agree += not differences
        family = record["families"][0]
        self.by_family.setdefault(family, Counter()).update(checked=1, agree=int(not differences))
        wrong = {difference.part for difference in differences}
        for part in parts:
            self.by_part.setdefault(part, Counter()).update(checked=1, agree=int(part not in wrong))
        self.differences += differences


def records(path: Path) -> Iterator[Record]:
    """The cases and sequences of a file, as they stand in it.

    Raises:
        NotARecording: it cannot be read, or a line is no case and no sequence.
    """
    number = 0
    try:
        opens = gzip.open if _is_gzip(path) else open
        with opens(path, "rt", encoding="utf-8") as lines:
            while line := lines.readline(LINE_CHARACTERS_MAX):
                number += 1
                if line.strip():
                    yield _record(json.loads(line))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise NotARecording(f"{path}: not readable: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise NotARecording(f"{path}: line {number} is no recorded decision: {error}") from error


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _record(data: Any) -> Record:
    if not isinstance(data, dict):
        raise TypeError("no JSON object")
    missing = [name for name in ("id", "families", "profile", "objects") if name not in data]
    if not missing and not ({"pod", "expected"} <= data.keys() or {"pods", "steps"} <= data.keys()):
        missing = ["pod and expected, or pods and steps"]
    if missing:
        raise KeyError(f"it lacks {', '.join(missing)}")
    if not data["families"] or not all(isinstance(family, str) for family in data["families"]):
        raise ValueError("families is no list of names")
    if data["profile"] not in PROFILES:
        raise ValueError(f"profile {data['profile']!r} is none of {', '.join(PROFILES)}")
    for kind in ("nodes", "pods", "namespaces", "pdbs", "services"):
        for manifest in data["objects"].get(kind, []):
            if not manifest["metadata"]["name"]:
                raise ValueError(f"objects.{kind} holds an object without a name")
    answers = data["steps"] if "steps" in data else [data["expected"]]
    if not all(isinstance(answer, dict) and _ANSWER_TYPES.items() >= _types(answer).items() for answer in answers):
        raise TypeError("what was answered is not of the recording's form")
    return data


def _types(answer: Mapping[str, Any]) -> dict[str, type]:
    return {part: type(answer[part]) for part in _ANSWER_TYPES if part in answer}


def check(files: Iterable[Path]) -> Tally:
    """Decides every case of `files` and compares. Raises NotARecording, and LabError where an object cannot be read."""
    tally = Tally()
    for path in files:
        for record in records(path):
            question = {key: value for key, value in record.items() if key not in ("expected", "steps")}
            try:
                ours = decide_sequence(question) if "steps" in record else decide(question)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise NotARecording(f"{path}: case {record['id']} holds what is no object: {error!r}") from error
            compared = (
                {"sequence": _sequence(record["steps"], ours)}
                if isinstance(ours, list)
                else _parts(record["expected"], ours)
            )
            tally.add(record, compared)
    return tally


def _parts(expected: Record, ours: Answer) -> dict[str, tuple[Any, Any]]:
    """Each part that the recording answers, with ours beside it."""
    parts: dict[str, tuple[Any, Any]] = {}
    if "preenqueue" in expected:
        parts["gates"] = (expected["preenqueue"], ours.get("preenqueue"))
    elif "preenqueue" in ours:
        parts["gates"] = (None, ours["preenqueue"])
    if "prefilter" in expected:
        parts["prefilter"] = (expected["prefilter"], ours.get("prefilter"))
    if "filter" in expected:
        parts["filter"] = _differing(expected["filter"], ours.get("filter", {}))
    if "scores" in expected:
        parts["scores"] = _differing(_spoken(expected["scores"]), _spoken(ours.get("scores", {})))
    parts["best"] = (_ends(expected), _ends(ours))
    if "preemption" in expected:
        parts["preemption"] = (expected["preemption"], ours.get("preemption"))
    return parts


def _ends(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "outcome": answer.get("outcome"),
        "feasible": answer.get("feasible", []),
        "total": answer.get("total", {}),
        "best": answer.get("best", []),
    }


def _spoken(scores: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """A plugin that skips counts 0 everywhere: the same as one that says so."""
    return {plugin: dict(column) for plugin, column in scores.items() if any(column.values())}


def _differing(expected: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both sides, without the entries in which they agree."""
    names = [name for name in sorted({*expected, *ours}) if expected.get(name) != ours.get(name)]
    return {name: expected.get(name) for name in names}, {name: ours.get(name) for name in names}


def _sequence(steps: list[Record], ours: list[Answer]) -> tuple[Any, Any]:
    """The first step that differs, on both sides; nothing where none does."""
    for number, (step, mine) in enumerate(zip(steps, ours, strict=False)):
        expected = {**_ends(step), "scores": _spoken(step.get("scores", {})), "chosen": step.get("chosen", "")}
        answer = {**_ends(mine), "scores": _spoken(mine.get("scores", {})), "chosen": mine.get("chosen", "")}
        expected.pop("outcome")
        answer.pop("outcome")
        if expected != answer:
            wrong, right = _differing(expected, answer)
            return {"step": number, **wrong}, {"step": number, **right}
    return len(steps), len(ours)
