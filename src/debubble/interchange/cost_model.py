"""Schema of cost files: keys, and error messages that name file, key and value.

Values are checked by :func:`debubble.core.cost_fields.check_cost`, as they are everywhere else.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from debubble.core.cost_fields import SHAPES, CostField, check_number
from debubble.core.costs import BASES, COST_FIELDS, check_cost
from debubble.core.embedding_and_head import PARTS, TIMES
from debubble.core.errors import CostError, FormatError, WrongValueError, did_you_mean
from debubble.core.former_names import current_names
from debubble.core.given_layers import CUT, MTP_STAGE, RANKS, check_part, check_whole
from debubble.core.layers import HELD
from debubble.core.runtimes import RUNTIMES
from debubble.core.schedule_fields import MAX_LABEL, FieldSizes, up_to
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
    check: Callable[[str, Any], Any] = lambda key, value: value  # noqa: ARG005 - sections
    """Returns the value; raises :class:`WrongValueError` for one that cannot be used."""


def _label(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_LABEL:
        advice = f"give text on one line, at most {MAX_LABEL} characters"
        raise WrongValueError(key, value, advice)
    return value


def _size(key: str, value: Any) -> Any:
    return up_to(LIMITS[key])(key, value, FieldSizes(0, 0))


def _word(words: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(key: str, value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise WrongValueError(key, value, f"use {' or '.join(map(repr, words))}")
        return value

    return check


def _limit(key: str, value: Any) -> float | tuple[float, ...]:
    if isinstance(value, list) and not value:
        raise WrongValueError(key, value, "give one number, or a list with one per rank")
    many = value if isinstance(value, list) else [value]
    limits = tuple(check_number(item, key) for item in many)
    if not all(limits):
        raise WrongValueError(key, value, "give a positive number")
    return limits if isinstance(value, list) else limits[0]


TOP_KEYS = {
    "name": FileKey("text", "my model", "what was measured, for titles", _label),
    "source": FileKey("text", "profiled on 8 H100s", "where the numbers come from", _label),
    "ranks": FileKey("whole number", "8", "default of -p: pipeline ranks", _size),
    "microbatches": FileKey("whole number", "32", "default of -m: microbatches", _size),
    "chunks": FileKey("whole number", "2", "default of -v: stages per rank", _size),
    "basis": FileKey(
        "action or rank", "rank", "values are per action (one stage, one microbatch), or per rank"
        " and divided by its chunks; default action", _word(BASES),
    ),
    "runtime": FileKey(
        " or ".join(RUNTIMES), "torch", "runtime to simulate: PyTorch's, that of debubble.torch, or"
        " any (the actions as they are)", _word((*RUNTIMES,)),
    ),
    "time_unit": FileKey("text", "ms", "unit of all times", _label),
    "times": FileKey("mapping", "{F: 1, B: 2}", "the costs below; the only required key"),
    "memory": FileKey("mapping", "{limit: 8}", "the memory below"),
    "layers": FileKey(
        "mapping", "{F: [1, 2], B: [2, 4]}", "costs of every layer, for any cut into stages:"
        " lists of equal length; embedding, head and mtp next to them",
    ),
    "measured": FileKey("mapping", "{}", "other measurements; not used"),
    "expected": FileKey("mapping", "{}", "expected results; not used"),
}  # fmt: skip
"""Keys of the file itself."""

MEMORY_KEYS = {
    "unit": FileKey("text", "GB", "unit of activation, kv and limit", _label),
    "limit": FileKey(
        "one number or a list", "8", "default of --memory: activation memory of every rank, or of"
        " each; in activation units, or in the unit of activation if that is given", _limit,
    ),
    **{
        name: FileKey(
            "one number", "0", f"activation of {words}, on top of that of its stage",
            lambda key, value: check_number(value, key),
        )
        for name, words in (
            ("embedding", "the embedding"), ("head", "the head"), ("mtp", "multi-token prediction"),
        )
    },
}  # fmt: skip
"""Keys of ``memory`` that are no costs of their own."""


LAYER_KEYS = {
    **{
        name: FileKey(
            "mapping", COST_FIELDS[name].example, f"{COST_FIELDS[name].text}; with memory, too",
            check_part,
        )
        for name in PARTS
    },
    CUT: FileKey(
        "list", "[1, 2]", "layers of every stage of an existing cut; schedules with the same"
        " placement keep it", check_whole,
    ),
    RANKS: FileKey("list", "[0, 1]", "rank of every stage of that cut", check_whole),
    MTP_STAGE: FileKey(
        "whole number", "1", "stage of multi-token prediction in that cut; default the last",
        check_whole,
    ),
}  # fmt: skip
"""Keys of ``layers`` that have no value for each layer."""

FREE = ("measured", "expected")
"""Sections that hold anything."""

SECTIONS = ("times", "memory", "layers", *FREE)


def keys_of(section: str) -> dict[str, Any]:
    """Return all keys of a section, with their descriptions; ``""`` is the file itself."""
    if not section:
        return dict(TOP_KEYS)
    if section == "layers":
        of_layers = {name: spec for name, spec in COST_FIELDS.items() if spec.shape == "stage"}
        return of_layers | {HELD: COST_FIELDS[HELD]} | LAYER_KEYS
    costs = {name: spec for name, spec in COST_FIELDS.items() if spec.section == section}
    return costs | (MEMORY_KEYS if section == "memory" else {})


def validate(data: Any, where: str) -> dict[str, Any]:
    """Return the checked content of a cost file, by the keys that it has, and every section.

    The error names the file, the dotted key and the value of the first thing that is wrong.
    """
    if not isinstance(data, Mapping):
        raise FormatError(f"{where}: {shown(data)} is no cost file; it needs times: {{F: 1, B: 2}}")
    try:
        return _content(data)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None


def _content(data: Mapping[Any, Any]) -> dict[str, Any]:
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
    found = {
        name: dict(section) if name in FREE else _values(section, name)
        for name, section in sections.items()
    }
    _check_layers(found["layers"], sections["layers"])
    return found | _values({key: data[key] for key in data if key not in SECTIONS}, "")


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


def _values(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the checked values of a section."""
    known = keys_of(name)
    found: dict[str, Any] = {}
    for key, value in section.items():
        spec = known[key]
        try:
            is_cost = isinstance(spec, CostField)
            found[key] = check_cost(key, value) if is_cost else spec.check(key, value)
        except WrongValueError as error:
            prefix = f"{name}." if name else ""
            raise FormatError(prefix + error.text(shown)) from None
    return found


