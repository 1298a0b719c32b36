"""Gradients are reduced once, when they are complete, and weights are there when they are used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.problems import Findings, Problem, spot
from debubble.analysis.structure import Columns, period_of
from debubble.core.actions import Action, Kind, unpack
from debubble.core.kinds import WEIGHT_KINDS, WORK_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.validate import has

Positions = NDArray[np.int64]


def inspect_sharding(schedule: Schedule, found: Findings) -> None:
    """Report stages without a reduction of their gradients, and uses of weights that are dropped.

    For schedules that are complete and in order. Reductions are asked for where a schedule has any,
    or says that there are none but its own (``Schedule.explicit_reduction``).
    """
    columns = Columns.of(schedule)
    # (rank, stage), as few numbers as occur.
    _, owner = np.unique(columns.rank * schedule.stages + columns.stage, return_inverse=True)
    reductions = np.flatnonzero(columns.kind == Kind.REDUCE_GRAD)
    if schedule.explicit_reduction or len(reductions):
        _reductions(columns, owner, reductions, found)
    if np.any((columns.kind == Kind.UNSHARD) | (columns.kind == Kind.RESHARD)):
        _weights(columns, owner, found)


def reduces(schedule: Schedule) -> bool:
    """Whether actions of the schedule reduce gradients among replicas."""
    return schedule.explicit_reduction or has(schedule, (Kind.REDUCE_GRAD,))


def _reductions(columns: Columns, owner: Positions, reductions: Positions, found: Findings) -> None:
    schedule, period = columns.schedule, period_of(columns.schedule)
    made = np.flatnonzero(np.isin(columns.kind, WEIGHT_KINDS))
    iterations = schedule.units // (schedule.microbatches * schedule.slices)
    needed = owner[made] * iterations + columns.unit[made] // period
    # The last position of every key: the first one from behind.
    keys, from_behind = np.unique(needed[::-1], return_index=True)
    last = made[::-1][from_behind]
    have = owner[reductions] * iterations + columns.unit[reductions]
    strange = (columns.unit[reductions] >= iterations) | ~np.isin(have, keys)
    what = "reduces gradients that nobody computes"
    found.say("reduce-grad", schedule, reductions[strange], what, "remove it")
    reductions, have = reductions[~strange], have[~strange]
    reduced, first = np.unique(have, return_index=True)

    def absent(item: int) -> Problem:
        rank, _, text = spot(schedule, last[item])
        stage = int(columns.stage[last[item]])
        wanted = str(Action(stage, Kind.REDUCE_GRAD, int(keys[item]) % iterations))
        return Problem(
            "reduce-grad",
            f"{wanted} is missing: the gradients of stage {stage} are neither divided by the "
            "number of microbatches nor reduced among replicas",
            rank,
            None,
            (wanted, text),
            f"add it on rank {rank} behind {text}",
        )

    found.add("reduce-grad", np.flatnonzero(~np.isin(keys, reduced)), absent)
    again = np.ones(len(reductions), dtype=bool)
    again[first] = False
    what = "reduces the same gradients again"
    found.say("reduce-grad", schedule, reductions[again], what, "remove one of the two")
    cell = np.searchsorted(keys, have)
    early = ~again & (reductions < last[cell])

    def hasty(item: int) -> Problem:
        _, there, wanted = spot(schedule, last[cell[item]])
        what = f"comes before {wanted} (action {there}), whose gradient it leaves out"
        here = spot(schedule, reductions[item])
        return here.problem("reduce-grad", what, f"move it behind {wanted}", wanted)

    found.add("reduce-grad", np.flatnonzero(early), hasty)


def _weights(columns: Columns, owner: Positions, found: Findings) -> None:
    kind = columns.kind
    shards = (kind == Kind.UNSHARD) | (kind == Kind.RESHARD)
    positions = np.flatnonzero(shards | np.isin(kind, WORK_KINDS))
    positions = positions[np.isin(owner[positions], owner[shards])]
    positions = positions[np.argsort(owner[positions], kind="stable")]
    group = owner[positions]
    event = shards[positions]
    before = np.maximum.accumulate(np.where(event, np.arange(len(positions)), -1))
    known = (before >= 0) & (group[before] == group)
    dropped = ~event & ~(known & (kind[positions[before]] == Kind.UNSHARD))

    def describe(item: int) -> Problem:
        stage = int(columns.stage[positions[item]])
        what = f"uses weights of stage {stage} that its rank does not hold"
        fix = f"add {Action(stage, Kind.UNSHARD, 0)} before it"
        return spot(columns.schedule, positions[item]).problem("unshard", what, fix)

    found.add("unshard", np.flatnonzero(dropped), describe)
    _exchanges(columns.schedule, positions, group, kind[positions], found)


def _exchanges(
    schedule: Schedule, positions: Positions, group: Positions, kind: Positions, found: Findings
) -> None:
    """Weights gathered that are there, or dropped that are not; PyTorch's runtime aborts on these.

    `positions` are those of shard actions and of what uses weights, sorted by `group`, a stage on a
    rank, and then by program order; `kind` are their kinds.
    """
    index = np.arange(len(positions))
    gathers, drops = kind == Kind.UNSHARD, kind == Kind.RESHARD
    # The last shard action before each, of any group, and the very action before.
    latest = np.maximum.accumulate(np.where(gathers | drops, index, -1))
    before = np.concatenate([[-1], latest[:-1]])
    held = (before >= 0) & (group[before] == group) & gathers[before]
    last = np.append(group[1:] != group[:-1], True)
    twice, without = gathers & held, drops & ~held
    # One that is gathered again, or that another problem follows, is reported there.
    follower = np.minimum(index + 1, len(index) - 1)
    unused = gathers & ~twice & (last | drops[follower])

    def describe(item: int) -> Problem:
        here = spot(schedule, positions[item])
        stage = unpack(int(schedule.actions[positions[item]])).stage
        if twice[item]:
            _, there, other = spot(schedule, positions[before[item]])
            what = f"gathers weights of stage {stage} that its rank has since {other}"
            fix = f"remove it, or drop them before it with {stage}RESHARD0"
            return here.problem("unshard", f"{what} (action {there})", fix, other)
        if without[item]:
            what = f"drops weights of stage {stage} that its rank does not hold"
            return here.problem("unshard", what, "remove it")
        fix = "remove it" if last[item] else "remove it and the RESHARD behind it"
        return here.problem("unshard", f"gathers weights of stage {stage} that nothing uses", fix)

    wrong = np.flatnonzero(twice | without | unused)
    found.add("unshard", wrong[np.argsort(positions[wrong])], describe)
