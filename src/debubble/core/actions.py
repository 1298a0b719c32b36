"""Actions: one piece of work each, written as in PyTorch, packed into one integer each.

A schedule of ten million actions is an ``int64`` array, not ten million objects. The fields of
one packed action, from the lowest bit up:

=========== ==== =====================================================================
field       bits meaning
=========== ==== =====================================================================
kind        5    :class:`Kind`
pair        2    0 alone; of an overlapped group 1 first, 3 between, 2 last
stage       20   model stage, 0..S-1
microbatch  36   counted through all iterations: iteration k holds k·m .. (k+1)·m-1
=========== ==== =====================================================================

Where microbatches are cut into s slices, every slice counts as a microbatch of its own, a *unit*:
slice j of microbatch b is unit b·s + j. Text says ``0F3.1`` for slice 1 of microbatch 3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.errors import FormatError
from debubble.core.kinds import (
    COMPUTE_KINDS,
    COPY_KINDS,
    OF_RANK_KINDS,
    SHARDING_KINDS,
    TRANSFER_KINDS,
    VOCABULARY_KINDS,
    WHOLE_STAGE_KINDS,
    Kind,
)

__all__ = [
    "COMPUTE_KINDS", "COPY_KINDS", "KIND_MASK", "MAX_MICROBATCHES", "MAX_STAGES",
    "MICROBATCH_SHIFT", "PAIR_MASK", "PAIR_SHIFT", "SHARDING_KINDS", "STAGE_MASK", "STAGE_SHIFT",
    "TRANSFER_KINDS", "VOCABULARY_KINDS", "WHOLE_STAGE_KINDS", "Action", "Kind", "Program", "among",
    "cells", "computes", "kinds_of", "microbatches_of", "own_stages_of", "pack", "pairs_of",
    "parse_cell", "stages_of", "unpack",
]  # fmt: skip

PAIR_SHIFT = 5
STAGE_SHIFT = 7
MICROBATCH_SHIFT = 27
KIND_MASK = (1 << PAIR_SHIFT) - 1
PAIR_MASK = (1 << (STAGE_SHIFT - PAIR_SHIFT)) - 1
STAGE_MASK = (1 << (MICROBATCH_SHIFT - STAGE_SHIFT)) - 1
MAX_STAGES = STAGE_MASK + 1
MAX_MICROBATCHES = 1 << 31

Program = NDArray[np.int64]
"""The packed actions of one rank, in execution order."""


class Action(NamedTuple):
    """One piece of work: a stage, what is done there, and for which microbatch."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch}"

    def text(self, slices: int = 1) -> str:
        """Return the action as text for a number of slices: ``3I0``, or ``3I0.1``."""
        if slices == 1 or self.kind in WHOLE_STAGE_KINDS:
            return str(self)
        number, part = divmod(self.microbatch, slices)
        return f"{self.stage}{self.kind.name}{number}.{part}"

    @classmethod
    def parse(cls, text: str, slices: int = 1) -> Action:
        """Read ``<stage><kind><microbatch>``, such as ``3I0``; a FormatError for anything else.

        Where microbatches are cut into `slices`, the microbatch is followed by a dot and a slice.
        """
        match = _ACTION.fullmatch(text.strip())
        whole = match is None or slices <= 1 or Kind[match[2]] in WHOLE_STAGE_KINDS
        if match is None or (match[4] is None) != whole:
            form = "<stage><kind><microbatch>: 3F0"
            if slices > 1:
                form = "<stage><kind><microbatch>.<slice>: 3F0.1"
            raise FormatError(f"'{text}' is not an action; write {form}")
        stage, unit, part = int(match[1]), int(match[3]), int(match[4] or 0)
        if not whole:
            if part >= slices:
                raise FormatError(f"'{text}' is out of range; slices go to {slices - 1}")
            unit = unit * slices + part
        if stage >= MAX_STAGES or unit >= MAX_MICROBATCHES:
            raise FormatError(
                f"'{text}' is out of range; stages go to {MAX_STAGES - 1}, "
                f"microbatches to {MAX_MICROBATCHES // max(slices, 1) - 1}"
            )
        return cls(stage, Kind[match[2]], unit)


_NAMES = "|".join(sorted((kind.name for kind in Kind), key=len, reverse=True))
_ACTION = re.compile(rf"(\d{{1,9}})({_NAMES})(\d{{1,11}})(?:\.(\d{{1,9}}))?", re.ASCII)
_GROUP = re.compile(r"\(([^()]*;[^()]*)\)OVERLAP_F_B")


def pack(kind: Kind, stage: ArrayLike, microbatch: ArrayLike) -> Program:
    """Return packed actions of one kind; `stage` and `microbatch` broadcast against each other."""
    packed = _numbers(microbatch) << MICROBATCH_SHIFT
    place = stage if type(stage) is int else _numbers(stage)
    return packed | (place << STAGE_SHIFT | int(kind))


def _numbers(values: ArrayLike) -> NDArray[np.int64]:
    if isinstance(values, range):
        # As a sequence it would be read number by number.
        return np.arange(values.start, values.stop, values.step, dtype=np.int64)
    return np.atleast_1d(np.asarray(values, dtype=np.int64))


