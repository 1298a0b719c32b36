"""Reports of Nsight Systems as SQLite files, with NVTX ranges of Megatron-LM or sail-sg's fork.

``nsys export --type sqlite report.nsys-rep`` writes such a file. sail-sg's Zero Bubble runtime
names its ranges ``F{microbatch}.{chunk}.{slice}``, ``B…`` and ``W…``, and every iteration
``iter_{rank}_{number}``. A backward with a W is one for the input. ``debubble.megatron`` names them
``PP:0F3``. Without such names, ranges of PyTorch's operators show forwards and backwards, as in
its profiler: Megatron and NeMo record them with ``emit_nvtx``. The ranges are the host's: an
action lasts from its first to its last kernel.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.diagnosis.observed import ALONE, Location, Observed
from debubble.diagnosis.readers.chunks import (
    Calls,
    is_v_shaped,
    placed,
    stage_of,
    with_split_backwards,
)
from debubble.diagnosis.readers.collected import NAN, NANOSECONDS, Collected
from debubble.diagnosis.readers.kineto_file import UNKNOWN, KinetoFile
from debubble.diagnosis.readers.kineto_places import Place, places
from debubble.diagnosis.readers.kineto_rank import RankTrace, trace_of
from debubble.diagnosis.readers.kineto_unnamed import (
    add_staged_ranges,
)
from debubble.diagnosis.readers.nsys_report import STAGED, processes
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import LeftOut
from debubble.diagnosis.readers.unnamed_order import UnnamedAction, assumed_order, forwards_ahead

NAME = "nsys"
MARKS: tuple[bytes, ...] = ()
MAGIC = b"SQLite format 3\0"

DAMAGED = "files that are no SQLite database, or a damaged one"
NO_KERNELS = "processes whose ranges launched no kernel"
PEERS = "processes with as many forwards ahead as another (tensor- or data-parallel peers)"


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    return head.startswith(MAGIC)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the reports of all ranks; one may have several processes.

    Raise FormatError when no process has a rank, ranges named like actions, and kernels.
    """
    found: list[_Rank] = []
    unnamed: list[tuple[KinetoFile, list[UnnamedAction]]] = []
    for _, each in read_each(_read_file, files, left_out):
        for one in each:
            if isinstance(one, _Rank):
                found.append(one)
            else:
                unnamed.append(one)
    assumed = "" if found or not unnamed else _name_unnamed(unnamed, left_out)
    if assumed:
        kept = (_kept(file, left_out) for file, _ in unnamed)
        found = [one for one in kept if one is not None]
    ranks: dict[int, _Rank] = {}
    for one in found:
        # Where nothing says the rank, files and devices are in sequence.
        ranks.setdefault(one.rank if one.rank >= 0 else len(ranks), one)
    if not ranks:
        counted = ", ".join(f"{count:,} × {reason}" for reason, count in left_out.items())
        raise FormatError(
            f"{where}: no rank's actions ({counted}); profile with nsys -t nvtx,cuda and export "
            "with --type sqlite; in Megatron and NeMo, 'import debubble.megatron; "
            "debubble.megatron.name_steps()' names the actions"
        )
    return _observed(where, ranks, assumed, left_out)


class _Rank(NamedTuple):
    """Actions of a process; times in nanoseconds since `base`."""

    rank: int  # −1 if unknown
    staged: bool  # True if names of ranges have stages, not chunks
    base: int
    host: str
    path: Path
    rows: NDArray[np.int64]
    """Step, kind, chunk, microbatch, slice, start, end, issued and busy of every action."""

    @classmethod
    def of(cls, trace: RankTrace) -> _Rank:
        """Return the actions of a trace."""
        every = [
            (step, *part, one.start, one.end, one.issued, one.busy)
            for step, (computed, _) in zip(
                trace.numbers or range(len(trace.steps)), trace.steps, strict=True
            )
            for one in computed for part in one.parts
        ]  # fmt: skip
        staged = any(name.startswith(STAGED) for name in trace.file.numbers)
        rows, file = np.array(every, np.int64).T, trace.file
        return cls(file.rank, staged, file.base, file.host, file.path, rows)


def _read_file(
    path: Path, left_out: LeftOut
) -> list[_Rank | tuple[KinetoFile, list[UnnamedAction]]]:  # fmt: skip
    """Read the processes of a report, up to its damage if it is damaged."""
    found: list[_Rank | tuple[KinetoFile, list[UnnamedAction]]] = []
    try:
        for file, runs in processes(path, left_out):
            if runs:
                found.append((file, runs))
            elif (one := _kept(file, left_out)) is not None:
                found.append(one)
    except (sqlite3.Error, UnicodeDecodeError):
        # The second occurs if an error of SQLite quotes bytes that are not text.
        left_out[DAMAGED] += 1
    return found


