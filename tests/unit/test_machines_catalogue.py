"""The catalogue of machine shapes: what ships is right, what cannot be is refused with its place."""

import copy
from importlib import resources
from typing import Any

import pytest
import yaml

from kubelet_sim.core.catalogue import CatalogueError, parse_catalogue, parse_cpu_list
from kubelet_sim.core.shapes import expand, openb_machine
from kubelet_sim.fleet import FLEET_MACHINES_MAX, fleet_machines, load_catalogue
from services.model.topology import describe_links, topology_matrix


def test_the_catalogue_that_ships_has_the_machines_of_the_guide() -> None:
    shapes = load_catalogue().shapes
    assert {"dgx1-v100", "hgx-a100-2numa", "dgx-a100", "dgx-h100", "l40s-4", "cpu-16", "cpu-64", "cpu-96"} <= set(
        shapes
    )
    assert {name: (len(shape.gpu_numa), shape.milli_cpu // 1000) for name, shape in shapes.items()}["dgx-h100"] == (
        8,
        224,
    )


LINKS = [
    ("dgx1-v100", "NV2 x 8, NV1 x 8, SYS x 12"),
    ("hgx-a100-2numa", "NV12 x 28"),
    ("dgx-a100", "NV12 x 28"),
    ("dgx-h100", "NV18 x 28"),
    ("l40s-4", "NODE x 2, SYS x 4"),
    ("p100-8", "PIX x 4, PXB x 8, SYS x 16"),
    ("t4-4", "PHB x 2, SYS x 4"),
    ("cpu-64", ""),
]


@pytest.mark.parametrize(("name", "links"), LINKS)
def test_the_links_of_each_shape_are_those_of_the_real_machine(name: str, links: str) -> None:
    machine = expand(load_catalogue().shapes[name], "n")
    assert describe_links(machine.topology, range(len(machine.topology.devices))) == links


@pytest.mark.parametrize("name", sorted(load_catalogue().shapes))
def test_every_shape_expands_to_symmetric_tables_and_one_numa_node_a_gpu(name: str) -> None:
    view = expand(load_catalogue().shapes[name], "n").topology
    count = len(view.devices)
    ids = {node.id for node in view.numa_nodes}
    assert [device.index for device in view.devices] == list(range(count))
    assert {device.numa_node for device in view.devices} <= ids
    for table in (view.paths, view.nvlinks):
        assert len(table) == count
        assert all(table[a][b] == table[b][a] for a in range(count) for b in range(count))
    assert all(len(nic.gpu_paths) == count for nic in view.nics)


def test_a_row_of_the_dgx_a100_reads_as_in_its_dump() -> None:
    text = topology_matrix(expand(load_catalogue().shapes["dgx-a100"], "n").topology)
    row = text.splitlines()[1]
    assert row == "\t".join(["GPU0", " X ", *["NV12"] * 7, "PXB", "PXB", *["SYS"] * 6, "48-63,176-191", "3", "", "N/A"])


def test_a_node_of_a_shape_says_what_kubernetes_users_look_for() -> None:
    node = expand(load_catalogue().shapes["dgx1-v100"], "dgx1-v100-3").node
    assert dict(node.labels) == {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": "dgx1-v100-3",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "dgx1-v100",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "32768",
        "nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB",
        "orrery.dev/simulated": "true",
    }
    assert dict(node.allocatable) == {
        "cpu": 80_000,
        "ephemeral-storage": 1 << 40,
        "memory": 512 << 30,
        "nvidia.com/gpu": 8,
        "orrery.dev/gpu-milli": 8000,
        "pods": 110,
    }


def test_a_machine_made_again_has_the_same_gpus_and_another_machine_has_others() -> None:
    shape = load_catalogue().shapes["l40s-4"]
    uuids = [device.uuid for device in expand(shape, "a").topology.devices]
    assert uuids == [device.uuid for device in expand(shape, "a").topology.devices]
    assert len({*uuids, *(device.uuid for device in expand(shape, "b").topology.devices)}) == 8


OPENB = [
    # Every kind of node of the trace: (cpu cores, memory GiB, GPUs, model, links of all its GPUs).
    (96, 384, 8, "G2", "NV12 x 28"),
    (128, 768, 8, "G3", "NV18 x 28"),
    (104, 512, 2, "T4", "SYS x 1"),
    (96, 384, 4, "T4", "PHB x 2, SYS x 4"),
    (16, 120, 2, "P100", "PIX x 1"),
    (64, 256, 2, "P100", "PIX x 1"),
    (8, 60, 1, "P100", ""),
    (32, 128, 4, "V100M16", "NV2 x 3, NV1 x 3"),
    (8, 32, 1, "V100M16", ""),
    (82, 336, 8, "V100M16", "NV2 x 8, NV1 x 8, SYS x 12"),
    (48, 368, 4, "V100M32", "NV2 x 3, NV1 x 3"),
    (128, 1024, 1, "A10", ""),
    (64, 256, 0, "", ""),
]


@pytest.mark.parametrize(("cores", "memory_gib", "gpus", "model", "links"), OPENB)
def test_a_row_of_the_openb_trace_becomes_a_machine(
    cores: int, memory_gib: int, gpus: int, model: str, links: str
) -> None:
    machine = openb_machine(load_catalogue(), "openb-node-0000", cores * 1000, memory_gib * 1024, gpus, model)
    allocatable, view = machine.node.allocatable, machine.topology
    assert (allocatable["cpu"], allocatable["memory"]) == (cores * 1000, memory_gib << 30)
    assert allocatable.get("nvidia.com/gpu", 0) == len(view.devices) == gpus
    assert allocatable.get("orrery.dev/gpu-milli", 0) == gpus * 1000
    assert {device.model for device in view.devices} == ({model} if gpus else set())
    assert describe_links(view, range(gpus)) == links
    assert {device.numa_node for device in view.devices} <= {node.id for node in view.numa_nodes}
    cpus = [parse_cpu_list(node.cpus) for node in view.numa_nodes]
    assert frozenset().union(*cpus) == frozenset(range(cores))
    assert sum(map(len, cpus)) == cores
    assert allocatable["pods"] > 110, "the trace knows no limit of pods a node"


def test_a_row_with_a_model_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="node x: GPU model 'H900' is none of A10, G2"):
        openb_machine(load_catalogue(), "x", 1000, 1024, 1, "H900")
    with pytest.raises(ValueError, match="no shape with A10 has 3 GPUs"):
        openb_machine(load_catalogue(), "x", 1000, 1024, 3, "A10")


