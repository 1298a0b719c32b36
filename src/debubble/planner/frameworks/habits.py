"""Habits of the software that runs a plan: tensors in memory, and differences of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, eq=False)
class Habits:
    """The tensors that one runtime keeps in memory, and for how long.

    Compared by identity: results are looked up by it for every plan.

    Parameters
    ----------
    name
        Key of the runtime in the tables of kernel efficiencies.
    title
        Name for display.
    engine
        Its name in :data:`debubble.core.runtimes.RUNTIMES`, whose rules change the actions.
    fsdp
        True if weights, gradients and optimizer states are in fp32, split over replicas all or
        none (PyTorch's FSDP2). Weights of a pipeline then stay gathered during the step.
    vocabulary_multiple
        Embedding and head are padded to a multiple of this times the tensor-parallel degree.
    bucket
        Numbers in each of the two buckets (gradients, weights) through which replicas exchange what
        they split, apart from a whole fp32 copy of bf16 gradients; 0 without buckets.
    receive_buffers
        True if there is a buffer for the input and for the gradient of every microbatch and stage
        during the whole step; otherwise from arrival until use.
    sent_until
        End of a sent tensor's life: the end of the ``"step"``, of the rank's ``"next"`` action,
        or of the action that ``"made"`` it.
    keeps_outputs
        True if a stage's output stays until its backward.
    narrow_inputs
        True if the inputs of products in 8 or 4 bits are stored so, and not cast once more.
    gathered_inputs
        True if a tensor-parallel rank stores the inputs of linear layers as gathered, not its part.
    portable_attention
        True if attention is FlashAttention-2's kernel, not cuDNN's.
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
