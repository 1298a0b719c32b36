"""Every kind of action runs: gradients are those of the model on one rank."""

from __future__ import annotations

import pytest

from debubble.core.actions import SHARDING_KINDS, TRANSFER_KINDS
from debubble.core.kinds import CARRY_KINDS, Kind
from debubble.torch.engine.own_engine import HANDLERS
from tests.kinds import MADE, schedule_with
from tests.torch.test_pieces import verified

CASES = {str(MADE[kind]): kind for kind in Kind if kind not in CARRY_KINDS}
"""One kind for every schedule of all kinds; models of runs carry nothing: test_skips.py."""


def test_every_kind_has_its_handler_or_goes_another_way() -> None:
    # Transfers go out in groups; there are no data-parallel replicas here.
    assert set(Kind) == {*HANDLERS, *TRANSFER_KINDS, *SHARDING_KINDS}
    assert set(MADE) == set(Kind)


@pytest.mark.processes
@pytest.mark.parametrize("kind", CASES.values(), ids=lambda kind: kind.name)
def test_schedules_of_every_kind_run(kind: Kind) -> None:
    assert verified(schedule_with(kind)).tensors
