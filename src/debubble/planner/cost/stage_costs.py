"""Costs of every stage from the times and bytes of its layers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs
from debubble.planner.candidate import recomputed_layers
from debubble.planner.case import Case
from debubble.planner.cost.layer_times import EXPOSED, layer_times
from debubble.planner.cost.layer_work import Product, Times, product_times
from debubble.planner.hardware.kernel_times import LAUNCH, memory_time
from debubble.planner.hardware.links import all_gather, all_reduce, send
from debubble.planner.memory.state import padded_vocabulary

Floats = NDArray[np.float64]


def stage_costs(case: Case, **memory: Any) -> Costs:
    """Return costs in seconds and bytes of one microbatch on every stage.

    Recompute is part of I and of B; so is W where the runtime then keeps backwards whole. The
    embedding is in the first stage's numbers, the head in the last one's, multi-token prediction in
    those of its stage. `memory` has costs in bytes.
    """
    times, p2p = stage_times(case), transfer(case)
    memory |= _predictions_sent(case)
    if not case.training.overlap_p2p:
        # A rank sends and receives at once after every pass, and waits for both.
        times[:2] += p2p if isinstance(p2p, float) else max(map(max, p2p))
        p2p = 0.0
    F, I, W = map(tuple, times.tolist())
    return Costs(**{"memory_unit": "bytes", **memory}, F=F, I=I, W=W, p2p=p2p, time_unit="s")


def stage_times(case: Case) -> Floats:
    """Return F, I with recompute, and W of every stage in rows; shape ``(3, stages)``."""
    return times_of_cuts(case, np.array([case.candidate.layers]))[:, 0]


def times_of_cuts(case: Case, cuts: NDArray[np.int64]) -> Floats:
    """Return what :func:`stage_times` does for several cuts in place of the candidate's.

    `cuts` are layers of every stage, shape ``(cuts, stages)``; the result has shape
    ``(3, cuts, stages)``.
    """
    candidate = case.candidate
    end = np.cumsum(cuts, axis=1)
    begin, most = end - cuts, recomputed_layers(candidate.recompute)
    if most is None:
        sums = layer_sums(case)
        found = sums.layers[:, end] - sums.layers[:, begin]
    else:
        again, sums = layer_sums(case, "full").layers, layer_sums(case, "none")
        kept = begin + np.minimum(cuts, most)
        found = again[:, kept] - again[:, begin]
        found += sums.layers[:, end] - sums.layers[:, kept]
    if least := least_layer(case):
        found *= np.maximum(1.0, least * cuts / found.sum(axis=0).clip(1e-12))
    found[..., 0] += sums.embedding[:, None]
    found[..., -1] += sums.head[:, None]
    found[..., candidate.mtp_at] += sums.mtp[:, None]
    if case.whole_backwards:
        found[1] += found[2]
        found[2] = 0.0
    return found


def model_times(case: Case) -> tuple[float, float, float]:
    """Return F, I with recompute, and W of the whole model on one stage."""
    if recomputed_layers(case.candidate.recompute) is not None:
        F, I, W = stage_times(case)[:, 0].tolist()
        return F, I, W
    sums = layer_sums(case)
    F, I, W = (sums.layers[:, -1] + sums.embedding + sums.head + sums.mtp).tolist()
    return (F, I + W, 0.0) if case.whole_backwards else (F, I, W)


def least_layer(case: Case) -> float:
    """Return seconds that a layer of a pipeline takes at least, whatever its size."""
    least, degrees = case.training.runtime.piped_layers, case.degrees
    if not least or degrees.pp == 1 or degrees.gpus <= case.gpu.node:
        return 0.0
    return least[min(degrees.tp.bit_length(), len(least)) - 1]


class LayerSums(NamedTuple):
    """F, I and W in rows, in seconds of one microbatch."""

    layers: Floats
    """Those of the first n layers, for every n; shape ``(3, layers + 1)``."""
    embedding: Floats
    head: Floats
    """Those of norm, head and loss, for every prediction; shape ``(3,)``, as the embedding's."""
    mtp: Floats
    """Those of layers of multi-token prediction; shape ``(3,)``."""


def layer_sums(case: Case, recompute: str | None = None) -> LayerSums:
    """Return the times of the first n layers, for every n, and of the model's ends.

    All layers recompute alike, as the case's do, or in another way: not ``"full:N"``, where that
    depends on the stage.
    """
    seen = case.candidate.without_order(recompute)
    return _sums(Case(case.model, case.cluster, case.training, seen, case.factors))


