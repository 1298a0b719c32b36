"""Effect: every option of a search changes the answer, and every answer keeps to all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.optimize.options import SEARCH_OPTIONS
from debubble.optimize.request import Budget
from tests.conftest import EXPLORES
from tests.laws.test_self_in_searches import agrees
from tests.optimize.searches import BASE, OPTIONS, RULES, VALUES, ask, disobeyed, sampled
from tests.pairs import covering

LENGTHS = {"costs": {"microbatch": (1.25, 0.75, 1.0)}}

SEARCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "lengths": LENGTHS,
    "layers": {"layers": 6},
    "lengths and layers": LENGTHS | {"layers": 6},
    "jitter": {"robust": db.Jitter("normal:5%", samples=50)},
    "jitter and lengths": LENGTHS | {"robust": db.Jitter("normal:5%", samples=50)},
}
"""What makes a search go another way."""

SETTINGS: dict[str, dict[str, Any]] = {
    "placement": {"chunks": 2}, "memory": {"backward": "fused"},
    "carry": {"costs": {"p2p_carry": 9}},
}  # fmt: skip
"""Where an option matters, if not everywhere."""


def answered(asked: dict[str, Any]) -> tuple[Any, ...]:
    """All of an answer that an option may change."""
    result = ask(asked)
    schedule, timeline = result.schedule, result.timeline
    homes = schedule.placement.ranks_of_stages.tolist()
    return (schedule.rows(), homes, result.layers, result.makespan,
            timeline.peak_activation.tolist(), timeline.start.tolist())  # fmt: skip


def test_every_option_has_values_and_a_rule() -> None:
    assert set(OPTIONS) == set(VALUES) == set(RULES) == set(BASE)
    others = {*Budget.__dataclass_fields__, "robust"}
    assert {row.name for row in SEARCH_OPTIONS} <= {*OPTIONS, *others}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_changes_the_answer(name: str) -> None:
    setting = SETTINGS.get(name, {})
    found = [answered(setting | {name: value}) for value in VALUES[name]]
    assert any(one != found[0] for one in found[1:])


def questions() -> Iterator[tuple[str, str, Any]]:
    """A way to search, an option and a value: all for ways of one sort, else one of an option."""
    for number, search in enumerate(SEARCHES):
        for turn, (name, values) in enumerate(VALUES.items()):
            if name == "carry" and "layers" in search:
                # Refused: a cut moves what begins and ends there.
                continue
            every = EXPLORES or search in ("plain", "lengths", "layers")
            at = (number + turn) % len(values)
            for value in values if every else values[at : at + 1]:
                yield search, name, value


@pytest.mark.parametrize(("search", "name", "value"), list(questions()), ids=str)
def test_every_search_keeps_to_every_option(
    search: str, name: str, value: Any, tmp_path: Path
) -> None:
    way = dict(SEARCHES[search])
    budget = {key: way.pop(key) for key in ("robust",) if key in way}
    asked = way | {name: value}
    if name == "costs":
        asked["costs"] = way.get("costs", {}) | value
    if name == "microbatches" and "costs" in way:
        asked["costs"] = {"microbatch": (1.25, 0.75, 1.0, 0.5)[:value]}
    if name == "placement" and "layers" not in way and not isinstance(value, list):
        asked["chunks"] = 2
    result = ask(asked, **budget)
    assert not disobeyed(asked, result)
    assert result.lower_bound <= result.makespan * (1 + 1e-9)
    if search == "plain":
        agrees(asked, result, tmp_path)


def is_small(asked: dict[str, Any]) -> bool:
    """Whether a search takes less than seconds: copies take a simulation of every order."""
    most = 6 if asked["layers"] is None else 4
    return asked["ranks"] * asked["chunks"] < most or asked["offload"] == "none"


TOGETHER = covering(
    [asked for asked in sampled(60 if EXPLORES else 300, 0) if EXPLORES or is_small(asked)],
    lambda asked: asked.values(),
    at_most=16,
)
"""Of many questions those in which most pairs of values come: four in five."""


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(4))
def test_options_at_random_are_obeyed_together(turn: int, tmp_path: Path) -> None:
    for asked in TOGETHER[turn::4]:
        try:
            result = ask(asked)
        except db.ParameterError:
            continue
        assert not disobeyed(asked, result), asked
        assert result.lower_bound <= result.makespan * (1 + 1e-9), asked
        agrees(asked, result, tmp_path)
