"""Models as layers, equal or each with costs of its own, and the costs of a cut into stages.

Embedding, head and further predictions come on top of the first and last stage. What no layer is
part of, transfers and the ends, stays as it is. Of equal layers costs say what a stage of an even
cut takes, so that one of L layers in S stages takes S/L of it; the same holds for whatever layers
with costs of their own do not say.

Where a model was cut before, as in a plan, its stages keep that cut on the same ranks; other
placements are cut so that the busiest rank does as little as possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.core.balanced_cut import balanced_cut
from debubble.core.cost_table import CostTable, static_memory
from debubble.core.costs import Costs
from debubble.core.embedding_and_head import (
    PARTS,
    TIMES,
    costs_of_parts,
    times_of,
)
from debubble.core.frozen import Freeze, freeze
from debubble.core.placement import Placement

Cut: TypeAlias = tuple[int, ...]
"""Layers of every stage; they are consecutive, so that their numbers say all."""

SCALED = ("F", "I", "W", "B", "R", "activation", "kv", "exchange", "unshard", "reduce_grad")
SHARES = ("kept_for_weight", "recompute_kept", "attention", "offload_share")
OF_LAYERS = (*SCALED, *SHARES, "frozen")
"""Costs that a layer can have of its own."""

HELD = "static"
"""Memory that a layer, or a part of the model, holds all the time on its rank."""

OF_PARTS = ("kept_for_weight", "recompute_kept", "offload_share", HELD)
"""Costs of embedding, head and mtp next to times and activation, where layers are given."""

BACKWARD = ("I", "W", "B")


@dataclass(frozen=True)
class KnownCut:
    """The cut that a model has already."""

    cut: Cut
    ranks: tuple[int, ...]
    """Rank of every stage."""
    mtp_stage: int | None = None
    """Stage of multi-token prediction; None for the last."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Costs that hold for this cut alone: memory by rank, messages by boundary."""

    def is_on(self, placement: Placement) -> bool:
        """Return whether stages are on the same ranks."""
        return placement.table == (self.ranks,)


