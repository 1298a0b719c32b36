"""Trainings, and candidates: one way each to run a training on a number of GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import accumulate

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.hashed_once import hashed_once
from debubble.planner.frameworks.habits import Habits
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.schedules import registry

RECOMPUTES = ("none", "selective", "full")
"""Ways to recompute every layer; ``"full:N"`` recomputes the first N layers of every stage."""
PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
"""Precisions of training."""
NARROW = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Precisions with products in 8 or 4 bits, each with the kind of its narrow weights."""


@cache
def recomputed_layers(recompute: str) -> int | None:
    """Return the N of ``"full:N"``, None for other ways to recompute; all else is refused.

    Examples
    --------
    >>> recomputed_layers("full:3"), recomputed_layers("full")
    (3, None)
    """
    if recompute in RECOMPUTES:
        return None
    if not recompute.startswith("full:"):
        raise ParameterError(
            f"recompute is '{recompute}'; {did_you_mean(recompute, RECOMPUTES)}; full:3 is that of "
            "the first 3 layers of every stage"
        )
    found = re.fullmatch(r"full:([1-9][0-9]{0,5})", recompute)
    if found is None:
        raise ParameterError(f"recompute is '{recompute}'; give a number of layers, such as full:1")
    return int(found[1])


@hashed_once
@dataclass(frozen=True)
class Training:
    """The work of a step and its precision; the same for every candidate."""

    batch: int
    """Sequences per optimizer step, over all replicas."""
    sequence: int
    """Tokens per sequence."""
    precision: str = "bf16"
    """``"bf16"`` or ``"fp16"``; or the precision of the inputs of layers' products: ``"fp8"``,
    ``"mxfp8"``, ``"nvfp4"``."""
    gradient_bytes: int = 4
    """Bytes per parameter of the gradient buffer: 4, or 2."""
    moment_bytes: int = 4
    """Bytes of each of Adam's two moments: 4, 2 or 1."""
    weights: str | None = None
    """Kind in which layers' weights are stored and gathered: ``"bf16"``; or ``"fp8"`` or ``"fp4"``,
    as products multiply them, without those in 16 bits. None is fp8 where the runtime keeps inputs
    of products so, and multiplies in 8 bits, else bf16."""
    offload_optimizer: bool = False
    """True if the optimizer's states are in the host's memory, where it runs."""
    graph_pools: float = 0.0
    """Bytes of a GPU in the pools of CUDA graphs."""
    flash: bool = True
    """True if attention stores no scores (flash attention)."""
    sequence_parallel: bool = True
    """True if tensor-parallel groups also split norms and residual stream over the sequence."""
    runtime: Habits = MEGATRON
    """Runtime of the training, which decides what stays in memory."""
    master_bytes: int = 4
    """Bytes of the optimizer's own copy of a weight: 4, or 0 where it updates the weights at
    once."""
    fused: bool = True
    """True if elementwise operations are fused into their neighbors. If they run one by one,
    gated parts store their activation function's output next to the product, and experts' outputs
    are stored before they are weighed."""
    fused_norms: bool = True
    """True if a kernel computes a norm. Operations one by one store its input in fp32, and its
    result before it is multiplied with the weight."""
    fused_loss: bool = False
    """True if one kernel computes the loss, from logits in 16 bits, as FlashAttention's does."""
    imbalance: float = 1.0
    """Tokens of the busiest expert group over their mean, 1 for balanced experts."""
    overlap_tp: bool = True
    """True if tensor-parallel communication runs in pieces during the products next to it."""
    overlap_dp: bool = True
    """True if gradients are reduced and weights gathered during other work."""
    overlap_p2p: bool = True
    """True if activations are sent to the next stage during other work."""

    @property
    def narrow_weights(self) -> bool:
        """True if weights are as narrow as products, where replicas split optimizer states."""
        if self.weights is not None:
            return self.weights != "bf16"
        kind = NARROW.get(self.precision) if self.runtime.narrow_inputs else None
        return kind == "fp8" and not self.offload_optimizer

    @property
    def tokens(self) -> int:
        """Tokens per optimizer step."""
        return self.batch * self.sequence


