"""Policies of the list scheduler: which to try first, and the steps in which they vary."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import TypeAlias

import numpy as np

from debubble.core.placement import Placement
from debubble.listing.pass_state import ATTEMPTS, MOST_DRAWS, Draws
from debubble.listing.workload import TOLERANCE

Policy: TypeAlias = tuple[float, ...]

LEVELS: dict[str, Policy] = {
    "forward stretch": (-99, 0, 0.5, 1, 1.5, 2, 3, 4),
    "backward stretch": (0, 0.5, 1, 1.5, 2, 3),
    "turn": (-4, -1, 0, 0.5, 1, 1.5, 2, 3, 4),
    "cap rounding": (-0.25, -0.1, 0, 0.1, 0.25, 0.4, 99),
    "cap delay": (0, 0.25, 0.5, 0.75, 1, 1.5, 2),
    "gap": (0, 0.3, 0.4, 0.5, 0.6, 0.75, 1),
    "patience": (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3),
}
"""Steps in which the numbers of a policy vary; turn, delay and patience in periods T.

A forward stretch of −99 runs any backward before a forward, a cap rounding of 99 lifts the caps."""

ONE_STAGE: tuple[Policy, ...] = (
    (4, 2, 0, 0.4, 2, 0.6, 0.02),
    (-1, 5.93, 1, -0.07, 0, 0.29, 0.29),
    (2, 3, 0, 99, 0, 0.3, 0.1),
    (-99, -235.26, -1.25, -0.36, 1.1, 0.97, 0.1),
    (0.11, 4.42, -1.51, 0.78, 1.79, 0.52, 0),
    (-1.99, 1.46, -4.09, -0.47, 0, 0.04, 0),
    (-99, 0, -0.1, -0.29, -0.14, 0, 0.2),
    (4.39, 0.43, -1.4, 0.29, 0.85, 0.57, 0.09),
    (-99, -10.38, 2.67, -0.12, 0.11, 0.4, 0.61),
    (3, 3, 0.5, -0.1, 0.25, 0.6, 0.15),
    (1.77, 2.21, -0.57, 99, 1.69, 0.26, 0.19),
    (-99, -59.1, -0.11, 0.98, 0.85, 0.53, 0.16),
    (2, 3, 0, 0.1, 0.75, 0, 0),
    (-99, -2481.18, -0.98, -0.89, 0.12, 0.42, 0.06),
    (0.87, 1.43, 0.79, 99, 0.38, 0.99, 0.09),
    (3.09, 2.78, -3.63, 99, 0.08, 0.66, 0.24),
    (0.92, 2.86, -0.53, -0.43, 1.94, 0.45, 0.11),
    (-99, -2.99, 1.72, 1.39, 0, 0.87, 0.07),
    (-99, -5185.62, 0.01, -0.41, 0, 0, 0.02),
    (-99, -1.12, -3.74, 99, 0.11, 0.89, 0.02),
)
SEVERAL_STAGES: tuple[Policy, ...] = (
    (4, 2, 0, 0.4, 2, 0.6, 0.02),
    (-0.03, 2.24, 6.6, -0.05, 0.54, 0.49, 0.12),
    (1.5, 3, 3, 0, 0.25, 0.4, 0.15),
    (-99, -2.44, 0.47, 0.22, 0.91, 0.21, 0.05),
    (2, 2, 0.5, 0.1, 0.5, 1, 0.05),
    (2, 3, 0, 99, 0, 0.3, 0.1),
    (0.71, 2.41, 3.54, -0.06, 0.39, 0.75, 0.11),
    (1.15, 1.28, -0.3, 0.02, 0.67, 0.6, 0.04),
    (1.5, 2, 0.5, 0.1, 0.5, 0.75, 0.3),
    (-5.37, 1.46, 3.91, -0.01, 0.34, 0.08, 0.08),
    (0.32, 2.29, -0.18, 0.39, 1.01, 0.4, 0.04),
    (1.86, 2.45, 0.2, 0.48, 0.79, 0.64, 0.27),
    (1.62, 2.18, -0.07, 0.33, 0.85, 0.96, 0.11),
    (1.17, 1.08, 0.68, 0.01, 1.21, 0.82, 0.08),
    (-0.52, 1.22, 2.24, 0.01, 0.77, 0.82, 0.06),
    (2.92, 2.61, -1.33, 99, 0, 0.74, 0.13),
    (1.28, 2.22, 0.17, -0.11, 0.33, 0.26, 0.16),
    (-99, -139.17, 0.08, 0.09, 0.37, 0.77, 0.05),
    (1.73, 1.8, 0.94, 0.49, 0.53, 1.05, 0.32),
    (1.72, 2.95, -1.28, -0.06, 0, 0.83, 0.15),
    (-16.95, 28.18, 0.08, 0.22, 1, 0.63, 0.01),
    (1.29, 1.9, 0.01, -0.07, 0.53, 0.07, 0.22),
    (5.75, 0.42, -0.65, 0.64, 0.05, 0.38, 0.12),
    (1.81, 2.48, -2.39, 0.11, 0.35, 0.46, 0.1),
    (1.5, 1.5, 0.5, 0, 0.5, 0.4, 0.15),
    (0.13, 0.6, 4.52, 0.41, 0.6, 0.88, 0.3),
    (-10, 0.24, 16.35, 0.07, 0.16, 0.62, 0.1),
    (0, 3, 4, 0, 0.75, 0.6, 0.1),
)

ROOMY_WAVE: tuple[Policy, ...] = (
    (1.5, 3, 3, 0, 0.25, 0.4, 0.125),
    (2, 2.14, -0.3, 0.02, 0.67, 0.6, 0.03),
    (2, 3, 0.25, 0, 0, 0.625, 0.15),
    (1, 2.95, -0.39, -0.08, 0, 0.5, 0.2),
    (3, 2.48, 0, 0.11, 0.35, 0.551, 0.1),
    (1.29, 1.9, 0.01, -0.07, 0.5, 0.285, 0.2),
    (2.5, 2.25, 3, 0, 0.25, 0.5, 0.15),
    (2, 3, 0.25, 0.25, 0, 0.3, 0.1),
    (2, 2.5, 0.25, 0.1, 0.5, 0.875, 0.15),
    (3, 2.41, 3.54, 0.25, 0.25, 0.675, 0.11),
    (1.5, 2.25, 0.5, -0.25, 0.5, 0.4, 0.15),
    (1, 2.18, -0.07, 0.33, 0.675, 0.78, 0.105),
)
HALF_WAVE: tuple[Policy, ...] = (
    (2, 3, 2, 0, 0.25, 0.45, 0.125),
    (1.5, 1.5, 1, -0.1, 0.5, 0.625, 0.075),
    (3, 2.48, 0, 0.11, 0.35, 0.551, 0.1),
    (1.15, 0.89, -4, 0.25, 1.542, 0.6, 0.15),
    (2, 2, 0.5, 0.1, 0.375, 1, 0.125),
    (0.5, 3, 3, 0.045, 0.17, 0.08, 0.05),
    (1.81, 3, -2.39, 0.11, 0.35, 0.46, 0.1),
    (3, 1.5, 0.25, 0.1, 0.5, 1, 0.1),
    (2, 3, 0.5, 0.1, 0.5, 0.5, 0.05),
    (1.5, 3, 0.5, 0.1, 0.5, 0.838, 0.3),
    (1.655, 2.48, -2.39, 0.255, 0.35, 0.46, 0.1),
    (1.5, 2.25, 3, 0, 0.5, 0.35, 0.15),
    (3, 2, 0.5, 0.25, 0.25, 0.738, 0.062),
    (2, 2.5, 0.25, 0.1, 0.5, 0.875, 0.15),
)

ROOMY = 0.95
HALF = 0.7
"""Microbatches in flight, as a share of the ranks: from the first on memory is roomy; up to the
second, and from half of the ranks and one more on, it is that of V-Half."""


def few_policies(placement: Placement, in_flight: float) -> tuple[Policy, ...]:
    """Return a few policies that are about as good as a long search, where there are any.

    Greedy covers, as in :func:`first_policies`, of 1224 problems on a V of 4 to 24 ranks with many
    microbatches: of those with roomy memory, and of those with about half of it. `in_flight` is the
    number of microbatches whose activations every rank can hold.
    """
    homes, ranks = placement.ranks_of_stages, placement.ranks
    in_flight *= 1 + TOLERANCE
    if placement.chunks != 2 or (homes != homes[::-1]).any():
        return ()
    if in_flight >= ROOMY * ranks:
        return ROOMY_WAVE
    return HALF_WAVE if ranks // 2 + 1 <= in_flight <= HALF * ranks else ()


def first_policies(placement: Placement) -> tuple[Policy, ...]:
    """Policies to try first, most useful ones first.

    Two greedy covers, so that every prefix is about as good as its length allows: of 170 problems
    with one stage per rank, 2 to 32 ranks, and of 279 on a V of 2 to 16 ranks; even and uneven
    costs, tight and loose memory, both objectives. What was covered is the best of several hundred
    policies, random ones and those that a search found for each problem. The one with zero as its
    gap and a backward stretch of zero was added for 32 ranks in the memory of ZB-2p.
    """
    return ONE_STAGE if placement.chunks == 1 else SEVERAL_STAGES


@lru_cache(maxsize=8)
def draws_for(most: int) -> Draws:
    """Return what variations are drawn from, the same every time, for so many policies."""
    random = Random(0)
    values = [level for levels in LEVELS.values() for level in levels]
    begins = [*accumulate(map(len, LEVELS.values()), initial=0)]
    # Of four variations about one is new.
    numbers = [random.random() for _ in range(4 * MOST_DRAWS * (most + ATTEMPTS))]
    return Draws(np.array(values, dtype=np.float64), np.array(begins), np.array(numbers))
