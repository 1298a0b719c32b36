"""What runtimes do in another way than a schedule's actions say: a row of rules each.

PyTorch's is ``torch.distributed.pipelining``, read and measured in version 2.13. Its own stages run
I as ``autograd.grad`` of the inputs and W as one of the weights. Where activations are checkpointed
each of these computes the forward again, W once for every group of weights; so stages of
:mod:`debubble.torch` let I do the whole backward there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, among, kinds_of, stages_of
from debubble.core.kind_relations import RECOMPUTE_KINDS

if TYPE_CHECKING:
    from debubble.core.cost_table import CostTable
    from debubble.core.costs import Costs
    from debubble.core.schedule import Schedule

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """One thing that a runtime does in its own way."""

    text: str
    """A clause about stages."""
    apply: Callable[[CostTable, Mask], None] | None = None
    """Changes the rows of a table, which are its own; gets what is recomputed, by place. None for a
    rule about the order."""


@dataclass(frozen=True)
class Runtime:
    """Who runs a schedule."""

    name: str
    title: str
    rules: tuple[Rule, ...] = ()

    @property
    def text(self) -> str:
        """All of its rules; empty without any."""
        return "; ".join(rule.text for rule in self.rules)


def _first_in_w(table: CostTable, _: Mask) -> None:
    first = np.arange(len(table.kept)) % table.placement.stages == 0
    _whole(table, first, Kind.W, Kind.I)
    table.kept[first] = table.activation[first]


def _i_frees_nothing(table: CostTable, _: Mask) -> None:
    table.kept[:] = table.activation


def _recomputed_whole(table: CostTable, recomputed: Mask) -> None:
    _whole(table, recomputed, Kind.I, Kind.W)
    table.kept[recomputed] = 0.0


def _whole(table: CostTable, places: Mask, kind: Kind, other: Kind) -> None:
    """Have actions of a kind do the whole backward, and start but not work for the other kind."""
    rows = [(table.duration, table.costs.launch), (table.part_duration, 0.0)]
    rows += [] if table.causal is None else [(table.causal, 0.0)]
    for times, least in rows:
        times[kind, places] = times[Kind.B, places]
        times[other, places] = np.minimum(times[other, places], least)


FIRST_IN_W = Rule("stage 0's I does nothing, its W is the whole backward", _first_in_w)
I_FREES_NOTHING = Rule("I frees no activation", _i_frees_nothing)
RECOMPUTED_WHOLE = Rule(
    "where a stage recomputes, I is the whole backward and W does nothing", _recomputed_whole
)
RECOMPUTES_LATE = Rule("a recompute waits for the gradient, as a part of the backward")

RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("any", "a runtime that does what the actions say"),
        Runtime(
            "torch", "PyTorch's runtime",
            (FIRST_IN_W, I_FREES_NOTHING, RECOMPUTED_WHOLE, RECOMPUTES_LATE),
        ),
        Runtime("debubble", "debubble.torch's runtime", (FIRST_IN_W,)),
    )
}  # fmt: skip
"""Every runtime by name; rules that come later count more."""


def has_rule(costs: Costs, rule: Rule) -> bool:
    """Whether the runtime of some costs has a rule."""
    return rule in RUNTIMES[costs.runtime].rules


def as_run(table: CostTable, recomputed: Mask | None = None) -> CostTable:
    """A table with what its runtime changes, where some places recompute; itself without rules."""
    rules = [rule.apply for rule in RUNTIMES[table.costs.runtime].rules if rule.apply]
    if not rules:
        return table
    if recomputed is None:
        recomputed = np.zeros(len(table.kept), dtype=bool)
    found = _own(table)
    for apply in rules:
        apply(found, recomputed)
    return found


def recompute_in_backward(table: CostTable, recomputed: Mask) -> CostTable:
    """A table in which whole backwards have the time of the recomputes of some places in them."""
    found = _own(table)
    for times in (found.duration, found.part_duration, found.causal):
        if times is not None:
            times[Kind.B, recomputed] += times[Kind.R, recomputed]
            times[Kind.R, recomputed] = 0.0
    return found


def _own(table: CostTable) -> CostTable:
    """The same table with rows of its own of what rules change."""
    causal = None if table.causal is None else table.causal.copy()
    return replace(
        table, duration=table.duration.copy(), part_duration=table.part_duration.copy(),
        kept=table.kept.copy(), causal=causal,
    )  # fmt: skip


def recomputed_places(schedule: Schedule, costs: Costs) -> Mask | None:
    """Places of stages that recompute a microbatch; None where their runtime does not mind."""
    if not has_rule(costs, RECOMPUTED_WHOLE):
        return None
    again = schedule.actions[among(kinds_of(schedule.actions), RECOMPUTE_KINDS)]
    # A file may name stages that do not exist; checks report them.
    stages = np.unique(stages_of(again[stages_of(again) < schedule.stages]))
    places = np.arange(schedule.slices * schedule.placement.copies * schedule.stages)
    found: Mask = np.isin(places % schedule.stages, stages)
    return found
