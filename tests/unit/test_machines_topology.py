"""The matrix of `nvidia-smi topo -m`, the summary of links, and NodeTopology's way over the wire."""

from dataclasses import replace

from protos.orrery.v1.node_topology_pb2 import NodeTopology
from services.model.node import NicView, NumaView, TopologyView
from services.model.topology import describe_links, pair_word, topology_matrix
from services.wire.topology import project_topology, topology_message, topology_view
from tests.unit.machines import bridge_436, dgx1_v100, dgx_h100, machine


def small() -> TopologyView:
    view = machine(2, links={12: [(0, 1)]}, numa=[0, 1])
    numa = (NumaView(0, "0-3,8-11", 0, 0), NumaView(1, "4-7,12-15", 0, 1))
    nics = (NicView("mlx5_0", 200, 0, ("PXB", "SYS")), NicView("mlx5_1", 200, 1, ("SYS", "PIX")))
    return replace(view, numa_nodes=numa, nics=nics)


MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV12\tPXB\tSYS\t0-3,8-11\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tPIX\t4-7,12-15\t1\t\tN/A\n"
    "NIC0\tPXB\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t\n"
    "\n"
    "Legend:\n"
    "\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
    "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
    "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
    "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
    "  PIX  = Connection traversing at most a single PCIe bridge\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\n"
    "NIC Legend:\n"
    "\n"
    "  NIC0: mlx5_0\n"
    "  NIC1: mlx5_1\n"
    "\n"
)


def test_the_matrix_is_what_nvidia_smi_prints() -> None:
    assert topology_matrix(small()) == MATRIX


def test_a_machine_without_nics_has_no_nic_legend() -> None:
    text = topology_matrix(replace(small(), nics=()))
    assert text.startswith("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n")
    assert "NIC" not in text


def test_a_machine_without_gpus_prints_only_its_legend() -> None:
    text = topology_matrix(machine(0))
    assert text.startswith("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n\nLegend:\n")


def test_nics_on_one_switch_are_as_near_as_their_gpus() -> None:
    nics = (
        NicView("a", 200, 0, ("PXB", "SYS")),
        NicView("b", 200, 0, ("PXB", "SYS")),
        NicView("c", 200, 0, ("NODE", "SYS")),
        NicView("d", 200, 1, ("SYS", "PXB")),
    )
    row = topology_matrix(replace(small(), nics=nics)).splitlines()[3]
    assert row.split("\t")[3:7] == [" X ", "PXB", "NODE", "SYS"]


def test_a_link_of_one_side_is_shown_as_the_path_below_it() -> None:
    view = replace(small(), nvlinks=((0, 12), (0, 0)))
    assert pair_word(view, 0, 1) == "SYS"


def test_links_of_a_set_are_summed_up_best_first() -> None:
    assert describe_links(dgx_h100(), range(8)) == "NV18 x 28"
    assert describe_links(dgx1_v100(), [0, 1, 2, 3]) == "NV2 x 3, NV1 x 3"
    assert describe_links(dgx1_v100(), [5, 0, 1]) == "NV2 x 1, NV1 x 1, SYS x 1"
    assert describe_links(bridge_436(), [2, 3]) == "NODE x 1"
    assert describe_links(dgx_h100(), [3]) == ""


def test_a_topology_is_the_same_after_the_wire() -> None:
    view = small()
    assert topology_view(topology_message(view).SerializeToString()) == view
    assert project_topology(topology_message(dgx1_v100())) == dgx1_v100()


def test_pairs_that_name_no_gpu_are_left_out_and_absent_pairs_are_far() -> None:
    message = NodeTopology()
    for index in range(3):
        message.spec.gpus.add(index=index, uuid=f"GPU-{index}")
    message.spec.gpu_links.add(a=0, b=7, path="PIX", nvlinks=4)
    message.spec.gpu_links.add(a=1, b=1, path="PIX", nvlinks=4)
    message.spec.gpu_links.add(a=2, b=1, path="PIX", nvlinks=4)
    view = project_topology(message)
    assert view.nvlinks == ((0, 0, 0), (0, 0, 4), (0, 4, 0))
    assert view.paths == (("X", "SYS", "SYS"), ("SYS", "X", "PIX"), ("SYS", "PIX", "X"))
