"""Schedules that ran: the program of every rank in every step, rebuilt from start times."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import MICROBATCH_SHIFT, PAIR_SHIFT, STAGE_SHIFT, Program
from debubble.core.errors import FEW, DebubbleError, FormatError, ScheduleError
from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS, WORK_KINDS
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.diagnosis.observed import ALONE, Observed, ObservedActions
from debubble.diagnosis.schedule_names import NO_PAIR, ScheduleName, like_none, named
from debubble.engine.graph import compile_graph
from debubble.engine.validate import has

FIRST, BETWEEN, LAST = 1, 3, 2
"""Places in an overlapped group, as encoded in packed actions."""


@dataclass(frozen=True, eq=False)
class Orders:
    """Schedules of the steps of a run."""

    schedules: tuple[Schedule, ...]
    """All distinct schedules, by descending frequency."""
    step: NDArray[np.int64]
    """Step of every row, shape ``(rows,)``; a row is a complete step of a copy."""
    copy: NDArray[np.int64]
    """Copy of every row, shape ``(rows,)``."""
    order: NDArray[np.int64]
    """Index in `schedules` of every row, shape ``(rows,)``."""
    rows: tuple[NDArray[np.int64], ...]
    """Indices of the observed actions of every row, in the sequence of its schedule, each of shape
    ``(actions,)``; −1 for ranks without a file."""
    name: ScheduleName
    """Name of the most frequent schedule."""
    left_out: dict[str, int]
    """Numbers of unused steps, by reason."""


class _Row(NamedTuple):
    """One step of one copy: per rank the packed actions, and their rows in the trace."""

    step: int
    copy: int
    programs: Sequence[Program]
    places: Sequence[NDArray[np.int64]]

    def filled(self, usual: Sequence[Program]) -> _Row:
        """Return the step with the usual program, and rows −1, on ranks without a file."""
        ranks = list(zip(self.programs, self.places, usual, strict=True))
        return self._replace(
            programs=[program if len(program) else wanted for program, _, wanted in ranks],
            places=[place if len(place) else np.full(len(w), -1) for _, place, w in ranks],
        )


def reconstruct(observed: Observed) -> Orders:
    """Return the schedules of a run.

    Steps in which actions are missing or double are left out, and counted.

    Raises
    ------
    FormatError
        When no step is complete, or its schedule cannot run.
    """
    found = _rows(observed)
    if not found:
        raise FormatError(
            f"{observed.format}: no actions of a pipeline in it; trace a step with its forwards "
            "and backwards"
        )
    usual = _usual(found, observed.ranks)
    whole = _complete(found, usual)
    left_out = {}
    if len(whole) < len(found):
        left_out["steps of a copy in which actions are missing"] = len(found) - len(whole)
    if not whole:
        raise FormatError(f"{observed.format}: no step has all of its actions; trace a whole step")
    copies = Counter(row.step for row in whole)
    alone = [row for row in whole if copies[row.step] < max(copies.values())]
    if alone:
        # The slowest copy of a step is known only if all copies are.
        left_out["steps of a copy that lack another copy"] = len(alone)
        whole = [row for row in whole if copies[row.step] == max(copies.values())]
    absent = [rank for rank in range(observed.ranks) if not len(usual[rank])]
    name = None
    if absent:
        name, usual = _from_registry(observed, usual, absent)
    whole = [row.filled(usual) for row in whole]
    keys = [tuple(program.tobytes() for program in row.programs) for row in whole]
    frequent = [key for key, _ in Counter(keys).most_common()]
    schedules = {key: _schedule(key, observed) for key in frequent}
    runs = [key for key in frequent if _can_run(schedules[key])]
    if not runs:
        raise FormatError(
            f"{observed.format}: the order of its actions cannot have run; the trace lacks a part, "
            "or stages and microbatches are not what they were taken for"
        )
    place = {key: index for index, key in enumerate(runs)}
    kept = [(row, place[key]) for row, key in zip(whole, keys, strict=True) if key in place]
    if len(kept) < len(whole):
        left_out["steps of a copy in an order that cannot have run"] = len(whole) - len(kept)
    # PyTorch's profiler may have traced one of PyTorch's own schedules.
    name = name or named(schedules[runs[0]], torch=observed.format == "kineto")
    return Orders(
        tuple(replace(schedules[key], name=name.text, options=dict(name.options)) for key in runs),
        np.array([row.step for row, _ in kept]), np.array([row.copy for row, _ in kept]),
        np.array([order for _, order in kept]),
        tuple(np.concatenate(row.places).astype(np.int64) for row, _ in kept), name, left_out,
    )  # fmt: skip


def _rows(observed: Observed) -> list[_Row]:
    """Return the actions of every step and copy, rank by rank, sorted by start."""
    actions = observed.actions
    works = np.flatnonzero(np.isin(actions.kind, WORK_KINDS))
    if not len(works):
        return []
    slices = int(actions.slice.max()) + 1
    codes = _packed(actions, slices)
    row = actions.step.astype(np.int64) * observed.copies + actions.copy
    group = row * observed.ranks + actions.rank
    start = _begins_together(actions, group)
    half = ~np.isin(actions.kind, FORWARD_KINDS)
    sort = works[np.lexsort((half[works], actions.end[works], start[works], group[works]))]
    bounds = np.searchsorted(group[sort], np.arange(observed.ranks * (int(row.max()) + 1) + 1))
    found = []
    for number in np.unique(row[sort]).tolist():
        first = number * observed.ranks
        cuts = pairwise(bounds[first : first + observed.ranks + 1].tolist())
        places = [sort[begin:end] for begin, end in cuts]
        programs = [_grouped(codes[place], actions.pair[place]) for place in places]
        step, copy = divmod(number, observed.copies)
        found.append(_Row(step, copy, programs, places))
    return found


def _packed(actions: ObservedActions, slices: int) -> Program:
    unit = actions.microbatch.astype(np.int64) * slices + actions.slice
    packed: Program = unit << MICROBATCH_SHIFT | actions.stage.astype(np.int64) << STAGE_SHIFT
    return packed | actions.kind


def _begins_together(actions: ObservedActions, group: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return start times, with that of its first member for every member of an overlapped group."""
    start = actions.start.copy()
    paired = np.flatnonzero(actions.pair != ALONE)
    if len(paired):
        keys = np.stack([group[paired], actions.pair[paired].astype(np.int64)])
        _, of = np.unique(keys, axis=1, return_inverse=True)
        first = np.full(int(of.max()) + 1, np.inf)
        np.minimum.at(first, of.ravel(), start[paired])
        start[paired] = first[of.ravel()]
    return start


