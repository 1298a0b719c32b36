"""Refusals of jobs that our engine does not run in Megatron's loop, with reasons and ways out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from debubble.core.actions import SHARDING_KINDS, among, kinds_of, microbatches_of, stages_of
from debubble.core.errors import ParameterError
from debubble.core.kind_relations import RECOMPUTE_KINDS
from debubble.core.kinds import OFFLOAD_KINDS, Kind
from debubble.core.schedule import Schedule


class Refused(NamedTuple):
    """One thing that is not run."""

    applies: Callable[[Any, Schedule], bool]
    """Function of a model's configuration and the schedule."""
    what: str
    reason: str
    instead: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}; {self.instead}"


OFF = "none"
"""Value of an option that is off, of those that are words."""


def _set(*names: str) -> Callable[[Any, Schedule], bool]:
    """Return if one of some options of the configuration is on."""

    def applies(config: Any, _: Schedule) -> bool:
        values = [getattr(config, name, None) for name in names]
        return any(value is not None and value is not False and value != OFF for value in values)

    return applies


def _has(kinds: tuple[Kind, ...]) -> Callable[[Any, Schedule], bool]:
    """Return if a schedule has actions of some kinds."""
    return lambda _, schedule: bool(among(kinds_of(schedule.actions), kinds).any())


OWN_ORDER = "computes in a sequence of its own"

REFUSED = (
    Refused(
        _set("overlap_moe_expert_parallel_comm"), "overlap_moe_expert_parallel_comm",
        f"combined 1F1B {OWN_ORDER}",
        "set it to False; schedules such as 'dualpipe-v' overlap a forward and a backward",
    ),
    Refused(
        _set("hybrid_context_parallel", "dynamic_context_parallel"), "hybrid_context_parallel",
        f"its sub-samples {OWN_ORDER}", "use context_parallel_size alone",
    ),
    Refused(
        _set("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl"), "CUDA graphs",
        "they are captured for the sequence of Megatron's schedule",
        "set cuda_graph_impl='none'",
    ),
    Refused(
        _set("num_microbatches_with_partial_activation_checkpoints"),
        "num_microbatches_with_partial_activation_checkpoints",
        "it counts the microbatches in flight of Megatron's schedule",
        "use recompute_granularity, or a schedule that holds fewer activations",
    ),
    Refused(
        _set("fine_grained_activation_offloading"), "fine_grained_activation_offloading",
        "it brings tensors back in the sequence of Megatron's schedule",
        "use recompute_granularity, or a schedule that holds fewer activations",
    ),
    Refused(
        _set("moe_paged_stash"), "moe_paged_stash",
        "it records the sequence of Megatron's schedule", "set it to False",
    ),
    Refused(
        _set("overlap_dispatch_backward_with_experts_wgrad"),
        "overlap_dispatch_backward_with_experts_wgrad",
        "it calls the backward_dw() that W of the schedule would", "set it to False",
    ),
    Refused(
        lambda _, schedule: schedule.placement.copies > 1, "several copies of the model",
        "Megatron makes one chunk for each stage", "use a V, such as 'dualpipe-v'",
    ),
    Refused(
        lambda _, schedule: schedule.slices > 1, "slices of a microbatch",
        "Megatron's attention keeps no keys of earlier slices",
        "use context parallelism, or a schedule without slices",
    ),
    Refused(
        lambda _, schedule: max(schedule.versions) > 1 or schedule.newest_weights,
        "several versions of the weights", "Megatron keeps one", "use a synchronous schedule",
    ),
    Refused(
        lambda _, schedule: schedule.vocabulary > 0, "a sharded output layer",
        "Megatron's is on the last stage", "use a schedule without it",
    ),
    Refused(
        lambda _, schedule: bool(schedule.carries), "carries to stages that are no neighbors",
        "Megatron's chunks hand on one tensor", "hand it through the stages in between",
    ),
    Refused(
        _has(RECOMPUTE_KINDS), "recomputes as actions",
        "a forward takes its batch from an iterator once",
        "use recompute_granularity, which computes within backwards",
    ),
    Refused(
        _has(OFFLOAD_KINDS), "offloads as actions", "they are not tested on Megatron's layers",
        "use a schedule that holds fewer activations",
    ),
    Refused(
        _has(SHARDING_KINDS), "collectives as actions",
        "Megatron's data parallelism has its own", "use the schedule without them",
    ),
)  # fmt: skip
"""A row for everything that is refused, whatever the model."""


def refuse(config: Any, schedule: Schedule, *, delays: bool = False) -> None:
    """Refuse a schedule that is not covered; layers may leave weight gradients to W (`delays`)."""
    lines = [str(row) for row in REFUSED if row.applies(config, schedule)]
    if delays:
        lines += _weight_order(schedule)
    if lines:
        raise ParameterError(
            f"'{schedule.name}' does not run in Megatron's loop:\n" + "\n".join(lines)
        )


def _weight_order(schedule: Schedule) -> Iterator[str]:
    """Yield where W does not follow I: the layers keep what W needs in a queue."""
    for rank in range(schedule.ranks):
        program = schedule.program(rank)
        kinds, stages, units = kinds_of(program), stages_of(program), microbatches_of(program)
        for stage in schedule.placement.stages_on(rank):
            order = [units[(kinds == kind) & (stages == stage)] for kind in (Kind.I, Kind.W)]
            if not np.array_equal(*order):
                yield (
                    f"W of stage {stage} in another sequence than I: layers with "
                    "delay_wgrad_compute keep what W needs in a queue; use split='fuse', or a "
                    "schedule in which W follows I, such as 'zb-h1'"
                )
                return
