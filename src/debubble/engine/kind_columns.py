"""The table of kinds as numbers, for the kernel that compiles programs.

Every number follows from a row of :data:`debubble.core.kinds.KINDS`. The kernel looks at one need
of a kind that may be of another rank, the one of a neighbouring stage; what else a kind waits for
either stands before it in the program of its rank, which is checked by bits, or is rare.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from debubble.core.carries import WAYS
from debubble.core.kind_fields import always
from debubble.core.kind_relations import PASS_KINDS
from debubble.core.kinds import (
    FORWARD_KINDS,
    KINDS,
    TIMED_KINDS,
    WAIT_KINDS,
    WORK_KINDS,
    Kind,
    KindSpec,
    Need,
    Of,
    Per,
    Stream,
    Time,
)
from debubble.core.schedule import Schedule
from debubble.engine.kernels import layout

KIND_NUMBERS = 32
"""Kinds that five bits of an action can name."""

_SORTS = {
    (Stream.COMPUTE, Per.UNIT): layout.WORK,
    (Stream.COMPUTE, Per.SHARD): layout.SHARD,
    (Stream.COMPUTE, Per.RANK_STEP): layout.STEP,
    (Stream.TRANSFER, Per.UNIT): layout.TRANSFER,
    (Stream.COPY, Per.UNIT): layout.COPY,
    (Stream.COLLECTIVE, Per.STAGE): layout.COLLECTIVE,
    (Stream.COLLECTIVE, Per.STAGE_STEP): layout.COLLECTIVE,
}
"""Branches of the kernel for the kinds of a stream."""


def _sort(spec: KindSpec) -> int:
    return layout.WAIT if spec.kind in WAIT_KINDS else _SORTS[spec.stream, spec.per]


_RESULTS = tuple(
    dict.fromkeys(
        (need.kinds, -need.stage)
        for spec in KINDS
        for need in spec.needs
        if need.stage and spec.stream is Stream.COMPUTE
    )
)
"""Kinds whose results go to a neighbouring stage, and the step to it."""

_ONCE = tuple(spec.kind for spec in KINDS if spec.per in (Per.UNIT, Per.SHARD))
_BITS = {
    kind: 1 << number
    for number, kind in enumerate(sorted(_ONCE, key=lambda kind: (kind not in WORK_KINDS, kind)))
}
"""The bit of every kind that a (stage, microbatch) has at most once; work is in the lowest."""

_CONDITIONS = tuple(need.when for spec in KINDS for need in spec.needs if need.when is not always)


def kind_columns(schedule: Schedule) -> NDArray[np.int64]:
    """Return the needs of each kind as columns: column c of kind k is at ``k * WIDTH + c``."""
    return _columns_where(tuple(condition(schedule) for condition in _CONDITIONS))


@lru_cache
def _columns_where(holds: tuple[bool, ...]) -> NDArray[np.int64]:
    told = iter(holds)
    needs = [[need for need in spec.needs if need.when is always or next(told)] for spec in KINDS]
    table = np.zeros((KIND_NUMBERS, layout.WIDTH), dtype=np.int64)
    table[:, layout.SORT] = layout.UNKNOWN
    for spec in KINDS:
        for column, value in _row(spec, needs).items():
            table[spec.kind, column] = value
    flat = table.ravel()
    flat.setflags(write=False)
    return flat


def _row(spec: KindSpec, needs: list[list[Need]]) -> dict[int, int]:
    kind, own = spec.kind, needs[spec.kind]
    row = {layout.SORT: _sort(spec), layout.BIT: _BITS.get(kind, 0)}
    here = [need for need in own if need.of is Of.STAGE and not need.stage and not need.slice]
    required = [need for need in here if not need.optional]
    assert len(required) <= 1, f"{kind.name} needs several results of its own stage"
    before = _bits(kind for need in required for kind in need.kinds)
    row[layout.BEFORE] = before or layout.ALWAYS
    row[layout.NOT] = row[layout.BIT] | _bits((*spec.instead_of, *_users(kind, needs)))
    for need in own:
        if need.of is Of.STAGE and need.stage:
            row[layout.TOWARDS] = need.stage
            if spec.stream is Stream.COMPUTE:
                row[layout.RESULT] = _result(need.kinds)
                row[layout.THROUGH] = _bits([need.through] if need.through is not None else [])
        elif need.of is Of.STAGE and need.slice:
            row[layout.SLICE] = need.slice
            row[layout.SLICE_BITS] = _bits(need.kinds)
        elif need.of in WAYS:
            row[layout.CARRY_FROM] = 1 + WAYS[need.of]
            if spec.stream is Stream.COMPUTE:
                row[layout.CARRY_RESULT] = _carried(need)
                row[layout.CARRY_THROUGH] = _bits([] if need.through is None else [need.through])
        elif need.of is Of.EVERY_SHARD:
            row[layout.EDGE] = 1
        elif need.of is Of.ITERATION:
            row[layout.REDUCES] = 1
        if need.of is Of.LATEST:
            row[layout.WEIGHTS] = 1
        back = [kind for kind in need.kinds if KINDS[kind].stream is Stream.COPY]
        if back and kind in WORK_KINDS:
            row[layout.BACK] = _bits(back)
            row[layout.AWAY] = _bits(
                kind for there in back for n in needs[there] for kind in n.kinds
            )
    return row | _gives(spec, needs)


def _gives(spec: KindSpec, needs: list[list[Need]]) -> dict[int, int]:
    """Return the columns for the use of a kind by others, and for its cost."""
    kind = spec.kind
    row: dict[int, int] = {}
    if spec.other_end is not None:
        sender, receiver = (kind, spec.other_end) if spec.sends else (spec.other_end, kind)
        row[layout.SENDS] = int(spec.sends)
        need = needs[receiver][0]
        if need.of in WAYS:
            row[layout.RESULT] = _carried(need)
            if spec.sends:
                row[layout.CARRY_TO] = 2 - WAYS[need.of]
        else:
            row[layout.RESULT] = _result(needs[sender][0].kinds)
            row[layout.TOWARDS] = need.stage * (-1 if spec.sends else 1)
    for number, (made_by, step) in enumerate(_RESULTS):
        if kind in made_by:
            row[layout.GIVES] = step
            row[layout.RESULT] = number
    if kind in WORK_KINDS:
        row[layout.COST] = TIMED_KINDS.index(kind)
        row[layout.HALF] = 0 if kind not in PASS_KINDS else 1 if kind in FORWARD_KINDS else 2
    elif spec.time is not Time.NONE:
        row[layout.COST] = 1
    for other in KINDS:
        for need in needs[other.kind]:
            if need.of in WAYS and kind in need.kinds and spec.stream is Stream.COMPUTE:
                row[layout.CARRY_TO] = 2 - WAYS[need.of]
            if need.of is Of.ITERATION and kind in need.kinds:
                row[layout.REDUCES] = row[layout.COMPLETES] = 1
            if need.last_stage_only and kind in need.kinds:
                row[layout.GIVEN] = 1
    return row


def _users(kind: Kind, needs: list[list[Need]]) -> list[Kind]:
    """Kinds of the same (stage, microbatch) that wait for a kind where it is there.

    What they wait for in turn has to come before them, too.
    """
    found = [
        other.kind
        for other in KINDS
        for need in needs[other.kind]
        if need.of is Of.STAGE and need.optional and kind in need.kinds
    ]
    for other in KINDS:
        copies = other.stream is Stream.COPY and KINDS[kind].stream is Stream.COPY
        if copies and any(kind in need.kinds for need in needs[other.kind]):
            found += _users(other.kind, needs)
    return found


def _carried(need: Need) -> int:
    """Return the number of a carried result, behind those that go to neighbors."""
    return len(_RESULTS) + 1 - WAYS[need.of]


def _result(kinds: tuple[Kind, ...]) -> int:
    return next(i for i, (made_by, _) in enumerate(_RESULTS) if set(kinds) <= set(made_by))


def _bits(kinds: Iterable[Kind]) -> int:
    return sum({_BITS[kind] for kind in kinds})
