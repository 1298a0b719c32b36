"""Habits of the software that runs a plan: what it keeps in memory, and how its kernels differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, eq=False)
class Habits:
    """What one software keeps in memory, and for how long.

    Two are equal if their names are, so that one is cheap to look results up by.

    Parameters
    ----------
    name
        By which efficiencies of kernels are looked up.
    title
        For people.
    engine
        Its name in :data:`debubble.core.runtimes.RUNTIMES`, whose rules change what actions do.
    fsdp
        Whether weights, gradients and optimizer states are in fp32, split over replicas all or
        none (PyTorch's FSDP2). Weights of a pipeline then stay gathered during the step.
    vocabulary_multiple
        Embedding and head are padded to a multiple of this times the tensor-parallel degree.
    bucket
        Numbers in each of the two buckets (gradients, weights) through which replicas exchange what
        they split, apart from a whole fp32 copy of bf16 gradients; 0 without buckets.
    receive_buffers
        Whether there is a buffer for the input and for the gradient of every microbatch and stage
        during the whole step; otherwise from arrival until use.
    sent_until
        How long a sent tensor stays: to the end of the ``"step"``, of the rank's ``"next"`` action,
        or of the action that ``"made"`` it.
    keeps_outputs
        Whether a stage's output stays until its backward.
    narrow_inputs
        Whether the inputs of products in 8 or 4 bits are stored so, and not cast once more.
    gathered_inputs
        Whether a tensor-parallel rank stores the inputs of linear layers as gathered, not its part.
    portable_attention
        Whether attention is FlashAttention-2's kernel, not cuDNN's.
    selective
        Modules that ``"selective"`` recompute computes again; empty for those that Megatron-Core
        recommends for the model.
    """

    name: str
    title: str
    engine: str = "any"
    fsdp: bool = False
    vocabulary_multiple: int = 1
    bucket: float = 0.0
    receive_buffers: bool = False
    sent_until: Literal["step", "next", "made"] = "next"
    keeps_outputs: bool = False
    narrow_inputs: bool = False
    gathered_inputs: bool = False
    portable_attention: bool = False
    selective: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Habits) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)