def unpack(packed: int) -> Action:
    """Return the action in one packed integer; its member in a pair is dropped."""
    code = int(packed)
    return Action(
        (code >> STAGE_SHIFT) & STAGE_MASK, Kind(code & KIND_MASK), code >> MICROBATCH_SHIFT
    )


def code_text(packed: int, slices: int = 1) -> str:
    """Return the text of a packed action, also of one of a kind that does not exist."""
    code = int(packed)
    kind, stage = code & KIND_MASK, (code >> STAGE_SHIFT) & STAGE_MASK
    microbatch = code >> MICROBATCH_SHIFT
    if kind >= len(Kind):
        return f"{stage}<kind {kind}>{microbatch}"
    return Action(stage, Kind(kind), microbatch).text(slices)


def kinds_of(packed: Program) -> NDArray[np.int64]:
    """Return the :class:`Kind` values of packed actions."""
    return packed & KIND_MASK


@cache
def _table(those: tuple[Kind, ...]) -> NDArray[np.bool_]:
    return np.isin(np.arange(KIND_MASK + 1), those)


def among(kinds: NDArray[np.integer], those: tuple[Kind, ...]) -> NDArray[np.bool_]:
    """Return a mask of the kinds that are among a few."""
    found: NDArray[np.bool_] = _table(those)[kinds]
    return found


def computes(kinds: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return whether kinds are among :data:`COMPUTE_KINDS`."""
    return among(kinds, COMPUTE_KINDS)


def pairs_of(packed: Program) -> NDArray[np.int64]:
    """Return 0 for actions that run alone; in an overlapped group 1 first, 3 between, 2 last."""
    return (packed >> PAIR_SHIFT) & PAIR_MASK


def begins_group(packed: Program) -> NDArray[np.bool_]:
    """Return whether actions run alone or are the first of an overlapped group."""
    return pairs_of(packed) <= 1


def ends_group(packed: Program) -> NDArray[np.bool_]:
    """Return whether actions run alone or are the last of an overlapped group."""
    last: NDArray[np.bool_] = pairs_of(packed) % 2 == 0
    return last


def group_bounds(packed: Program) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first position of each action's overlapped group and the one after its last.

    A group that lacks its first or last member goes to the next one, or to the end of all.
    """
    begins = np.concatenate([[0], np.flatnonzero(begins_group(packed))])
    ends = np.append(np.flatnonzero(ends_group(packed)) + 1, len(packed))
    here = np.arange(len(packed))
    begin = begins[np.searchsorted(begins, here, side="right") - 1]
    return begin, ends[np.searchsorted(ends, here, side="right")]


def stages_of(packed: Program) -> NDArray[np.int64]:
    """Return the stages of packed actions."""
    return (packed >> STAGE_SHIFT) & STAGE_MASK


def own_stages_of(packed: Program) -> NDArray[np.int64]:
    """Return the stages that packed actions belong to, −1 for those that belong to their rank."""
    return np.where(among(kinds_of(packed), OF_RANK_KINDS), -1, stages_of(packed))


def microbatches_of(packed: Program) -> NDArray[np.int64]:
    """Return the microbatches of packed actions."""
    return packed >> MICROBATCH_SHIFT


def parse_cell(text: str, slices: int = 1) -> list[int]:
    """Return packed actions of one cell of text: one action, or those of an overlapped group.

    `slices` are those of a microbatch, as in :meth:`Action.parse`.

    Examples
    --------
    >>> [str(unpack(code)) for code in parse_cell("(0F3;3B1)OVERLAP_F_B")]
    ['0F3', '3B1']
    >>> [str(unpack(code)) for code in parse_cell("(0F3;3I1;2W0)OVERLAP_F_B")]
    ['0F3', '3I1', '2W0']
    """
    text = text.strip()
    if not text.startswith("("):
        action = Action.parse(text, slices)
        return [int(pack(action.kind, action.stage, action.microbatch)[0])]
    match = _GROUP.fullmatch(text)
    if match is None:
        raise FormatError(f"'{text}' is not an overlapped group; write (0F3;3B1)OVERLAP_F_B")
    parts = match[1].split(";")
    codes = []
    for index, part in enumerate(parts):
        action = Action.parse(part, slices)
        member = 1 if index == 0 else 2 if index == len(parts) - 1 else 3
        code = int(pack(action.kind, action.stage, action.microbatch)[0])
        codes.append(code | member << PAIR_SHIFT)
    return codes


def cells(program: Program, slices: int = 1) -> list[str]:
    """Return the text of a program, one cell an action or overlapped group; reads back the same."""
    texts: list[str] = []
    group: list[str] = []
    for code, member in zip(program.tolist(), pairs_of(program).tolist(), strict=True):
        text = unpack(code).text(slices)
        if member == 0:
            texts.append(text)
            continue
        group.append(text)
        if member == 2:
            texts.append(cell_of(group))
            group = []
    return texts


def cell_of(texts: Sequence[str]) -> str:
    """Return the cell of an action, or of several that overlap, by their texts."""
    return texts[0] if len(texts) == 1 else f"({';'.join(texts)})OVERLAP_F_B"
