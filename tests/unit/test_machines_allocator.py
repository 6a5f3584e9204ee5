"""The device allocator: public cases by name, properties against brute force, and what it must never do."""

import itertools
import random

import pytest

from services.model.devices import Device, DevicePolicy, DeviceRequest, DeviceShare, allocate, fits, free_after
from services.model.fabric import Fabric, SetQuality, fabric_of, one_sided_links
from services.model.node import TopologyView
from tests.unit.machines import (
    NEIGHBOURS,
    SOCKETS,
    bridge_436,
    bridges_546,
    dgx1_v100,
    dgx_h100,
    fabric_down,
    machine,
    take,
)


def test_two_of_eight_with_bridges_are_a_bridged_pair() -> None:
    """k8s-device-plugin#546: the bridges join 0-2, 1-3, 4-5, 6-7."""
    view = bridges_546()
    free = set(range(8))
    taken = []
    for _ in range(4):
        pair = take(view, 2, free)
        assert pair is not None
        taken.append(pair)
        free -= set(pair)
    assert taken == [[0, 2], [1, 3], [4, 5], [6, 7]]


def test_the_only_bridged_pair_goes_first() -> None:
    """k8s-device-plugin#436, R49: {0,1}, then {2,3}."""
    assert take(bridge_436(), 2) == [0, 1]
    assert take(bridge_436(), 2, [2, 3]) == [2, 3]


def test_a_link_that_one_side_alone_reports_is_no_link_and_is_flagged() -> None:
    """k8s-device-plugin#448."""
    view = bridge_436()
    table = [list(row) for row in view.nvlinks]
    table[1][0] = 0
    nvlinks = tuple(map(tuple, table))
    shares = allocate(DeviceRequest(2, 1000), [1000] * 4, view.devices, nvlinks, view.paths)
    assert shares is not None
    assert [share.index for share in shares] == [2, 3], "no link is left, and 2-3 have the nearer path"
    assert one_sided_links(nvlinks) == [(0, 1)]
    assert one_sided_links(view.nvlinks) == []


def test_where_every_path_is_equal_one_numa_node_is_kept() -> None:
    """go-gpuallocator#17: all pairs SYS, four on each NUMA node."""
    view = machine(8, numa=[0, 1, 0, 1, 0, 1, 0, 1])
    assert take(view, 2) == [0, 2]
    assert take(view, 2, [0, 1, 3]) == [1, 3]


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("milli", [1000, 140])
def test_n_devices_are_n_distinct_devices(count: int, milli: int) -> None:
    """HAMi#2750, R54: seven slices a card do not make one card seven."""
    taken = take(dgx_h100(), count, milli=milli)
    assert taken is not None
    assert len(set(taken)) == count


@pytest.mark.parametrize(("policy", "second"), [(DevicePolicy.SPREAD, [1]), (DevicePolicy.BEST_FIT, [0])])
def test_sixteen_halves_fill_eight_devices_under_either_policy(policy: DevicePolicy, second: list[int]) -> None:
    """KAI#2153 wants two on each card: spreading gets there card by card, best fit by filling each before the next."""
    view = machine(8)
    free: tuple[int, ...] = (1000,) * 8
    taken = []
    for _ in range(16):
        index = take(view, 1, milli=500, free_milli=free, policy=policy)
        assert index is not None
        taken.append(index)
        free = free_after(free, [DeviceShare(index[0], 500)])
    assert taken[1] == second
    assert free == (0,) * 8


def test_a_share_goes_onto_the_fullest_device_that_still_holds_it() -> None:
    free = [1000, 300, 500, 200]
    assert take(machine(4), 1, milli=300, free_milli=free) == [1]
    assert take(machine(4), 1, milli=400, free_milli=free) == [2]
    assert take(machine(4), 1, milli=600, free_milli=free) == [0]
    assert take(machine(4), 2, milli=500, free_milli=free) == [0, 2]


def test_a_share_that_must_break_a_device_breaks_the_one_that_others_need_least() -> None:
    assert take(bridge_436(), 1, milli=100) == [2]
    assert take(fabric_down(2), 1, milli=100) == [2]


def test_one_gpu_is_taken_where_it_breaks_no_pair() -> None:
    assert take(fabric_down(2), 1) == [2], "the GPU without fabric is of least use to anyone else"
    assert take(bridges_546(), 1, [1, 2, 3, 4, 5, 6, 7]) == [2], "its bridge partner is gone"


def test_a_set_that_needs_the_fabric_leaves_out_the_gpu_without_it() -> None:
    assert take(fabric_down(2), 4) == [4, 5, 6, 7]


