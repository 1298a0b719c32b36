"""Schedule files, the schedule that a text names, and options of schedules as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from debubble.core.actions import computes, kinds_of
from debubble.core.atomic_write import write_atomically
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError, FormatError, ParameterError, did_you_mean
from debubble.core.kinds import STEP_KINDS
from debubble.core.options import read_whole
from debubble.core.schedule import Schedule
from debubble.core.units import read_number
from debubble.engine.memory import Limit
from debubble.engine.modes import P2PMode
from debubble.engine.validate import has
from debubble.interchange import python_file, torch_builtin
from debubble.interchange.cells import MAX_BYTES
from debubble.interchange.schedule_json import from_json, to_json
from debubble.interchange.text import A_TRACE, read_text, shown, writing
from debubble.interchange.torch_csv import from_csv, to_csv, with_transfers
from debubble.schedules import registry
from debubble.schedules.registry import Option

ENDINGS = (".csv", ".json")
COST_ENDINGS = (".yaml", ".yml", ".toml")
TRACE_ENDING = ".json.gz"
CHANGED = " (changed)"
"""Suffix of a registered name whose order in a file differs."""


def load(path: str | Path, *, microbatches: int | None = None) -> Schedule:
    """Read a schedule file.

    Parameters
    ----------
    path
        A ``.json`` file as :func:`save` writes it, or a ``.csv`` file as PyTorch reads it.
    microbatches
        For a CSV, how many there are; the default is one more than the largest in the file. A
        JSON file has its own number and must agree.

    Returns
    -------
    Schedule
        The schedule of the file, also when it cannot run: :func:`debubble.check` finds that. A
        CSV's schedule is called like the file. One with the name of a registered schedule and
        another order gets "(changed)" after its name, because formulas for it do not hold.

    Raises
    ------
    FormatError
        When the file cannot be read in the format of its ending; the message has the file, the
        place and the value.
    """
    _check_ending(path)
    return parse_schedule(read_text(path, MAX_BYTES), str(path), microbatches)


def parse_schedule(text: str, where: str, microbatches: int | None = None) -> Schedule:
    """Read the text of a schedule file; the ending of its name gives the format."""
    if where.lower().endswith(".csv"):
        return from_csv(text, where, microbatches)
    schedule = from_json(text, where)
    _agree("microbatches", microbatches, schedule.microbatches, where)
    return _rename_if_modified(schedule)


def save(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule file; the ending picks the format.

    Raises
    ------
    FormatError, ParameterError
        When the ending is unknown, the file cannot be written, or a CSV cannot express the
        schedule.
    """
    _check_ending(path)
    lowered = not computes(kinds_of(schedule.actions)).all()
    form = "torch-csv-comms" if lowered else "torch-csv"
    write_text(path, text_of(schedule, "json" if str(path).lower().endswith(".json") else form))


def text_of(
    schedule: Schedule, form: str, waits: bool = False, p2p_mode: P2PMode = "overlapped"
) -> str:
    """Return the text of a schedule file: ``"json"``, ``"torch-csv"`` or ``"torch-csv-comms"``.

    `waits` as for :func:`debubble.interchange.torch_csv.to_csv`; `p2p_mode` is that in which the
    schedule is simulated, see :func:`debubble.interchange.torch_csv.with_transfers`.
    """
    if form == "json":
        return to_json(schedule)
    lowered = form == "torch-csv-comms"
    return to_csv(with_transfers(schedule, p2p_mode) if lowered else schedule, lowered, waits)


def declared_options(targets: Iterable[str], pairs: Iterable[str]) -> dict[str, Option]:
    """Return the options that named schedules have, by name.

    Functions in Python files declare no types: they take every key in `pairs`.
    """
    found: dict[str, Option] = {}
    for target in targets:
        if target.lower().endswith((*ENDINGS, *COST_ENDINGS, TRACE_ENDING)):
            continue
        if torch_builtin.is_builtin(target):
            found |= {option.name: option for option in torch_builtin.OPTIONS}
        elif is_function(target):
            keys = [pair.partition("=")[0].strip().replace("-", "_") for pair in pairs]
            found |= {key: Option(key, ANY_TYPE, None) for key in keys if key}
        else:
            found |= {option.name: option for option in registry.find(target).options}
    return found


def is_function(target: str) -> bool:
    """Return whether a text looks like the name of a function in a Python file."""
    return ".py:" in target or target.endswith(".py")


def is_foreign(target: str) -> bool:
    """Return whether a text names a file, a function or one of PyTorch, no registered schedule.

    Cost files and traces count as files; :func:`resolve` refuses them with advice.
    """
    return (
        is_file_name(target)
        or is_function(target)
        or torch_builtin.is_builtin(target)
        or target.lower().endswith((*COST_ENDINGS, TRACE_ENDING))
    )


def _check_ending(path: str | Path) -> None:
    if not is_file_name(path):
        raise FormatError(f"'{path}' is no schedule file; they end in .json or .csv")


def write_text(path: str | Path, text: str) -> None:
    """Write a file; errors name it."""
    with writing(path):
        write_atomically(path, text.encode())


def is_file_name(target: str | Path) -> bool:
    """Return whether a text names a schedule file."""
    return str(target).lower().endswith(ENDINGS)


