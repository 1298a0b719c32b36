"""Ways to split the backward of a model chunk into I and W."""

from __future__ import annotations

from typing import Any, NamedTuple

from debubble.core.errors import ParameterError
from debubble.megatron.internals import delayed_layers

SPLITS = ("auto", "autograd", "te", "fuse")
"""Ways to split: the best that the chunk has, autograd's graph, TransformerEngine, or none."""

SET_DELAY = (
    "set config.delay_wgrad_compute = True on the TransformerConfig after it is made, and before "
    "the model is: as an argument, Megatron asks for combined 1F1B with it"
)


class Split(NamedTuple):
    """Way to split the backward of one chunk."""

    fuses: bool | None
    """If I does all and W nothing; None where the first forward shows it."""
    delays: bool
    """If its layers leave weight gradients to ``backward_dw()``."""
    why: str = ""
    """Reason why it is not split although the schedule does."""


def choose_split(chunk: Any, config: Any, split: str) -> Split:
    """Return how the backward of a chunk is split.

    Raises ParameterError when it cannot be split in the way that was asked for.
    """
    delays = bool(delayed_layers(chunk))
    if split == "te" and not delays:
        raise ParameterError(
            "split is 'te', and no layer of the model delays its weight gradients; with "
            f"TransformerEngine's layers {SET_DELAY}; or use split='auto'"
        )
    if split == "fuse":
        return Split(True, delays)
    if delays and split != "autograd":
        return Split(False, delays)
    why = reason_not_by_graph(chunk, config, delays)
    if split == "autograd":
        if why:
            raise ParameterError(f"split is 'autograd', and {why}; use split='fuse' or 'auto'")
        return Split(False, delays)
    return Split(True if why else None, delays, why)


def reason_not_by_graph(chunk: Any, config: Any, delays: bool) -> str:
    """Return why autograd's graph of a chunk is not run in two parts; empty if it can be."""
    if delays:
        return "its layers delay their weight gradients themselves"
    if config.recompute_granularity is not None:
        return (
            f"recompute_granularity is '{config.recompute_granularity}', and I and W would each "
            "compute the forward again"
        )
    if config.gradient_accumulation_fusion:
        return "gradient_accumulation_fusion adds the gradients of weights whenever a layer runs"
    if getattr(config, "defer_embedding_wgrad_compute", False):
        return "defer_embedding_wgrad_compute keeps what the output layer needs whenever it runs"
    if getattr(config, "mtp_num_layers", None):
        return (
            "multi-token prediction uses the output layer twice, and W between both would run a "
            "loss again that computes in place"
        )
    reduces = config.no_sync_func is not None and config.grad_sync_func is None
    if reduces and not hasattr(chunk, "ddp_config"):
        return f"{type(chunk).__name__} reduces gradients after whole backwards"
    return ""
