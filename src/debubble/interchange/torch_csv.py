"""Schedules as PyTorch's CSV files: one row per rank, no header, one cell per action.

The compute-only form is what ``torch.distributed.pipelining`` and torchtitan load; empty cells are
idle slots and mean nothing. The form with communication adds ``SEND_F``, ``RECV_F``, ``SEND_B`` and
``RECV_B``, and other actions of PyTorch: ``REDUCE_GRAD``, where it divides gradients by the number
of microbatches, ``UNSHARD`` and ``RESHARD`` of fully sharded models, and in later versions
``WAIT_`` actions. The last follow from the rest: they are written where PyTorch puts them and
skipped when read. A CSV has no name, number of microbatches or placement, which follow from its
actions, too.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from functools import partial
from itertools import pairwise
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.sharding import reduces
from debubble.core.actions import (
    SHARDING_KINDS,
    TRANSFER_KINDS,
    Action,
    Kind,
    Program,
    begins_group,
    cells,
    computes,
    kinds_of,
    microbatches_of,
    stages_of,
    unpack,
)
from debubble.core.errors import FormatError, ParameterError
from debubble.core.kind_relations import PASS_KINDS
from debubble.core.kinds import CARRY_KINDS, GRADIENT_KINDS, OFFLOAD_KINDS, SEND_KINDS
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.core.sequence import as_kind
from debubble.engine.modes import MODE, P2PMode
from debubble.engine.validate import has
from debubble.interchange.cells import MAX_RANKS, check_size, read_cells
from debubble.lowering.sharding import add_sharding
from debubble.lowering.transfers import add_transfers

COMMUNICATING = (
    *PASS_KINDS, *(kind for kind in TRANSFER_KINDS if kind not in CARRY_KINDS), *SHARDING_KINDS
)  # fmt: skip

_IMPLIED = re.compile(r"[0-9]{1,9}WAIT_(?:REDUCE_GRAD[0-9]{0,10}|SEND_[FB][0-9]{1,10})")
"""Cells of PyTorch that follow from the others."""

_OLD = re.compile(r"(?<=[0-9])B(W?)(?=[0-9])")
"""Backwards in cells of older PyTorch: B is the input half there, and BW the whole."""

_OF_STAGE = re.compile(r"([0-9]{1,9}(?:UNSHARD|RESHARD|REDUCE_GRAD))[0-9]{0,10}")
"""Cells of PyTorch that name no microbatch."""


def from_csv(text: str, where: str, microbatches: int | None = None) -> Schedule:
    """Read the text of a CSV, compute-only or with communication.

    The last part of its path `where` names the schedule. There is one microbatch more than the
    number of the largest in the file, unless `microbatches` is given. Raises FormatError when a
    cell is not an action, a row is blank, or a stage has no or several ranks.
    """
    rows = _rows(text, where)
    old = "BW" in text
    if old:
        rows = [
            [_OLD.sub(lambda found: "B" if found[1] else "I", cell) for cell in row] for row in rows
        ]
    programs = []
    for rank, row in enumerate(rows):
        texts = [cell.strip() for cell in row]
        # Nearly all cells are neither, and looking for a substring is sooner done than matching.
        columns = [
            column
            for column, text in enumerate(texts)
            if text and not ("WAIT" in text and _IMPLIED.fullmatch(text))
        ]
        for column in columns:
            if "SHARD" in texts[column] or "GRAD" in texts[column]:
                texts[column] = _OF_STAGE.sub(r"\g<1>0", texts[column])
        programs.append(
            read_cells([texts[column] for column in columns], partial(_place, where, rank, columns))
        )
    if _halves_alone(programs):
        old = True
        programs = [np.where(kinds_of(p) == Kind.B, as_kind(p, Kind.I), p) for p in programs]
    if old:
        warnings.warn(
            f"{where}: the notation of older PyTorch, in which B is the input half of a backward "
            "and BW the whole; they are read as I and B",
            stacklevel=2,
        )
    actions = np.concatenate(programs)
    kinds = kinds_of(actions)
    if not np.any(computes(kinds)):
        raise FormatError(f"{where}: no actions; write one row per rank: 0F0,0F1,0B0,0B1")
    if np.any(kinds == Kind.OPT):
        raise FormatError(f"{where}: OPT is not part of a CSV; use a JSON schedule file")
    found = 1 + int(microbatches_of(actions).max())
    stages = 1 + int(stages_of(actions).max())
    check_size(len(actions), stages, max(found, microbatches or 0), where)
    placement = placement_of(programs, stages, where)
    return Schedule.from_programs(
        PurePath(where).name,
        placement,
        microbatches or found,
        programs,
        explicit_reduction=not np.all(computes(kinds)),
    )


def _halves_alone(programs: list[Program]) -> bool:
    """Return whether every backward is a B and a W of one stage and microbatch: that B is an I."""
    actions = np.concatenate(programs)
    kinds = kinds_of(actions)
    if not np.any(kinds == Kind.W) or np.any(kinds == Kind.I):
        return False
    full = np.sort(as_kind(actions[kinds == Kind.B], Kind.W))
    return np.array_equal(full, np.sort(actions[kinds == Kind.W]))


def _place(where: str, rank: int, columns: list[int], index: int) -> str:
    return f"{where}: row {rank + 1}, column {columns[index] + 1}"


def _rows(text: str, where: str) -> list[list[str]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    try:
        for row in reader:
            rows.append(row)
            if len(rows) > MAX_RANKS:
                rows = _without_blank_end(rows)
                if len(rows) > MAX_RANKS:
                    raise FormatError(f"{where}: more than {MAX_RANKS} rows; each row is a rank")
    except csv.Error as error:
        raise FormatError(
            f"{where}: line {reader.line_num}: {error}; cells need no quotation marks"
        ) from None
    rows = _without_blank_end(rows)
    for index, row in enumerate(rows):
        if _blank(row):
            raise FormatError(
                f"{where}: row {index + 1} is blank; remove it, or write a comma for a rank "
                "without actions"
            )
    if not rows:
        raise FormatError(f"{where}: empty; write one row per rank: 0F0,0F1,0B0,0B1")
    return rows


def _blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())


def _without_blank_end(rows: list[list[str]]) -> list[list[str]]:
    end = len(rows)
    while end and _blank(rows[end - 1]):
        end -= 1
    return rows[:end]


def placement_of(programs: list[Program], stages: int, where: str) -> Placement:
    """Return the placement of stages, from the ranks of their actions."""
    table: NDArray[np.int64] = np.full(stages, -1)
    for rank, program in enumerate(programs):
        here = np.unique(stages_of(program))
        taken = here[table[here] >= 0]
        if len(taken):
            stage = int(taken[0])
            raise FormatError(
                f"{where}: stage {stage} has actions on rank {table[stage]} and on rank {rank}; a "
                "CSV cannot say which of two copies a microbatch uses: use a JSON schedule file"
            )
        table[here] = rank
    missing = np.flatnonzero(table < 0)
    if len(missing):
        raise FormatError(
            f"{where}: stage {missing[0]} has no action, stage {stages - 1} has; stages are "
            "numbered from 0 without gaps"
        )
    return _named(tuple(table.tolist()), len(programs))


def _named(table: tuple[int, ...], ranks: int) -> Placement:
    """Return the placement of a table, with its usual name when it has one."""
    if len(table) % ranks == 0:
        chunks = len(table) // ranks
        for shape in (Placement.loop, Placement.wave, Placement.block):
            usual = shape(ranks, chunks)
            if usual.table[0] == table:
                return usual
    return Placement((table,), "explicit", ranks)


def to_csv(schedule: Schedule, transfers: bool = False, waits: bool = False) -> str:
    """Return the text of a CSV: compute-only, or with the communication of a schedule that has it.

    `waits` adds the ``WAIT_`` actions that later versions of PyTorch need; older ones read
    ``0WAIT_SEND_F0`` as the action ``0W``. Raises ParameterError when the format cannot express the
    schedule.
    """
    refuse_inexpressible(schedule, COMMUNICATING if transfers else PASS_KINDS)
    rows = rows_with_transfers(schedule, waits) if transfers else schedule.rows()
    return "\n".join(",".join(row) or "," for row in rows) + "\n"


def rows_with_transfers(schedule: Schedule, waits: bool = False) -> list[list[str]]:
    """Return every rank's cells in the form with communication, see :func:`to_csv`."""
    return [_lowered(schedule.program(rank), waits) for rank in range(schedule.ranks)]


