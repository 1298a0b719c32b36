"""Spell costs out for a placement: the making of a :class:`~debubble.core.cost_table.CostTable`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from debubble.core.boundaries import boundaries_of, largest_message
from debubble.core.cost_table import CostTable, static_memory
from debubble.core.embedding_and_head import PARTS, costs_of_parts
from debubble.core.frozen import BACKWARD, Freeze, freeze
from debubble.core.kinds import KINDS, TIMED_KINDS, VOCABULARY_KINDS, Kind, Time
from debubble.core.placement import Placement
from debubble.core.slicing import WHOLE, Slicing, attention_times, sliced_times
from debubble.core.stage_values import (
    PerPlace,
    StageValues,
    as_rows,
    frozen_stages,
    link_times,
    numbers_of,
    pair_values,
)

if TYPE_CHECKING:
    from debubble.core.costs import Costs

NO_KINDS = ("O", "FF", "launch", "p2p", "p2p_carry", "exchange", *PARTS)
"""Times that are not those of a kind: of pairs and transfers, and what comes on top of kinds."""

_BY_STAGE = [spec for spec in KINDS if spec.time is Time.STAGE and spec.cost not in NO_KINDS]
_NAMES = [spec.cost for spec in _BY_STAGE]
_ROWS = np.array([spec.kind for spec in _BY_STAGE])
"""Costs by stage, and the rows of the kinds that pay them."""


def spell_out(
    costs: Costs, placement: Placement, slicing: Slicing = WHOLE, vocabulary: int = 0
) -> CostTable:
    """Return the table of costs for every slice and stage of a placement.

    `vocabulary` says how the head is sharded, as in :class:`debubble.core.schedule.Schedule`.
    """
    spread = StageValues(placement, costs.basis)
    divisor, places = costs.divisor(placement), placement.copies * placement.stages
    # A cost that is the same everywhere stays one number until it is stored in a row.
    whole = _whole_times(costs, spread)
    parts = {name: getattr(costs, name) for name in PARTS}
    frozen = frozen_stages(costs.frozen, spread)
    part_duration, part_memory = costs_of_parts(parts, placement, vocabulary, frozen)
    sharded = costs.head if vocabulary and costs.head else {}
    pairs, overlap = pair_values(costs.O, spread, divisor)
    values = _rows(costs, spread, part_memory if any(parts.values()) else 0.0)
    values |= {"overlap": overlap, "forwards": spread(costs.FF, "FF", math.nan) / divisor}
    rows = dict(zip(values, as_rows(places, values.values()), strict=True))
    times = np.zeros((len(KINDS), places))
    times[_ROWS] = as_rows(places, whole)
    if frozen is not None:
        for name in ("activation", "kept", "checkpoint"):
            rows[name] *= frozen.needed
        rows["kept"] *= 1 - frozen.share
    causal = None
    if costs.microbatch is not None:
        causal = np.zeros_like(part_duration)
        for kind, time in attention_times(_by_kind(times), rows["attention"]).items():
            causal[kind] = time / divisor
        causal = np.hstack([share * causal for share in slicing.attention])
    shares = np.asarray(slicing.shares)
    message = largest_message(costs) / costs.bandwidth
    excess = message * (shares - 1 / len(shares))
    if slicing != WHOLE:
        exchange = spread(costs.exchange, "exchange", 0.0)
        sliced = sliced_times(_by_kind(times), rows["attention"], exchange, slicing)
        times = np.tile(times, len(shares))
        for kind, time in sliced.items():
            times[kind] = time
        for name in ("activation", "kept", "checkpoint", "kv"):
            rows[name] = np.outer(shares, rows[name]).ravel()
        rows["offload"] = np.tile(rows["offload"], len(shares))
        part_duration = np.hstack([share * part_duration for share in shares])
    duration = times / divisor + part_duration
    if frozen is not None:
        frozen = frozen.of_slices(len(shares))
        for times_of_kind in (duration, part_duration, *([] if causal is None else [causal])):
            freeze(times_of_kind, frozen)
    _add_launch(duration, costs.launch, frozen)
    return CostTable(
        duration, rows["activation"], rows["kept"], rows["offload"], rows["checkpoint"],
        rows["kv"], rows["attention"], numbers_of(costs.OPT, "OPT", "rank", placement.ranks),
        static_memory(costs, placement.ranks),
        link_times(costs, placement.ranks, message / len(shares)), excess, part_duration,
        sharded.get("activation", 0.0) / placement.ranks, costs, placement, slicing, pairs,
        rows["overlap"], rows["forwards"], causal, None,
        boundaries_of(costs, placement, len(shares), frozen), frozen,
    )  # fmt: skip


def _rows(costs: Costs, spread: StageValues, part_memory: PerPlace) -> dict[str, PerPlace]:
    """Return what every place holds and moves, of whole microbatches, by the column's name.

    `part_memory` is what embedding, head and multi-token prediction hold.
    """
    placement, divisor = spread.placement, costs.divisor(spread.placement)
    unit: PerPlace = placement.ranks / placement.stages
    if costs.activation is not None:
        unit = spread(costs.activation, "activation", 0.0) / divisor
    held = unit + part_memory
    return {
        "activation": held,
        "kept": held * spread(costs.kept_for_weight, "kept_for_weight", 1.0),
        "checkpoint": held * spread(costs.recompute_kept, "recompute_kept", 0.0),
        "kv": spread(costs.kv, "kv", 0.0) / divisor,
        "offload": spread(costs.offload_share, "offload_share", 1.0),
        "attention": spread(costs.attention, "attention", 0.0),
    }


def _whole_times(costs: Costs, spread: StageValues) -> list[PerPlace]:
    """Return the times of :data:`_NAMES` for whole microbatches, or steps; not divided."""
    one = costs.default_time(spread.placement)
    half = one if costs.B is None else spread(costs.B, "B", 0.0) / 2
    usual: dict[str, PerPlace] = {"F": one, "I": half, "W": half}
    found = {name: spread(getattr(costs, name), name, usual.get(name, 0.0)) for name in _NAMES}
    if costs.B is None:
        found["B"] = found["I"] + found["W"]
    if costs.R is None:
        found["R"] = found["F"]
    return list(found.values())


def _add_launch(times: NDArray[np.float64], launch: float, frozen: Freeze | None) -> None:
    """Add the time to start an action, but to those that frozen weights leave nothing to do."""
    if launch:
        times[[*TIMED_KINDS, *VOCABULARY_KINDS]] += launch
        if frozen is not None:
            times[list(BACKWARD)] *= frozen.needed
            times[Kind.W] *= frozen.share < 1


def _by_kind(times: NDArray[np.float64]) -> dict[Kind, NDArray[np.float64]]:
    """Return rows of the kinds of work."""
    return {kind: times[kind] for kind in TIMED_KINDS}
