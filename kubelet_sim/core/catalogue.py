"""Reads the catalogue of machine shapes from plain data and refuses what no machine can be.

The caller has parsed the YAML. Every refusal names the place: `shapes.dgx-h100.numa[1].gpus: GPU 4 is also on numa[0]`.
Checked: every GPU on exactly one NUMA node; CPUs that belong to one node; PCIe levels from near to far whose groups do
not straddle NUMA nodes; pairs of links named once, between GPUs that exist, within the links that a GPU of that model
has.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kubelet_sim.core.shapes import Catalogue, GpuModel, Shape, TraceModel
from services.model.fabric import PATH_RANK
from services.model.node import NicView, NumaView
from services.model.quantity import QuantityError, value

VERSION = 1
CPUS_MAX = 4096


class CatalogueError(ValueError):
    """`path` names the wrong place of the catalogue."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


def parse_catalogue(data: object) -> Catalogue:
    """The catalogue that `data` describes. Raises CatalogueError."""
    top = _mapping(data, "catalogue", required=("version", "gpus", "shapes"), optional=("trace_models",))
    if top["version"] != VERSION:
        raise CatalogueError("version", f"wanted {VERSION}, found {top['version']!r}")
    gpus = {name: _gpu(item, f"gpus.{name}") for name, item in _names(top["gpus"], "gpus")}
    shapes = {name: _shape(name, item, gpus) for name, item in _names(top["shapes"], "shapes")}
    models = {
        name: _trace_model(item, f"trace_models.{name}", gpus, shapes)
        for name, item in _names(top.get("trace_models", {}), "trace_models")
    }
    return Catalogue(MappingProxyType(shapes), MappingProxyType(models))


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPUs of the kernel's list form ("0-19,40-59"). Raises ValueError."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isascii() or not first.isdigit() or (dash and not (last.isascii() and last.isdigit())):
            raise ValueError(f"{text!r} is no CPU list such as 0-19,40-59")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high >= CPUS_MAX:
            raise ValueError(f"{text!r}: {part.strip()} is no range of CPUs below {CPUS_MAX}")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def _shape(name: str, data: object, gpus: Mapping[str, GpuModel]) -> Shape:
    path = f"shapes.{name}"
    item = _mapping(data, path, required=("memory", "numa"), optional=("gpu", "pcie", "nvlinks", "nics"))
    gpu = None
    if "gpu" in item:
        gpu = gpus.get(item["gpu"])
        if gpu is None:
            raise CatalogueError(f"{path}.gpu", f"{item['gpu']!r} is none of {', '.join(sorted(gpus))}")
    memory = _memory(item["memory"], f"{path}.memory")
    numa_nodes, gpu_numa = _numa(item["numa"], f"{path}.numa", memory)
    if (gpu is None) != (not gpu_numa):
        raise CatalogueError(f"{path}.gpu", "a shape has a GPU model where its NUMA nodes have GPUs, and only there")
    links = _links(item.get("nvlinks", {}), f"{path}.nvlinks", len(gpu_numa), gpu.nvlinks if gpu else 0)
    return Shape(
        name=name,
        memory_bytes=memory,
        milli_cpu=1000 * sum(len(parse_cpu_list(node.cpus)) for node in numa_nodes),
        numa_nodes=numa_nodes,
        gpu=gpu,
        gpu_numa=gpu_numa,
        paths=_paths(item.get("pcie", []), f"{path}.pcie", gpu_numa),
        nvlinks=links,
        nics=_nics(item.get("nics", []), f"{path}.nics", len(gpu_numa), len(numa_nodes)),
    )


