"""Time accounts of a step: computing time of every rank, and the rest by cause.

The timeline of a rank is cut at every change, and every piece has one cause, so the pieces add up
to the step. While a rank waits for another rank, the cause is that of the other rank's piece. If
that is plain computing, it is ``fill`` before a rank's first backward (or first action), ``drain``
after its last forward (or last action), and ``peer`` between.

In an action, the expected time comes first and the excess last, because others wait for the excess
only at the end. In a message, the time of the link comes first, then the excess of a slow link,
then the queue of other messages. A rank that is free, has its input and does not begin has a
``launch-gap``; without messages in the trace, that may be part of the ``transfer``. The time that
another schedule would save is ``order``: every rank would wait that much less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS
from debubble.diagnosis.observed import PAUSES, Indices, Times
from debubble.diagnosis.replay import Replay

CAUSES = (
    "fill", "drain", "slow-stage", "slow-worker", "slow-copy", "slow-link", "peer", "transfer",
    "head-of-line", "launch-gap", "garbage-collection", "sequence-length", "memory", "jitter",
    "order",
)  # fmt: skip
"""Causes of lost time."""

COMPUTE = "compute"

ROUNDING = 1e-12
"""Share of a step that rounding alone explains."""

MOST_ACTIONS = 60_000
"""Maximum number of actions in an account; in longer runs, equally spaced steps are sampled."""


@dataclass(frozen=True)
class RankAccount:
    """Time of one rank by cause, in seconds of a mean step.

    Parameters
    ----------
    rank
        The rank.
    compute
        Computing time, without the excess of any cause.
    causes
        Lost time by cause, only for causes with a time above zero.
    step
        Time of the step; `compute` and all `causes` together.
    """

    rank: int
    compute: float
    causes: dict[str, float]
    step: float


Piece = tuple[float, float, str, int]
"""Start, end, cause, and the rank that the piece waits for if the cause is empty."""


def account(
    replay: Replay, excess: Mapping[str, Times], slow_link: Times, worst: Mapping[int, str],
    saved: Mapping[str, float] | None = None,
) -> tuple[RankAccount, ...]:  # fmt: skip
    """Return the time of every rank with a file by cause, as the mean over steps and copies.

    `excess` is the excess time of actions by cause and `slow_link` that of messages on slow links,
    of shape ``(rows, actions)`` and not negative. `worst` is the cause of each copy that is slower
    than the others. `saved` is the time saved in a mean step without a cause that lies only in the
    waits between ranks.
    """
    run = replay.run
    chosen = _chosen(run.rows, run.duration.size)
    totals: dict[int, dict[str, float]] = {}
    seen: dict[int, int] = {}
    _, place = run.step_of
    longest = [int(rows[run.length[rows].argmax()]) for rows in run.rows_of_steps]
    for row in chosen.tolist():
        slowest = longest[place[row]]
        extra = float(run.length[slowest] - run.length[row])
        late = worst.get(int(run.copy[slowest]), "drain")
        for rank, line in causes_over_time(replay, row, excess, slow_link).items():
            total = totals.setdefault(rank, dict.fromkeys((COMPUTE, *CAUSES), 0.0))
            seen[rank] = seen.get(rank, 0) + 1
            for start, end, cause in line:
                total[cause] += end - start
            total[late] += extra
    found = []
    for rank, total in sorted(totals.items()):
        means = {cause: length / seen[rank] for cause, length in total.items()}
        compute = means.pop(COMPUTE)
        for cause, length in (saved or {}).items():
            _move(means, cause, length)
        rounding = ROUNDING * (compute + sum(means.values()))
        causes = {cause: length for cause, length in means.items() if length > rounding}
        found.append(RankAccount(rank, compute, causes, compute + sum(causes.values())))
    return tuple(found)


def causes_over_time(
    replay: Replay, row: int, excess: Mapping[str, Times], slow_link: Times
) -> dict[int, list[tuple[float, float, str]]]:
    """Return pieces (start, end, cause) of every rank with a file in one row, unsorted.

    Plain computing is included; `excess` and `slow_link` are those of :func:`account`.
    """
    pieces = _pieces(replay, row, excess, slow_link)
    run = replay.run
    limits = edges(run.schedule.ranks, run.rank, run.kind, run.start[row], run.end[row])
    return {rank: list(_resolved(pieces, rank, *limits[rank])) for rank in pieces}


WAITS = ("peer", "transfer", "fill", "drain")
"""Causes of waits that a cause of other ranks replaces, in this sequence."""


def _move(causes: dict[str, float], cause: str, length: float) -> None:
    """Move a length of waiting time to a cause."""
    for wait in WAITS:
        part = min(causes[wait], max(length, 0.0))
        causes[wait] -= part
        causes[cause] += part
        length -= part


def _chosen(rows: int, actions: int) -> np.ndarray:
    """Return the rows of the account: all rows, or equally spaced ones."""
    count = max(1, min(rows, MOST_ACTIONS * rows // max(actions, 1)))
    return np.unique(np.linspace(0, rows - 1, count).astype(int))


def _pieces(
    replay: Replay, row: int, excess: Mapping[str, Times], slow_link: Times
) -> dict[int, list[Piece]]:
    """Return the timeline of every rank with a file, from the row's first start to its end."""
    run, transfers = replay.run, replay.transfers
    schedule, column = run.order_of(row)
    begin = float(run.begin[row])
    finish = begin + float(run.length[row])
    last = int(run.rank[int(np.nanargmax(run.end[row]))])
    causes = list(excess)
    own = {cause: excess[cause][row] for cause in causes}
    pauses = _pauses(replay, row)
    found: dict[int, list[Piece]] = {}
    for rank in range(schedule.ranks):
        part = column[schedule.offsets[rank] : schedule.offsets[rank + 1]]
        part = part[run.counted[part]]
        if not len(part) or not run.known[row, part[0]]:
            continue
        line: list[Piece] = []
        at = begin
        columns = (run.start, run.end, run.produced, transfers.left, transfers.in_flight,
                   transfers.behind, slow_link, transfers.held)  # fmt: skip
        cells = zip(part.tolist(), *(values[row, part].tolist() for values in columns), strict=True)
        for action, start, end, made, left, flight, behind, slow, held in cells:
            start = max(start, at)
            end = max(end, start)
            source = int(run.source[action])
            first = not line
            if at < held and not (source >= 0 and left + flight > held):
                line.append((at, min(held, start), "", int(transfers.held_by[action])))
                at = min(held, start)
            if start > at and source >= 0:
                if made != made:  # the other rank has no file
                    line.append((at, start, "peer", -1))
                else:
                    there = left + flight
                    line.append((at, min(max(made, at), start), "", int(run.rank[source])))
                    for upto, cause in (
                        (left, "head-of-line"), (there - behind - slow, "transfer"),
                        (there - behind, "slow-link"), (there, "head-of-line"),
                    ):  # fmt: skip
                        line.append((line[-1][1], min(max(upto, line[-1][1]), start), cause, -1))
                    late = "launch-gap" if replay.sure[row, action] else "transfer"
                    line += _host(line[-1][1], start, late, pauses.get(rank, ()))
            elif start > at:
                line += _host(at, start, "fill" if first else "launch-gap", pauses.get(rank, ()))
            plain = end
            for cause in causes:
                length = min(float(own[cause][action]), plain - start)
                if length > 0:
                    line.append((plain - length, plain, cause, -1))
                    plain -= length
            line.append((start, plain, COMPUTE, -1))
            at = end
        if at < finish:
            line.append((at, finish, "", last))
        found[rank] = sorted(piece for piece in line if piece[1] > piece[0])
    return found


