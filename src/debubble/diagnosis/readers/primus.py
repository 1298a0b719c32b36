"""Primus's ``--dump_pp_data``: ``pp_rank_0.json`` …, and ``config.json`` next to them.

A file has, for every iteration, starts and ends of forwards, backwards and backwards for weights,
in milliseconds from the rank's start of the iteration. So every rank has its own zero. Only
data-parallel rank 0 writes. Microbatches and chunks are next to the times, except for Megatron's
own schedules, where they follow from the index of the call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from debubble.core.errors import FormatError
from debubble.core.kinds import FORWARD_KINDS, Kind
from debubble.diagnosis.observed import ALONE, Location, Observed, Whole
from debubble.diagnosis.readers.chunks import (
    Calls,
    is_v_shaped,
    kth_call,
    placed,
    stage_of,
    with_split_backwards,
)
from debubble.diagnosis.readers.collected import MILLISECONDS, NAN, Collected
from debubble.diagnosis.readers.messages import packed
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import LeftOut, json_object, listed
from debubble.interchange.text import shown

NAME = "primus"
MARKS: tuple[bytes, ...] = ()
MAX_BYTES = 1 << 28

CONFIG = "config.json"
MOST_CHUNKS = 64
MOST_DIGITS = 9
"""Exclusive limit of the digits of an iteration's number."""

LATEST = 1 << 62
UNNUMBERED, NO_CALL = -1, -2
"""Chunk of an unnumbered call, and of one with a negative number."""


_FILE = re.compile(r"pp_rank_(\d{1,6})\.json(\.gz)?", re.ASCII)
KINDS = {"fwd": Kind.F, "bwd": Kind.B, "wgrad": Kind.W}

NO_STEP = "iterations without lists of starts and ends of the same length"


class _Run(NamedTuple):
    """Iterations in one rank's file; times in milliseconds from the beginning of each."""

    calls: Calls
    longest: Mapping[int, float]
    """Minimum length of every iteration, in milliseconds."""
    without: int
    """Iterations without calls."""


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    return b'"fwd_start"' in head or (b'"pp_size"' in head and b'"num_mbs"' in head)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the files of all ranks; raise FormatError when none has a rank and iterations."""
    config: Mapping[str, Any] = {}
    runs: dict[int, _Run] = {}
    locations: dict[tuple[int, int], Location] = {}
    for path, (run, data) in read_each(_read_file, files, left_out):
        name = _FILE.fullmatch(path.name)
        if path.name == CONFIG:
            config = data
        elif name is None:
            left_out["files without a rank in their name, as pp_rank_0.json has it"] += 1
        elif run:
            runs[int(name[1])] = run
            locations[0, int(name[1])] = Location(file=str(path))
    if not runs:
        raise FormatError(f"{where}: no file pp_rank_0.json …; give the folder that Primus wrote")
    if without := sum(run.without for run in runs.values()):
        left_out[NO_STEP] += without
    ranks = max(_size(config, "pp_size"), max(runs) + 1)
    chunks = max(_size(config, "vp_size"), 1)
    calls = _together(runs)
    named = not (calls.chunk == UNNUMBERED).any()
    calls = _numbered(calls, ranks, chunks)
    v_shaped = named and is_v_shaped(calls, ranks)
    collected = Collected(where, left_out)
    collected.many(
        "actions", calls.step, 0, calls.rank, with_split_backwards(calls),
        stage_of(calls.rank, calls.chunk, ranks, v_shaped), calls.microbatch, 0, _pairs(calls),
        calls.start * MILLISECONDS, calls.end * MILLISECONDS, NAN, NAN, NAN,
    )  # fmt: skip
    return collected.observed(
        NAME,
        {
            "rank": "number in the file's name",
            "stage": f"chunk and rank, {placed(v_shaped)}" if chunks > 1 else "rank",
            "microbatch": "lists in the file" if named else "the k-th call is microbatch k's",
            "step": "iteration in the file",
            "copy": "only data-parallel rank 0 writes",
            "clock": "every rank's own zero, when it began the iteration",
        },
        ranks=ranks, unit=MILLISECONDS, locations=locations, clocks="ranks",
        order_assumed="interleaved-1f1b" if chunks > 1 and not named else "",
    )  # fmt: skip


def _read_file(path: Path, left_out: LeftOut) -> tuple[_Run | None, Mapping[str, Any]]:
    """Return the run of a rank's file, or None without one, and the object of the config file."""
    data = json_object(path, MAX_BYTES, left_out)
    is_ranks = data and _FILE.fullmatch(path.name) is not None
    return _run(data) if is_ranks else None, data if path.name == CONFIG else {}