def _numa(data: object, path: str, memory_bytes: int) -> tuple[tuple[NumaView, ...], tuple[int, ...]]:
    """The NUMA nodes, and the node of each GPU."""
    nodes: list[NumaView] = []
    cpu_owner: dict[int, int] = {}
    gpu_owner: dict[int, int] = {}
    items = _list(data, path)
    for index, entry in enumerate(items):
        place = f"{path}[{index}]"
        item = _mapping(entry, place, required=("cpus",), optional=("gpus", "socket"))
        try:
            cpus = parse_cpu_list(str(item["cpus"]))
        except ValueError as error:
            raise CatalogueError(f"{place}.cpus", str(error)) from error
        for cpu in sorted(cpus):
            if cpu_owner.setdefault(cpu, index) != index:
                raise CatalogueError(f"{place}.cpus", f"CPU {cpu} is also on numa[{cpu_owner[cpu]}]")
        for gpu in _integers(item.get("gpus", []), f"{place}.gpus"):
            if gpu_owner.setdefault(gpu, index) != index:
                raise CatalogueError(f"{place}.gpus", f"GPU {gpu} is also on numa[{gpu_owner[gpu]}]")
        socket = _integer(item.get("socket", index), f"{place}.socket")
        nodes.append(NumaView(index, str(item["cpus"]), memory_bytes // len(items), socket))
    if not nodes:
        raise CatalogueError(path, "a machine has at least one NUMA node")
    missing = [gpu for gpu in range(len(gpu_owner)) if gpu not in gpu_owner]
    if missing:
        raise CatalogueError(path, f"GPUs are numbered from 0 without gaps, and GPU {missing[0]} is on no NUMA node")
    return tuple(nodes), tuple(gpu_owner[gpu] for gpu in range(len(gpu_owner)))


def _paths(data: object, path: str, gpu_numa: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    count = len(gpu_numa)
    table = [["X" if a == b else "" for b in range(count)] for a in range(count)]
    nearest = max(PATH_RANK.values()) + 1
    for index, entry in enumerate(_list(data, path)):
        place = f"{path}[{index}]"
        item = _mapping(entry, place, required=("path", "groups"))
        word = _path_word(item["path"], f"{place}.path")
        if PATH_RANK[word] >= nearest:
            raise CatalogueError(
                f"{place}.path", f"levels go from near to far, and {word} is not farther than the last"
            )
        nearest = PATH_RANK[word]
        for at, group in enumerate(_list(item["groups"], f"{place}.groups")):
            members = _gpus(group, f"{place}.groups[{at}]", count)
            if word != "SYS" and len({gpu_numa[gpu] for gpu in members}) > 1:
                raise CatalogueError(f"{place}.groups[{at}]", f"{word} cannot join GPUs of different NUMA nodes")
            for a in members:
                for b in members:
                    table[a][b] = table[a][b] or word
    return tuple(tuple(word or "SYS" for word in row) for row in table)


def _links(data: object, path: str, count: int, budget: int) -> tuple[tuple[int, ...], ...]:
    table = [[0] * count for _ in range(count)]
    if not isinstance(data, Mapping):
        raise CatalogueError(path, "wanted a mapping: {all: n} or {n: [[a, b], ...]}")
    if "all" in data:
        links = _integer(data["all"], f"{path}.all")
        if len(data) > 1:
            raise CatalogueError(path, "`all` stands alone")
        if not 0 < links <= budget:
            raise CatalogueError(f"{path}.all", f"a GPU of this model has {budget} links, so {links} is not possible")
        return tuple(tuple(links if a != b else 0 for b in range(count)) for a in range(count))
    for number, pairs in data.items():
        links = _integer(number, f"{path}.{number}")
        for at, pair in enumerate(_list(pairs, f"{path}.{number}")):
            place = f"{path}.{number}[{at}]"
            members = _gpus(pair, place, count)
            if len(members) != 2 or links < 1:
                raise CatalogueError(place, "wanted a pair of two GPUs with at least one link")
            a, b = members
            if table[a][b]:
                raise CatalogueError(place, f"the pair is named twice, with {table[a][b]} and {links} links")
            table[a][b] = table[b][a] = links
    for gpu, row in enumerate(table):
        if sum(row) > budget:
            raise CatalogueError(path, f"GPU {gpu} has {sum(row)} links, and its model {budget}")
    return tuple(map(tuple, table))


def _nics(data: object, path: str, gpus: int, numa_nodes: int) -> tuple[NicView, ...]:
    nics: list[NicView] = []
    for index, entry in enumerate(_list(data, path)):
        place = f"{path}[{index}]"
        item = _mapping(entry, place, required=("name", "gbps", "numa", "near"))
        numa = _integer(item["numa"], f"{place}.numa")
        if numa >= numa_nodes:
            raise CatalogueError(f"{place}.numa", f"there is no NUMA node {numa}")
        words = ["SYS"] * gpus
        near = _mapping(item["near"], f"{place}.near", optional=tuple(PATH_RANK))
        for word, members in near.items():
            for gpu in _gpus(members, f"{place}.near.{word}", gpus):
                words[gpu] = word
        nics.append(NicView(str(item["name"]), _integer(item["gbps"], f"{place}.gbps"), numa, tuple(words)))
    return tuple(nics)


def _gpu(data: object, path: str) -> GpuModel:
    item = _mapping(data, path, required=("product", "memory", "nvlinks"))
    memory = _memory(item["memory"], f"{path}.memory")
    return GpuModel(str(item["product"]), memory, _integer(item["nvlinks"], f"{path}.nvlinks"))


def _trace_model(data: object, path: str, gpus: Mapping[str, GpuModel], shapes: Mapping[str, Shape]) -> TraceModel:
    item = _mapping(data, path, required=("gpu", "shapes"))
    if item["gpu"] not in gpus:
        raise CatalogueError(f"{path}.gpu", f"{item['gpu']!r} is none of {', '.join(sorted(gpus))}")
    names = _list(item["shapes"], f"{path}.shapes")
    for index, name in enumerate(names):
        if name not in shapes:
            raise CatalogueError(f"{path}.shapes[{index}]", f"{name!r} is none of {', '.join(sorted(shapes))}")
    ordered = sorted((shapes[name] for name in names), key=lambda shape: len(shape.gpu_numa))
    return TraceModel(gpus[item["gpu"]], tuple(ordered))


def _mapping(data: object, path: str, required: Iterable[str] = (), optional: Iterable[str] = ()) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise CatalogueError(path, f"wanted a mapping, found {data!r}")
    known = [*required, *optional]
    for name in data:
        if name not in known:
            raise CatalogueError(f"{path}.{name}", f"unknown field; known: {', '.join(known)}")
    for name in required:
        if name not in data:
            raise CatalogueError(f"{path}.{name}", "is missing")
    return dict(data)


def _names(data: object, path: str) -> list[tuple[str, object]]:
    if not isinstance(data, Mapping):
        raise CatalogueError(path, "wanted a mapping of names")
    return [(str(name), item) for name, item in data.items()]


def _list(data: object, path: str) -> list[Any]:
    if not isinstance(data, list):
        raise CatalogueError(path, f"wanted a list, found {data!r}")
    return data


def _integer(data: object, path: str) -> int:
    if not isinstance(data, int) or isinstance(data, bool) or data < 0:
        raise CatalogueError(path, f"wanted a whole number from 0, found {data!r}")
    return data


def _integers(data: object, path: str) -> list[int]:
    return [_integer(item, f"{path}[{index}]") for index, item in enumerate(_list(data, path))]


def _gpus(data: object, path: str, count: int) -> list[int]:
    members = _integers(data, path)
    for gpu in members:
        if gpu >= count:
            raise CatalogueError(path, f"there is no GPU {gpu}: the NUMA nodes name {count}")
    if len(set(members)) != len(members):
        raise CatalogueError(path, "a GPU is named twice")
    return members


def _path_word(data: object, path: str) -> str:
    if not isinstance(data, str) or data not in PATH_RANK:
        raise CatalogueError(path, f"{data!r} is none of {', '.join(PATH_RANK)}")
    return data


def _memory(data: object, path: str) -> int:
    try:
        return value(str(data))
    except QuantityError as error:
        raise CatalogueError(path, str(error)) from error
