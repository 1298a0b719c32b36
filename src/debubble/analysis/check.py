"""Check a schedule: complete, in order, free of deadlocks, within memory, with the right weights.

A schedule that compiles into an event graph with every backward done has no problem left to find,
so that this is all that happens to a good schedule; what data-parallel replicas exchange, which
ranks could compute without, is inspected, too. Only one that fails here is inspected in detail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.metrics import amount_text, limit_text
from debubble.analysis.optimizer_steps import inspect_steps
from debubble.analysis.problems import LISTED, Findings, Problem, Report, spot
from debubble.analysis.sharding import inspect_sharding, reduces
from debubble.analysis.structure import inspect_structure
from debubble.analysis.warnings import lost_in_queues, pytorch_warnings
from debubble.core.actions import (
    SHARDING_KINDS,
    TRANSFER_KINDS,
    Action,
    among,
    kinds_of,
    pack,
    pairs_of,
)
from debubble.core.costs import Costs, check_costs
from debubble.core.errors import ScheduleError, check_type
from debubble.core.kinds import COPY_KINDS, STEP_KINDS, VOCABULARY_KINDS, WORK_KINDS, kind_bits
from debubble.core.options import Real
from debubble.core.schedule import Schedule
from debubble.core.units import number
from debubble.engine.explain import explain
from debubble.engine.explain.action_faults import matched
from debubble.engine.graph import P2PMode, compile_graph
from debubble.engine.memory import ROUNDING, Limit, MemoryUse, memory_limits
from debubble.engine.modes import MODE, QUEUES, check_mode
from debubble.engine.timeline import Timeline, memory_use, simulate
from debubble.engine.transfers import without
from debubble.engine.validate import has, scan

__all__ = ["Problem", "Report", "check"]

_COSTS = Costs()
_PLAIN = kind_bits((*WORK_KINDS, *STEP_KINDS))
_STEPS, _SHARDS = map(kind_bits, (STEP_KINDS, VOCABULARY_KINDS))
_TRANSFERS, _SHARDING = map(kind_bits, (TRANSFER_KINDS, SHARDING_KINDS))


def check(
    schedule: Schedule,
    *,
    memory: Limit | None = None,
    costs: Costs | None = None,
    p2p_mode: P2PMode | None = None,
    makespan: float | None = None,
) -> Report:
    """Find everything that is wrong with a schedule; never raises on a bad one.

    Parameters
    ----------
    schedule
        Any schedule, for instance one read from a file.
    memory
        Limit of the activation memory of every rank, or one limit per rank; in activation units
        per rank, or in the unit of ``costs.activation``.
    costs
        What activations take; times matter only where activations leave their ranks, to
        warnings, and to `makespan`.
    p2p_mode
        How ranks exchange results: a schedule that runs with ``"overlapped"`` transfers can be a
        deadlock with ``"blocking"`` ones, or where they are queued (``"pair"``, ``"group"``,
        ``"directed"``). The default is ``"overlapped"``, and for schedules with explicit transfers
        all of these.
    makespan
        Limit of the time of a step, as simulated; not looked at where the order has problems.

    Returns
    -------
    Report
        True when the schedule is good; else its problems, see
        :data:`debubble.analysis.problems.CODES`. Deadlocks are looked for when every action is
        there, in its place and in order, because each of these can be the reason for one. What
        only PyTorch's own runtime cannot do is a warning.

    Raises
    ------
    ParameterError, CostError
        When the limit, the mode or the costs do not fit the schedule.

    Examples
    --------
    >>> import debubble as db
    >>> print(db.check(db.make("1f1b", ranks=4, microbatches=8)))
    ok: 64 actions on 4 ranks, complete, ordered, executable, peak activation 4
    >>> placement = db.Placement.linear(2)
    >>> order = [["0F0", "0B0"], ["1B0"]]
    >>> print(db.check(db.Schedule.from_text(order, placement, microbatches=1)))
    1 problem in custom:
      missing  1F0 is missing; add it on rank 1
    """
    one_mode = p2p_mode is not None
    p2p_mode = p2p_mode or "overlapped"
    check_type("schedule", schedule, Schedule, "give a Schedule: debubble.make or debubble.load")
    check_costs(costs)
    check_mode(p2p_mode)
    limits = memory_limits(memory, schedule.ranks)
    most = None if makespan is None else Real().check("makespan", makespan)
    if costs is not None:
        costs.table(schedule)  # raises where they do not fit
    costs = costs or _COSTS

    found = Findings()
    kinds, _, strays = scan(schedule)
    # Whether sweeps have room, and every action exists.
    swept = _has_room(schedule) and strays == (None, None)
    bare = schedule
    if swept and kinds & ~_PLAIN and not kinds & _SHARDS:
        bare = without_sharding(schedule)
    error = _inspect(schedule, bare, kinds, swept, p2p_mode, found)
    timed = not found and error is None
    if not found and error is not None:
        found.problems.append(_stuck(error))
    warnings: list[Problem] = []
    if not found:
        warnings = pytorch_warnings(schedule, reduces(schedule))
    if not found and kinds & _TRANSFERS:
        if not one_mode:
            _deadlocks(schedule, bare, found)
        queues: P2PMode = p2p_mode if p2p_mode in QUEUES else "group"
        if not found and (not one_mode or p2p_mode == queues):
            warnings += lost_in_queues(schedule, bare, costs, queues)
    if limits is not None and strays.outside is None:
        _memory(schedule, memory_use(schedule, costs, p2p_mode), limits, costs, found)
    if most is not None and timed:
        _makespan(simulate(schedule, costs, p2p_mode).makespan, most, found)
    return Report(schedule, tuple(found.problems), found.more, costs, p2p_mode, tuple(warnings))


def _inspect(
    schedule: Schedule, bare: Schedule, kinds: int, swept: bool, p2p_mode: P2PMode, found: Findings
) -> ScheduleError | None:
    """Add what is wrong with the actions to `found`; return what stops the schedule, if anything.

    A good schedule is only compiled; what does not compile, or only without sharding (`bare`), is
    looked at in detail. `kinds` are the kinds that occur, as bits.
    """
    if kinds & _STEPS or schedule.iterations > 1:
        inspect_steps(schedule, found)
    if swept and not kinds & _SHARDS and not found and is_sound(schedule, bare):
        # What it is without sharding decides, and is compiled faster.
        runs = bare is not schedule and _runs(bare, p2p_mode)
        return None if runs else _error(schedule, p2p_mode)
    inspect_structure(schedule, found)
    if not found and (kinds & ~_PLAIN or not swept):
        _transfers(schedule, found)
        inspect_sharding(schedule, found)
    return None if found else _error(schedule, p2p_mode)


def without_sharding(schedule: Schedule) -> Schedule:
    """Return the schedule without its sharding actions, itself where it has none.

    Either runs if the other does, and where sharding actions take no time, they have the same
    times: all that such an action waits for comes before it in its program, and what waits for
    it comes after it, where the rank arrives only after all that anyway.
    """
    if not has(schedule, SHARDING_KINDS):
        return schedule
    return without(schedule, among(kinds_of(schedule.actions), SHARDING_KINDS))


def is_sound(schedule: Schedule, bare: Schedule) -> bool:
    """Return whether actions are complete and in order, transfers matched and replicas in step.

    The schedule has at least two actions for every cell, all of which exist on their ranks, and no
    passes of a sharded output layer; `bare` is it without sharding actions.
    """
    try:
        graph = compile_graph(bare, explain=False)
    except ScheduleError:
        return False
    found = Findings()
    if bare is not schedule or schedule.explicit_reduction:
        here = np.flatnonzero(among(kinds_of(schedule.actions), SHARDING_KINDS))
        pairs, before = (pairs_of(schedule.actions[at]) for at in (here, here - 1))
        if pairs.any() or (before % 2).any():
            return False  # one tears an overlapped group apart
        inspect_sharding(schedule, found)
    return graph.complete and not graph.overtaken and not found


def caveats(timeline: Timeline) -> tuple[str, ...]:
    """Return notes of a timeline, and what :func:`check` refuses of its schedule.

    A simulation is of one mode of transfers: where these are actions, and occupy no rank in that
    one, they may lock up in others.
    """
    schedule = timeline.schedule
    if timeline.measured or not scan(schedule).kinds & (_TRANSFERS | _SHARDING):
        # It ran, so that there is nothing to find.
        return timeline.notes
    meets = MODE[timeline.mode].receives is not None
    report = check(schedule, p2p_mode=timeline.mode if meets else None)
    refused = [
        f"'debubble check' refuses it: {_briefly(problem)}" for problem in report.of_times[:1]
    ]
    return (*refused, *timeline.notes)


def _briefly(problem: Problem) -> str:
    """Return a problem without the chain of actions that wait for each other."""
    if problem.code != "deadlock":
        return str(problem)
    return problem.message.partition(problem.actions[0])[0].rstrip(": ")


def _has_room(schedule: Schedule) -> bool:
    """Return whether sweeps have room for all actions.

    Every cell takes two actions. With fewer it is incomplete, and the cells of a file that
    merely claims a billion microbatches would not fit in memory.
    """
    return 2 * schedule.stages * schedule.units <= len(schedule) and not schedule.vocabulary


def _error(schedule: Schedule, mode: P2PMode, explain: bool = True) -> ScheduleError | None:
    """Return what stops a schedule, None where it runs."""
    try:
        compile_graph(schedule, mode, explain=explain)
    except ScheduleError as error:
        return error
    return None


def _runs(schedule: Schedule, mode: P2PMode) -> bool:
    return _error(schedule, mode, explain=False) is None


def _transfers(schedule: Schedule, found: Findings) -> None:
    """Report sends and receives without their other end, or that would swap what they carry."""
    for error in matched(schedule, limit=LISTED):
        message, _, fix = str(error).rpartition("; ")
        rank, index = _end_of(schedule, error.chain)
        found.problems.append(Problem("transfer", message, rank, index, error.chain, fix))


def _end_of(schedule: Schedule, texts: Sequence[str]) -> tuple[int | None, int | None]:
    """Rank and index of the first receive among some actions that is there, else of a send."""
    for text in sorted(texts, key=lambda text: "RECV" not in text):
        stage, kind, unit = Action.parse(text, schedule.slices)
        positions = np.flatnonzero(schedule.actions == pack(kind, stage, unit))
        if len(positions):
            return spot(schedule, positions[0])[:2]
    return None, None


def _deadlocks(schedule: Schedule, bare: Schedule, found: Findings) -> None:
    """Report deadlocks of transfers that meet, of a schedule that runs where they need not."""
    stuck: list[P2PMode] = [] if _runs(bare, "blocking") else ["blocking"]
    # The fewer queues, the more transfers wait for each other: what runs on one for all peers runs
    # on any, and what is stuck with one for each is so there. With one for each direction, too,
    # nothing is: both ranks have its transfers in one order, and reach them as they compute.
    if not _runs(bare, "group"):
        stuck.append("group" if _runs(bare, "pair") else "pair")
    for mode in stuck:
        problem = _stuck(explain(schedule, mode))
        message = f"{MODE[mode].meeting} ({mode}): {problem.message}"
        found.problems.append(replace(problem, message=message))


def _stuck(error: ScheduleError) -> Problem:
    """Return the problem of an order whose actions are all there, in place and in order."""
    message, _, fix = str(error).rpartition("; ")
    chain = [text.removesuffix(")").partition(" (rank ") for text in error.chain]
    ranks = [int(rank) for _, _, rank in chain if rank]
    return Problem(
        # A chain that names ranks is a cycle of actions; anything else is about transfers.
        "deadlock" if ranks else "transfer",
        message,
        ranks[0] if ranks else None,
        None,
        tuple(text for text, _, _ in chain),
        fix,
    )


def _memory(
    schedule: Schedule, use: MemoryUse, limits: NDArray[np.float64], costs: Costs, found: Findings
) -> None:
    allowed = limits * (1 + ROUNDING)

    def describe(rank: int) -> Problem:
        excess = (
            f"rank {rank} holds up to {amount_text(use.peak[rank], costs, 6)}, more than the limit "
            f"of {limit_text(limits[rank], costs)}"
        )
        position = _first_above(schedule, use, rank, float(allowed[rank]))
        if position is None:
            return Problem(
                "memory", f"{excess}, while activations leave their ranks or come back", rank, None,
                (), "copy fewer activations or copy them faster, or raise the limit",
            )  # fmt: skip
        _, index, text = spot(schedule, position)
        return Problem(
            "memory",
            f"{excess}, first at action {index}: {text}",
            rank,
            index,
            (text,),
            "start fewer microbatches before their backwards, or raise the limit",
        )

    found.add("memory", np.flatnonzero(use.peak > allowed), describe)


def _makespan(found_time: float, limit: float, found: Findings) -> None:
    if found_time > limit * (1 + ROUNDING):
        found.problems.append(
            Problem(
                "makespan", f"a step takes {number(found_time)}, more than the limit of "
                f"{number(limit)}", None, None, (),
                "look for a faster schedule with debubble optimize, or raise the limit",
            )
        )  # fmt: skip


def _first_above(schedule: Schedule, use: MemoryUse, rank: int, limit: float) -> int | None:
    """Return the position of the first action of a rank whose start takes more than the limit.

    None where the programs alone do not exceed it, but the times of copies do.
    """
    added, freed = use.deltas(schedule, rank)
    held = use.static[rank] + np.cumsum(added)
    held[1:] += np.cumsum(freed)[:-1]
    above = held > limit
    if not above.any() and has(schedule, COPY_KINDS):
        return None
    return int(schedule.offsets[rank]) + int(np.argmax(above) if above.any() else np.argmax(held))
