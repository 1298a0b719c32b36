"""Predictions of a run with other times, another schedule, or both.

One function, :func:`predict`, returns the time of a run under a schedule and with changes. The time
"before" is its result without changes, so an empty change has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from debubble.core.costs import COST_FIELDS, Costs
from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.kind_relations import ACTIVATION_KINDS, FUSED_KIND
from debubble.core.layers import Layers
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.diagnosis.changes import Change
from debubble.diagnosis.observed import Times
from debubble.diagnosis.replay import Replay, drawn, in_blocks
from debubble.diagnosis.run import work_of_ranks
from debubble.diagnosis.times import costs_of
from debubble.diagnosis.times_under_schedule import shares_of_stages, under_schedule
from debubble.engine.measured_timeline import MAX_CELLS
from debubble.engine.timeline import Timeline
from debubble.schedules.registry import entries, find, make


@dataclass(frozen=True, eq=False)
class WhatIf:
    """Prediction of a mean step, in seconds without (`before`) and with a change (`after`).

    `plan` is the time of a step in a model of the run at median times. `error` is that of the
    prediction as a share of a step, see :attr:`.Replay.uncertainty`. `timeline` is the drawn step
    if the schedule is another.
    """

    text: str
    before: float
    after: float
    plan: float
    error: float
    timeline: Timeline | None = None

    @property
    def gain(self) -> float:
        """Reduction of the step's time, as a share of the step."""
        return 1 - self.after / self.before

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as plain data."""
        return {"change": self.text, "before": self.before, "after": self.after,
                "gain": self.gain, "plan": self.plan, "error": self.error}  # fmt: skip


def predict(replay: Replay, schedule: Schedule, changes: Sequence[Change] = ()) -> float:
    """Return the time of a mean step of a run under a schedule with changes, in seconds.

    Every step of every copy is replayed with its own times, see :mod:`.times_under_schedule`. The
    time of a step is that of its slowest copy. With the schedule of the run and no changes that is
    the replay of the run.
    """
    return float(replay.run.slowest(_predicted(replay, schedule, changes)[0]).mean())


def _predicted(
    replay: Replay, schedule: Schedule, changes: Sequence[Change]
) -> tuple[Times, Times]:
    """Return the time of every row, and the work of its busiest rank; shape ``(rows,)``."""
    run = replay.run
    slower, times, messages = _to_walk(replay, schedule, changes)
    if schedule is run.schedule:
        # Some rows may have another schedule.
        return replay.lengths(times, messages), work_of_ranks(schedule, times).max(axis=1)
    lengths, work = np.zeros((2, run.rows))
    for rows in in_blocks(np.arange(run.rows), 8 * max(len(schedule), len(run.schedule))):
        theirs = under_schedule(run, times[rows], messages[rows], schedule, slower, replay.layers)
        # Overlapped groups need all their inputs from the start.
        lengths[rows] = replay.walked(rows, schedule, *theirs, np.zeros_like(theirs[0]))
        work[rows] = work_of_ranks(schedule, theirs[0]).max(axis=1)
    return lengths, work


def _changed(
    replay: Replay, changes: Sequence[Change], messages: Times
) -> tuple[Times, Times, Times]:
    """Return times of actions, host delays and messages, with changes."""
    run = replay.run
    times, gaps = replay.times, replay.gaps
    for change in changes:
        change.check(run)
        if change.what == "p2p":
            messages = change.of(run, messages)
        elif change.what == "gaps":
            gaps = change.of(run, gaps)
        else:
            times = change.of_work(run, times, replay.shares)
    return times, gaps, messages


def _to_walk(
    replay: Replay, schedule: Schedule, changes: Sequence[Change]
) -> tuple[list[Change], Times, Times]:
    """Return times of actions and of messages with changes, for a walk under a schedule.

    The first result are changes that stay with their ranks under another schedule than the run's.
    """
    for change in changes:
        change.check(replay.run)
    own = schedule is replay.run.schedule
    slower = [one for one in changes if one.stays and not own]
    others = [one for one in changes if one not in slower]
    times, gaps, messages = _changed(replay, others, replay.transfers.in_flight)
    return slower, times + gaps, messages


def with_changes(replay: Replay, changes: Sequence[Change]) -> WhatIf:
    """Replay a run with other times."""
    return _asked(replay, replay.run.schedule, changes, [])


def with_schedule(
    replay: Replay, name: str, changes: Sequence[Change] = (), chunks: int | None = None
) -> WhatIf:
    """Predict a run under another schedule, with some of its times changed.

    If the number of stages differs, the model is cut at equal distances: a stage of half the length
    takes half the time. With layers in the replay, it is cut between layers.

    Raises
    ------
    ParameterError
        When there is no such schedule for this number of ranks and microbatches.
    """
    called, schedule = _named(replay, name, changes, chunks)
    return _asked(replay, schedule, changes, [called])


def _named(
    replay: Replay, name: str, changes: Sequence[Change], chunks: int | None
) -> tuple[str, Schedule]:
    """Return a schedule of a run's sizes and its name; the one that ran, if it has the name.

    A schedule made for costs uses the median times with the changes.
    """
    own = replay.run.schedule
    if name == own.name and name not in entries():
        return name, own
    if name.endswith((".csv", ".json")):
        raise ParameterError(
            f"schedule '{name}' is a file; give the name of a schedule, such as {SUGGESTED[0]}"
        )
    entry = find(name)
    sizes: dict[str, Any] = {"ranks": own.ranks, "microbatches": own.microbatches}
    sizes |= own.options if entry.name == own.name else {}
    if chunks is not None or entry.chunks is None:
        sizes["chunks"] = chunks or (own.chunks if own.chunks > 1 else None)
    plain = _carried(own, make(entry.name, **sizes))
    if entry.name == own.name or not entry.uses_costs:
        return entry.name, own if _alike(plain, own) else plain
    costs = recut(_costs(replay, changes), own, plain, replay.layers)
    return entry.name, _carried(own, make(entry.name, **sizes, costs=costs))


def _carried(own: Schedule, other: Schedule) -> Schedule:
    """Return another schedule with the skip connections of a run."""
    if own.carries and own.stages != other.stages:
        raise ParameterError(
            f"'{other.name}' has {other.stages} stages, and the run carries something between its "
            f"{own.stages}; give a schedule with as many"
        )
    return replace(other, carries=own.carries)


def _alike(one: Schedule, other: Schedule) -> bool:
    """Return True if two schedules have equal programs on all ranks."""
    return (
        one.placement.table == other.placement.table
        and np.array_equal(one.offsets, other.offsets)
        and np.array_equal(one.actions, other.actions)
    )


def _costs(replay: Replay, changes: Sequence[Change]) -> Costs:
    """Return median times of a run with changes, in milliseconds."""
    run, typical = replay.run, replay.transfers.typical
    usual = np.where(run.link >= 0, typical[run.link], 0.0)
    times, _, messages = _changed(replay, changes, np.broadcast_to(usual, run.start.shape))
    links = typical.copy()
    for link in run.links:
        links[link] = np.median(messages[:, run.link == link])
    return costs_of(replay, times, links)


def recut(costs: Costs, schedule: Schedule, other: Schedule, layers: Layers | None = None) -> Costs:
    """Return measured costs of a model cut into the stages of another schedule.

    Stages are cut by the model's layers, or at equal distances. A stage of half the length takes
    half of the time and of the memory, and a pair the same share of its parts. All other costs
    stay.
    """
    stages, shares = schedule.stages, shares_of_stages(schedule, other, layers)
    if shares is None:
        return costs
    changes: dict[str, Any] = {}
    for name, spec in COST_FIELDS.items():
        value = getattr(costs, name)
        if spec.shape == "stage" and not spec.share and value:
            changes[name] = (shares @ np.broadcast_to(value, stages)).tolist()
    pairs: Any = costs.O
    if pairs is not None:
        alone = replace(costs, O=None, p2p=0.0).resolve(Placement.loop(stages, 1)).duration
        parts = {(a, b): alone[ACTIVATION_KINDS[0], a] + alone[FUSED_KIND, b] for a, b in pairs}
        found = [time / parts[pair] for pair, time in pairs.items() if parts[pair] > 0]
        factor = float(np.median(found)) if found else costs.overlap_factor
        changes |= {"O": None, "overlap_factor": factor}
    return replace(costs, **changes)


def _asked(
    replay: Replay, schedule: Schedule, changes: Sequence[Change], names: Sequence[str]
) -> WhatIf:
    run = replay.run
    measured, before = float(run.step_times.mean()), predict(replay, run.schedule)
    after, least = (
        float(run.slowest(rows).mean()) for rows in _predicted(replay, schedule, changes)
    )
    # The replay has a small error, so only its change counts; where it is longer
    # than the run, that must not make the work of a rank shorter.
    after = max(measured * (after / before), min(least, measured))
    return WhatIf(
        ", ".join([*names, *(one.text for one in changes)]), measured, after,
        replay.plan, replay.uncertainty,
        _shown(replay, schedule, changes) if names else None,
    )  # fmt: skip


def _shown(replay: Replay, schedule: Schedule, changes: Sequence[Change]) -> Timeline | None:
    """Return the drawn step under a schedule, in milliseconds; None if it is too large to draw."""
    run, row = replay.run, replay.run.shown
    if len(schedule) * schedule.ranks > MAX_CELLS:
        return None
    slower, times, messages = _to_walk(replay, schedule, changes)
    leads = None
    if schedule is run.schedule:
        schedule, column = run.order_of(row)
        mine = times[[row]][:, column], messages[[row]][:, column]
        leads = mine[0] * replay.leads[[row]][:, column]
    else:
        mine = under_schedule(run, times[[row]], messages[[row]], schedule, slower, replay.layers)
    end = replay.walk(schedule).ends(*mine, leads)[0]
    return drawn(schedule, end - mine[0][0], end)


SUGGESTED = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v")
"""Schedules to try by default."""


def faster(replay: Replay) -> list[WhatIf]:
    """Return schedules that would be faster with the times of a run, the fastest first."""
    found = []
    for name in SUGGESTED:
        if name == replay.run.schedule.name or replay.run.schedule.slices > 1:
            continue
        with suppress(DebubbleError):
            found.append(with_schedule(replay, name))
    found = [one for one in found if one.gain > 0.01]
    return sorted(found, key=lambda one: -one.gain)
