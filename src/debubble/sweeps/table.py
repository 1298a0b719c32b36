"""The results of a sweep: read from their file, and written as CSV or Parquet."""

from __future__ import annotations

import csv
import io
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from debubble.core.atomic_write import atomic_file
from debubble.core.errors import FormatError, ParameterError, did_you_mean
from debubble.sweeps.store import columns_of, quoted, read_about, refuse_others, reported

WRITTEN = (".csv", ".parquet")


@dataclass(frozen=True)
class Results:
    """The content of a file of results."""

    path: Path
    command: str
    spec: dict[str, Any]
    """The last spec of the file, as plain data."""
    columns: tuple[str, ...]
    """All options and results, then ``error`` and ``seconds``."""
    options: tuple[str, ...]
    """The columns that are options."""
    points: int
    """Number of points with results."""
    failed: int
    """Number of points with an error in a row."""
    rows: int

    @classmethod
    def read(cls, path: str | Path) -> Results:
        """Look into a file; a sweep may be writing to it."""
        path = Path(path)
        if not os.path.isfile(path):
            raise FormatError(f"there is no file '{path}'")
        with _opened(path) as file:
            counts = file.execute(
                "SELECT count(DISTINCT point), count(DISTINCT CASE WHEN error IS NOT NULL "
                "THEN point END), count(*) FROM results"
            ).fetchone()
            spec, options = read_about(file, path)
            columns = columns_of(file, "sweep")
            if not {*options, "error", "seconds"} <= {*columns}:
                raise FormatError(f"'{path}' is damaged: columns are missing; give another file")
            data: dict[str, Any] = msgspec.to_builtins(spec)
            return cls(path, spec.command, data, tuple(columns), tuple(options), *counts)

    def errors(self, most: int = 10) -> list[tuple[str, int]]:
        """Return the most frequent errors, and how often they occur."""
        with _opened(self.path) as file:
            return file.execute(
                "SELECT error, count(*) FROM results WHERE error IS NOT NULL GROUP BY error "
                "ORDER BY 2 DESC, 1 LIMIT ?", (most,),
            ).fetchall()  # fmt: skip

    def check_column(self, name: str) -> None:
        """Refuse a column that does not exist."""
        if name not in self.columns:
            raise ParameterError(f"there is no column '{name}'; {did_you_mean(name, self.columns)}")

    def select(self, *names: str) -> list[tuple[Any, ...]]:
        """Return some columns of all rows, in the order of the sweep."""
        for name in names:
            self.check_column(name)
        with _opened(self.path) as file:
            chosen = ", ".join(map(quoted, names))
            return file.execute(f"SELECT {chosen} FROM sweep").fetchall()

    def save(self, path: str | Path) -> None:
        """Write all rows as ``.csv`` or ``.parquet``.

        Raises
        ------
        ParameterError
            When the name has another ending, the file cannot be written, or neither pyarrow nor
            polars, one of which writes Parquet, is installed.
        """
        ending = Path(path).suffix.lower()
        if ending not in WRITTEN:
            raise ParameterError(f"'{path}': results are written as {' or '.join(WRITTEN)}")
        try:
            with atomic_file(path) as target:
                (self._write_csv if ending == ".csv" else self._write_parquet)(target)
        except OSError as error:
            raise ParameterError(f"cannot write '{path}': {error.strerror or error}") from None

    def _write_csv(self, target: Any) -> None:
        text = io.TextIOWrapper(target, "utf-8", newline="", write_through=True)
        with _opened(self.path) as file:
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(file.execute("SELECT * FROM sweep"))
        text.detach()

    def _write_parquet(self, target: Any) -> None:
        rows = self.select(*self.columns)
        data = {
            name: _uniform([row[index] for row in rows]) for index, name in enumerate(self.columns)
        }
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            try:
                import polars
            except ImportError:
                raise ParameterError(
                    "Parquet is written by pyarrow or polars, and neither is installed; "
                    "pip install pyarrow, or write a .csv"
                ) from None
            polars.DataFrame(data, strict=False).write_parquet(target)
        else:
            pyarrow.parquet.write_table(pyarrow.table(data), target)


def _uniform(values: list[Any]) -> list[Any]:
    """Return values of one type: numbers and texts in one column all become texts."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} or kinds == {str}:
        return values
    kind = float if kinds <= {int, float} else str
    return [None if value is None else kind(value) for value in values]


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file of results to read; faults found on the way raise errors with advice."""
    # The next process to open the file undoes a killed writer's half, and must be allowed to write.
    mode = "rw" if os.access(path, os.W_OK) else "ro"
    with (
        reported(path),
        closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True)) as file,
    ):
        file.execute("PRAGMA query_only = ON")
        refuse_others(file, path)
        if not columns_of(file, "sweep"):
            raise FormatError(f"'{path}' is no file of a sweep")
        yield file
