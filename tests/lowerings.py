"""Random lowerings, over the list of all, and random settings to lower in."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import debubble as db
from debubble.core.errors import ParameterError
from debubble.engine.memory import excess, memory_limits
from debubble.lowering.chain import LOWERINGS, values_of
from debubble.lowering.sharding import SHARDING_MODES
from debubble.lowering.transfers import TRANSFER_POLICIES

MORE = {"recompute": ["0"], "offload": ["0"], "transfers": TRANSFER_POLICIES,
        "sharding": SHARDING_MODES}  # fmt: skip
"""Texts of lowerings beside their examples, and beside the values that the playground offers."""

VALUES = {
    row.name: [
        row.type.read(row.flag, text)
        for text in dict.fromkeys(
            [row.example, *(row.on_page.values if row.on_page else ()), *MORE.get(row.name, ())]
        )
        if text
    ]
    for row in LOWERINGS
}
"""Values to try of every lowering."""

WHOLE = [row.name for row in LOWERINGS if not row.part_of]


class Case(NamedTuple):
    """Lowerings, and what they are added for."""

    lowering: dict[str, Any]
    costs: db.Costs
    memory: float | None

    @property
    def setting(self) -> dict[str, Any]:
        """Costs and memory as keywords."""
        return {"costs": self.costs, "memory": self.memory}


def cases(seed: str, count: int, *names: str) -> Iterator[Case]:
    """Random cases: what is named, and half of the other lowerings.

    Times are multiples of a quarter, so that sums are exact.
    """
    random = Random(seed)
    while count:
        wanted = [*names, *(name for name in WHOLE if random.random() < 0.4 or not names)]
        wanted = wanted if names else random.sample(wanted, random.choice([1, 1, 2, 3]))
        wanted += [row.name for row in LOWERINGS if row.part_of in wanted and random.random() < 0.5]
        lowering = {name: random.choice(VALUES[name]) for name in dict.fromkeys(wanted)}
        try:
            values_of(lowering)
        except ParameterError:
            continue
        count -= 1
        costs = db.Costs(
            F=random.choice([1, 2, 3]), I=random.choice([1, 3]), W=random.choice([1, 2]),
            p2p=random.choice([0, 0.5, 1]), host_bandwidth=random.choice([0.25, 0.5, 1, 4]),
            kept_for_weight=random.choice([1, 0.5]), recompute_kept=random.choice([0, 0, 0.25]),
            reduce_grad=1, unshard=0.5,
        )  # fmt: skip
        yield Case(lowering, costs, random.choice([None, 1.5, 2, 3, 4]))


def quality(
    schedule: db.Schedule, costs: db.Costs, memory: float | None, p2p_mode: Any
) -> tuple[float, float]:
    """How far a schedule is above the memory limit, and its makespan."""
    timeline = db.simulate(schedule, costs, p2p_mode)
    limits = memory_limits(memory, schedule.ranks)
    return excess(timeline.peak_activation, limits), timeline.makespan


def no_worse(found: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    """Whether one is nearer to the memory limit than another, or as near and no slower.

    Any is no worse than none.
    """
    if found is None or other is None:
        return other is None
    rounding = 1e-9
    nearer = found[0] < other[0] * (1 - rounding)
    return nearer or (
        found[0] <= other[0] * (1 + rounding) and found[1] <= other[1] * (1 + rounding)
    )
