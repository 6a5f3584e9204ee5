"""A tally of recorded decisions as a person reads it."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from services.lab.conformance import DOCUMENTED_OTHERWISE, PARTS, Difference, Tally

ANSWER_CHARACTERS_MAX = 2000


def report(tally: Tally, differences: int) -> Iterator[Table | Text]:
    """Agreement by family and by part, then the first differences with both answers."""
    if tally.checked:
        yield _table("FAMILY", sorted(tally.by_family), tally.by_family)
        yield Text()
        yield _table("PART", [part for part in PARTS if part in tally.by_part], tally.by_part)
        yield Text()
    for difference in tally.differences[:differences]:
        yield _difference(difference)
    hidden = len(tally.differences) - differences
    if hidden > 0:
        yield Text(f"... and {hidden} more differences (--differences {len(tally.differences)} shows all)")
    if tally.apart:
        yield Text(
            f"{tally.apart} cases tagged {DOCUMENTED_OTHERWISE} counted apart: there we follow Kubernetes' documentation, "
            f"not its code; {tally.apart_agree} agree all the same"
        )
    yield Text(
        f"{tally.agree} of {tally.checked} checked cases agree in every part"
        if tally.checked
        else "nothing was checked"
    )


def _table(title: str, names: list[str], counts: Mapping[str, Counter[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column(title)
    for heading in ("CHECKED", "AGREE", "%"):
        table.add_column(heading, justify="right")
    for name in names:
        checked, agree = counts[name]["checked"], counts[name]["agree"]
        # Rounded down: 100 stands for all of them.
        table.add_row(name, str(checked), str(agree), str(100 * agree // checked))
    return table


def _difference(difference: Difference) -> Text:
    lines = (
        f"{difference.case}, {difference.part}",
        f"  kube-scheduler  {_shown(difference.expected)}",
        f"  ours            {_shown(difference.ours)}",
    )
    return Text("\n".join(lines))


def _shown(answer: Any) -> str:
    text = json.dumps(answer, sort_keys=True, default=str)
    return text if len(text) <= ANSWER_CHARACTERS_MAX else f"{text[:ANSWER_CHARACTERS_MAX]} ..."