def resolve(
    target: str,
    *,
    ranks: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    iterations: int | None = None,
    costs: Costs | None = None,
    memory: Limit | None = None,
    sync: str | None = None,
    defaults: Mapping[str, int | None] | None = None,
    **options: Any,
) -> Schedule:
    """Return the schedule of a file or a program, see :func:`is_foreign`.

    `target` is a ``.csv`` or ``.json`` file, ``path/file.py:function``, or ``torch:`` and the name
    of a schedule of PyTorch. A file has its own sizes and sync, and must agree with given ones;
    `defaults` are sizes for the others, where they leave a choice. Raises DebubbleError when there
    is no such schedule, or the parameters do not fit.
    """
    if is_file_name(target):
        schedule = load(target, microbatches=microbatches)
        for key, value in (("ranks", ranks), ("chunks", chunks), ("iterations", iterations)):
            _agree(key, value, getattr(schedule, key), target)
        if options:
            name = next(iter(options))
            raise ParameterError(f"option '{name}' does not apply to a file: {target}")
        _agree("sync", sync, schedule.sync, target)
        return schedule
    sizes: dict[str, Any] = {
        key: (defaults or {}).get(key) if value is None else value
        for key, value in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks))
    }
    if torch_builtin.is_builtin(target):
        if iterations is not None or sync is not None:
            raise ParameterError(f"'{target}' is one iteration; leave iterations and sync out")
        return torch_builtin.load_builtin(target, **sizes, **options)
    given = sizes | {"iterations": iterations, "costs": costs, "memory": memory}
    if is_function(target):
        made = python_file.make_from_file(*python_file.split_target(target), given, options)
        asked = given | {"chunks": chunks}
        for key in ("ranks", "microbatches", "chunks", "iterations"):
            found = getattr(made, key)
            if asked[key] is not None and asked[key] != found:
                raise ParameterError(
                    f"{target} returned a schedule that has {key} = {found}, not {asked[key]}; "
                    "make it for those the function is given"
                )
        return made if sync is None else replace(made, sync=sync)
    if target.lower().endswith(TRACE_ENDING):
        raise ParameterError(f"'{target}' is {A_TRACE}")
    raise ParameterError(
        f"'{target}' is a cost file, not a schedule; name a schedule, and give it as --costs "
        f"{target}"
    )


def _agree(key: str, given: object, found: object, path: str) -> None:
    if given is not None and given != found:
        raise ParameterError(f"{path} has {key} = {found}, not {given}; leave it out")


_MEMORY = Option("memory", "float | list | None", None)
"""The option of schedules made with a memory limit."""

_STORED = ("recompute", "recompute_at", "recompute_cap", "offload")
"""The options of schedules that recompute or copy to the host."""


def _rename_if_modified(schedule: Schedule) -> Schedule:
    """Return the schedule, renamed when it has the name of a registered one and another order.

    Schedules that depend on costs keep their name where the file has no costs.
    """
    entry = registry.entries().get(schedule.name)
    if entry is None:
        return schedule
    declared = {option.name: option for option in (*entry.options, _MEMORY)}
    options = {key: value for key, value in schedule.options.items() if key not in _STORED}
    stored = {key: schedule.options[key] for key in _STORED if key in schedule.options}
    if all(key in declared and declared[key].fits(value) for key, value in options.items()):
        by_costs = entry.orders_by_costs(SimpleNamespace(**options))
        by_costs = by_costs or stored.get("recompute_at") == "bubbles"
        if by_costs and schedule.made_for is None:
            return schedule
        # A name and a few numbers may claim gigabytes; nothing larger than the file is made.
        cells = schedule.ranks * (entry.chunks or schedule.chunks) * schedule.units
        if entry.case(**options).slices != schedule.slices or len(schedule) < 2 * cells:
            return replace(schedule, name=schedule.name + CHANGED)
        steps = has(schedule, STEP_KINDS)
        try:
            again = registry.make(
                entry.name,
                ranks=schedule.ranks,
                microbatches=schedule.microbatches,
                chunks=None if entry.chunks else schedule.chunks,
                iterations=schedule.iterations if steps or schedule.iterations > 1 else None,
                sync=schedule.sync if steps else None,
                costs=schedule.made_for,
                **stored,
                **options,
            )
        except DebubbleError:
            again = None
        # Where sequences are cut may depend on costs that the file does not have.
        if again is not None and replace(again, cut=schedule.cut) == schedule:
            return schedule
    return replace(schedule, name=schedule.name + CHANGED)


ANY_TYPE = "int | float | bool | str"
"""Type of an option whose schedule declares none."""

_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def parse_options(pairs: Iterable[str], known: Mapping[str, Option]) -> dict[str, Any]:
    """Parse options such as ``group_size=4`` to values of the types that schedules declare.

    Hyphens in a key count as underscores; `known` are the options that exist, by name. Raises
    ParameterError for a text without ``=``, an unknown or repeated key, or a value of another type.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise ParameterError(f"--option {shown(pair)}; write KEY=VALUE, such as group_size=4")
        if key not in known:
            hint = did_you_mean(key, known) if known else "these schedules have no options"
            raise ParameterError(f"unknown option {shown(key)}; {hint}")
        if key in found:
            raise ParameterError(f"option '{key}' is given twice; give it once")
        found[key] = _value(text.strip(), known[key])
    return found


def _value(text: str, option: Option) -> Any:
    names = option.types
    for name, read in _READERS.items():
        if name in names:
            try:
                return read(text)
            except (ValueError, KeyError):
                continue
    if "None" in names and text.lower() in ("none", ""):
        return None
    kinds = " or ".join(name for name in names if name != "None")
    raise ParameterError(f"option {option.name} is {shown(text)}; give a value of type {kinds}")


def _finite(text: str) -> float:
    number = read_number(text)
    if not math.isfinite(number):
        raise ValueError
    return number


_READERS: dict[str, Callable[[str], Any]] = {
    "int": lambda text: read_whole("", text), "float": _finite,
    "bool": lambda text: _WORDS[text.lower()], "str": str,
}  # fmt: skip
