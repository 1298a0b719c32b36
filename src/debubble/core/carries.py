"""Skip connections: what a stage hands to a later one that is not its neighbor.

A schedule has pairs (from stage, to stage), at most one that begins and one that ends at every
stage, so that a transfer's kind and stage name its other end.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import KINDS, Of

Carries: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs (from stage, to stage), sorted."""

TO, FROM = 0, 1
"""Rows of :func:`carry_steps`."""

WAYS = {Of.CARRIED_TO: TO, Of.CARRIED_FROM: FROM}
"""The row of :func:`carry_steps` that leads from a consumer to its producer."""


def carry_steps(carries: Carries, stages: int) -> NDArray[np.int64]:
    """Return offsets to the stage that each carries to, and to the one that carries to it.

    Shape ``(2, stages)``, 0 where there is none.

    Examples
    --------
    >>> carry_steps(((0, 2),), 4).tolist()
    [[2, 0, 0, 0], [0, 0, -2, 0]]
    """
    steps = np.zeros((2, stages), dtype=np.int64)
    for source, target in carries:
        steps[TO, source] = target - source
        steps[FROM, target] = source - target
    return steps


def offsets_of(carries: Carries, stages: int) -> NDArray[np.int64]:
    """Return stage offsets of the other end of transfers, by kind and stage; 0 for other kinds."""
    found = np.zeros((len(KINDS), stages), dtype=np.int64)
    steps = carry_steps(carries, stages)
    for spec in KINDS:
        found[spec.kind] = spec.away
        if spec.other_end is not None and not spec.away:
            receiver = spec if spec.receives else KINDS[spec.other_end]
            way = WAYS[receiver.needs[0].of]
            found[spec.kind] = steps[way if spec.receives else 1 - way]
    return found
