"""Options of a plan, a row each; the command line, Python and sweeps read them from here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.options import AnyText, OptionSpec, Range, Real, Whole, quoted
from debubble.core.units import read_number
from debubble.planner.candidate import PRECISIONS, recomputed_layers
from debubble.planner.frameworks.table import FRAMEWORKS
from debubble.planner.hardware.cluster import read_bytes
from debubble.planner.request import LARGEST, SEQUENCE, Fixed, PlanRequest, plan_request


@dataclass(frozen=True)
class Schedules:
    """Names of schedules to choose from."""

    range: Range = ""

    def read(self, name: str, text: str) -> tuple[str, ...]:  # noqa: ARG002 - called as others are
        """Return the names in ``1f1b,zb-v``."""
        return tuple(part.strip() for part in text.split(","))

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        """Return one name, or a list of names, as names."""
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
            raise ParameterError(f"{name} is {quoted(value)}; give a name such as 1f1b, or several")
        return tuple(one.strip() for one in names)


@dataclass(frozen=True)
class LayersOfStages:
    """Layers of every stage."""

    range: Range = ""

    def read(self, name: str, text: str) -> tuple[int, ...]:
        """Return the numbers in ``7,8,8,9``."""
        parts = [part.strip(" ") for part in text.split(",")]
        if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
            raise ParameterError(
                f"{name} is '{text}'; give a number for every stage, such as 7,8,8,9"
            )
        return tuple(map(int, parts))

    def check(self, name: str, value: Any) -> tuple[int, ...]:
        """Return a list of whole numbers as numbers."""
        if isinstance(value, str):
            return self.read(name, value)
        if not isinstance(value, list | tuple) or not value:
            raise ParameterError(f"{name} is {quoted(value)}; give a number for every stage")
        return tuple(Whole(LARGEST, 0).check(name, one) for one in value)


@dataclass(frozen=True)
class Recompute:
    """Ways to recompute: one of the words, or ``full:N``."""

    range: Range = ""

    def read(self, name: str, text: str) -> str:
        """Return the way in a text."""
        return self.check(name, text)

    def check(self, name: str, value: Any) -> str:
        """Return a way as it is."""
        try:
            recomputed_layers(str(value))
        except ParameterError as error:
            raise ParameterError(f"{name}{str(error).removeprefix('recompute')}") from None
        return str(value)


@dataclass(frozen=True)
class MemoryOfGpu:
    """Memory of one GPU, in bytes."""

    range: Range = "real"

    def read(self, name: str, text: str) -> float:  # noqa: ARG002 - called as others are
        """Return the bytes in ``72GB``."""
        return read_bytes(text)

    def check(self, name: str, value: Any) -> float:
        """Return the bytes of a text or number."""
        return self.read(name, str(value))


@dataclass(frozen=True)
class Ratio:
    """A number whose limits the request checks."""

    range: Range = "real"

    def read(self, name: str, text: str) -> float:  # noqa: ARG002 - called as others are
        """Return the number in a text."""
        return read_number(text)

    def check(self, name: str, value: Any) -> float:
        """Return a number."""
        return Real(-LARGEST).check(name, value)


@dataclass(frozen=True)
class Seconds:
    """A time limit."""

    range: Range = "real"

    def read(self, name: str, text: str) -> float:
        """Return the seconds in a text."""
        return self._positive(name, text, read_number(text))

    def check(self, name: str, value: Any) -> float:
        """Return a positive number."""
        return self._positive(name, value, float(value))

    def _positive(self, name: str, value: Any, number: float) -> float:
        if not 0 < number < float("inf"):
            raise ParameterError(f"{name} is '{value}'; it is a positive number of seconds")
        return number


_COUNT = Whole(LARGEST, at_once=True)
_SHOWN = Whole(1000, at_once=True)
_NAMES = list(FRAMEWORKS)

ASKED = (
    OptionSpec("model", AnyText(), "MODEL", "Name of a model, its config.json, or a YAML file.",
               "request"),
    OptionSpec("gpu", AnyText(), "NAME", "h100, mi300x, …, or a YAML file.", "request"),
    OptionSpec("gpus", _COUNT, "N", "How many.", "request"),
    OptionSpec("batch", _COUNT, "N", "Sequences per optimizer step.", "request"),
    OptionSpec("seq", _COUNT, "N", "Tokens per sequence.", "request", shown=str(SEQUENCE)),
)  # fmt: skip
"""What a plan is for; all but the last have to be given."""

HELD = (
    *(
        OptionSpec(name, _COUNT, "N", "Hold it fixed.", "held", example="2")
        for name in ("tp", "cp", "ep", "dp", "pp", "chunks", "microbatch_size")
    ),
    OptionSpec("schedule", Schedules(), "NAMES", "One schedule, or several: 1f1b,zb-v.", "held",
               example="1f1b"),
    OptionSpec("layers", LayersOfStages(), "COUNTS",
               "Of every stage: 7,8,8,9. Else the best are found.", "held", example="7,8,8,9"),
    OptionSpec("recompute", Recompute(), "HOW",
               "none, selective, full, or full:N layers of a stage.", "held", example="full"),
    OptionSpec("zero", Whole(3, 0, at_once=True), "0-3",
               "What replicas split: optimizer (1), gradients (2), weights (3).", "held",
               example="2"),
)  # fmt: skip
"""What a plan is held to where it is given."""

PLAN_OPTIONS = (
    *ASKED,
    *HELD,
    OptionSpec("precision", AnyText(), "NAME",
               f"{', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}.", "request",
               default=PRECISIONS[0]),
    OptionSpec("framework", AnyText(), "NAME",
               f"Only what {', '.join(_NAMES[:-1])} or {_NAMES[-1]} can run.", "request"),
    OptionSpec("memory", MemoryOfGpu(), "LIMIT", "Memory per GPU, such as 72GB.", "request"),
    OptionSpec("imbalance", Ratio(), "X", "Tokens of the busiest experts over the mean.",
               "request", default=1),
    OptionSpec("calibrate", AnyText(), "FILE", "Measured steps, a log, or a profile.", "request"),
    OptionSpec("why", AnyText(), "KEY=VALUE", "Why not this? The best plan with it, beside.",
               "search", repeated=True),
    OptionSpec("top", _SHOWN, "K", "Plans to show.", "search", default=5),
    OptionSpec("optimize", _SHOWN, "K", "Look for faster orders of the K best plans.", "search"),
    OptionSpec("time_limit", Seconds(), "SECONDS",
               "For each of them; else a fixed amount of work.", "search"),
)  # fmt: skip
"""All options of a plan in the order of ``--help``."""

ROWS = {row.name: row for row in PLAN_OPTIONS}

SIZES = tuple(row.name for row in HELD if row.type is _COUNT)
"""Degrees and other sizes that can be held."""


def request_of(values: Mapping[str, Any]) -> PlanRequest:
    """Return the request that checked values say, by the names of their options."""
    return plan_request(
        values["model"], values["gpu"], values["gpus"], values["batch"], values.get("seq"),
        fixed=fixed_of(values), **{
            name: values[name] for name in ("precision", "memory", "imbalance")
            if values.get(name) is not None
        },
    )  # fmt: skip


def fixed_of(values: Mapping[str, Any]) -> Fixed:
    """Return what is held, by the names of options; others are ignored."""
    held = {row.name: values.get(row.name) for row in (*HELD, ROWS["framework"])}
    return Fixed(schedules=held.pop("schedule"), **held)


def fixed_with(values: Mapping[str, Any], text: str) -> Fixed:
    """Return what is held with one thing more, such as ``"pp=16"``."""
    key, equals, value = text.partition("=")
    name, names = key.strip().replace("-", "_"), [row.name for row in HELD]
    if not equals and name in names:
        like = ROWS[name].example
        raise ParameterError(f"--why is '{text}'; give a value, too, such as {name}={like}")
    if not equals or name not in names:
        hint = did_you_mean(name, names)
        raise ParameterError(f"--why is '{text}'; give a key and a value, such as pp=16: {hint}")
    row = ROWS[name]
    return fixed_of({**values, name: row.type.read(row.flag, value.strip())})
