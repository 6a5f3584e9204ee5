"""A small, sound cluster as etcd would hold it, for tests to spoil: two nodes, a pod in each state, ledgers that add up."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protos.orrery.v1.ledger_pb2 import LedgerReturned, LedgerTaken
from protos.orrery.v1.node_pb2 import Node
from protos.orrery.v1.node_topology_pb2 import NodeTopology
from protos.orrery.v1.pod_pb2 import Pod

GI = 1024**3
HEADER = b"orr1" + bytes((1, 1)) + (7).to_bytes(2, "big") + b"w" * 16
GPU, GPU_MILLI = "nvidia.com/gpu", "orrery.dev/gpu-milli"


@dataclass
class StoredCluster:
    """Messages by name; `entries` are the keys and values."""

    nodes: dict[str, Node] = field(default_factory=dict)
    topologies: dict[str, NodeTopology] = field(default_factory=dict)
    taken: dict[str, LedgerTaken] = field(default_factory=dict)
    returned: dict[str, LedgerReturned] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        for name, node in self.nodes.items():
            yield f"/orrery/registry/core/nodes/{name}".encode(), HEADER + node.SerializeToString()
        for name, topology in self.topologies.items():
            key = f"/orrery/registry/orrery.dev/nodetopologies/{name}"
            yield key.encode(), HEADER + topology.SerializeToString()
        for name, taken in self.taken.items():
            yield f"/orrery/ledger/{name}/taken".encode(), taken.SerializeToString()
        for name, returned in self.returned.items():
            yield f"/orrery/ledger/{name}/returned".encode(), returned.SerializeToString()
        for name, pod in self.pods.items():
            yield f"/orrery/registry/core/pods/default/{name}".encode(), HEADER + pod.SerializeToString()


def make_node(name: str, allocatable: Mapping[str, str]) -> Node:
    node = Node()
    node.metadata.name, node.metadata.uid = name, f"uid-{name}"
    node.status.allocatable.update(allocatable)
    return node


def make_pod(name: str, requests: Mapping[str, str]) -> Pod:
    pod = Pod()
    pod.metadata.namespace, pod.metadata.name, pod.metadata.uid = "default", name, f"uid-{name}"
    pod.spec.scheduler_name = "default-scheduler"
    container = pod.spec.containers.add(name="main", image="app")
    container.resources.requests.update(requests)
    pod.status.phase = "Pending"
    return pod


def place(pod: Pod, node: str, resources: Mapping[str, int], devices: Sequence[tuple[int, int]] = ()) -> Pod:
    """Binds; `devices` are (index, milli)."""
    pod.spec.node_name = node
    pod.status.phase = "Running"
    pod.placed.node_name, pod.placed.node_uid = node, f"uid-{node}"
    pod.placed.resources.update(resources)
    for index, milli in devices:
        pod.placed.devices.add(index=index, milli=milli)
    return pod


def sound_cluster() -> StoredCluster:
    """gpu-0 (2 GPUs): train holds device 0, share 300 of device 1, done has given device 0 back. cpu-0: web. big waits."""
    cluster = StoredCluster()
    gpu = make_node("gpu-0", {"cpu": "16", "memory": "64Gi", "pods": "10", GPU: "2", GPU_MILLI: "2000"})
    cpu = make_node("cpu-0", {"cpu": "4", "memory": "8Gi", "pods": "2"})
    cluster.nodes = {"gpu-0": gpu, "cpu-0": cpu}
    topology = NodeTopology()
    topology.metadata.name = "gpu-0"
    for index in range(2):
        topology.spec.gpus.add(index=index, uuid=f"GPU-{index}", model="H100", memory="80Gi")
    cluster.topologies = {"gpu-0": topology}
    train = place(make_pod("train", {"cpu": "8", GPU: "1"}), "gpu-0", {"cpu": 8000, GPU: 1}, [(0, 1000)])
    share = place(make_pod("share", {"cpu": "1", GPU_MILLI: "300"}), "gpu-0", {"cpu": 1000, GPU_MILLI: 300}, [(1, 300)])
    done = place(make_pod("done", {"cpu": "8", GPU: "1"}), "gpu-0", {"cpu": 8000, GPU: 1}, [(0, 1000)])
    done.status.phase = "Succeeded"
    web = place(make_pod("web", {"cpu": "500m", "memory": "1Gi"}), "cpu-0", {"cpu": 500, "memory": GI})
    big = make_pod("big", {"cpu": "1", GPU: "2"})
    cluster.pods = {"train": train, "share": share, "done": done, "web": web, "big": big}
    gpu_taken = LedgerTaken(node_uid="uid-gpu-0", device_milli=[2000, 300], pods=3)
    gpu_taken.allocatable.update({"cpu": 16_000, "memory": 64 * GI, "pods": 10, GPU: 2, GPU_MILLI: 2000})
    gpu_taken.resources.update({"cpu": 17_000, GPU: 2, GPU_MILLI: 300})
    for index in range(2):
        gpu_taken.devices.add(uuid=f"GPU-{index}", model="H100")
    cpu_taken = LedgerTaken(node_uid="uid-cpu-0", pods=1)
    cpu_taken.allocatable.update({"cpu": 4_000, "memory": 8 * GI, "pods": 2})
    cpu_taken.resources.update({"cpu": 500, "memory": GI})
    cluster.taken = {"gpu-0": gpu_taken, "cpu-0": cpu_taken}
    returned = LedgerReturned(device_milli=[1000], pods=1)
    returned.resources.update({"cpu": 8_000, GPU: 1})
    cluster.returned = {"gpu-0": returned}
    return cluster