NVSWITCH = [
    ([1, 2, 3], 2, [2, 3]),
    ([0, 1, 2, 4, 5, 6, 7], 2, [0, 1]),
    ([0, 1, 2, 4, 5, 6, 7], 4, [4, 5, 6, 7]),
    ([0, 1, 2, 4, 5, 6, 7], 1, [2]),
    ([0, 1, 2, 3, 4, 5, 6, 7], 8, [0, 1, 2, 3, 4, 5, 6, 7]),
]


@pytest.mark.parametrize(("free", "count", "right"), NVSWITCH)
def test_on_an_nvswitch_machine_the_legal_partitions_stay_whole(free: list[int], count: int, right: list[int]) -> None:
    assert take(dgx_h100(), count, free) == right


MESH = [
    ([0, 3, 1], 2, [0, 3]),
    ([0, 1, 2, 3, 4, 5], 4, [0, 1, 2, 3]),
    ([1, 2, 3, 4, 5, 6, 7], 3, [1, 2, 3]),
    (list(range(8)), 4, [0, 1, 2, 3]),
    (list(range(8)), 8, list(range(8))),
]


@pytest.mark.parametrize(("free", "count", "right"), MESH)
def test_on_the_cube_mesh_the_best_linked_set_is_taken(free: list[int], count: int, right: list[int]) -> None:
    assert take(dgx1_v100(), count, free) == right


def test_the_weakest_pair_decides_between_sets_of_equal_sums() -> None:
    """{0,1,2} sums to 4+2+0, {3,4,5} to 2+2+2: a ring over the second has no gap, though its PCIe paths are worse."""
    links = {4: [(0, 1)], 2: [(0, 2), (3, 4), (4, 5), (3, 5)]}
    view = machine(6, links=links, levels=[("PIX", [[0, 1, 2]])])
    assert take(view, 3) == [3, 4, 5]


def test_of_equal_sets_the_one_is_taken_that_leaves_the_better_rest() -> None:
    """A chain 0-1-2-3 of equal links: taking the middle pair would leave two strangers."""
    view = machine(4, links={1: [(0, 1), (1, 2), (2, 3)]})
    assert take(view, 2) == [0, 1]
    shuffled = machine(4, links={1: [(0, 1), (0, 2), (2, 3)]})
    assert take(shuffled, 2) == [0, 1], "0-2 is the middle now"


def test_unhealthy_devices_are_never_chosen() -> None:
    view = machine(4, links={12: [(0, 1)]}, unhealthy=[1])
    assert take(view, 2) == [0, 2]
    assert take(view, 4) is None
    assert not fits(DeviceRequest(4, 1000), [1000] * 4, view.devices)


def test_only_models_that_were_asked_for_are_chosen() -> None:
    view = machine(4, models=["T4", "A10", "T4", "A10"])
    assert take(view, 2, models=["A10"]) == [1, 3]
    assert take(view, 1, models=["P100"]) is None
    assert take(view, 3, models=["T4", "A10"]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("request_", "free"),
    [
        (DeviceRequest(0, 1000), [1000, 1000]),
        (DeviceRequest(1, 0), [1000, 1000]),
        (DeviceRequest(3, 1000), [1000, 1000]),
        (DeviceRequest(1, 1000), [999, 0]),
        (DeviceRequest(1, 1000), []),
    ],
)
def test_what_does_not_fit_is_refused_with_none(request_: DeviceRequest, free: list[int]) -> None:
    view = machine(2)
    assert allocate(request_, free, view.devices, view.nvlinks, view.paths) is None
    assert not fits(request_, free, view.devices)


def test_a_machine_without_tables_is_served_by_index() -> None:
    devices = [Device(index, "", "P4", 0, -1) for index in range(3)]
    assert allocate(DeviceRequest(2, 1000), [1000] * 3, devices, (), ()) == (DeviceShare(0, 1000), DeviceShare(1, 1000))


def random_machine(rng: random.Random, count: int) -> TopologyView:
    pairs = list(itertools.combinations(range(count), 2))
    links: dict[int, list[tuple[int, int]]] = {1: [], 2: []}
    for pair in pairs:
        number = rng.choice([0, 0, 1, 2])
        if number:
            links[number].append(pair)
    half = count // 2
    levels = [("PIX", NEIGHBOURS), ("NODE", [list(range(half)), list(range(half, count))])]
    return machine(count, links=links, levels=levels, numa=[rng.choice([0, 1]) for _ in range(count)])


def regular_machine(rng: random.Random, count: int) -> TopologyView:
    """With twins: what the search by classes must not get wrong."""
    half = count // 2
    numa = [0] * half + [1] * (count - half)
    levels = [("PXB", NEIGHBOURS), ("NODE", [list(range(half)), list(range(half, count))])]
    return machine(count, links=rng.choice([0, 12]), levels=levels[rng.choice([0, 1]) :], numa=numa)


