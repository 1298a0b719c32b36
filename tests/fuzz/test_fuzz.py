"""A short, deterministic run of every fuzzer; ``make fuzz`` runs them for longer."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.targets import TARGETS

INPUTS = 40


@pytest.mark.parametrize("name", TARGETS)
def test_random_inputs_are_right_or_refused(name: str) -> None:
    accepted = sum(TARGETS[name](Random(f"{name} {seed}")) for seed in range(INPUTS))
    assert 0 < accepted <= INPUTS
