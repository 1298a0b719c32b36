"""Schedules as JSON: everything a schedule is, checked key by key when read."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from debubble.core.errors import FormatError, ParameterError
from debubble.core.placement import Placement
from debubble.core.schedule import (
    FORMAT,
    FORMAT_VERSION,
    RECOMPUTE_AFTER,
    SYNCS,
    VOCABULARIES,
    Schedule,
)
from debubble.core.slicing import check_cut
from debubble.interchange.cells import MAX_RANKS, check_size, read_cells
from debubble.interchange.text import A_TRACE, check_keys, check_label, shown

REQUIRED = ("format", "version", "ranks", "microbatches", "placement", "programs")
OPTIONAL = (
    "name", "iterations", "slices", "cut", "exchange", "sync", "recompute_after", "weight_versions",
    "offload_to", "vocabulary", "options", "explicit_reduction",
)  # fmt: skip
LARGEST = {"microbatches": 1 << 24, "iterations": 1 << 16, "slices": 1 << 10,
           "ranks": MAX_RANKS}  # fmt: skip
MAX_VERSIONS = 1 << 16
MAX_COPIES = 16
MAX_OPTIONS = 64
MAX_NUMBER = 1 << 53


def to_json(schedule: Schedule) -> str:
    """The text of a schedule file, one line per rank's program."""
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
    """Read a schedule file.

    Parameters
    ----------
    text
        The content of the file.
    where
        Its name, for messages.

    Raises
    ------
    FormatError
        When anything in it is not as :meth:`debubble.core.schedule.Schedule.to_dict` writes it.
        Orders that cannot run are read; :func:`debubble.check` says what is wrong with them.
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
    counts = {key: _count(data.get(key, 1), key, where) for key in LARGEST}
    ranks = counts.pop("ranks")
    placement = read_placement(data["placement"], ranks, where)
    programs = data["programs"]
    if not isinstance(programs, list) or len(programs) != ranks:
        found = f"{len(programs):,} programs" if isinstance(programs, list) else shown(programs)
        raise FormatError(f"{where}: programs is {found}; give one list for each of {ranks} ranks")
    for rank, program in enumerate(programs):
        if not isinstance(program, list):
            raise FormatError(f"{where}: programs[{rank}] is {shown(program)}; give a list of text")
    units = counts["microbatches"] * counts["iterations"] * counts["slices"]
    check_size(sum(map(len, programs)), placement.stages, units, where)
    vocabulary = data.get("vocabulary", 0)
    if type(vocabulary) is not int or vocabulary not in VOCABULARIES:
        raise FormatError(f"{where}: vocabulary is {shown(vocabulary)}; use 0, 1 or 2")
    try:
        return Schedule.from_programs(
            check_label(data.get("name", "custom"), f"{where}: name"),
            placement,
            programs=[
                read_cells(program, partial(_place, where, rank), counts["slices"])
                for rank, program in enumerate(programs)
            ],
            cut=_cut(data.get("cut", []), counts["slices"], where),
            exchange=_truth(data, "exchange", where),
            explicit_reduction=_truth(data, "explicit_reduction", where),
            sync=_choice(data, "sync", SYNCS, where),
            recompute_after=_choice(data, "recompute_after", RECOMPUTE_AFTER, where),
            options=_options(data.get("options", {}), where),
            weight_versions=_versions(data.get("weight_versions", 1), ranks, where),
            offload_to=_targets(data.get("offload_to", []), ranks, where),
            vocabulary=vocabulary,
            **counts,
        )
    except ParameterError as error:
        raise FormatError(f"{where}: {error}") from None


def _place(where: str, rank: int, index: int) -> str:
    return f"{where}: rank {rank}, action {index}"


def parse_json(text: str, where: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN or infinity, no endless nesting."""

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


def _count(value: Any, key: str, where: str, largest: int = 0) -> int:
    largest = largest or LARGEST[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise FormatError(
            f"{where}: {key} is {shown(value)}; give a whole number from 1 to {largest:,}"
        )
    return value


def _truth(data: Mapping[str, Any], key: str, where: str) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise FormatError(f"{where}: {key} is {shown(value)}; use true or false")
    return value


def _versions(value: Any, ranks: int, where: str) -> int | tuple[int, ...]:
    if not isinstance(value, list):
        return _count(value, "weight_versions", where, MAX_VERSIONS)
    if len(value) != ranks:
        raise FormatError(
            f"{where}: weight_versions has {len(value)} numbers for {ranks} ranks; "
            "give one number, or one per rank"
        )
    return tuple(
        _count(item, f"weight_versions[{rank}]", where, MAX_VERSIONS)
        for rank, item in enumerate(value)
    )


def _choice(data: Mapping[str, Any], key: str, known: tuple[str, ...], where: str) -> str:
    """One of a few words, the first when the key is not there."""
    value = data.get(key, known[0])
    if value not in known:
        raise FormatError(f"{where}: {key} is {shown(value)}; use one of {', '.join(known)}")
    return str(value)


def _cut(data: Any, slices: int, where: str) -> tuple[float, ...]:
    if not isinstance(data, list):
        raise FormatError(f"{where}: cut is {shown(data)}; give a list with a share per slice")
    for part, share in enumerate(data):
        if isinstance(share, bool) or not isinstance(share, int | float) or share > 1:
            raise FormatError(f"{where}: cut[{part}] is {shown(share)}; give a share up to 1")
    try:
        return check_cut(data, slices)
    except ParameterError as error:
        raise FormatError(f"{where}: {error}") from None


def read_placement(data: Any, ranks: int, where: str) -> Placement:
    """The placement that a file describes."""
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
        place = f"{where}: placement.table[{copy}]"
        if not isinstance(row, list) or not row:
            raise FormatError(f"{place} is {shown(row)}; give the rank of every stage")
        for stage, rank in enumerate(row):
            if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
                raise FormatError(
                    f"{place}[{stage}] is {shown(rank)}; ranks go from 0 to {ranks - 1}"
                )
    name = check_label(data.get("name", "explicit"), f"{where}: placement.name")
    try:
        return Placement(tuple(map(tuple, table)), name, ranks)
    except ParameterError as error:
        raise FormatError(f"{where}: placement.table: {error}") from None


def _targets(data: Any, ranks: int, where: str) -> tuple[int | None, ...]:
    """Where the copies of every rank go; none of them when all go to the host."""
    if not isinstance(data, list) or len(data) not in (0, ranks):
        raise FormatError(
            f"{where}: offload_to is {shown(data)}; give one rank or null for each of {ranks} ranks"
        )
    for rank, target in enumerate(data):
        known = type(target) is int and 0 <= target < ranks and target != rank
        if target is not None and not known:
            raise FormatError(
                f"{where}: offload_to[{rank}] is {shown(target)}; give another rank from 0 to "
                f"{ranks - 1}, or null for the host"
            )
    return tuple(data)


def _options(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, Mapping) or len(data) > MAX_OPTIONS:
        raise FormatError(
            f"{where}: options is {shown(data)}; give a mapping with up to {MAX_OPTIONS} entries"
        )
    for key, value in data.items():
        place = f"{where}: options.{check_label(key, f'{where}: a key of options')}"
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str):
                check_label(item, place)
            elif item is not None and not (
                isinstance(item, int | float) and abs(item) <= MAX_NUMBER
            ):
                raise FormatError(f"{place} is {shown(item)}; give numbers, text or a list of them")
    return dict(data)
