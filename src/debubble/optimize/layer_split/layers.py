"""Models as layers, equal or each with costs of its own, and the costs of a cut into stages.

Embedding, head and further predictions come on top of the first and last stage. What no layer is
part of, transfers and the ends, stays as it is. Of equal layers costs say what a stage of an even
cut takes, so that one of L layers in S stages takes S/L of it; the same holds for whatever layers
with costs of their own do not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.core.cost_table import CostTable
from debubble.core.costs import Costs, check_cost
from debubble.core.embedding_and_head import FIRST, LAST, PARTS, costs_of_parts, frozen_part
from debubble.core.errors import ParameterError, WrongValueError, did_you_mean
from debubble.core.frozen import Freeze, freeze
from debubble.core.placement import Placement

Cut: TypeAlias = tuple[int, ...]
"""Layers of every stage; they are consecutive, so that their numbers say all."""

Given: TypeAlias = int | Mapping[str, Any]
"""A number of equal layers, or costs of every layer as in a cost file's section ``layers``."""

MOST = 10_000
"""Layers at most."""

SCALED = ("F", "I", "W", "B", "R", "activation", "kv", "exchange", "unshard", "reduce_grad")
SHARES = ("kept_for_weight", "recompute_kept", "attention", "offload_share")
OF_LAYERS = (*SCALED, *SHARES, "frozen")
"""Costs that a layer can have of its own."""

BACKWARD = ("I", "W", "B")


@dataclass(frozen=True, eq=False)
class Layers:
    """The layers of a model that is cut into stages."""

    count: int
    """Number of layers."""
    costs: Costs
    """Costs of an even cut, and of all that no layer is part of."""
    each: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Costs of every layer by name; empty where layers are equal."""

    def cut(self, placement: Placement, cut: Sequence[int]) -> Costs:
        """Return costs per stage where stages have so many layers."""
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
        _, held = costs_of_parts({name: getattr(self.costs, name) for name in PARTS}, placement)
        shares = self._shares()
        for name, share in shares.items():
            weight = layers["F" if name == "attention" else "activation"]
            beside = np.zeros(len(cut))
            if name != "attention":
                # What the ends of the model leave has the share of the layer next to them.
                for end in {FIRST, LAST}:
                    part = {n: getattr(self.costs, n) for n in PARTS if PARTS[n] == end}
                    _, alone = costs_of_parts(part, placement)
                    beside += alone[: len(cut)] * share[end]
            else:
                held = np.zeros_like(held)
            total = sums(weight) + held[: len(cut)]
            mean = np.divide(sums(weight * share) + beside, total,
                             out=np.zeros(len(cut)), where=total > 0)  # fmt: skip
            changes[name] = np.minimum(mean, 1.0).tolist()
        if isinstance(self.costs.O, float):
            time = sums(self._time(layers))
            share = time * placement.stages / (time.sum() or 1.0)
            changes["O"] = _of_pairs(self.costs.O / self.costs.divisor(placement), share)
        return replace(made, **changes)

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

    def _time(self, layers: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        backward = layers["B"] if "B" in layers else layers["I"] + layers["W"]
        return layers["F"] + backward


def make_layers(given: Given, costs: Costs) -> Layers:
    """Return the layers that are given, on costs that say the rest; refuse layers without costs."""
    if isinstance(given, Mapping):
        each = _checked(given)
        count = len(each["F"])
        own: dict[str, Any] = dict.fromkeys(("F", *BACKWARD))
        own |= {name: getattr(Costs(), name) for name in each}
        own |= {name: dict(given[name]) for name in PARTS if given.get(name)}
        if "frozen" in each:
            frozen = Freeze.of(np.array(each["frozen"]), count)
            for name, end in PARTS.items():
                part = own.get(name, getattr(costs, name))
                at = slice(0, 1) if end == FIRST else slice(count - 1, count)
                own[name] = part and frozen_part(part, frozen.at(at))
        costs = replace(costs, **own)
    else:
        each, count = {}, given
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
        raise ParameterError(f"layers is {count}; give a whole number from 1 to {MOST:,}")
    for name in (*OF_LAYERS, "O", "FF", "OPT"):
        value = getattr(costs, name)
        if isinstance(value, Sequence | Mapping):
            owner = {"O": "pair", "OPT": "rank"}.get(name, "stage")
            owner = "rank" if costs.basis == "rank" and owner == "stage" else owner
            also = ", or costs of every layer" if name in OF_LAYERS else ""
            raise ParameterError(
                f"{name} has {len(value)} values, but which layers a {owner} has is open; give one "
                "number for an even cut, and what only the first or last stage does as embedding, "
                f"head or mtp{also}"
            )
    return Layers(count, costs, each)


def _checked(given: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return costs of every layer as tuples of one length, without those of the ends."""
    found: dict[str, tuple[float, ...]] = {}
    for name, value in given.items():
        if name not in (*OF_LAYERS, *PARTS):
            hint = did_you_mean(str(name), (*OF_LAYERS, *PARTS))
            raise ParameterError(f"layers.{name} is no cost of a layer; {hint}")
        try:
            checked = check_cost(name, value)
        except WrongValueError as error:
            raise ParameterError(f"layers.{error.text()}") from None
        if name in PARTS:
            continue
        if not isinstance(checked, tuple):
            raise ParameterError(f"layers.{name} is {checked}; give a list with one per layer")
        found[name] = checked
        first = next(iter(found))
        if len(checked) != len(found[first]):
            raise ParameterError(
                f"layers.{name} has {len(checked)} values and layers.{first} {len(found[first])}; "
                "both have one per layer"
            )
    if "F" not in found or not ("B" in found or {"I", "W"} <= set(found)):
        names = ", ".join(found) or "nothing"
        raise ParameterError(f"layers has {names}; give times of every layer: F and B, or F, I, W")
    return found


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


def _of_pairs(time: float, share: NDArray[np.float64]) -> dict[tuple[int, ...], float]:
    """Return times of overlapped pairs by both stages, from shares of an even cut."""
    return dict(np.ndenumerate(time * np.add.outer(share, share) / 2))