def shipped() -> dict[str, Any]:
    text = resources.files("kubelet_sim.core").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    data = copy.deepcopy(yaml.safe_load(text))
    assert isinstance(data, dict)
    return data


WRONG = [
    (["version"], 2, "version: wanted 1"),
    (["shapes", "l40s-4", "memory"], "much", "shapes.l40s-4.memory: 'much' is not a quantity"),
    (["shapes", "l40s-4", "colour"], "red", "shapes.l40s-4.colour: unknown field; known: memory"),
    (["shapes", "l40s-4", "gpu"], "H900", "shapes.l40s-4.gpu: 'H900' is none of"),
    (["shapes", "l40s-4", "numa", 1, "gpus"], [1, 2, 3], r"shapes.l40s-4.numa\[1\].gpus: GPU 1 is also on numa\[0\]"),
    (
        ["shapes", "l40s-4", "numa", 1, "gpus"],
        [3, 4],
        "shapes.l40s-4.numa: GPUs are numbered .* GPU 2 is on no NUMA node",
    ),
    (["shapes", "l40s-4", "numa", 1, "cpus"], "95-191", r"shapes.l40s-4.numa\[1\].cpus: CPU 95 is also on numa\[0\]"),
    (["shapes", "l40s-4", "numa", 0, "cpus"], "9-3", r"numa\[0\].cpus: '9-3': 9-3 is no range"),
    (["shapes", "l40s-4", "numa", 0, "cpus"], "a-b", r"numa\[0\].cpus: 'a-b' is no CPU list"),
    (["shapes", "l40s-4", "pcie", 0, "groups"], [[0, 2]], r"pcie\[0\].groups\[0\]: NODE cannot join GPUs of different"),
    (["shapes", "l40s-4", "pcie", 0, "groups"], [[0, 9]], r"pcie\[0\].groups\[0\]: there is no GPU 9"),
    (["shapes", "l40s-4", "pcie", 0, "path"], "NEAR", r"pcie\[0\].path: 'NEAR' is none of PIX"),
    (["shapes", "dgx1-v100", "pcie", 1, "path"], "PIX", r"pcie\[1\].path: levels go from near to far"),
    (["shapes", "l40s-4", "nvlinks"], {"all": 4}, "nvlinks.all: a GPU of this model has 0 links, so 4 is not possible"),
    (["shapes", "dgx1-v100", "nvlinks", 2, 0], [0, 4], r"nvlinks.2\[1\]: the pair is named twice, with 2 and 2 links"),
    (["shapes", "dgx1-v100", "nvlinks", 1, 0], [3, 0], r"nvlinks.1\[0\]: the pair is named twice, with 2 and 1 links"),
    (["shapes", "dgx1-v100", "nvlinks", 1, 0], [0, 5], "nvlinks: GPU 5 has 7 links, and its model 6"),
    (["shapes", "dgx1-v100", "nvlinks", 1, 0], [1, 1], r"nvlinks.1\[0\]: a GPU is named twice"),
    (["shapes", "dgx-h100", "nics", 0, "numa"], 2, r"nics\[0\].numa: there is no NUMA node 2"),
    (["shapes", "dgx-h100", "nics", 0, "near"], {"NEAR": [0]}, r"nics\[0\].near.NEAR: unknown field"),
    (["shapes", "cpu-64", "gpu"], "T4", "shapes.cpu-64.gpu: a shape has a GPU model where"),
    (["shapes", "cpu-64", "numa"], [], "shapes.cpu-64.numa: a machine has at least one NUMA node"),
    (["trace_models", "G2", "shapes"], ["none"], r"trace_models.G2.shapes\[0\]: 'none' is none of"),
    (["gpus", "T4", "nvlinks"], -1, "gpus.T4.nvlinks: wanted a whole number from 0"),
]


@pytest.mark.parametrize(("place", "wrong", "message"), WRONG)
def test_a_machine_that_cannot_be_is_refused_with_its_place(place: list[Any], wrong: object, message: str) -> None:
    data = shipped()
    parse_catalogue(data)
    parent: Any = data
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = wrong
    with pytest.raises(CatalogueError, match=message):
        parse_catalogue(data)


def test_a_fleet_is_numbered_by_shape() -> None:
    machines = fleet_machines(load_catalogue(), ["dgx-h100=2", "cpu-16 = 1", "l40s-4=0"])
    assert [machine.node.name for machine in machines] == ["dgx-h100-0", "dgx-h100-1", "cpu-16-0"]


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        (["dgx-h100"], "'dgx-h100' is not shape=count"),
        (["dgx-h100=-1"], "is not shape=count"),
        (["dgx-h900=1"], "'dgx-h900' is no shape; there are a10-1"),
        (["cpu-16=1", "cpu-16=2"], "named twice"),
        ([f"cpu-16={FLEET_MACHINES_MAX + 1}"], "more than"),
    ],
)
def test_a_fleet_that_makes_no_sense_is_refused(fleet: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fleet_machines(load_catalogue(), fleet)
