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
    found: dict[str, None] = dict.fromkeys(model.assumed)
    for attention in model.attentions:
        if attention.head_dim % VECTOR and not isinstance(attention, Recurrence):
            found[
                f"heads have {attention.head_dim} channels, no multiple of {VECTOR}: attention and"
                f" its projections run well below their speed; {_near(attention.head_dim, VECTOR)}"
            ] = None
    for layer in dict.fromkeys(model.layers):
        mlp = layer.mlp
        if isinstance(mlp, Experts):
            widths = [("experts", mlp.width, 1), ("shared experts", mlp.shared_width, tp)]
        else:
            widths = [("the MLP", mlp.width, tp)]
        for name, width, parts in widths:
            if width % (TILE * parts):
                per = f" over tp {parts}" if parts > 1 else ""
                found[
                    f"the width {width} of {name}{per} is no multiple of {TILE * parts}: its"
                    f" matrices leave tiles in part empty; {_near(width, TILE * parts)}"
                ] = None
    if model.hidden % TILE:
        found[
            f"the hidden size {model.hidden} is no multiple of {TILE}: all matrices leave tiles in"
            f" part empty; {_near(model.hidden, TILE)}"
        ] = None
    if model.vocabulary % TILE:
        found[
            f"the vocabulary of {model.vocabulary} is no multiple of {TILE}: pad the head, as"
            f" Megatron-LM does; {-(-model.vocabulary // TILE) * TILE} would do"
        ] = None
    return tuple(found)


def _near(size: int, multiple: int) -> str:
    below = size // multiple * multiple
    above = below + multiple
    return f"{below} or {above} would do" if below else f"{above} would do"
