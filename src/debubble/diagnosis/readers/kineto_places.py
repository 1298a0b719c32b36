"""Places of the ranks of a job: copy of the pipeline, and rank in it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from debubble.diagnosis.readers.stream import LeftOut

TENSOR = "files of tensor-parallel ranks other than the first"

ProcessGroup = tuple[str, tuple[int, ...]]
"""A process group: words that describe it, and its ranks."""


class Place(NamedTuple):
    """Data-parallel copy and pipeline rank."""

    copy: int
    rank: int


def places(
    stages: Mapping[int, frozenset[int]],
    groups: Mapping[int, Sequence[ProcessGroup]],
    left_out: LeftOut,
) -> dict[int, Place]:
    """Return the place of every rank of the job, except tensor-parallel peers, which are counted.

    `stages` of a rank are negative if unknown; `groups` are its process groups.
    """
    first = {rank for rank in stages if not _is_tensor_peer(rank, groups.get(rank, ()))}
    if len(first) < len(stages):
        left_out[TENSOR] += len(stages) - len(first)
    pipelines = {rank: pipeline_of(rank, groups.get(rank, ())) for rank in sorted(first)}
    if any(stage < 0 for rank in first for stage in stages[rank]):
        return _by_group(pipelines)
    classes: dict[frozenset[int], list[int]] = defaultdict(list)
    for rank in sorted(first):
        classes[stages[rank]].append(rank)
    numbers = _numbers(classes)
    if all(pipelines.values()):
        copies = {group: copy for copy, group in enumerate(sorted(set(pipelines.values())))}
        found = {r: Place(copies[pipelines[r]], numbers[stages[r]]) for r in sorted(first)}
        if len(set(found.values())) == len(found):
            return found
        # Both ends of a bidirectional pipeline have the same stages.
        return _by_group(pipelines)
    return {
        rank: Place(copy, numbers[mine])
        for mine, ranks in classes.items() for copy, rank in enumerate(ranks)
    }  # fmt: skip


def _numbers(classes: Mapping[frozenset[int], Sequence[int]]) -> dict[frozenset[int], int]:
    """Return the pipeline rank of each set of stages: its first stage if these number all."""
    every = {stage for mine in classes for stage in mine}
    chunks = max(len(mine) for mine in classes)
    ranks = -(-(max(every) + 1) // chunks)
    firsts = {mine: min(mine) for mine in classes}
    if len(set(firsts.values())) == len(firsts) and max(firsts.values()) < max(ranks, len(classes)):
        return firsts
    order = sorted(classes, key=lambda mine: min(classes[mine]))
    return {mine: number for number, mine in enumerate(order)}


def _by_group(pipelines: Mapping[int, tuple[int, ...]]) -> dict[int, Place]:
    """Return places from the ranks of pipeline groups; without one, all ranks are one pipeline."""
    copies = {group: copy for copy, group in enumerate(sorted(set(pipelines.values())))}
    return {
        rank: Place(copies[group], group.index(rank) if group else rank)
        for rank, group in pipelines.items()
    }


def pipeline_of(rank: int, groups: Sequence[ProcessGroup]) -> tuple[int, ...]:
    """Return the ranks of a rank's pipeline; empty without a pipeline group."""
    return _group_of(rank, groups, "pp", "pipe")


def _is_tensor_peer(rank: int, groups: Sequence[ProcessGroup]) -> bool:
    return rank in _group_of(rank, groups, "tp", "tensor")[1:]


_OTHER_AXES = frozenset(
    ["and", "expert", "data", "dp", "context", "cp", "tp", "tensor", "ep", "pp"]
)
"""Words of groups of several kinds of parallelism, such as ``tensor_and_data_parallel_group``."""


def _group_of(
    rank: int, groups: Sequence[ProcessGroup], short: str, begin: str
) -> tuple[int, ...]:  # fmt: skip
    """Return the group of a rank that one kind of parallelism has alone; empty without one."""
    for words, ranks in groups:
        tokens = re.split(r"[^a-z]+", words)
        mine = {token for token in tokens if token == short or token.startswith(begin)}
        if rank in ranks and mine and not (_OTHER_AXES - mine).intersection(tokens):
            return ranks
    return ()
