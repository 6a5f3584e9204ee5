"""Names that several processes must agree on: labels, annotations, resources, leases."""

# Kubernetes' own.
RESOURCE_CPU = "cpu"
RESOURCE_MEMORY = "memory"
RESOURCE_EPHEMERAL_STORAGE = "ephemeral-storage"
RESOURCE_PODS = "pods"
RESOURCE_GPU = "nvidia.com/gpu"
LABEL_ZONE = "topology.kubernetes.io/zone"
LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
LABEL_GPU_PRODUCT = "nvidia.com/gpu.product"
LABEL_GPU_COUNT = "nvidia.com/gpu.count"
NAMESPACE_DEFAULT = "default"
NAMESPACE_SYSTEM = "kube-system"
NAMESPACE_NODE_LEASE = "kube-node-lease"
# The condition of a pod that goes for another's sake, and the reason that the scheduler gives.
CONDITION_DISRUPTION_TARGET = "DisruptionTarget"
REASON_PREEMPTION = "PreemptionByScheduler"
SCHEDULER_NAME_DEFAULT = "default-scheduler"

# Ours.
# Thousandths of GPU that a pod asks for in all; with ANNOTATION_GPU_COUNT they are split evenly over that many devices.
RESOURCE_GPU_MILLI = "orrery.dev/gpu-milli"
ANNOTATION_GPU_COUNT = "orrery.dev/gpu-count"
# "V100M16|V100M32": the models that will do.
ANNOTATION_GPU_MODELS = "orrery.dev/gpu-models"
# W3C traceparent of the pod's creation: the trace that everything about the pod joins.
ANNOTATION_TRACEPARENT = "orrery.dev/traceparent"
# Seconds that a simulated container runs before it succeeds; absent: the pod runs until it is deleted, unless its
# restartPolicy is Never or OnFailure.
ANNOTATION_RUN_SECONDS = "orrery.dev/run-seconds"
# On a Node: a kubelet_sim may play this machine.
LABEL_SIMULATED = "orrery.dev/simulated"
LEASE_SCHEDULER = "orrery-scheduler"
