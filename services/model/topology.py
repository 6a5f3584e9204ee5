"""A machine's hardware in words: the matrix of `nvidia-smi topo -m`, and the links of a set of GPUs in one line.

Between two GPUs the matrix shows NV# where there is NVLink and the PCIe path elsewhere. How two NICs reach each other is
not reported by a node; it follows from their paths to the GPUs, since PCIe is a tree: two NICs are as near as the nearest
GPU is to the farther of them.
"""

from collections import Counter
from collections.abc import Sequence

from services.model.fabric import PATH_RANK, mutual_links
from services.model.node import NicView, NumaView, TopologyView

NOT_KNOWN = "N/A"
SELF = " X "
_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def pair_word(view: TopologyView, a: int, b: int) -> str:
    """What the matrix shows between two GPUs: NV18, PIX, ..."""
    links = mutual_links(view.nvlinks, a, b)
    if links:
        return f"NV{links}"
    if a < len(view.paths) and b < len(view.paths[a]) and view.paths[a][b] in PATH_RANK:
        return view.paths[a][b]
    return NOT_KNOWN


def describe_links(view: TopologyView, indices: Sequence[int]) -> str:
    """The pairs of a set of GPUs by kind, best first: "NV18 x 28"; "NV2 x 4, NV1 x 2"; empty for fewer than two."""
    members = sorted(indices)
    words = Counter(pair_word(view, a, b) for at, a in enumerate(members) for b in members[at + 1 :])
    return ", ".join(f"{word} x {count}" for word, count in sorted(words.items(), key=lambda item: _rank(item[0])))


def _rank(word: str) -> tuple[int, int]:
    """NVLinks before PCIe paths, more of them before fewer."""
    if word.startswith("NV"):
        return (0, -int(word[2:]))
    return (1, -PATH_RANK.get(word, 0))


def topology_matrix(view: TopologyView) -> str:
    """Exactly the text that `nvidia-smi topo -m` prints, tabs included; ends with a newline."""
    gpus = range(len(view.devices))
    nics = range(len(view.nics))
    header = [
        "",
        *(f"GPU{gpu}" for gpu in gpus),
        *(f"NIC{nic}" for nic in nics),
        "CPU Affinity",
        "NUMA Affinity",
        "GPU NUMA ID",
    ]
    lines = ["\t".join(header)]
    numa_by_id = {node.id: node for node in view.numa_nodes}
    for gpu in gpus:
        cells = [f"GPU{gpu}"]
        cells += [SELF if other == gpu else pair_word(view, gpu, other) for other in gpus]
        cells += [_nic_path(view.nics[nic], gpu) for nic in nics]
        lines.append("\t".join([*cells, *_affinity(numa_by_id.get(view.devices[gpu].numa_node))]))
    for nic in nics:
        cells = [f"NIC{nic}"]
        cells += [_nic_path(view.nics[nic], gpu) for gpu in gpus]
        cells += [SELF if other == nic else _nic_pair(view.nics[nic], view.nics[other]) for other in nics]
        lines.append("\t".join([*cells, "", "", "", ""]))
    text = "\n".join(lines) + "\n" + _LEGEND
    if view.nics:
        text += "\nNIC Legend:\n\n" + "".join(f"  NIC{nic}: {view.nics[nic].name}\n" for nic in nics)
    return text + "\n"


def _affinity(numa: NumaView | None) -> list[str]:
    """CPU list, NUMA node (the tool leaves a tab after it) and the NUMA node that the GPU itself is, which none here is."""
    if numa is None:
        return [NOT_KNOWN, NOT_KNOWN, "", NOT_KNOWN]
    return [numa.cpus, str(numa.id), "", NOT_KNOWN]


def _nic_path(nic: NicView, gpu: int) -> str:
    return nic.gpu_paths[gpu] if gpu < len(nic.gpu_paths) else NOT_KNOWN


def _nic_pair(a: NicView, b: NicView) -> str:
    """The nearest level of the PCIe tree that holds both; SYS between NUMA nodes."""
    if a.numa_node != b.numa_node:
        return "SYS"
    through = [
        min((left, right), key=lambda word: PATH_RANK.get(word, 0))
        for left, right in zip(a.gpu_paths, b.gpu_paths, strict=False)
    ]
    return max([*through, "NODE"], key=lambda word: PATH_RANK.get(word, 0))
