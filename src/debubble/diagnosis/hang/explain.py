"""Explain why a job hangs, from the dumps of its ranks and the schedule that they run."""

from __future__ import annotations

from collections.abc import Sequence

from debubble.analysis.check import check
from debubble.core.errors import FormatError, ParameterError
from debubble.core.schedule import Schedule
from debubble.diagnosis.hang.answer import Hang, HangKind, HangReport
from debubble.diagnosis.hang.dumps import Dump
from debubble.diagnosis.hang.job import make_job
from debubble.diagnosis.hang.order_messages import OrderMessages
from debubble.diagnosis.hang.reasons import (
    crossed_queues,
    deadlock_of,
    foreign,
    in_flight,
    joined_call,
    nothing,
    other_order,
    shapes,
    short_buffer,
)
from debubble.diagnosis.hang.stuck import blocked_sends, circle, stuck_rank
from debubble.engine.modes import P2PMode


def explain_hang(
    dumps: Sequence[Dump], schedule: Schedule, mode: P2PMode | None = None
) -> HangReport:
    """Find out why a job hangs.

    Parameters
    ----------
    dumps
        What the ranks recorded, see :func:`debubble.diagnosis.hang.dumps.read_dumps`.
    schedule
        The schedule that they ran.
    mode
        The p2p mode in which they did; None for any.

    Raises
    ------
    FormatError
        When there is no message in the dumps.
    ParameterError
        When the schedule is incomplete, or is not for as many ranks as the dumps are of.
    """
    plain = check(schedule, p2p_mode="overlapped")
    stuck = [problem for problem in plain.problems if problem.code == "deadlock"]
    if plain.problems and not stuck:
        raise ParameterError(
            f"{schedule.name}: {plain.problems[0]}; 'debubble check' lists every problem"
        )
    if stuck:
        text = f"the schedule deadlocks, in every p2p mode: {stuck[0].message}"
        hang = Hang(HangKind.DEADLOCK, text, advice=stuck[0].fix, mode="overlapped")
        return HangReport(schedule, hang, (), ())
    if not any(len(dump.sends) or dump.action for dump in dumps):
        raise FormatError("no sends or receives in these dumps: they say nothing of a pipeline")
    order = OrderMessages.of(schedule)
    job = make_job(dumps, schedule, order, mode)
    hang = next(filter(None, (find(job) for find in REASONS)), None) or nothing(job)
    missing = tuple(rank for rank in sorted(job.places.where) if rank not in job.dumps)
    return HangReport(schedule, hang, tuple(job.stands.values()), missing)


REASONS = (
    foreign, other_order, shapes, short_buffer, deadlock_of, blocked_sends, stuck_rank,
    crossed_queues, in_flight, joined_call, circle,
)  # fmt: skip
"""Search functions of the reasons: what proves itself first, then what is left."""
