"""Which rows of the node table changed, in order: so that what was computed for all rows is made new for those alone."""

# Beyond this many changes it is cheaper to look at every row.
REMEMBERED_MAX = 1024


class RowChanges:
    """`now` moves with each change. `last`: what it was after each row's last one."""

    __slots__ = ("_begin", "_rows", "last", "now")

    def __init__(self) -> None:
        self.now = 0
        self.last: dict[int, int] = {}
        self._begin = 0
        self._rows: list[int] = []

    def note(self, row: int) -> None:
        self.now += 1
        self.last[row] = self.now
        self._rows.append(row)
        if len(self._rows) > 2 * REMEMBERED_MAX:
            del self._rows[:REMEMBERED_MAX]
            self._begin += REMEMBERED_MAX

    def since(self, then: int) -> list[int] | None:
        """The rows that changed since `now` was `then`; None when that is forgotten."""
        if then < self._begin or self.now - then > REMEMBERED_MAX:
            return None
        return list(dict.fromkeys(self._rows[then - self._begin :]))
