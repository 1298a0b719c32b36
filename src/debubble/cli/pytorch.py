"""Commands that need PyTorch say so."""

from __future__ import annotations

import importlib.util

from debubble.core.errors import DebubbleError


def require_torch() -> None:
    """Refuse to go on without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        raise DebubbleError("running needs PyTorch; pip install 'debubble[run]'")
