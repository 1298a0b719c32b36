"""Cases: a candidate with all that its times and bytes follow from."""

from __future__ import annotations

from dataclasses import dataclass, field

from debubble.core.placement import Placement
from debubble.core.runtimes import RECOMPUTED_WHOLE, RUNTIMES
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.cost.published_efficiencies import (
    Factors,
    StepRange,
    generation,
    match_of,
    range_of,
    shape_of,
)
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.gpus import Gpu
from debubble.planner.hardware.links import Dimension, RankGroup, group_of
from debubble.planner.model.transformer import Model
from debubble.planner.plannable import placement_of


@dataclass(frozen=True)
class Case:
    """A candidate with its model, GPUs, training, and the efficiencies of kernels."""

    model: Model
    cluster: Cluster
    training: Training
    candidate: Candidate
    factors: Factors = field(default_factory=Factors)

    @property
    def degrees(self) -> Degrees:
        """The candidate's degrees."""
        return self.candidate.degrees

    @property
    def gpu(self) -> Gpu:
        """The kind of GPU."""
        return self.cluster.gpu

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on one rank of its tensor-parallel group."""
        size = self.training.sequence * self.candidate.microbatch_size
        return -(-size // self.degrees.cp)

    @property
    def placement(self) -> Placement:
        """Ranks of the stages of the candidate's schedule."""
        return placement_of(self.candidate.schedule, self.degrees.pp, self.degrees.chunks)

    @property
    def whole_backwards(self) -> bool:
        """True if I does the whole backward of every stage, where recompute is part of it."""
        rules = RUNTIMES[self.training.runtime.engine].rules
        return RECOMPUTED_WHOLE in rules and self.candidate.recompute != "none"

    @property
    def engine(self) -> str:
        """Runtime by whose rules passes run; any where I does all of every stage's backward."""
        return "any" if self.whole_backwards else self.training.runtime.engine

    @property
    def scatters(self) -> bool:
        """True if the replicas scatter gradients after the backward of every microbatch.

        PyTorch's pipelines add them up first where weights stay gathered.
        """
        return self.candidate.zero >= (3 if self.training.runtime.fsdp else 2)

    @property
    def hides_tensors(self) -> bool:
        """True if tensor-parallel communication runs in pieces during the products next to it.

        Only gathers and scatters of parts of the sequence do.
        """
        training = self.training
        asked = training.overlap_tp and training.sequence_parallel and self.degrees.tp > 1
        return asked and training.runtime.hides_tensors

    def group(self, dimension: Dimension) -> RankGroup:
        """Return the ranks that communicate along one dimension."""
        return group_of(self.cluster, self.degrees, dimension)

    def efficiency(self, *, experts: bool) -> float:
        """Return the share of kernels' modeled speed; `experts` for layers that have some."""
        return self.factors.efficiency(self.gpu, self.degrees.tp, self.training, experts=experts)

    @property
    def step_range(self) -> StepRange:
        """Ratios to the step time between which 9 of 10 such steps are."""
        chip = generation(self.gpu.name)
        return range_of(self.training.runtime.name, chip, match_of(self), shape_of(self))
