"""Rotary positions: their base, the share of a head that they rotate, and their scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from debubble.planner.model.config_parts import FULL

MOST_THETA = 1e15
"""Bases are below it."""

THETAS = ("rope_theta", "rotary_emb_base")
"""Names of the base."""

SHARES = ("partial_rotary_factor", "rotary_pct")
"""Names of the share of a head that is rotated."""

PLAIN = ("", "default", "mrope", "proportional")
"""Types of positions that are not stretched."""


def rotary_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model on rotary positions from the keys of a ``config.json``.

    They are those of full attention where kinds of attention have their own.
    """
    groups = _groups(config)

    def number(keys: Sequence[str], most: float) -> float | None:
        values = (one.get(key) for one in (config, *groups) for key in keys)
        numbers = (one for one in values if isinstance(one, int | float))
        return next((float(one) for one in numbers if 0 < one < most), None)

    theta = number(THETAS, MOST_THETA)
    return {
        "rope_theta": theta if theta and theta > 1 else None,
        "rope_share": number(SHARES, 1.0) or 1.0,
        "rope_scaling": next((one for one in map(scaling, groups) if one), {}),
    }


def scaling(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys by which positions are stretched, ``rope_type`` among them; empty if not."""
    kind = group.get("rope_type", group.get("type"))
    if not isinstance(kind, str) or kind in PLAIN:
        return {}
    others = {key: one for key, one in group.items() if isinstance(one, int | float)}
    return {"rope_type": kind, **others}


def _groups(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the groups of keys on rotary positions, those of full attention first."""
    groups = [config.get(key) for key in ("rope_parameters", "rope_scaling")]
    nested = [group.get(FULL) for group in groups if isinstance(group, Mapping)]
    return [one for one in (*nested, *groups) if isinstance(one, Mapping)]
