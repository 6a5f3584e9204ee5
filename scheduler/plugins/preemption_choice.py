"""Whom to evict: the order of victims, disruption budgets, and the choice among nodes (kube-scheduler 1.36, preemption.go)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scheduler.core.pod_match import selects
from scheduler.core.table import Held
from services.model.cluster import BudgetView

# Added to each priority in a sum, so that fewer victims of negative priority are not worse than more.
PRIORITY_SHIFT = 1 << 31
# Later than every start: of a pod that has not started.
NEVER = (1 << 63) - 1


# (violated budgets, top priority, sum of priorities, how many, minus the earliest start at top priority)
Cost = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node on which preemption would help. `find_victims`: the most important first."""

    node_name: str
    cost: Cost
    find_victims: Callable[[], tuple[Held, ...]]

    @property
    def victims(self) -> tuple[Held, ...]:
        return self.find_victims()

    @property
    def violations(self) -> int:
        """Of disruption budgets, by the victims."""
        return self.cost[0]


def importance(held: Held) -> tuple[int, int, str]:
    """Sorts the most important first: higher priority, then who started earlier; who has not started comes last."""
    pod = held.pod
    return (-pod.spec.priority, pod.started_at_ns or NEVER, pod.uid)


def by_budgets(victims: Sequence[Held], budgets: Iterable[BudgetView]) -> tuple[list[Held], list[Held]]:
    """(those whose eviction would violate a budget, the others), each in the given order.

    Budgets are debited in that order. One that selects nothing or everything by an empty selector matches no pod, and a
    pod that its status counts as disrupted already is not debited.
    """
    allowed: dict[tuple[str, str], int] = {}
    relevant = [budget for budget in budgets if budget.selector]
    violating: list[Held] = []
    others: list[Held] = []
    for held in victims:
        pod = held.pod
        violates = False
        for budget in relevant if pod.labels else ():
            if budget.namespace != pod.namespace or not selects(budget.selector, pod.labels):
                continue
            if pod.name in budget.disrupted:
                continue
            key = (budget.namespace, budget.name)
            allowed[key] = allowed.get(key, budget.disruptions_allowed) - 1
            violates = violates or allowed[key] < 0
        (violating if violates else others).append(held)
    return violating, others


def candidate(node_name: str, victims: tuple[Held, ...], violations: int) -> Candidate:
    """What it costs to evict `victims`, the most important first."""
    priorities = [held.pod.spec.priority for held in victims]
    top = max(priorities)
    earliest = min(held.pod.started_at_ns or NEVER for held in victims if held.pod.spec.priority == top)
    cost = (violations, top, sum(priorities) + PRIORITY_SHIFT * len(priorities), len(priorities), -earliest)
    return Candidate(node_name, cost, lambda: victims)


def best(candidates: Sequence[Candidate]) -> Candidate:
    """The first of those that cost least: fewest violations, lowest top priority, lowest sum of priorities, fewest victims,
    and the latest start among the victims of top priority.
    """
    return min(candidates, key=lambda item: item.cost)
