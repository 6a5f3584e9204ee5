"""Small machines that several tests place devices on; the NVLink and PCIe facts are those of public reports."""

from collections.abc import Iterable, Mapping, Sequence

from services.model.devices import MILLI_WHOLE, Device, DevicePolicy, DeviceRequest, allocate
from services.model.node import NumaView, TopologyView

Pairs = Iterable[tuple[int, int]]


def machine(
    count: int,
    *,
    links: Mapping[int, Pairs] | int = 0,
    levels: Sequence[tuple[str, Sequence[Sequence[int]]]] = (),
    numa: Sequence[int] = (),
    models: Sequence[str] = (),
    unhealthy: Iterable[int] = (),
) -> TopologyView:
    """`links`: the count for every pair, or pairs by count. `levels`: the first level with a group that holds both GPUs is
    their path; SYS for the others.
    """
    table = [[links if isinstance(links, int) and a != b else 0 for b in range(count)] for a in range(count)]
    if not isinstance(links, int):
        for number, pairs in links.items():
            for a, b in pairs:
                table[a][b] = table[b][a] = number
    broken = set(unhealthy)
    return TopologyView(
        node_name="machine",
        shape="",
        numa_nodes=tuple(NumaView(node, f"{node * 8}-{node * 8 + 7}", 0, node) for node in sorted(set(numa))),
        devices=tuple(
            Device(
                index,
                f"GPU-{index}",
                models[index] if models else "A100",
                0,
                numa[index] if numa else 0,
                index not in broken,
            )
            for index in range(count)
        ),
        paths=tuple(tuple(_path(levels, a, b) for b in range(count)) for a in range(count)),
        nvlinks=tuple(map(tuple, table)),
        nics=(),
    )


def _path(levels: Sequence[tuple[str, Sequence[Sequence[int]]]], a: int, b: int) -> str:
    if a == b:
        return "X"
    for word, groups in levels:
        if any(a in group and b in group for group in groups):
            return word
    return "SYS"


SOCKETS = [0, 0, 0, 0, 1, 1, 1, 1]
QUADS = [[0, 1, 2, 3], [4, 5, 6, 7]]
NEIGHBOURS = [[0, 1], [2, 3], [4, 5], [6, 7]]


def dgx1_v100() -> TopologyView:
    """The hybrid cube mesh."""
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    return machine(8, links={2: double, 1: single}, levels=[("PIX", NEIGHBOURS), ("PHB", QUADS)], numa=SOCKETS)


def dgx_h100() -> TopologyView:
    return machine(8, links=18, levels=[("NODE", QUADS)], numa=SOCKETS)


def fabric_down(gpu: int) -> TopologyView:
    """An NVSwitch machine of which one GPU has lost the fabric."""
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8) if gpu not in (a, b)]
    return machine(8, links={18: pairs}, levels=[("NODE", QUADS)], numa=SOCKETS)


def bridges_546() -> TopologyView:
    return machine(8, links={12: [(0, 2), (1, 3), (4, 5), (6, 7)]}, numa=SOCKETS)


def bridge_436() -> TopologyView:
    return machine(4, links={12: [(0, 1)]}, levels=[("NODE", [[2, 3]])], numa=[0, 0, 1, 1])


def take(
    view: TopologyView,
    count: int,
    free: Iterable[int] | Sequence[int] | None = None,
    *,
    milli: int = MILLI_WHOLE,
    free_milli: Sequence[int] | None = None,
    models: Iterable[str] = (),
    policy: DevicePolicy = DevicePolicy.BEST_FIT,
) -> list[int] | None:
    """Indices that the allocator gives; `free` names the wholly free devices (default all)."""
    if free_milli is None:
        whole = set(range(len(view.devices)) if free is None else free)
        free_milli = [MILLI_WHOLE if index in whole else 0 for index in range(len(view.devices))]
    request = DeviceRequest(count, milli, frozenset(models))
    shares = allocate(request, free_milli, view.devices, view.nvlinks, view.paths, policy=policy)
    return None if shares is None else [share.index for share in shares]