def _grouped(codes: Program, pair: NDArray[np.int32]) -> Program:
    """Return a program with marked overlapped groups."""
    if not len(codes) or (pair == ALONE).all():
        return codes
    same_before = np.concatenate([[False], (pair[1:] == pair[:-1]) & (pair[1:] != ALONE)])
    same_after = np.append(same_before[1:], False)
    member = np.where(same_before, np.where(same_after, BETWEEN, LAST),
                      np.where(same_after, FIRST, 0))  # fmt: skip
    marked: Program = codes | member.astype(np.int64) << PAIR_SHIFT
    return marked


def _usual(rows: Sequence[_Row], ranks: int) -> list[Program]:
    """Return each rank's most frequent program among the longest; empty without a file."""
    usual = []
    for rank in range(ranks):
        seen = Counter(row.programs[rank].tobytes() for row in rows if len(row.programs[rank]))
        # A tie goes to the program that has more actions: the other may lack some.
        most = max(seen, key=lambda code: (seen[code], len(code)), default=b"")
        usual.append(np.frombuffer(most, dtype=np.int64))
    return usual


def _complete(rows: Sequence[_Row], usual: Sequence[Program]) -> list[_Row]:
    """Return the rows with the actions of the usual programs, in any sequence."""
    # Most steps have the same few programs.
    contents = functools.cache(_contents)
    wanted = [contents(program.tobytes()) for program in usual]

    def is_complete(row: _Row) -> bool:
        pairs = zip(row.programs, wanted, strict=True)
        return all(not len(ran) or contents(ran.tobytes()) == actions for ran, actions in pairs)

    return [row for row in rows if is_complete(row)]


def _contents(program: bytes) -> bytes:
    """Return the sorted actions of a program as bytes, equal for equal sets."""
    return np.sort(np.frombuffer(program, np.int64) & NO_PAIR).tobytes()


def _schedule(key: tuple[bytes, ...], observed: Observed) -> Schedule:
    programs = [np.frombuffer(code, dtype=np.int64) for code in key]
    slices = int(observed.actions.slice.max()) + 1
    units = 1 + max(int((program >> MICROBATCH_SHIFT).max(initial=0)) for program in programs)
    microbatches = -(-units // slices)
    placement = _placement(programs, slices, microbatches)
    try:
        return Schedule.from_programs(
            "custom", placement, microbatches, programs, slices=slices, carries=observed.carries
        )
    except DebubbleError as error:
        raise FormatError(f"{observed.format}: {error}") from None


def _placement(programs: Sequence[Program], slices: int, microbatches: int) -> Placement:
    """Return the placement of stages; of two copies of the model if a stage is on two ranks."""
    stage = np.concatenate([(p >> STAGE_SHIFT) & ((1 << 20) - 1) for p in programs])
    unit = np.concatenate([p >> MICROBATCH_SHIFT for p in programs]) // slices
    rank = np.repeat(np.arange(len(programs)), [len(p) for p in programs])
    stages = int(stage.max()) + 1
    table = np.zeros((2, stages), dtype=np.int64)
    for half, at in enumerate((2 * unit >= microbatches, 2 * unit < microbatches)):
        table[half, stage[at]] = rank[at]
    twice = [len(np.unique(rank[stage == s])) > 1 for s in range(stages)]
    if any(twice):
        return Placement((tuple(table[1].tolist()), tuple(table[0].tolist())), "two copies",
                         len(programs))  # fmt: skip
    table[0, stage] = rank
    return Placement((tuple(table[0].tolist()),), "as it ran", len(programs))


def _can_run(schedule: Schedule) -> bool:
    try:
        graph = compile_graph(schedule, explain=False)
    except ScheduleError:
        return False
    learns = has(schedule, GRADIENT_KINDS)
    return not learns or graph.completed == schedule.stages * schedule.units


def _from_registry(
    observed: Observed, usual: list[Program], absent: Sequence[int]
) -> tuple[ScheduleName, list[Program]]:
    """Return programs of ranks without a file, from the registered schedule of all others."""
    known = [rank for rank in range(observed.ranks) if rank not in absent]
    microbatches = 1 + max(int((usual[r] >> MICROBATCH_SHIFT).max()) for r in known)
    chunks = max(len(np.unique((usual[r] >> STAGE_SHIFT) & ((1 << 20) - 1))) for r in known)
    schedule = like_none(observed.ranks, microbatches, chunks, {r: usual[r] for r in known})
    if schedule is None:
        named = ", ".join(map(str, absent[:FEW]))
        more = f" and {len(absent) - FEW:,} more" if len(absent) > FEW else ""
        raise FormatError(
            f"{observed.format}: no file of rank {named}{more}, and the others follow no "
            "registered schedule that would say what it ran; give its file, too"
        )
    return ScheduleName(schedule.name), [schedule.program(rank) for rank in range(observed.ranks)]
