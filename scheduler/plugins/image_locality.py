"""ImageLocality: nodes that have the pod's images already, weighed by size and by how many nodes have them."""

import numpy as np

from scheduler.core.framework import SCORE_MAX, CycleState, Plugin
from scheduler.core.table import I64, NodeTable
from services.model.pod import PodView

_MIB = 1 << 20
# Below the first an image does not matter; a container's share of the second is the most that counts (1.36).
BYTES_MIN = 23 * _MIB
BYTES_MAX_A_CONTAINER = 1000 * _MIB


class ImageLocality(Plugin):
    name = "ImageLocality"

    def score(self, _state: CycleState, pod: PodView, nodes: NodeTable, feasible: I64) -> I64 | int:
        """100 * (clamp(sum, min, max) - min) // (max - min), where an image counts int(size * nodes with it / nodes)."""
        total: I64 | None = None
        for image in pod.spec.images:
            state = nodes.images.by_name.get(normalized_name(image))
            if state is not None:
                share = int(float(state.size_bytes) * (float(state.nodes) / float(nodes.count)))
                here = nodes.take(state.rows.column(nodes.size), feasible) * share
                total = here if total is None else total + here
        if total is None:
            return 0
        most = BYTES_MAX_A_CONTAINER * len(pod.spec.images)
        return SCORE_MAX * (np.clip(total, BYTES_MIN, most) - BYTES_MIN) // (most - BYTES_MIN)


def normalized_name(image: str) -> str:
    """An image without a tag is its `:latest`."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
