"""Primus's ``--dump_pp_data``: ``pp_rank_0.json`` …, and ``config.json`` beside them.

A file has, for every iteration, starts and ends of forwards, backwards and backwards for weights
in milliseconds from when that rank began the iteration: every rank has its own zero. Only
data-parallel rank 0 writes. Microbatches and chunks stand beside the times, save for Megatron's own
schedules; there the k-th call counts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from debubble.core.errors import FormatError
from debubble.core.kinds import FORWARD_KINDS, Kind
from debubble.diagnosis.observed import ALONE, Observed
from debubble.diagnosis.readers.chunks import (
    Calls,
    Whole,
    first_units,
    is_v_shaped,
    kth_call,
    placed,
    stage_of,
)
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.layouts import Layout, Number, decoded, layouts
from debubble.diagnosis.readers.messages import packed
from debubble.diagnosis.readers.pool import Workers
from debubble.diagnosis.readers.stream import LeftOut, as_object, blocks, whole
from debubble.interchange.text import shown

NAME = "primus"
MAX_BYTES = 1 << 28
MILLISECONDS = 1e-3

BLOCK = 1 << 19
"""Bytes of iterations that are read at a time."""

NO_ITERATION = b"-"

MOST_CHUNKS = 64
MOST_STEP = 10**8
LATEST = 1 << 62
UNNUMBERED = -1

_FILE = re.compile(r"pp_rank_(\d{1,6})\.json(\.gz)?", re.ASCII)
_BEGIN = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"')
_BETWEEN = re.compile(rb'\}[ \t\r\n]*,[ \t\r\n]*"')
_END = re.compile(rb"\}[ \t\r\n]*\}[ \t\r\n]*\Z")
KINDS = {"fwd": Kind.F, "bwd": Kind.B, "wgrad": Kind.W}

NO_STEP = "iterations without lists of starts and ends of the same length"


class _Run(NamedTuple):
    """What one rank's file tells; times in milliseconds from the beginning of the iteration."""

    parts: Sequence[Calls]
    """The calls of some iterations each."""
    longest: Mapping[int, float]
    """How long every iteration took at least."""
    named: bool = True
    """Whether the file numbers the calls."""
    without: int = 0
    """Iterations without calls."""


def recognizes(head: bytes) -> bool:
    """Whether this is such a file, by its beginning."""
    return b'"fwd_start"' in head or (b'"pp_size"' in head and b'"num_mbs"' in head)


def read(where: str, files: Sequence[Path], left_out: LeftOut, workers: Workers) -> Observed:
    """Read the files of all ranks.

    Raises
    ------
    FormatError
        When no file has a rank in its name and iterations.
    """
    config: Mapping[str, Any] = {}
    runs: dict[int, _Run] = {}
    for path, (run, other) in workers.each(_read_file, files, left_out):
        name = _FILE.fullmatch(path.name)
        if path.name == "config.json":
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
    """What a rank's file tells, None for nothing; and the object of another file."""
    is_ranks = _FILE.fullmatch(path.name) is not None
    found = _by_layout(path) if is_ranks else None
    data = {} if found else as_object(whole(path, MAX_BYTES, left_out), left_out)
    if is_ranks and data:
        found = _one_by_one(data)
    return found, data


def _together(runs: Mapping[int, _Run], ranks: int, chunks: int) -> Iterator[Calls]:
    """The calls of all ranks, with iterations laid one behind the other."""
    longest: dict[int, float] = {}
    for run in runs.values():
        for step, length in run.longest.items():
            longest[step] = max(longest.get(step, 0.0), length)
    steps = np.array(sorted(longest))
    zeros = np.cumsum([0.0, *(longest[step] for step in steps.tolist())])
    for rank, run in runs.items():
        for part in run.parts:
            calls = _numbered(part, ranks, chunks)
            zero = zeros[np.searchsorted(steps, calls.step)]
            yield calls._replace(
                rank=np.full(len(zero), rank, np.int32), start=zero + calls.start,
                end=zero + calls.end,
            )  # fmt: skip


