"""Schedules from a function in a Python file that the user names: ``path/file.py:function``.

This is the only module that executes what it reads, and only on that request.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from debubble.core.actions import Program
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError, FormatError, ParameterError, did_you_mean
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.engine.cost_mismatch import remembering
from debubble.interchange.cells import MAX_ACTIONS, MAX_RANKS, SPARE, read_cells
from debubble.interchange.text import plain, read_text, shown
from debubble.schedules import registry

MAX_SOURCE_BYTES = 4 << 20
PER_CELL = 16
"""Actions for every stage and microbatch that a program may have, and :data:`SPARE` more."""

NEEDED = {"ranks": "p, such as -p 8", "microbatches": "m, such as -m 32"}
UNSAID = {"chunks": 1, "iterations": None, "costs": Costs(), "memory": None}
"""Values of parameters without default that were not given."""

PARAMETERS = (*NEEDED, *UNSAID)


def split_target(target: str) -> tuple[str, str]:
    """Split ``path/file.py:function``; raise ParameterError when the function is not named."""
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
    """Call a function of a Python file and make a schedule of its result.

    The function gets those of :data:`PARAMETERS` that it declares from `given`, and `options`. It
    returns a schedule, or yields programs, one per rank (packed actions or lists of text such as
    ``"0F0"``), with stages placed round and round the ranks. A function that the file registers
    with :func:`debubble.register` is made like any registered schedule. Raises FormatError or
    ParameterError when the file or the function fails, or returns something else.
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
        with user_code(label, path):
            result = function(**arguments)
    except DebubbleError as error:
        raise (
            error if str(error).startswith(label) else ParameterError(f"{label}: {error}")
        ) from None
    if isinstance(result, Schedule):
        made = result
    elif isinstance(result, Iterable):
        made = _from_programs(result, label, path, given)
    else:
        raise FormatError(
            f"{label} returned {type(result).__name__}; return a Schedule or yield one program per "
            "rank"
        )
    if made.made_for is not None or arguments.get("costs") is None:
        return made
    return remembering(made, "order", arguments["costs"])


def load_function(path: str, name: str) -> Callable[..., Any]:
    """Execute a Python file and return a function of it."""
    source = read_text(path, MAX_SOURCE_BYTES)
    module = types.ModuleType(f"debubble_user_{Path(path).stem}")
    module.__file__ = path
    # Dataclasses and pickles look their module up by name.
    sys.modules[module.__name__] = module
    try:
        code = compile(source, path, "exec")
    except SyntaxError as error:
        where = path if error.lineno is None else f"{path}, line {error.lineno}"
        raise FormatError(f"{where}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise FormatError(f"{path}: not Python: {_reason(error, path)}") from None
    with user_code(path, path):
        exec(code, vars(module))
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


@contextmanager
def user_code(label: str, path: str) -> Iterator[None]:
    """Run code of the user in a context that turns its errors into a :class:`FormatError`.

    The message has the `label` of the function, and the line in the file `path`. Everything counts
    that the code raises, ``SystemExit`` too; only errors of debubble and Ctrl-C go through.
    """
    try:
        yield
    except (DebubbleError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise FormatError(f"{label} failed: {_reason(error, path)}") from None


def _reason(error: BaseException, path: str) -> str:
    """Return class, message and line of an error that a user's code raised."""
    try:
        text = plain(str(error))
    except Exception:
        text = "its message cannot be shown"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


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


def _from_programs(
    programs: Iterable[Any], label: str, path: str, given: Mapping[str, Any]
) -> Schedule:
    """Make the schedule of the programs that a function yields, which may never end."""
    microbatches = given.get("microbatches")
    if microbatches is None:
        raise _lacking(label, "microbatches")
    chunks, iterations = given.get("chunks") or 1, given.get("iterations") or 1
    longest = min(MAX_ACTIONS, PER_CELL * chunks * microbatches * iterations + SPARE)
    most = given.get("ranks") or MAX_RANKS
    read: list[Program] = []
    count = 0
    with user_code(label, path):
        for program in islice(programs, most + 1):
            read.append(_program(program, len(read), label, longest))
            count += len(read[-1])
            if count > MAX_ACTIONS:
                raise FormatError(f"{label} yielded more than {MAX_ACTIONS:,} actions, the limit")
    if not read:
        raise FormatError(f"{label} yielded nothing; yield one program per rank")
    ranks = given.get("ranks") or len(read)
    if len(read) > most:
        limit = f"{ranks} ranks" if given.get("ranks") else f"at most {MAX_RANKS:,} ranks"
        raise FormatError(f"{label} yielded more than {most:,} programs for {limit}")
    if len(read) != ranks:
        raise FormatError(f"{label} yielded {len(read)} programs for {ranks} ranks")
    placement = Placement.loop(ranks, chunks)
    return Schedule.from_programs(
        label.rpartition(":")[2], placement, microbatches, read, iterations=iterations
    )


def _program(program: Any, rank: int, label: str, longest: int) -> Program:
    if isinstance(program, np.ndarray):
        if program.ndim == 1 and program.dtype == np.int64:
            if len(program) > longest:
                raise _too_long(label, rank, longest)
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
    texts = [
        str(item) if isinstance(item, tuple) else item for item in islice(program, longest + 1)
    ]
    if len(texts) > longest:
        raise _too_long(label, rank, longest)
    return read_cells(texts, lambda index: f"{label}: rank {rank}, action {index}")


def _too_long(label: str, rank: int, longest: int) -> FormatError:
    return FormatError(
        f"{label}: the program of rank {rank} has more than {longest:,} actions, the limit for "
        "these microbatches; end it, or give more microbatches"
    )
