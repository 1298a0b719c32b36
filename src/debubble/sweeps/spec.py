"""Spec files of sweeps: YAML, JSON or TOML."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from debubble.core.costs import COST_FIELDS
from debubble.core.embedding_and_head import PARTS
from debubble.core.errors import DebubbleError, FormatError, ParameterError, did_you_mean
from debubble.core.options import OptionType, Whole
from debubble.interchange import syntax
from debubble.interchange.cost_files import parse_costs
from debubble.interchange.text import SHOWN, check_keys, read_text, shown
from debubble.sweeps.commands import COMMANDS, Command
from debubble.sweeps.parameters import Parameter
from debubble.sweeps.points import MOST_POINTS, Range, Spec

ENDINGS = (".yaml", ".yml", ".json", ".toml")
MAX_BYTES = 1 << 20
"""Most bytes of a spec file."""

KEYS = ("command", "options", "grid", "samples")
SAMPLE_KEYS = ("count", "seed", "draw")
RANGE_KEYS = ("from", "to", "scale", "step")
SCALES = ("linear", "log")
LARGEST_FILE = 1 << 28
"""Most bytes of a schedule file that a spec names."""


def read_spec(path: str | Path) -> Spec:
    """Read a spec file.

    Parameters
    ----------
    path
        A ``.yaml``, ``.yml``, ``.json`` or ``.toml`` file::

            command: simulate             # or compare, optimize
            options:                      # the same for all points
              costs: ../costs.yaml        # a path from the folder of the spec
              microbatches: 32
            grid:                         # every combination of these
              schedule: [1f1b, zb-h1]
              ranks: [4, 8, 16]
            samples:                      # with each of these random draws
              count: 100
              seed: 1
              draw:
                costs.p2p: {from: 0.01, to: 1, scale: log}
                costs.kept_for_weight: [0.3, 0.5]

    The error names the dotted key and the value of the first thing that is wrong.
    """
    if not str(path).lower().endswith(ENDINGS):
        raise FormatError(f"'{path}' is no spec of a sweep; these end in .yaml, .json or .toml")
    data = syntax.parse(read_text(path, MAX_BYTES), str(path))
    try:
        return spec_of(data, Path(path).parent)
    except DebubbleError as error:
        raise type(error)(f"{path}: {error}") from None


def spec_of(data: Any, folder: str | Path = ".") -> Spec:
    """Return the spec in plain data; paths of files in it start from a folder."""
    if not isinstance(data, Mapping):
        raise FormatError(f"{shown(data)} is no spec of a sweep; it needs command and grid")
    check_keys(data, "spec", KEYS, ("command",))
    name = data["command"]
    if not isinstance(name, str) or name not in COMMANDS:
        raise FormatError(f"command is {shown(name)}; {did_you_mean(name, COMMANDS)}")
    reader = _SpecReader(COMMANDS[name], Path(folder))
    options = reader.options(data.get("options"))
    grid = reader.grid(data.get("grid"))
    count, seed, draw = reader.samples(data.get("samples"))
    _check_names(COMMANDS[name], options=options, grid=grid, samples=draw)
    spec = Spec(name, options, grid, count, seed, draw, reader.files, reader.digests)
    if spec.size > MOST_POINTS:
        raise ParameterError(
            f"{spec.describe()}; the limit is {MOST_POINTS:,}. Shorten lists, or draw samples"
        )
    return spec


class _SpecReader:
    """A reader of the sections of a spec for one command, and of the files that they name."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.known = command.parameters
        self.folder = folder
        self.files: dict[str, Any] = {}
        self.digests: dict[str, str] = {}

    def options(self, section: Any) -> dict[str, Any]:
        """Return fixed values; mappings are spelled out in dotted names."""
        found = _dotted(_mapping(section, "options"))
        return {name: self._value(name, value) for name, value in found.items()}

    def grid(self, section: Any) -> dict[str, tuple[Any, ...]]:
        """Return lists of values, each value once."""
        found = _mapping(section, "grid")
        for name, values in found.items():
            if isinstance(values, Mapping) and RANGE_KEYS[0] in values:
                raise FormatError(f"grid.{name} is a range; ranges are for samples, give a list")
        return {name: self._values(name, values, "grid") for name, values in found.items()}

    def samples(self, section: Any) -> tuple[int, int, dict[str, tuple[Any, ...] | Range]]:
        """Return the number of samples, the seed, and the values to draw from."""
        if section is None:
            return 0, 0, {}
        found = _mapping(section, "samples")
        check_keys(found, "samples", SAMPLE_KEYS, ("count", "draw"))
        draw = _mapping(found["draw"], "samples.draw")
        if not draw:
            raise FormatError("samples.draw is empty; give lists or ranges: ranks: [4, 8]")
        return (
            Whole(MOST_POINTS).check("samples.count", found["count"]),
            Whole((1 << 32) - 1, 0).check("samples.seed", found.get("seed", 0)),
            {
                name: self._range(name, values)
                if isinstance(values, Mapping)
                else self._values(name, values, "samples.draw")
                for name, values in draw.items()
            },
        )

    def _parameter(self, name: Any) -> OptionType | Parameter:
        if isinstance(name, str):
            head, dot, _ = name.partition(".")
            found = self.known.get(f"{head}.*" if dot else name)
            if found is not None:
                return found
        names = [key for key in self.known if not key.endswith(".*")]
        if "costs.*" in self.known:
            names += [f"costs.{key}" for key in COST_FIELDS]
        hint = did_you_mean(str(name)[:SHOWN], names)
        if isinstance(name, str) and name in COST_FIELDS:
            hint = f"did you mean 'costs.{name}'?"
        raise FormatError(f"unknown option {shown(name)}; {hint}")

    def _value(self, name: str, value: Any) -> Any:
        parameter = self._parameter(name)
        found = parameter.check(name, value)
        for path in parameter.files(found) if isinstance(parameter, Parameter) else ():
            self._load(name, path)
        return found

    def _values(self, name: str, values: Any, section: str) -> tuple[Any, ...]:
        self._parameter(name)
        if not isinstance(values, list) or not values:
            raise FormatError(
                f"{section}.{name} is {shown(values)}; give a list, or put one value in options"
            )
        read = [self._value(name, value) for value in values]
        return tuple({json.dumps(value): value for value in read}.values())

    def _range(self, name: str, data: Mapping[str, Any]) -> Range:
        where = f"samples.draw.{name}"
        if not self._parameter(name).range:
            raise FormatError(f"{where} is a range; {name} is no number, give a list")
        check_keys(data, where, RANGE_KEYS, ("from", "to"))
        first, last = (self._value(name, data[key]) for key in ("from", "to"))
        if not all(isinstance(end, int | float) for end in (first, last)):
            raise FormatError(f"{where}: from and to are numbers; give a list for anything else")
        if not first < last:
            raise FormatError(f"{where} goes from {first:g} to {last:g}; it must rise")
        scale, step = data.get("scale", SCALES[0]), data.get("step", 0)
        if scale not in SCALES:
            raise FormatError(f"{where}.scale is {shown(scale)}; {did_you_mean(scale, SCALES)}")
        if scale == "log" and first <= 0:
            raise FormatError(f"{where} begins at {first:g}; a log scale begins above 0")
        known = isinstance(step, int | float) and not isinstance(step, bool)
        whole = isinstance(first, int) and isinstance(last, int)
        if "step" in data and (not known or not 0 < step <= last - first):
            raise FormatError(
                f"{where}.step is {shown(step)}; give a number up to {last - first:g}"
            )
        if whole and step != int(step):
            raise FormatError(f"{where}.step is {step:g}; {name} is a whole number")
        if step and scale == "log":
            raise FormatError(f"{where} has a step and a log scale; give one of them, or a list")
        return Range(first, last, scale == "log", whole, step)

    def _load(self, name: str, path: str) -> None:
        """Read a file that a value names."""
        if path in self.files:
            return
        where = os.path.join(self.folder, path)
        content = read_text(where, LARGEST_FILE)
        # Costs travel with the points; schedule files have to be where they are here on all hosts.
        self.files[path] = (
            parse_costs(content, where) if name == "costs" else os.path.abspath(where)
        )
        self.digests[path] = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _check_names(command: Command, **sections: Mapping[str, Any]) -> None:
    """Refuse options that are given twice, missing ones, and a spec in which nothing varies."""
    seen: dict[str, str] = {}
    for title, section in sections.items():
        for name in section:
            if name in seen:
                raise FormatError(f"{name} is in {seen[name]} and in {title}; give it once")
            seen[name] = title
    for name in command.required:
        if name not in seen:
            raise FormatError(f"{name} is missing; give it in options, grid or samples")
    if {*seen.values()} <= {"options"}:
        raise FormatError("nothing varies; give a grid such as grid: {ranks: [4, 8]}")


def _mapping(section: Any, name: str) -> Mapping[str, Any]:
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise FormatError(f"{name} is {shown(section)}; give a mapping")
    for key in section:
        if not isinstance(key, str):
            raise FormatError(f"{name} has the key {shown(key)}; keys are names of options")
    return section


def _dotted(section: Mapping[str, Any]) -> dict[str, Any]:
    """Spell ``costs: {F: 1, head: {F: 2}}`` out in dotted names; costs per stage stay mappings."""
    found: dict[str, Any] = {}
    for name, value in section.items():
        inner = isinstance(value, Mapping) and name.partition(".")[0] in ("costs", "options")
        if inner and (name.count(".") == 0 or name.rpartition(".")[2] in PARTS):
            found |= _dotted({f"{name}.{key}": item for key, item in value.items()})
        else:
            found[name] = value
    return found
