"""The openb trace (Alibaba, cluster-trace-gpu-v2023) as it is published: two CSV files, nodes and pods.

A row is checked as it is read; what is wrong is said with file, line and column. Columns that a replay does not need
(qos, phases, times) may be absent. `gpu_milli` is what the pod asks of each of its `num_gpu` devices; 1000 is a whole one.
"""

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from services.lab.errors import LabError
from services.model.devices import MILLI_WHOLE

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
GPUS_MAX = 16
_AMOUNT_MAX = 10**12

Row = TypeVar("Row", "TraceNode", "TracePod")


class TraceError(LabError):
    """A file of the trace cannot be used; the message has file, line and column."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class TracePod:
    """`models`: the GPU models that will do, empty for any."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...]

    @property
    def gpu_milli_total(self) -> int:
        return self.gpus * self.gpu_milli


class _Cells:
    """One row with its place, for messages."""

    def __init__(self, source: str, line: int, cells: Mapping[str, str]) -> None:
        self._source = source
        self._line = line
        self._cells = cells

    def wrong(self, column: str, message: str) -> TraceError:
        return TraceError(f"{self._source}, line {self._line}, column {column}: {message}")

    def text(self, column: str) -> str:
        return self._cells.get(column, "").strip()

    def name(self, column: str) -> str:
        text = self.text(column)
        if not text or not all(
            part and part.isascii() and part.replace("-", "a").isalnum() for part in text.split(".")
        ):
            raise self.wrong(column, f"{text!r} is no name of a Kubernetes object")
        return text.lower()

    def number(self, column: str, low: int, high: int = _AMOUNT_MAX) -> int:
        text = self.text(column)
        if not (text.isascii() and text.isdigit()):
            raise self.wrong(column, f"wanted a whole number, found {text!r}")
        if not low <= int(text) <= high:
            raise self.wrong(column, f"{text} is not between {low} and {high}")
        return int(text)


def read_nodes(path: Path, *, models: Collection[str] = ()) -> list[TraceNode]:
    """`models`: the GPU models that are known; empty for any. Raises TraceError."""

    def parse(cells: _Cells) -> TraceNode:
        row = _node(cells)
        if row.gpus and models and row.model not in models:
            raise cells.wrong("model", f"{row.model!r} is no GPU model that is known: {', '.join(sorted(models))}")
        return row

    return _read(path, NODE_COLUMNS, parse)


def read_pods(path: Path) -> list[TracePod]:
    """Raises TraceError."""
    return _read(path, POD_COLUMNS, _pod)


def _node(cells: _Cells) -> TraceNode:
    gpus = cells.number("gpu", 0, GPUS_MAX)
    model = cells.text("model")
    if gpus and not model:
        raise cells.wrong("model", f"a node with {gpus} GPUs names no model")
    return TraceNode(cells.name("sn"), cells.number("cpu_milli", 1), cells.number("memory_mib", 1), gpus, model)


def _pod(cells: _Cells) -> TracePod:
    gpus = cells.number("num_gpu", 0, GPUS_MAX)
    milli = cells.number("gpu_milli", 0, MILLI_WHOLE)
    if gpus == 0 and milli:
        raise cells.wrong("gpu_milli", f"{milli} of no GPU: num_gpu is 0")
    if gpus and not milli:
        raise cells.wrong("gpu_milli", f"0 of each of {gpus} GPUs")
    models = tuple(dict.fromkeys(part.strip() for part in cells.text("gpu_spec").split("|") if part.strip()))
    return TracePod(
        cells.name("name"), cells.number("cpu_milli", 0), cells.number("memory_mib", 0), gpus, milli, models
    )


def _read(path: Path, columns: Sequence[str], parse: Callable[[_Cells], Row]) -> list[Row]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(_rows(str(path), file, columns, parse))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not UTF-8 text (byte {error.start})") from error
    if not rows:
        raise TraceError(f"{path} has a header and no rows")
    return rows


def _rows(source: str, lines: Iterable[str], columns: Sequence[str], parse: Callable[[_Cells], Row]) -> Iterator[Row]:
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    seen: dict[str, int] = {}
    try:
        for values in reader:
            if not any(value.strip() for value in values):
                continue
            if header is None:
                header = [value.strip() for value in values]
                missing = [column for column in columns if column not in header]
                if missing:
                    raise TraceError(
                        f"{source}, line {reader.line_num}, column {missing[0]}: the header lacks it; "
                        f"wanted {', '.join(columns)}"
                    )
                continue
            if len(values) != len(header):
                raise TraceError(
                    f"{source}, line {reader.line_num}, column {header[min(len(values), len(header) - 1)]}: "
                    f"{len(values)} values for {len(header)} columns"
                )
            cells = _Cells(source, reader.line_num, dict(zip(header, values, strict=True)))
            row = parse(cells)
            if row.name in seen:
                raise cells.wrong(header[0], f"{row.name!r} stands already in line {seen[row.name]}")
            seen[row.name] = reader.line_num
            yield row
    except csv.Error as error:
        raise TraceError(f"{source}, line {reader.line_num}, column 1: {error}") from error
    if header is None:
        raise TraceError(f"{source}, line 1, column {columns[0]}: the file is empty")
