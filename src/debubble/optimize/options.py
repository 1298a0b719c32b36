"""Options of searches alone, as rows of the table that commands and pages read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from debubble.core.errors import ParameterError
from debubble.core.options import AnyText, OptionSpec, Range, Real, Whole, Word, quoted, read_whole
from debubble.lowering.chain import read_stages
from debubble.optimize.problem import BACKWARDS

OF_FILE = "costs"
"""Layers whose costs are those of the cost file."""

LARGEST = 999_999_999
"""Largest whole number of an option that has no limit of its own."""


@dataclass(frozen=True)
class WordOr:
    """One of some words, or another value."""

    words: tuple[str, ...]
    other: Callable[[str, str], Any]
    """Reads another text; gets the name, for messages, and the text."""
    advice: str
    """Other values, in words."""
    range: Range = ""

    def read(self, name: str, text: str) -> Any:
        """Return the value in a typed text."""
        if text.strip() in self.words:
            return text.strip()
        try:
            return self.other(name, text)
        except ParameterError:
            raise self._refused(name, text) from None

    def check(self, name: str, value: Any) -> Any:
        """Return the value that a file gives: a word, a number or a list of numbers."""
        if isinstance(value, bool) or not isinstance(value, str | int | list):
            raise self._refused(name, value)
        return self.read(name, ",".join(map(str, value)) if isinstance(value, list) else str(value))

    def _refused(self, name: str, value: Any) -> ParameterError:
        words = ", ".join(self.words)
        return ParameterError(f"{name} is {quoted(value)}; give {words}, {self.advice}")


def _ranks(name: str, text: str) -> list[int]:
    return [read_whole(name, part) for part in text.split(",")]


def _stages(name: str, text: str) -> str | list[int]:
    if text.strip() == "full":
        raise ParameterError
    return read_stages(name, text)


STAGES = "or stages such as 0,1,4-7"

RECOMPUTE = WordOr(("none", "full", "free"), _stages, STAGES)
OFFLOAD = WordOr(("none", "free"), _stages, STAGES)
"""Values of two lowerings that a search may choose itself."""


def _option(
    name: str, values: Any, metavar: str, help: str, example: str = "", **more: Any
) -> OptionSpec:
    return OptionSpec(
        name, values, metavar, help, "Search", example=example, only=("optimize",), **more
    )


SEARCH_OPTIONS = (
    _option(
        "layers", WordOr((OF_FILE,), read_whole, "or a number of layers", "whole"), "N|costs",
        "Split layers into the fastest stages: N equal ones, or the cost file's.", "8",
    ),
    _option(
        "placement", WordOr(("any", "loop", "wave"), _ranks, "or the stages' ranks: 0,1,1,0"),
        "SHAPE", "loop, wave (with two chunks, a V), any, or ranks of stages: 0,1,1,0.", "wave",
        neutral="any",
    ),
    _option(
        "backward", Word(BACKWARDS), "HOW", "Backward passes: split, fused, or free (the faster).",
        neutral="free",
    ),
    _option("time_limit", Real(), "S", "Seconds to search; default: a fixed amount of work.", "5"),
    _option("effort", Real(), "X", "Factor of the fixed amount of work.", "0.5", neutral="1"),
    _option(
        "seed", Whole(LARGEST, 0, at_once=True), "N", "Seed of the random numbers.", "1",
        neutral="0",
    ),
    _option("workers", Whole(256, at_once=True), "N", "Number of threads.", "1", neutral="2"),
    _option(
        "robust", AnyText(), "TIMES",
        "Minimize the p95 step time under this noise: normal:3%.", "normal:3%",
        typed_only=True,
    ),
)  # fmt: skip
"""Every option that only a search has."""
