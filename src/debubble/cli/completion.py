"""Words that a shell offers on Tab; without any it offers files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TypeAlias

from debubble.schedules import registry

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
    return one_of(registry.entries())(typed)


def models(typed: str) -> list[str]:
    """Complete names of models."""
    from debubble.planner.model.files import shipped_models

    return one_of(shipped_models())(typed)


def _planned(module: str, table: str, *more: str) -> Complete:
    """Return a completion from the keys of a table of the planner, which is imported when used."""

    def complete(typed: str) -> list[str]:
        names = getattr(import_module(f"debubble.planner.{module}"), table)
        return one_of((*names, *more))(typed)

    return complete


BY_NAME: dict[str, Complete] = {
    "framework": _planned("frameworks.table", "FRAMEWORKS", "any"),
    "gpu": _planned("hardware.gpus", "GPUS"),
}
"""Words for options that are not one of a few."""
