"""Megatron-LM's timer log (``--timing-log-level 2``): sums per rank and iteration, costs only.

The log has what all forwards and all backwards of an iteration took on every rank
(``--timing-log-option all``), or the least and most of all ranks (``minmax``, ``max``). Divided by
microbatches and chunks that is the cost of an action; when each ran, the log does not say. How many
there are is in the list of arguments at its beginning.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from debubble.core.costs import Costs
from debubble.core.errors import FormatError
from debubble.diagnosis.observed import Actions, Observed
from debubble.diagnosis.readers.stream import LeftOut, pieces

NAME = "megatron-timers"
TIMERS = {"forward-compute": "F", "backward-compute": "B"}
MAX_ITERATIONS = 100_000
MAX_RANKS = 1 << 16

_HEADS = ("times across ranks (ms)", "time across ranks (ms)")
_ARGUMENT = re.compile(r"\s*([a-z_]{3,60}) \.+ (\d{1,9})\s*", re.ASCII)
_TIMER = re.compile(
    r"\s*([a-z-]{3,60})[ .]*:\s*(?:\(?(\d{1,12}\.\d+)(?:, (\d{1,12}\.\d+)\))?)?\s*", re.ASCII
)
_RANK = re.compile(r"rank\s+(\d{1,6}): (\d{1,12}\.\d+)", re.ASCII)
_RANKS = re.compile(r"(?:[ \t]*rank +\d{1,6}: \d{1,12}\.\d++[ \t\r]*(?:\n|\Z))++", re.ASCII)
_ITERATION = re.compile(r"iteration\s+(\d{1,9})/")

OTHER_TIMERS = "sums of timers other than forward-compute and backward-compute"
TOO_MANY = f"iterations beyond the first {MAX_ITERATIONS:,}"


def recognises(head: bytes) -> bool:
    """Whether this is such a log, by its beginning: times, or Megatron's list of arguments."""
    text = head.decode("utf-8", "replace")
    return any(words in text for words in _HEADS) or "pipeline_model_parallel_size ..." in text


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the logs of one run.

    Raises
    ------
    FormatError
        When no forwards and backwards are summed, or nothing says how many microbatches there are.
    """
    arguments: dict[str, int] = {}
    sums: dict[str, dict[int, list[float]]] = {kind: defaultdict(list) for kind in TIMERS.values()}
    iterations: set[int] = set()
    for path in files:
        _read_file(path, arguments, sums, iterations, left_out)
    if not all(sums.values()):
        raise FormatError(
            f"{where}: no sums of forward-compute and backward-compute; log with "
            "--timing-log-level 2 --timing-log-option all"
        )
    ranks = _size(where, arguments, "pipeline_model_parallel_size")
    chunks = arguments.get("virtual_pipeline_model_parallel_size", 1) or 1
    batch = _size(where, arguments, "micro_batch_size") * arguments.get("data_parallel_size", 1)
    microbatches = _size(where, arguments, "global_batch_size") // max(batch, 1)
    if not microbatches or ranks > MAX_RANKS or chunks > MAX_RANKS:
        raise FormatError(
            f"{where}: {ranks} ranks, {chunks} chunks and {microbatches} microbatches by the "
            "list of arguments; give the log of one run"
        )
    world = arguments.get("world_size", 1 + max(max(each) for each in sums.values()))
    peers = max(world // ranks, 1)
    every = all(-1 not in each for each in sums.values())
    costs: dict[str, Any] = {
        kind: _per_stage(each, ranks, chunks, peers, microbatches) for kind, each in sums.items()
    }
    told = {min(rank // peers, ranks - 1) for rank in sums["F"]} if every else set(range(ranks))
    return Observed(
        NAME, ranks, 1, (), Actions.of(),
        missing=tuple((0, rank) for rank in range(ranks) if rank not in told),
        taken_for={
            "rank": f"rank // {peers}, as Megatron places pipelines" if every
            else "not told: the slowest rank's sums stand for all",
            "stage": "rank, the same for all of its chunks",
            "microbatch": f"not told; sums are divided by {microbatches} microbatches",
            "step": f"medians of {max(len(iterations), 1)} iterations",
            "clock": "none: the log has sums and no points in time",
        },
        left_out=dict(left_out), costs=Costs(**costs, time_unit="ms"),
    )  # fmt: skip


def _read_file(
    path: Path, arguments: dict[str, int], sums: Mapping[str, dict[int, list[float]]],
    iterations: set[int], left_out: LeftOut,
) -> None:  # fmt: skip
    timer = ""
    inside = False
    for line, ranks in _lines(path, left_out):
        if ranks and inside:
            if timer in TIMERS:
                for rank, value in _RANK.findall(line):
                    sums[TIMERS[timer]][int(rank)].append(float(value))
            continue
        argument = _ARGUMENT.fullmatch(line)
        if argument is not None:
            arguments.setdefault(argument[1], int(argument[2]))
            continue
        iteration = _ITERATION.search(line)
        if iteration is not None:
            if len(iterations) >= MAX_ITERATIONS:
                left_out[TOO_MANY] += 1
                return
            iterations.add(int(iteration[1]))
        if any(words in line for words in _HEADS):
            inside, timer = True, ""
            continue
        match = _TIMER.fullmatch(line) if inside else None
        inside = match is not None
        if match is None:
            continue
        timer = match[1]
        if timer not in TIMERS:
            left_out[OTHER_TIMERS] += 1
        elif match[2]:
            sums[TIMERS[timer]][-1].append(float(match[3] or match[2]))


def _lines(path: Path, left_out: LeftOut) -> Iterator[tuple[str, bool]]:
    """Lines of a log; those of ranks, one below the other, come as one, and as such."""
    for text in pieces(path, left_out):
        at = 0
        while at < len(text):
            ranks = _RANKS.match(text, at)
            end = ranks.end() if ranks else text.find("\n", at) + 1 or len(text)
            yield text[at:end].rstrip("\r\n"), ranks is not None
            at = end


def _per_stage(
    sums: Mapping[int, Sequence[float]], ranks: int, chunks: int, peers: int, microbatches: int
) -> float | list[float]:
    """The cost of an action of every stage: the median iteration's, of the slowest peer."""
    share = microbatches * chunks
    if -1 in sums:
        return float(np.median(sums[-1])) / share
    found: dict[int, float] = {}
    for rank, values in sums.items():
        at = min(rank // peers, ranks - 1)
        found[at] = max(found.get(at, 0.0), float(np.median(values)) / share)
    # A rank of which the log has nothing counts as the mean of the others.
    mean = sum(found.values()) / len(found)
    return [found.get(rank, mean) for rank in range(ranks)] * chunks


def _size(where: str, arguments: Mapping[str, int], key: str) -> int:
    if not arguments.get(key):
        raise FormatError(
            f"{where}: no '{key}' in the log; keep its beginning, where Megatron lists arguments"
        )
    return arguments[key]
