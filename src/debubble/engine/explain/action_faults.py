"""Faults of single actions: repeated, misplaced, or without an action that they need.

Each of these faults stops a schedule, in every p2p mode; only transfers may overtake each other
where they do not have to meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Action, among, group_bounds, pairs_of, unpack
from debubble.core.embedding_and_head import first_stages
from debubble.core.errors import ScheduleError
from debubble.core.kind_relations import ranks_stepped_with
from debubble.core.kinds import (
    KINDS,
    STEP_KINDS,
    TRANSFER_KINDS,
    UNIT_KINDS,
    VOCABULARY_KINDS,
    WORK_KINDS,
    Kind,
    Of,
)
from debubble.core.schedule import Schedule
from debubble.core.waits import ActionIndex, unmet, waits_for
from debubble.engine.explain import words
from debubble.engine.kernels.groups import MOST_MEMBERS
from debubble.engine.modes import MODE, P2PMode
from debubble.engine.recompute import copies_in_part
from debubble.engine.validate import refuse_invalid, scan

Positions = NDArray[np.int64]

_RECEIVES = np.array([spec.receives for spec in KINDS])
_ONCE = (*UNIT_KINDS, *VOCABULARY_KINDS)


LONE, LARGE = -1, -2
"""In place of a partner: the group lacks its first or last member, or has too many."""


class BadGroups(NamedTuple):
    """Actions in overlapped groups that cannot be."""

    where: Positions
    """Positions of the actions, sorted, without repeats."""
    partner: Positions
    """Position of the later member that each cannot run with, or LONE, or LARGE."""


def bad_groups(index: ActionIndex) -> BadGroups:
    """Find overlapped groups that lack members, have too many, or whose members exclude each other.

    Members are work, and of different stages or microbatches. A group that is too large is found at
    its first member.
    """
    pair = pairs_of(index.schedule.actions)
    none = np.zeros(0, dtype=np.int64)
    if not pair.any():
        return BadGroups(none, none)
    same_rank = index.rank[1:] == index.rank[:-1]
    goes_on, led = np.zeros((2, len(pair)), dtype=bool)
    goes_on[:-1] = same_rank & (pair[:-1] % 2 == 1) & (pair[1:] >= 2)
    led[1:] = same_rank & (pair[:-1] % 2 == 1)
    lone = np.flatnonzero(((pair % 2 == 1) & ~goes_on) | ((pair >= 2) & ~led))
    begin = np.flatnonzero(np.append(True, ~goes_on[:-1]))
    size = np.diff(begin, append=len(pair))
    group = np.repeat(begin, size)
    order = np.lexsort((index.cell, group))
    one, other = order[:-1], order[1:]
    again = (group[one] == group[other]) & (index.cell[one] == index.cell[other])
    work = among(index.kind, WORK_KINDS)
    foreign = np.flatnonzero(goes_on & ~(work & np.roll(work, -1)))
    large = begin[size > MOST_MEMBERS]
    where, first = np.unique(np.concatenate([lone, one[again], foreign, large]), return_index=True)
    partner = np.concatenate(
        [np.full(len(lone), LONE), other[again], foreign + 1, np.full(len(large), LARGE)]
    )
    return BadGroups(where, partner[first])


def misplaced_shard_text(schedule: Schedule, position: int) -> tuple[str, str]:
    """Return the fault of a misplaced pass of an output layer, and its fix."""
    if not schedule.vocabulary:
        return "is a pass of an output layer that is not sharded", "set vocabulary to 1 or 2"
    stage = first_stages(schedule.placement)[schedule.rank_of(position)]
    what = f"is not on the rank's first stage, {stage}, which stands for its shard"
    return f"{what} of the output layer", f"write stage {stage}"


def first_fault(schedule: Schedule, mode: P2PMode) -> ScheduleError | None:
    """Return the first fault of a schedule, None if there is none; kept with the schedule."""
    if ActionFaults not in schedule.derived:
        found = invalid_action(schedule) or next(ActionFaults(schedule).faults(), None)
        # Not the error: what it is raised through would keep the schedule alive.
        schedule.derived[ActionFaults] = None if found is None else (str(found), found.chain)
    kept = schedule.derived[ActionFaults]
    if kept is not None:
        return ScheduleError(*kept)
    return next(ActionFaults(schedule).crossed(), None) if MODE[mode].receives is not None else None


def invalid_action(schedule: Schedule) -> ScheduleError | None:
    """Return the error for an action that does not exist, or is on the wrong rank."""
    try:
        refuse_invalid(schedule)
    except ScheduleError as error:
        position = next(at for at in scan(schedule).strays if at is not None)
        return ScheduleError(str(error), (schedule.text_at(position),))
    return None


class ActionFaults(ActionIndex):
    """The faults of a schedule's actions, all of which exist, on their ranks."""

    def faults(self) -> Iterator[ScheduleError]:
        """Yield all faults but those of the order of transfers."""
        yield from self.bad_groups()
        yield from self.twice(_ONCE)
        yield from self.instead()
        yield from self.misplaced_shards()
        yield from self.nowhere()
        yield from self.steps()
        yield from self.missing()
        yield from self.alone()
        yield from self.half_done_shards()
        yield from self.mixed_copies()
        yield from self.late()

    def bad_groups(self) -> Iterator[ScheduleError]:
        """Yield actions in groups that cannot be, see :func:`bad_groups`."""
        for position, partner in np.transpose(bad_groups(self)).tolist():
            others = () if partner < 0 else (self.schedule.text_at(partner),)
            yield words.fault(
                self.schedule,
                position,
                f"is in a bad overlapped group{''.join(f' with {other}' for other in others)}; its "
                f"members are two to {MOST_MEMBERS} of F, I, W, B and R of different stages or "
                "microbatches: (0F1;0B0)OVERLAP_F_B",
                *others,
            )

    def twice(self, kinds: tuple[Kind, ...]) -> Iterator[ScheduleError]:
        """Yield actions of some kinds that are there more than once."""
        here = self.positions(kinds)
        key = self.cell[here] * len(Kind) + self.kind[here]
        again = np.ones(len(here), dtype=bool)
        again[np.unique(key, return_index=True)[1]] = False
        for position in here[again].tolist():
            yield words.fault(self.schedule, position, "runs twice; remove one")

    def instead(self) -> Iterator[ScheduleError]:
        """Yield actions of two kinds that exclude each other on a stage and microbatch."""
        for spec in KINDS:
            for other in spec.instead_of:
                here, there = self.positions((spec.kind,)), self.positions((other,))
                _, one, two = np.intersect1d(self.cell[here], self.cell[there], return_indices=True)
                for pair in zip(here[one].tolist(), there[two].tolist(), strict=True):
                    first, last = sorted(pair)
                    beside = self.schedule.text_at(first)
                    reason = f"runs beside {beside} of the same microbatch; remove one"
                    yield words.fault(self.schedule, last, reason, beside)

    def nowhere(self) -> Iterator[ScheduleError]:
        """Yield sends and receives of data that stay on their rank."""
        schedule = self.schedule
        here = self.positions(TRANSFER_KINDS)
        other = self.stage[here] + schedule.away[self.kind[here], self.stage[here]]
        inside = (other >= 0) & (other < schedule.stages)
        place = schedule.copies_of(self.unit[here]) * schedule.stages + np.where(inside, other, 0)
        near = schedule.placement.ranks_of_stages[place] == self.rank[here]
        for index in np.flatnonzero(~inside | near).tolist():
            position, end = int(here[index]), int(other[index])
            stage, rank = int(self.stage[position]), int(self.rank[position])
            reason = f"stage {stage} is the {'first' if end < 0 else 'last'}"
            if end == stage:
                reason = f"nothing is carried from or to stage {stage} that way; see carries"
            elif inside[index]:
                reason = f"stages {stage} and {end} both live on rank {rank}"
            yield words.fault(schedule, position, f"has no other end: {reason}; remove it")

    def missing(self) -> Iterator[ScheduleError]:
        """Yield actions that wait for one that is not there."""
        for position, wanted in unmet(self.schedule):
            if wanted.kind != KINDS[self.kind[position]].other_end:
                yield words.missing(self.schedule, position, wanted)

    def alone(self) -> Iterator[ScheduleError]:
        """Yield sends without their receive, and receives without their send."""
        for kind in TRANSFER_KINDS:
            other = KINDS[kind].other_end
            assert other is not None
            here, there = self.positions((kind,)), self.positions((other,))
            away = self.schedule.away[kind]
            ends = self.cell[here] + away[self.stage[here]] * self.units
            for position in here[~np.isin(ends, self.cell[there])].tolist():
                stage, _, unit = unpack(int(self.schedule.actions[position]))
                wanted = Action(stage + int(away[stage]), other, unit)
                text, rank = self.schedule.text(wanted), words.home_of(self.schedule, wanted)
                reason = f"has no other end; add {text} on rank {rank}"
                yield words.fault(self.schedule, position, reason, text)

    def steps(self) -> Iterator[ScheduleError]:
        """Yield optimizer steps that another rank waits for and that are not there, or too many."""
        schedule, here = self.schedule, self.positions(STEP_KINDS)
        rule = ranks_stepped_with(schedule)
        if not len(here) or rule is None:
            return
        rank = self.rank[here]
        number = np.arange(len(here)) - np.searchsorted(rank, rank)
        counts = np.bincount(rank, minlength=schedule.ranks)
        if rule is Of.EVERY_RANK:
            again = self.unit[here] < number
            needed = np.full(len(here), counts.argmin())
        else:
            again = number >= schedule.iterations
            needed = np.maximum(rank - 1, 0)
        for position in here[again].tolist():
            reason = "steps an iteration that was stepped before; remove one"
            yield words.fault(schedule, position, reason)
        for index in np.flatnonzero(number >= counts[needed]).tolist():
            position, lacking = int(here[index]), int(needed[index])
            stage = (*schedule.placement.stages_on(lacking), 0)[0]
            action = unpack(int(schedule.actions[position]))
            yield words.missing(schedule, position, action._replace(stage=stage), lacking)

    def misplaced_shards(self) -> Iterator[ScheduleError]:
        """Yield passes of an output layer that is not sharded, or not on a rank's first stage."""
        here = self.positions(VOCABULARY_KINDS)
        first = first_stages(self.schedule.placement)
        wrong = here[(self.schedule.vocabulary == 0) | (first[self.rank[here]] != self.stage[here])]
        for position in wrong.tolist():
            action = words.named(self.schedule, position)
            text = "; ".join(misplaced_shard_text(self.schedule, position))
            yield ScheduleError(f"{action} {text}", (self.schedule.text_at(position),))

    def half_done_shards(self) -> Iterator[ScheduleError]:
        """Yield microbatches that begin on the last stage or a shard and lack a pass on a shard."""
        schedule = self.schedule
        if not schedule.vocabulary:
            return
        last = (self.stage == schedule.stages - 1) & among(self.kind, WORK_KINDS)
        begun = np.flatnonzero(last | among(self.kind, VOCABULARY_KINDS))
        units, index = np.unique(self.unit[begun], return_index=True)
        for kind in VOCABULARY_KINDS:
            there = self.cell[self.positions((kind,))]
            for stage in first_stages(schedule.placement).tolist():
                lacks = ~np.isin(stage * self.units + units, there)
                for spot in np.flatnonzero(lacks).tolist():
                    wanted = Action(stage, kind, int(units[spot]))
                    other, rank = schedule.text(wanted), words.home_of(schedule, wanted)
                    reason = f"comes without {other}; add {other} on rank {rank}"
                    yield words.fault(schedule, int(begun[index[spot]]), reason, other)

    def mixed_copies(self) -> Iterator[ScheduleError]:
        """Yield copies of activations that are a checkpoint for some microbatches only."""
        for position in copies_in_part(self.schedule).tolist():
            reason = (
                f"copies what stage {self.stage[position]} recomputes for some microbatches and "
                "not for others; recompute all or none"
            )
            yield words.fault(self.schedule, position, reason)

    def late(self) -> Iterator[ScheduleError]:
        """Yield actions in front of one of their own rank that they need, or overlapped with it."""
        waits = waits_for(self.schedule)
        begin = group_bounds(self.schedule.actions)[0]
        consumer, producer = waits.consumer, waits.producer
        found = np.flatnonzero(
            (self.rank[consumer] == self.rank[producer]) & (begin[producer] >= begin[consumer])
        )
        found = found[np.lexsort((producer[found], consumer[found]))]
        for pair in found.tolist():
            one, other = int(consumer[pair]), int(producer[pair])
            yield words.late(self.schedule, one, other, bool(begin[one] == begin[other]))

    def crossed(self) -> Iterator[ScheduleError]:
        """Yield neighboring sends from one rank to another that are received in reverse order."""
        waits = waits_for(self.schedule)
        ends = _RECEIVES[self.kind[waits.consumer]]
        sends, receives = waits.producer[ends], waits.consumer[ends]
        link = self.rank[sends] * self.schedule.ranks + self.rank[receives]
        order = np.lexsort((sends, link))
        sends, receives, link = sends[order], receives[order], link[order]
        swapped = (link[1:] == link[:-1]) & (receives[1:] < receives[:-1])
        for index in np.flatnonzero(swapped).tolist():
            pair = (sends[index], sends[index + 1], receives[index + 1], receives[index])
            chain = tuple(self.schedule.text_at(int(end)) for end in pair)
            yield ScheduleError(
                f"rank {self.rank[pair[0]]} sends {chain[0]} before {chain[1]}, "
                f"rank {self.rank[pair[2]]} receives {chain[2]} before {chain[3]}: "
                "the contents are swapped; receive in the order of the sends",
                chain,
            )


def matched(schedule: Schedule, *, limit: int = 100) -> list[ScheduleError]:
    """Return faults of the pairs of sends and receives, at most `limit` of each sort.

    Every transfer is sent once, by the rank of its producer, and received once, by the rank of its
    consumer, which is another one; and every rank receives from another rank in the order in which
    that one sends. Transfers have no tags: where the order differs, data ends up in the wrong
    buffers and nothing reports it.

    Actions that do not exist or are on the wrong rank come alone, and so do ends of what moves
    between no ranks; else repeated ends come first, then missing ones, then wrong orders.
    """
    astray = invalid_action(schedule)
    if astray is not None:
        return [astray]
    form = ActionFaults(schedule)
    nowhere = list(islice(form.nowhere(), limit))
    if nowhere:
        return nowhere
    sorts = (form.twice(TRANSFER_KINDS), form.alone(), form.crossed())
    return [problem for sort in sorts for problem in islice(sort, limit)]
