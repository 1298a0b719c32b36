"""Sizes of a model that matrix units handle badly, and the nearest that they handle well.

Measured: a SwiGLU part of width 10,922 reaches 273 TFLOP/s on an H100 where 10,944 reaches 398
(ml-engineering, "transformer dimensions"); a model of 182 billion parameters takes 162.7 s per step
with 128 heads of 108 channels where 64 heads of 216 take 121.3 s (bigscience, the trials before
BLOOM).
"""

from __future__ import annotations

from debubble.planner.model.mixers import Recurrence
from debubble.planner.model.transformer import Experts, Model

TILE = 64
"""Widths that are multiples of this fill the tiles that kernels for 16-bit numbers work on."""

VECTOR = 8
"""16-bit numbers that are loaded at once; other multiples are read one by one, or padded."""


def shape_traps(model: Model, tp: int = 1) -> tuple[str, ...]:
    """Return warnings on a model, one sentence each: what was assumed, and sizes that run badly.

    The tensor-parallel degree divides the widths of dense parts.
    """
    sizes = [
        (attention.head_dim, VECTOR, f"heads have {attention.head_dim} channels,",
         "attention and its projections run well below their speed")
        for attention in model.attentions if not isinstance(attention, Recurrence)
    ]  # fmt: skip
    for mlp in (layer.mlp for layer in dict.fromkeys(model.layers)):
        widths = [("the MLP", mlp.width, tp)]
        if isinstance(mlp, Experts):
            widths = [("experts", mlp.width, 1), ("shared experts", mlp.shared_width, tp)]
        for name, width, parts in widths:
            per = f" over tp {parts}" if parts > 1 else ""
            text = f"the width {width} of {name}{per} is"
            sizes.append((width, TILE * parts, text, "its matrices leave tiles in part empty"))
    text = f"the hidden size {model.hidden} is"
    sizes.append((model.hidden, TILE, text, "all matrices leave tiles in part empty"))
    found = [
        f"{text} no multiple of {multiple}: {effect}; {_near(size, multiple)}"
        for size, multiple, text, effect in sizes if size % multiple
    ]  # fmt: skip
    if model.vocabulary % TILE:
        found.append(
            f"the vocabulary of {model.vocabulary} is no multiple of {TILE}: pad the head, as"
            f" Megatron-LM does; {-(-model.vocabulary // TILE) * TILE} would do"
        )
    return tuple(dict.fromkeys((*model.assumed, *found)))


def _near(size: int, multiple: int) -> str:
    below = size // multiple * multiple
    above = below + multiple
    return f"{below} or {above} would do" if below else f"{above} would do"
