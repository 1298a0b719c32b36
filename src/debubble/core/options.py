"""Options of a question: name, type, limits, help and where each applies.

A question is a schedule with its sizes, costs, memory limit, lowerings and mode of transfers. The
command line, the playground and sweeps make their options from these rows and from those of the
p2p modes and lowerings; :data:`debubble.analysis.question.OPTIONS` is the whole table.
"""

from __future__ import annotations

import math
import reprlib
import string
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.runtimes import RUNTIMES
from debubble.core.schedule import SYNCS
from debubble.core.units import factor, is_number, parse_whole, read_number

LIMITS = {
    "ranks": 4096, "microbatches": 1 << 24, "chunks": 256, "iterations": 1 << 16, "slices": 1 << 10,
}  # fmt: skip
"""Largest sizes of a schedule; the smallest is 1."""

LARGEST = 1e100
"""Largest number of an option that has no limit of its own, as of costs."""

Panel: TypeAlias = Literal[
    "Schedule and sizes", "Training", "Parallelism", "Precision and memory", "Costs", "Memory",
    "Transfers", "Variation", "Search", "Traces", "What if", "Conditions",
]  # fmt: skip
"""The panels that ``--help`` lists options in, in this order."""

Range: TypeAlias = Literal["whole", "real", ""]
"""The numbers that a range of values has; empty where values are no numbers."""


