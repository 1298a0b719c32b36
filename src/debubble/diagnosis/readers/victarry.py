"""The timers of Victarry's Megatron-LM: ``event_times_PP4_VPP1_…_pp_rank_0_rank_0.json``.

A file has the milliseconds from a barrier to every start and end of one iteration, by keys
``forward-{microbatch}-start`` or ``backward-{chunk}-{microbatch}-end``. Starts lie behind the
receive, so no time contains a wait; the zeros of ranks differ as much as their ways out of the
barrier. Files of other tensor-, context- or data-parallel ranks tell the same and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from debubble.core.errors import FormatError
from debubble.core.kinds import Kind
from debubble.diagnosis.observed import Observed
from debubble.diagnosis.readers.chunks import Row, is_v_shaped, placed, stage_of
from debubble.diagnosis.readers.collected import Collected
from debubble.diagnosis.readers.scan import number
from debubble.diagnosis.readers.stream import LeftOut, json_object

NAME = "victarry"
MAX_BYTES = 1 << 26
MILLISECONDS = 1e-3

_HEAD = re.compile(rb'"(?:forward|backward)-\d{1,6}(?:-\d{1,6})?-(?:start|end)"')
_KEY = re.compile(r"(forward|backward)-(?:(\d{1,6})-)?(\d{1,6})-(start|end)", re.ASCII)
_FILE = re.compile(r"(?:DP_rank_(?P<other>\d{1,7})_)?pp_rank_(?P<rank>\d{1,6})", re.ASCII)
_SIZE = re.compile(r"_PP(\d{1,5})_", re.ASCII)

NO_RANK = "files without pp_rank_0 or so in their name"
OTHERS = "files of other tensor-, context- or data-parallel ranks than the first"
OPEN = "actions without a start or an end"


def recognises(head: bytes) -> bool:
    """Whether this is such a file, by its beginning."""
    return _HEAD.search(head) is not None


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the files of all ranks; several folders of them are several iterations.

    Raises
    ------
    FormatError
        When no file has a pipeline rank in its name.
    """
    collected = Collected(where, left_out)
    folders = {
        folder: number for number, folder in enumerate(dict.fromkeys(f.parent for f in files))
    }
    rows: list[Row] = []
    ranks = 0
    for path in files:
        name = _FILE.search(path.name)
        if name is None:
            left_out[NO_RANK] += 1
            continue
        if int(name["other"] or 0):
            left_out[OTHERS] += 1
            continue
        size = _SIZE.search(path.name)
        rank, step = int(name["rank"]), folders[path.parent]
        ranks = max(ranks, int(size[1]) if size else 0, rank + 1)
        rows += [
            (step, rank, *one) for one in _actions(json_object(path, MAX_BYTES, left_out), left_out)
        ]
    if not rows:
        raise FormatError(f"{where}: no file event_times_…_pp_rank_0_….json has times of actions")
    v_shaped = any(row[3] for row in rows) and is_v_shaped(rows, ranks)
    # Iterations are laid one behind the other.
    zeros, at = {}, 0.0
    for step in sorted(set(folders.values())):
        zeros[step] = at
        at += max((row[6] for row in rows if row[0] == step), default=0.0)
    for step, rank, kind, chunk, microbatch, start, end in rows:
        collected.action(
            step, 0, rank, kind, stage_of(rank, chunk, ranks, v_shaped), microbatch,
            (zeros[step] + start) * MILLISECONDS, (zeros[step] + end) * MILLISECONDS,
        )  # fmt: skip
    return collected.observed(
        NAME,
        {
            "rank": "pp_rank in the file's name",
            "stage": f"chunk and rank, {placed(v_shaped)}",
            "microbatch": "keys",
            "step": "one a folder",
            "copy": "only the first rank of every stage",
            "clock": "every rank's own, from a barrier on",
        },
        ranks=ranks, unit=MILLISECONDS, clocks="ranks",
    )  # fmt: skip


def _actions(
    data: Mapping[str, Any], left_out: LeftOut
) -> Iterator[tuple[Kind, int, int, float, float]]:
    """Kind, chunk, microbatch, start and end of every action of a file."""
    times: dict[tuple[Kind, int, int], dict[str, float]] = {}
    for key, value in data.items():
        match = _KEY.fullmatch(key)
        if match is not None:
            kind = Kind.F if match[1] == "forward" else Kind.B
            action = (kind, int(match[2] or 0), int(match[3]))
            times.setdefault(action, {})[match[4]] = number(value)
    for action, edges in times.items():
        if len(edges) == 2:
            yield *action, edges["start"], edges["end"]
        else:
            left_out[OPEN] += 1
