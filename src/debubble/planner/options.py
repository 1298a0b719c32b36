"""Options of a plan, a row each; the command line, Python and sweeps read them from here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.options import AnyText, OptionSpec, Range, Real, Whole, quoted
from debubble.core.units import read_number
from debubble.interchange.layouts import Layout, is_layout, read_layout
from debubble.planner.candidate import PRECISIONS, recomputed_layers
from debubble.planner.frameworks.table import FRAMEWORKS
from debubble.planner.hardware.cluster import read_bytes
from debubble.planner.request import (
    LARGEST,
    MOST_IMBALANCE,
    SEQUENCE,
    Fixed,
    PlanRequest,
    plan_request,
)


@dataclass(frozen=True)
class Values:
    """Values of an option: a reader of texts, and a check of Python values."""

    read: Callable[[str, str], Any]
    check: Callable[[str, Any], Any]
    range: Range = ""


def _schedules(name: str, value: Any) -> tuple[str, ...]:
    """Return the names of schedules in ``1f1b,zb-v``, or in a list."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        raise ParameterError(f"{name} is {quoted(value)}; give a name such as 1f1b, or several")
    return tuple(one.strip() for one in names)


def _layers(name: str, value: Any) -> tuple[int, ...] | Layout:
    """Return the layers of every stage in ``7,8,8,9``, in a list, or in Megatron-LM's layout."""
    if isinstance(value, Layout):
        return value
    if isinstance(value, str) and is_layout(value):
        try:
            return read_layout(value)
        except ParameterError as error:
            raise ParameterError(f"{name}: {error}") from None
    parts = value.split(",") if isinstance(value, str) else value
    texts = [str(part).strip(" ") for part in parts] if isinstance(parts, list | tuple) else [""]
    if not all(re.fullmatch(r"[0-9]{1,9}", text) for text in texts):
        raise ParameterError(
            f"{name} is {quoted(value)}; give a number for every stage, such as 7,8,8,9, or a "
            "layout such as 'Et*7|(t*8|)*2t*9L'"
        )
    return tuple(map(int, texts))


def _recompute(name: str, value: Any) -> str:
    """Return a way to recompute, refused if it is unknown."""
    try:
        recomputed_layers(str(value))
    except ParameterError as error:
        raise ParameterError(f"{name}{str(error).removeprefix('recompute')}") from None
    return str(value)


def _seconds(name: str, value: Any) -> float:
    """Return a time limit."""
    number = read_number(str(value))
    if not 0 < number < math.inf:
        raise ParameterError(f"{name} is '{value}'; it is a positive number of seconds")
    return number


_MEMORY = Values(lambda _, text: read_bytes(text), lambda _, value: read_bytes(str(value)), "real")
# The request checks the limits of a ratio.
_RATIO = Values(lambda _, text: read_number(text), Real(0.0, MOST_IMBALANCE).check, "real")
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
"""Options of the training itself; all but the last have to be given."""

HELD = (
    *(
        OptionSpec(name, _COUNT, "N", "Hold it fixed.", "held", example="2")
        for name in ("tp", "cp", "ep", "dp", "pp", "chunks", "microbatch_size")
    ),
    OptionSpec("schedule", Values(_schedules, _schedules), "NAMES",
               "One schedule, or several: 1f1b,zb-v.", "held",
               example="1f1b"),
    OptionSpec("layers", Values(_layers, _layers), "COUNTS",
               "Of every stage: 7,8,8,9 or 'Et*7|(t*8|)*2t*9L'; the best unless given.", "held",
               example="7,8,8,9"),
    OptionSpec("recompute", Values(_recompute, _recompute), "HOW",
               "none, selective, full, or full:N layers of a stage.", "held", example="full"),
    OptionSpec("zero", Whole(3, 0, at_once=True), "0-3",
               "What replicas split: optimizer (1), gradients (2), weights (3).", "held",
               example="2"),
)  # fmt: skip
"""Options that constrain a plan if they are given."""

PLAN_OPTIONS = (
    *ASKED,
    *HELD,
    OptionSpec("precision", AnyText(), "NAME",
               f"{', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}.", "request",
               default=PRECISIONS[0]),
    OptionSpec("framework", AnyText(), "NAME",
               f"Only what {', '.join(_NAMES[:-1])} or {_NAMES[-1]} can run.", "request"),
    OptionSpec("memory", _MEMORY, "LIMIT", "Memory per GPU, such as 72GB.", "request"),
    OptionSpec("imbalance", _RATIO, "X", "Tokens of the busiest experts over the mean.",
               "request", default=1),
    OptionSpec("calibrate", AnyText(), "FILE", "Measured steps, a log, or a profile.", "request"),
    OptionSpec("why", AnyText(), "KEY=VALUE", "Why not this? The best plan with it, beside.",
               "search", repeated=True),
    OptionSpec("top", _SHOWN, "K", "Plans to show.", "search", default=5),
    OptionSpec("optimize", _SHOWN, "K", "Look for faster orders of the K best plans.", "search"),
    OptionSpec("time_limit", Values(_seconds, _seconds), "SECONDS",
               "For each of them; else a fixed amount of work.", "search"),
)  # fmt: skip
"""All options of a plan in the order of ``--help``."""

ROWS = {row.name: row for row in PLAN_OPTIONS}

SIZES = tuple(row.name for row in HELD if row.type is _COUNT)
"""Degrees and other sizes that can be held."""


def request_of(values: Mapping[str, Any]) -> PlanRequest:
    """Return the request of checked values, by the names of their options."""
    return plan_request(
        values["model"], values["gpu"], values["gpus"], values["batch"], values.get("seq"),
        fixed=fixed_of(values), **{
            name: values[name] for name in ("precision", "memory", "imbalance")
            if values.get(name) is not None
        },
    )  # fmt: skip


def fixed_of(values: Mapping[str, Any]) -> Fixed:
    """Return the constraints, by the names of options; other options are ignored."""
    held = {row.name: values.get(row.name) for row in (*HELD, ROWS["framework"])}
    if isinstance(layout := held["layers"], Layout):
        held |= {"layers": layout.cut, "mtp": layout.mtp, "mtp_stage": layout.mtp_stage}
    return Fixed(schedules=held.pop("schedule"), **held)


def fixed_with(values: Mapping[str, Any], text: str) -> Fixed:
    """Return the constraints with one more, such as ``"pp=16"``."""
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
