"""Costs that are given but change nothing, because no action of a schedule pays them."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from debubble.core.actions import COPY_KINDS, Kind, kinds_of, pairs_of
from debubble.core.costs import COST_FIELDS, Costs
from debubble.core.embedding_and_head import COMPUTE_TIMES
from debubble.core.kind_relations import COST_KINDS, FUSED_KIND, RECOMPUTE_KINDS, SPLIT_KINDS
from debubble.core.kinds import FORWARD_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.validate import has


@dataclass(frozen=True)
class CostCondition:
    """The condition under which a cost changes anything."""

    there: Callable[[Schedule, Costs], bool]
    """Whether a schedule with these costs has it."""
    lack: str
    """A schedule without it, in words: ``"there are no optimizer steps"``."""
    option: str = ""
    """The option that adds it; empty where none does."""
    values: tuple[str, ...] = ()
    """Values of this option that do; empty for any."""

    @property
    def advice(self) -> str:
        """The words for a schedule without it, and the parameter that adds it in Python."""
        given = f"{self.option}={self.values[0]!r}" if self.values else self.option
        return "; give ".join(filter(None, (self.lack, given)))

    @property
    def typed_advice(self) -> str:
        """Words for a schedule without it, and the option of the command line that adds it."""
        flag = self.option and f"--{' '.join((self.option, *self.values[:1]))}"
        return "; give ".join(filter(None, (self.lack, flag)))


def _kinds(*kinds: Kind) -> Callable[[Schedule, Costs], bool]:
    return lambda schedule, _: has(schedule, kinds)


def _pairs(forwards: bool) -> Callable[[Schedule, Costs], bool]:
    """Return whether there are overlapped pairs, of two forwards or of a forward and a backward."""

    def there(schedule: Schedule, _: Costs) -> bool:
        second = pairs_of(schedule.actions) == 2
        kinds = kinds_of(schedule.actions[second])
        return bool(np.any(np.isin(kinds, FORWARD_KINDS) == forwards))

    return there


def _sum_of_parts(schedule: Schedule, costs: Costs) -> bool:
    """Return whether the time of some pair is not given as a whole."""
    both = ((False, costs.O), (True, costs.FF))
    return any(_pairs(forwards)(schedule, costs) and time is None for forwards, time in both) or (
        isinstance(costs.O, Mapping) and _pairs(forwards=False)(schedule, costs)
    )


def _attention(schedule: Schedule, costs: Costs) -> bool:
    sliced = schedule.slices > 1 and not schedule.exchange
    return sliced or costs.microbatch not in (None, 1.0)


def _halves(schedule: Schedule, costs: Costs) -> bool:
    # What attention grows with is in I alone.
    grows = costs.attention != 0 and _attention(schedule, costs)
    return costs.B is None or grows or has(schedule, SPLIT_KINDS)


def _whole(schedule: Schedule, costs: Costs) -> bool:
    return costs.I is None or costs.W is None or has(schedule, (FUSED_KIND,))


def _on_links(schedule: Schedule, costs: Costs) -> bool:
    return costs.message != 0 or any(target is not None for target in schedule.copy_targets)


def _carries(schedule: Schedule, _: Costs) -> bool:
    rows = schedule.placement.table
    return any(row[one] != row[other] for one, other in schedule.carries for row in rows)


_COPIES = CostCondition(
    _kinds(*COPY_KINDS), "there are no copies to the host", "offload", ("full",)
)
_RECOMPUTES = CostCondition(
    _kinds(*RECOMPUTE_KINDS), "nothing is recomputed", "recompute", ("full",)
)
_SPLIT = CostCondition(_halves, "backwards are whole, and B says their time")

NEEDS: dict[str, CostCondition] = {
    "I": _SPLIT,
    "W": _SPLIT,
    "B": CostCondition(_whole, "all backwards are in two halves, I and W"),
    "R": _RECOMPUTES,
    "O": CostCondition(_pairs(forwards=False), "no forward and backward overlap"),
    "FF": CostCondition(_pairs(forwards=True), "no two forwards overlap"),
    "overlap_factor": CostCondition(_sum_of_parts, "no overlapped pair has the sum of its parts"),
    "OPT": CostCondition(_kinds(*COST_KINDS["OPT"]), "there are no optimizer steps", "iterations"),
    "p2p_carry": CostCondition(
        _carries, "no stage carries anything to another rank", "carry", ("0:2",)
    ),
    "message": CostCondition(
        lambda _, costs: math.isfinite(costs.bandwidth), "no bandwidth of links is given"
    ),
    "bandwidth": CostCondition(_on_links, "nothing that is sent has a size (message)"),
    "attention": CostCondition(
        _attention, "sequences are not in slices of different work, nor of different lengths"
    ),
    "exchange": CostCondition(
        lambda schedule, _: schedule.exchange and schedule.slices > 1,
        "ranks do not exchange attention context",
    ),
    "unshard": CostCondition(
        _kinds(*COST_KINDS["unshard"]),
        "no weights are gathered from replicas",
        "sharding",
        ("fsdp",),
    ),
    "reduce_grad": CostCondition(
        _kinds(*COST_KINDS["reduce_grad"]), "no gradients are reduced among replicas", "sharding"
    ),
    "host_bandwidth": _COPIES,
    "host_link_shared_by": _COPIES,
    "offload_share": _COPIES,
    "recompute_kept": _RECOMPUTES,
    "kept_for_weight": CostCondition(
        _kinds(*SPLIT_KINDS), "backwards are whole, and free all at once"
    ),
}
"""Needs of costs, by name; the others always count."""


def unread_costs(schedule: Schedule, costs: Costs) -> list[tuple[str, str]]:
    """Return the costs that are given and change nothing of a schedule, each with the reason.

    Neither its times nor its memory depend on them.

    Examples
    --------
    >>> import debubble as db
    >>> schedule = db.make("1f1b", ranks=4, microbatches=8)
    >>> unread_costs(schedule, db.Costs(F=1, B=2, OPT=50))
    [('OPT', 'there are no optimizer steps; give iterations')]
    """
    default = Costs()
    given = [name for name in COST_FIELDS if getattr(costs, name) != getattr(default, name)]
    times = [name for name in given if name in COMPUTE_TIMES]
    # The one time that is given makes the others times of actions, not of ranks.
    counts = times if len(times) == 1 and schedule.chunks > 1 else []
    return [
        (name, NEEDS[name].advice)
        for name in given
        if name in NEEDS and name not in counts and not NEEDS[name].there(schedule, costs)
    ]


def unread_notes(
    schedules: Iterable[Schedule], costs: Costs, tried: Container[str] = ()
) -> list[str]:
    """Return a note for all costs that are given and change nothing of any of some schedules.

    Costs of what options add that were `tried` had their say.
    """
    found: dict[str, str] = {}
    for index, schedule in enumerate(schedules):
        here = dict(unread_costs(schedule, costs))
        found = here if index == 0 else {name: why for name, why in found.items() if name in here}
    together: dict[str, list[str]] = {}
    for name in found:
        if NEEDS[name].option not in tried:
            together.setdefault(NEEDS[name].typed_advice, []).append(name)
    return [f"{', '.join(names)} changes nothing: {why}" for why, names in together.items()]
