"""The timers of Victarry's Megatron-LM: ``event_times_PP4_VPP1_…_pp_rank_0_rank_0.json``.

A file has the milliseconds from a barrier to every start and end of one iteration, by keys
``forward-{microbatch}-start`` or ``backward-{chunk}-{microbatch}-end``. Starts lie behind the
receive, so no time contains a wait; the zeros of ranks differ as much as their ways out of the
barrier. Files of other tensor-, context- or data-parallel ranks tell the same and are left out.
"""

from __future__ import annotations

import functools
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from debubble.core.errors import FormatError
from debubble.core.kinds import Kind
from debubble.diagnosis.observed import ALONE, Observed
from debubble.diagnosis.readers.chunks import (
    Calls,
    Times,
    Whole,
    first_units,
    is_v_shaped,
    placed,
    stage_of,
)
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.layouts import NOTHING, RUN, Layout, Number, decoded, layouts
from debubble.diagnosis.readers.pool import Workers
from debubble.diagnosis.readers.scan import FINITE, number
from debubble.diagnosis.readers.stream import LeftOut, as_object, whole

NAME = "victarry"
MAX_BYTES = 1 << 26
MILLISECONDS = 1e-3
KINDS = {"forward": Kind.F, "backward": Kind.B}

BATCH = 1 << 21
"""Bytes of files that are read together."""

GROUP = 128
"""Files of one task."""

BETWEEN = b"\x1e"
"""Stands between two files; as text it occurs in none."""

MOST = 10**6
"""Least number that no key has."""

_HEAD = re.compile(rb'"(?:forward|backward)-\d{1,6}(?:-\d{1,6})?-(?:start|end)"')
_KEY = re.compile(r"(forward|backward)-(?:(\d{1,6})-)?(\d{1,6})-(start|end)", re.ASCII)
_FILE = re.compile(r"(?:DP_rank_(?P<other>\d{1,7})_)?pp_rank_(?P<rank>\d{1,6})", re.ASCII)
_SIZE = re.compile(r"_PP(\d{1,5})_", re.ASCII)

NO_RANK = "files without pp_rank_0 or so in their name"
OTHERS = "files of other tensor-, context- or data-parallel ranks than the first"
OPEN = "actions without a start or an end"


def recognizes(head: bytes) -> bool:
    """Whether this is such a file, by its beginning."""
    return _HEAD.search(head) is not None


def read(where: str, files: Sequence[Path], left_out: LeftOut, workers: Workers) -> Observed:
    """Read the files of all ranks; several folders of them are several iterations.

    Raises
    ------
    FormatError
        When no file has a pipeline rank in its name.
    """
    parents = [os.path.dirname(path) for path in files]
    folders = {folder: number for number, folder in enumerate(dict.fromkeys(parents))}
    named: list[tuple[int, int, Path]] = []
    ranks = 0
    for path, parent in zip(files, parents, strict=True):
        name = _FILE.search(path.name)
        if name is None:
            left_out[NO_RANK] += 1
            continue
        if int(name["other"] or 0):
            left_out[OTHERS] += 1
            continue
        size = _SIZE.search(path.name)
        named.append((folders[parent], int(name["rank"]), path))
        ranks = max(ranks, int(size[1]) if size else 0, int(name["rank"]) + 1)
    groups = [named[at : at + GROUP] for at in range(0, len(named), GROUP)]
    parts = [calls for _, found in workers.each(_read_group, groups, left_out) for calls in found]
    if not parts:
        raise FormatError(f"{where}: no file event_times_…_pp_rank_0_….json has times of actions")
    v_shaped = is_v_shaped(first_units(parts, ranks), ranks)
    # Iterations are laid one behind the other.
    longest = np.zeros(len(folders))
    for calls in parts:
        np.fmax.at(longest, calls.step, calls.end)
    zeros = np.append(0.0, np.cumsum(longest)[:-1])
    collected = Collected(where, left_out)
    for calls in parts:
        zero = zeros[calls.step]
        collected.many(
            "actions", calls.step, 0, calls.rank, calls.kind,
            stage_of(calls.rank, calls.chunk, ranks, v_shaped), calls.microbatch, 0, ALONE,
            (zero + calls.start) * MILLISECONDS, (zero + calls.end) * MILLISECONDS, NAN, NAN, NAN,
        )  # fmt: skip
    del parts
    return collected.observed(
        NAME,
        {
            "rank": "pp_rank in the file's name",
            "stage": f"chunk and rank, {placed(v_shaped)}",
            "microbatch": "keys",
            "step": "one a folder",
            "copy": "only the first rank of every stage",
            "clock": "every rank's own, from a barrier on",
        },
        ranks=ranks, unit=MILLISECONDS, clocks="ranks",
    )  # fmt: skip


