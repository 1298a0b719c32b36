"""Options of a plan, a row each; the command line, Python and sweeps read them from here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.options import AnyText, OptionSpec, Range, Real, Whole, Word, quoted
from debubble.core.units import read_number
from debubble.interchange.layouts import Layout, is_layout, read_layout
from debubble.planner.candidate import PRECISIONS, recomputed_layers
from debubble.planner.frameworks.table import ANY, FRAMEWORKS, find_frameworks
from debubble.planner.hardware.cluster import read_bytes
from debubble.planner.request import (
    GRADIENTS,
    LARGEST,
    MOMENTS,
    MOST_IMBALANCE,
    OFFLOADS,
    SEQUENCE,
    SIZES,
    WEIGHTS,
    Fixed,
    PlanRequest,
    plan_request,
)
from debubble.schedules import registry


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


def _amount(name: str, text: str) -> float:
    """Return an amount of memory, or 0."""
    return 0.0 if text.strip() == "0" else read_bytes(text, name)


_MEMORY = Values(lambda _, text: read_bytes(text), lambda _, value: read_bytes(str(value)), "real")
_POOLS = Values(
    lambda name, text: _amount(name, text), lambda name, value: _amount(name, str(value)), "real"
)
# The request checks the limits of a ratio.
_RATIO = Values(lambda _, text: read_number(text), Real(0.0, MOST_IMBALANCE).check, "real")
_COUNT = Whole(LARGEST, at_once=True)
_SHOWN = Whole(1000, at_once=True)
_NAMES = list(FRAMEWORKS)

ASKED = (
    OptionSpec("model", AnyText(), "MODEL", "Name of a model, its config.json, or a YAML file.",
               "Training"),
    OptionSpec("gpu", AnyText(), "NAME", "GPU type: h100, mi300x, …, or a YAML file.", "Training"),
    OptionSpec("gpus", _COUNT, "N", "Number of GPUs.", "Training"),
    OptionSpec("batch", _COUNT, "N", "Sequences per optimizer step.", "Training"),
    OptionSpec("seq", _COUNT, "N", "Tokens per sequence.", "Training", shown=str(SEQUENCE)),
)  # fmt: skip
"""Options of the training itself; all but the last have to be given."""

HELD = (
    *(
        OptionSpec(name, _COUNT, "N", f"Fix the {what}.", "Parallelism", example="2")
        for name, what in SIZES.items()
    ),
    OptionSpec("schedule", Values(_schedules, _schedules), "NAMES",
               "Fix the schedule, or allow some: 1f1b,zb-v.", "Parallelism",
               example="1f1b"),
    OptionSpec("layers", Values(_layers, _layers), "COUNTS",
               "Fix the layers of stages: 7,8,8,9 or 'Et*7|(t*8|)*2t*9L'.", "Parallelism",
               example="7,8,8,9"),
    OptionSpec("recompute", Values(_recompute, _recompute), "HOW",
               "Fix recomputation: none, selective, full, or full:N layers per stage.",
               "Parallelism", example="full"),
    OptionSpec("zero", Whole(3, 0, at_once=True), "0-3",
               "Fix the ZeRO stage: optimizer (1), gradients (2), weights (3) sharded.",
               "Parallelism", example="2"),
)  # fmt: skip
"""Options that constrain a plan if they are given."""

STATE = (
    OptionSpec("gradients", Word(tuple(GRADIENTS)), "KIND",
               "Type of accumulated gradients: fp32 or bf16.",
               "Precision and memory", default="fp32"),
    OptionSpec("moments", Word(tuple(MOMENTS)), "KIND",
               "Type of Adam's moments: fp32, bf16 or fp8.",
               "Precision and memory", default="fp32"),
    OptionSpec("weights", Word(WEIGHTS), "KIND",
               "Type of stored weights: bf16, fp8 or fp4.", "Precision and memory",
               shown="fp8 where Megatron-LM multiplies in 8 bits, else bf16"),
    OptionSpec("offload", Word(OFFLOADS), "WHAT",
               "optimizer (its states stay on the host) or none.",
               "Precision and memory", default="none"),
    OptionSpec("graph_pools", _POOLS, "SIZE", "Memory of CUDA-graph pools, such as 4GB.",
               "Precision and memory", default=0),
)  # fmt: skip
"""Options on what training keeps, and where; the same for every candidate."""

PLAN_OPTIONS = (
    *ASKED,
    *HELD,
    OptionSpec("precision", AnyText(), "NAME",
               f"{', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}.", "Precision and memory",
               default=PRECISIONS[0]),
    *STATE,
    OptionSpec("framework", AnyText(), "NAME",
               f"Framework: {', '.join(_NAMES)}, or {ANY} (no framework's rules).",
               "Training", shown="the best one", example="torchtitan"),
    OptionSpec("memory", _MEMORY, "LIMIT", "Memory limit per GPU, such as 72GB.",
               "Precision and memory"),
    OptionSpec("imbalance", _RATIO, "X", "Load of the busiest experts over the mean.",
               "Training", default=1),
    OptionSpec("calibrate", AnyText(), "FILE",
               "Calibrate with measured steps, a log, or a profile.", "Training"),
    OptionSpec("why", AnyText(), "KEY=VALUE",
               "Compare with the best plan that has this, such as pp=2.", "Search", repeated=True),
    OptionSpec("top", _SHOWN, "K", "Number of plans to show.", "Search", default=5),
    OptionSpec("optimize", _SHOWN, "K",
               "Search for faster schedules of the K best plans.", "Search"),
    OptionSpec("time_limit", Values(_seconds, _seconds), "SECONDS",
               "Time limit of each such search.", "Search"),
)  # fmt: skip
"""All options of a plan in the order of ``--help``."""

ROWS = {row.name: row for row in PLAN_OPTIONS}


def request_of(values: Mapping[str, Any]) -> PlanRequest:
    """Return the request of checked values, by the names of their options."""
    return plan_request(
        values["model"], values["gpu"], values["gpus"], values["batch"], values.get("seq"),
        fixed=fixed_of(values), **{
            name: values[name]
            for name in ("precision", "memory", "imbalance", *(row.name for row in STATE))
            if values.get(name) is not None
        },
    )  # fmt: skip


def fixed_of(values: Mapping[str, Any]) -> Fixed:
    """Return the constraints, by the names of options; other options are ignored."""
    held = {row.name: values.get(row.name) for row in HELD}
    if isinstance(layout := held["layers"], Layout):
        held |= {"layers": layout.cut, "mtp": layout.mtp, "mtp_stage": layout.mtp_stage}
    name = values.get("framework")
    framework = None if name is None else find_frameworks(name)[0]
    names = held.pop("schedule")
    return Fixed(schedules=None if names is None else tuple(names), framework=framework, **held)


def frameworks_of(values: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return the frameworks that plans are searched for, None for plans that only divide.

    A measured step is one framework's: Megatron-LM's unless another is given.
    """
    name = values.get("framework")
    if name is None and values.get("calibrate") is not None:
        name = next(iter(FRAMEWORKS))
    return find_frameworks(name)


def values_with(values: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return values of options with one more, such as ``"pp=16"``."""
    key, equals, value = text.partition("=")
    name, names = key.strip().replace("-", "_"), [row.name for row in (*HELD, *STATE)]
    names += ["framework", "precision"]
    if not equals and name in names:
        like = ROWS[name].examples[-1] or ROWS[name].default
        raise ParameterError(f"--why is '{text}'; give a value, too, such as {name}={like}")
    if not equals or name not in names:
        hint = did_you_mean(name, names)
        raise ParameterError(f"--why is '{text}'; give a key and a value, such as pp=16: {hint}")
    if "=" in value:
        raise ParameterError(
            f"--why is '{text}'; give one condition, such as {key.strip()}="
            f"{value.partition(',')[0]}, and hold the others by their options"
        )
    row = ROWS[name]
    read = row.type.read(row.flag, value.strip())
    if name == "framework":
        find_frameworks(read)
    elif name == "precision" and read not in PRECISIONS:
        raise ParameterError(f"--why is '{text}'; {did_you_mean(read, PRECISIONS)}")
    elif name == "schedule":
        for one in read:
            registry.find(one)
    return {**values, name: read}
