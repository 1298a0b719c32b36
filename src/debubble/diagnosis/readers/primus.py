"""Primus's ``--dump_pp_data``: ``pp_rank_0.json`` …, and ``config.json`` next to them.

A file has, for every iteration, starts and ends of forwards, backwards and backwards for weights,
in milliseconds from the rank's start of the iteration. So every rank has its own zero. Only
data-parallel rank 0 writes. Microbatches and chunks are next to the times, except for Megatron's
own schedules, where they follow from the index of the call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from debubble.core.errors import FormatError
from debubble.core.kinds import FORWARD_KINDS, Kind
from debubble.diagnosis.observed import ALONE, Observed, Whole
from debubble.diagnosis.readers.chunks import (
    Calls,
    first_units,
    is_v_shaped,
    kth_call,
    placed,
    stage_of,
)
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.messages import packed
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import LeftOut, as_object, whole
from debubble.interchange.text import shown

NAME = "primus"
MAX_BYTES = 1 << 28
MILLISECONDS = 1e-3

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
    named: bool = True
    """True if the file numbers the calls."""
    without: int = 0
    """Iterations without calls."""


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    return b'"fwd_start"' in head or (b'"pp_size"' in head and b'"num_mbs"' in head)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the files of all ranks.

    Raises
    ------
    FormatError
        When no file has a rank in its name and iterations.
    """
    config: Mapping[str, Any] = {}
    runs: dict[int, _Run] = {}
    for path, (run, other) in read_each(_read_file, files, left_out):
        name = _FILE.fullmatch(path.name)
        if path.name == CONFIG:
            config = other
        elif name is None:
            left_out["files without a rank in their name, as pp_rank_0.json has it"] += 1
        elif run:
            runs[int(name[1])] = run
    if not runs:
        raise FormatError(f"{where}: no file pp_rank_0.json …; give the folder that Primus wrote")
    if without := sum(run.without for run in runs.values()):
        left_out[NO_STEP] += without
    ranks = max(_size(config, "pp_size"), max(runs) + 1)
    chunks = max(_size(config, "vp_size"), 1)
    named = all(run.named for run in runs.values())
    return _observed(where, _together(runs, ranks, chunks), ranks, chunks, named, left_out)


def _read_file(path: Path, left_out: LeftOut) -> tuple[_Run | None, Mapping[str, Any]]:
    """Return the run of a rank's file, or None without one, and the object in the file."""
    data = as_object(whole(path, MAX_BYTES, left_out), left_out)
    is_ranks = data and _FILE.fullmatch(path.name) is not None
    return _run(data) if is_ranks else None, data if path.name == CONFIG else {}


def _together(runs: Mapping[int, _Run], ranks: int, chunks: int) -> Iterator[Calls]:
    """Yield the calls of all ranks, with iterations laid one after the other."""
    longest: dict[int, float] = {}
    for run in runs.values():
        for step, length in run.longest.items():
            longest[step] = max(longest.get(step, 0.0), length)
    steps = np.array(sorted(longest))
    zeros = np.cumsum([0.0, *(longest[step] for step in steps.tolist())])
    for rank, run in runs.items():
        calls = _numbered(run.calls, ranks, chunks)
        zero = zeros[np.searchsorted(steps, calls.step)]
        yield calls._replace(
            rank=np.full(len(zero), rank), start=zero + calls.start, end=zero + calls.end
        )


def _numbered(calls: Calls, ranks: int, chunks: int) -> Calls:
    """Return calls with chunks and microbatches, inferred if the file does not number them."""
    without = calls.chunk == UNNUMBERED
    if not without.any():
        return calls
    chunk, microbatch = np.where(without, 0, calls.chunk), calls.microbatch.copy()
    if chunks > 1:
        for backward in (False, True):
            here = without & (np.isin(calls.kind, FORWARD_KINDS) != backward)
            chunk[here], microbatch[here] = kth_call(microbatch[here], ranks, chunks, backward)
    return calls._replace(chunk=chunk, microbatch=microbatch)