@lru_cache(maxsize=16384)
def _sums(case: Case) -> LayerSums:
    assert recomputed_layers(case.candidate.recompute) is None
    kinds, numbers = case.model.kinds
    layers = [layer_times(case, layer).with_recompute for layer in kinds]
    plain = case.candidate.without_order("none", (), replicas=False, experts=False)
    embedding, head, joined = _ends(replace(case, candidate=plain))
    mtp = (layers[numbers[-1]] + joined) * case.model.mtp
    each = [*layers, embedding, head, mtp]
    rows = np.array([(times.F, times.I, times.W) for times in each]).T
    sums = np.zeros((3, len(numbers) + 1))
    np.cumsum(rows[:, numbers], axis=1, out=sums[:, 1:])
    return LayerSums(sums, *rows[:, -3:].T)


@lru_cache(maxsize=16384)
def _ends(case: Case) -> tuple[Times, Times, Times]:
    """Return the times of embedding, head, and the product that joins inputs of a prediction."""
    slow = 1 / case.efficiency(experts=case.model.layers[-1].experts is not None)
    product = Product(case.tokens, case.model.hidden, 2 * case.model.hidden)
    joined = product_times(case.gpu, case.training, product) * slow
    return _embedding_times(case), _head_times(case, slow), joined


def _embedding_times(case: Case) -> Times:
    """Return the times of look-up, its sum over the group, and the scattered gradient."""
    gpu, size = case.gpu, 2 * case.tokens * case.model.hidden
    gather = all_gather if case.training.sequence_parallel else all_reduce
    shared = gather(gpu, case.group("tp"), size)
    return Times(
        memory_time(gpu, 2 * size) + shared + LAUNCH, shared, memory_time(gpu, 5 * size) + LAUNCH
    )


def _head_times(case: Case, slow: float) -> Times:
    """Return the times of last norm, head and loss, once for every prediction."""
    model, gpu, training, tokens = case.model, case.gpu, case.training, case.tokens
    tp, group = case.degrees.tp, case.group("tp")
    vocabulary, whole = padded_vocabulary(model, training, tp) // tp, training.runtime.whole_logits
    logits = tokens * vocabulary * (tp if whole else 1)
    head = product_times(gpu, training, Product(tokens, vocabulary, model.hidden), wide=True)
    ahead, back = training.runtime.loss_bytes
    head += Times(memory_time(gpu, ahead * logits), memory_time(gpu, back * logits))
    head = head * slow
    if group.size > 1:
        shared = all_gather(gpu, group, 2 * tokens * model.hidden)
        shared *= EXPOSED if case.hides_tensors else 1.0
        head += Times(shared, shared)
        head += Times(all_gather(gpu, group, 2 * logits) * whole)
    return head * (1 + model.mtp)


def _predictions_sent(case: Case) -> dict[str, Any]:
    """Return costs of messages behind multi-token prediction that is not next to the loss.

    There every prediction's activations are sent. `message` is in seconds that they take on top of
    one prediction's.
    """
    degrees, at = case.degrees, case.candidate.mtp_at
    if not case.model.mtp or at == degrees.stages - 1:
        return {}
    size = 2 * case.tokens * case.model.hidden / degrees.tp
    inside = degrees.gpus <= case.gpu.node
    more = send(case.gpu, (1 + case.model.mtp) * size, inside=inside)
    more -= send(case.gpu, size, inside=inside)
    sent = [more * (stage >= at) for stage in range(degrees.stages - 1)]
    return {"message": sent, "bandwidth": 1.0}


def transfer(case: Case) -> float | tuple[tuple[float, ...], ...]:
    """Return seconds between neighboring ranks; a matrix where only some share a node."""
    degrees, gpu = case.degrees, case.gpu
    if degrees.pp == 1:
        return 0.0
    size = 2 * case.tokens * case.model.hidden / degrees.tp
    inside, between = send(gpu, size, inside=True), send(gpu, size, inside=False)
    node, stride = gpu.node, degrees.gpus // degrees.pp
    if stride * degrees.pp <= node:
        return inside
    if stride >= node:
        return between
    nodes = [rank * stride // node for rank in range(degrees.pp)]
    return tuple(tuple(inside if a == b else between for b in nodes) for a in nodes)
