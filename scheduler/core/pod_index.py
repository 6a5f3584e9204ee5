"""Who stands where, for questions about other pods: how many pods that a term means are on each row, and which terms of the
pods there mean a pod that comes.

Nothing is counted pod by pod in a cycle. Pods that selectors cannot tell apart (same namespace, labels, being deleted)
form a class. A question that is asked for the first time is counted over the classes; from then on every pod that comes or
goes changes its counts. Terms that pods carry are shared by all pods that carry the same; a coming pod is matched against
those terms alone whose labels it has. So the cost of a cycle does not grow with the pods that are bound.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from scheduler.core.pod_match import Labels, PodMatch, affinity_match, anchor
from scheduler.core.row_counts import RowCounts
from services.model.pod import PodSpecView, PodView

# How many questions are kept counted; the one that was not asked for longest goes first.
QUESTIONS_MAX = 1024
_MEMO_MAX = 1024
ClassKey = tuple[str, bool, tuple[tuple[str, str], ...]]
# All of these must mean a pod; False: pods that are being deleted are left out.
QuestionKey = tuple[tuple[PodMatch, ...], bool]
_NO_LABELS: Labels = {}


class TermKind(Enum):
    """What a pod's term about others demands or prefers."""

    ANTI_REQUIRED = "required anti-affinity"
    REQUIRED = "required affinity"
    # Both signs: an anti-affinity weighs negatively.
    PREFERRED = "preferred"


@dataclass(slots=True, eq=False)
class PodClass:
    """Pods that selectors cannot tell apart, and the questions that mean them."""

    namespace: str
    labels: Labels
    deleting: bool
    rows: RowCounts = field(default_factory=RowCounts)
    questions: list["Question"] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Question:
    """How many pods on each row do all of `matches` mean?"""

    matches: tuple[PodMatch, ...]
    with_deleting: bool
    counts: RowCounts = field(default_factory=RowCounts)

    @property
    def by_namespace_labels(self) -> bool:
        return any(match.namespace_selector is not None for match in self.matches)


@dataclass(slots=True, eq=False)
class CarriedTerm:
    """A term that pods on nodes carry. `rows`: the sum of its weights on each row. `pods`: how many carry it."""

    match: PodMatch
    topology_key: str
    rows: RowCounts = field(default_factory=RowCounts)
    pods: int = 0


# (kind, whom it means, topology key, weight)
OwnTerm = tuple[TermKind, PodMatch, str, int]


class CarriedTerms:
    """The terms of one kind. `anchored`: by a label that they ask for; `free`: those that ask for none."""

    def __init__(self) -> None:
        self._terms: dict[tuple[PodMatch, str], CarriedTerm] = {}
        self._anchored: dict[tuple[str, str], dict[CarriedTerm, None]] = {}
        self._free: dict[CarriedTerm, None] = {}
        self._known: OrderedDict[tuple[str, tuple[tuple[str, str], ...]], list[CarriedTerm]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._terms)

    def place(self, match: PodMatch, topology_key: str, row: int, weight: int, sign: int) -> None:
        key = (match, topology_key)
        term = self._terms.get(key)
        if term is None:
            term = self._terms[key] = CarriedTerm(match, topology_key)
            for bucket in self._buckets(term):
                bucket[term] = None
            self._known.clear()
        term.rows.add(row, sign * weight)
        term.pods += sign
        if not term.pods:
            del self._terms[key]
            for bucket in self._buckets(term):
                del bucket[term]
            self._known.clear()

    def _buckets(self, term: CarriedTerm) -> list[dict[CarriedTerm, None]]:
        requirement = anchor((term.match,))
        if requirement is None:
            return [self._free]
        return [self._anchored.setdefault((requirement.key, value), {}) for value in dict.fromkeys(requirement.values)]

    def meaning(self, pod: PodView, namespace_labels: Labels) -> list[CarriedTerm]:
        """The terms that mean `pod`."""
        if not self._terms:
            return []
        key = (pod.namespace, tuple(pod.labels.items()))
        known = self._known.get(key)
        if known is None:
            candidates = list(self._free)
            for label in pod.labels.items():
                candidates += self._anchored.get(label, ())
            known = [term for term in candidates if term.match.holds(pod.namespace, pod.labels, namespace_labels)]
            self._known[key] = known
            if len(self._known) > _MEMO_MAX:
                self._known.popitem(last=False)
        return known

    def forget(self) -> None:
        """Labels of namespaces have changed."""
        self._known.clear()