def _check_layers(found: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse costs of layers without one number for each layer."""
    sizes = {}
    for name, value in found.items():
        if name in LAYER_KEYS:
            continue
        if not isinstance(value, tuple):
            raise FormatError(
                f"layers.{name} is {shown(given[name])}; give a list with one per layer"
            )
        sizes[name] = len(value)
    (first, count), *rest = sizes.items() or [("", 0)]
    for name, size in rest:
        if size != count:
            raise FormatError(
                f"layers.{name} has {size} values and layers.{first} {count}; both have one per "
                "layer"
            )


DESCRIBED = ("", "times", "memory")
"""Sections in the template and the reference; the first is the file itself."""

ACTIVE = {
    "": {"name": "my model", "ranks": "8", "microbatches": "32", "basis": "rank",
         "time_unit": "ms"},
    "times": {"F": "10.0", "I": "10.0", "W": "8.0", "p2p": "0.2"},
    "memory": {"limit": "8"},
}  # fmt: skip
"""Keys with values in the template; every other key is in a comment."""

HEADER = """\
# Costs of a model's actions on a cluster. Use it with
#
#     debubble compare 1f1b interleaved-1f1b zb-h1 zb-v --costs FILE
#
# Only times are required. Remove the '#' before a key to use it. Most costs can also be lists with
# one value per stage, F: [10, 10, 12, 11], or one value with exceptions, F: {default: 10, 2: 12};
# with basis: rank, per rank. 'debubble costs' explains every key, and 'debubble costs FILE' checks
# this file.
"""

_COLUMN, _WIDTH = 36, 100


def template() -> str:
    """Return a cost file in YAML that works as it is, with a comment for every key."""
    blocks = [HEADER]
    for section in DESCRIBED:
        lines = [f"{section}:"] if section else []
        for key, spec in keys_of(section).items():
            if key in DESCRIBED:
                continue
            value = ACTIVE[section].get(key)
            entry = f"{key}: {spec.example}" if value is None else f"{key}: {value}"
            mark = "# " if value is None else ""
            lines.append(_commented(f"{'  ' if section else ''}{mark}{entry}", spec.text))
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _commented(line: str, text: str) -> str:
    """Return a line with a comment, wrapped to further lines where it is long."""
    first, *rest = textwrap.wrap(text, _WIDTH - _COLUMN - 2)
    return "\n".join(
        [f"{line:<{_COLUMN - 1}} # {first}", *(f"{'':<{_COLUMN}}# {more}" for more in rest)]
    )


def _shape(spec: FileKey | CostField) -> str:
    if isinstance(spec, FileKey):
        return spec.shape
    return SHAPES[spec.shape].replace("number", "share") if spec.share else SHAPES[spec.shape]


def key_reference(section: str) -> list[tuple[str, str, str]]:
    """Return key, shape of the value and meaning of all keys of a section."""
    return [(key, _shape(spec), spec.text) for key, spec in keys_of(section).items()]
