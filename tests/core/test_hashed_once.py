"""Hashes that are computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from debubble.core.hashed_once import hashed_once


@hashed_once
@dataclass(frozen=True)
class Pair:
    one: int
    other: tuple[int, ...] = ()


def test_equal_objects_have_equal_hashes_and_changed_ones_their_own() -> None:
    first = Pair(1, (2, 3))
    assert hash(first) == hash(Pair(1, (2, 3)))
    assert first == Pair(1, (2, 3))
    changed = replace(first, one=2)
    assert {first: "a"}.get(changed) is None
    assert hash(changed) == hash(Pair(2, (2, 3)))
