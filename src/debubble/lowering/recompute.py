"""Lower a schedule to one that stores less and recomputes it before the backward.

A forward that is recomputed leaves only its input (:attr:`debubble.Costs.recompute_kept`); an
action R runs the forward again before the backward and brings back what that needs. Memory that a
split backward keeps for W is not saved. What R costs depends on where it stands and on what it
waits for:

``"with-backward"``
    R starts when the gradient has arrived, as in frameworks whose checkpoints recompute inside the
    backward (Megatron-LM, ``torch.utils.checkpoint``). Every backward is longer by R: all formulas
    for times hold with I + R for I and B + R for B.
``"just-in-time"``
    The same place, but R only needs its own forward and runs while the gradient is under way. What
    is left is the work itself: GPipe and 1F1B with equal stages take (m + p − 1)(F + B) + m·R
    where the above takes (m + p − 1)(F + B + R).
``"bubbles"``
    R also moves further ahead, into time in which its rank waits, as in Mario (PPoPP'25). That
    keeps activations for longer, within the memory of the place above or a given limit.

A *cap* recomputes no more than it has to, what a rank would hold of whole activations beyond it:
those that stay longest. RiPipe (``--recompute-in-bubble`` of MindSpeed, on Ascend) is interleaved
1F1B with a cap of p·v and R in bubbles. There the first half of the ranks recompute some forwards
of their first chunk, p − 1 − 2r of the second group on rank r.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from typing import Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    STAGE_SHIFT,
    Kind,
    Program,
    among,
    group_bounds,
    kinds_of,
    stages_of,
)
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.kinds import GRADIENT_KINDS
from debubble.core.runtimes import RECOMPUTES_LATE, RUNTIMES, has_rule
from debubble.core.schedule import Schedule
from debubble.core.units import is_whole
from debubble.engine.cost_mismatch import remembering
from debubble.engine.graph import P2PMode
from debubble.engine.recompute import recomputed_stages
from debubble.engine.transfers import first_transfer
from debubble.lowering.best_lowering import Setting
from debubble.lowering.bubbles import in_bubbles

RecomputeAt: TypeAlias = Literal["just-in-time", "bubbles", "with-backward"]
RECOMPUTE_AT = ("just-in-time", "bubbles", "with-backward")

Stages: TypeAlias = str | Collection[int] | Mapping[int, bool]
"""``"full"`` for all stages, the stages, or a mapping that says of every stage whether."""


def add_recompute(
    schedule: Schedule,
    stages: Stages | None = "full",
    *,
    at: RecomputeAt | None = None,
    cap: int | None = None,
    costs: Costs | None = None,
    memory: float | Sequence[float] | None = None,
    p2p_mode: P2PMode = "overlapped",
) -> Schedule:
    """Recompute the forwards of some stages before their backwards.

    Parameters
    ----------
    schedule
        A schedule of compute actions.
    stages
        Stages that recompute: ``"full"`` for all, None for none, their numbers, or a mapping from
        every stage to True or False. All microbatches of a stage do. The last stage's backward
        often follows its forward at once, so that recomputing it saves nothing; ``"full"`` includes
        it, as frameworks do, and ``range(schedule.stages - 1)`` leaves it out. A stage that
        recomputes only some of its layers (AdaPipe, ASPLOS'24) has a smaller ``Costs.R`` and a
        larger ``Costs.recompute_kept``.
    at
        Position of R: ``"just-in-time"`` (the default), ``"bubbles"`` or ``"with-backward"``, see
        :mod:`debubble.lowering.recompute`. The last alone where the costs are of a runtime whose
        recompute is a part of the backward, see :mod:`debubble.core.runtimes`.
    cap
        How many whole activations of a stage and microbatch a rank may hold from a forward, or its
        recompute, to the end of the backward, as far as stages that recompute allow. Only what
        goes beyond it is recomputed; None for all.
    costs, p2p_mode
        Costs and mode that ``"bubbles"`` simulates with; ignored by the others.
    memory
        Limit for ``"bubbles"``, for all ranks or one for each. What ``"just-in-time"`` holds is
        always allowed, and is the limit when none is given.

    Returns
    -------
    Schedule
        With an R before every I or B of these stages, or of those beyond the cap, before the whole
        pair when that is half of one; with ``"bubbles"`` never slower than ``"just-in-time"`` for
        these costs in this mode.

    Raises
    ------
    ParameterError
        When a stage or a place does not exist, a limit does not fit, or the schedule has transfers
        or recomputes already.
    ScheduleError
        When ``"bubbles"`` has to simulate an order that cannot run.

    Examples
    --------
    >>> import debubble as db
    >>> from debubble.lowering.recompute import add_recompute
    >>> for row in add_recompute(db.make("1f1b", ranks=2, microbatches=2), [0]).rows():
    ...     print(" ".join(row))
    0F0 0F1 0R0 0B0 0R1 0B1
    1F0 1B0 1F1 1B1
    """
    setting = Setting(costs, memory, p2p_mode)
    return setting.best(ways_to_recompute(schedule, stages, at, cap, setting))


def ways_to_recompute(
    schedule: Schedule, stages: Stages | None, at: str | None, cap: int | None, setting: Setting
) -> list[Schedule]:
    """Return the schedule with recomputes in every way; ``"bubbles"`` has more than one."""
    at = place_of(stages, at, setting.costs)
    check_cap(stages, cap)
    if stages is None:
        return [schedule]
    chosen = chosen_stages(stages, schedule.stages)
    if not chosen.any():
        return [schedule]
    _refuse_lowered(schedule)
    names = "full" if chosen.all() else np.flatnonzero(chosen).tolist()
    asked = {"recompute": names, "recompute_at": at}
    programs = [just_in_time(schedule.program(rank), chosen, cap) for rank in range(schedule.ranks)]
    made = schedule.with_programs(
        programs,
        recompute_after="gradient" if at == "with-backward" else "forward",
        options={**schedule.options, **asked, **({} if cap is None else {"recompute_cap": cap})},
    )
    if at != "bubbles":
        return [made]
    costs = setting.costs or Costs()
    made = remembering(made, "recomputes", costs)
    return [made, *in_bubbles(made, schedule, setting)]


def place_of(stages: Stages | None, at: str | None, costs: Costs | None = None) -> RecomputeAt:
    """Check the position of recomputes; ``"just-in-time"`` unless given or the runtime has another.

    Raises ParameterError when there is no such place, no stage to recompute, or the runtime of the
    costs has another place.
    """
    late = costs is not None and has_rule(costs, RECOMPUTES_LATE)
    if at is None:
        return "with-backward" if late else "just-in-time"
    if at not in RECOMPUTE_AT:
        raise ParameterError(f"recompute_at is '{at}'; {did_you_mean(str(at), RECOMPUTE_AT)}")
    if stages is None:
        raise ParameterError(
            f"recompute_at is '{at}' and no stage recomputes; give recompute='full'"
        )
    if late and at != "with-backward":
        assert costs is not None, "it has the rule"
        raise ParameterError(
            f"recompute_at is '{at}', and {RUNTIMES[costs.runtime].title} recomputes in the "
            "backward; use 'with-backward', or another runtime"
        )
    return cast("RecomputeAt", at)


def check_cap(stages: Stages | None, cap: int | None) -> None:
    """Check a cap of whole activations.

    Raises ParameterError when it is no whole number from 1 on, or no stage recomputes.
    """
    if cap is None:
        return
    if not is_whole(cap) or cap < 1:
        raise ParameterError(f"recompute_cap is {cap!r}; give a whole number from 1 on")
    if stages is None:
        raise ParameterError(
            f"recompute_cap is {cap} and no stage recomputes; give recompute='full'"
        )


def chosen_stages(stages: Stages, count: int, name: str = "recompute") -> NDArray[np.bool_]:
    """Mask of the stages that the argument `name` selects, shape ``(stages,)``.

    Raises ParameterError when a stage does not exist.
    """
    if isinstance(stages, str):
        if stages != "full":
            raise ParameterError(f"{name} is '{stages}'; give 'full' or stages: [0, 1]")
        return np.ones(count, dtype=bool)
    if isinstance(stages, Mapping):
        missing = [stage for stage in range(count) if stage not in stages]
        if missing:
            raise ParameterError(f"{name} says nothing of stage {missing[0]}; give True or False")
    if not isinstance(stages, Collection):
        raise ParameterError(f"{name} is {stages!r}; give 'full' or stages: [0, 1]")
    found = np.zeros(count, dtype=bool)
    for stage in stages:
        if not is_whole(stage):
            raise ParameterError(f"{name} has the stage {stage!r}; give whole numbers, or 'full'")
        if not 0 <= stage < count:
            raise ParameterError(f"{name} has the stage {stage}; stages go from 0 to {count - 1}")
        found[stage] = stages[stage] if isinstance(stages, Mapping) else True
    return found


def _refuse_lowered(schedule: Schedule) -> None:
    if recomputed_stages(schedule):
        raise ParameterError(
            f"'{schedule.name}' recomputes stages already: {recomputed_stages(schedule)}; "
            "recompute one without"
        )
    if first_transfer(schedule) is not None:
        raise ParameterError(f"'{schedule.name}' has transfers; recompute first, then add them")


def just_in_time(program: Program, chosen: NDArray[np.bool_], cap: int | None = None) -> Program:
    """Return the program with an R before every backward of the chosen stages, or before its pair.

    With a cap only before those whose activation a rank drops to hold no more than that.
    """
    kinds, stages = kinds_of(program), stages_of(program)
    backward = among(kinds, GRADIENT_KINDS)
    # A file may name stages that do not exist; checks report them.
    backward &= (stages < len(chosen)) & chosen[np.minimum(stages, len(chosen) - 1)]
    spots = np.flatnonzero(backward)
    if cap is not None:
        spots = spots[_dropped(program, spots, cap)]
    cells = program[spots] >> STAGE_SHIFT << STAGE_SHIFT
    return np.insert(program, group_bounds(program)[0][spots], cells | int(Kind.R))


def _dropped(program: Program, spots: NDArray[np.int64], cap: int) -> NDArray[np.bool_]:
    """Mask the backwards at `spots` whose activations must go to hold `cap` at a time.

    Where one is too many, that goes which would stay longest, or the one that comes. A backward
    whose activation is gone has it back from the R before it on.
    """
    kinds, cells = kinds_of(program), (program >> STAGE_SHIFT).tolist()
    last = {cell: place for place, cell in enumerate(cells)}
    due = {cells[spot]: index for index, spot in enumerate(spots.tolist())}
    begin, end = group_bounds(program)
    first = set(begin[spots].tolist())
    gone = np.zeros(len(spots), dtype=bool)
    held: set[int] = set()
    free: set[int] = set()
    longest: list[tuple[int, int]] = []

    def take(cell: int) -> None:
        held.add(cell)
        while len(held) > cap and longest:
            _, other = heappop(longest)
            if other in free:
                held.remove(other)
                gone[due[other]] = True

    for place, (kind, cell) in enumerate(zip(kinds.tolist(), cells, strict=True)):
        if place in first:
            back = [
                cells[member]
                for member in range(place, int(end[place]))
                if kinds[member] in GRADIENT_KINDS and cells[member] in due
            ]
            # From here on they are in use.
            free.difference_update(back)
            for other in back:
                if gone[due[other]]:
                    take(other)
        if kind == Kind.F:
            if cell in due:
                free.add(cell)
                heappush(longest, (-last[cell], cell))
            take(cell)
        if last[cell] == place:
            held.discard(cell)
    return gone
