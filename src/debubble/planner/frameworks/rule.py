"""Rules of frameworks, the refusals that they return, and the nearest values that work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from debubble.planner.case import Case

DEGREES, ORDER, STATE = "degrees", "order", "state"
"""Scopes of rules, each with model and training. Degrees: tp, cp, ep, dp and pp with the number of
GPUs; order: also schedule, stages and microbatches; state: also recompute and ZeRO."""


@dataclass(frozen=True)
class Refusal:
    """A broken rule: the wrong value with its limit, and the nearest that works.

    `changes` are the nearest values with which the rule holds, by name: a degree, or a field of
    candidate, training or model.
    """

    text: str
    changes: Mapping[str, Any]

    @property
    def nearest(self) -> str:
        """The changes in words, such as "the nearest that works is tp 4"."""
        shown = (f"{_WORDS.get(name, name)} {_shown(one)}" for name, one in self.changes.items())
        return f"the nearest that works is {' with '.join(shown)}"

    def __str__(self) -> str:
        return f"{self.text}; {self.nearest}"


@dataclass(frozen=True)
class Rule:
    """One thing that a framework refuses."""

    name: str
    """Key of the rule, unique in its framework."""
    option: str
    """The framework's option that is refused, or its function that refuses."""
    scope: str
    """Part of a case that the rule depends on, see :data:`DEGREES`."""
    check: Callable[[Case], Refusal | None]
    of_order: bool = False
    """True if it refuses a schedule, by its stages alone, that may run elsewhere on PyTorch."""


_WORDS = {
    "microbatch_size": "microbatch size", "gpus": "GPUs", "sequence_parallel": "sequence parallel",
    "zero": "ZeRO", "tied": "tied embeddings", "mtp": "MTP layers",
    "mtp_stage": "multi-token prediction on stage", "moment_bytes": "moments of",
    "gradient_bytes": "gradients of",
    "offload_optimizer": "offload of the optimizer", "graph_pools": "graph pools of",
}  # fmt: skip


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a number, ascending."""
    small = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return tuple(dict.fromkeys([*small, *(number // k for k in reversed(small))]))


def nearest_of(value: int, allowed: tuple[int, ...]) -> int:
    """Return the allowed number nearest to a value, by ratio; the smaller of two."""
    return min(allowed, key=lambda one: (max(one, value) / min(one, value), one))


def nearest_multiple(value: int, unit: int) -> int:
    """Return the multiple of a number nearest to a value, at least one; the larger of two."""
    return max(round(value / unit + 1e-9), 1) * unit
