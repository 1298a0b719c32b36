"""Words that a shell offers on Tab; without any it offers files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

Complete: TypeAlias = Callable[[str], list[str]]
"""Words that complete the beginning of one."""


def one_of(words: Iterable[str]) -> Complete:
    """Return a completion from some words."""
    known = tuple(words)

    def complete(typed: str) -> list[str]:
        return [word for word in known if word.startswith(typed)]

    return complete


def schedules(typed: str) -> list[str]:
    """Complete names of registered schedules."""
    from debubble.schedules import registry

    return one_of(registry.entries())(typed)


def gpus(typed: str) -> list[str]:
    """Complete names of GPUs."""
    from debubble.planner.hardware.gpus import GPUS

    return one_of(GPUS)(typed)


def models(typed: str) -> list[str]:
    """Complete names of models."""
    from debubble.planner.model.files import shipped_models

    return one_of(shipped_models())(typed)
