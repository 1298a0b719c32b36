"""Megatron-LM: our schedules in its loop, and names that our readers know in its profiles.

>>> import debubble.megatron as dm  # doctest: +SKIP
>>> dm.install("interleaved-zb")  # doctest: +SKIP
>>> dm.trace_ranges()  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from debubble.megatron.named_steps import name_steps, trace_ranges

if TYPE_CHECKING:
    from debubble.megatron.installation import (
        check,
        forward_backward_func,
        install,
        place_model,
        uninstall,
    )

__all__ = [
    "check", "forward_backward_func", "install", "name_steps", "place_model", "trace_ranges",
    "uninstall",
]  # fmt: skip

_INSTALLATION = "check", "forward_backward_func", "install", "place_model", "uninstall"
"""Names whose module loads PyTorch."""


def __getattr__(name: str) -> Any:
    if name not in _INSTALLATION:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from debubble.megatron import installation

    return getattr(installation, name)
