"""The request of a search: its problems and its limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from debubble.core.carries import Carries
from debubble.core.cost_table import CostTable
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, WrongValueError, did_you_mean
from debubble.core.given_layers import Given, make_layers
from debubble.core.layers import Cut, Layers, even_cut
from debubble.core.placement import Placement
from debubble.core.runtimes import (
    RECOMPUTED_WHOLE,
    RECOMPUTES_LATE,
    RUNTIMES,
    has_rule,
    recompute_in_backward,
)
from debubble.core.schedule import Schedule
from debubble.core.schedule_fields import FieldSizes, carries, check_carries
from debubble.engine.graph import P2P_MODES, P2PMode
from debubble.engine.memory import Limit, beside_static, memory_limits
from debubble.engine.timeline import Timeline
from debubble.lowering.carries import carries_of
from debubble.optimize.layer_split.cutting import Cutting, cut_problem, smallest_limit
from debubble.optimize.problem import BACKWARDS, Backward, Problem
from debubble.optimize.programs.offload import Offload, check_offload, is_none, relax_copies
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
from debubble.optimize.stop import Stop
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
class Request:
    """The parameters that decide on the possible schedules and their times.

    Fields are parameters of :func:`debubble.optimize`. Every search reads :attr:`problems`, so that
    no search can ignore a field.
    """

    ranks: int
    microbatches: int
    chunks: int | Sequence[int] | None = None
    costs: Costs = field(default_factory=Costs)
    layers: Given | None = None
    memory: Limit | None = None
    placement: Shape = "any"
    backward: Backward = "free"
    recompute: Recompute = "none"
    offload: Offload = "none"
    p2p_mode: P2PMode = "overlapped"
    carry: Any = None

    @cached_property
    def carries(self) -> Carries:
        """Skip connections, sorted."""
        pairs = () if self.carry is None else tuple(dict.fromkeys(carries_of(self.carry)))
        try:
            found: Carries = carries("carry", pairs, FieldSizes(self.ranks, 1))
        except WrongValueError as error:
            raise ParameterError(error.text()) from None
        return found

    @cached_property
    def model(self) -> Layers | None:
        """Layers to be cut, with all else that ranks hold; None where stages are given."""
        return None if self.layers is None else make_layers(self.layers, self.costs)

    @cached_property
    def problems(self) -> list[Problem]:
        """One problem for every placement and shared choice of all stages, if its memory is enough.

        Limits are without the memory that ranks hold all the time.
        """
        _check_choices(self.p2p_mode, self.backward)
        own = self.costs if self.model is None else self.model.costs
        room, costs = beside_static(self.memory, own, self.ranks)
        check_offload(self.offload, costs)
        model = None if self.model is None else replace(self.model, costs=costs)
        problems: list[Problem] = []
        refusals: list[tuple[float, ParameterError]] = []
        backward, places = self._backward_as_run(), self._placements()
        limits = memory_limits(room, self.ranks)
        limits = np.full(self.ranks, np.inf) if limits is None else limits
        for place in places:
            problem = Problem(
                place, _table(place, self.microbatches, costs, model), self.microbatches,
                np.broadcast_to(limits, (self.ranks,)), mode=self.p2p_mode, backward=backward,
                layers=model, carries=self.carries,
            )  # fmt: skip
            for chosen in same_for_all(self.ways(place.stages)):
                problem_of_choice = self._chosen(problem, chosen)
                refusal = _refusal(problem_of_choice)
                if refusal is None:
                    problems.append(problem_of_choice)
                else:
                    refusals.append(refusal)
        if not problems:
            raise min(refusals, key=lambda refusal: refusal[0])[1]
        return problems

    def _chosen(self, problem: Problem, chosen: Choice) -> Problem:
        """Return a problem with one choice for its stages, as the runtime runs it."""
        problem = with_choice(problem, chosen)
        if self.recompute != "free" and has_rule(self.costs, RECOMPUTES_LATE):
            table = recompute_in_backward(problem.table, problem.recomputed)
            return replace(problem, table=table)
        return problem

    def ways(self, stages: int) -> Ways:
        """Return the choices of every stage for its activations."""
        return ways_of(self.recompute, self.offload, stages)

    def problem(self, placement: Placement, cut: Cut, choice: Choice) -> Problem:
        """Return the problem on one placement, with one cut of the layers and one choice."""
        root = next(each for each in self.problems if each.placement.table == placement.table)
        return with_choice(cut_problem(root, cut) if root.layers else root, choice)

    def like(self, other: Problem) -> Problem:
        """Return this request's problem with placement, cut and choice of another problem."""
        return self.problem(other.placement, other.cut, choice_of(other))

    def _backward_as_run(self) -> Backward:
        """Return `backward`, or "fused" where the runtime keeps those with recomputes whole."""
        if is_none(self.recompute) or not has_rule(self.costs, RECOMPUTED_WHOLE):
            return self.backward
        if self.backward == "split":
            raise ParameterError(
                f"backward is 'split', and {RUNTIMES[self.costs.runtime].title} keeps it whole "
                "where a stage recomputes; use 'fused', or no recompute"
            )
        return "fused"

    def _placements(self) -> list[Placement]:
        """Return every placement to be tried, each once."""
        chunks = self.chunks
        if self.carries:
            _check_stages_are_given(self)
        if chunks is None:
            same = self.costs.same_model or bool(self.model and self.model.each)
            chunks = (1, 2) if same and not self.carries else 1
        numbers = tuple(chunks) if isinstance(chunks, Sequence) else (chunks,)
        sizes = [("ranks", self.ranks), ("microbatches", self.microbatches)]
        for name, value in [*sizes, *(("chunks", v) for v in numbers)]:
            check_count(name, value)
        shape = self.placement
        if isinstance(shape, str):
            if shape not in PLACEMENTS:
                raise ParameterError(f"placement is '{shape}'; {did_you_mean(shape, PLACEMENTS)}")
            made = [make(self.ranks, v) for v in numbers for make in PLACEMENTS[shape]]
        else:
            made = [_given_placement(shape, self.ranks)]
        different = {place.table: place for place in reversed(made)}
        for place in different.values():
            check_carries(self.carries, place.stages)
            size = 3 * place.stages * self.microbatches
            if size > MAX_ACTIONS:
                raise ParameterError(f"{size:,} actions; the limit is {MAX_ACTIONS:,}")
        return list(reversed(different.values()))


