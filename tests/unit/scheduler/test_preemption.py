"""DefaultPreemption: the quick way over many nodes says what the plain way says of each, and the order of victims."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.filtering import Filtering
from scheduler.core.framework import no_stopwatch
from scheduler.core.table import Held, NodeTable
from scheduler.plugins.default_preemption import DefaultPreemption, displaced
from scheduler.plugins.preemption_choice import Candidate, best, by_budgets, candidate, importance
from scheduler.plugins.registry import default_profile
from services.model.cluster import BudgetView
from services.model.pod import PodView, Requirement
from tests.transcripts.test_scheduler_machine import node, pod

GUARDED = (Requirement("app", "In", ("guarded",)),)


def there(name: str, priority: int = 0, started: int = 1, labels: dict[str, str] | None = None, cpu: int = 100) -> Held:
    view = replace(pod(name, cpu=cpu, priority=priority, labels=labels), started_at_ns=started)
    return Held(view, "n", ())


def full_cluster(seed: int) -> tuple[NodeTable, PodView]:
    """A few nodes that are nearly full of pods of several priorities; some are guarded by budgets."""
    rng = random.Random(seed)
    table = NodeTable()
    for number in range(rng.randint(1, 6)):
        table.put_node(node(f"n{number}", cpu=1000))
        free = 1000
        while free > 0:
            cpu = min(free, rng.choice((100, 200, 300, 400)))
            free -= cpu
            labels = {"app": "guarded"} if rng.random() < 0.4 else {"app": "free"}
            held = there(f"p{number}-{free}", rng.choice((0, 1, 5, 50)), rng.randint(1, 99), labels, cpu)
            table.hold(Held(held.pod, f"n{number}", ()))
    for number in range(rng.randint(0, 2)):
        disrupted = frozenset(("p0-0",)) if rng.random() < 0.3 else frozenset()
        table.put_budget(f"b{number}", BudgetView("default", f"b{number}", GUARDED, rng.randint(0, 2), disrupted))
    return table, pod("preemptor", cpu=rng.choice((100, 300, 500, 900)), priority=rng.choice((1, 5, 100)))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 32))
def test_many_nodes_at_once_are_judged_as_each_alone(seed: int) -> None:
    table, preemptor = full_cluster(seed)
    filtering = Filtering(default_profile(), preemptor, table, no_stopwatch)
    assert not filtering.run().any()
    assert filtering.only_resources().any()
    found = DefaultPreemption().search(preemptor, table, filtering, enough=table.count + 1)
    quick = {item.node_name: (item.cost, [held.pod.name for held in item.victims]) for item in found.candidates}
    plain = {}
    for name, row in table.rows.items():
        answer = displaced(preemptor, table, filtering, row)
        if isinstance(answer, Candidate):
            plain[name] = (answer.cost, [held.pod.name for held in answer.victims])
    assert quick == plain
    assert sum(found.reasons.values()) >= table.count - len(plain)


def test_the_most_important_come_first_and_who_has_not_started_last() -> None:
    pods = [
        there("young", 5, 20),
        there("unstarted", 5, 0),
        there("old", 5, 10),
        there("high", 9, 99),
    ]
    assert [held.pod.name for held in sorted(pods, key=importance)] == ["high", "old", "young", "unstarted"]


def test_budgets_are_debited_in_order_and_spare_who_is_disrupted_already() -> None:
    guarded = {"app": "guarded"}
    pods = [there(name, labels=guarded) for name in ("a", "b", "c")] + [there("free", labels={"app": "x"})]
    budget = BudgetView("default", "guard", GUARDED, 1, frozenset(("a",)))
    violating, others = by_budgets(pods, [budget])
    assert [held.pod.name for held in violating] == ["c"]
    assert [held.pod.name for held in others] == ["a", "b", "free"]


def test_a_budget_with_an_empty_selector_or_in_another_namespace_guards_nobody() -> None:
    pods = [there("a", labels={"app": "guarded"})]
    for budget in (
        BudgetView("default", "all", (), 0),
        BudgetView("default", "none", None, 0),
        BudgetView("other", "guard", GUARDED, 0),
    ):
        assert by_budgets(pods, [budget])[0] == []


def choice(*victims: Held, violations: int = 0) -> Candidate:
    return candidate("-".join(held.pod.name for held in victims), victims, violations)


def test_the_cheapest_victims_are_chosen_rule_by_rule() -> None:
    low, low_too, high = there("low", 1, 5), there("low2", 1, 7), there("high", 9, 5)
    for better, worse in (
        (choice(high), choice(low, violations=1)),
        (choice(low, low_too), choice(high)),
        (choice(low), choice(low, low_too)),
        # Fewer of negative priority are better than more, though their sum is larger.
        (choice(there("minus", -5)), choice(there("minus1", -5), there("minus2", -6))),
        (choice(low_too), choice(low)),
    ):
        assert best([worse, better]) is better
        assert best([better, worse]) is better
    first, second = choice(low), choice(there("same", 1, 5))
    assert best([first, second]) is first


def test_without_pods_of_lower_priority_anywhere_no_node_is_looked_at() -> None:
    table = NodeTable()
    for number in range(6):
        table.put_node(node(f"n{number}", cpu=100))
        table.hold(Held(there(f"p{number}", 5).pod, f"n{number}", ()))
    for priority, candidates, refused in ((9, 6, 0), (5, 0, 6), (0, 0, 6)):
        asking = pod("asking", cpu=100, priority=priority)
        filtering = Filtering(default_profile(), asking, table, no_stopwatch)
        filtering.run()
        search = DefaultPreemption().search(asking, table, filtering, enough=7)
        assert (len(search.candidates), sum(search.reasons.values())) == (candidates, refused)


def test_a_search_ends_with_enough_candidates_and_the_next_goes_on_from_there() -> None:
    table = NodeTable()
    for number in range(600):
        table.put_node(node(f"n{number}", cpu=100))
        table.hold(Held(there(f"p{number}").pod, f"n{number}", ()))
    preemptor, plugin = pod("preemptor", cpu=100, priority=9), DefaultPreemption()
    filtering = Filtering(default_profile(), preemptor, table, no_stopwatch)
    filtering.run()
    first = {item.node_name for item in plugin.search(preemptor, table, filtering, 100).candidates}
    second = {item.node_name for item in plugin.search(preemptor, table, filtering, 100).candidates}
    assert 100 <= len(first) < 600
    assert not first & second