def _together(runs: Mapping[int, _Run]) -> Calls:
    """Return the calls of all ranks, with iterations laid one after the other."""
    longest: dict[int, float] = {}
    for run in runs.values():
        for step, length in run.longest.items():
            longest[step] = max(longest.get(step, 0.0), length)
    calls = Calls.joined([run.calls for run in runs.values()])
    steps = np.array(sorted(longest))
    zeros = np.cumsum([0.0, *(longest[step] for step in steps.tolist())])
    zero = zeros[np.searchsorted(steps, calls.step)]
    rank = np.repeat([*runs], [len(run.calls.step) for run in runs.values()])
    return replace(calls, rank=rank, start=zero + calls.start, end=zero + calls.end)


def _numbered(calls: Calls, ranks: int, chunks: int) -> Calls:
    """Return calls with chunks and microbatches, inferred if the file does not number them."""
    without = calls.chunk == UNNUMBERED
    chunk, microbatch = np.where(without, 0, calls.chunk), calls.microbatch.copy()
    if chunks > 1:
        for backward in (False, True):
            here = without & (np.isin(calls.kind, FORWARD_KINDS) != backward)
            chunk[here], microbatch[here] = kth_call(microbatch[here], ranks, chunks, backward)
    return replace(calls, chunk=chunk, microbatch=microbatch)


def _pairs(calls: Calls) -> Whole | int:
    """Return the pair of every call: forward and backward that ran together have one interval."""
    starts = np.sort(calls.start)
    if not (starts[1:] == starts[:-1]).any():
        return ALONE
    pair = np.full(len(calls.start), ALONE)
    mine = np.flatnonzero(calls.kind != Kind.W)
    place = packed([calls.step[mine], calls.rank[mine]])
    order = np.lexsort((calls.end[mine], calls.start[mine], place))
    mine, place = mine[order], place[order]
    new = np.zeros(len(mine), bool)
    for column in (place, calls.start[mine], calls.end[mine]):
        new[1:] |= column[1:] != column[:-1]
    number = np.cumsum(new)
    forward = calls.kind[mine] == Kind.F
    together = np.bincount(number[forward], minlength=len(mine) + 1)[number] > 0
    together &= np.bincount(number[~forward], minlength=len(mine) + 1)[number] > 0
    pair[mine[together]] = number[together]
    return pair


def _run(data: Mapping[str, Any]) -> _Run:
    """Return the iterations of a file; calls have no rank yet."""
    parts: list[tuple[int, Kind, int]] = []
    columns: list[list[Any]] = [[], [], [], []]
    longest: dict[int, float] = {}
    without = 0
    for key, one in data.items():
        if not (key.isdecimal() and len(key) < MOST_DIGITS and isinstance(one, dict)):
            continue
        step = int(key)
        times = {
            name: [listed(one.get(f"{name}_{edge}"), float) for edge in ("start", "end")]
            for name in KINDS
        }
        sound = all(len(starts) == len(ends) for starts, ends in times.values())
        for name, (starts, ends) in times.items() if sound else ():
            numbered = one.get(f"{name}_chunk"), one.get(f"{name}_minibatch")
            parts.append((step, KINDS[name], len(starts)))
            chunks, units = _chunks_and_units(*numbered, len(starts))
            for column, more in zip(columns, (chunks, units, starts, ends), strict=True):
                column.extend(more)
        without += not sound or not any(starts for starts, _ in times.values())
        last = [max(ends, default=0.0) for _, ends in times.values()]
        longest[step] = max(longest.get(step, 0.0), *last, *listed([one.get("total")], float))
    steps, kinds, counts = np.array(parts, np.int64).reshape(-1, 3).T
    of_calls, kind = np.repeat(steps, counts), np.repeat(kinds, counts)
    chunk = np.array(columns[0], np.int64)
    try:
        unit = np.array(columns[1], np.int64)
    except OverflowError:
        unit = np.array([max(min(each, LATEST), 0) for each in columns[1]], np.int64)
    start, end = (np.array(each, np.float64) for each in columns[2:])
    calls = Calls(of_calls, np.full(len(kind), UNNUMBERED), kind, chunk, unit, start, end)
    return _Run(calls.take(chunk != NO_CALL), longest, without)


def _chunks_and_units(chunks: Any, units: Any, count: int) -> tuple[Iterable[int], Iterable[int]]:
    """Return chunk and microbatch of the calls of a kind; no chunks if not all are numbered."""
    chunks, units = listed(chunks, int), listed(units, int)
    if {len(chunks), len(units)} != {count} or max(chunks, default=MOST_CHUNKS) >= MOST_CHUNKS:
        return [UNNUMBERED] * count, range(count)
    if min(*chunks, *units) < 0:
        pairs = zip(chunks, units, strict=True)
        chunks = [chunk if min(chunk, unit) >= 0 else NO_CALL for chunk, unit in pairs]
    return chunks, units


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key, 0)
    if type(value) is not int or not 0 <= value <= 1 << 16:
        raise FormatError(f"config.json: {key} is {shown(value)}; it is a number up to 65536")
    return value
