"""A problem of the optimizer: a workload with its transfer mode and choices, as plain data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    MICROBATCH_SHIFT,
    STAGE_SHIFT,
    Kind,
    Program,
    among,
    kinds_of,
    microbatches_of,
    stages_of,
)
from debubble.core.carries import Carries
from debubble.core.errors import DebubbleError
from debubble.core.kind_relations import (
    FORWARD_KIND,
    FUSED_KIND,
    INPUT_KIND,
    RECOMPUTE_KIND,
    RECOMPUTE_KINDS,
    WEIGHT_KIND,
)
from debubble.core.kinds import COPY_KINDS, GRADIENT_KINDS, KINDS, Of
from debubble.core.layers import Layers
from debubble.core.runtimes import RECOMPUTES_LATE, has_rule
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode, compile_graph
from debubble.engine.memory import measure_memory
from debubble.engine.timeline import Timeline, timeline_of
from debubble.engine.validate import has
from debubble.listing import TOLERANCE, Workload
from debubble.lowering.recompute import add_recompute

NO_MEMORY = 1e-200
"""Activation memory of a stage that stores nothing, as a divisor: quotients stay finite."""

Backward: TypeAlias = Literal["split", "fused", "free"]
BACKWARDS = ("split", "fused", "free")


class Arc(NamedTuple):
    """A chain whose actions wait for those of another chain, microbatch by microbatch.

    Chain ``(k, s)`` is the k-th kind of stage s. An action starts no sooner than `lag` after the
    end of the same microbatch's action on the other chain.
    """

    chain: tuple[int, int]
    other: tuple[int, int]
    lag: float


@dataclass(frozen=True, eq=False)
class Problem(Workload):
    """One copy of a model on ranks, to be ordered for the smallest makespan.

    Actions have numbers: action ``(k · S + s) · m + b`` is the k-th of F, I, W (F, B where the
    backward is fused) of stage s and microbatch b. Where a stage recomputes, its I or B and the R
    right before it are one action here, with their times together: R only needs its own forward,
    so that the two may begin R before the gradient arrives. Most programs have no R either;
    :meth:`schedule` puts them in. In those that do, R may stand anywhere between its forward and
    its backward, and the R of the j-th stage that recomputes is action ``size + j · m + b``. Bounds
    hold for these as well (:mod:`debubble.optimize.bounds.paths`).

    Parameters
    ----------
    placement, table, microbatches, limits, recompute
        As in :class:`debubble.listing.Workload`.
    mode
        The p2p mode of transfers between ranks.
    backward
        ``"split"`` into I and W, ``"fused"`` into B, or ``"free"``, split but for what is faster
        fused.
    layers
        The layers that are to be cut into the stages, whose times are then those of an even cut;
        None where the stages are given.
    cut
        Layers of every stage, where they were cut.
    offload
        True for each stage whose activations wait on the host; empty for none. Only
        measured here; see :mod:`debubble.optimize.programs.offload`.
    carries
        Skip connections, pairs (from stage, to stage): every schedule of the problem has them. See
        :attr:`carried`.
    """

    mode: P2PMode = "overlapped"
    backward: Backward = "split"
    layers: Layers | None = None
    cut: tuple[int, ...] = ()
    offload: tuple[bool, ...] = ()
    carries: Carries = ()

    @property
    def fused(self) -> bool:
        """True if every backward is one action B instead of I and W."""
        return self.backward == "fused"

    @property
    def variant(self) -> Hashable:
        """Placement, cut and choices of stages: the key of a variant in the search."""
        return self.placement.table, self.cut, self.recompute, self.offload

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of actions that every stage runs for every microbatch."""
        return (FORWARD_KIND, FUSED_KIND) if self.fused else (FORWARD_KIND, INPUT_KIND, WEIGHT_KIND)

    @property
    def size(self) -> int:
        """Number of actions."""
        return len(self.kinds) * self.stages * self.microbatches

    @cached_property
    def times(self) -> NDArray[np.float64]:
        """Time of every kind on every stage, R within the backward, shape ``(kinds, stages)``."""
        times = self.pass_times.copy()
        times[1] += self.recompute_time
        return times

    @property
    def pass_times(self) -> NDArray[np.float64]:
        """Time of every kind on every stage, R left out, shape ``(kinds, stages)``."""
        return self.table.duration[list(self.kinds)]

    @property
    def can_run_ahead(self) -> bool:
        """True if an R takes time, so that it may pay off to run it well before its backward."""
        late = has_rule(self.table.costs, RECOMPUTES_LATE)
        return bool(self.recompute_time.any()) and not late

    @cached_property
    def arcs(self) -> list[Arc]:
        """Arcs of the data: the needs of each kind in the table, on the stages that have them.

        A backward that gets a gradient needs no arc from its forward, unless its R may begin before
        the gradient arrives. The first arc of a chain is the last to be fulfilled, but for that.
        """
        last = self.stages - 1
        lags = {-1: self.forward_link, 0: np.zeros(self.stages), 1: self.backward_lag}
        found = []
        for row, kind in enumerate(self.kinds):
            for need in KINDS[kind].needs:
                makers = [self.kinds.index(maker) for maker in need.kinds if maker in self.kinds]
                if need.of is not Of.STAGE or need.slice or not makers:
                    continue
                for stage in range(self.stages):
                    other = stage + need.stage
                    gradient = row == 1 and not (need.stage or stage == last)
                    if 0 <= other <= last and (not gradient or self.recomputed[stage]):
                        lag = float(lags[need.stage][stage])
                        found.append(Arc((row, stage), (makers[0], other), lag))
        return found

    @cached_property
    def carried(self) -> list[Arc]:
        """Arcs of what stages carry, where these can be what an action waits for last.

        A result that is carried also goes from stage to stage, and most arrive later on that way:
        such a carry delays nothing but other transfers, in modes in which these wait for each
        other. The lags hold in every mode.
        """
        kinds = [kind for kind in GRADIENT_KINDS if self.backward == "free" or kind in self.kinds]
        least = np.array([self.pass_times[0], self.table.duration[kinds].min(axis=0)])
        found = []
        for source, target in self.carries:
            ways = (
                (0, source, target, self.forward_link[source + 1 : target + 1]),
                (1, target, source, self.backward_link[source:target]),
            )
            for row, here, there, links in ways:
                time = self.table.carried(here, there)
                way = least[row, source + 1 : target].sum() + links.sum()
                if time > way * (1 + TOLERANCE):
                    lag = time - (float(self.recompute_time[there]) if row else 0.0)
                    found.append(Arc((row, there), (row, here), lag))
        return found

    @cached_property
    def taken(self) -> NDArray[np.float64]:
        """Memory an action takes at its start, shape ``(kinds, stages)``."""
        stored, more = self.footprint
        return np.array([stored, more, np.zeros_like(more)][: len(self.kinds)])

    @property
    def taken_by_recompute(self) -> NDArray[np.float64]:
        """Memory of a backward that its R has brought back, shape ``(stages,)``."""
        back = self.table.activation - self.table.checkpoint
        return np.where(self.recomputed, back, 0.0)

    @cached_property
    def freed(self) -> NDArray[np.float64]:
        """Memory an action frees at its end, shape ``(kinds, stages)``."""
        activation = self.table.activation + 2 * self.table.kv
        kept = self.table.kept
        backward = [activation] if self.fused else [activation - kept, kept]
        return np.array([np.zeros_like(activation), *backward])

    @cached_property
    def work(self) -> NDArray[np.float64]:
        """Time every rank computes for one microbatch, shape ``(ranks,)``."""
        return self.per_rank(self.times.sum(axis=0))

    @cached_property
    def microbatch_memory(self) -> NDArray[np.float64]:
        """Memory one microbatch takes on all stages of every rank, recomputed or not."""
        return self.per_rank(self.taken.sum(axis=0))

    @cached_property
    def microbatch_stored(self) -> NDArray[np.float64]:
        """Memory the forwards of one microbatch leave on all stages of every rank."""
        return self.per_rank(self.taken[0])

    @property
    def limits_with_slack(self) -> NDArray[np.float64]:
        """Memory limits with the slack that sums of fractions need."""
        return np.asarray(self.limits * (1 + TOLERANCE) + TOLERANCE * self.microbatch_memory.max())

    def actions(self, programs: Sequence[Program]) -> NDArray[np.int64]:
        """Return the number s of packed actions, rank after rank."""
        packed = np.concatenate(programs)
        kinds, stages = kinds_of(packed), stages_of(packed)
        lane = np.zeros(len(Kind), dtype=np.int64)
        lane[list(self.kinds)] = np.arange(len(self.kinds))
        again = len(self.kinds) * self.stages + np.cumsum(self.recomputed) - 1
        row = np.where(kinds == RECOMPUTE_KIND, again[stages], lane[kinds] * self.stages + stages)
        return row * self.microbatches + microbatches_of(packed)

    def programs(self, order: NDArray[np.int64]) -> list[Program]:
        """Return packed actions of every rank from their numbers, rank after rank."""
        row, microbatch = np.divmod(order, self.microbatches)
        codes = np.repeat(np.array(self.kinds, dtype=np.int64), self.stages)
        again = np.flatnonzero(self.recomputed)
        kind = np.append(codes, np.full(len(again), int(RECOMPUTE_KIND)))[row]
        stage = np.append(np.tile(np.arange(self.stages), len(self.kinds)), again)[row]
        packed = microbatch << MICROBATCH_SHIFT | stage << STAGE_SHIFT | kind
        held = np.bincount(self.homes[stage], minlength=self.ranks)
        return np.split(packed, np.cumsum(held)[:-1])

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Number of the first action of every rank, and of all; shape ``(ranks + 1,)``."""
        held = np.bincount(self.homes, minlength=self.ranks)
        return np.concatenate([[0], np.cumsum(held * len(self.kinds) * self.microbatches)])

    def shortened(self, microbatches: int) -> Problem:
        """Return the same problem with another number of microbatches."""
        return replace(self, microbatches=microbatches)

    def schedule(self, programs: Sequence[Program], name: str = "optimized") -> Schedule:
        """Return programs as a schedule; those without R get one right before each backward.

        Otherwise the order has all of them.
        """
        alone = without_recomputes(programs)
        order = Schedule.from_programs(
            name, self.placement, self.microbatches, alone, carries=self.carries
        )
        plain = add_recompute(order, np.flatnonzero(self.recomputed).tolist())
        if sum(map(len, alone)) == sum(map(len, programs)):
            return plain
        found = plain.with_programs(
            list(programs), options={**plain.options, "recompute_at": "bubbles"}
        )
        return plain if np.array_equal(found.actions, plain.actions) else found

    def starts(self, timeline: Timeline) -> NDArray[np.float64]:
        """Return starts of a simulated order, each R delayed as far as its successors allow."""
        packed = timeline.schedule.actions
        ahead = np.zeros((len(Kind), self.stages))
        ahead[list(GRADIENT_KINDS)] = self.recompute_time
        start = timeline.start - ahead[kinds_of(packed), stages_of(packed)]
        return np.asarray(start[~among(kinds_of(packed), RECOMPUTE_KINDS)])

    def timeline(self, schedule: Schedule) -> Timeline:
        """Simulate a schedule; the error does not explain why one cannot run."""
        shared = self.table.costs.host_link_shared_by
        return timeline_of(compile_graph(schedule, self.mode, shared, explain=False), self.table)

    def makespan(self, schedule: Schedule) -> float:
        """Return the simulated makespan; infinite where a schedule cannot run or does not fit.

        With blocking transfers an order that runs otherwise can be a deadlock.
        """
        try:
            if has(schedule, COPY_KINDS):
                timeline = self.timeline(schedule)
                return timeline.makespan if self._holds(timeline) else float("inf")
            return self.timeline(schedule).makespan if self.fits(schedule) else float("inf")
        except DebubbleError:
            return float("inf")

    def fits(self, schedule: Schedule) -> bool:
        """Return whether a schedule stays within the memory of every rank.

        If activations leave their ranks, the times of copies decide.
        """
        if has(schedule, COPY_KINDS):
            return self._holds(self.timeline(schedule))
        return bool(np.all(measure_memory(schedule, self.table).peak <= self.limits_with_slack))

    def _holds(self, timeline: Timeline) -> bool:
        """Return whether the memory of every rank is enough in a simulation."""
        return bool(np.all(timeline.peak_activation <= self.limits_with_slack))


def without_recomputes(programs: Sequence[Program]) -> list[Program]:
    """Return an order without its R, so that each goes right before its backward again."""
    return [program[~among(kinds_of(program), RECOMPUTE_KINDS)] for program in programs]


def without_recompute_time(problem: Problem) -> Problem:
    """Return the problem in which R takes no time, but its memory."""
    duration = problem.table.duration.copy()
    duration[list(RECOMPUTE_KINDS)] = 0.0
    return replace(problem, table=replace(problem.table, duration=duration))
