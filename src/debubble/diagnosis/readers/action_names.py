"""Actions by their names in traces: ``PP:0F3``, ``(0F3;3B1)OVERLAP_F_B``, ``0F3.1``, ``F3_s0``."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from debubble.core.kinds import CARRY_KINDS, Kind

PASSES = {"forward": Kind.F, "backward": Kind.B}
"""Kinds by the words of formats that know only whole passes."""

LIMIT = 1 << 20
"""Exclusive limit of the numbers of stages, microbatches and slices."""


class Named(NamedTuple):
    """Action parsed from a name."""

    kind: Kind
    stage: int
    microbatch: int
    slice: int


_KINDS = "|".join(sorted((kind.name for kind in Kind), key=len, reverse=True))
_PREFIX = re.compile(r"[A-Z]+:\s*", re.ASCII)
_ACTION = re.compile(rf"(\d{{1,7}})({_KINDS})(?:(\d{{1,7}})(?:\.(\d{{1,7}}))?)?", re.ASCII)
_CARRIED = frozenset(CARRY_KINDS)
_OLDER = re.compile(r"([FBIW])(\d{1,7})_s(\d{1,7})", re.ASCII)
_PAIR = re.compile(r"\(([^()]{1,200})\)OVERLAP_F_B")


@functools.lru_cache(maxsize=1 << 16)
def actions_named(text: str, carried: bool = False) -> tuple[Named, ...]:
    """Parse the name of a range: one action, several for an overlapped pair, or none.

    Transfers of what stages carry to others than the next are known only if `carried`: most formats
    have no place for them.

    Examples
    --------
    >>> [f"{a.stage}{a.kind.name}{a.microbatch}" for a in actions_named("PP:(0F3;3B1)OVERLAP_F_B")]
    ['0F3', '3B1']
    >>> actions_named("PP:0UNSHARD"), actions_named("aten::mm")
    ((Named(kind=<Kind.UNSHARD: 13>, stage=0, microbatch=0, slice=0),), ())
    """
    prefix = _PREFIX.match(text)
    text = text[prefix.end() if prefix else 0 :].strip()
    pair = _PAIR.fullmatch(text)
    found = [_action(part.strip()) for part in pair[1].split(";")] if pair else [_action(text)]
    if not all(found) or (not carried and any(one and one.kind in _CARRIED for one in found)):
        return ()
    return tuple(one for one in found if one is not None)


def _action(text: str) -> Named | None:
    match = _ACTION.fullmatch(text)
    if match is not None:
        numbers = int(match[1]), int(match[3] or 0), int(match[4] or 0)
        kind = Kind[match[2]]
    else:
        match = _OLDER.fullmatch(text)
        if match is None:
            return None
        numbers, kind = (int(match[3]), int(match[2]), 0), Kind[match[1]]
    return Named(kind, *numbers) if max(numbers) < LIMIT else None
