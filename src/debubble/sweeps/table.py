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

from debubble.core.atomic_write import atomic_file
from debubble.core.errors import FormatError, ParameterError, did_you_mean
from debubble.sweeps.store import (
    about,
    columns_of,
    kept_options,
    kept_spec,
    quoted,
    refuse_others,
    reported,
)

WRITTEN = (".csv", ".parquet")


@dataclass(frozen=True)
class Results:
    """What a file of results has.

    `spec` is the last one that it was written for, as plain data. `columns` names all options and
    results, then ``error`` and ``seconds``; `options` are those of them that are options. `points`
    have results, and `failed` of them a row that has none.
    """

    path: Path
    command: str
    spec: dict[str, Any]
    columns: tuple[str, ...]
    options: tuple[str, ...]
    points: int
    failed: int
    rows: int

    @classmethod
    def read(cls, path: str | Path) -> Results:
        """Look into a file; one that a sweep is writing may be read as well."""
        path = Path(path)
        if not os.path.isfile(path):
            raise FormatError(f"there is no file '{path}'")
        with _opened(path) as file:
            found = about(file)
            (points, failed, rows) = file.execute(
                "SELECT count(DISTINCT point), count(DISTINCT CASE WHEN error IS NOT NULL "
                "THEN point END), count(*) FROM results"
            ).fetchone()
            spec = kept_spec(found, path)
            columns, options = columns_of(file, "sweep"), kept_options(found, path)
            if not {*options, "error", "seconds"} <= {*columns}:
                raise FormatError(f"'{path}' is damaged: columns are missing; give another file")
            return cls(path, spec["command"], spec, tuple(columns), tuple(options), points, failed,
                       rows)  # fmt: skip

    def errors(self, most: int = 10) -> list[tuple[str, int]]:
        """The most frequent errors, and how often they are there."""
        with _opened(self.path) as file:
            return file.execute(
                "SELECT error, count(*) FROM results WHERE error IS NOT NULL GROUP BY error "
                "ORDER BY 2 DESC, 1 LIMIT ?", (most,),
            ).fetchall()  # fmt: skip

    def check_column(self, name: str) -> None:
        """Refuse a column that is not there."""
        if name not in self.columns:
            raise ParameterError(f"there is no column '{name}'; {did_you_mean(name, self.columns)}")

    def select(self, *names: str) -> list[tuple[Any, ...]]:
        """Some columns of all rows, in the order of the sweep."""
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
            if ending == ".csv":
                self._save_csv(path)
            else:
                self._save_parquet(path)
        except OSError as error:
            raise ParameterError(f"cannot write '{path}': {error.strerror or error}") from None

    def _save_csv(self, path: str | Path) -> None:
        with _opened(self.path) as file, atomic_file(path) as target:
            text = io.TextIOWrapper(target, "utf-8", newline="", write_through=True)
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(file.execute("SELECT * FROM sweep"))
            text.detach()

    def _save_parquet(self, path: str | Path) -> None:
        columns = [_uniform(values) for values in self._columns()]
        data = dict(zip(self.columns, columns, strict=True))
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            pass
        else:
            with atomic_file(path) as target:
                pyarrow.parquet.write_table(pyarrow.table(data), target)
            return
        try:
            import polars
        except ImportError:
            raise ParameterError(
                "Parquet is written by pyarrow or polars, and neither is installed; "
                "pip install pyarrow, or write a .csv"
            ) from None
        with atomic_file(path) as target:
            polars.DataFrame(data, strict=False).write_parquet(target)

    def _columns(self) -> Iterator[list[Any]]:
        rows = self.select(*self.columns)
        for index in range(len(self.columns)):
            yield [row[index] for row in rows]


def _uniform(values: list[Any]) -> list[Any]:
    """Values of one type: numbers and texts in one column all become texts."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} or kinds == {str}:
        return values
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A file of results, to read; what is found wrong in it on the way is said in words."""
    # What a killed writer left half done is undone by the next to open the file, who must be
    # allowed to write for that.
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
