"""The one literal registry of plugins, and the default profile: Kubernetes' order and weights, and our GPU plugin."""

from collections.abc import Callable

from scheduler.core.framework import Plugin
from scheduler.core.profile import Profile
from scheduler.plugins.default_binder import DefaultBinder
from scheduler.plugins.default_preemption import DefaultPreemption
from scheduler.plugins.gpu_topology import GpuTopology
from scheduler.plugins.image_locality import ImageLocality
from scheduler.plugins.inter_pod_affinity import InterPodAffinity
from scheduler.plugins.node_affinity import NodeAffinity, NodeName
from scheduler.plugins.node_ports import NodePorts
from scheduler.plugins.node_resources import NodeResourcesBalancedAllocation, NodeResourcesFit
from scheduler.plugins.pod_topology_spread import PodTopologySpread
from scheduler.plugins.queue_plugins import PrioritySort, SchedulingGates
from scheduler.plugins.taints import NodeUnschedulable, TaintToleration
from services.model.names import SCHEDULER_NAME_DEFAULT

# In the order of Kubernetes' default profile (1.36); GpuTopology last, since the cheap plugins leave it fewer nodes.
PLUGINS: dict[str, Callable[[], Plugin]] = {
    "PrioritySort": PrioritySort,
    "SchedulingGates": SchedulingGates,
    "NodeUnschedulable": NodeUnschedulable,
    "NodeName": NodeName,
    "TaintToleration": TaintToleration,
    "NodeAffinity": NodeAffinity,
    "NodePorts": NodePorts,
    "NodeResourcesFit": NodeResourcesFit,
    "NodeResourcesBalancedAllocation": NodeResourcesBalancedAllocation,
    "PodTopologySpread": PodTopologySpread,
    "InterPodAffinity": InterPodAffinity,
    "ImageLocality": ImageLocality,
    "GpuTopology": GpuTopology,
    "DefaultPreemption": DefaultPreemption,
    "DefaultBinder": DefaultBinder,
}
# Kubernetes' weights; GpuTopology outweighs the spreading of LeastAllocated, which would scatter GPUs.
WEIGHTS: dict[str, int] = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "ImageLocality": 1,
    "GpuTopology": 5,
}


def default_profile(scheduler_name: str = SCHEDULER_NAME_DEFAULT) -> Profile:
    """All registered plugins with their default arguments and weights."""
    return Profile(scheduler_name, [make() for make in PLUGINS.values()], WEIGHTS)
