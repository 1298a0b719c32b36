"""Small questions to the optimizer, with every option it has, and whether an answer obeys them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from random import Random
from typing import Any

import debubble as db
from debubble.core.actions import unpack
from debubble.core.runtimes import RUNTIMES
from debubble.engine.graph import P2P_MODES
from debubble.lowering.carries import carries_of
from debubble.optimize.request import Request

BUDGET: dict[str, Any] = {"effort": 0.01, "workers": 1, "cache": False, "published": False}

LENGTHS = (1.25, 0.75, 1.0)

BASE: dict[str, Any] = {
    "ranks": 2, "microbatches": 3, "chunks": 1, "layers": None, "memory": None,
    "placement": "any", "backward": "free", "recompute": "none", "offload": "none",
    "p2p_mode": "overlapped", "carry": None,
    "costs": {"F": 4, "I": 5, "W": 3, "R": 3, "p2p": 1.0, "recompute_kept": 0.25,
              "kept_for_weight": 0.5, "host_bandwidth": 0.5},
}  # fmt: skip

VALUES: Mapping[str, tuple[Any, ...]] = {
    "ranks": (2, 3),
    "microbatches": (3, 4),
    "chunks": (1, 2),
    "layers": (None, 6),
    "memory": (None, 2.0),
    "placement": ("wave", "loop", [1, 0]),
    "backward": ("split", "fused", "free"),
    "recompute": ("none", "full", "free", [0]),
    "offload": ("none", "free", [0]),
    "p2p_mode": tuple(P2P_MODES),
    "carry": (None, "0:1"),
    "costs": (
        {},
        {"microbatch": LENGTHS},
        {"B": 6},
        *({"runtime": name} for name in RUNTIMES),
        {"static": 0.25},
    ),
}
"""Values of every option; those of costs are changes. A new option needs its own here."""

Rule = Callable[[Any, db.Result, Counter[tuple[str, int, int]]], bool]


ANSWERS: dict[str, db.Result] = {}
"""By question in full: many tests ask the same, and by effort the answer is the same."""


def ask(asked: Mapping[str, Any], **budget: Any) -> db.Result:
    """The answer to a question: changes of the base."""
    times = BASE["costs"] | dict(asked.get("costs", {}))
    whole = BASE | dict(asked) | BUDGET | budget
    question = repr(sorted((whole | {"costs": sorted(times.items())}).items()))
    if question not in ANSWERS:
        ANSWERS[question] = db.optimize(**(whole | {"costs": db.Costs(**times)}))
    return ANSWERS[question]


def costs_of(asked: Mapping[str, Any], result: db.Result) -> db.Costs:
    """The costs to simulate an answer with: those that were given, but where layers were cut."""
    return result.costs or db.Costs(**(BASE["costs"] | dict(asked.get("costs", {}))))


def sampled(count: int, seed: int) -> list[dict[str, Any]]:
    """Questions in which every option has one of its values at random."""
    random, found = Random(seed), list[dict[str, Any]]()
    while len(found) < count:
        asked = {name: random.choice(values) for name, values in VALUES.items()}
        lengths = asked["costs"].get("microbatch", ())
        listed = isinstance(asked["placement"], list)
        sizes = (asked["ranks"], asked["chunks"])
        apart = asked["layers"] is None or asked["carry"] is None
        if len(lengths) in (0, asked["microbatches"]) and (sizes == (2, 1) or not listed) and apart:
            found.append(asked)
    return found


def disobeyed(asked: Mapping[str, Any], result: db.Result) -> list[str]:
    """Options that an answer does not keep to."""
    whole = BASE | dict(asked)
    actions = [unpack(action) for action in result.schedule.actions.tolist()]
    count = Counter((action.kind.name, action.stage, action.microbatch) for action in actions)
    return [name for name, rule in RULES.items() if not rule(whole[name], result, count)]


def _backwards(how: str, result: db.Result, count: Counter[tuple[str, int, int]]) -> bool:
    ways = {"split": {(1, 1, 0)}, "fused": {(0, 0, 1)}, "free": {(1, 1, 0), (0, 0, 1)}}[how]
    cells = _cells(result)
    return all(tuple(count[kind, *cell] for kind in "IWB") in ways for cell in cells)


def _recomputes(how: Any, result: db.Result, count: Counter[tuple[str, int, int]]) -> bool:
    asked = {"none": (), "full": range(result.schedule.stages)}.get(str(how), how)
    found = {stage: {count["R", stage, b] for s, b in _cells(result) if s == stage}
             for stage in range(result.schedule.stages)}  # fmt: skip
    if how == "free":
        return all(times in ({0}, {1}) for times in found.values())
    return all(times == {int(stage in asked)} for stage, times in found.items())


def _copies(how: Any, result: db.Result, count: Counter[tuple[str, int, int]]) -> bool:
    out, back = ({cell for cell in _cells(result) if count[kind, *cell]}
                 for kind in ("OFFLOAD", "RELOAD"))  # fmt: skip
    if how == "free":
        return out == back
    asked = set() if how == "none" else set(how)
    return out == back and {stage for stage, _ in out} <= asked and bool(out) == bool(asked)


def _placed(how: Any, result: db.Result, _: Any) -> bool:
    homes = result.schedule.placement.ranks_of_stages.tolist()
    p = result.schedule.ranks
    shapes = {
        "loop": [s % p for s in range(len(homes))],
        "wave": [(s % p if s // p % 2 == 0 else p - 1 - s % p) for s in range(len(homes))],
    }
    if how == "any":
        return homes in shapes.values()
    return bool(homes == (shapes[how] if isinstance(how, str) else how))


def _cells(result: db.Result) -> list[tuple[int, int]]:
    schedule = result.schedule
    return [(s, b) for s in range(schedule.stages) for b in range(schedule.microbatches)]


RULES: Mapping[str, Rule] = {
    "ranks": lambda value, result, _: result.schedule.ranks == value,
    "microbatches": lambda value, result, _: result.schedule.microbatches == value,
    "chunks": lambda value, result, _: result.schedule.chunks == value,
    "layers": lambda value, result, _: sum(result.layers) == (value or 0),
    "memory": lambda value, result, _: (
        value is None or result.timeline.peak_activation.max() <= value * (1 + 1e-9)
    ),
    "placement": _placed,
    "backward": _backwards,
    "recompute": _recomputes,
    "offload": _copies,
    "p2p_mode": lambda value, result, _: result.timeline.graph.mode == value,
    "carry": lambda value, result, _: (
        result.schedule.carries == (() if value is None else carries_of(value))
    ),
    "costs": lambda _, result, count: all(count["F", *cell] == 1 for cell in _cells(result)),
}

OPTIONS = [field.name for field in fields(Request)]
