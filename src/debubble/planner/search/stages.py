"""Times and bytes of a candidate's stages, which all schedules of one placement share.

Schedules in the same placement differ in the order of actions alone. So their candidates share
times, step ends and bytes of every stage, and a simulation is one walk over the graph of the
schedule.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.core.kinds import TIMED_KINDS, kind_bits
from debubble.core.runtimes import FIRST_IN_W, RUNTIMES
from debubble.core.schedule import Schedule
from debubble.engine.event_graph import LINK
from debubble.engine.graph import compile_graph
from debubble.engine.kernels import evaluate as walk
from debubble.engine.validate import scan
from debubble.planner.candidate import Candidate, recomputed_layers
from debubble.planner.case import Case
from debubble.planner.cost.stage_costs import LayerSums, layer_sums, stage_times, transfer
from debubble.planner.cost.step import StepEnds, step_ends
from debubble.planner.memory.activations import stage_activations
from debubble.planner.memory.buffers import least_tensors
from debubble.planner.memory.peaks import standing
from debubble.planner.plannable import placement_of, plannable
from debubble.planner.request import PlanRequest
from debubble.schedules import registry

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

SIMPLE = kind_bits((Kind.F, Kind.I, Kind.W, Kind.B))
"""Kinds of actions of which a stage's times say all."""


class Ahead(NamedTuple):
    """Seconds of every rank, shape ``(pp,)``, of one microbatch."""

    work: Floats
    """F, I and W of all of its stages."""
    forward: Floats
    """F of all stages ahead of its first one."""
    both: Floats
    """F, I and W of all stages ahead of its first one."""


class StepTimes(NamedTuple):
    """One simulated step."""

    seconds: float
    """The step, with its ends."""
    makespan: float
    busy: float
    """Work of the busiest rank."""


class Stages:
    """The stages of a candidate, whatever the order of actions and the number of microbatches."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @cached_property
    def homes(self) -> Integers:
        """Rank of every stage."""
        return self._placed[0]

    @cached_property
    def _placed(self) -> tuple[Integers, Integers]:
        degrees = self.case.degrees
        return _placed(self.case.candidate.schedule, degrees.pp, degrees.chunks)

    @cached_property
    def ahead(self) -> Ahead:
        """Work of every rank, and ahead of it, without what is specific to pipelines."""
        return Ahead(*(part[0] for part in self.ahead_of(np.array([self.case.candidate.layers]))))

    def ahead_of(self, cuts: Integers) -> Ahead:
        """Return `ahead` for several cuts in place of its own; shape ``(cuts, pp)``.

        `cuts` are layers of every stage, shape ``(cuts, stages)``.
        """
        found, (homes, first) = work_of_cuts(self.case, cuts), self._placed
        before = found.cumsum(axis=2)[..., np.maximum(first - 1, 0)] * (first > 0)
        work = [np.bincount(homes, own, len(first)) for own in found[1]]
        return Ahead(np.array(work), *before)

    @cached_property
    def times(self) -> Floats:
        """F, I, W and B of every stage as the runtime runs them, in rows."""
        case = self.case
        F, I, W = stage_times(case)
        if not case.training.overlap_p2p:
            # As in `stage_costs`: a rank waits for what it sends and receives.
            sent = float(np.max(transfer(case)))
            F, I = F + sent, I + sent
        found = np.stack([F, I, W, I + W])
        if FIRST_IN_W in RUNTIMES[case.engine].rules:
            found[1, 0], found[2, 0] = 0.0, found[3, 0]
        return found

    @cached_property
    def ends(self) -> StepEnds:
        """Ends of the step on every rank."""
        return step_ends(self.case, tuple(self.times[3].tolist()), self.case.placement)

    @cached_property
    def gradients(self) -> Floats:
        """Seconds of every rank from its last action until gradients are summed."""
        return np.array(self.ends.gradients)

    @cached_property
    def after(self) -> float:
        """Seconds of the optimizer and of new weights."""
        return max(self.ends.optimizer) + max(self.ends.weights)

    @cached_property
    def standing(self) -> Floats:
        """Bytes that every rank holds all the time."""
        held: Floats = standing(self.case, self.case.placement)
        return held

    @cached_property
    def buffered(self) -> Floats:
        """Bytes of tensors between stages that every rank holds for every microbatch of a step."""
        tensors = least_tensors(tuple(self.homes.tolist()), self.case.training.runtime)
        boundary = stage_activations(self.case)[0].boundary
        return boundary * np.bincount(self.homes, tensors).astype(np.float64)

    @cached_property
    def stored(self) -> Floats:
        """Bytes of one microbatch's activations on every stage."""
        return np.array([one.stored for one in stage_activations(self.case)])

    @cached_property
    def kept(self) -> Floats:
        """The part of `stored` that stays from I to W."""
        if self.case.whole_backwards:
            return np.zeros_like(self.stored)
        kept = np.array([one.kept_for_weight for one in stage_activations(self.case)])
        part: Floats = np.minimum(self.stored, kept)
        return part

    @cached_property
    def _costs(self) -> Floats:
        """Costs of graphs, but for links."""
        F, I, W, B = self.times
        rows = {Kind.F: F, Kind.I: I, Kind.W: W, Kind.B: B}
        timed = [rows.get(Kind(kind), np.zeros_like(F)) for kind in TIMED_KINDS]
        return np.concatenate([[0.0], *timed, np.zeros(self.case.degrees.pp)])

    @cached_property
    def _links(self) -> Floats:
        """Seconds of transfers between ranks."""
        ranks, case = self.case.degrees.pp, self.case
        found = np.zeros((ranks, ranks))
        if case.training.overlap_p2p:
            found[:] = np.asarray(transfer(case))
        np.fill_diagonal(found, 0.0)
        return found

    def simulate(self, schedule: Schedule) -> StepTimes | None:
        """Return one step of a schedule; None where it needs more than times of stages."""
        case = self.case
        if case.model.mtp and case.candidate.mtp_at != case.degrees.stages - 1:
            return None  # messages differ by stage
        known = _simple_graph(schedule)
        if known is None:
            return None
        costs = np.concatenate([self._costs, self._links[known.senders, known.receivers]])
        end = np.empty(len(known.edges[0]))
        walk.evaluate.run(len(end), *known.edges, costs, end)
        ready = float((end[known.last] + self.gradients).max())
        busy = schedule.microbatches * np.bincount(self.homes, self.times[0] + self.times[3]).max()
        ends = self.ends
        seconds = ready + max(ends.optimizer) + max(ends.weights)
        return StepTimes(seconds, float(end.max()), float(busy))