@dataclass(frozen=True, eq=False)
class Layers:
    """The layers of a model that is cut into stages."""

    count: int
    """Number of layers."""
    costs: Costs
    """Costs of an even cut, and of all that no layer is part of."""
    each: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Costs of every layer by name; empty where layers are equal."""
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Costs of embedding, head and mtp in :data:`OF_PARTS`, by part."""
    held: tuple[float, ...] = ()
    """Memory that every layer holds all the time; empty where that does not depend on the cut."""
    known: KnownCut | None = None
    """The cut that the model has already."""

    def for_placement(self, placement: Placement) -> tuple[Cut, Costs]:
        """Return the cut for a placement, and the costs of its stages.

        The cut is the known one if it is for the same ranks, else a balanced one.
        """
        if self.known is None or not self.known.is_on(placement):
            cut = self.balanced(placement)
            return cut, self.cut(placement, cut)
        costs = self.cut(placement, self.known.cut, self.known.mtp_stage)
        return self.known.cut, replace(costs, **self.known.own)

    def balanced(self, placement: Placement) -> Cut:
        """Return the cut under which the busiest rank does as little as possible.

        Ranks with stages of two copies of the model count as one rank of both.
        """
        alone = self._of_layers(placement)
        parts = {name: getattr(self.costs, name) for name in PARTS}
        times, _ = costs_of_parts(parts, placement)
        ends = times[[Kind.F, Kind.B]].sum(axis=0)[: placement.stages]
        homes = np.array(placement.table).min(axis=0).tolist()
        return balanced_cut(_time(alone), ends, homes)

    def cut(self, placement: Placement, cut: Sequence[int], mtp_stage: int | None = None) -> Costs:
        """Return costs per stage where stages have so many layers.

        Multi-token prediction is on the last stage, or on another; only of layers with costs of
        their own.
        """
        made = cut_costs(self.costs, placement, cut, self.count)
        if not self.each:
            return made
        ends = np.cumsum([0, *cut])
        layers = self._of_layers(placement)

        def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
            whole = np.append(0.0, np.cumsum(values))
            found: NDArray[np.float64] = whole[ends[1:]] - whole[ends[:-1]]
            return found

        changes: dict[str, Any] = {name: None for name in BACKWARD if name not in self.each}
        for name in set(layers if self.frozen else self.each) & set(SCALED):
            changes[name] = sums(layers[name]).tolist()
        if self.frozen:
            changes["frozen"] = self._without_backward(ends[1:])
        parts = {name: getattr(self.costs, name) for name in PARTS}
        apart = parts.pop("mtp") if mtp_stage is not None else None
        if apart and mtp_stage is not None:
            for kind, name in ((kind, name) for name, kind in TIMES.items() if name in self.each):
                changes[name][mtp_stage] += times_of(apart)[kind]
            if "activation" in self.each:
                changes["activation"][mtp_stage] += apart.get("activation", 0.0)
            changes["mtp"] = None
        _, held = costs_of_parts(parts, placement)
        if apart and mtp_stage is not None:
            held[mtp_stage] += apart.get("activation", 0.0)
        shares = self._shares()
        for name, share in shares.items():
            weight = layers["F" if name == "attention" else "activation"]
            beside = np.zeros(len(cut))
            if name != "attention":
                # What the ends of the model leave has the share of the layer next to them.
                for part, end in PARTS.items():
                    at = end if part != "mtp" or mtp_stage is None else mtp_stage
                    own = self.parts.get(part, {}).get(name, share[end])
                    beside[at] += (getattr(self.costs, part) or {}).get("activation", 0.0) * own
            else:
                held = np.zeros_like(held)
            total = sums(weight) + held[: len(cut)]
            mean = np.divide(sums(weight * share) + beside, total,
                             out=np.zeros(len(cut)), where=total > 0)  # fmt: skip
            changes[name] = np.minimum(mean, 1.0).tolist()
        if isinstance(self.costs.O, float):
            time = sums(_time(layers))
            share = time * placement.stages / (time.sum() or 1.0)
            changes["O"] = _of_pairs(self.costs.O / self.costs.divisor(placement), share)
        if self.held:
            beside = static_memory(self.costs, placement.ranks)
            changes[HELD] = (beside + self.held_on_ranks(placement, cut, mtp_stage)).tolist()
        return replace(made, **changes)

    def held_on_ranks(
        self, placement: Placement, cut: Sequence[int], mtp_stage: int | None = None
    ) -> NDArray[np.float64]:
        """Return the memory that layers and parts of every rank hold all the time."""
        if not self.held:
            return np.zeros(placement.ranks)
        sums = np.append(0.0, np.cumsum(self.held))
        ends = np.cumsum([0, *cut])
        stages = sums[ends[1:]] - sums[ends[:-1]]
        for part, end in PARTS.items():
            at = end if part != "mtp" or mtp_stage is None else mtp_stage
            stages[at] += self.parts.get(part, {}).get(HELD, 0.0)
        homes = placement.ranks_of_stages
        found = np.bincount(homes, np.tile(stages, placement.copies), placement.ranks)
        return found.astype(np.float64)

    def table(self, placement: Placement) -> CostTable:
        """Return costs of the layers alone, each a stage of its own on one rank."""
        values: dict[str, Any] = {
            name: values.tolist() for name, values in self._of_layers(placement).items()
        }
        shares = {name: getattr(self.costs, name) for name in (*SHARES, "frozen")}
        shares |= {name: share.tolist() for name, share in self._shares().items()}
        return Costs(**values, **shares).resolve(Placement.loop(1, self.count))

    @property
    def frozen(self) -> Freeze | None:
        """Frozen parts of every layer, if layers have any."""
        share = self.each.get("frozen")
        return None if share is None else Freeze.of(np.array(share), self.count)

    def _shares(self) -> dict[str, NDArray[np.float64]]:
        """Return the layers' own shares, without the memory that frozen weights do not keep."""
        found = {name: np.array(self.each[name]) for name in SHARES if name in self.each}
        if self.frozen:
            usual: Any = self.each.get("kept_for_weight", self.costs.kept_for_weight)
            found["kept_for_weight"] = np.asarray(usual) * (1 - self.frozen.share)
        return found

    def _without_backward(self, ends: NDArray[np.int64]) -> list[float]:
        """Return whether stages get no gradients, by where they end; never the last."""
        assert self.frozen is not None, "layers are trained"
        first = self.count - int(self.frozen.needed.sum())
        return [float(first > 0 and end <= first) for end in ends[:-1]] + [
            float(first == self.count)
        ]

    def _of_layers(self, placement: Placement) -> dict[str, NDArray[np.float64]]:
        """Return times and memory of every layer, shape ``(count,)``."""
        divisor = self.costs.divisor(placement)
        found = {"activation": np.full(self.count, placement.ranks / self.count)}
        defaults = {} if self.each else _defaults(self.costs, placement)
        for name in SCALED:
            value = self.each.get(name, getattr(self.costs, name))
            value = defaults.get(name) if value is None else value
            if isinstance(value, float):
                value = np.full(self.count, value / divisor * (placement.stages / self.count))
            if value is not None:
                found[name] = np.array(value)
        if self.frozen:
            self._freeze(found, self.frozen)
        return found

    def _freeze(self, found: dict[str, NDArray[np.float64]], frozen: Freeze) -> None:
        """Subtract the savings of frozen weights from the costs of layers."""
        half = found["B"] / 2 if "B" in found else np.zeros(self.count)
        I, W = found.get("I", half), found.get("W", half)
        times = np.zeros((len(Kind), self.count))
        times[Kind.I], times[Kind.W], times[Kind.B] = I, W, found.get("B", I + W)
        times[Kind.R] = found.get("R", found["F"])
        freeze(times, frozen)
        found |= {kind.name: times[kind] for kind in (Kind.I, Kind.W, Kind.B, Kind.R)}
        found["activation"] = found["activation"] * frozen.needed
        if "reduce_grad" in found:
            found["reduce_grad"] = found["reduce_grad"] * (1 - frozen.share)


