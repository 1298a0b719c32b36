"""Hashes that are computed once, for frozen dataclasses by which results are looked up."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def hashed_once(kind: type[T]) -> type[T]:
    """Return a frozen dataclass whose objects keep their hash."""
    of_fields = kind.__hash__

    def kept_hash(self: T) -> int:
        kept = self.__dict__
        if "_hash" not in kept:
            kept["_hash"] = of_fields(self)
        return int(kept["_hash"])

    kind.__hash__ = kept_hash  # type: ignore[method-assign, assignment]
    return kind
