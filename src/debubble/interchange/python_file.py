"""Schedules from a function in a Python file that the user names: ``path/file.py:function``.

This is the only place where something that is read is executed, and only on that request.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from debubble.core.actions import Program
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError, FormatError, ParameterError, did_you_mean
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.interchange.cells import MAX_ACTIONS, read_cells
from debubble.interchange.text import plain, read_text, shown
from debubble.schedules import registry

MAX_SOURCE_BYTES = 4 << 20
NEEDED = {"ranks": "p, such as -p 8", "microbatches": "m, such as -m 32"}
UNSAID = {"chunks": 1, "iterations": None, "costs": Costs(), "memory": None}
"""What a function gets for parameters it declares without default when nothing was said."""

PARAMETERS = (*NEEDED, *UNSAID)


def split_target(target: str) -> tuple[str, str]:
    """Path and function of ``path/file.py:function``.

    Raises
    ------
    ParameterError
        When the function is not named.
    """
    path, colon, name = target.rpartition(":")
    if not colon or not path.endswith(".py") or not name:
        path = target.rstrip(":")
        raise ParameterError(f"which function of '{path}'? write {path}:function")
    if not name.isidentifier():
        raise ParameterError(f"{shown(name)} is not a function's name; write {path}:function")
    return path, name


def make_from_file(
    path: str, name: str, given: Mapping[str, Any], options: dict[str, Any]
) -> Schedule:
    """Call a function of a Python file and make a schedule of what it returns.

    Parameters
    ----------
    path, name
        The file, which is executed, and the function.
    given
        Values for those of :data:`PARAMETERS` that the function declares; None is left out.
    options
        Further parameters that it declares.

    Returns
    -------
    Schedule
        The function's own; or one made from the programs it yields, one per rank (packed actions
        or lists of text such as ``"0F0"``), with stages placed round and round the ranks. A
        function that the file registers with :func:`debubble.register` is made like any
        registered schedule, with its placement and constraints.

    Raises
    ------
    FormatError, ParameterError
        When the file or the function fails, or returns something else.
    """
    function = load_function(path, name)
    label = f"{path}:{name}"
    entry = next((e for e in registry.entries().values() if e.order is function), None)
    if entry is not None:
        function = partial(registry.make, entry.name)
        arguments = {key: value for key, value in given.items() if value is not None} | options
        for key in NEEDED:
            if key not in arguments:
                raise _lacking(label, key)
    else:
        arguments = _arguments(function, label, given, options)
    try:
        result = function(**arguments)
        if isinstance(result, Schedule):
            return result
        programs = list(result) if isinstance(result, Iterable) else None
    except DebubbleError as error:
        raise ParameterError(f"{label}: {error}") from None
    except Exception as error:
        raise FormatError(f"{label} failed: {_reason(error, path)}") from None
    if programs is None:
        raise FormatError(
            f"{label} returned {type(result).__name__}; return a Schedule or yield one program per "
            "rank"
        )
    return _from_programs(programs, label, given)


def load_function(path: str, name: str) -> Callable[..., Any]:
    """A function of a Python file, which is executed.

    Raises
    ------
    FormatError
        When the file cannot be read or fails, or has no such function.
    """
    source = read_text(path, MAX_SOURCE_BYTES)
    module = types.ModuleType(f"debubble_user_{Path(path).stem}")
    module.__file__ = path
    # Dataclasses and pickles look their module up by name.
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), vars(module))
    except SyntaxError as error:
        raise FormatError(f"{path}, line {error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        raise FormatError(f"{path} failed: {_reason(error, path)}") from None
    function: Any = vars(module).get(name)
    if not callable(function):
        names = [
            key
            for key, value in vars(module).items()
            if isinstance(value, types.FunctionType) and value.__module__ == module.__name__
        ]
        hint = did_you_mean(name, names) if names else "it defines no functions"
        raise FormatError(f"{path} has no function '{name}'; {hint}")
    found: Callable[..., Any] = function
    return found


def _reason(error: BaseException, path: str) -> str:
    """Class, message and line of an error that a user's code raised."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {plain(str(error))}{where}"


def _arguments(
    function: Callable[..., Any], label: str, given: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        declared = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ParameterError(f"{label} is not a function with named parameters") from None
    for key in options:
        if key not in declared or key in PARAMETERS:
            extra = [name for name in declared if name not in PARAMETERS]
            hint = did_you_mean(key, extra) if extra else "it has no options"
            raise ParameterError(f"{label} has no option '{key}'; {hint}")
    arguments = {key: given[key] for key in PARAMETERS if key in declared and key in given}
    arguments = {key: value for key, value in arguments.items() if value is not None}
    arguments |= dict(options)
    for key, parameter in declared.items():
        variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.kind == parameter.POSITIONAL_ONLY:
            raise ParameterError(f"{label} takes '{key}' by position only; take it by keyword")
        if key not in arguments and parameter.default is parameter.empty and not variable:
            if key in NEEDED:
                raise _lacking(label, key)
            if key in UNSAID:
                arguments[key] = UNSAID[key]
                continue
            raise ParameterError(f"{label} needs '{key}'; give --option {key}=VALUE")
    return arguments


def _lacking(label: str, key: str) -> ParameterError:
    return ParameterError(f"{label} needs {key}; give -{NEEDED[key]}")


def _from_programs(programs: list[Any], label: str, given: Mapping[str, Any]) -> Schedule:
    if not programs:
        raise FormatError(f"{label} yielded nothing; yield one program per rank")
    ranks = given.get("ranks") or len(programs)
    if len(programs) != ranks:
        raise FormatError(f"{label} yielded {len(programs)} programs for {ranks} ranks")
    read = [_program(program, rank, label) for rank, program in enumerate(programs)]
    if sum(map(len, read)) > MAX_ACTIONS:
        raise FormatError(f"{label} yielded more than {MAX_ACTIONS:,} actions, the limit")
    microbatches = given.get("microbatches")
    if microbatches is None:
        raise _lacking(label, "microbatches")
    placement = Placement.loop(ranks, given.get("chunks") or 1)
    iterations = given.get("iterations") or 1
    return Schedule.from_programs(
        label.rpartition(":")[2], placement, microbatches, read, iterations=iterations
    )


def _program(program: Any, rank: int, label: str) -> Program:
    if isinstance(program, np.ndarray):
        if program.ndim == 1 and program.dtype == np.int64:
            return program
        raise FormatError(
            f"{label}: the program of rank {rank} is an array of {program.dtype} with "
            f"{program.ndim} dimensions; yield packed actions or lists of text"
        )
    if isinstance(program, str) or not isinstance(program, Iterable):
        raise FormatError(
            f"{label}: the program of rank {rank} is {shown(program)}; yield packed actions or "
            "lists of text"
        )
    texts = [str(item) if isinstance(item, tuple) else item for item in program]
    return read_cells(texts, lambda index: f"{label}: rank {rank}, action {index}")