def stage_costs(costs: Costs, layers: Layers, placement: Placement) -> tuple[Cut, Costs]:
    """Return the cut of layers for a placement, and the costs of its stages.

    Costs that have a number for every stage of the placement stay, without a cut, unless layers
    have a cut already.
    """
    values = (getattr(costs, name) for name in SCALED)
    stages = {len(value) for value in values if isinstance(value, Sequence)}
    if layers.known is None and placement.stages in stages:
        return (), costs
    return layers.for_placement(placement)


def cut_words(cut: Sequence[int]) -> str:
    """Return the layers of every stage, with the number of stages that have as many.

    Examples
    --------
    >>> cut_words([9, 10, 10, 11])
    '9×1, 10×2, 11×1'
    """
    return ", ".join(f"{layers}×{len(list(some))}" for layers, some in groupby(cut))


def even_cut(layers: int, stages: int) -> Cut:
    """Return an even cut; layers that are left over go to the first stages."""
    return tuple(layers // stages + (stage < layers % stages) for stage in range(stages))


def cut_costs(costs: Costs, placement: Placement, cut: Sequence[int], layers: int) -> Costs:
    """Return costs per stage of a cut of equal layers; `costs` are those of an even cut."""
    divisor = costs.divisor(placement)
    share = np.array(cut) * placement.stages / layers
    even = bool(np.all(share == 1))

    def spread(value: float) -> Any:
        same = even or value == 0
        return value / divisor if same else (value / divisor * share).tolist()

    defaults = _defaults(costs, placement)
    if not even:
        # The default of a stage is ranks / stages, and is not divided.
        defaults["activation"] = divisor * placement.ranks / placement.stages
    given = {name: getattr(costs, name) for name in (*SCALED, "FF")}
    values = defaults | {name: value for name, value in given.items() if value is not None}
    changes = {name: spread(value) for name, value in values.items()}
    if costs.O is not None:
        assert isinstance(costs.O, float)
        changes["O"] = costs.O / divisor if even else _of_pairs(costs.O / divisor, share)
    if costs.OPT and not even:
        homes, ranks = placement.ranks_of_stages, placement.ranks
        on_rank = np.bincount(homes, np.tile(share, placement.copies), ranks)
        changes["OPT"] = (on_rank * ranks / len(homes) * np.asarray(costs.OPT)).tolist()
    return replace(costs, basis="action", chunks=None, **changes)


def _defaults(costs: Costs, placement: Placement) -> dict[str, float]:
    """Return times of a stage that costs do not say."""
    return dict.fromkeys(("F",) if costs.B is not None else "FIW", costs.default_time(placement))


def _time(layers: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return times of layers forwards and backwards."""
    return layers["F"] + (layers["B"] if "B" in layers else layers["I"] + layers["W"])


def _of_pairs(time: float, share: NDArray[np.float64]) -> dict[tuple[int, ...], float]:
    """Return times of overlapped pairs by both stages, from shares of an even cut."""
    return dict(np.ndenumerate(time * np.add.outer(share, share) / 2))
