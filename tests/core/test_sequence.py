from __future__ import annotations

import numpy as np
import pytest

from debubble.core.sequence import backward, by_slot, forward, sequence, show


def test_slots_decide_the_order_and_gaps_vanish() -> None:
    program = sequence(forward(0, [0, 1, 2]), backward(1, [0, 1]))
    assert show(by_slot(program, np.array([-3, 9, 2, 4, 1]))) == "0F0 1B1 0F2 1B0 0F1"


def test_a_slot_has_room_for_one_action() -> None:
    with pytest.raises(AssertionError, match="two actions in one slot"):
        by_slot(forward(0, [0, 1]), np.array([5, 5]))
