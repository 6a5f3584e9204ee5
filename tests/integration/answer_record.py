"""What the real Jaeger answered, kept in a file, so that ours can be held to it where Jaeger cannot be built.

Many questions have the same answer; each answer stands in the file once.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.integration.trace_questions import Question

Answer = tuple[int, Any]


class AnswerRecord:
    """The file at `path`. With `rewrite` it forgets what it had, and keeps what it is given."""

    def __init__(self, path: Path, *, rewrite: bool) -> None:
        self._path = path
        self._rewrite = rewrite
        kept = {"questions": {}, "answers": {}} if rewrite else json.loads(path.read_text())
        self._questions: dict[str, str] = kept["questions"]
        self._answers: dict[str, list[Any]] = kept["answers"]

    def of(self, question: Question, given: Answer | None = None) -> Answer:
        """The recorded answer; `given` when that is to be recorded. Raises KeyError for a question that was never asked."""
        key = json.dumps(question)
        if self._rewrite and given is not None:
            text = json.dumps(given, sort_keys=True)
            self._questions[key] = digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            self._answers[digest] = list(given)
        status, body = self._answers[self._questions[key]]
        return status, body

    def save(self) -> None:
        """Writes the file, when it is to be rewritten."""
        if self._rewrite:
            kept = {"questions": self._questions, "answers": self._answers}
            self._path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
