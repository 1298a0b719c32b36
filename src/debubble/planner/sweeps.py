"""The former place of ``debubble.sweeps``."""

from __future__ import annotations

from typing import Any

from debubble.core.hooks import name_of_sweeps


def __getattr__(name: str) -> Any:
    return name_of_sweeps(name)
