"""Results of a sweep in an SQLite file, kept whatever ends the process.

The file has a table ``results`` with a row for each row of every point, a table ``about``, and the
view ``sweep`` that shows options and results as columns. A point's rows are there together or not
at all. The one process that writes has a write transaction open all the time, so that a second one
is refused, while any number of processes may read.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from debubble.core.errors import FormatError, ParameterError
from debubble.sweeps.points import Spec

ENDINGS = (".sqlite", ".sqlite3", ".db")
APPLICATION = 0x64656262
"""The number in the head of a file that marks it as one of ours."""

FORMAT = "1"
"""Raised when files have other tables."""

OWN = ("point", "number", "item", "options", "error", "seconds")
"""Columns of ``results`` that are no results."""

PATIENCE = 0.5
"""Seconds to wait for a process that holds the file for a moment."""

_ERRORS = (
    (("locked", "busy"), ParameterError,
     "another sweep writes to '{}'; wait for it, or give another file"),
    (("not a database", "malformed", "no such", "UTF-8", "utf-8", "corrupt"), FormatError,
     "'{}' is no file of a sweep; give another name"),
    (("full",), ParameterError,
     "no space left for '{}'; results so far are kept. Make room, then go on with the same "
     "command"),
    (("readonly", "unable to open"), ParameterError, "cannot write '{}': {}"),
    (("",), ParameterError, "cannot use '{}': {}; SQLite needs a folder on a local disk"),
)  # fmt: skip
"""Words in messages of SQLite, and the error to raise for them."""


class Result(NamedTuple):
    """Results of one point; ``error`` in a row is the reason why it has none."""

    number: int
    key: str
    options: Mapping[str, Any]
    rows: list[dict[str, Any]]
    seconds: float
    """Time to compute them."""

    @property
    def failed(self) -> bool:
        """Whether a row has an error."""
        return any(row.get("error") for row in self.rows)


class SpecData(msgspec.Struct, omit_defaults=True):
    """A spec as a file of results has it, see :meth:`Spec.to_dict`."""

    command: str
    options: dict[str, Any]
    grid: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    files: dict[str, Any] = {}

    def check_same(self, wanted: SpecData, path: Path, extend: bool) -> None:
        """Refuse a wanted spec that is none of this sweep; with `extend`, other points are fine."""
        if self.command != wanted.command:
            raise ParameterError(
                f"'{path}' has a sweep of {self.command}, not {wanted.command}; give another file"
            )
        if self != wanted and not extend:
            raise ParameterError(
                f"'{path}' has another sweep: {self._difference(wanted)}. Give another file, or "
                "--extend to have the points of both in it"
            )

    def _difference(self, wanted: SpecData) -> str:
        """Return the first difference in words."""
        for section in self.__struct_fields__[1:]:
            one, other = getattr(self, section), getattr(wanted, section)
            for name in {**one, **other}:
                if section == "files" and one.get(name) != other.get(name):
                    return f"the content of {name} has changed"
                if name not in one or name not in other:
                    return f"{section}.{name} is {'new' if name not in one else 'gone'}"
                if one[name] != other[name]:
                    return f"{section}.{name} differs"
        raise AssertionError("specs differ in a section")


def quoted(name: str) -> str:
    """Return a name as SQL."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into ones with advice."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Messages of SQLite quote the content of a damaged file, and may be no text themselves.
        text = str(error)
        kind, message = next((k, m) for words, k, m in _ERRORS if any(w in text for w in words))
        raise kind(message.format(path, text)) from None