def stages_of(request: PlanRequest, candidate: Candidate) -> Stages:
    """Return the stages of a candidate; the same object for all schedules of its placement."""
    degrees = candidate.degrees
    alike = first_alike(candidate.schedule, degrees.pp, degrees.chunks)
    seen = Candidate(
        degrees, candidate.microbatch_size, 1, alike, candidate.layers, candidate.recompute,
        candidate.zero, candidate.modules, candidate.mtp_stage,
    )  # fmt: skip
    return _stages(request.case(seen))


@lru_cache(maxsize=1 << 13)
def _stages(case: Case) -> Stages:
    return Stages(case)


@lru_cache(maxsize=4096)
def first_alike(name: str, ranks: int, chunks: int) -> str:
    """Return the first schedule with the placement of a given one."""
    own = placement_of(name, ranks, chunks)
    for other in plannable():
        right = registry.find(other).chunks in (None, chunks)
        if right and placement_of(other, ranks, chunks).table == own.table:
            return other
    return name


@lru_cache(maxsize=4096)
def _placed(name: str, ranks: int, chunks: int) -> tuple[Integers, Integers]:
    """Return the rank of every stage, and the first stage of every rank."""
    homes = placement_of(name, ranks, chunks).ranks_of_stages
    return homes, np.unique(homes, return_index=True)[1]


class _SimpleGraph(NamedTuple):
    """Arrays of a graph in which only times of stages and links count."""

    edges: tuple[NDArray[np.unsignedinteger], ...]
    last: NDArray[np.int32]
    """Last node of every rank."""
    senders: NDArray[np.int32]
    receivers: NDArray[np.int32]
    """Ranks at both ends of every link."""


def _simple_graph(schedule: Schedule) -> _SimpleGraph | None:
    """Return the graph of a schedule, kept with it; None where other costs count, too."""
    if _SimpleGraph not in schedule.derived:
        graph = compile_graph(schedule)
        simple = not scan(schedule).kinds & ~SIMPLE and graph.places == schedule.stages
        simple &= graph.base is None and graph.link_times == 1
        simple &= bool((graph.dynamic_kind == LINK).all())
        last = graph.node[schedule.offsets[1:] - 1]
        found = _SimpleGraph(graph.edges, last, graph.dynamic_a, graph.dynamic_b)
        schedule.derived[_SimpleGraph] = found if simple else None
    known: _SimpleGraph | None = schedule.derived[_SimpleGraph]
    return known


def work_of_cuts(case: Case, cuts: Integers) -> Floats:
    """Return seconds of F, and of F, I and W together, of one microbatch on every stage.

    For several cuts in place of the candidate's; shape ``(2, cuts, stages)``.
    """
    candidate = case.candidate
    end = np.cumsum(cuts, axis=1)
    begin, most = end - cuts, recomputed_layers(candidate.recompute)
    if most is None:
        sums = _work_sums(_case_of(case, candidate.without_order()))
        found = sums.layers[:, end] - sums.layers[:, begin]
    else:
        again = _work_sums(_case_of(case, candidate.without_order("full"))).layers
        sums = _work_sums(_case_of(case, candidate.without_order("none")))
        kept = begin + np.minimum(cuts, most)
        found = again[:, kept] - again[:, begin] + sums.layers[:, end] - sums.layers[:, kept]
    found[..., 0] += sums.embedding[:, None]
    found[..., -1] += sums.head[:, None]
    found[..., candidate.mtp_at] += sums.mtp[:, None]
    return found


def _case_of(case: Case, candidate: Candidate) -> Case:
    return Case(case.model, case.cluster, case.training, candidate, case.factors)


@lru_cache(maxsize=1 << 14)
def _work_sums(case: Case) -> LayerSums:
    """Return seconds of F, and of F, I and W together, in rows."""
    return LayerSums(*(np.stack([part[0], part.sum(axis=0)]) for part in layer_sums(case)))
