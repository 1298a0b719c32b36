"""Registered schedules that a plan can have, their chunks, and a first cut of the layers."""

from __future__ import annotations

from functools import cache, lru_cache

from debubble.core.kind_relations import SPLIT_KINDS
from debubble.core.placement import Placement
from debubble.engine.validate import has
from debubble.schedules import registry

MOST_CHUNKS = 256


@cache
def why_not(name: str) -> str:
    """Return the reason for which a plan cannot have a schedule; empty where it can.

    A plan is about one copy of the model that is trained step by step on whole microbatches and
    keeps its activations on their GPU.
    """
    entry = registry.find(name)
    if entry.placed(entry.case(ranks=4, microbatches=8)).copies > 1:
        return "it holds two copies of the model"
    if entry.weight_versions != 1:
        return "it keeps several versions of the weights"
    if any(option.name == "slices" for option in entry.options):
        return "it cuts sequences into slices"
    if entry.copies_activations:
        return "it moves activations off the GPU"
    if "vocabulary" in entry.fields:
        return "it shards the output layer over the pipeline"
    return ""


def plannable() -> tuple[str, ...]:
    """Return names of all schedules that a plan can have, oldest first."""
    return tuple(entry.name for entry in registry.schedules() if not why_not(entry.name))


@lru_cache(maxsize=1 << 16)
def fits(name: str, ranks: int, chunks: int, microbatches: int) -> bool:
    """Return whether a schedule exists for these sizes."""
    entry = registry.find(name)
    if entry.chunks is not None and entry.chunks != chunks:
        return False
    case = entry.case(ranks=ranks, microbatches=microbatches, chunks=chunks)
    return all(constraint.holds(case) for constraint in entry.constraints)


@lru_cache(maxsize=4096)
def placement_of(name: str, ranks: int, chunks: int) -> Placement:
    """Return the placement of a schedule's stages."""
    entry = registry.find(name)
    return entry.placement(ranks, chunks)


@cache
def splits_backwards(name: str) -> bool:
    """Return whether a schedule has backwards in two parts, as a small one shows."""
    made = registry.make(name, ranks=2, microbatches=8)
    return has(made, SPLIT_KINDS)


def fills_slowly(name: str, chunks: int) -> bool:
    """Return whether a schedule has one stage per rank and whole backwards.

    Then every rank waits at first while all ranks before it run a forward, and in the end while
    they run a backward.
    """
    return chunks == 1 and not splits_backwards(name)


def chunks_of(name: str, ranks: int, layers: int) -> tuple[int, ...]:
    """Return the numbers of chunks with which a schedule cuts layers over ranks.

    Every stage has a layer, but for the first and the last, which can do with embedding or head.
    One chunk of a schedule that takes several is the plain schedule, and left to that.
    """
    entry = registry.find(name)
    most = min((layers + 2) // ranks, MOST_CHUNKS)
    if entry.chunks is not None:
        return (entry.chunks,) if entry.chunks <= most else ()
    return tuple(range(2, most + 1))


@lru_cache(maxsize=1 << 14)
def first_cut(layers: int, stages: int, mtp: int = 0) -> tuple[int, ...]:
    """Return layers of every stage: equal ones where they divide, else balanced around the ends.

    Then the embedding counts as a layer of the first stage, and the head and each multi-token
    prediction as one of the last. The remainder goes to the last stages between them, which
    hold the fewest activations.

    Examples
    --------
    >>> first_cut(32, 4), first_cut(126, 16), first_cut(61, 8)
    ((8, 8, 8, 8), (7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7), (7, 7, 8, 8, 8, 8, 8, 7))
    """
    if layers % stages == 0:
        return (layers // stages,) * stages
    loads = [1, *[0] * (stages - 2), 1 + mtp]
    base, extra = divmod(layers + sum(loads), stages)
    if base < max(loads):
        # Fewer layers than an even load of the ends: these have none, and the rest is even.
        between = stages - 2
        if not between:
            return (layers, 0)
        base, extra = divmod(layers, between)
        return (0, *(base + (stage >= between - extra) for stage in range(between)), 0)
    inner = range(stages - 1 - extra, stages - 1) if extra < stages - 1 else range(1, stages)
    return tuple(base - loads[stage] + (stage in inner) for stage in range(stages))