class Writer:
    """The one process that writes to a file of results, which is made where there is none.

    A file of another sweep is refused, unless `extend` is set: then the points of both are in it.
    """

    def __init__(self, path: str | Path, spec: Spec, version: str, extend: bool = False) -> None:
        self.path = Path(path)
        with reported(self.path):
            self._file = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
            try:
                self._open(spec, version, extend)
            except BaseException:
                self._file.close()
                raise

    def _open(self, spec: Spec, version: str, extend: bool) -> None:
        run = self._file.execute
        refuse_others(self._file, self.path)
        run("PRAGMA journal_mode = WAL")
        # Committed results survive a loss of power, too.
        run("PRAGMA synchronous = FULL")
        run("BEGIN IMMEDIATE")
        run(f"PRAGMA application_id = {APPLICATION}")
        run("CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT)")
        run(
            "CREATE TABLE IF NOT EXISTS results (point TEXT, number INTEGER, item INTEGER, "
            "options TEXT, error TEXT, seconds REAL, PRIMARY KEY (point, item))"
        )
        data = spec.to_dict()
        names: list[str] = []
        if run("SELECT count(*) FROM about").fetchone() != (0,):
            known, names = read_about(self._file, self.path)
            known.check_same(msgspec.convert(data, SpecData), self.path, extend)
        values = {"format": FORMAT, "version": version, "command": spec.command,
                  "spec": json.dumps(data)}  # fmt: skip
        run("DELETE FROM about")
        self._file.executemany("INSERT INTO about VALUES (?, ?)", values.items())
        self._columns = columns_of(self._file)
        self._options = list(dict.fromkeys((*names, *spec.options, *spec.varied)))
        self._show()
        self._commit()

    def done(self, failed: bool = True) -> set[str]:
        """Return the keys of points with results; without `failed`, of those with no error."""
        errors = "" if failed else " GROUP BY point HAVING count(error) = 0"
        with reported(self.path):
            return {key for (key,) in self._file.execute(f"SELECT point FROM results{errors}")}

    def add(self, results: Iterable[Result]) -> None:
        """Keep results; they are safe when this returns."""
        with reported(self.path):
            for result in results:
                self._add(result)
            self._commit()

    def _add(self, result: Result) -> None:
        self._file.execute("DELETE FROM results WHERE point = ?", (result.key,))
        options = json.dumps(dict(result.options))
        for item, row in enumerate(result.rows):
            new = [name for name in row if name not in self._columns]
            for name in new:
                self._file.execute(f"ALTER TABLE results ADD COLUMN {quoted(name)}")
            if new:
                self._columns += new
                self._show()
            values = {"point": result.key, "number": result.number, "item": item,
                      "options": options, "seconds": result.seconds} | row  # fmt: skip
            self._file.execute(
                f"INSERT INTO results ({', '.join(map(quoted, values))}) "
                f"VALUES ({', '.join('?' * len(values))})",
                [_plain(value) for value in values.values()],
            )

    def _show(self) -> None:
        """Make the view of all options and results."""
        run = self._file.execute
        run("INSERT OR REPLACE INTO about VALUES ('options', ?)", (json.dumps(self._options),))
        run("DROP VIEW IF EXISTS sweep")
        run(f"CREATE VIEW sweep AS SELECT {', '.join(self._shown())} FROM results "
            "ORDER BY number, item")  # fmt: skip

    def _shown(self) -> Iterator[str]:
        results = [name for name in self._columns if name not in OWN]
        for name in self._options:
            path = "'" + f'$."{name}"'.replace("'", "''") + "'"
            value = f"json_extract(options, {path})"
            if name in results:
                # A schedule's own value counts, not the one in the spec.
                value = f"coalesce({quoted(name)}, {value})"
            yield f"{value} AS {quoted(name)}"
        yield from (quoted(name) for name in results if name not in self._options)
        yield from ("error", "seconds")

    def _commit(self) -> None:
        self._file.execute("COMMIT")
        self._file.execute("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Release the file; results that were not added are lost."""
        # Leaving the log mode removes the two more files that readers of a log need.
        for last in ("ROLLBACK", "PRAGMA journal_mode = DELETE"):
            with suppress(sqlite3.Error, UnicodeDecodeError):
                self._file.execute(last)
        self._file.close()


def refuse_others(file: sqlite3.Connection, path: Path) -> None:
    """Refuse a database of another program, or of a later version."""
    (owner,) = file.execute("PRAGMA application_id").fetchone()
    (tables,) = file.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if owner != APPLICATION and tables:
        raise FormatError(f"'{path}' is a database of something else; give another name")
    made = (
        file.execute("SELECT value FROM about WHERE name = 'format'").fetchall() if tables else []
    )
    if made not in ([], [(FORMAT,)]):
        raise FormatError(f"'{path}' has format {made[0][0]}; this version reads format {FORMAT}")


def read_about(file: sqlite3.Connection, path: Path) -> tuple[SpecData, list[str]]:
    """Return the spec of a file, and the names of its options."""
    known = dict(file.execute("SELECT name, value FROM about").fetchall())
    try:
        return (
            msgspec.json.decode(known["spec"], type=SpecData),
            msgspec.json.decode(known["options"], type=list[str]),
        )
    except (KeyError, TypeError, msgspec.MsgspecError, RecursionError) as error:
        raise FormatError(
            f"'{path}' is damaged: what it was made for cannot be read ({error}); give another name"
        ) from None


def columns_of(file: sqlite3.Connection, table: str = "results") -> list[str]:
    """Return the names of the columns of a table or view."""
    return [row[1] for row in file.execute(f"PRAGMA table_info({table})")]


def _plain(value: Any) -> Any:
    """Return a value as SQLite keeps it."""
    if isinstance(value, list | tuple | dict):
        return json.dumps(value)
    return None if isinstance(value, float) and math.isnan(value) else value
