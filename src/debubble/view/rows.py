"""Vertical layout of a rank's row: bars, transfers and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.view.bars import LOWER, WHOLE, Bars

Floats: TypeAlias = NDArray[np.floating[Any]]

_GAP = 1 / 15
_RIBBON = 0.14
_STRIP = 7 / 15
_TRANSFERS = 0.6


@dataclass(frozen=True)
class Rows:
    """Places in the row of a rank, whose middle is at y = rank, pointing down."""

    top: float
    height: float
    """Top and height of bars."""
    ribbon: float
    """Height of the band below the bars that tells iterations apart, 0 for none."""
    transfers: float
    transfers_height: float
    """Top and height of the row of transfers, whose upper half is sends; height 0 for none."""
    strip: float
    strip_height: float
    """Baseline and height of the memory strip; height 0 for none."""
    share: float
    """Height of a row in heights of its bars."""

    def extent(self, bars: Bars) -> tuple[Floats, Floats]:
        """Upper and lower edge of every bar."""
        top = bars.rank + self.top + np.where(bars.half == LOWER, self.height / 2, 0.0)
        return top, top + np.where(bars.half == WHOLE, self.height, self.height / 2)


def rows_of(*, iterations: bool, transfers: bool, memory: bool, label: float = 0.0) -> Rows:
    """Rows with what is asked for.

    `label` is the least height of either half of the row of transfers, in heights of a bar.
    """
    ribbon = _RIBBON if iterations else 0.0
    moving = max(_TRANSFERS, 2 * label) if transfers else 0.0
    strip = _STRIP if memory else 0.0
    pieces = 1 + (moving > 0) + (strip > 0)
    # A row of bars alone has more room around it.
    gap = _GAP if pieces > 1 else 2 / 21
    share = 1 + ribbon + moving + strip + (pieces + 1) * gap
    top = -0.5 + gap / share
    below = top + (1 + ribbon + gap) / share
    return Rows(
        top=top,
        height=1 / share,
        ribbon=ribbon / share,
        transfers=below,
        transfers_height=moving / share,
        strip=0.5 - gap / share if memory else 0.0,
        strip_height=strip / share,
        share=share,
    )
