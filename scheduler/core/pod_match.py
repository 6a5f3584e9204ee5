"""Which pods a term means: namespaces and a label selector, with everything that depends on the asking pod filled in."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from services.model.pod import LabelRequirements, PodAffinityTerm, PodView, Requirement
from services.model.selectors import requirement_matches

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PodMatch:
    """Pods of `namespaces`, or of those that `namespace_selector` selects, whose labels `selector` selects."""

    namespaces: frozenset[str]
    selector: LabelRequirements
    namespace_selector: LabelRequirements = None

    def holds(self, namespace: str, labels: Labels, namespace_labels: Labels) -> bool:
        """`namespace_labels`: the labels of the pod's namespace."""
        if self.selector is None:
            return False
        if namespace not in self.namespaces and not selects(self.namespace_selector, namespace_labels):
            return False
        return all(requirement_matches(requirement, labels) for requirement in self.selector)


def selects(selector: LabelRequirements, labels: Labels) -> bool:
    """Whether a selector selects something with these labels: () everything, None nothing."""
    return selector is not None and all(requirement_matches(requirement, labels) for requirement in selector)


def merged_keys(
    selector: LabelRequirements, labels: Labels, match: Iterable[str], mismatch: Iterable[str]
) -> LabelRequirements:
    """The selector with the pod's own values of matchLabelKeys (In) and mismatchLabelKeys (NotIn).

    The API server adds them when a pod is created, and refuses a selector that names such a key itself; so a key that
    stands in the selector has been added already.
    """
    if selector is None:
        return None
    named = {requirement.key for requirement in selector}
    more = [
        Requirement(key, operator, (labels[key],))
        for keys, operator in ((match, "In"), (mismatch, "NotIn"))
        for key in keys
        if key in labels and key not in named
    ]
    return (*selector, *more)


def affinity_match(term: PodAffinityTerm, pod: PodView) -> PodMatch:
    """Whom `term` of `pod` means; the pod's own namespace where the term names none."""
    selector = merged_keys(term.selector, pod.labels, term.match_label_keys, term.mismatch_label_keys)
    namespaces = term.namespaces
    if not namespaces and term.namespace_selector is None:
        namespaces = frozenset((pod.namespace,))
    return PodMatch(namespaces, selector, term.namespace_selector)


def anchor(matches: Iterable[PodMatch]) -> Requirement | None:
    """A requirement that every matching pod fulfils with one of few label values; None when there is none."""
    requirements: Iterator[Requirement] = (
        requirement for match in matches for requirement in match.selector or () if requirement.operator == "In"
    )
    return min(requirements, key=lambda requirement: len(requirement.values), default=None)
