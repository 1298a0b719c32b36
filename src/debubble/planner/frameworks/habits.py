"""Habits of the software that runs a plan: tensors in memory, and differences of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, eq=False)
class Habits:
    """The tensors that one runtime keeps in memory, and for how long.

    Compared by identity: results are looked up by it for every plan.
    """

    name: str
    """Key of the runtime in the tables of kernel efficiencies."""
    title: str
    """Name for display."""
    engine: str = "any"
    """Its name in :data:`debubble.core.runtimes.RUNTIMES`, whose rules change the actions."""
    fsdp: bool = False
    """True if weights, gradients and optimizer states are in fp32, split over replicas all or none
    (PyTorch's FSDP2). Weights of a pipeline then stay gathered during the step."""
    vocabulary_multiple: int = 1
    """Embedding and head are padded to a multiple of this times the tensor-parallel degree."""
    bucket: float = 0.0
    """Numbers in each of the two buckets (gradients, weights) through which replicas exchange what
    they split, apart from a whole fp32 copy of bf16 gradients; 0 without buckets."""
    receive_buffers: bool = False
    """True if there is a buffer for the input and for the gradient of every microbatch and stage
    during the whole step; otherwise from arrival until use."""
    sent_until: Literal["step", "next", "made"] = "next"
    """End of a sent tensor's life: the end of the step, of the rank's next action, or of the action
    that made it."""
    keeps_outputs: bool = False
    """True if a stage's output stays until its backward."""
    narrow_inputs: bool = False
    """True if the inputs of products in 8 or 4 bits are stored so, and not cast once more. Their
    weights then are, too, next to those in 16 bits: what is cast serves all microbatches."""
    gathered_inputs: bool = False
    """True if a tensor-parallel rank stores the inputs of linear layers as gathered, not its
    part."""
    portable_attention: bool = False
    """True if attention is FlashAttention-2's kernel, not cuDNN's."""
    launch: float = 0.0
    """Seconds that the host takes to start a kernel; 0 where it stays ahead of the GPU."""
    collective: tuple[float, float] = (0.0, 0.0)
    """Seconds of a tensor-parallel collective beyond those of its bytes, within a node and over
    nodes: the GPU waits for it before it goes on."""
    collective_launch: float = 0.0
    """Seconds that the host takes to start a tensor-parallel collective, for every node that it
    spans; see `launch`."""
    piped_layers: tuple[float, ...] = ()
    """Least seconds of a layer's forward and backward in a pipeline, by the logarithm to base 2 of
    the tensor-parallel degree: collectives wait for hosts that wait for their neighbors' messages.
    The last counts for larger degrees."""
    loss_bytes: tuple[float, float] = (20.0, 10.0)
    """Bytes moved per logit by the loss in fp32: cast, maximum, exponent, sum; and its gradient.
    Partly fused; a loss of single operations moves 38 and 18."""
    adds_gradients: bool = False
    """True if a kernel of its own adds each microbatch's gradients to those in fp32."""
    hides_tensors: bool = True
    """True if tensor-parallel communication runs in pieces during products where that is asked
    for."""
    hides_replicas: bool = True
    """True if ZeRO's replicas exchange gradients and weights during other work where that is asked
    for."""
    end_network: float = 0.22
    """Share of a network card's rate that a step's last collectives reach when nothing hides them:
    the all-reduce of 3.8 GB of fp16 gradients over 8 replicas adds 1.32 s on A100 with 25 GB/s each
    (arXiv 2205.05198, section 6.3: 530B, one replica and eight), with the wait for the last
    rank."""
    balances_head: bool = False
    """True if layers are spread over stages by FLOPs, those of the head included."""
    attention_share: float = 1.0
    """Share of an attention kernel's rate that its own kernel reaches."""
    sends_copies: bool = False
    """True if a token goes to every one of its experts by itself (all-to-all); else once to each
    rank and node that has some of them (DeepEP, HybridEP)."""
    expert_launch: float = 0.0
    """Seconds that the host takes to start a layer with experts forward and backward; 0 where it
    stays ahead of the GPU."""
    selective: tuple[str, ...] = ()
    """Modules that ``"selective"`` recompute computes again; empty for those that Megatron-Core
    recommends for the model."""
    whole_logits: bool = False
    """True if every tensor-parallel rank gathers the logits of the whole vocabulary for the
    loss."""
    logit_bytes: float = 12.0
    """Bytes per logit while the head runs, unless one kernel computes the loss: in bf16, in fp32,
    and gradients on the way back."""
    plain_gates: bool = False
    """True if gated parts run their activation function and the product one by one, so that both
    results are stored."""
    attention_copies: float = 0.0
    """Copies of attention's width that stay with queries, keys, values and the output."""
    reduces_whole: bool = False
    """True if replicas sum whole gradients also where each needs a part."""
    gradient_bytes: int | None = None
    """Bytes per parameter of the gradient buffer, where the training decides nothing."""
    memory_error: float = 0.12
    """Share by which real peaks exceed the predicted one, at the 90th percentile of measured ones:
    33 of BigScience's with DeepSpeed, and 12 of torchtitan's, which leave the context out, give the
    default."""