def _pauses(replay: Replay, row: int) -> dict[int, list[tuple[float, float, str]]]:
    """Return pauses of the hosts of a row's copy, by rank."""
    run = replay.run
    found: dict[int, list[tuple[float, float, str]]] = {}
    pauses = run.pauses
    for at in np.flatnonzero(pauses.copy == run.copy[row]).tolist():
        one = (float(pauses.start[at]), float(pauses.end[at]), PAUSES[int(pauses.cause[at])])
        found.setdefault(int(pauses.rank[at]), []).append(one)
    return found


def _host(
    start: float, end: float, cause: str, pauses: list[tuple[float, float, str]] | tuple[()]
) -> Iterator[Piece]:
    """Yield the pieces of a launch delay, cut at the pauses of the host."""
    for begin, over, why in sorted(pauses):
        if begin < end and over > start:
            yield (start, max(begin, start), cause, -1)
            yield (max(begin, start), min(over, end), why, -1)
            start = min(over, end)
    yield (start, end, cause, -1)


def edges(
    ranks: int, rank: Indices, kind: Indices, start: Times, end: Times
) -> dict[int, tuple[float, float]]:
    """Return the end of the pipeline's fill phase and the start of its drain phase by rank.

    These are the start of the first backward and the end of the last forward. A rank with no
    backward or no forward has those of its first and last action. Ranks without a file, with NaN
    times, have no edges.
    """
    found = {}
    forward, backward = np.isin(kind, FORWARD_KINDS), np.isin(kind, GRADIENT_KINDS)
    for each in range(ranks):
        mine = (rank == each) & ~np.isnan(start)
        if not mine.any():
            continue
        ahead, behind = mine & backward, mine & forward
        both = ahead.any() and behind.any()
        found[each] = (
            float(start[ahead if both else mine].min()), float(end[behind if both else mine].max())
        )  # fmt: skip
    return found


def plain_wait(start: float, end: float, filled: float, drained: float) -> str:
    """Return the cause of a wait for plain computing, from the edges of its rank."""
    return "fill" if end <= filled else "drain" if start >= drained else "peer"


def _resolved(
    pieces: Mapping[int, list[Piece]], rank: int, filled: float, drained: float
) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and cause of every piece of a rank's time."""
    line = pieces[rank]
    starts = {other: [piece[0] for piece in lines] for other, lines in pieces.items()}
    for start, end, cause, of in line:
        if cause:
            yield start, end, cause
            continue
        plain = plain_wait(start, end, filled, drained)
        stack = [(start, end, of, len(pieces))]
        while stack:
            low, high, other, depth = stack.pop()
            if other not in pieces or not depth:
                yield low, high, plain
                continue
            theirs = pieces[other]
            at = max(bisect_right(starts[other], low) - 1, 0)
            covered = low
            while at < len(theirs) and theirs[at][0] < high:
                begin, over, why, whom = theirs[at]
                begin, over = max(begin, covered), min(over, high)
                if over > begin:
                    if begin > covered:
                        yield covered, begin, plain
                    if why:
                        yield begin, over, (plain if why == COMPUTE else why)
                    else:
                        stack.append((begin, over, whom, depth - 1))
                    covered = over
                at += 1
            if high > covered:
                yield covered, high, plain
