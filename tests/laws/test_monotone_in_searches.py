"""Monotone: more memory, more freedom or less time never makes what is proven slower."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import debubble as db
from tests.conftest import EXPLORES
from tests.optimize.searches import ask

LENGTHS = {"microbatch": (1.25, 0.75, 1.0)}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fused": {"backward": "fused"},
    "lengths": {"costs": LENGTHS},
    "lengths, fused": {"costs": LENGTHS, "backward": "fused"},
    "recompute": {"recompute": "free"},
    "layers": {"layers": 6},
    "offload": {"offload": "free"},
}

MEMORY = (1.25, 1.5, 2.0, 2.5, 3.0, None)
LOOSER: dict[str, list[dict[str, Any]]] = {
    "memory": [{"memory": limit} for limit in MEMORY],
    "fused to free": [{"backward": "fused"}, {"backward": "free"}],
    "split to free": [{"backward": "split"}, {"backward": "free"}],
    "none to free recompute": [{"recompute": "none"}, {"recompute": "free"}],
    "full to free recompute": [{"recompute": "full"}, {"recompute": "free"}],
    "loop to any": [{"chunks": 2, "placement": "loop"}, {"chunks": 2, "placement": "any"}],
    "wave to any": [{"chunks": 2, "placement": "wave"}, {"chunks": 2, "placement": "any"}],
    "shorter F": [{"costs": {"F": time}} for time in (6, 5, 4)],
    "shorter W": [{"costs": {"W": time}} for time in (5, 3, 0)],
    "shorter p2p": [{"costs": {"p2p": time}} for time in (2, 1, 0)],
}
"""Questions of which every one leaves more open than the one before, or asks for less time."""


@pytest.mark.parametrize("name", LOOSER)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_looser_is_never_proven_slower(way: str, name: str) -> None:
    steps = LOOSER[name]
    if name == "memory" and not EXPLORES:
        # Half of the limits, the others for the next way, and the last.
        steps = [*steps[list(WAYS).index(way) % 2 : -1 : 2], steps[-1]]
    found = [result for step in steps if (result := answer(WAYS[way], step)) is not None]
    for tight, loose in pairwise(found):
        assert loose.lower_bound <= tight.makespan * (1 + 1e-9)
        if tight.status == loose.status == "optimal":
            assert loose.makespan <= tight.makespan * (1 + 1e-9)


def answer(way: dict[str, Any], step: dict[str, Any]) -> db.Result | None:
    """The answer to a question; None where nothing fits."""
    costs = way.get("costs", {}) | step.get("costs", {})
    try:
        return ask(way | step | {"costs": costs})
    except db.ParameterError:
        return None
