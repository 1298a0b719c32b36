"""What a search is asked for: the problems that all searches read, and how long they may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.placement import Placement
from debubble.core.runtimes import (
    RECOMPUTED_WHOLE,
    RECOMPUTES_LATE,
    RUNTIMES,
    has_rule,
    recompute_in_backward,
)
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2P_MODES, P2PMode
from debubble.engine.memory import Limit, beside_static, memory_limits
from debubble.engine.timeline import Timeline
from debubble.optimize.layer_split.cutting import Cutting, cut_problem, smallest_limit
from debubble.optimize.layer_split.layers import Cut, Given, even_cut, layers_of
from debubble.optimize.problem import BACKWARDS, Backward, Problem
from debubble.optimize.programs.offload import Offload, check_offload, eased, is_none
from debubble.optimize.stage_choices.choices import (
    Choice,
    Recompute,
    Ways,
    choice_of,
    same_for_all,
    ways_of,
    with_choice,
    with_way_out,
)
from debubble.optimize.variants import Report
from debubble.schedules.registry import MAX_ACTIONS, check_count

PLACEMENTS: dict[str, tuple[Callable[[int, int], Placement], ...]] = {
    "wave": (Placement.wave,),
    "loop": (Placement.loop,),
    "any": (Placement.wave, Placement.loop),
}
"""Placements by name; a wave of two chunks is a V."""

Shape: TypeAlias = str | Placement | Sequence[int]


@dataclass(frozen=True, eq=False)
class Asked:
    """What is sought: everything that says which orders there are, and what they take.

    All fields are parameters of :func:`debubble.optimize`. Every search, whatever it does, reads
    :attr:`problems`.
    """

    ranks: int
    microbatches: int
    chunks: int | Sequence[int] | None
    costs: Costs
    layers: Given | None
    memory: Limit | None
    placement: Shape
    backward: Backward
    recompute: Recompute
    offload: Offload
    p2p_mode: P2PMode

    @cached_property
    def problems(self) -> list[Problem]:
        """One problem for every placement and way in which all stages do the same.

        Limits are without what ranks hold all the time.
        """
        room, alone = beside_static(self.memory, self.costs, self.ranks)
        return problems_of(
            self.ranks, self.microbatches, self.chunks, alone, room, self.placement, self.backward,
            self.p2p_mode, self.recompute, self.offload, self.layers,
        )  # fmt: skip

    def ways(self, stages: int) -> Ways:
        """What every stage may do with its activations."""
        return ways_of(self.recompute, self.offload, stages)

    def problem(self, placement: Placement, cut: Cut, choice: Choice) -> Problem:
        """The problem on one placement, with one cut of the layers and one choice of its stages."""
        root = next(each for each in self.problems if each.placement.table == placement.table)
        return with_choice(cut_problem(root, cut) if root.layers else root, choice)

    def like(self, other: Problem) -> Problem:
        """The problem that is as another one, of which more or less may be asked."""
        return self.problem(other.placement, other.cut, choice_of(other))


@dataclass(frozen=True)
class Budget:
    """How long a search may take, and who listens; parameters of :func:`debubble.optimize`."""

    time_limit: float | None = None
    effort: float = 1.0
    seed: int = 0
    workers: int = 2
    cache: bool = True
    report: Report | None = None
    until: Callable[[], bool] | None = None

    def within(self, seconds: float | None) -> Budget:
        """The same with another time limit."""
        return replace(self, time_limit=seconds)


@dataclass(frozen=True, eq=False)
class Found:
    """The best order of a search, the problem it solves, and a bound over all that was asked for.

    Fields are those of :class:`debubble.optimize.result.Result`.
    """

    problem: Problem
    schedule: Schedule
    timeline: Timeline
    bound: float
    status: str
    seconds: float
    found_by: str
    cached: bool = False
    why: str = ""


def _as_run(backward: Backward, recompute: Recompute, costs: Costs) -> Backward:
    """How backwards run where the runtime keeps those of stages whole that recompute."""
    if is_none(recompute) or not has_rule(costs, RECOMPUTED_WHOLE):
        return backward
    if backward == "split":
        raise ParameterError(
            f"backward is 'split', and {RUNTIMES[costs.runtime].title} keeps it whole where a "
            "stage recomputes; use 'fused', or no recompute"
        )
    return "fused"


def problems_of(
    ranks: int,
    microbatches: int,
    chunks: int | Sequence[int] | None,
    costs: Costs,
    memory: float | Sequence[float] | None,
    placement: Shape,
    backward: Backward,
    mode: P2PMode,
    recompute: Recompute = "none",
    offload: Offload = "none",
    layers: Given | None = None,
) -> list[Problem]:
    """One problem for every placement to choose from under which the memory is enough.

    Where it is free what stages do, there is one for each way in which all do the same.
    """
    if mode not in P2P_MODES:
        raise ParameterError(f"p2p mode '{mode}'; {did_you_mean(str(mode), P2P_MODES)}")
    if backward not in BACKWARDS:
        raise ParameterError(f"backward is '{backward}'; {did_you_mean(str(backward), BACKWARDS)}")
    check_offload(offload, costs)
    backward = _as_run(backward, recompute, costs)
    model = None if layers is None else layers_of(layers, costs)
    problems: list[Problem] = []
    refusals: list[tuple[float, ParameterError]] = []
    for place in _placements(ranks, microbatches, chunks, placement, costs):
        its = costs
        if model is not None:
            its = model.costs
            if model.each:
                its = model.cut(place, even_cut(model.count, place.stages))
        table = its.resolve(place).for_microbatches(microbatches)
        # Whether a microbatch fits that is longer than the average one is seen when it has a place.
        longest = 1.0 if table.lengths is None else min(1.0, float(table.lengths.max()))
        limits = memory_limits(memory, ranks)
        limits = np.full(ranks, np.inf) if limits is None else np.broadcast_to(limits, (ranks,))
        problem = Problem(
            place, table, microbatches, limits,
            mode=mode, backward=backward, layers=model,
        )  # fmt: skip
        for chosen in same_for_all(ways_of(recompute, offload, place.stages)):
            asked = with_choice(problem, chosen)
            if recompute != "free" and has_rule(costs, RECOMPUTES_LATE):
                asked = replace(asked, table=recompute_in_backward(table, asked.recomputed))
            room = replace(asked, limits=limits / longest)
            try:
                if model is None:
                    eased(room).check_limits()
                else:
                    Cutting(room).check()
            except ParameterError as error:
                least = float(eased(asked).smallest_limits.max())
                refused = with_way_out(error, asked, smallest_limit)
                if longest < 1:
                    refused = _too_small_for(asked, longest)
                refusals.append((least, refused))
            else:
                problems.append(asked)
    if not problems:
        raise min(refusals, key=lambda refusal: refusal[0])[1]
    return problems


def _too_small_for(problem: Problem, longest: float) -> ParameterError:
    """The refusal of limits in which not even the longest microbatch fits, a short one."""
    return ParameterError(
        f"memory {problem.limits.min():.12g} is too small for a microbatch of length "
        f"{longest:.12g}; give at least {smallest_limit(problem) * longest:.12g}"
    )


def _placements(
    ranks: int,
    microbatches: int,
    chunks: int | Sequence[int] | None,
    choice: Shape,
    costs: Costs,
) -> list[Placement]:
    """Every placement that is to be tried, each once."""
    if chunks is None:
        chunks = (1, 2) if costs.same_model else 1
    numbers = tuple(chunks) if isinstance(chunks, Sequence) else (chunks,)
    sizes = [("ranks", ranks), ("microbatches", microbatches), *(("chunks", v) for v in numbers)]
    for name, value in sizes:
        check_count(name, value)
    if isinstance(choice, str):
        if choice not in PLACEMENTS:
            raise ParameterError(f"placement is '{choice}'; {did_you_mean(choice, PLACEMENTS)}")
        made = [shape(ranks, v) for v in numbers for shape in PLACEMENTS[choice]]
    else:
        given = choice if isinstance(choice, Placement) else Placement.explicit(choice, ranks)
        if given.copies > 1:
            raise ParameterError("the placement has two copies of the model; give one copy")
        if given.ranks != ranks:
            raise ParameterError(f"the placement has {given.ranks} ranks; ranks is {ranks}")
        made = [given]
    different = {place.table: place for place in reversed(made)}
    for place in different.values():
        size = 3 * place.stages * microbatches
        if size > MAX_ACTIONS:
            raise ParameterError(f"{size:,} actions; the limit is {MAX_ACTIONS:,}")
    return list(reversed(different.values()))