def _numbered(calls: Calls, ranks: int, chunks: int) -> Calls:
    """Calls with chunks and microbatches also where the file does not number them."""
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
    """Kinds of calls: a backward of which there is one for weights, too, is one for the input."""
    if not (calls.kind == Kind.W).any():
        return calls.kind
    action = packed([calls.step, calls.rank, calls.chunk, calls.microbatch])
    split = np.isin(action, action[calls.kind == Kind.W])
    return np.where(split & (calls.kind == Kind.B), Kind.I, calls.kind)


def _pairs(calls: Calls) -> Whole | int:
    """The pair of every call: forward and backward that ran together have one interval."""
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


def _by_layout(path: Path) -> _Run | None:
    """What a file tells that is written as Primus does it; None for others."""
    parts: list[Calls] = []
    longest: dict[int, float] = {}
    size = iterations = without = 0
    named = True
    for text in _texts(path):
        size += len(text)
        found, odd = layouts(text, _BETWEEN.split)
        if odd or size > MAX_BYTES:
            return None
        for layout in found:
            plan = _plan(layout.text)
            part = plan and _columns(layout, plan)
            if not plan or not part:
                return None
            calls, lengths = part
            parts.append(calls)
            longest |= lengths
            iterations += len(layout.at)
            named &= plan.named
            without += 0 if plan.starts else len(layout.at)
    if len(longest) < iterations:
        return None
    return _Run(parts, longest, named, without)


def _texts(path: Path) -> Iterator[bytes]:
    """A file as texts of whole iterations without the braces around them.

    Of a file that is not one object of such there is something that is no iteration.
    """
    before: bytes | None = None
    for text in blocks(path, LeftOut(), _BETWEEN, BLOCK):
        if before is not None:
            yield before
            before = text
            continue
        begin = _BEGIN.match(text)
        before = text[begin.end() :] if begin else NO_ITERATION
    end = _END.search(before or b"")
    yield before[: end.start()] if before and end else NO_ITERATION


class _Plan(NamedTuple):
    """Where iterations of one layout have their numbers, call by call."""

    step: int
    total: tuple[Number, ...]
    kinds: tuple[int, ...]
    starts: tuple[Number, ...]
    ends: tuple[Number, ...]
    numbers: tuple[tuple[Number, Number] | None, ...]
    """Chunk and microbatch of every call, as far as the file numbers it."""
    places: tuple[int, ...]
    """Which of its kind every call is."""

    @property
    def named(self) -> bool:
        """Whether all calls are numbered."""
        return None not in self.numbers


@functools.lru_cache(maxsize=256)
def _plan(text: bytes) -> _Plan | None:
    """What an iteration's layout tells; None where it is another than Primus writes."""
    try:
        ((key, one),) = decoded(b'{"' + text + b"}}").items()
    except (ValueError, RecursionError):
        return None
    total = one.get("total")
    lists = {
        name: [_list(one.get(f"{name}_{key}")) for key in ("start", "end", "minibatch", "chunk")]
        for name in KINDS
    }
    usual = (
        key == "1"
        and isinstance(total, Number | None)
        and all(isinstance(each, Number) for four in lists.values() for found in four
                for each in found)
        and all(len(starts) == len(ends) for starts, ends, *_ in lists.values())
    )  # fmt: skip
    if not usual:
        return None
    rows: list[tuple[int, Number, Number, tuple[Number, Number] | None, int]] = []
    for name, (starts, ends, units, parts) in lists.items():
        given = len(units) == len(parts) == len(starts)
        numbers = list(zip(parts, units, strict=True)) if given else [None] * len(starts)
        for place, times in enumerate(zip(starts, ends, strict=True)):
            rows.append((KINDS[name], *times, numbers[place], place))
    columns = tuple(zip(*rows, strict=True)) or ((),) * 5
    return _Plan(1, () if total is None else (total,), *columns)


