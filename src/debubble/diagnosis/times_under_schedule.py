"""Measured times of a run's actions and messages under another schedule.

An action that the run has keeps its own time, microbatch by microbatch. So equal actions of both
schedules have equal times, and a run under its own schedule is the run. An action of a different
cut takes its share of the actions that it is cut from. Times of kinds that the run does not have
follow from the table of kinds. A full backward takes the sum of its parts, and each part a share of
it. A recompute takes the time of the forward. An overlapped group takes a share of the sum of its
parts, the share that groups of the run take.

Messages on a link take the times of the run's messages on that link, in sequence. On a link that
the run did not use, they take the times of all its messages.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import group_bounds, kinds_of, microbatches_of, pairs_of, stages_of
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.kind_relations import (
    ACTIVATION_KINDS,
    FORWARD_KIND,
    FUSED_KIND,
    RECOMPUTE_KINDS,
    SPLIT_KINDS,
)
from debubble.core.kinds import FORWARD_KINDS, WORK_KINDS, Kind
from debubble.core.layers import Layers
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.diagnosis.observed import Indices, Times
from debubble.diagnosis.run import Run, links_of

if TYPE_CHECKING:
    from debubble.diagnosis.changes import Change

ROW = {kind: row for row, kind in enumerate(WORK_KINDS)}
"""Row of every kind of work in the arrays of this module."""

USUAL = Costs(F=1, I=1, W=1).resolve(Placement.linear(1)).duration[list(WORK_KINDS), 0]
"""Default relative time of every kind of work, for kinds without measurements."""


def under_schedule(
    run: Run,
    times: Times,
    messages: Times,
    schedule: Schedule,
    slower: Sequence[Change] = (),
    layers: Layers | None = None,
) -> tuple[Times, Times]:
    """Return a run's times for the actions of a schedule, and for the messages they receive.

    `times` are those of the run's actions with the preceding host delay, and `messages` those in
    flight, in some of its rows; shape ``(rows, actions)``. The schedule has the run's number of
    ranks and microbatches. Changes in `slower` stay with their ranks. Stages are cut by the model's
    `layers`, or at equal distances. Raise ParameterError when the run has no times for some action.
    """
    own = run.schedule
    alone, overlap = _work_of(own, times)
    cut = shares_of_stages(own, schedule, layers)
    if cut is not None:
        alone = np.einsum("rksml,ts->rktml", alone, cut)
    if schedule.slicing.shares != own.slicing.shares:
        cut = shares_of_cut(own.slicing.shares, schedule.slicing.shares)
        alone = np.einsum("rksml,nl->rksmn", alone, cut)
    alone = alone.reshape(*alone.shape[:3], -1)
    cells = _WorkCells.of(schedule)
    found = np.asarray(alone[:, cells.kind, cells.stage, cells.unit])
    inside = np.flatnonzero(cells.group >= 0)
    for change in slower:
        found = change.of_rank(schedule, found)
    if len(inside):
        found[:, inside] = overlap * _sums(cells.group[inside], found[:, inside])
    unknown = np.isnan(found).any(axis=0)
    if unknown.any():
        kind = WORK_KINDS[cells.kind[unknown].min()].name
        raise ParameterError(f"'{schedule.name}' runs {kind}, and the run has no time of that")
    return found, _messages(run, messages, schedule)


def shares_in_groups(run: Run, times: Times) -> Times:
    """Return the share of each action in its overlapped group, from the times of actions alone.

    It is 1 for actions alone; shape ``(rows, actions)``, as `times`.
    """
    cells = _WorkCells.of(run.schedule)
    _, usual, _ = _alone(cells, run.schedule, times)
    shares = np.ones_like(times)
    inside = np.flatnonzero(cells.group >= 0)
    if len(inside):
        parts = usual[:, cells.kind[inside], cells.stage[inside]]
        sums = _sums(cells.group[inside], parts)
        equal = 1 / _sums(cells.group[inside], np.ones_like(parts))
        shares[:, inside] = np.where(sums > 0, parts / np.where(sums > 0, sums, 1.0), equal)
    return shares


def _work_of(schedule: Schedule, times: Times) -> tuple[Times, Times]:
    """Return the time of work alone, and the share of the sum of their parts that groups take.

    The shapes are ``(rows, kinds, stages, microbatches, slices)`` and ``(rows, 1)``.
    """
    cells = _WorkCells.of(schedule)
    alone, usual, known = _alone(cells, schedule, times)
    overlap = np.ones((len(times), 1))
    inside = np.flatnonzero(cells.group >= 0)
    if len(inside):
        parts = usual[:, cells.kind[inside], cells.stage[inside]]
        share = _ratio(times[:, inside], _sums(cells.group[inside], parts))
        middle = np.median(share, axis=1, keepdims=True)
        mine = cells.kind[inside], cells.stage[inside], cells.unit[inside]
        # If nothing ran alone, a group is assumed to take the sum of its parts.
        overlap = np.where(known, middle, 1.0)
        usual = usual * np.where(known, 1.0, middle)[:, :, None]
        alone[:, *mine] = parts * share / np.where(known, middle, 1.0)
    _complete(alone, usual)
    return alone.reshape(*alone.shape[:3], schedule.microbatches, schedule.slices), overlap


def shares_of_stages(own: Schedule, other: Schedule, layers: Layers | None = None) -> Times | None:
    """Return the share of every stage of a run in those of another schedule; None for the same.

    Of layers, those that a stage has under the cut for its placement, by what they and the model's
    ends take; without them, stages are cut at equal distances.
    """
    if layers is None:
        same = own.stages == other.stages
        return None if same else shares_of_cut(np.ones(own.stages), np.ones(other.stages))
    if own.placement.table == other.placement.table:
        return None
    lengths = []
    for place in (own.placement, other.placement):
        table = layers.for_placement(place)[1].resolve(place)
        lengths.append(table.duration[[FORWARD_KIND, FUSED_KIND], : place.stages].sum(axis=0))
    return shares_of_cut(*lengths)


def shares_of_cut(old: ArrayLike, new: ArrayLike) -> Times:
    """Return the share of every old piece in each new one, shape ``(new, old)``.

    `old` and `new` are lengths of the pieces of each cut, with any sum.

    Examples
    --------
    >>> shares_of_cut([1, 1], [1, 1, 1, 1]).tolist()
    [[0.5, 0.0], [0.5, 0.0], [0.0, 0.5], [0.0, 0.5]]
    """
    before, after = (np.concatenate([[0.0], np.cumsum(cut) / np.sum(cut)]) for cut in (old, new))
    low = np.maximum(after[:-1, None], before[None, :-1])
    high = np.minimum(after[1:, None], before[None, 1:])
    whole = np.diff(before)
    inside: Times = np.maximum(high - low, 0.0) / np.where(whole > 0, whole, 1.0)
    return inside


@dataclass(frozen=True, eq=False)
class _WorkCells:
    """Positions of a schedule's actions in the arrays of work."""

    kind: Indices
    """Row of the kind of every action."""
    stage: Indices
    unit: Indices
    group: Indices
    """Number of the overlapped group, −1 for actions alone."""

    @classmethod
    def of(cls, schedule: Schedule) -> _WorkCells:
        """Return the positions of a schedule's actions.

        Raises ParameterError if one is not the work of a stage for a microbatch.
        """
        actions = schedule.actions
        rows = np.full(len(Kind), -1)
        rows[list(ROW)] = list(ROW.values())
        row = rows[kinds_of(actions)]
        unknown = row < 0
        if unknown.any():
            other = Kind(int(kinds_of(actions)[unknown].min())).name
            raise ParameterError(
                f"'{schedule.name}' runs {other}, and the run has no time of that; name a schedule "
                f"of {', '.join(known.name for known in WORK_KINDS)} alone"
            )
        first, _ = group_bounds(actions)
        _, number = np.unique(first, return_inverse=True)
        group = np.where(pairs_of(actions) > 0, number, -1)
        return cls(row, stages_of(actions), microbatches_of(actions), group)


