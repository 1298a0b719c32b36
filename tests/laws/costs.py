"""Values of every cost, from its shape, and what a simulation with it puts out."""

from __future__ import annotations

from itertools import product
from typing import Any

import debubble as db
from debubble.analysis.summary import summary
from debubble.core.cost_fields import CostField
from debubble.core.costs import COST_FIELDS
from debubble.core.kinds import Kind
from tests.conftest import EXPLORES
from tests.kinds import schedule_with
from tests.pairs import sorts
from tests.strategies import ENTRIES

PLAIN = {"F": 1.0, "I": 1.25, "W": 0.75, "R": 1.5, "p2p": 0.25, "activation": 2.0}
"""Costs beside the one that is looked at."""

MORE = {"bandwidth": {"message": 1.0}, "message": {"bandwidth": 2.0},
        "overlap_factor": {"O": None}, "attention": {"microbatch": {"default": 1.0, 0: 1.5}},
        "host_link_shared_by": {"host_bandwidth": 2.0}}  # fmt: skip
"""What else a cost needs to change anything."""


def two(spec: CostField) -> tuple[Any, Any]:
    """Two values of a cost."""
    if spec.shape == "part":
        return {"F": 0.25, "B": 0.5, "activation": 0.5}, {"F": 0.5, "B": 1.0, "activation": 0.5}
    if spec.shape == "sharing":
        return 1, 2
    if spec.shape == "microbatch":
        return 1.0, {"default": 1.0, 1: 1.5}
    return (0.25, 0.5) if spec.share else (0.5, 0.75)


def costs_with(spec: CostField, value: Any, **others: Any) -> db.Costs:
    """Costs with a value of one of them, and others."""
    return db.Costs(**PLAIN | MORE.get(spec.name, {}) | others | {spec.name: value})


def outputs(schedule: db.Schedule, costs: db.Costs) -> dict[str, Any]:
    """What a report has, as far as it is computed; its words say what costs there are."""
    data = summary(db.simulate(schedule, costs))
    return {key: value for key, value in data.items() if key not in ("conventions", "units")}


def small(name: str, costs: db.Costs | None = None) -> db.Schedule:
    """A small schedule of a name; with what it computes from costs left to these."""
    for ranks, microbatches in product((2, 3, 4), range(3, 13)):
        try:
            return db.make(name, ranks=ranks, microbatches=microbatches, costs=costs)
        except db.ParameterError:
            continue
    raise AssertionError(f"no small {name}")


def with_all_kinds() -> list[db.Schedule]:
    """Schedules that have, together, every kind of action, pair and slice."""
    made = [schedule_with(kind) for kind in Kind]
    return made + [small(entry.name, db.Costs(**PLAIN)) for entry in ENTRIES]


def same_everywhere(spec: CostField, value: float, schedule: db.Schedule) -> list[Any]:
    """Other spellings of one number for all: a list, a mapping, a matrix."""
    sizes = {
        "stage": schedule.stages, "pair": schedule.stages, "rank": schedule.ranks,
        "microbatch": schedule.microbatches, "boundary": schedule.stages - 1,
    }  # fmt: skip
    if spec.shape == "link":
        ranks = range(schedule.ranks)
        return [[[0.0 if a == b else value for b in ranks] for a in ranks]]
    if spec.shape not in sizes:
        return []
    return [[value] * sizes[spec.shape], {"default": value}, {"default": value, 0: value}]


FIELDS = list(COST_FIELDS.values())
"""Every cost."""


def fields_for(name: str) -> list[CostField]:
    """The costs to try with a schedule: each comes with every sort of schedules.

    Of a sort with several families each has a share, a third where there are three; all to explore.
    """
    families = next(some for some in sorts().values() if name in [one.name for one in some])
    shares = 1 if EXPLORES else min(len(families), 3)
    return FIELDS[[one.name for one in families].index(name) % shares :: shares]
