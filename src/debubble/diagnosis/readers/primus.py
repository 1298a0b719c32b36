"""Primus's ``--dump_pp_data``: ``pp_rank_0.json`` …, and ``config.json`` beside them.

A file has, for every iteration, starts and ends of forwards, backwards and backwards for weights
in milliseconds from when that rank began the iteration: every rank has its own zero. Only
data-parallel rank 0 writes. Microbatches and chunks stand beside the times, save for Megatron's own
schedules; there the k-th call counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from debubble.core.errors import FormatError
from debubble.core.kinds import FORWARD_KINDS, Kind
from debubble.diagnosis.observed import ALONE, Observed
from debubble.diagnosis.readers.chunks import Row, is_v_shaped, kth_call, placed, stage_of
from debubble.diagnosis.readers.collected import Collected
from debubble.diagnosis.readers.stream import LeftOut, json_object
from debubble.interchange.text import shown

NAME = "primus"
MAX_BYTES = 1 << 28
MILLISECONDS = 1e-3

_FILE = re.compile(r"pp_rank_(\d{1,6})\.json(\.gz)?", re.ASCII)
KINDS = {"fwd": Kind.F, "bwd": Kind.B, "wgrad": Kind.W}

NO_STEP = "iterations without lists of starts and ends of the same length"


def recognises(head: bytes) -> bool:
    """Whether this is such a file, by its beginning."""
    return b'"fwd_start"' in head or (b'"pp_size"' in head and b'"num_mbs"' in head)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the files of all ranks.

    Raises
    ------
    FormatError
        When no file has a rank in its name and iterations.
    """
    config: Mapping[str, Any] = {}
    runs: dict[int, Mapping[str, Any]] = {}
    for path in files:
        data = json_object(path, MAX_BYTES, left_out)
        name = _FILE.fullmatch(path.name)
        if path.name == "config.json":
            config = data
        elif name is None:
            left_out["files without a rank in their name, as pp_rank_0.json has it"] += 1
        elif data:
            runs[int(name[1])] = data
    if not runs:
        raise FormatError(f"{where}: no file pp_rank_0.json …; give the folder that Primus wrote")
    ranks = max(_size(config, "pp_size"), max(runs) + 1)
    chunks = max(_size(config, "vp_size"), 1)
    zeros = _zeros(runs)
    rows: list[Row] = []
    named = True
    for rank, run in runs.items():
        for step, one in _iterations(run):
            found = list(_calls(one, ranks, chunks))
            if not found:
                left_out[NO_STEP] += 1
            named &= all(given for *_, given in found)
            zero = zeros.get(step, 0.0)
            rows += [
                (step, rank, kind, chunk, microbatch, zero + start, zero + end)
                for kind, chunk, microbatch, start, end, _ in found
            ]
    return _observed(where, rows, ranks, chunks, named, left_out)


def _observed(
    where: str, rows: Sequence[Row], ranks: int, chunks: int, named: bool, left_out: LeftOut
) -> Observed:
    collected = Collected(where, left_out)
    v_shaped = named and is_v_shaped(rows, ranks)
    split = {row[:2] + row[3:5] for row in rows if row[2] == Kind.W}
    spans = {
        kind: {(*row[:2], *row[5:7]) for row in rows if row[2] == kind} for kind in KINDS.values()
    }
    together = spans[Kind.F] & spans[Kind.B]
    pairs: dict[tuple[float, ...], int] = {}
    for step, rank, kind, chunk, microbatch, start, end in rows:
        if kind == Kind.B and (step, rank, chunk, microbatch) in split:
            kind = Kind.I
        pair = ALONE
        if kind != Kind.W and (step, rank, start, end) in together:
            pair = pairs.setdefault((step, rank, start, end), len(pairs))
        collected.action(
            step, 0, rank, kind, stage_of(rank, chunk, ranks, v_shaped), microbatch,
            start * MILLISECONDS, end * MILLISECONDS, pair=pair,
        )  # fmt: skip
    return collected.observed(
        NAME,
        {
            "rank": "number in the file's name",
            "stage": f"chunk and rank, {placed(v_shaped)}" if chunks > 1 else "rank",
            "microbatch": "lists in the file" if named else "the k-th call is microbatch k's",
            "step": "iteration in the file",
            "copy": "only data-parallel rank 0 writes",
            "clock": "every rank's own zero, when it began the iteration",
        },
        ranks=ranks, unit=MILLISECONDS, clocks="ranks",
        order_assumed="interleaved-1f1b" if chunks > 1 and not named else "",
    )  # fmt: skip


def _calls(
    one: Mapping[str, Any], ranks: int, chunks: int
) -> Iterator[tuple[Kind, int, int, float, float, bool]]:
    """Kind, chunk, microbatch, start and end of every call, and whether the file numbers it."""
    lists = {
        name: [_numbers(one.get(f"{name}_{edge}")) for edge in ("start", "end")] for name in KINDS
    }
    if any(len(starts) != len(ends) for starts, ends in lists.values()):
        return
    for name, kind in KINDS.items():
        starts, ends = lists[name]
        units, parts = (_list(one.get(f"{name}_{key}")) for key in ("minibatch", "chunk"))
        given = len(units) == len(parts) == len(starts)
        for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if given and type(units[k]) is int and type(parts[k]) is int and parts[k] < 64:
                chunk, microbatch = parts[k], units[k]
            else:
                given = False
                chunk, microbatch = kth_call(k, ranks, chunks, kind not in FORWARD_KINDS)
                if chunks == 1:
                    microbatch = k
            if min(chunk, microbatch) >= 0:
                yield kind, chunk, microbatch, start, end, given


def _iterations(data: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for key, one in data.items():
        if key.isdecimal() and len(key) < 9 and isinstance(one, dict):
            yield int(key), one


def _zeros(runs: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """Where iterations begin when they are laid one behind the other, in milliseconds."""
    longest: dict[int, float] = {}
    for data in runs.values():
        for step, one in _iterations(data):
            ends = [max(_numbers(one.get(f"{name}_end")), default=0.0) for name in KINDS]
            total = one.get("total")
            ends.append(float(total) if isinstance(total, int | float) else 0.0)
            longest[step] = max(longest.get(step, 0.0), *ends)
    zeros, at = {}, 0.0
    for step in sorted(longest):
        zeros[step] = at
        at += longest[step]
    return zeros


def _list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else []


def _numbers(values: Any) -> list[float]:
    if not isinstance(values, list) or not all(type(v) in (int, float) for v in values):
        return []
    try:
        return [float(value) for value in values]
    except OverflowError:
        return []


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key, 0)
    if type(value) is not int or not 0 <= value <= 1 << 16:
        raise FormatError(f"config.json: {key} is {shown(value)}; it is a number up to 65536")
    return value
