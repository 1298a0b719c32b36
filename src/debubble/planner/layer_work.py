"""What one GPU computes for one layer and one microbatch: products, attention, memory traffic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from debubble.planner.candidate import Candidate, Training
from debubble.planner.efficiency import (
    LAUNCH,
    PRECISIONS,
    attention_time,
    memory_time,
    product_time,
)
from debubble.planner.gpus import Gpu
from debubble.planner.model import Attention, Experts, Layer, Mlp, Model


@dataclass(frozen=True)
class Times:
    """Seconds of forward, backward for the input and backward for the weights."""

    F: float = 0.0
    I: float = 0.0
    W: float = 0.0

    def __add__(self, other: Times) -> Times:
        return Times(self.F + other.F, self.I + other.I, self.W + other.W)

    def __mul__(self, factor: float) -> Times:
        return Times(self.F * factor, self.I * factor, self.W * factor)


@dataclass(frozen=True)
class Product:
    """A weight of `k` inputs and `n` outputs that `m` tokens meet, `count` times."""

    m: int
    n: int
    k: int
    count: int = 1


def tokens_of(training: Training, candidate: Candidate) -> int:
    """Tokens of one microbatch on one rank of its tensor-parallel group."""
    return -(-training.sequence * candidate.microbatch_size // candidate.degrees.cp)


def attention_products(model: Model, layer: Layer, tokens: int, tp: int) -> Iterator[Product]:
    """Products of the attention's projections."""
    part = layer.attention
    if isinstance(part, Attention):
        width = part.head_dim * (part.heads // tp + 2 * max(part.kv_heads // tp, 1))
        yield Product(tokens, width, model.hidden)
        yield Product(tokens, model.hidden, part.head_dim * part.heads // tp)
        return
    heads = part.heads // tp
    yield Product(tokens, part.q_rank + part.kv_rank + part.rope_dim, model.hidden)
    yield Product(tokens, heads * part.head_dim, part.q_rank or model.hidden)
    yield Product(tokens, heads * (part.nope_dim + part.v_dim), part.kv_rank)
    yield Product(tokens, model.hidden, heads * part.v_dim)


def mlp_products(
    model: Model, part: Mlp | Experts, tokens: int, candidate: Candidate
) -> Iterator[Product]:
    """Products of the feed-forward part, one per matrix; experts in balance."""
    tp, ep, h = candidate.degrees.tp, candidate.degrees.ep, model.hidden
    if isinstance(part, Mlp):
        wide = -(-part.width // tp)
        yield Product(tokens, wide * (2 if part.gated else 1), h)
        yield Product(tokens, h, wide)
        return
    own = -(-tokens // tp)
    yield Product(own, part.count, h)
    if part.shared_width:
        wide = -(-part.shared_width // tp)
        yield Product(tokens, wide * (2 if part.gated else 1), h)
        yield Product(tokens, h, wide)
    local = max(part.count // ep, 1)
    each = -(-own * part.top_k // local)
    yield Product(each, part.width * (2 if part.gated else 1), h, local)
    yield Product(each, h, part.width, local)


def product_times(gpu: Gpu, training: Training, product: Product, *, wide: bool = False) -> Times:
    """Forward, and both backward products, of one weight; with casts to narrower inputs.

    Gradients in fp32 are summed by the product itself, those in 16 bits by a kernel of their own.
    A `wide` product keeps inputs of 16 bits in every precision, as the head does.
    """
    m, n, k, count = product.m, product.n, product.k, product.count
    kind = "bf16" if wide else PRECISIONS[training.precision]
    forward = product_time(gpu, kind, m, n, k, count)
    back = product_time(gpu, kind, m, k, n, count)
    if training.gradient_bytes == 4:
        weight = product_time(gpu, kind, n, k, m, count, written=8)
    else:
        weight = product_time(gpu, kind, n, k, m, count) + memory_time(gpu, 6 * n * k * count)
    if kind == "bf16":
        return Times(forward, back, weight)
    # Each input is read once in bf16 and written twice in the narrow type, as it is and transposed;
    # weights again for every microbatch.
    return Times(
        forward + memory_time(gpu, 4 * (m * k + n * k) * count) + LAUNCH,
        back + memory_time(gpu, 4 * m * n * count) + LAUNCH,
        weight,
    )


def core_times(layer: Layer, gpu: Gpu, training: Training, candidate: Candidate) -> Times:
    """Scores, softmax and their product with the values, without and with stored scores."""
    part, cp, tp = layer.attention, candidate.degrees.cp, candidate.degrees.tp
    s, batch = training.sequence, candidate.microbatch_size
    if training.flash:
        seen = s if not (window := getattr(part, "window", None)) else min(2 * window, s)
        forward = 2 * part.score_width * batch * s * seen / 2 / (cp * tp)
        return Times(
            attention_time(gpu, forward) + LAUNCH,
            attention_time(gpu, 2.5 * forward, backward=True) + LAUNCH,
        )
    heads, d = -(-batch * part.heads // tp), part.head_dim
    rows = s // cp
    product = product_time(gpu, "bf16", rows, s, d, heads)
    product += product_time(gpu, "bf16", rows, d, s, heads)
    scores = heads * rows * s
    return Times(
        product + memory_time(gpu, SCORES_FORWARD * scores) + 3 * LAUNCH,
        2 * product + memory_time(gpu, SCORES_BACKWARD * scores) + 3 * LAUNCH,
    )


SCORES_FORWARD, SCORES_BACKWARD = 9, 11
"""Bytes moved per stored score: softmax reads and writes 2, dropout the same and a mask of 1; back
the same, and the softmax's result once more. The products' own traffic is theirs."""


def elementwise_times(
    model: Model, layer: Layer, gpu: Gpu, training: Training, candidate: Candidate
) -> Times:
    """Norms, residual additions, rotations, activation functions and the routing of experts."""
    tokens, tp = tokens_of(training, candidate), candidate.degrees.tp
    h, mask = model.hidden, 2 if model.dropout else 0
    shard = tp if training.sequence_parallel else 1
    forward, backward = (20 + mask) * h / shard, (24 + mask) * h / shard
    part = layer.attention
    rotated = 4 * (part.heads + part.kv_heads) * part.head_dim / tp
    forward, backward = forward + rotated, backward + rotated
    mlp, launches = layer.mlp, 8
    gated = mlp.gated
    width = mlp.width / tp
    if isinstance(mlp, Experts):
        width = mlp.top_k * mlp.width / tp + mlp.shared_width / tp
        routed = 8 * mlp.top_k * h / tp + 8 * mlp.count / tp
        forward, backward, launches = forward + routed, backward + routed, 16
    forward += (6 if gated else 4) * width
    backward += (10 if gated else 6) * width
    return Times(
        memory_time(gpu, tokens * forward) + launches * LAUNCH,
        memory_time(gpu, tokens * backward) + launches * LAUNCH,
    )
