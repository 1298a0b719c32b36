"""Work of one GPU for one layer and microbatch, by module: products, attention, memory traffic.

Modules are Megatron-LM's names for the parts that can be recomputed: ``core_attn``,
``mla_up_proj``, ``layernorm``, ``mlp``, ``moe``, ``moe_act``, ``shared_experts``. Two more modules
are ``attention`` (other projections and rotations) and ``residual``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from debubble.planner.candidate import Training
from debubble.planner.case import Case
from debubble.planner.hardware.gpus import Gpu
from debubble.planner.hardware.kernel_times import (
    LAUNCH,
    PRECISIONS,
    attention_time,
    memory_time,
    product_time,
)
from debubble.planner.model.mixers import LatentAttention, Mixer, Recurrence
from debubble.planner.model.transformer import Experts, Layer, Mlp

SCORES_FORWARD, SCORES_BACKWARD = 9, 11
"""Bytes moved per stored score: softmax reads and writes 2, dropout the same and a mask of 1; back
the same, and the softmax's result once more. The products' own traffic is theirs."""

LOOSE_NORM = (36, 80)
"""Bytes moved per number of a norm of single operations, forward and backward: casts, square, mean,
two products, in fp32 but for the last (RMSNorm of AA-Scaling and of Llama's first code)."""
LOOSE_NORM_KERNELS = 7
"""Kernels of its forward."""


class Times(NamedTuple):
    """Seconds of forward, backward for the input and backward for the weights.

    A tuple, which is soon made, that adds up and scales as a vector does.
    """

    F: float = 0.0
    I: float = 0.0
    W: float = 0.0

    def __add__(self, other: Times) -> Times:  # type: ignore[override]
        return Times(self.F + other.F, self.I + other.I, self.W + other.W)

    def __mul__(self, factor: float) -> Times:  # type: ignore[override]
        return Times(self.F * factor, self.I * factor, self.W * factor)


@dataclass(frozen=True)
class Product:
    """A weight of `k` inputs and `n` outputs that `m` tokens meet, `count` times."""

    m: int
    n: int
    k: int
    count: int = 1


def module_times(case: Case, layer: Layer) -> dict[str, Times]:
    """Return seconds of every module of a layer; the busiest experts' load decides."""
    alone = case
    if case.degrees.ep > 1:
        alone = replace(case, candidate=case.candidate.without_order(experts=False))
    return _without_feed_forward(alone, layer) | _feed_forward(case, alone, layer.mlp)


@lru_cache(maxsize=16384)
def _without_feed_forward(case: Case, layer: Layer) -> dict[str, Times]:
    """Return the times of all other parts, which do not depend on the spread of experts."""
    model, shard = case.model, case.degrees.tp if case.training.sequence_parallel else 1
    stream, mask = case.tokens * model.hidden / shard, 2 * model.dropout
    found = {"attention": Times(), "core_attn": Times()}
    for part in layer.mixers:
        for name, times in _attention(case, part).items():
            found[name] = found.get(name, Times()) + times
    # Norms read and write 2 bytes per number; two additions read twice and write once.
    norms, fused = layer.norms, case.training.fused_norms
    ahead, back = (4, 6) if fused else LOOSE_NORM
    starts = norms if fused else norms * LOOSE_NORM_KERNELS
    found["layernorm"] = _traffic(
        case.gpu, ahead * norms * stream, back * norms * stream, launches=starts
    )
    moved = (12 + mask) * stream
    found["residual"] = _traffic(case.gpu, moved, moved, launches=2)
    return found


def _traffic(gpu: Gpu, forward: float, backward: float, *, launches: int) -> Times:
    """Return the times of kernels that move so many bytes forward and backward."""
    start = launches * LAUNCH
    return Times(memory_time(gpu, forward) + start, memory_time(gpu, backward) + start)


def _attention(case: Case, part: Mixer) -> dict[str, Times]:
    tp, h, tokens = case.degrees.tp, case.model.hidden, case.tokens
    heads, kv_heads = -(-part.heads // tp), max(part.kv_heads // tp, 1)
    # Rotated queries and keys; or what passes a short convolution.
    rotated: float = 4 * tokens * (heads + kv_heads) * part.head_dim
    if isinstance(part, Recurrence):
        rotated = 4 * tokens * part.inputs / tp
    own = [Product(tokens, n, k) for n, k in part.products(h, tp)]
    up: list[Product] = []
    if isinstance(part, LatentAttention):
        up = [
            Product(tokens, heads * part.head_dim, part.q_rank or h),
            Product(tokens, heads * (part.nope_dim + part.v_dim), part.kv_rank),
        ]
    found = {
        "attention": _products(case, own) + _traffic(case.gpu, rotated, rotated, launches=1),
        "core_attn": core_times(case, part),
    }
    return found | ({"mla_up_proj": _products(case, up)} if up else {})


def _feed_forward(case: Case, alone: Case, part: Mlp | Experts) -> dict[str, Times]:
    """Return the times of the feed-forward part; `alone` is the case without expert parallelism."""
    degrees, h = case.degrees, case.model.hidden
    if isinstance(part, Mlp):
        return {"mlp": _dense(alone, part, part.width)}
    own, local = -(-case.tokens // degrees.tp), max(part.count // degrees.ep, 1)
    each, inner = -(-own * part.top_k // local), part.latent or h
    routed = _products(case, _matrices(each, part.width, inner, part, local))
    # Tokens are put in their experts' order and back: read and written, twice.
    moved = 8 * own * (part.top_k * inner + part.count)
    latent = [Product(own, part.latent, h), Product(own, h, part.latent)] if part.latent else []
    imbalance = case.training.imbalance
    found = {
        "moe": routed * imbalance
        + _products(case, [Product(own, part.count, h), *latent])
        + _traffic(case.gpu, moved, moved, launches=8),
        "moe_act": _activation(case.gpu, own * part.top_k * part.width, part) * imbalance,
    }
    if part.shared_width:
        found["shared_experts"] = _dense(alone, part, part.shared_width)
    return found


@lru_cache(maxsize=16384)
def _dense(case: Case, part: Mlp | Experts, width: int) -> Times:
    tokens, own = case.tokens, -(-width // case.degrees.tp)
    products = _products(case, _matrices(tokens, own, case.model.hidden, part))
    return products + _activation(case.gpu, tokens * own, part)


def _matrices(
    tokens: int, width: int, hidden: int, part: Mlp | Experts, count: int = 1
) -> list[Product]:
    """Return products of a feed-forward part; gate and first matrix are one."""
    first = width * (2 if part.gated else 1)
    return [Product(tokens, first, hidden, count), Product(tokens, hidden, width, count)]


def _activation(gpu: Gpu, numbers: float, part: Mlp | Experts) -> Times:
    """Return the times of the activation function of so many numbers, by bytes moved."""
    forward, backward = (6, 10) if part.gated else (4, 6)
    return _traffic(gpu, forward * numbers, backward * numbers, launches=1)


def _products(case: Case, products: Iterable[Product]) -> Times:
    return sum((product_times(case.gpu, case.training, item) for item in products), Times())


def product_times(gpu: Gpu, training: Training, product: Product, *, wide: bool = False) -> Times:
    """Return the times of the products of one weight, with casts to narrower inputs.

    A fused product adds to the gradient that is there already; else a kernel of its own does. A
    `wide` product keeps inputs of 16 bits in every precision, as the head does.
    """
    m, n, k, count = product.m, product.n, product.k, product.count
    kind = "bf16" if wide else PRECISIONS[training.precision]
    forward = product_time(gpu, kind, m, n, k, count)
    back = product_time(gpu, kind, m, k, n, count)
    summed = 2 * training.gradient_bytes
    if training.fused and not training.runtime.adds_gradients:
        weight = product_time(gpu, kind, n, k, m, count, written=summed)
    else:
        weight = product_time(gpu, kind, n, k, m, count)
        weight += memory_time(gpu, (2 + summed) * n * k * count)
    if kind == "bf16":
        return Times(forward, back, weight)
    # Each input is read once in bf16 and written twice in the narrow type, as it is and transposed;
    # weights again for every microbatch.
    return Times(
        forward + memory_time(gpu, 4 * (m * k + n * k) * count) + LAUNCH,
        back + memory_time(gpu, 4 * m * n * count) + LAUNCH,
        weight,
    )


def core_times(case: Case, part: Mixer) -> Times:
    """Return the times of scores, softmax and their product with the values; or of a state's."""
    gpu, training = case.gpu, case.training
    cp, tp = case.degrees.cp, case.degrees.tp
    s, batch = training.sequence, case.candidate.microbatch_size
    if training.flash or isinstance(part, Recurrence):
        seen = min(2 * part.reach, s) if part.reach else s
        forward = part.score_width * batch * s * min(seen, part.chunk or s) / (cp * tp)
        if part.index_heads or isinstance(part, Recurrence):
            forward += batch * s * part.extra_flops(s) / (cp * tp)
        portable, share = training.runtime.portable_attention, training.runtime.attention_share
        length = min(seen, part.chunk or s)
        back = attention_time(gpu, 2.5 * forward, length, backward=True, portable=portable)
        ahead = attention_time(gpu, forward, length, portable=portable)
        return Times(ahead / share + LAUNCH, back / share + LAUNCH)
    heads, d, rows = -(-batch * part.heads // tp), part.head_dim, s // cp
    product = product_time(gpu, "bf16", rows, s, d, heads)
    product += product_time(gpu, "bf16", rows, d, s, heads)
    scores = heads * rows * s
    return Times(
        product + memory_time(gpu, SCORES_FORWARD * scores) + 3 * LAUNCH,
        2 * product + memory_time(gpu, SCORES_BACKWARD * scores) + 3 * LAUNCH,
    )