def _read_group(files: Sequence[tuple[int, int, Path]], left_out: LeftOut) -> list[Calls]:
    """Actions of files, each with its step and rank."""
    return [calls for batch in _batches(files, left_out) for calls in _read(batch, left_out)]


def _batches(
    files: Sequence[tuple[int, int, Path]], left_out: LeftOut
) -> Iterator[list[tuple[int, int, bytes]]]:
    """Step, rank and content of many files at a time: most are small."""
    batch: list[tuple[int, int, bytes]] = []
    size = 0
    for step, rank, path in files:
        batch.append((step, rank, whole(path, MAX_BYTES, left_out)))
        size += len(batch[-1][-1])
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read(batch: Sequence[tuple[int, int, bytes]], left_out: LeftOut) -> Iterator[Calls]:
    """Actions of some files."""
    texts = [text for *_, text in batch]
    place = np.array([row[:2] for row in batch], np.int64).reshape(-1, 2)
    # A file that has the byte between files in it is read by itself.
    found, odd = layouts(BETWEEN.join(text.replace(BETWEEN, RUN) for text in texts), _split)
    for layout in found:
        plan = _plan(layout.text)
        columns = plan and _columns(layout, plan)
        if plan and columns:
            step, rank = (each[:, None] for each in place[layout.at].T)
            kind = np.array(plan.kinds)
            every = np.broadcast_arrays(step, rank, kind, *columns)
            yield Calls(*(column.ravel() for column in every))
        else:
            odd += layout.at.tolist()
    for at in sorted(odd):
        rows = list(_actions(as_object(texts[at], left_out), left_out))
        if rows:
            kind, chunk, unit, start, end = map(np.array, zip(*rows, strict=True))
            step, rank = (np.full(len(rows), each) for each in place[at])
            yield Calls(step, rank, kind, chunk, unit, start, end)


def _split(text: bytes) -> list[bytes]:
    return text.split(BETWEEN)


class _Plan(NamedTuple):
    """Where files of one layout have the numbers of their actions."""

    kinds: tuple[Kind, ...]
    actions: tuple[tuple[int, int], ...]
    """Runs of chunk and microbatch in the key of the start."""
    again: tuple[tuple[int, int], ...]
    """The same in the key of the end."""
    starts: tuple[Number, ...]
    ends: tuple[Number, ...]


@functools.lru_cache(maxsize=256)
def _plan(text: bytes) -> _Plan | None:
    """What a file's layout tells; None where it is another than the timers write."""
    try:
        data = decoded(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    found: dict[tuple[str, str], list[tuple[int, tuple[int, int], Number]]] = defaultdict(list)
    for at, (key, value) in enumerate(data.items()):
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        if not isinstance(value, Number):
            return None
        action = int(match[2] or NOTHING), int(match[3])
        found[match[1], match[4]].append((at, action, value))
    rows = []
    for word, kind in KINDS.items():
        starts, ends = found[word, "start"], found[word, "end"]
        if len(starts) != len(ends):
            return None
        # Which of them is the end of which the numbers in the keys have to confirm.
        for (at, action, start), (after, again, end) in zip(starts, ends, strict=True):
            rows.append((min(at, after), kind, action, again, start, end))
    return _Plan(*list(zip(*sorted(rows), strict=True))[1:]) if rows else None


def _columns(layout: Layout, plan: _Plan) -> tuple[Whole, Whole, Times, Times] | None:
    """Chunk, microbatch, start and end of actions; None where keys are not those of a plan."""
    rows = layout.rows
    keys = rows.runs([run for two in (*plan.actions, *plan.again) for run in two])
    actions, again = np.split(keys, 2, axis=1)
    chunk, microbatch = actions[:, ::2], actions[:, 1::2]
    codes = np.sort((chunk * MOST + microbatch) * len(Kind) + np.array(plan.kinds), axis=1)
    if keys.max() >= MOST or (actions != again).any() or (codes[:, 1:] == codes[:, :-1]).any():
        return None
    times = rows.numbers([*plan.starts, *plan.ends])
    start, end = np.split(np.where(np.abs(times) < FINITE, times, NAN), 2, axis=1)
    return chunk, microbatch, start, end


def _actions(
    data: Mapping[str, Any], left_out: LeftOut
) -> Iterator[tuple[Kind, int, int, float, float]]:
    """Kind, chunk, microbatch, start and end of every action of a file."""
    times: dict[tuple[Kind, int, int], dict[str, float]] = {}
    for key, value in data.items():
        match = _KEY.fullmatch(key)
        if match is not None:
            action = (KINDS[match[1]], int(match[2] or 0), int(match[3]))
            times.setdefault(action, {})[match[4]] = number(value)
    for action, edges in times.items():
        if len(edges) == 2:
            yield *action, edges["start"], edges["end"]
        else:
            left_out[OPEN] += 1
