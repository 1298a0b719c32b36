"""Errors of pipelines that run."""

from __future__ import annotations

from debubble.core.errors import DebubbleError


class RunError(DebubbleError):
    """A run that ended early; the message names ranks, stages and actions."""
