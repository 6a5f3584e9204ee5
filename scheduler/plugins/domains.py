"""Topology domains: the values of a node label, and sums over the nodes that share one."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.core.table import I32, I64, Bools, NodeTable

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Domains:
    """The domains of one topology key. `places`: by row, 1 + the number of the domain, 0 without the label."""

    places: I64
    count: int

    @property
    def labelled(self) -> Bools:
        """The rows that have the label."""
        return self.places > 0

    def sums(self, amounts: I64, rows: Bools | None = None) -> I64:
        """By place: the sum of `amounts` over the rows there; place 0 is 0. `rows`: those that count."""
        if rows is not None:
            totals = np.bincount(self.places[rows], weights=amounts[rows], minlength=self.count + 1)
        else:
            totals = np.bincount(self.places, weights=amounts, minlength=self.count + 1)
        totals[0] = 0
        return totals.astype(np.int64)

    def inhabited(self, rows: Bools) -> Bools:
        """By place: whether one of `rows` is there; place 0 is not."""
        there = np.zeros(self.count + 1, dtype=np.bool_)
        there[self.places[rows]] = True
        there[0] = False
        return there


def domains_of(nodes: NodeTable, topology_key: str) -> Domains:
    """The domains of `topology_key` over all rows of the table."""
    column: I32
    column, values = nodes.label_column(topology_key)
    return Domains(column.astype(np.int64) + 1, len(values))