def _kept(file: KinetoFile, left_out: LeftOut) -> _Rank | None:
    """Return the actions of the ranges of a process; None without kernels."""
    trace = trace_of(file, left_out)
    if trace.on_device and trace.steps:
        return _Rank.of(trace)
    left_out[NO_KERNELS] += 1
    return None


def _name_unnamed(
    unnamed: list[tuple[KinetoFile, list[UnnamedAction]]], left_out: LeftOut
) -> str:  # fmt: skip
    """Add ranges to processes without named actions; return the assumed schedule, empty for none.

    The more forwards a rank runs before its first backward, the earlier it is in the pipeline.
    """
    first: dict[int, tuple[KinetoFile, list[UnnamedAction]]] = {}
    for file, runs in sorted(unnamed, key=lambda one: one[0].rank):
        if first.setdefault(forwards_ahead(runs), (file, runs))[0] is not file:
            left_out[PEERS] += 1
    placed = [first[ahead] for ahead in sorted(first, reverse=True)]
    order = assumed_order(enumerate(runs for _, runs in placed), len(placed))
    unnamed[:] = placed
    if order is None:
        return ""
    for rank, (file, runs) in enumerate(placed):
        add_staged_ranges(file, runs, order, rank, len(placed))
    return order.name


def _stride(ranks: Sequence[int]) -> int:
    """Return the distance in the job between two ranks of the pipeline.

    Ranges have the rank in the job. With tensor or data parallelism, the ranks of one pipeline are
    equally spaced, and a folder has the reports of one pipeline.
    """
    return math.gcd(*ranks) if len(ranks) > 1 and 0 in ranks else 1


def _observed(
    where: str, found: dict[int, _Rank], assumed: str, left_out: LeftOut
) -> Observed:  # fmt: skip
    staged = all(each.staged for each in found.values())
    stride = 1 if staged else _stride(list(found))
    origin = min(each.base + int(each.rows[5, 0]) for each in found.values())
    counts = [each.rows.shape[1] for each in found.values()]
    stages = {rank: frozenset(each.rows[2].tolist()) for rank, each in found.items()}
    at = (
        places(stages, {}, left_out) if staged
        else {rank: Place(0, rank // stride) for rank in found}
    )  # fmt: skip
    copy, rank = np.repeat(np.array([at[each] for each in found]).T, counts, axis=1)
    ranks = 1 + int(rank.max())
    bases = np.repeat([each.base - origin for each in found.values()], counts)
    rows = np.concatenate([each.rows for each in found.values()], axis=1)
    step, kind, chunk, microbatch, piece, *times, busy = rows
    start, end, issued = (
        np.where(time == UNKNOWN, NAN, (bases + time) * NANOSECONDS) for time in times
    )
    calls = Calls(step, rank, kind, chunk, microbatch, start, end)
    v_shaped = not staged and is_v_shaped(calls, ranks)
    stage = chunk if staged else stage_of(rank, chunk, ranks, v_shaped)
    collected = Collected(where, left_out)
    collected.many(
        "actions", step, copy, rank, with_split_backwards(calls, piece), stage, microbatch, piece,
        ALONE, start, end, issued, NAN, busy * NANOSECONDS,
    )  # fmt: skip
    locations: dict[tuple[int, int], Location] = {
        at[rank]: Location(each.rank if each.rank >= 0 else None, each.host, str(each.path))
        for rank, each in found.items() if rank in at
    }  # fmt: skip
    return collected.observed(
        NAME,
        {
            "rank": "forwards before the first backward" if assumed
            else "stages of ranges" if staged
            else "ranges iter_… or the file's name; " + (
                f"one in {stride} of the job's ranks is of the pipeline" if stride > 1
                else "all ranks are one pipeline"
            ),
            "stage": "names of ranges" if staged else f"chunk and rank, {placed(v_shaped)}",
            "microbatch": "order of backwards, assumed" if assumed else "names of ranges",
            "step": "ranges iter_…, or where an action comes again",
            "clock": "of every host, since 1970",
            "times": "kernels, by where they were launched",
        },
        ranks=ranks, locations=locations, device="gpu", order_assumed=assumed, clocks="hosts",
    )  # fmt: skip
