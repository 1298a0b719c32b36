"""The timers of Victarry's Megatron-LM: ``event_times_PP4_VPP1_…_pp_rank_0_rank_0.json``.

A file has the milliseconds from a barrier to every start and end of one iteration, by keys
``forward-{microbatch}-start`` or ``backward-{chunk}-{microbatch}-end``. Starts are after
the receive, so no time contains a wait. The zeros of ranks differ by their exits from the barrier.
Files of other tensor-, context- or data-parallel ranks have equal content and are left out.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from debubble.core.errors import FormatError
from debubble.core.kinds import Kind
from debubble.diagnosis.observed import ALONE, Location, Observed, Whole
from debubble.diagnosis.readers.action_names import PASSES
from debubble.diagnosis.readers.chunks import Calls, is_v_shaped, placed, stage_of
from debubble.diagnosis.readers.collected import MILLISECONDS, NAN, Collected
from debubble.diagnosis.readers.events import numbers
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import LeftOut, json_object

NAME = "victarry"
MARKS: tuple[bytes, ...] = ()
MAX_BYTES = 1 << 26

_HEAD = re.compile(rb'"(?:forward|backward)-\d{1,6}(?:-\d{1,6})?-(?:start|end)"')
_KEY = re.compile(r"(forward|backward)-(?:(\d{1,6})-)?(\d{1,6})-(start|end)", re.ASCII)
_FILE = re.compile(r"(?:DP_rank_(?P<other>\d{1,7})_)?pp_rank_(?P<rank>\d{1,6})", re.ASCII)
_GLOBAL = re.compile(r"_pp_rank_\d{1,6}_rank_(\d{1,7})", re.ASCII)
_SIZE = re.compile(r"_PP(\d{1,5})_", re.ASCII)

NO_RANK = "files without pp_rank_0 or so in their name"
OTHERS = "files of other tensor-, context- or data-parallel ranks than the first"
OPEN = "actions without a start or an end"


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    return _HEAD.search(head) is not None


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the files of all ranks; several folders of them are several iterations.

    Raise FormatError when no file has a pipeline rank in its name.
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
    each = read_each(_read_file, named, left_out, [path for *_, path in named])
    parts = [calls for _, calls in each if calls is not None]
    if not parts:
        raise FormatError(f"{where}: no file event_times_…_pp_rank_0_….json has times of actions")
    calls = Calls.joined(parts)
    del parts
    locations = {(0, rank): _location(path) for _, rank, path in reversed(named)}
    v_shaped = is_v_shaped(calls, ranks)
    # Iterations are laid one after the other.
    longest = np.zeros(len(folders))
    np.fmax.at(longest, calls.step, calls.end)
    zero = np.append(0.0, np.cumsum(longest)[:-1])[calls.step]
    collected = Collected(where, left_out)
    collected.many(
        "actions", calls.step, 0, calls.rank, calls.kind,
        stage_of(calls.rank, calls.chunk, ranks, v_shaped), calls.microbatch, 0, ALONE,
        (zero + calls.start) * MILLISECONDS, (zero + calls.end) * MILLISECONDS, NAN, NAN, NAN,
    )  # fmt: skip
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
        ranks=ranks, unit=MILLISECONDS, locations=locations, clocks="ranks",
    )  # fmt: skip


def _location(path: Path) -> Location:
    """Return the location of a rank from the name of its file."""
    number = _GLOBAL.search(path.name)
    return Location(int(number[1]) if number else None, file=str(path))


_Task = tuple[int, int, Path]
"""Step and rank of a file."""


def _read_file(task: _Task, left_out: LeftOut) -> Calls | None:
    """Return the actions of a file, or None."""
    step, rank, path = task
    data = json_object(path, MAX_BYTES, left_out)
    actions, starts, ends, still_open = _actions(tuple(data))
    if still_open:
        left_out[OPEN] += still_open
    if not starts:
        return None
    count, values = len(starts), [*data.values()]
    times = numbers([values[at] for at in (*starts, *ends)])
    kind, chunk, microbatch = actions
    return Calls(
        np.full(count, step), np.full(count, rank), kind, chunk, microbatch, times[:count],
        times[count:],
    )  # fmt: skip


@functools.lru_cache(maxsize=1 << 6)
def _actions(keys: tuple[str, ...]) -> tuple[Whole, list[int], list[int], int]:
    """Return the actions of a file's keys, which are the same in all files of a run.

    These are kind, chunk and microbatch of every action, shape ``(3, n)``; the places of the keys
    of their starts and ends; and the number of keys without the other edge.
    """
    edges: dict[str, dict[tuple[Kind, int, int], int]] = {"start": {}, "end": {}}
    for at, key in enumerate(keys):
        if (match := _KEY.fullmatch(key)) is not None:
            action = PASSES[match[1]], int(match[2] or 0), int(match[3])
            edges[match[4]][action] = at
    starts, ends = edges.values()
    actions = [action for action in starts if action in ends]
    return (
        np.array(actions, np.int64).reshape(-1, 3).T,
        [starts[action] for action in actions],
        [ends[action] for action in actions],
        len(starts) + len(ends) - 2 * len(actions),
    )
