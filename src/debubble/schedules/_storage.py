"""Recomputes and offloads in schedules that are computed from costs and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import Program
from debubble.core.cost_table import CostTable
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.placement import Placement
from debubble.core.runtimes import as_run
from debubble.core.schedule import Schedule
from debubble.engine.memory import measure_memory, memory_limits
from debubble.lowering.best_lowering import Setting
from debubble.lowering.chain import lower, values_of
from debubble.lowering.offload import COPIES, check_host, eased
from debubble.lowering.recompute import Stages, add_recompute, chosen_stages, place_of
from debubble.schedules._entry import Entry


@dataclass(frozen=True, eq=False)
class Storage:
    """Stages that do not keep their activations until the backward."""

    recompute: NDArray[np.bool_]
    """Whether each stage recomputes its forward; shape ``(stages,)``."""
    offload: NDArray[np.bool_]
    """Whether each stage keeps its activation on the host; shape ``(stages,)``."""
    late: bool = False
    """Whether recomputes wait for the gradient."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Costs and memory as list scheduling takes them."""

    table: CostTable
    """Costs of every stage and link; of what is offloaded, as if it was recomputed in no time."""
    recompute: NDArray[np.bool_] | None
    """Stages that recompute in this sense, None for none."""
    late: bool
    """Whether recomputes wait for the gradient."""

    @classmethod
    def of(cls, placement: Placement, costs: Costs | None, storage: Storage | None) -> Terms:
        """Return the terms for costs, and what is stored."""
        table = (costs or Costs()).resolve(placement)
        if storage is None:
            return cls(table, None, False)
        if storage.recompute.any():
            table = as_run(table, storage.recompute)
        away = storage.offload
        if away.any():
            table = eased(table, storage.recompute, away)
        return cls(table, storage.recompute | away, storage.late)

    @property
    def stored(self) -> NDArray[np.float64]:
        """Memory that the forward of every stage leaves until its backward, shape ``(stages,)``."""
        if self.recompute is None:
            return self.table.activation
        return np.where(self.recompute, self.table.checkpoint, self.table.activation)

    def limit(self, count: float) -> float:
        """Return the memory for `count` forwards in flight on a rank while one backward runs."""
        stored = self.stored
        return count * float(stored.max()) + float((self.table.activation - stored).max())

    def limit_of(self, count: float, order: Sequence[Program], microbatches: int) -> float:
        """Return the memory for `count` forwards, or with recomputes that of a published schedule.

        That holds more than its forwards in flight: activations that are back stay for W.
        """
        if self.recompute is None:
            return self.limit(count)
        made = Schedule.from_programs("order", self.table.placement, microbatches, order)
        made = add_recompute(made, np.flatnonzero(self.recompute).tolist())
        return float(measure_memory(made, self.table).peak.max())

    def schedule(
        self,
        microbatches: int,
        memory: ArrayLike,
        objective: str,
        published: Iterable[Sequence[Program]],
    ) -> list[Program]:
        """Return the best schedule that list scheduling finds, or one of the published ones."""
        from debubble import listing

        return listing.schedule(
            self.table.placement, self.table, microbatches, memory, objective=objective,
            recompute=self.recompute, late=self.late, published=published,
        )  # fmt: skip


def named_by(
    description: Callable[[], None], order: Callable[..., list[Program]]
) -> Callable[..., list[Program]]:
    """Give a function the name and docstring of another one, which does nothing."""
    order.__name__, order.__doc__ = description.__name__, description.__doc__
    return order


def stored_less(
    build: Callable[[SimpleNamespace], Schedule],
    entry: Entry,
    case: SimpleNamespace,
    lowering: Mapping[str, Any],
    setting: Setting,
) -> Schedule:
    """Return a schedule with lowerings that uses the memory these free, where it can.

    `build` makes the schedule of a case without them; `case` has all parameters of the entry, and
    `lowering` and `setting` are those of :func:`debubble.lowering.chain.lower`, which is all that
    happens to a schedule that depends on neither.
    """

    def lowered(case: SimpleNamespace) -> Schedule:
        return lower(build(case), **lowering, **setting._asdict())

    values = values_of(lowering)
    recompute, offload = values["recompute"], values["offload"]
    knows = "storage" in entry.parameters and not getattr(case, "published", False)
    # Schedules that know of recomputes take them for all microbatches of a stage.
    if not knows or values["recompute_cap"] is not None or recompute is offload is None:
        return lowered(case)
    costs, memory, _ = setting
    placement = entry.placement(case.ranks, case.chunks)
    nothing = np.zeros(placement.stages, dtype=bool)

    def chosen(stages: Stages | None, name: str) -> NDArray[np.bool_]:
        return nothing if stages is None else chosen_stages(stages, placement.stages, name)

    again, away = chosen(recompute, "recompute"), chosen(offload, "offload")
    late = place_of(recompute, values["recompute_at"], costs) == "with-backward"
    only_recompute = Storage(again, nothing, late)
    case.storage = only_recompute
    limits = memory_limits(memory, placement.ranks)
    if not away.any() or limits is None:
        return lowered(case)
    check_host(costs or Costs())
    # Copies under way need room that list scheduling knows nothing of: several amounts are tried,
    # in addition to the schedule that needs no copies.
    table = (costs or Costs()).resolve(placement)
    most = np.zeros(placement.ranks)
    np.maximum.at(most, placement.ranks_of_stages, np.where(away, table.moved(again), 0.0))
    found: list[Schedule] = []
    refused: list[ParameterError] = []
    for count in (*COPIES, None):
        case.memory, case.storage = memory, only_recompute
        if count is not None:
            case.memory, case.storage = limits - count * most, replace(only_recompute, offload=away)
        try:
            found.append(lowered(case))
        except ParameterError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    best = setting.best(found)
    # The limit that was asked for, not the one that left room for copies.
    asked = np.asarray(memory, dtype=np.float64).tolist()
    return replace(best, options={**best.options, "memory": asked})
