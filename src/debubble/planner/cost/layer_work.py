"""Work of one GPU for one layer and microbatch, by module: products, attention, memory traffic.

Modules are Megatron-LM's names for the parts that can be recomputed: ``core_attn``,
``mla_up_proj``, ``layernorm``, ``mlp``, ``moe``, ``moe_act``, ``shared_experts``. Two more modules
are ``attention`` (other projections and rotations) and ``residual``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from debubble.planner.candidate import Candidate, Training
from debubble.planner.hardware.gpus import Gpu
from debubble.planner.hardware.kernel_times import (
    LAUNCH,
    PRECISIONS,
    attention_time,
    memory_time,
    product_time,
)
from debubble.planner.model.mixers import LatentAttention, Mixer, Recurrence
from debubble.planner.model.transformer import Experts, Layer, Mlp, Model

SCORES_FORWARD, SCORES_BACKWARD = 9, 11
"""Bytes moved per stored score: softmax reads and writes 2, dropout the same and a mask of 1; back
the same, and the softmax's result once more. The products' own traffic is theirs."""


@dataclass(frozen=True)
class Times:
    """Seconds of forward, backward for the input and backward for the weights."""

    F: float = 0.0
    I: float = 0.0
    W: float = 0.0

    def __add__(self, other: Times) -> Times:
        return Times(self.F + other.F, self.I + other.I, self.W + other.W)

    def __sub__(self, other: Times) -> Times:
        return Times(self.F - other.F, self.I - other.I, self.W - other.W)

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
    """Return tokens of one microbatch on one rank of its tensor-parallel group."""
    return -(-training.sequence * candidate.microbatch_size // candidate.degrees.cp)


def module_times(
    model: Model, layer: Layer, gpu: Gpu, training: Training, candidate: Candidate
) -> dict[str, Times]:
    """Return seconds of every module of a layer; the busiest experts' load decides."""
    tokens = tokens_of(training, candidate)
    shard = candidate.degrees.tp if training.sequence_parallel else 1
    stream, mask = tokens * model.hidden / shard, 2 * model.dropout
    found = {"attention": Times(), "core_attn": Times()}
    for part in layer.mixers:
        for name, times in _attention(model, part, gpu, training, candidate).items():
            found[name] = found.get(name, Times()) + times
    # Norms read and write 2 bytes per number; two additions read twice and write once.
    norms = layer.norms
    found["layernorm"] = _traffic(gpu, 4 * norms * stream, 6 * norms * stream, launches=norms)
    found["residual"] = _traffic(gpu, (12 + mask) * stream, (12 + mask) * stream, launches=2)
    return found | _feed_forward(model, layer.mlp, gpu, training, candidate)


def _traffic(gpu: Gpu, forward: float, backward: float, *, launches: int) -> Times:
    """Return the times of kernels that move so many bytes forward and backward."""
    start = launches * LAUNCH
    return Times(memory_time(gpu, forward) + start, memory_time(gpu, backward) + start)


def _attention(
    model: Model, part: Mixer, gpu: Gpu, training: Training, candidate: Candidate
) -> dict[str, Times]:
    tp, h = candidate.degrees.tp, model.hidden
    tokens, heads = tokens_of(training, candidate), -(-part.heads // tp)
    # Rotated queries and keys; or what passes a short convolution.
    rotated: float = 4 * tokens * (heads + max(part.kv_heads // tp, 1)) * part.head_dim
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
        "attention": _products(gpu, training, own) + _traffic(gpu, rotated, rotated, launches=1),
        "core_attn": core_times(part, gpu, training, candidate),
    }
    return found | ({"mla_up_proj": _products(gpu, training, up)} if up else {})


def _feed_forward(
    model: Model, part: Mlp | Experts, gpu: Gpu, training: Training, candidate: Candidate
) -> dict[str, Times]:
    tokens, degrees, h = tokens_of(training, candidate), candidate.degrees, model.hidden
    if isinstance(part, Mlp):
        return {"mlp": _dense(gpu, training, tokens, -(-part.width // degrees.tp), h, part)}
    own, local = -(-tokens // degrees.tp), max(part.count // degrees.ep, 1)
    each, inner = -(-own * part.top_k // local), part.latent or h
    routed = _products(gpu, training, _matrices(each, part.width, inner, part, local))
    # Tokens are put in their experts' order and back: read and written, twice.
    moved = 8 * own * (part.top_k * inner + part.count)
    latent = [Product(own, part.latent, h), Product(own, h, part.latent)] if part.latent else []
    found = {
        "moe": routed * training.imbalance
        + _products(gpu, training, [Product(own, part.count, h), *latent])
        + _traffic(gpu, moved, moved, launches=8),
        "moe_act": _activation(gpu, own * part.top_k * part.width, part) * training.imbalance,
    }
    if part.shared_width:
        wide = -(-part.shared_width // degrees.tp)
        found["shared_experts"] = _dense(gpu, training, tokens, wide, h, part)
    return found


def _dense(
    gpu: Gpu, training: Training, tokens: int, width: int, hidden: int, part: Mlp | Experts
) -> Times:
    products = _products(gpu, training, _matrices(tokens, width, hidden, part))
    return products + _activation(gpu, tokens * width, part)


def _matrices(
    tokens: int, width: int, hidden: int, part: Mlp | Experts, count: int = 1
) -> Iterator[Product]:
    """Yield products of a feed-forward part; gate and first matrix are one."""
    yield Product(tokens, width * (2 if part.gated else 1), hidden, count)
    yield Product(tokens, hidden, width, count)


def _activation(gpu: Gpu, numbers: float, part: Mlp | Experts) -> Times:
    """Return the times of the activation function of so many numbers, by bytes moved."""
    forward, backward = (6, 10) if part.gated else (4, 6)
    return _traffic(gpu, forward * numbers, backward * numbers, launches=1)


def _products(gpu: Gpu, training: Training, products: Iterator[Product] | list[Product]) -> Times:
    return sum((product_times(gpu, training, item) for item in products), Times())


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
    if training.fused:
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


def core_times(part: Mixer, gpu: Gpu, training: Training, candidate: Candidate) -> Times:
    """Return the times of scores, softmax and their product with the values; or of a state's."""
    cp, tp = candidate.degrees.cp, candidate.degrees.tp
    s, batch = training.sequence, candidate.microbatch_size
    if training.flash or isinstance(part, Recurrence):
        seen = min(2 * part.reach, s) if part.reach else s
        forward = part.score_width * batch * s * min(seen, part.chunk or s) / (cp * tp)
        if part.index_heads or isinstance(part, Recurrence):
            forward += batch * s * part.extra_flops(s) / (cp * tp)
        portable = training.runtime.portable_attention
        back = attention_time(gpu, 2.5 * forward, backward=True, portable=portable)
        return Times(attention_time(gpu, forward, portable=portable) + LAUNCH, back + LAUNCH)
    heads, d, rows = -(-batch * part.heads // tp), part.head_dim, s // cp
    product = product_time(gpu, "bf16", rows, s, d, heads)
    product += product_time(gpu, "bf16", rows, d, s, heads)
    scores = heads * rows * s
    return Times(
        product + memory_time(gpu, SCORES_FORWARD * scores) + 3 * LAUNCH,
        2 * product + memory_time(gpu, SCORES_BACKWARD * scores) + 3 * LAUNCH,
    )
