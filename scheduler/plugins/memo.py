"""Columns computed once: for as long as no node's static facts change, or again only for the rows that changed."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np

from scheduler.core.table import I64, NodeTable

STATIC_MAX = 256
# A column takes 8 bytes a node, and the plugins keep three for each kind of request.
ROWS_MAX = 128
# So many rows take Python as long as NumPy takes for a short array.
ONE_BY_ONE_MAX = 16
T = TypeVar("T")


class StaticMemo(Generic[T]):
    """Keyed by what the column depends on besides the nodes. Least recently used out."""

    def __init__(self) -> None:
        self._version = -1
        self._table: NodeTable | None = None
        self._known: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, nodes: NodeTable, compute: Callable[[], T]) -> T:
        if self._version != nodes.static_version or self._table is not nodes:
            self._known.clear()
            self._version, self._table = nodes.static_version, nodes
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        value = self._known[key] = compute()
        if len(self._known) > STATIC_MAX:
            self._known.popitem(last=False)
        return value


class RowMemo:
    """Keyed by what a column depends on besides each row's own state. Whoever gets a column does not write it."""

    def __init__(self) -> None:
        self._table: NodeTable | None = None
        self._known: OrderedDict[Hashable, tuple[int, I64]] = OrderedDict()

    def get(
        self, key: Hashable, nodes: NodeTable, compute: Callable[[I64 | slice], I64], one: Callable[[int], int] | None
    ) -> I64:
        """Only rows that changed since the last time are asked: few by `one`, where it is given, else by `compute`, which
        answers for some rows or, with a slice, for all.
        """
        if self._table is not nodes:
            self._known.clear()
            self._table = nodes
        known = self._known.get(key)
        now = nodes.changes.now
        if known is not None:
            since, column = known
            if since == now and len(column) == nodes.size:
                return column
            rows = nodes.changes.since(since) if len(column) == nodes.size else None
            if rows is not None:
                if one is not None and len(rows) <= ONE_BY_ONE_MAX:
                    for row in rows:
                        column[row] = one(row)
                elif rows:
                    column[rows] = compute(np.array(rows, dtype=np.int64))
                self._known[key] = (now, column)
                self._known.move_to_end(key)
                return column
        column = compute(slice(0, nodes.size))
        self._known[key] = (now, column)
        self._known.move_to_end(key)
        if len(self._known) > ROWS_MAX:
            self._known.popitem(last=False)
        return column
