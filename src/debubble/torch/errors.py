"""What training raises when a pipeline cannot go on."""

from __future__ import annotations

from debubble.core.errors import DebubbleError


class RunError(DebubbleError):
    """A run ended early; the message names ranks, stages and actions."""