@dataclass(frozen=True)
class Degrees:
    """Sizes of the groups that ranks are split into; their product without `ep` is the GPUs.

    `tp` tensor, `cp` context, `ep` expert, `dp` data, `pp` pipeline parallelism; `chunks` stages
    per pipeline rank. Experts are spread over ranks that attention uses for `tp`, `cp` and `dp`.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    chunks: int = 1

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_dp(self) -> int:
        """Copies of each expert, over which its gradients are summed."""
        return max(self.tp * self.cp * self.dp // self.ep, 1)

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return self.pp * self.chunks


@hashed_once
@dataclass(frozen=True)
class Candidate:
    """One way to run a training on a number of GPUs."""

    degrees: Degrees
    """Sizes of the groups."""
    microbatch_size: int
    """Sequences per microbatch."""
    microbatches: int
    """Microbatches per replica and optimizer step."""
    schedule: str
    """A registered schedule's name; ``"1f1b"`` with one rank is plain gradient accumulation."""
    layers: tuple[int, ...]
    """Decoder layers of every stage, in stage order; 0 is allowed. The embedding is on the first
    stage, the head on the last."""
    recompute: str = "none"
    """``"none"``, ``"selective"`` or ``"full"``, of every layer; or ``"full:N"``, of the first N
    layers of every stage."""
    zero: int = 1
    """0 nothing, 1 optimizer states, 2 gradients, 3 also weights split over replicas."""
    modules: tuple[str, ...] = ()
    """Modules that ``"selective"`` recomputes, by Megatron-LM's names; empty for the usual, see
    :func:`debubble.planner.memory.activations.recompute_modules`."""
    mtp_stage: int | None = None
    """Stage of multi-token prediction, after all layers; None for the last."""

    def __post_init__(self) -> None:
        if len(self.layers) != self.degrees.stages:
            raise ParameterError(
                f"layers names {len(self.layers)} stages; pp {self.degrees.pp} with chunks"
                f" {self.degrees.chunks} has {self.degrees.stages}"
            )

    @property
    def mtp_at(self) -> int:
        """Stage of multi-token prediction, for models that have some."""
        return len(self.layers) - 1 if self.mtp_stage is None else self.mtp_stage

    @property
    def uses_costs(self) -> bool:
        """True if its schedule is made for costs and memory."""
        return registry.find(self.schedule).uses_costs

    def recomputing(self, recompute: str) -> Candidate:
        """Return the candidate with another way to recompute."""
        return replace(self, recompute=recompute)

    @cached_property
    def first_kept(self) -> tuple[int, ...]:
        """Number of the first layer of every stage that ``"full:N"`` does not recompute."""
        most = recomputed_layers(self.recompute) or 0
        starts = zip(self.first_layers, self.layers, strict=False)
        return tuple(start + min(most, count) for start, count in starts)

    def without_order(
        self, recompute: str | None = None, modules: tuple[str, ...] | None = None, *,
        replicas: bool = True, experts: bool = True,
    ) -> Candidate:  # fmt: skip
        """Return the candidate as one layer sees it, recomputed as here or in a given way.

        Without schedule, split and microbatches; and without data-parallel replicas where they
        split neither weights nor gradients, or where they do not matter; nor does it matter over
        how many ranks experts are spread without `experts`.
        """
        degrees, alone = self.degrees, self.zero < 2 or not replicas
        return _one_stage(
            degrees.tp, degrees.cp, degrees.ep if experts else 1,
            1 if alone else degrees.dp, self.microbatch_size,
            recompute or self.recompute, 0 if alone else self.zero,
            self.modules if modules is None else modules,
        )  # fmt: skip

    @cached_property
    def first_layers(self) -> tuple[int, ...]:
        """Number of the first layer of every stage, and last the number of layers."""
        return tuple(accumulate(self.layers, initial=0))


@lru_cache(maxsize=16384)
def _one_stage(
    tp: int, cp: int, ep: int, dp: int, size: int, recompute: str, zero: int,
    modules: tuple[str, ...],
) -> Candidate:  # fmt: skip
    """Return a candidate with one stage and microbatch; the same object for the same numbers."""
    return Candidate(Degrees(tp, cp, ep, dp), size, 1, "", (0,), recompute, zero, modules)