def _observed(
    where: str, calls: Iterable[Calls], ranks: int, chunks: int, named: bool, left_out: LeftOut
) -> Observed:
    collected = Collected(where, left_out)
    parts = list(calls)
    v_shaped = named and is_v_shaped(first_units(parts, ranks), ranks)
    pairs = 0
    while parts:
        part = parts.pop(0)
        pair = _pairs(part)
        collected.many(
            "actions", part.step, 0, part.rank, _kinds(part),
            stage_of(part.rank, part.chunk, ranks, v_shaped), part.microbatch, 0,
            np.where(pair == ALONE, ALONE, pair + pairs) if np.ndim(pair) else pair,
            part.start * MILLISECONDS, part.end * MILLISECONDS, NAN, NAN, NAN,
        )  # fmt: skip
        pairs += len(part.step)
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
        ranks=ranks, unit=MILLISECONDS, clocks="ranks",
        order_assumed="interleaved-1f1b" if chunks > 1 and not named else "",
    )  # fmt: skip


def _kinds(calls: Calls) -> Whole:
    """Return the kinds of calls: a backward is one for the input if one for weights exists."""
    if not (calls.kind == Kind.W).any():
        return calls.kind
    action = packed([calls.step, calls.rank, calls.chunk, calls.microbatch])
    split = np.isin(action, action[calls.kind == Kind.W])
    return np.where(split & (calls.kind == Kind.B), Kind.I, calls.kind)


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
    """Return the iterations of a file."""
    lists = {name: _Lists() for name in KINDS}
    steps: list[int] = []
    longest: dict[int, float] = {}
    without = 0
    for key, one in data.items():
        if not (key.isdecimal() and len(key) < MOST_DIGITS and isinstance(one, dict)):
            continue
        step = int(key)
        steps.append(step)
        times = {
            name: [_numbers(one.get(f"{name}_{edge}")) for edge in ("start", "end")]
            for name in KINDS
        }
        sound = all(len(starts) == len(ends) for starts, ends in times.values())
        for name, (starts, ends) in times.items():
            numbered = (one.get(f"{name}_chunk"), one.get(f"{name}_minibatch")) if sound else ()
            lists[name].add(starts if sound else [], ends if sound else [], *numbered)
        without += not sound or not any(starts for starts, _ in times.values())
        last = [max(ends, default=0.0) for _, ends in times.values()]
        longest[step] = max(longest.get(step, 0.0), *last, *_numbers([one.get("total")]))
    parts = [lists[name].calls(steps, kind) for name, kind in KINDS.items()]
    calls = Calls(*map(np.concatenate, zip(*parts, strict=True)))
    return _Run(calls, longest, not (calls.chunk == UNNUMBERED).any(), without)


class _Lists:
    """Calls of one kind in all iterations of a file."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._chunks: list[int] = []
        self._units: list[int] = []

    def add(
        self, starts: Sequence[float], ends: Sequence[float], chunks: Any = None, units: Any = None
    ) -> None:
        """Add an iteration; a call is numbered if all calls of its kind are."""
        count = len(starts)
        self._counts.append(count)
        self._starts += starts
        self._ends += ends
        both = [each if isinstance(each, list) and len(each) == count else [] for each in
                (chunks, units)]  # fmt: skip
        are_whole = all(both) and {type(one) for each in both for one in each} == {int}
        if are_whole and max(both[0]) < MOST_CHUNKS:
            chunks, units = both
            if min(map(min, both)) < 0:
                pairs = zip(chunks, units, strict=True)
                chunks = [chunk if min(chunk, unit) >= 0 else NO_CALL for chunk, unit in pairs]
            self._chunks += chunks
            self._units += units
        else:
            self._chunks += [UNNUMBERED] * count
            self._units += range(count)

    def calls(self, steps: Sequence[int], kind: Kind) -> Calls:
        """Return the calls."""
        step = np.repeat(np.array(steps, np.int64), self._counts)
        try:
            unit = np.array(self._units, np.int64)
        except OverflowError:
            unit = np.array([max(min(unit, LATEST), 0) for unit in self._units], np.int64)
        start, end = np.array(self._starts, np.float64), np.array(self._ends, np.float64)
        rank = np.full(len(step), UNNUMBERED)
        kinds = np.full(len(step), int(kind))
        chunk = np.array(self._chunks, np.int64)
        calls = Calls(step, rank, kinds, chunk, unit, start, end)
        return calls.taken(chunk != NO_CALL) if NO_CALL in self._chunks else calls


def _numbers(values: Any) -> list[float]:
    """Return a list of numbers; empty for anything else."""
    if not isinstance(values, list) or not {*map(type, values)} <= {int, float}:
        return []
    try:
        return list(map(float, values))
    except OverflowError:
        return []


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key, 0)
    if type(value) is not int or not 0 <= value <= 1 << 16:
        raise FormatError(f"config.json: {key} is {shown(value)}; it is a number up to 65536")
    return value
