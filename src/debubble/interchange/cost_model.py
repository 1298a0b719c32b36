"""Schema of cost files: keys, and error messages that name file, key and value.

Values are checked by :func:`debubble.core.cost_fields.check_cost`, as they are everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from debubble.core.cost_fields import check_number, current_names
from debubble.core.costs import BASES, COST_FIELDS, RUNTIMES, check_cost
from debubble.core.embedding_and_head import PARTS, TIMES
from debubble.core.errors import CostError, FormatError, WrongValueError, did_you_mean
from debubble.core.schedule_fields import MAX_LABEL, Sizes, up_to
from debubble.interchange.text import SHOWN, shown
from debubble.schedules.registry import LIMITS


@dataclass(frozen=True)
class FileKey:
    """A key of a cost file that is no cost."""

    shape: str
    """Valid values, in words."""
    example: str
    """A value as YAML."""
    text: str
    """Description in one line."""


TOP_KEYS = {
    "name": FileKey("text", "my model", "what was measured, for titles"),
    "source": FileKey("text", "profiled on 8 H100s", "where the numbers come from"),
    "ranks": FileKey("whole number", "8", "pipeline ranks, unless -p says otherwise"),
    "microbatches": FileKey("whole number", "32", "microbatches, unless -m says otherwise"),
    "chunks": FileKey("whole number", "2", "stages per rank, unless -v says otherwise"),
    "basis": FileKey(
        "action or rank", "rank", "whether values are per action (one stage, one microbatch), or of"
        " a rank's whole share and divided by its chunks",
    ),
    "runtime": FileKey(
        " or ".join(RUNTIMES), "torch", "who runs it: PyTorch's runtime, debubble.torch's, or any"
        " that does what the actions say",
    ),
    "time_unit": FileKey("text", "ms", "unit of all times"),
    "times": FileKey("mapping", "{F: 1, B: 2}", "the costs below; the only key that must be there"),
    "memory": FileKey("mapping", "{limit: 8}", "the memory below"),
    "layers": FileKey(
        "mapping", "{F: [1, 1, 2], B: [2, 2, 4]}", "the costs of every layer of the model, whatever"
        " stages it is cut into: lists of one length; embedding, head and mtp beside them",
    ),
    "measured": FileKey("mapping", "{}", "anything; what was measured and is no cost"),
    "expected": FileKey("mapping", "{}", "anything; debubble's own tests keep results here"),
}  # fmt: skip
"""Keys of the file itself."""

MEMORY_KEYS = {
    "unit": FileKey("text", "GB", "unit of activation, kv and limit"),
    "limit": FileKey(
        "one number or a list", "8", "activation memory of a rank, or of each, unless --memory says"
        " otherwise; in the unit of activation, in activation units where that is left out",
    ),
    **{
        name: FileKey("one number", "0", f"activation of {words}, on top of its stage's")
        for name, words in (
            ("embedding", "the embedding"), ("head", "the head"), ("mtp", "multi-token prediction"),
        )
    },
}  # fmt: skip
"""Keys of ``memory`` that are no costs of their own."""


FREE = ("measured", "expected")
"""Sections that hold anything."""

SECTIONS = ("times", "memory", "layers", *FREE)

WORDS = {"basis": BASES, "runtime": RUNTIMES}
"""Words that a key of the file takes."""


def keys_of(section: str) -> dict[str, Any]:
    """All keys of a section of the file, ``""`` for the file itself, and what is known of them."""
    if not section:
        return dict(TOP_KEYS)
    if section == "layers":
        of_layers = {name: spec for name, spec in COST_FIELDS.items() if spec.shape == "stage"}
        return of_layers | {name: COST_FIELDS[name] for name in PARTS}
    costs = {name: spec for name, spec in COST_FIELDS.items() if spec.section == section}
    return costs | (MEMORY_KEYS if section == "memory" else {})


def validate(data: Any, where: str) -> dict[str, Any]:
    """The checked content of a cost file, by the keys that it has, and every section.

    Of the first thing that is wrong, the error names the file, the dotted key and the value.
    """
    if not isinstance(data, Mapping):
        raise FormatError(f"{where}: {shown(data)} is no cost file; it needs times: {{F: 1, B: 2}}")
    try:
        return _model(data)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None


def _model(data: Mapping[Any, Any]) -> dict[str, Any]:
    sections = {name: data.get(name, {}) for name in SECTIONS}
    if isinstance(sections["times"], Mapping):
        try:
            sections["times"] = current_names(sections["times"], "times.{}")
        except CostError as error:
            raise FormatError(f"times: {error}") from None
    _check_keys(data, "")
    if "times" not in data:
        raise FormatError("times is missing; give times: {F: 1, B: 2}")
    for name, section in sections.items():
        if not isinstance(section, Mapping):
            raise FormatError(f"{name} is {shown(section)}; give a mapping")
        if name not in FREE:
            _check_keys(section, name)
        elif not all(isinstance(key, str) for key in section):
            raise FormatError(f"{name} has a key that is no text; keys are text")
    if not sections["times"]:
        raise FormatError("times is empty; give at least F and B, or F, I and W")
    return {
        "times": {key: _cost(key, value, "times") for key, value in sections["times"].items()},
        "memory": {key: _memory(key, value) for key, value in sections["memory"].items()},
        **{name: _top(name, data[name]) for name in TOP_KEYS if name in data.keys() - sections},
        "layers": _layers(sections["layers"]),
        **{name: dict(sections[name]) for name in FREE},
    }


def _check_keys(data: Mapping[Any, Any], section: str) -> None:
    """Refuse keys that do not exist, those inside embedding, head and mtp included."""
    known = keys_of(section)
    prefix = f"{section}." if section else ""
    for key, value in data.items():
        if not isinstance(key, str) or not key.isprintable():
            raise FormatError(f"{prefix}{shown(key)} is no key; keys are text")
        if key not in known:
            hint = did_you_mean(key[:SHOWN], known)
            raise FormatError(f"unknown key {shown(prefix + key)}; {hint}")
        if section == "times" and key in PARTS and isinstance(value, Mapping):
            for inner in value:
                if inner not in TIMES:
                    hint = did_you_mean(str(inner)[:SHOWN], TIMES)
                    raise FormatError(f"unknown key {shown(f'{prefix}{key}.{inner}')}; {hint}")


def _checked(check: Callable[..., Any], *arguments: Any, section: str = "") -> Any:
    try:
        return check(*arguments)
    except WrongValueError as error:
        raise FormatError(section + error.text(shown)) from None


def _cost(name: str, value: Any, section: str) -> Any:
    return _checked(check_cost, name, value, section=f"{section}.")


def _layers(section: Mapping[str, Any]) -> dict[str, Any]:
    """Costs of layers: one number for each layer, and what the ends of the model do beside them."""
    found = {name: _cost(name, value, "layers") for name, value in section.items()}
    sizes = {}
    for name, value in found.items():
        if name in PARTS:
            continue
        if not isinstance(value, tuple):
            raise FormatError(f"layers.{name} is {shown(value)}; give a list with one per layer")
        sizes[name] = len(value)
    (first, count), *rest = sizes.items() or [("", 0)]
    for name, size in rest:
        if size != count:
            raise FormatError(
                f"layers.{name} has {size} values and layers.{first} {count}; both have one per "
                "layer"
            )
    return found


def _memory(name: str, value: Any) -> Any:
    if name in COST_FIELDS and COST_FIELDS[name].section == "memory":
        return _cost(name, value, "memory")
    if name == "unit":
        return _label(value, "memory.unit")
    if name == "limit":
        return _limit(value)
    return _checked(check_number, value, f"memory.{name}")


def _limit(value: Any) -> float | tuple[float, ...]:
    if isinstance(value, list) and not value:
        advice = "give one number, or a list with one per rank"
        raise FormatError(f"memory.limit is {shown(value)}; {advice}")
    many = value if isinstance(value, list) else [value]
    limits = tuple(_checked(check_number, item, "memory.limit") for item in many)
    if not all(limits):
        raise FormatError(f"memory.limit is {shown(value)}; give a positive number")
    return limits if isinstance(value, list) else limits[0]


def _label(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_LABEL:
        advice = f"give text on one line, at most {MAX_LABEL} characters"
        raise FormatError(f"{key} is {shown(value)}; {advice}")
    return value


def _top(key: str, value: Any) -> Any:
    """A key of the file itself that is no section."""
    if key in LIMITS:
        return _checked(up_to(LIMITS[key]), key, value, Sizes(0, 0))
    if key not in WORDS:
        return _label(value, key)
    if not isinstance(value, str) or value not in WORDS[key]:
        raise FormatError(f"{key} is {shown(value)}; use {' or '.join(map(repr, WORDS[key]))}")
    return value