def plain_quality(view: TopologyView, members: tuple[int, ...]) -> SetQuality:
    rank = {"SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5}
    pairs = list(itertools.combinations(members, 2))
    return SetQuality(
        sum(view.nvlinks[a][b] for a, b in pairs),
        min((view.nvlinks[a][b] for a, b in pairs), default=0),
        sum(rank[view.paths[a][b]] for a, b in pairs),
        sum(view.devices[a].numa_node == view.devices[b].numa_node for a, b in pairs),
    )


def plain_pairing(view: TopologyView, members: tuple[int, ...]) -> tuple[int, int, int]:
    """The best division into pairs by trying all; (links, paths, same NUMA)."""
    if len(members) < 2:
        return (0, 0, 0)
    first, rest = members[0], members[1:]
    results = [plain_pairing(view, rest)] if len(members) % 2 else []
    for partner in rest:
        pair = plain_quality(view, (first, partner))
        left = plain_pairing(view, tuple(member for member in rest if member != partner))
        results.append((pair.links + left[0], pair.paths + left[1], pair.same_numa + left[2]))
    return max(results)


def plain_value(view: TopologyView, free: tuple[int, ...], members: tuple[int, ...]) -> tuple[object, ...]:
    left = tuple(device for device in free if device not in members)
    rest = plain_quality(view, left)
    return (*plain_quality(view, members), plain_pairing(view, left), (rest.links, rest.paths, rest.same_numa))


@pytest.mark.parametrize("make", [random_machine, regular_machine])
@pytest.mark.parametrize("seed", range(12))
def test_the_choice_is_the_optimum_that_brute_force_finds(make: object, seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(3, 7)
    view = make(rng, count)  # type: ignore[operator]
    for _ in range(8):
        free = tuple(sorted(rng.sample(range(count), rng.randint(2, count))))
        size = rng.randint(1, len(free))
        chosen = take(view, size, free)
        assert chosen is not None
        assert set(chosen) <= set(free)
        best = max(plain_value(view, free, members) for members in itertools.combinations(free, size))
        assert plain_value(view, free, tuple(chosen)) == best


@pytest.mark.parametrize("seed", range(20))
def test_grants_never_overlap_and_never_exceed_what_is_free(seed: int) -> None:
    rng = random.Random(seed)
    view = random_machine(rng, 8)
    free: tuple[int, ...] = (1000,) * 8
    for _ in range(60):
        request = DeviceRequest(rng.randint(1, 3), rng.choice([1000, 1000, 500, 333, 100]))
        policy = rng.choice(list(DevicePolicy))
        shares = allocate(request, free, view.devices, view.nvlinks, view.paths, policy=policy)
        assert (shares is not None) == fits(request, free, view.devices)
        if shares is None:
            continue
        assert [share.milli for share in shares] == [request.milli] * request.count
        assert len({share.index for share in shares}) == request.count
        free = free_after(free, shares)
        assert min(free) >= 0


def test_the_same_question_has_the_same_answer_whatever_was_asked_before() -> None:
    view = dgx1_v100()
    rng = random.Random(7)
    questions = [(tuple(sorted(rng.sample(range(8), 6))), rng.randint(1, 5)) for _ in range(40)]
    forward = [fabric_of(view.nvlinks, view.paths, tuple(SOCKETS)).choose(mask(free), size) for free, size in questions]
    fresh = [Fabric(view.nvlinks, view.paths, tuple(SOCKETS)) for _ in questions]
    alone = [fabric.choose(mask(free), size) for fabric, (free, size) in zip(fresh, questions, strict=True)]
    assert forward == alone


def mask(positions: tuple[int, ...]) -> int:
    return sum(1 << position for position in positions)


def test_sixteen_gpus_behind_one_fabric_are_searched_exactly() -> None:
    quads = [list(range(start, start + 4)) for start in range(0, 16, 4)]
    view = machine(16, links=6, levels=[("PXB", quads)], numa=[0] * 8 + [1] * 8)
    assert take(view, 4, range(1, 16)) == [4, 5, 6, 7]
    assert take(view, 3, range(1, 16)) == [1, 2, 3]


def test_a_machine_beyond_the_exact_limit_still_gets_a_linked_set() -> None:
    pairs = [(a, b) for a, b in itertools.combinations(range(20), 2) if a // 4 == b // 4]
    view = machine(20, links={4: pairs})
    assert take(view, 4, range(2, 20)) == [4, 5, 6, 7]
