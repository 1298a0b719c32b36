"""Results of a sweep in an SQLite file: written as they come, kept whatever ends the process.

The file has a table ``results`` with a row for each row of every point, a table ``about``, and the
view ``sweep`` that shows options and results as columns. A point's rows are there together or not
at all. The one process that writes has a write transaction open all the time, so that a second one
is refused, while anybody may read.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from debubble.core.errors import FormatError, ParameterError
from debubble.sweeps.points import Spec

ENDINGS = (".sqlite", ".sqlite3", ".db")
APPLICATION = 0x64656262
"""The number in the head of a file that says whose it is."""

FORMAT = 1
"""Raised when files have other tables."""

OWN = ("point", "number", "item", "options", "error", "seconds")
"""Columns of ``results`` that are no results."""

DAMAGED = ("not a database", "malformed", "no such", "UTF-8", "utf-8", "corrupt")
"""Words of SQLite about files that are no databases, or not ours."""

PATIENCE = 0.5
"""Seconds to wait for somebody who holds the file for a moment."""


class Result(NamedTuple):
    """Results of one point, and how long they took; ``error`` in a row says why there are none."""

    number: int
    key: str
    options: Mapping[str, Any]
    rows: list[dict[str, Any]]
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether a row has an error."""
        return any(row.get("error") for row in self.rows)


def quoted(name: str) -> str:
    """A name as SQL."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into ones that say what to do."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Messages of SQLite quote what a damaged file has, and may be no text themselves.
        text = str(error)
        if "locked" in text or "busy" in text:
            raise ParameterError(
                f"another sweep writes to '{path}'; wait for it, or give another file"
            ) from None
        if any(word in text for word in DAMAGED):
            raise FormatError(f"'{path}' is no file of a sweep; give another name") from None
        if "full" in text:
            raise ParameterError(
                f"no space left for '{path}'; results so far are kept. Make room, then go on with "
                "the same command"
            ) from None
        if "readonly" in text or "unable to open" in text:
            raise ParameterError(f"cannot write '{path}': {text}") from None
        raise ParameterError(
            f"cannot use '{path}': {text}; SQLite needs a folder on a local disk"
        ) from None


class Writer:
    """The one process that writes to a file of results, which is made where there is none.

    A file of another sweep is refused, unless `extend` is set: then the points of both are in it.
    """

    def __init__(self, path: str | Path, spec: Spec, version: str, extend: bool = False) -> None:
        self.path = Path(path)
        with reported(self.path):
            self._file = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
            try:
                self._begin_first(spec, version, extend)
            except BaseException:
                self._file.close()
                raise

    def _begin_first(self, spec: Spec, version: str, extend: bool) -> None:
        run = self._file.execute
        refuse_others(self._file, self.path)
        run("PRAGMA journal_mode = WAL")
        # What is committed survives a loss of power, too.
        run("PRAGMA synchronous = FULL")
        run("BEGIN IMMEDIATE")
        run(f"PRAGMA application_id = {APPLICATION}")
        run("CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT)")
        run(
            "CREATE TABLE IF NOT EXISTS results (point TEXT, number INTEGER, item INTEGER, "
            "options TEXT, error TEXT, seconds REAL, PRIMARY KEY (point, item))"
        )
        known = about(self._file)
        if known:
            check_same(kept_spec(known, self.path), spec.to_dict(), self.path, extend)
        values = {
            "format": str(FORMAT), "version": version, "command": spec.command,
            "spec": json.dumps(spec.to_dict()),
        }  # fmt: skip
        run("DELETE FROM about")
        self._file.executemany("INSERT INTO about VALUES (?, ?)", values.items())
        self._columns = columns_of(self._file)
        self._options = kept_options(known, self.path) if "options" in known else []
        self._show(spec.options, *({name: None} for name in spec.varied))
        self._commit()

    def done(self, failed: bool = True) -> set[str]:
        """Keys of the points whose results are there; without `failed`, those with no error."""
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
            values = {
                "point": result.key, "number": result.number, "item": item, "options": options,
                "seconds": result.seconds,
            } | row  # fmt: skip
            new = [name for name in row if name not in self._columns]
            for name in new:
                self._file.execute(f"ALTER TABLE results ADD COLUMN {quoted(name)}")
            if new:
                self._columns += new
                self._show({})
            self._file.execute(
                f"INSERT INTO results ({', '.join(map(quoted, values))}) "
                f"VALUES ({', '.join('?' * len(values))})",
                [_plain(value) for value in values.values()],
            )

    def _show(self, *options: Mapping[str, Any]) -> None:
        """Make the view of all options and results."""
        self._options += [name for found in options for name in found if name not in self._options]
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
                # What a schedule has counts, not what was asked for.
                value = f"coalesce({quoted(name)}, {value})"
            yield f"{value} AS {quoted(name)}"
        yield from (quoted(name) for name in results if name not in self._options)
        yield from ("error", "seconds")

    def _commit(self) -> None:
        self._file.execute("COMMIT")
        self._file.execute("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Let go of the file; what was not added is not there."""
        with suppress(sqlite3.Error, UnicodeDecodeError):
            self._file.execute("ROLLBACK")
        with suppress(sqlite3.Error, UnicodeDecodeError):
            # Else whoever reads the file later leaves two more beside it.
            self._file.execute("PRAGMA journal_mode = DELETE")
        self._file.close()


