"""Schedules that are made once and kept."""

from __future__ import annotations

import pytest

from debubble.schedules import registry
from debubble.schedules.registry import made_once


def test_schedules_asked_for_last_are_kept_up_to_a_number_of_actions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_KEPT", registry._Kept())
    monkeypatch.setattr(registry, "KEPT_ACTIONS", 150)
    small = made_once("1f1b", ranks=2, microbatches=8)
    other = made_once("1f1b", ranks=2, microbatches=16)
    assert made_once("1f1b", microbatches=8, ranks=2) is small
    made_once("gpipe", ranks=2, microbatches=16)
    assert made_once("1f1b", ranks=2, microbatches=8) is small
    assert made_once("1f1b", ranks=2, microbatches=16) is not other
    assert registry._KEPT.actions == sum(map(len, registry._KEPT.values()))
