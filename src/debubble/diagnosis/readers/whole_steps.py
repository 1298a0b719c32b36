"""Whole steps of a trace: steps in which every rank has all of its actions once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.core.kind_relations import FUSED_KIND, INPUT_KIND
from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS
from debubble.core.units import counted
from debubble.diagnosis.observed import ObservedActions
from debubble.diagnosis.readers.messages import packed

NAMED = 3
"""Maximum number of ranks, actions or microbatches in a message."""

INCOMPLETE = "steps that are not complete on every rank"
TWO_TIMES = "steps in which an action occurs twice with different times"
PARTS = "ranks of which no step is complete (taken as missing): "

ACTION = ("kind", "stage", "microbatch", "slice")
"""Columns that identify the action of a row within its rank and step."""


def whole_steps(
    where: str, actions: ObservedActions, count: Callable[[str, int], None]
) -> tuple[ObservedActions, tuple[int, ...]]:
    """Return the actions of complete steps, and the numbers of those steps.

    `actions` are sorted by step, copy and rank. The usual actions of a rank are those of most of
    its steps; a rank whose usual actions are incomplete is left out. `count` is called with a
    reason and the number of ranks or steps left out for it. Raise FormatError when nothing is left.
    """
    first, groups = _groups(actions)
    bounds = np.append(first, len(actions))
    found, twice = _sets(actions, bounds, groups)
    steps = {step for *_, step in groups}
    wrong: dict[_Place, set[int]] = {}
    usual: dict[_Place, frozenset[tuple[int, ...]]] = {}
    for place, by_step in found.items():
        counts = Counter(done.key for done in by_step.values())
        most = max(counts, key=lambda key: (counts[key], len(key)))
        usual[place] = next(done.actions for done in by_step.values() if done.key == most)
        wrong[place] = {step for step in steps if step not in by_step or by_step[step].key != most}
    parts = _parts(usual)
    if len(parts) == len(usual):
        raise FormatError(
            f"{where}: no rank has the forward and backward of every microbatch in any "
            f"step: {_lacks(usual, parts)}; begin the trace before a step and end it behind one"
        )
    if parts:
        count(PARTS + _lacks(usual, parts), len(parts))
    _refuse_gaps(where, usual)
    cut = {step for place, found in wrong.items() if place not in parts for step in found}
    cut -= twice
    count(TWO_TIMES, len(twice))
    count(INCOMPLETE, len(cut))
    kept = sorted(steps - twice - cut)
    if not kept:
        raise FormatError(
            f"{where}: none of {len(steps)} steps is complete on every rank with every "
            "action once; trace whole steps on all ranks"
        )
    index = {step: number for number, step in enumerate(kept)}
    numbers = [-1 if (copy, rank) in parts else index.get(step, -1) for copy, rank, step in groups]
    number = np.repeat(np.array(numbers, np.int32), np.diff(bounds))
    if len(kept) < len(steps) or parts:
        actions, number = actions.take(number >= 0), number[number >= 0]
    return ObservedActions(**{**vars(actions), "step": number}), tuple(kept)


_Place = tuple[int, int]
"""Copy and rank."""


@dataclass(frozen=True, eq=False)
class _Set:
    """Set of the actions of a rank in a step, its key, and whether an action occurs twice."""

    key: bytes
    again: bool
    actions: frozenset[tuple[int, ...]]


def _groups(actions: ObservedActions) -> tuple[NDArray[np.int64], list[tuple[int, int, int]]]:
    """Return the first action of each rank in each step, and its copy, rank and step."""
    group = packed([actions.copy, actions.rank, actions.step])
    first = np.append(0, np.flatnonzero(group[1:] != group[:-1]) + 1)
    columns = (getattr(actions, name)[first].tolist() for name in ("copy", "rank", "step"))
    return first, list(zip(*columns, strict=True))


def _sets(
    actions: ObservedActions, bounds: NDArray[np.int64], groups: Sequence[tuple[int, int, int]]
) -> tuple[dict[_Place, dict[int, _Set]], set[int]]:
    """Return the actions of every place in every step, and steps in which one occurs twice."""
    code = packed([getattr(actions, name) for name in ACTION])
    found: dict[_Place, dict[int, _Set]] = defaultdict(dict)
    twice = set()
    # Most steps have the same actions in the same sequence.
    sets: dict[bytes, _Set] = {}
    for (copy, rank, step), (begin, end) in zip(groups, pairwise(bounds.tolist()), strict=True):
        order = code[begin:end].tobytes()
        if order not in sets:
            done = np.sort(code[begin:end])
            new = np.append(True, done[1:] != done[:-1])
            columns = (getattr(actions, name)[begin:end].tolist() for name in ACTION)
            every = frozenset(zip(*columns, strict=True))
            sets[order] = _Set(done[new].tobytes(), not new.all(), every)
        if sets[order].again:
            twice.add(step)
        found[copy, rank][step] = sets[order]
    return found, twice


def _refuse_gaps(where: str, usual: Mapping[_Place, frozenset[tuple[int, ...]]]) -> None:
    """Raise FormatError if a microbatch is missing on all ranks."""
    units = {action[2] for done in usual.values() for action in done}
    absent = sorted(set(range(max(units))) - units)
    if absent:
        raise FormatError(
            f"{where}: microbatch {', '.join(map(str, absent[:NAMED]))} is in no action, "
            f"and {max(units)} is; begin the trace before a step, or count microbatches from 0"
        )


def _parts(usual: Mapping[tuple[int, int], frozenset[tuple[int, ...]]]) -> set[tuple[int, int]]:
    """Return the copies and ranks that always lack a microbatch, or a backward of one."""
    passes = {at: _passes(done) for at, done in usual.items()}
    counts = {at: len({unit[1:] for unit in forward}) for at, (forward, _) in passes.items()}
    most = max(counts.values())
    learns = any(backward for _, backward in passes.values())
    return {
        at for at, (forward, backward) in passes.items()
        if counts[at] < most or (learns and backward != forward)
    }  # fmt: skip


def _passes(done: frozenset[tuple[int, ...]]) -> list[set[tuple[int, ...]]]:
    """Return stage, microbatch and slice of the forwards, and of the backwards."""
    return [
        {one[1:] for one in done if one[0] in kinds} for kinds in (FORWARD_KINDS, GRADIENT_KINDS)
    ]


def _lacks(
    usual: Mapping[tuple[int, int], frozenset[tuple[int, ...]]], parts: set[tuple[int, int]]
) -> str:
    """Return in words the actions that these copies and ranks lack."""
    several = any(copy for copy, _ in usual)
    done = [{one[0] for one in actions} for actions in usual.values()]
    learns = any(kinds & set(GRADIENT_KINDS) for kinds in done)
    backward = (FUSED_KIND if any(FUSED_KIND in kinds for kinds in done) else INPUT_KIND).name
    units = [{one[2:] for one in actions} for actions in usual.values()]
    # If each rank has half of the microbatches of a stage, only pairs show the missing ones.
    every = set.union(*units) if max(map(len, units)) == len(set.union(*units)) else set()
    found = []
    for copy, rank in sorted(parts):
        names = _absent(usual[copy, rank], every, backward if learns else "")
        what = ", ".join(names[:NAMED])
        what += f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        found.append(f"rank {rank}" + (f" of copy {copy}" if several else "") + f" lacks {what}")
    more = len(found) - NAMED
    return "; ".join(found[:NAMED]) + (f"; and {counted(more, 'more rank')}" if more > 0 else "")


def _absent(
    done: frozenset[tuple[int, ...]], units: set[tuple[int, ...]], backward: str
) -> list[str]:
    """Return names of missing actions: of these units, or to go with another action."""
    forwards, backwards = _passes(done)
    wanted = forwards | backwards | {(one[1], *unit) for one in done for unit in units}
    found = [(unit, stage, "F") for stage, unit, _ in wanted - forwards]
    if backward:
        found += [(unit, stage, backward) for stage, unit, _ in wanted - backwards]
    return [f"{stage}{kind}{unit}" for unit, stage, kind in sorted(found)]
