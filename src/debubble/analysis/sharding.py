"""Checks of sharding: gradients reduced once and complete, weights gathered before use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.problems import Findings, Problem, spot
from debubble.analysis.structure import period_of
from debubble.core.actions import Action, among, kinds_of, microbatches_of, stages_of, unpack
from debubble.core.kind_relations import DROP_KIND, GATHER_KIND, REDUCTION_KIND
from debubble.core.kinds import WEIGHT_KINDS, WORK_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.validate import has

Positions = NDArray[np.int64]

_MOVES = (GATHER_KIND, DROP_KIND)


def inspect_sharding(schedule: Schedule, found: Findings) -> None:
    """Report stages without a reduction of their gradients, and uses of weights that are dropped.

    For schedules that are complete and in order. Reductions are asked for where a schedule has any,
    or has ``Schedule.explicit_reduction``.
    """
    kind = kinds_of(schedule.actions)
    owner = schedule.ranks_of_actions * schedule.stages + stages_of(schedule.actions)
    if reduces(schedule):
        _reductions(schedule, kind, owner, found)
    if has(schedule, _MOVES):
        _weights(schedule, kind, owner, found)


def reduces(schedule: Schedule) -> bool:
    """Return whether actions of the schedule reduce gradients among replicas."""
    return schedule.explicit_reduction or has(schedule, (REDUCTION_KIND,))


def _reductions(schedule: Schedule, kind: Positions, owner: Positions, found: Findings) -> None:
    """Report gradients that are not reduced once; `owner` is the stage on a rank of each action."""
    iterations, unit = schedule.iterations, microbatches_of(schedule.actions)
    made = np.flatnonzero(among(kind, WEIGHT_KINDS))
    # Of several positions the last one stays.
    last = np.full(schedule.ranks * schedule.stages * iterations, -1)
    last[owner[made] * iterations + unit[made] // period_of(schedule)] = made
    reductions = np.flatnonzero(kind == REDUCTION_KIND)
    have = owner[reductions] * iterations + np.minimum(unit[reductions], iterations - 1)
    strange = (unit[reductions] >= iterations) | (last[have] < 0)
    what = "reduces gradients that nobody computes"
    found.say("reduce-grad", schedule, reductions[strange], what, "remove it")
    reductions, have = reductions[~strange], have[~strange]
    reduced, first = np.unique(have, return_index=True)

    def absent(item: int) -> Problem:
        rank, _, text = spot(schedule, last[item])
        stage = item // iterations % schedule.stages
        wanted = str(Action(stage, REDUCTION_KIND, item % iterations))
        return Problem(
            "reduce-grad",
            f"{wanted} is missing: the gradients of stage {stage} are neither divided by the "
            "number of microbatches nor reduced among replicas",
            rank,
            None,
            (wanted, text),
            f"add it on rank {rank} behind {text}",
        )

    lacks = last >= 0
    lacks[reduced] = False
    found.add("reduce-grad", np.flatnonzero(lacks), absent)
    again = np.ones(len(reductions), dtype=bool)
    again[first] = False
    what = "reduces the same gradients again"
    found.say("reduce-grad", schedule, reductions[again], what, "remove one of the two")
    early = ~again & (reductions < last[have])

    def hasty(item: int) -> Problem:
        _, there, wanted = spot(schedule, last[have[item]])
        what = f"comes before {wanted} (action {there}), whose gradient it leaves out"
        here = spot(schedule, reductions[item])
        return here.problem("reduce-grad", what, f"move it behind {wanted}", wanted)

    found.add("reduce-grad", np.flatnonzero(early), hasty)


def _weights(schedule: Schedule, kind: Positions, owner: Positions, found: Findings) -> None:
    """Report uses of weights that a rank does not hold, gathered twice, or dropped while away.

    PyTorch's runtime aborts on the last two.
    """
    moves, stages = among(kind, _MOVES), schedule.stages
    moved = np.zeros(schedule.ranks * stages, dtype=np.bool_)
    moved[owner[moves]] = True
    every = np.flatnonzero((moves | among(kind, WORK_KINDS)) & moved[owner])
    # Small numbers are sorted in a fraction of the time.
    group = owner[every].astype(np.uint16 if len(moved) <= 1 << 16 else np.int64)
    order = np.argsort(group, kind="stable")
    every, group, event = every[order], group[order], moves[every[order]]
    # Uses of a stage on a rank with nothing in between are alike: one stands for all of them.
    first = np.flatnonzero(np.append(True, event[1:] | event[:-1] | (group[1:] != group[:-1])))
    alike = np.diff(first, append=len(every))
    positions, group = every[first], group[first].astype(np.int64)
    index, gathers, drops = np.arange(len(first)), *(kind[positions] == each for each in _MOVES)
    # The last gathering or drop before each, of any group, and the very action before.
    before = np.append(-1, np.maximum.accumulate(np.where(gathers | drops, index, -1))[:-1])
    held = (before >= 0) & (group[before] == group) & gathers[before]
    last = np.append(group[1:] != group[:-1], True)
    twice, without, lacking = gathers & held, drops & ~held, ~gathers & ~drops & ~held
    # One that is gathered again, or that another problem follows, is reported there.
    unused = gathers & ~twice & (last | drops[np.minimum(index + 1, len(index) - 1)])

    def lacks(item: int) -> Problem:
        here = spot(schedule, every[item])
        stage = unpack(int(schedule.actions[every[item]])).stage
        what = f"uses weights of stage {stage} that its rank does not hold"
        return here.problem("unshard", what, f"add {Action(stage, GATHER_KIND, 0)} before it")

    def describe(item: int) -> Problem:
        here, stage = spot(schedule, positions[item]), int(group[item]) % stages
        if twice[item]:
            _, there, other = spot(schedule, positions[before[item]])
            what = f"gathers weights of stage {stage} that its rank has since {other}"
            fix = f"remove it, or drop them before it with {Action(stage, DROP_KIND, 0)}"
            return here.problem("unshard", f"{what} (action {there})", fix, other)
        if without[item]:
            what = f"drops weights of stage {stage} that its rank does not hold"
            return here.problem("unshard", what, "remove it")
        fix = "remove it" if last[item] else f"remove it and the {DROP_KIND.name} behind it"
        return here.problem("unshard", f"gathers weights of stage {stage} that nothing uses", fix)

    found.add("unshard", np.flatnonzero(np.repeat(lacking, alike)), lacks)
    wrong = np.flatnonzero(twice | without | unused)
    found.add("unshard", wrong[np.argsort(positions[wrong])], describe)