class OptionType(Protocol):
    """The values of an option."""

    @property
    def range(self) -> Range:
        """The numbers that a range of values has."""

    def read(self, name: str, text: str) -> Any:
        """Parse the value in a typed text; `name` is for messages."""

    def check(self, name: str, value: Any) -> Any:
        """Check the value that a file or request gives, as plain data."""


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `least` to `most`."""

    most: int
    least: int = 1
    at_once: bool = False
    """Whether typed numbers are held to the limits at once, and not where they are used."""
    range: Range = "whole"

    def read(self, name: str, text: str) -> int:
        """Parse the whole number in a text."""
        return read_whole(name, text, *((self.least, self.most) if self.at_once else ()))

    def check(self, name: str, value: Any) -> int:
        """Check a whole number, also one such as 2.0."""
        if not is_number(value) or not self.least <= value <= self.most or value != int(value):
            raise ParameterError(
                f"{name} is {quoted(value)}; give a whole number from {self.least} to {self.most:,}"
            )
        return int(value)


@dataclass(frozen=True)
class Real:
    """Numbers above `least`, up to `most`."""

    least: float = 0.0
    most: float = LARGEST
    range: Range = "real"

    def read(self, name: str, text: str) -> float:
        """Parse the number in a text."""
        number = read_number(text)
        if not self.least < number <= self.most and self.least == 0:
            raise ParameterError(f"{name} is '{text}'; it is a positive number")
        return self.check(name, number)

    def check(self, name: str, value: Any) -> float:
        """Check a number."""
        if not is_number(value) or not self.least < value <= self.most:
            raise ParameterError(
                f"{name} is {quoted(value)}; give a number above {self.least:g}, at most "
                f"{self.most:g}"
            )
        return float(value)


@dataclass(frozen=True)
class Word:
    """One of some words."""

    words: tuple[str, ...]
    range: Range = ""

    def read(self, name: str, text: str) -> str:
        """Parse the word in a text."""
        return self.check(name, text)

    def check(self, name: str, value: Any) -> str:
        """Check that it is one of the words."""
        if not isinstance(value, str) or value not in self.words:
            raise ParameterError(f"{name} is {quoted(value)}; {did_you_mean(value, self.words)}")
        return value


@dataclass(frozen=True)
class MemoryLimit:
    """A limit of every rank, or one for each; as text also with a unit of bytes."""

    range: Range = "real"

    def read(self, name: str, text: str, unit: str = "", more: str = "") -> Any:
        """Parse a limit: ``8``, ``4/4/3/3`` or ``80GB``, in `unit`; `more` ends the advice."""
        limits = tuple(self._amount(name, part, unit) for part in text.split("/"))
        if not all(limits):
            raise ParameterError(
                f"{name} is '{text}'; the limit is a positive number, or one per rank: "
                f"4/4/3/3{more}"
            )
        return limits if len(limits) > 1 else limits[0]

    def check(self, name: str, value: Any) -> Any:
        """Check a positive number, or a list with one for each rank."""
        if isinstance(value, list):
            return [Real().check(name, item) for item in value]
        return Real().check(name, value)

    def _amount(self, name: str, text: str, unit: str) -> float:
        """Return the positive number in a text in `unit`, 0 where it is none."""
        digits = text.rstrip(string.ascii_letters + " ")
        given = text[len(digits) :].strip()
        number = read_number(digits)
        if given and 0 < number < math.inf:
            times = factor(given, unit)
            if math.isnan(times):
                counted = f"in '{unit}'" if unit else "without a unit"
                raise ParameterError(
                    f"{name} is '{text}', and the costs count memory {counted}; give a number in "
                    "that, or a cost file with memory: {unit: bytes}"
                )
            number *= times
        return number if 0 < number < math.inf else 0.0


@dataclass(frozen=True)
class AnyText:
    """A text that is read with other options: costs, or options of a schedule."""

    range: Range = ""

    def read(self, name: str, text: str) -> str:  # noqa: ARG002 - as of all types
        """Return the text as it is."""
        return text

    def check(self, name: str, value: Any) -> str:
        """Check a text."""
        if not isinstance(value, str):
            raise ParameterError(f"{name} is {quoted(value)}; give a text")
        return value


@dataclass(frozen=True)
class OptionSpec:
    """A row of the table of options."""

    name: str
    """Keyword in Python, key in sweeps, and field of the page."""
    type: OptionType
    """Its values."""
    metavar: str
    """Stands for the value in ``--help``."""
    help: str
    """One line of ``--help``."""
    panel: Panel
    """The panel of ``--help`` that lists it."""
    flags: tuple[str, ...] = ()
    """Flags of the command line; the default is the name."""
    default: Any = None
    """The value where none is given."""
    shown: str = ""
    """The default as ``--help`` shows it, where it depends on other options."""
    example: str = ""
    """A value as typed; words are their own examples."""
    neutral: str = ""
    """A value as typed that changes nothing; empty where every value changes something."""
    part_of: str = ""
    """The option without which this one means nothing."""
    in_search: bool = True
    """Whether ``debubble optimize`` reads it."""
    repeated: bool = False
    """Whether it may be given several times."""
    only: tuple[str, ...] = ()
    """Commands that read it; empty for all that answer questions."""
    typed_only: bool = False
    """Whether it is a spelling of the command line: files and requests say the same otherwise."""

    @property
    def examples(self) -> tuple[str, ...]:
        """Examples of its values, as typed."""
        return self.type.words if isinstance(self.type, Word) else (self.example,)

    @property
    def flag(self) -> str:
        """The flag of the command line, for messages."""
        return self.flags[-1] if self.flags else f"--{self.name.replace('_', '-')}"


def quoted(value: Any) -> str:
    """Return a value as messages show it."""
    return f"'{value}'" if isinstance(value, str) else reprlib.repr(value)


def read_whole(name: str, text: str, least: int | None = None, most: int | None = None) -> int:
    """Parse the whole number in the text of an option, held to its limits if it has any."""
    number = parse_whole(text)
    if least is None or most is None:
        if number is None:
            raise ParameterError(f"{name} is '{text}'; give a whole number")
    elif number is None or not least <= number <= most:
        raise ParameterError(f"{name} is '{text}'; give a whole number from {least} to {most:,}")
    return number


CORE_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "ranks", Whole(LIMITS["ranks"]), "N", "Number of pipeline ranks.", "Schedule and sizes",
        ("--ranks", "-p"), example="2",
    ),
    OptionSpec(
        "microbatches", Whole(LIMITS["microbatches"]), "N", "Microbatches per training step.",
        "Schedule and sizes", ("--microbatches", "-m"), example="4",
    ),
    OptionSpec(
        "chunks", Whole(LIMITS["chunks"]), "N", "Stages per rank, if the schedule has a choice.",
        "Schedule and sizes", ("--chunks", "-v"), example="4",
    ),
    OptionSpec(
        "times", AnyText(), "TIMES",
        "Times per action: F=1,B=2,p2p=0.1; by stage: F=1/1/2.",
        "Costs", typed_only=True, example="F=10,I=11,W=7,p2p=0.5",
    ),
    OptionSpec(
        "rank_times", AnyText(), "TIMES",
        "Times per rank, divided by the chunks (default: 1).",
        "Costs", typed_only=True, example="F=4,I=4,W=2,p2p=0.25", neutral="F=1,I=1,W=1",
    ),
    OptionSpec(
        "costs", AnyText(), "FILE", "Cost file (.yaml, .json, .toml); may set sizes.",
        "Costs", typed_only=True,
    ),
    OptionSpec(
        "runtime", Word((*RUNTIMES,)), "NAME",
        "Rules of a runtime: any (default), torch or debubble.",
        "Costs", typed_only=True, default="any", neutral="any",
    ),
    OptionSpec(
        "iterations", Whole(LIMITS["iterations"]), "N",
        "Training steps in a row, with optimizer steps.", "Schedule and sizes", in_search=False,
        example="2",
    ),
    OptionSpec(
        "sync", Word(SYNCS), "RULE",
        "Optimizer sync: global, local or post-validation.", "Schedule and sizes",
        part_of="iterations", in_search=False,
    ),
    OptionSpec(
        "memory", MemoryLimit(), "LIMIT",
        "Limit per rank: 8 (unit of the costs), 80GB, 4/4/3/3.", "Memory",
        example="3", neutral="1e9",
    ),
    OptionSpec(
        "option", AnyText(), "KEY=VALUE", "Option of the schedule (repeatable).",
        "Schedule and sizes",
        in_search=False, repeated=True, typed_only=True, example="group_size=3",
    ),
    OptionSpec(
        "group_size", AnyText(), "N", "Microbatches per group (interleaved schedules).",
        "Schedule and sizes", in_search=False, typed_only=True, example="3",
    ),
)  # fmt: skip
"""Options that belong to no other layer, in the order of ``--help``."""
