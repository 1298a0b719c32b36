"""Layers as they are given: numbers of equal ones, or costs of each as in a cost file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from debubble.core.cost_fields import check_number
from debubble.core.costs import Costs, check_cost
from debubble.core.embedding_and_head import FIRST, PARTS, frozen_part
from debubble.core.errors import ParameterError, WrongValueError, did_you_mean
from debubble.core.frozen import Freeze
from debubble.core.layers import BACKWARD, HELD, OF_LAYERS, OF_PARTS, KnownCut, Layers
from debubble.core.placement import Placement

Given: TypeAlias = int | Mapping[str, Any]
"""A number of equal layers, or costs of every layer as in a cost file's section ``layers``."""

MOST = 10_000
"""Layers at most."""

CUT, RANKS, MTP_STAGE = "cut", "ranks", "mtp_stage"
"""Keys of a cut that the model has already: layers and rank of every stage, and the stage of
multi-token prediction."""


def make_layers(given: Given, costs: Costs) -> Layers:
    """Return the layers that are given, on costs that say the rest; refuse layers without costs."""
    parts: dict[str, Mapping[str, float]] = {}
    held: tuple[float, ...] = ()
    known: KnownCut | None = None
    if isinstance(given, Mapping):
        each = _checked(given)
        count = len(each["F"])
        held = each.pop(HELD, ())
        costs, known = _known(given, costs, count)
        parts = {
            name: {key: value for key, value in given[name].items() if key in OF_PARTS}
            for name in PARTS if given.get(name)
        }  # fmt: skip
        own: dict[str, Any] = dict.fromkeys(("F", *BACKWARD))
        own |= {name: getattr(Costs(), name) for name in each}
        own |= {
            name: {key: value for key, value in given[name].items() if key not in OF_PARTS}
            for name in PARTS if given.get(name)
        }  # fmt: skip
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
    found = Layers(count, costs, each, parts, held, known)
    return _with_memory_of_ranks(found) if held else found


def _known(given: Mapping[str, Any], costs: Costs, count: int) -> tuple[Costs, KnownCut | None]:
    """Return the cut that layers have already, and costs without those of that cut alone."""
    there = [key for key in (CUT, RANKS) if given.get(key) is not None]
    if not there:
        return costs, None
    cut, ranks = (tuple(given.get(key) or ()) for key in (CUT, RANKS))
    stage = given.get(MTP_STAGE)
    if len(cut) != len(ranks) or sum(cut) != count:
        raise ParameterError(
            f"layers.cut has {len(cut)} stages with {sum(cut)} layers, and layers.ranks "
            f"{len(ranks)} stages; give layers and rank of every stage, {count} layers in all"
        )
    if stage is not None and not 0 <= stage < len(cut):
        raise ParameterError(f"layers.mtp_stage is {stage}; stages are 0 to {len(cut) - 1}")
    own: dict[str, Any] = {}
    if isinstance(costs.message, tuple):
        own["message"], costs = costs.message, replace(costs, message=0.0)
    return costs, KnownCut(cut, ranks, stage, own)


def _with_memory_of_ranks(found: Layers) -> Layers:
    """Return layers that hold memory of their own, on costs with all else that a rank holds.

    That is the most of any rank, where ranks differ.
    """
    static, known = found.costs.static, found.known
    if isinstance(static, float):
        return found
    if known is None or len(static) != 1 + max(known.ranks):
        raise ParameterError(
            f"static has {len(static)} values, but which layers a rank has is open; give the one "
            "number that any rank holds next to its layers, or layers.cut and layers.ranks"
        )
    place = Placement((known.ranks,))
    beside = np.asarray(static) - found.held_on_ranks(place, known.cut, known.mtp_stage)
    return replace(
        found, costs=replace(found.costs, static=max(float(beside.max()), 0.0)),
        known=replace(known, own={**known.own, HELD: static}),
    )  # fmt: skip


def check_part(name: str, value: Any) -> dict[str, float]:
    """Return the checked costs of embedding, head or mtp next to layers."""
    inner = dict(value) if isinstance(value, Mapping) else value
    more = {key: inner.pop(key) for key in OF_PARTS if key in inner} if inner is not value else {}
    found = dict(check_cost(name, inner))
    for key, number in more.items():
        found[key] = check_number(number, f"{name}.{key}")
        if key != HELD and found[key] > 1:
            raise WrongValueError(f"{name}.{key}", number, "give a share from 0 to 1")
    return found


def check_whole(name: str, value: Any) -> int | tuple[int, ...]:
    """Return a checked whole number, or list of them: layers, ranks, or a stage."""
    items = value if isinstance(value, list | tuple) else [value]
    if not all(type(item) is int and 0 <= item <= MOST for item in items):
        advice = f"give whole numbers from 0 to {MOST:,}, one per stage"
        raise WrongValueError(name, value, advice)
    return tuple(items) if items is value else items[0]


def _checked(given: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return costs of every layer as tuples of one length, without those of the ends."""
    found: dict[str, tuple[float, ...]] = {}
    for name, value in given.items():
        if name not in (*OF_LAYERS, *PARTS, HELD, CUT, RANKS, MTP_STAGE):
            hint = did_you_mean(str(name), (*OF_LAYERS, *PARTS, HELD))
            raise ParameterError(f"layers.{name} is no cost of a layer; {hint}")
        try:
            if name in PARTS:
                check_part(name, value)
                continue
            if name in (CUT, RANKS, MTP_STAGE):
                check_whole(name, value)
                continue
            checked = check_cost(name, value)
        except WrongValueError as error:
            raise ParameterError(f"layers.{error.text()}") from None
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
