"""Megatron-LM: our schedules in its loop, and names that our readers know in its profiles.

>>> import debubble.megatron as dm  # doctest: +SKIP
>>> dm.install("interleaved-zb")  # doctest: +SKIP
>>> dm.trace_ranges()  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from debubble.megatron.named_steps import name_steps, trace_ranges

if TYPE_CHECKING:
    from debubble.megatron.installation import forward_backward_func, install, uninstall
    from debubble.megatron.placement import place_model
    from debubble.megatron.refused import check

__all__ = [
    "check", "forward_backward_func", "install", "name_steps", "place_model", "trace_ranges",
    "uninstall",
]  # fmt: skip

_MODULES = {"check": "refused", "place_model": "placement"} | dict.fromkeys(
    ("forward_backward_func", "install", "uninstall"), "installation"
)


def __getattr__(name: str) -> Any:
    # These load PyTorch.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
