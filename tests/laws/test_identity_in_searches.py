"""Identity: what changes nothing in the question changes nothing in what is proven."""

from __future__ import annotations

from typing import Any

import pytest

from debubble.core.runtimes import RUNTIMES
from tests.optimize.searches import BASE, ask

SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lengths of one": ({}, {"costs": {"microbatch": (1, 1, 1)}}),
    "memory above the peak": ({}, {"memory": 3.0}),
    "memory of every rank": ({"memory": 2.0}, {"memory": [2.0, 2.0]}),
    "nothing recomputed": ({}, {"recompute": []}),
    "nothing recomputed, none": ({}, {"recompute": None}),
    "every stage recomputed": ({"recompute": "full"}, {"recompute": [0, 1]}),
    "nothing offloaded": ({"offload": "none"}, {"offload": []}),
    "one layer for each stage": ({}, {"layers": 2}),
    "ranks of the stages": ({"chunks": 2, "placement": "wave"}, {"placement": [0, 1, 1, 0]}),
    "B as its parts": ({}, {"costs": {"B": 8}}),
    "costs of every stage": ({}, {"costs": {"F": [4, 4], "W": [3, 3]}}),
    "nothing held all the time": ({"memory": 2.0}, {"memory": 2.5, "costs": {"static": 0.5}}),
}
"""Two questions that are the same."""

WAYS: dict[str, dict[str, Any]] = {
    "free": {},
    "fused": {"backward": "fused"},
    "split": {"backward": "split"},
    "offload": {"offload": [0]},
    "p2p": {"p2p_mode": "channel"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SAME)
def test_the_same_question_has_the_same_answer(way: str, name: str) -> None:
    asked, again = ({**WAYS[way], **question} for question in SAME[name])
    one, other = ask(asked), ask(again)
    assert one.makespan == pytest.approx(other.makespan)
    assert one.lower_bound == pytest.approx(other.lower_bound)


ALMOST = 1.0001


@pytest.mark.parametrize("backward", ["free", "fused", "split"])
@pytest.mark.parametrize("memory", [None, 2.0])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_lengths_of_almost_one_are_almost_none(
    backward: str, memory: float | None, runtime: str
) -> None:
    asked = {"backward": backward, "memory": memory, "costs": {"runtime": runtime}}
    plain = ask(asked)
    limit = None if memory is None else memory * ALMOST
    costs = asked["costs"] | {"microbatch": (1.0, 1.0, ALMOST)}
    longer = ask(asked | {"memory": limit, "costs": costs})
    assert plain.status == longer.status == "optimal"
    assert plain.makespan <= longer.makespan <= plain.makespan * ALMOST


def test_the_base_is_a_question() -> None:
    assert ask({}).status == "optimal"
    assert BASE["memory"] is None
