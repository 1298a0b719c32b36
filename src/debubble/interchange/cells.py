"""Programs as cells of text, fast enough for millions, and bounds on the sizes in files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np

from debubble.core.actions import (
    MAX_MICROBATCHES,
    MAX_STAGES,
    MICROBATCH_SHIFT,
    STAGE_SHIFT,
    WHOLE_STAGE_KINDS,
    Kind,
    Program,
    parse_cell,
)
from debubble.core.errors import FormatError
from debubble.interchange.text import plain, shown

MAX_BYTES = 256 << 20
"""Most bytes of a schedule file."""

MAX_ACTIONS = 20_000_000
"""Most actions in a schedule file."""

MAX_RANKS = 4096
"""Most ranks of a schedule file."""

SPARE = 1 << 16
"""Actions that may be missing in any file, so that small incomplete ones can be checked."""

_LONGEST = 64
_KINDS = {kind.name: int(kind) for kind in Kind}
_ALONE = re.compile(r"([0-9]{1,9})([A-Z_]+)([0-9]{1,10})(?:\.([0-9]{1,9}))?")


def read_cells(texts: Iterable[object], where: Callable[[int], str], slices: int = 1) -> Program:
    """Pack the actions of a program's cells, one for each action or overlapped pair.

    `where` names the place of a cell in messages, given its index; `slices` are those of a
    microbatch. Raises FormatError for all else than an action or a pair, even by one character.
    """
    codes: list[int] = []
    add = codes.append
    match, kind_of = _ALONE.fullmatch, _KINDS.get
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise FormatError(
                f"{where(index)}: {shown(text)} is not an action; write text such as 3F0"
            )
        # Nearly every cell is a plain action, which is packed here; the parser of the library
        # reads the others, and has the messages.
        found = match(text)
        if found is not None:
            stage, kind, microbatch = int(found[1]), kind_of(found[2]), int(found[3])
            if slices > 1 and kind not in WHOLE_STAGE_KINDS:
                part = int(found[4] or slices)
                microbatch = microbatch * slices + part if part < slices else MAX_MICROBATCHES
            elif found[4] is not None:
                kind = None
            if kind is not None and stage < MAX_STAGES and microbatch < MAX_MICROBATCHES:
                add(microbatch << MICROBATCH_SHIFT | stage << STAGE_SHIFT | kind)
                continue
        codes.extend(_parse(text, where(index), slices))
    return np.array(codes, dtype=np.int64)


def _parse(text: str, where: str, slices: int) -> list[int]:
    if len(text) > _LONGEST or not text.isprintable():
        raise FormatError(
            f"{where}: '{plain(text)}' is not an action; write <stage><kind><microbatch>: 3F0"
        )
    try:
        return parse_cell(text, slices)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None


def check_size(actions: int, stages: int, units: int, where: str) -> None:
    """Refuse a file whose sizes are out of all proportion to its actions.

    Every stage runs at least one action for every microbatch, so that a file with few actions and
    billions of microbatches is broken; computing with its sizes would take memory without bound.
    """
    if actions > MAX_ACTIONS:
        raise FormatError(f"{where}: {actions:,} actions; the limit for files is {MAX_ACTIONS:,}")
    if stages * units > 4 * actions + SPARE:
        raise FormatError(
            f"{where}: {actions:,} actions cannot be a schedule of {stages:,} stages and "
            f"{units:,} microbatches; correct the numbers"
        )