class PodIndex:
    """`namespaces`: the labels of each namespace."""

    def __init__(self) -> None:
        self.namespaces: dict[str, Labels] = {}
        self.carried: dict[TermKind, CarriedTerms] = {kind: CarriedTerms() for kind in TermKind}
        self._classes: dict[ClassKey, PodClass] = {}
        self._classes_by_label: dict[tuple[str, str], dict[PodClass, None]] = {}
        self._questions: OrderedDict[QuestionKey, Question] = OrderedDict()
        self._questions_by_label: dict[tuple[str, str], dict[Question, None]] = {}
        self._free_questions: dict[Question, None] = {}
        self._own: OrderedDict[
            tuple[int, str, tuple[tuple[str, str], ...]], tuple[PodSpecView, tuple[OwnTerm, ...]]
        ] = OrderedDict()

    @property
    def scores_newcomers(self) -> bool:
        """Whether pods are there that carry terms which may score a newcomer."""
        return len(self.carried[TermKind.PREFERRED]) + len(self.carried[TermKind.REQUIRED]) > 0

    def namespace_labels(self, namespace: str) -> Labels:
        """The labels of a namespace; none where it is not known."""
        return self.namespaces.get(namespace, _NO_LABELS)

    def put_namespace(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """A namespace came, changed or (None) went; whether its labels are others now."""
        before = self.namespaces.get(name)
        if labels is None:
            self.namespaces.pop(name, None)
        else:
            self.namespaces[name] = labels
        if (before or {}) == (labels or {}):
            return False
        for terms in self.carried.values():
            terms.forget()
        for question in [item for item in self._questions.values() if item.by_namespace_labels]:
            self._drop(question)
        return True

    # Pods.

    def place(self, pod: PodView, row: int, sign: int) -> None:
        """A pod comes to a row (1) or leaves it (-1)."""
        key = (pod.namespace, pod.deleting, tuple(pod.labels.items()))
        known = self._classes.get(key)
        if known is None:
            known = self._classes[key] = PodClass(pod.namespace, pod.labels, pod.deleting)
            self._introduce(known)
        known.rows.add(row, sign)
        for question in known.questions:
            question.counts.add(row, sign)
        if not known.rows.rows:
            del self._classes[key]
            for label in known.labels.items():
                bucket = self._classes_by_label[label]
                del bucket[known]
                if not bucket:
                    del self._classes_by_label[label]
        if pod.spec.pod_affinity is not None:
            for kind, match, topology_key, weight in self.own_terms(pod):
                self.carried[kind].place(match, topology_key, row, weight, sign)

    def _introduce(self, new: PodClass) -> None:
        candidates = list(self._free_questions)
        for label in new.labels.items():
            self._classes_by_label.setdefault(label, {})[new] = None
            candidates += self._questions_by_label.get(label, ())
        new.questions = [question for question in candidates if self._means(question, new)]

    def _means(self, question: Question, pods: PodClass) -> bool:
        if pods.deleting and not question.with_deleting:
            return False
        namespace_labels = self.namespace_labels(pods.namespace)
        return all(match.holds(pods.namespace, pods.labels, namespace_labels) for match in question.matches)

    def own_terms(self, pod: PodView) -> tuple[OwnTerm, ...]:
        """The terms that a pod carries."""
        key = (id(pod.spec), pod.namespace, tuple(pod.labels.items()))
        known = self._own.get(key)
        if known is None:
            # The spec is kept, so that its identity stays its own.
            known = self._own[key] = (pod.spec, tuple(_own_terms(pod)))
            if len(self._own) > _MEMO_MAX:
                self._own.popitem(last=False)
        return known[1]

    # Questions.

    def count(self, matches: tuple[PodMatch, ...], *, with_deleting: bool) -> RowCounts:
        """How many pods on each row all of `matches` mean."""
        key = (matches, with_deleting)
        question = self._questions.get(key)
        if question is not None:
            self._questions.move_to_end(key)
            return question.counts
        question = self._questions[key] = Question(matches, with_deleting)
        if all(match.selector is not None for match in matches):
            self._ask(question)
        if len(self._questions) > QUESTIONS_MAX:
            self._drop(next(iter(self._questions.values())))
        return question.counts

    def _ask(self, question: Question) -> None:
        labels = _anchor_labels(question)
        for label in labels or ():
            self._questions_by_label.setdefault(label, {})[question] = None
        if labels is None:
            self._free_questions[question] = None
        for pods in self._candidates(labels):
            if self._means(question, pods):
                pods.questions.append(question)
                for row, count in pods.rows.rows.items():
                    question.counts.add(row, count)

    def _drop(self, question: Question) -> None:
        del self._questions[question.matches, question.with_deleting]
        labels = _anchor_labels(question)
        self._free_questions.pop(question, None)
        for label in labels or ():
            bucket = self._questions_by_label.get(label, {})
            bucket.pop(question, None)
            if not bucket:
                self._questions_by_label.pop(label, None)
        for pods in self._candidates(labels):
            if question in pods.questions:
                pods.questions.remove(question)

    def _candidates(self, labels: list[tuple[str, str]] | None) -> list[PodClass]:
        """The classes that have one of the labels; all of them for None."""
        if labels is None:
            return list(self._classes.values())
        return [pods for label in labels for pods in self._classes_by_label.get(label, ())]


def _anchor_labels(question: Question) -> list[tuple[str, str]] | None:
    """Labels of which every pod that is meant has one; None where there are no such."""
    requirement = anchor(question.matches)
    if requirement is None:
        return None
    return [(requirement.key, value) for value in dict.fromkeys(requirement.values)]


def _own_terms(pod: PodView) -> Iterable[OwnTerm]:
    affinity = pod.spec.pod_affinity
    if affinity is None:
        return
    for term in affinity.anti_required:
        yield TermKind.ANTI_REQUIRED, affinity_match(term, pod), term.topology_key, 1
    for term in affinity.required:
        yield TermKind.REQUIRED, affinity_match(term, pod), term.topology_key, 1
    for weight, term in affinity.preferred:
        yield TermKind.PREFERRED, affinity_match(term, pod), term.topology_key, weight
    for weight, term in affinity.anti_preferred:
        yield TermKind.PREFERRED, affinity_match(term, pod), term.topology_key, -weight
