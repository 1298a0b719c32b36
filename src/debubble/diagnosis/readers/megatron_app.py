"""Traces of MegatronApp (MegaScan, MegaDPP): Chrome events of all ranks.

Every forward and backward is a pair of a beginning and an end. The end has ``pp_rank``,
``model_chunk`` and ``microbatch`` in ``args``, and the iteration. Times are in microseconds; ranks
are aligned before they are written (github.com/OpenSQZ/MegatronApp).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from debubble.core.errors import FormatError
from debubble.diagnosis.observed import ALONE, Location, Observed
from debubble.diagnosis.readers.action_names import PASSES
from debubble.diagnosis.readers.chunks import Calls, is_v_shaped, placed, stage_of
from debubble.diagnosis.readers.collected import MICROSECONDS, NAN, Collected
from debubble.diagnosis.readers.events import FINITE, EventFile, whole
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import LeftOut

NAME = "megatron-app"
MARKS: tuple[bytes, ...] = ()

WANTED = re.compile(rb'"name"\s*:\s*"(?:forward|backward)"')
_END = re.compile(rb'"model_chunk"\s*:\s*\d|"pp_rank"\s*:\s*\d')

NO_NUMBERS = "ends of forwards or backwards without pp_rank, model_chunk and microbatch"
OPEN = "forwards or backwards without a beginning"


class _EndArguments(msgspec.Struct, gc=False):
    """Arguments of an end."""

    iteration: Any = None
    microbatch: Any = None
    model_chunk: Any = None
    pp_rank: Any = None


class _EdgeEvent(msgspec.Struct, gc=False):
    """Beginning or end of a range, as written; times in microseconds."""

    name: str = ""
    ph: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    args: _EndArguments | None = None


Row = tuple[int, int, int, int, int, float, float]
"""Step, rank, kind, chunk, microbatch, start and end; times in microseconds."""


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    ranges = WANTED.search(head) is not None and b'"ph"' in head
    return ranges and (_END.search(head) is not None or b'"iteration begin"' in head)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the file of all ranks, or one of each; raise FormatError without actions."""
    rows: list[Row] = []
    locations: dict[tuple[int, int], Location] = {}
    for path, each in read_each(_read_file, files, left_out):
        rows += each
        for rank in {row[1] for row in each}:
            locations.setdefault((0, rank), Location(file=str(path)))
    if not rows:
        raise FormatError(
            f"{where}: no ends of forwards and backwards with pp_rank, model_chunk and microbatch; "
            "give the traces that MegatronApp aggregates"
        )
    *numbers, start, end = np.array(rows, np.float64).T
    step, rank, kind, chunk, microbatch = (each.astype(np.int64) for each in numbers)
    ranks = int(rank.max()) + 1
    calls = Calls(step, rank, kind, chunk, microbatch, start * MICROSECONDS, end * MICROSECONDS)
    v_shaped = is_v_shaped(calls, ranks)
    collected = Collected(where, left_out)
    collected.many(
        "actions", step, 0, rank, kind, stage_of(rank, chunk, ranks, v_shaped), microbatch, 0,
        ALONE, calls.start, calls.end, NAN, NAN, NAN,
    )  # fmt: skip
    return collected.observed(
        NAME,
        {
            "rank": "pp_rank of every end",
            "stage": f"chunk and rank, {placed(v_shaped)}",
            "microbatch": "of every end",
            "step": "iteration of every end",
            "copy": "one: the format has no data-parallel rank",
            "clock": "one for all ranks, as MegatronApp aligns them",
        },
        ranks=ranks, unit=MICROSECONDS, locations=locations, device="gpu",
    )  # fmt: skip


def _read_file(path: Path, left_out: LeftOut) -> list[Row]:
    """Return the actions of a file."""
    open_since: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    rows: list[Row] = []
    for block in EventFile(path, _EdgeEvent, left_out, wanted=WANTED).blocks():
        for event in block:
            kind, time = PASSES.get(event.name), _time(event.ts)
            if kind is None or event.ph not in ("B", "E"):
                continue
            begun = open_since[repr(event.pid)[:99], repr(event.tid)[:99], event.name]
            if event.ph == "B":
                begun.append(time)
                continue
            if not begun:
                left_out[OPEN] += 1
                continue
            start = begun.pop()
            args = event.args or _EndArguments()
            numbers = [whole(args.pp_rank), whole(args.model_chunk), whole(args.microbatch)]
            if min(numbers) < 0 or math.isnan(start) or math.isnan(time):
                left_out[NO_NUMBERS] += 1
                continue
            rank, chunk, microbatch = numbers
            step = max(whole(args.iteration), 0)
            rows.append((step, rank, kind, chunk, microbatch, start, time))
    return rows


def _time(value: Any) -> float:
    """Return a finite number of an event, or NaN."""
    return float(value) if type(value) in (int, float) and abs(value) < FINITE else NAN
