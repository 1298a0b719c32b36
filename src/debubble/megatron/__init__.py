"""Megatron-LM, measured by the names that our readers know.

>>> import debubble.megatron  # doctest: +SKIP
>>> debubble.megatron.name_steps()  # doctest: +SKIP
"""

from __future__ import annotations

from debubble.megatron.named_steps import name_steps

__all__ = ["name_steps"]
