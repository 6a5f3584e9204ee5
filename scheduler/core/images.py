"""Which nodes have which image: a size and a column for each name.

An image's size is that which the first node told of it, as in kube-scheduler's cache (1.36): nodes that report the same
name with other sizes do not change it while one of the nodes has it.
"""

from scheduler.core.row_counts import RowCounts
from services.model.node import Image


class ImageState:
    """`rows` is 1 where a node has the image."""

    __slots__ = ("rows", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.rows = RowCounts()

    @property
    def nodes(self) -> int:
        """How many nodes have it."""
        return len(self.rows.rows)


class ImageIndex:
    """Image states by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, ImageState] = {}
        self._names: dict[int, tuple[str, ...]] = {}

    def put(self, row: int, images: tuple[Image, ...]) -> None:
        """What the node of a row has now; () when the node is gone."""
        before = self._names.pop(row, ())
        now = {name: image.size_bytes for image in reversed(images) for name in image.names}
        for name, size in now.items():
            state = self.by_name.setdefault(name, ImageState(size))
            if row not in state.rows.rows:
                state.rows.add(row, 1)
        for name in before:
            if name not in now:
                state = self.by_name[name]
                state.rows.add(row, -1)
                if not state.nodes:
                    del self.by_name[name]
        if now:
            self._names[row] = tuple(now)
