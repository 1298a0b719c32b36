"""Clusters: GPUs, their number, and their links; from short names or YAML files."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from debubble.core.errors import FormatError, ParameterError, did_you_mean
from debubble.core.hashed_once import hashed_once
from debubble.core.units import factor, read_number
from debubble.interchange import syntax
from debubble.interchange.text import read_text, shown
from debubble.planner.hardware.gpus import GPUS, Gpu

MAX_BYTES = 1 << 20
"""Most bytes of a file that describes a GPU."""


@hashed_once
@dataclass(frozen=True)
class Cluster:
    """GPUs of one kind, in nodes joined by fast links and a network between nodes."""

    gpu: Gpu
    gpus: int

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ParameterError(f"gpus is {self.gpus}; give at least 1")


def find_gpu(name_or_path: str) -> Gpu:
    """Return a GPU by its short name, or from a YAML file that ends in .yaml, .yml or .json.

    A file has keys of :class:`~debubble.planner.hardware.gpus.Gpu` in FLOP/s, bytes and bytes per
    second, ``memory: 80GB``, too; with ``base: h100`` it has only the differences from that GPU::

        base: h100
        name: h100-slow-network
        nic: 25e9

    A name that is not known, unknown keys and wrong values are refused, with those near them.
    """
    if name_or_path.endswith((".yaml", ".yml", ".json")):
        return _read(read_text(name_or_path, MAX_BYTES), name_or_path)
    name = name_or_path.lower()
    if name not in GPUS:
        raise ParameterError(f"unknown GPU '{name_or_path}'; {did_you_mean(name, GPUS)}, or give"
                             " a YAML file")  # fmt: skip
    return GPUS[name]


def read_bytes(text: str, name: str = "memory") -> float:
    """Return an amount of memory in bytes: ``72GB``, ``72 GiB``, or a number of bytes.

    Examples
    --------
    >>> read_bytes("72GB"), read_bytes("1.5 KiB")
    (72000000000.0, 1536.0)
    """
    parts = re.fullmatch(r"\s*([0-9.eE+]+)\s*([A-Za-z]*)\s*", text)
    size = read_number(parts[1]) * factor(parts[2] or "bytes", "bytes") if parts else 0.0
    if not 0 < size < 1e18:
        raise ParameterError(f"{name} is '{text}'; give an amount of one GPU, such as 72GB")
    return size


_KEYS = {spec.name: spec.type for spec in fields(Gpu)}


def _read(text: str, where: str) -> Gpu:
    data = syntax.parse(text, where)
    if not isinstance(data, dict):
        raise FormatError(f"{where}: a GPU is a mapping such as {{base: h100, nic: 25e9}}")
    base = data.pop("base", None)
    if base is not None and (not isinstance(base, str) or base not in GPUS):
        raise FormatError(f"{where}: base: unknown GPU {base!r}; {did_you_mean(base, GPUS)}")
    values = {str(key): _value(str(key), value, where) for key, value in data.items()}
    if base is not None:
        return replace(GPUS[base], **{"name": Path(where).stem, "source": where, **values})
    missing = [key for key in _NEEDED if key not in values]
    if missing:
        raise FormatError(f"{where}: {', '.join(missing)} missing; give all, or base: h100")
    return Gpu(**{"name": Path(where).stem, "source": where, **values})


_NEEDED = ("bf16", "fp8", "memory", "bandwidth", "multiprocessors", "link", "nic", "host")


_PAIRS = {"attention": "FLOP/s", "ramp": "tokens", "portable_ramp": "tokens"}


def _value(key: str, value: Any, where: str) -> Any:
    if key not in _KEYS:
        raise FormatError(f"{where}: unknown key '{key}'; {did_you_mean(key, [*_KEYS, 'base'])}")
    if _KEYS[key] == "str":
        return str(value)
    if key in _PAIRS:
        if not isinstance(value, list) or len(value) != 2:
            raise FormatError(
                f"{where}: {key}: {shown(value)}; give [forward, backward] in {_PAIRS[key]}"
            )
        return tuple(_number(key, item, where) for item in value)
    number = _number(key, value, where)
    if _KEYS[key] != "int":
        return number
    if number != int(number) or number < 1:
        raise FormatError(f"{where}: {key}: {shown(value)}; give a whole number from 1 up")
    return int(number)


_MAY_BE_ZERO = ("fp8", "fp4", "peer")


def _number(key: str, value: Any, where: str) -> float:
    number = math.nan
    if isinstance(value, str) and key == "memory":
        with suppress(ParameterError):
            number = read_bytes(value)
    elif isinstance(value, str):
        number = read_number(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30:
        number = float(value)
    least = 0.0 if key in _MAY_BE_ZERO else 1e-9
    if not least <= number < 1e30:
        wanted = "a size such as 80GB" if key == "memory" else "a positive number"
        raise FormatError(f"{where}: {key}: {shown(value)}; give {wanted}")
    return number
