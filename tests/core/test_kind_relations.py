"""Sets and relations that follow from the table of kinds."""

from __future__ import annotations

import pytest

from debubble.core.kind_relations import (
    ACTIVATION_KINDS,
    PASS_KINDS,
    RECOMPUTE_KINDS,
    SPLIT_KINDS,
    transfer_of,
)
from debubble.core.kinds import Kind


def test_sets_are_what_their_names_say():
    assert ACTIVATION_KINDS == (Kind.F,)
    assert RECOMPUTE_KINDS == (Kind.R,)
    assert PASS_KINDS == (Kind.F, Kind.I, Kind.W, Kind.B)
    assert SPLIT_KINDS == (Kind.I, Kind.W)


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        (Kind.F, (Kind.SEND_F, Kind.RECV_F)),
        (Kind.I, (Kind.SEND_B, Kind.RECV_B)),
        (Kind.B, (Kind.SEND_B, Kind.RECV_B)),
    ],
)
def test_what_a_kind_computes_goes_through_its_transfer(kind, ends):
    assert transfer_of(kind) == ends
