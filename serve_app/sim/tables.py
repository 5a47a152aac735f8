"""Tables of measurements in files. What is wrong with one becomes a line that names file, column and remedy."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray


class BadInput(ValueError):
    """One line for a person: the file or option, the column, what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text by column. ``lines``: each row's line in the file. ``dropped``: failed rows that were left out."""

    path: Path
    cells: Mapping[str, Sequence[str]]
    lines: Sequence[int]
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.lines)

    def numbers(self, column: str, *, least: float = 0.0) -> NDArray[np.float64]:
        """Finite numbers, none below ``least``."""
        values = np.empty(len(self), dtype=np.float64)
        for row, cell in enumerate(self.cells[column]):
            try:
                value = float(cell)
            except ValueError:
                raise self._bad(column, row, "is no number") from None
            if not math.isfinite(value):
                raise self._bad(column, row, "is not finite")
            if value < least:
                raise self._bad(column, row, f"is below {least:g}")
            values[row] = value
        return values

    def counts(self, column: str, *, least: int = 0) -> NDArray[np.int64]:
        """Whole numbers, none below ``least``."""
        values = self.numbers(column, least=float(least))
        whole = values.astype(np.int64)
        if (broken := np.flatnonzero(whole != values)).size:
            raise self._bad(column, int(broken[0]), "is no whole number")
        return whole

    def group(self, *columns: str) -> dict[tuple[str, ...], Table]:
        """The rows of each combination of values, in the order in which combinations appear."""
        rows: dict[tuple[str, ...], list[int]] = {}
        for row, key in enumerate(zip(*(self.cells[column] for column in columns), strict=True)):
            rows.setdefault(key, []).append(row)
        return {key: self._select(chosen) for key, chosen in rows.items()}

    def without(self, failed: Callable[[Mapping[str, str]], bool]) -> Table:
        """The rows that did not fail, and how many did. Raises ``BadInput`` if none is left."""
        names = list(self.cells)
        rows = zip(*self.cells.values(), strict=True)
        kept = [row for row, cells in enumerate(rows) if not failed(dict(zip(names, cells, strict=True)))]
        if not kept:
            raise BadInput(f"{self.path}: all {len(self)} rows failed; give a trace with answers in it")
        chosen = self._select(kept)
        return Table(self.path, chosen.cells, chosen.lines, len(self) - len(kept))

    def _select(self, rows: Sequence[int]) -> Table:
        cells = {name: [column[row] for row in rows] for name, column in self.cells.items()}
        return Table(self.path, cells, [self.lines[row] for row in rows])

    def _bad(self, column: str, row: int, what: str) -> BadInput:
        where = f"{self.path}: column {column}, line {self.lines[row]}"
        return BadInput(f"{where}: the value {what}; mend or remove the row")


def read_csv(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Table:
    """The named columns of a CSV with a header; other columns are ignored. Raises ``BadInput``."""
    with _opened(path) as file:
        reader = csv.reader(file)
        rows = _csv_rows(path, reader)
        header = [name.strip() for name in next(rows, (0, []))[1]]
        if missing := [name for name in required if name not in header]:
            raise BadInput(
                f"{path}: column {missing[0]} is missing; the header must name {', '.join(required)}"
                + (f" (has: {', '.join(header)})" if any(header) else "")
            )
        chosen = {name: header.index(name) for name in (*required, *optional) if name in header}
        return _table(path, chosen, rows, len(header))


def read_bare_csv(path: Path, columns: Sequence[str]) -> Table:
    """A CSV without a header whose columns are ``columns``, in this order. Raises ``BadInput``."""
    with _opened(path) as file:
        return _table(
            path,
            {name: rank for rank, name in enumerate(columns)},
            _csv_rows(path, csv.reader(file)),
            len(columns),
        )


def read_json_lines(path: Path, required: Sequence[str]) -> list[tuple[int, dict[str, Any]]]:
    """One JSON object a line, each with its line's number and every field of ``required``. Raises ``BadInput``."""
    with _opened(path) as file:
        try:
            items = [(number, json.loads(line)) for number, line in enumerate(file, 1) if line.strip()]
        except ValueError as error:
            raise _unreadable(path, error, "JSON, one object a line") from None
    if not items:
        raise BadInput(f"{path}: holds no rows; give a trace with at least one")
    return [(number, _object(path, f"line {number}", item, required)) for number, item in items]


def read_json_array(path: Path, required: Sequence[str]) -> list[dict[str, Any]]:
    """A JSON array of objects, each with every field of ``required``. Raises ``BadInput``."""
    with _opened(path) as file:
        try:
            items = json.load(file)
        except ValueError as error:
            raise _unreadable(path, error, "a JSON array of objects") from None
    if not isinstance(items, list) or not items:
        raise BadInput(f"{path}: holds no rows; give a JSON array with at least one object")
    return [_object(path, f"item {rank}", item, required) for rank, item in enumerate(items)]


def _object(path: Path, where: str, item: object, required: Sequence[str]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise BadInput(f"{path}: {where} is no JSON object; give one object per request")
    if missing := [name for name in required if name not in item]:
        raise BadInput(f"{path}: {where}: field {missing[0]} is missing; every object must have {', '.join(required)}")
    return item


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); give the path of a readable file") from None


def _csv_rows(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line they end on; blank ones are skipped."""
    try:
        for row in reader:
            if any(row):
                yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise _unreadable(path, error, "CSV in UTF-8") from None


def _table(path: Path, chosen: Mapping[str, int], rows: Iterator[tuple[int, list[str]]], width: int) -> Table:
    cells: dict[str, list[str]] = {name: [] for name in chosen}
    lines: list[int] = []
    for line, row in rows:
        if len(row) != width:
            raise BadInput(f"{path}: line {line} has {len(row)} fields instead of {width}; mend or remove it")
        lines.append(line)
        for name, rank in chosen.items():
            cells[name].append(row[rank].strip())
    if not lines:
        raise BadInput(f"{path}: holds no rows; give a trace with at least one")
    return Table(path, cells, lines)


def _unreadable(path: Path, error: Exception, wanted: str) -> BadInput:
    return BadInput(f"{path}: is not {wanted} ({type(error).__name__}); export it again")