def refuse_others(file: sqlite3.Connection, path: Path) -> None:
    """Refuse a database of somebody else, or of a later version."""
    (owner,) = file.execute("PRAGMA application_id").fetchone()
    (tables,) = file.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if owner != APPLICATION and tables:
        raise FormatError(f"'{path}' is a database of something else; give another name")
    made = about(file).get("format", str(FORMAT)) if tables else str(FORMAT)
    if made != str(FORMAT):
        raise FormatError(f"'{path}' has format {made}; this version reads format {FORMAT}")


def about(file: sqlite3.Connection) -> dict[str, str]:
    """What a file says about itself."""
    return dict(file.execute("SELECT name, value FROM about").fetchall())


def kept_spec(known: Mapping[str, str], path: Path) -> dict[str, Any]:
    """The spec that a file says it was written for."""
    found = _read(known, "spec", path)
    sections = found if isinstance(found, dict) else {}
    if not isinstance(sections.get("command"), str) or not all(
        isinstance(sections.get(name, {}), dict) for name in SECTIONS
    ):
        raise FormatError(f"'{path}' is damaged: it has no spec; give another name")
    return sections


def kept_options(known: Mapping[str, str], path: Path) -> list[str]:
    """The names of options that a file says it has."""
    found = _read(known, "options", path)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise FormatError(f"'{path}' is damaged: it has no names of options; give another name")
    return found


def _read(known: Mapping[str, str], name: str, path: Path) -> Any:
    try:
        return json.loads(known[name])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise FormatError(f"'{path}' is damaged: {name} is no JSON; give another name") from None


SECTIONS = ("options", "grid", "samples", "files")
"""Parts of a spec that may differ."""


def columns_of(file: sqlite3.Connection, table: str = "results") -> list[str]:
    """Names of the columns of a table or view."""
    return [row[1] for row in file.execute(f"PRAGMA table_info({table})")]


def check_same(
    known: Mapping[str, Any], wanted: Mapping[str, Any], path: Path, extend: bool
) -> None:
    """Refuse results of another sweep."""
    if known == wanted:
        return
    if known["command"] != wanted["command"]:
        raise ParameterError(
            f"'{path}' has a sweep of {known['command']}, not {wanted['command']}; "
            "give another file"
        )
    if not extend:
        raise ParameterError(
            f"'{path}' has another sweep: {_difference(known, wanted)}. Give another file, or "
            "--extend to have the points of both in it"
        )


def _difference(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first thing in which two specs differ."""
    for section in SECTIONS:
        one, other = known.get(section, {}), wanted.get(section, {})
        for name in {**one, **other}:
            if one.get(name) != other.get(name):
                where = f"{section}.{name}"
                if section == "files":
                    return f"the content of {name} has changed"
                if name not in one or name not in other:
                    return f"{where} is {'new' if name not in one else 'gone'}"
                return f"{where} differs"
    raise AssertionError("specs differ in a section")


def _plain(value: Any) -> Any:
    """A value as SQLite keeps it."""
    if isinstance(value, list | tuple | dict):
        return json.dumps(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
