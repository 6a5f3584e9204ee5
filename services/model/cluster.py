"""Projections of the small objects that scheduling reads beside pods and nodes: Services and disruption budgets."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.model.pod import LabelRequirements


@dataclass(frozen=True, slots=True)
class ServiceView:
    """`selector` empty: the Service selects no pods."""

    namespace: str
    name: str
    selector: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BudgetView:
    """A PodDisruptionBudget. `disrupted`: names of pods whose eviction its status counts already."""

    namespace: str
    name: str
    selector: LabelRequirements
    disruptions_allowed: int
    disrupted: frozenset[str] = frozenset()
