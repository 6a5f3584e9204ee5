"""A column computed once for each spec while no node's static facts change."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from scheduler.core.table import NodeTable
from services.model.pod import PodSpecView

SPECS_MAX = 256
T = TypeVar("T")


class StaticMemo(Generic[T]):
    """Keyed by the identity of the spec's projection, which identical pods share. Least recently used out."""

    def __init__(self) -> None:
        self._version = -1
        self._table: NodeTable | None = None
        self._known: OrderedDict[int, tuple[PodSpecView, T]] = OrderedDict()

    def get(self, spec: PodSpecView, nodes: NodeTable, compute: Callable[[], T]) -> T:
        if self._version != nodes.static_version or self._table is not nodes:
            self._known.clear()
            self._version, self._table = nodes.static_version, nodes
        known = self._known.get(id(spec))
        if known is not None:
            self._known.move_to_end(id(spec))
            return known[1]
        value = compute()
        # The spec itself is kept, so that its identity stays its own.
        self._known[id(spec)] = (spec, value)
        if len(self._known) > SPECS_MAX:
            self._known.popitem(last=False)
        return value