@dataclass(frozen=True)
class Budget:
    """Limits of a search, and its listeners; parameters of :func:`debubble.optimize`."""

    time_limit: float | None = None
    effort: float = 1.0
    seed: int = 0
    workers: int = 2
    cache: bool = True
    report: Report | None = None
    stop: Stop = field(default_factory=Stop)
    """Asked after Ctrl-C: then a search returns the best so far."""

    def __post_init__(self) -> None:
        limit = self.time_limit
        if limit is not None and not 0 < limit < math.inf:
            raise ParameterError(f"time limit is {limit}; give a positive number of seconds")
        if not 0 < self.effort < math.inf:
            raise ParameterError(f"effort is {self.effort}; give a positive number")
        if not 1 <= self.workers <= 256:
            raise ParameterError(f"workers is {self.workers}; give a number from 1 to 256")

    def within(self, seconds: float | None) -> Budget:
        """Return this budget with another time limit."""
        return replace(self, time_limit=seconds)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The best schedule of a search, the problem it solves, and a bound for the whole request.

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


def _check_choices(mode: str, backward: str) -> None:
    if mode not in P2P_MODES:
        raise ParameterError(f"p2p mode '{mode}'; {did_you_mean(str(mode), P2P_MODES)}")
    if backward not in BACKWARDS:
        raise ParameterError(f"backward is '{backward}'; {did_you_mean(str(backward), BACKWARDS)}")


def _check_stages_are_given(request: Request) -> None:
    """Refuse choices of other stages, where carries name those that they begin and end at."""
    first = ":".join(map(str, request.carries[0]))
    if request.layers is not None:
        raise ParameterError(
            f"carry is {first}, and the cut of layers moves what begins and ends there to other "
            "stages; give the times of the stages in place of layers"
        )
    chunks = request.chunks
    if isinstance(chunks, Sequence) and len(set(chunks)) > 1:
        raise ParameterError(
            f"carry is {first}, and these stages are others for each of chunks "
            f"{', '.join(map(str, chunks))}; give one: {max(chunks)}"
        )


def _table(place: Placement, microbatches: int, costs: Costs, model: Layers | None) -> CostTable:
    """Return costs on a placement, of an even cut where there are layers."""
    if model is not None:
        even = model.cut(place, even_cut(model.count, place.stages))
        costs = replace(even, static=0.0) if model.each else model.costs
    return costs.resolve(place).for_microbatches(microbatches)


def _given_placement(shape: Placement | Sequence[int], ranks: int) -> Placement:
    given = shape if isinstance(shape, Placement) else Placement.explicit(shape, ranks)
    if given.copies > 1:
        raise ParameterError("the placement has two copies of the model; give one copy")
    if given.ranks != ranks:
        raise ParameterError(f"the placement has {given.ranks} ranks; ranks is {ranks}")
    return given


def _refusal(problem: Problem) -> tuple[float, ParameterError] | None:
    """Return the least memory that works, and an error, where a problem's limits are too small."""
    # Whether a microbatch fits that is longer than the average one is seen when it has a place.
    lengths = problem.table.lengths
    longest = 1.0 if lengths is None else min(1.0, float(lengths.max()))
    room = replace(problem, limits=problem.limits / longest)
    try:
        if problem.layers is None:
            relax_copies(room).check_limits()
        else:
            Cutting(room).check()
    except ParameterError as error:
        refused = with_way_out(error, problem, smallest_limit)
        if longest < 1:
            refused = ParameterError(
                f"memory {problem.limits.min():.12g} is too small for a microbatch of length "
                f"{longest:.12g}; give at least {smallest_limit(problem) * longest:.12g}"
            )
        return float(relax_copies(problem).smallest_limits.max()), refused
    return None