def _columns(layout: Layout, plan: _Plan) -> tuple[Calls, dict[int, float]] | None:
    """Calls of iterations, and how long these took; None for numbers that Primus does not write."""
    rows, count = layout.rows, len(plan.starts)
    step = rows.runs([plan.step])
    times = rows.numbers([*plan.starts, *plan.ends, *plan.total])
    numbered = [each for each in plan.numbers if each is not None]
    numbers = rows.wholes([each for two in zip(*numbered, strict=True) for each in two])
    chunk, microbatch = np.split(numbers, 2, axis=1)
    if step.max() >= MOST_STEP or numbers.min(initial=0) < 0:
        return None
    if chunk.max(initial=0) >= MOST_CHUNKS:
        return None
    small = numbers.max(initial=0) < 1 << 31
    every = np.full((2, len(rows), count), UNNUMBERED, np.int32 if small else np.int64)
    every[1] = plan.places
    every[:, :, [each is not None for each in plan.numbers]] = chunk, microbatch
    shape = len(rows), count
    starts, ends = times[:, :count], times[:, count : 2 * count]
    kind = np.array(plan.kinds, np.int32)
    columns = step.astype(np.int32), UNNUMBERED, kind, *every, starts, ends
    longest = times[:, count:].max(axis=1, initial=0.0)
    return (
        Calls(*(np.broadcast_to(column, shape).ravel() for column in columns)),
        dict(zip(step[:, 0].tolist(), longest.tolist(), strict=True)),
    )


def _one_by_one(data: Mapping[str, Any]) -> _Run:
    """What a file tells that is written in another way."""
    rows: list[tuple[Any, ...]] = []
    longest: dict[int, float] = {}
    named, without = True, 0
    for step, one in _iterations(data):
        found = list(_calls(one))
        named &= all(chunk != UNNUMBERED for _, chunk, *_ in found)
        without += not found
        rows += [(step, UNNUMBERED, *call) for call in found]
        ends = [max(_numbers(one.get(f"{name}_end")), default=0.0) for name in KINDS]
        ends += _numbers([one.get("total")])
        longest[step] = max(longest.get(step, 0.0), *ends)
    columns = list(zip(*rows, strict=True)) or [()] * len(Calls._fields)
    numbers = [np.array(each, np.int64) for each in columns[:5]]
    start, end = (np.array(each, np.float64) for each in columns[5:])
    calls = Calls._make([*numbers, start, end])
    return _Run([calls], longest, named, without)


def _calls(one: Mapping[str, Any]) -> Iterator[tuple[Kind, int, int, float, float]]:
    """Kind, chunk, microbatch, start and end of every call.

    Of those that the file does not number it is UNNUMBERED, and which of its kind it is.
    """
    lists = {
        name: [_numbers(one.get(f"{name}_{edge}")) for edge in ("start", "end")] for name in KINDS
    }
    if any(len(starts) != len(ends) for starts, ends in lists.values()):
        return
    for name, kind in KINDS.items():
        starts, ends = lists[name]
        units, parts = (_list(one.get(f"{name}_{key}")) for key in ("minibatch", "chunk"))
        given = len(units) == len(parts) == len(starts)
        for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
            given = (
                given and type(units[k]) is int and type(parts[k]) is int
                and parts[k] < MOST_CHUNKS
            )  # fmt: skip
            chunk, microbatch = (parts[k], min(units[k], LATEST)) if given else (UNNUMBERED, k)
            if not given or min(chunk, microbatch) >= 0:
                yield kind, chunk, microbatch, start, end


def _iterations(data: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for key, one in data.items():
        if key.isdecimal() and len(key) < 9 and isinstance(one, dict):
            yield int(key), one


def _list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else []


def _numbers(values: Any) -> list[float]:
    if not isinstance(values, list) or not all(type(v) in (int, float) for v in values):
        return []
    try:
        return [float(value) for value in values]
    except OverflowError:
        return []


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key, 0)
    if type(value) is not int or not 0 <= value <= 1 << 16:
        raise FormatError(f"config.json: {key} is {shown(value)}; it is a number up to 65536")
    return value
