"""Topology domains: the values of a node label, and sums over the nodes that share one."""

from dataclasses import dataclass

import numpy as np

from scheduler.core.columns import I64, Bools


@dataclass(frozen=True, slots=True)
class Domains:
    """The domains of one topology key. `places`: by row, 1 + the number of the domain, 0 without the label. `labelled`: the
    rows that have the label.
    """

    places: I64
    count: int
    labelled: Bools

    def sums(self, amounts: I64, rows: Bools | None = None) -> I64:
        """By place: the sum of `amounts` over the rows there; place 0 is 0. `rows`: those that count."""
        if rows is not None:
            amounts = np.where(rows, amounts, 0)
        totals = np.bincount(self.places, weights=amounts, minlength=self.count + 1)
        totals[0] = 0
        return totals.astype(np.int64)

    def inhabited(self, rows: Bools) -> Bools:
        """By place: whether one of `rows` is there; place 0 is not."""
        there = np.zeros(self.count + 1, dtype=np.bool_)
        there[self.places[rows]] = True
        there[0] = False
        return there