def _lowered(program: Program, waits: bool) -> list[str]:
    """Return a program's cells as PyTorch writes them, with waits where PyTorch puts them.

    A forward send is waited for after the backward of its microbatch, a reduction at once, all else
    at the end.
    """
    begins = [*np.flatnonzero(begins_group(program)).tolist(), len(program)]
    row: list[str] = []
    sent: dict[Action, str] = {}
    for text, (begin, end) in zip(cells(program), pairwise(begins), strict=True):
        leaves = [unpack(code) for code in program[begin:end].tolist()]
        stage, kind, _ = leaves[0]
        row.append(f"{stage}{kind.name}" if kind in SHARDING_KINDS else text)
        if waits and kind == Kind.REDUCE_GRAD:
            row.append(f"{stage}WAIT_REDUCE_GRAD")
        for leaf in leaves:
            stage, kind, microbatch = leaf
            if kind in SEND_KINDS:
                sent[leaf] = f"{stage}WAIT_{kind.name}{microbatch}"
            if kind in GRADIENT_KINDS:
                wait = sent.pop(Action(stage, Kind.SEND_F, microbatch), "")
                row += [wait] if waits and wait else []
    return row + list(sent.values()) if waits else row


def refuse_inexpressible(schedule: Schedule, allowed: tuple[Kind, ...]) -> None:
    """Refuse a schedule with parts that a CSV cannot express."""
    present = {Kind(kind) for kind in np.unique(kinds_of(schedule.actions)).tolist()}
    extra = sorted(present.difference(allowed))
    place = schedule.placement
    reasons = [
        (place.copies > 1,
         f"has {place.copies} copies of the model, and a CSV gives each stage to one rank"),
        (schedule.iterations > 1,
         f"has {schedule.iterations} iterations, and a CSV holds one without optimizer step; leave "
         "iterations out"),
        (schedule.slices > 1, "cuts sequences into slices, which a CSV cannot say"),
        (schedule.vocabulary > 0,
         "shards the output layer over all ranks, and PyTorch's schedules keep it on the last "
         "stage"),
        (schedule.carries,
         "carries something from a stage to another that is not the next, and PyTorch's schedules "
         "know neighbors alone"),
        (not extra, ""),
        (set(extra) <= set(OFFLOAD_KINDS),
         "moves activations to the host or to other ranks, and PyTorch's schedules keep every "
         "activation on its rank"),
        (extra == [Kind.OPT], "has optimizer steps, which a CSV cannot say; leave iterations out"),
        (set(extra) <= set(COMMUNICATING), "has communication actions; use torch-csv-comms"),
        (True, f"has {extra[-1].name if extra else ''} actions, which PyTorch's CSV does not know"),
    ]  # fmt: skip
    reason = next(reason for applies, reason in reasons if applies)
    if reason:
        raise ParameterError(f"'{schedule.name}' {reason}; a JSON schedule file can say it")


def with_transfers(schedule: Schedule, p2p_mode: P2PMode = "overlapped") -> Schedule:
    """Return the schedule with sends, receives and reductions; itself when it has them already.

    Receives stand where a simulation in the mode has them, early where that does not matter.
    """
    reduced = reduces(schedule)
    if not has(schedule, TRANSFER_KINDS):
        refuse_inexpressible(schedule, (*PASS_KINDS, *SHARDING_KINDS))
        schedule = add_transfers(schedule, policy=MODE[p2p_mode].receives or "eager")
    return schedule if reduced else add_sharding(schedule)
