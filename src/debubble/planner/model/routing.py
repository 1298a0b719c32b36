"""Groups of experts that routers choose from, and the scale of their output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def routing_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of experts on groups and scale from the keys of a ``config.json``."""

    def number(key: str) -> float:
        found = config.get(key)
        return found if isinstance(found, int | float) and found > 0 else 1

    groups = int(number("n_group"))
    return {
        "groups": groups,
        "group_top_k": min(int(number("topk_group")), groups),
        "scale": float(number("routed_scaling_factor")),
    }