def _sums(group: Indices, values: Times) -> Times:
    """Return the sum over its group for every member, shape ``(rows, members)``."""
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    sums = np.add.reduceat(values, begins, axis=1)
    found: Times = np.repeat(sums, np.diff(begins, append=len(group)), axis=1)
    return found


def _ratio(value: Times, of: Times) -> Times:
    """Return the quotient of two arrays; 1 where the divisor is zero."""
    there = (of > 0) & (value > 0)
    return np.where(there, value / np.where(there, of, 1.0), 1.0)


def _alone(
    cells: _WorkCells, schedule: Schedule, times: Times
) -> tuple[Times, Times, NDArray[np.bool_]]:
    """Return the times of actions that ran alone, the usual ones, and whether any ran alone.

    The shapes are ``(rows, kinds, stages, slices)``, ``(rows, kinds, stages)`` and ``(rows, 1)``.
    The usual time is the median of a kind and stage. A kind without actions on a stage has the
    median of all stages. A kind without any has its default work relative to the others; if none
    ran alone, these are no times but only weights.
    """
    alone = np.full((len(times), len(ROW), schedule.stages, schedule.units), np.nan)
    lone = np.flatnonzero(cells.group < 0)
    alone[:, cells.kind[lone], cells.stage[lone], cells.unit[lone]] = times[:, lone]
    weights = USUAL[None, :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        usual = np.nanmedian(alone, axis=3)
        of_kind = np.nanmedian(usual, axis=2)
        unit = np.nanmedian(of_kind / weights, axis=1, keepdims=True)
    known = ~np.isnan(unit)
    of_kind = np.where(np.isnan(of_kind), weights * np.where(known, unit, 1.0), of_kind)
    return alone, np.where(np.isnan(usual), of_kind[:, :, None], usual), known


def _complete(alone: Times, usual: Times) -> None:
    """Fill in the times of missing kinds from the measured ones, in place."""
    fused, split = ROW[FUSED_KIND], [ROW[kind] for kind in SPLIT_KINDS]
    there = ~np.isnan(alone[:, split]).all(axis=1)
    sums = np.where(there, np.nansum(alone[:, split], axis=1), np.nan)
    whole = np.where(np.isnan(alone[:, fused]), sums, alone[:, fused])
    alone[:, fused] = whole
    total = usual[:, split].sum(axis=1)
    for part in split:
        share = np.where(total > 0, _ratio(usual[:, part], total), 0.0)
        mine = alone[:, part]
        alone[:, part] = np.where(np.isnan(mine), whole * share[:, :, None], mine)
    for kind in RECOMPUTE_KINDS:
        mine, forward = alone[:, ROW[kind]], alone[:, ROW[ACTIVATION_KINDS[0]]]
        alone[:, ROW[kind]] = np.where(np.isnan(mine), forward, mine)


def _messages(run: Run, messages: Times, schedule: Schedule) -> Times:
    """Return the time of the message that every action of a schedule receives."""
    mine, theirs = _in_turn(run.schedule), _in_turn(schedule)
    every = np.concatenate(list(mine.values())) if mine else np.zeros(0, dtype=np.int64)
    found = np.zeros((len(messages), len(schedule)))
    for link, columns in theirs.items():
        source = mine.get(link, every)
        if len(source):
            # Stretch the sequence of times to the new number of messages; both end with the same.
            place = np.arange(len(columns)) * len(source) // len(columns)
            found[:, columns] = messages[:, source[place]]
    return found


def _in_turn(schedule: Schedule) -> dict[int, NDArray[np.int64]]:
    """Return the actions that receive through each link, microbatch by microbatch."""
    links, actions = links_of(schedule), schedule.actions
    forward = np.isin(kinds_of(actions), FORWARD_KINDS)
    turn = np.lexsort((stages_of(actions), forward, microbatches_of(actions)))
    turn = turn[links[turn] >= 0]
    return {link: turn[links[turn] == link] for link in np.unique(links[turn]).tolist()}
