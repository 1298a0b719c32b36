"""Schedules as JSON: all fields of a schedule, checked key by key when read."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import partial
from typing import Any

import numpy as np

from debubble.core.errors import CostError, FormatError, ParameterError, WrongValueError
from debubble.core.placement import Placement
from debubble.core.schedule import FORMAT, FORMAT_VERSION, SAVED, Schedule
from debubble.core.schedule_fields import FieldSizes, label, up_to
from debubble.interchange.cells import MAX_RANKS, check_size, read_cells
from debubble.interchange.text import A_TRACE, check_keys, shown

REQUIRED = (
    "format", "version", "ranks", "placement", "programs",
    *(name for name, spec in SAVED.items() if spec.required),
)  # fmt: skip
OPTIONAL = tuple(name for name, spec in SAVED.items() if not spec.required)
MAX_COPIES = 16


def to_json(schedule: Schedule) -> str:
    """Return the text of a schedule file, one line per rank's program."""
    data = schedule.to_dict()
    programs = data.pop("programs")
    try:
        head = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False, default=_number)
    except (TypeError, ValueError) as error:
        raise FormatError(f"the options of '{schedule.name}' cannot be written: {error}") from None
    lines = ",\n".join(f"    {json.dumps(row)}" for row in programs)
    return f'{head[:-2]},\n  "programs": [\n{lines}\n  ]\n}}\n'


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a number, text or list")


def from_json(text: str, where: str) -> Schedule:
    """Read the text of a schedule file; messages call it `where`.

    Keys and values that :meth:`debubble.core.schedule.Schedule.to_dict` does not write are refused.
    Schedules that cannot run are read; :func:`debubble.check` explains their faults.
    """
    data = parse_json(text, where)
    events = data.get("traceEvents") if isinstance(data, Mapping) else data
    if isinstance(events, list) and events and isinstance(events[0], Mapping):
        raise FormatError(f"{where} is {A_TRACE}")
    if isinstance(data, Mapping) and "format" not in data and "times" in data:
        raise FormatError(
            f"{where} is a cost file, not a schedule; name a schedule, and give it as --costs "
            f"{where}"
        )
    if not isinstance(data, Mapping) or "format" not in data:
        raise FormatError(f'{where}: not a schedule file; it has no "format": "{FORMAT}"')
    if data["format"] != FORMAT:
        raise FormatError(f"{where}: format is {shown(data['format'])}; it must be '{FORMAT}'")
    if "version" not in data:
        raise FormatError(f"{where}: 'version' is missing; this is version {FORMAT_VERSION}")
    version = data["version"]
    if type(version) is not int or version != FORMAT_VERSION:
        raise FormatError(
            f"{where}: version is {shown(version)}; this debubble reads version {FORMAT_VERSION}"
        )
    check_keys(data, where, (*REQUIRED, *OPTIONAL), REQUIRED)
    ranks, fields = read_fields(data, where)
    placement = read_placement(data["placement"], ranks, where)
    programs = data["programs"]
    if not isinstance(programs, list) or len(programs) != ranks:
        found = f"{len(programs):,} programs" if isinstance(programs, list) else shown(programs)
        raise FormatError(f"{where}: programs is {found}; give one list for each of {ranks} ranks")
    for rank, program in enumerate(programs):
        if not isinstance(program, list):
            raise FormatError(f"{where}: programs[{rank}] is {shown(program)}; give a list of text")
    slices = fields["slices"]
    units = fields["microbatches"] * fields["iterations"] * slices
    check_size(sum(map(len, programs)), placement.stages, units, where)
    cells = [
        read_cells(program, partial(_place, where, rank), slices)
        for rank, program in enumerate(programs)
    ]
    try:
        made = Schedule.from_programs(placement=placement, programs=cells, **fields)
    except ParameterError as error:
        raise FormatError(f"{where}: {error}") from None
    if made.made_for is not None:
        try:
            made.made_for.table(made)
        except CostError as error:
            raise FormatError(f"{where}: made_for: {error}") from None
    return made


def read_fields(data: Mapping[str, Any], where: str) -> tuple[int, dict[str, Any]]:
    """Return the ranks, and all fields of a schedule by name, with defaults for missing ones."""
    try:
        ranks = up_to(MAX_RANKS)("ranks", data["ranks"], FieldSizes(0, 0))
        found: dict[str, Any] = {}
        for name, spec in SAVED.items():
            value = data.get(name, _default_of(name))
            sizes = FieldSizes(ranks, found.get("slices", 1))
            if spec.in_file is not None:
                spec.in_file(name, value, sizes)
            found[name] = spec.check(name, value, sizes)
    except WrongValueError as error:
        raise FormatError(f"{where}: {error.text(shown)}") from None
    except ParameterError as error:
        raise FormatError(f"{where}: {error}") from None
    return ranks, found


def _default_of(name: str) -> Any:
    """Return the value of a field that a file leaves out."""
    spec = next(spec for spec in fields(Schedule) if spec.name == name)
    if spec.default_factory is not MISSING:
        return spec.default_factory()
    return SAVED[name].default if spec.default is MISSING else spec.default


def _place(where: str, rank: int, index: int) -> str:
    return f"{where}: rank {rank}, action {index}"


def parse_json(text: str, where: str) -> Any:
    """Parse strict JSON: no duplicate keys, no NaN or infinity, no endless nesting."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, count in Counter(k for k, _ in pairs).items() if count > 1)
            raise FormatError(f"{where}: the key {shown(twice)} is there twice; remove one")
        return found

    def refuse(constant: str) -> Any:
        raise FormatError(f"{where}: {constant} is not a number; numbers in files are finite")

    def finite(number: str) -> float:
        value = float(number)
        return value if math.isfinite(value) else refuse(number)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{where}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from None
    except RecursionError:
        raise FormatError(f"{where}: lists or mappings are nested too deeply") from None
    except FormatError:
        raise
    except ValueError:
        raise FormatError(f"{where}: a number has too many digits") from None


def read_placement(data: Any, ranks: int, where: str) -> Placement:
    """Read the placement of a file."""
    if not isinstance(data, Mapping):
        raise FormatError(f'{where}: placement is {shown(data)}; give {{"table": [[0, 1]]}}')
    check_keys(data, f"{where}: placement", ("name", "table"), ("table",))
    table = data["table"]
    if not isinstance(table, list) or not 1 <= len(table) <= MAX_COPIES:
        raise FormatError(
            f"{where}: placement.table is {shown(table)}; give one list, with the rank of every "
            "stage, for each copy of the model"
        )
    for copy, row in enumerate(table):
        path = f"{where}: placement.table[{copy}]"
        if not isinstance(row, list) or not row:
            raise FormatError(f"{path} is {shown(row)}; give the rank of every stage")
        for stage, rank in enumerate(row):
            if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
                raise FormatError(
                    f"{path}[{stage}] is {shown(rank)}; ranks go from 0 to {ranks - 1}"
                )
    try:
        name = label("placement.name", data.get("name", "explicit"))
        return Placement(tuple(map(tuple, table)), name, ranks)
    except WrongValueError as error:
        raise FormatError(f"{where}: {error.text(shown)}") from None
    except ParameterError as error:
        raise FormatError(f"{where}: placement.table: {error}") from None
