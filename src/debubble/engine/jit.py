"""Run a kernel compiled or interpreted, whichever is sooner done."""

from __future__ import annotations

import inspect
import sys
import time
import types
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from debubble.engine.background import compile_in_background, is_allowed
from debubble.engine.kernel_files import add_one_by_one

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Array: TypeAlias = NDArray[Any]
"""Arguments of kernels: arrays of numbers, or lists in place of one-dimensional ones."""

INTERPRET_BELOW = 1_000_000
"""Loop iterations that one process interprets before it loads numba, and compiled code.

Loading takes as long as half of them; commands that search a few small orders stay below.
"""

INTERPRET_WHEN_LOADED = 100
"""Loop iterations below which interpreting is sooner done once numba is loaded."""

INTERPRET_UNASKED = 50_000
"""Loop iterations of a kernel that one process interprets before it has the kernel compiled in
another process, and goes on interpreting until that is done: a tenth of a second.

Counted, as below, for each kernel and each tuple of argument types. Machine code that is on disk is
loaded at once.
"""

INTERPRET_UNCOMPILED = 400
"""Loop iterations of a kernel that one process interprets before it compiles the kernel itself,
where there can be no other process, for each byte of bytecode of the kernel and its helpers that
such arguments need.

Compiling takes about as long as interpreting so many iterations.
"""

WAIT = 0.02
"""Seconds between looks at the disk for machine code of another process."""

ONLY_CALLED_BY_KERNELS: Any = {
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""Options of helpers. Ways in for other callers would take a quarter of the time of compiling."""

HELPER = "compiled_form"
"""Attribute of functions that kernels call: the function that compiled code calls instead."""

_interpreted = 0


class Kernel(Generic[R]):
    """A function over arrays, in the subset that numba compiles, compiled or interpreted.

    `writes` are the parameters that it writes to, one-dimensional arrays or tuples of them; with
    dots those of fields, ``"frame.graph"`` for instance. Unless it `allocates` arrays, compiled
    code need not count who uses one, which takes ten times as long as all else where tuples of
    arrays are handed to helpers.
    """

    def __init__(
        self, py_func: Callable[..., R], writes: tuple[str, ...], allocates: bool = True
    ) -> None:
        self.py_func = py_func
        self._allocates = allocates
        self.__doc__ = py_func.__doc__
        names = list(inspect.signature(py_func).parameters)
        paths = [name.split(".") for name in writes]
        self._writes = [(names.index(first), fields) for first, *fields in paths]
        self._compiled: Callable[..., R] | None = None
        self._is_kept = True
        self._helpers: list[Callable[..., Any]] = []  # all of them, once it is `compiled`
        self._ready: set[tuple[object, ...]] = set()
        self._entries: dict[tuple[object, ...], Callable[..., R]] = {}
        self._uncompiled: dict[tuple[object, ...], int] = {}
        self._sizes: dict[tuple[object, ...], int] = {}

    @property
    def compiled(self) -> Callable[..., R]:
        """The machine-code version; compiled on first use and cached on disk.

        Without numba it is the Python version.
        """
        if self._compiled is None:
            if not load_compiler():
                return self.py_func
            import numba

            found: dict[Any, Any] = {}
            # Without numba's runtime arrays are not counted, and cannot be made.
            options: Any = {} if self._allocates else {"_nrt": False}
            function = _linked(self.py_func, found, **options)
            self._helpers = list(found)
            # Compiled code is kept on disk by this name, until the file of the kernel changes.
            # What comes from other files, helpers and numbers, has a say in the name.
            function.__qualname__ = f"{self.py_func.__qualname__}{_digest(self.py_func, found)}"
            options |= {"cache": True, "nogil": True, "no_cfunc_wrapper": True}
            try:
                self._compiled = numba.njit(**options)(function)
                add_one_by_one(self._compiled)
            except RuntimeError:  # there is nowhere to write it to
                self._is_kept = False
                self._compiled = numba.njit(**options | {"cache": False})(function)
        return self._compiled

    def run(self, work: int, *args: Any, types: tuple[object, ...] | None = None) -> R:
        """Call the kernel; `work` is the number of loop iterations it is going to take.

        Calls with equal `types` must have arguments of equal types, layouts of arrays included.
        That spares looking at every array: of fifty it takes as long as the rest of a small call.
        """
        global _interpreted
        if sys.modules.get("numba") is not None:
            small = work < INTERPRET_WHEN_LOADED
        else:
            _interpreted += work
            small = _interpreted < INTERPRET_BELOW
        if types is not None and not small and types in self._entries:
            return self._entries[types](*args)
        if small or not load_compiler() or not self._is_ready(work, args):
            return self.interpret(*args)
        result = self.compiled(*args)
        if types is not None:
            self._entries[types] = _entry(self.compiled, args)
        return result

    def _is_ready(self, work: int, args: tuple[Any, ...]) -> bool:
        """Return whether to call machine code, which is there for such arguments or made here.

        Otherwise this call is interpreted to its end.
        """
        types = _types_of(args)
        if types in self._ready:
            return True
        is_new = types not in self._uncompiled
        total = self._uncompiled[types] = self._uncompiled.get(types, 0) + work
        worth_asking = total > INTERPRET_UNASKED and is_allowed()
        # Looking at the disk takes as long as interpreting some hundred iterations: it is done
        # at first, and again once another process may have written there.
        if not ((is_new or worth_asking) and self._is_on_disk(args)):
            limit = INTERPRET_UNCOMPILED * (self._sizes.get(types) or self._size(types, args))
            # A single call that is worth the compiler does not wait for another process.
            waits = worth_asking and work <= limit and self._is_being_compiled(args, total)
            if waits or total <= limit:
                return False
        self._ready.add(types)
        return True

    def _size(self, types: tuple[object, ...], args: tuple[Any, ...]) -> int:
        """Return the bytes of bytecode of this and of the helpers that such arguments need.

        Helpers of a module with named tuples do not count where none of these is an argument: what
        is None takes them out of the code.
        """
        given = set(_tuples_in(args))
        used = [self.py_func]
        for helper in self._helpers:
            own = _tuples_of(helper)
            if not own or own & given:
                used.append(helper)
        size = sum(len(function.__code__.co_code) for function in used)
        return self._sizes.setdefault(types, size)

    def wait_for(self, args: tuple[Any, ...], stop: Callable[[], bool]) -> bool:
        """Wait for machine code from another process; return False if `stop` came first.

        For searches with a limit of time, which cannot stop while a kernel is compiled. True also
        where there can be no other process.
        """
        types = _types_of(args)
        while types not in self._ready:
            if self._is_on_disk(args) or not self._is_being_compiled(args):
                self._ready.add(types)
            elif stop():
                return False
            else:
                time.sleep(WAIT)
        return True

    def _is_on_disk(self, args: tuple[Any, ...]) -> bool:
        compiled = self.compiled
        return self._is_kept and _on_disk(compiled, args)

    def _is_being_compiled(self, args: tuple[Any, ...], work: int = 0) -> bool:
        """Return whether another process compiles this for such arguments, or has done so."""
        module, name = self.py_func.__module__, self.py_func.__name__
        if not self._is_kept or getattr(sys.modules.get(module), name, None) is not self:
            return False
        types = tuple(map(self.compiled.typeof_pyval, args))
        return compile_in_background(module, name, types, work)

    def interpret(self, *args: Any) -> R:
        """Call the Python version on lists, which it indexes many times faster than arrays.

        Arrays of two dimensions stay arrays; named tuples become objects with their fields.
        """
        lists = [_as_lists(argument) for argument in args]
        result: R = self.py_func(*lists)
        for index, fields in self._writes:
            argument, changed = args[index], lists[index]
            for name in fields:
                argument, changed = getattr(argument, name), getattr(changed, name)
            _write_back(argument, changed)
        return result


def _on_disk(function: Any, args: tuple[Any, ...]) -> bool:
    """Return whether numba has kept machine code of a function for arguments of these types.

    Numba says so only by loading it or compiling; the index of its cache, which it does not
    publish, knows it at once. Where that looks different one day, the answer is yes.
    """
    try:
        types = tuple(map(function.typeof_pyval, args))
        key = function._cache._index_key(types, function.targetctx.codegen())
        return key in function._cache._cache_file._load_index()
    except (AttributeError, OSError):
        return True


def _entry(function: Any, args: tuple[Any, ...]) -> Any:
    """Return machine code that ran for such arguments, to be called without a look at them."""
    try:
        return function.get_overload(tuple(map(function.typeof_pyval, args)))
    except (AttributeError, KeyError):
        return function


def _types_of(args: tuple[Any, ...]) -> tuple[object, ...]:
    """Return a key that differs wherever numba compiles once more, for the types kernels take."""
    return tuple([
        a.dtype.num if type(a) is np.ndarray
        else _types_of(a) if isinstance(a, tuple)
        else a is None
        for a in args
    ])  # fmt: skip


def _tuples_in(args: tuple[Any, ...]) -> Iterator[type]:
    """Yield the classes of named tuples among arguments, and within these."""
    for argument in args:
        if isinstance(argument, tuple):
            yield type(argument)
            yield from _tuples_in(argument)


def _tuples_of(function: Callable[..., Any]) -> set[type]:
    """Return the named tuples that the module of a function defines."""
    defined = function.__globals__.values()
    return {
        used for used in defined
        if hasattr(used, "_fields") and used.__module__ == function.__module__
    }  # fmt: skip


def _as_lists(argument: Any) -> Any:
    """Copy the one-dimensional arrays of an argument to lists."""
    if isinstance(argument, np.ndarray):
        return argument.tolist() if argument.ndim == 1 else argument
    if isinstance(argument, tuple):
        names = getattr(argument, "_fields", None)
        if names is None:
            return tuple(map(_as_lists, argument))
        record = _record(names)()
        for name, item in zip(names, argument, strict=True):
            setattr(record, name, _as_lists(item))
        return record
    return argument


@cache
def _record(names: tuple[str, ...]) -> type:
    """Return a class with the fields of a named tuple, read in a third of the time."""
    return type("Record", (), {"__slots__": names})


def _write_back(argument: Any, lists: Any) -> None:
    """Copy lists made by :func:`_as_lists` back to the arrays they came from."""
    if isinstance(argument, np.ndarray):
        argument[:] = lists
    elif isinstance(argument, tuple):
        names = getattr(argument, "_fields", None)
        changed = lists if names is None else [getattr(lists, name) for name in names]
        for item, new in zip(argument, changed, strict=True):
            _write_back(item, new)


@cache
def load_compiler() -> bool:
    """Load numba, for what is known to run more than is soon interpreted.

    Returns whether it is there. Where it is not, everything is interpreted, with one warning.
    """
    try:
        import numba  # noqa: F401
    except Exception as error:  # a broken install raises anything
        warnings.warn(
            f"numba cannot be loaded ({error}), so everything is interpreted, some hundred times "
            "slower; pip install numba",
            stacklevel=2,
        )
        return False
    return True


def helper(function: F) -> F:
    """Mark a function that kernels, and other helpers, call: compiled code has it inlined."""
    setattr(function, HELPER, function)
    return function


def _as_unsigned(number: int) -> Any:
    return np.uint64(number)


unsigned: Callable[[int], int] = abs
"""A nonnegative number as an index: compiled code does not look at its sign.

Interpreted it is the quickest function that changes nothing.
"""


def _compiled_form(used: object) -> Any:
    """Return the function that compiled code calls instead of a helper; None for other things."""
    return _as_unsigned if used is unsigned else getattr(used, HELPER, None)


def _linked(
    function: Callable[..., Any], found: dict[Any, Any], **options: Any
) -> types.FunctionType:
    """Return the function with calls of compiled helpers, which are gathered in `found`."""
    import numba

    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        used = _compiled_form(scope.get(name))
        if used is not None:
            if used not in found:
                inner = _linked(used, found, **options)
                found[used] = numba.njit(**options, **ONLY_CALLED_BY_KERNELS)(inner)
            scope[name] = found[used]
    return types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__)


def _digest(function: Callable[..., Any], helpers: Iterable[Callable[..., Any]]) -> str:
    """Return a checksum of the files of helpers and named tuples, and of the numbers they take."""
    functions = (function, *helpers)
    files = {helper.__code__.co_filename for helper in helpers}
    # Machine code reads named tuples by position: numba does not see that fields have moved, and
    # cannot read what it keeps where a class is gone.
    for scope in (used.__globals__ for used in functions):
        tuples = [used for used in scope.values() if hasattr(used, "_fields")]
        files |= {str(sys.modules[used.__module__].__file__) for used in tuples}
    numbers = sorted(set(chain.from_iterable(map(_numbers, functions))))
    content = b"".join(Path(file).read_bytes() for file in sorted(files)) + repr(numbers).encode()
    return f"_{zlib.crc32(content):08x}"


def _numbers(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Names and values of the module-level numbers that a function uses, its own and imported."""
    scope, names = function.__globals__, function.__code__.co_names
    modules = [scope[name] for name in names if isinstance(scope.get(name), types.ModuleType)]
    for name in names:
        for place in (scope, *map(vars, modules)):
            if isinstance(place.get(name), int | float | tuple):
                yield name, repr(place[name])


def kernel(
    *, writes: tuple[str, ...] = (), allocates: bool = True
) -> Callable[[Callable[..., R]], Kernel[R]]:
    """Mark a function as a :class:`Kernel`, which has the parameters."""

    def wrap(function: Callable[..., R]) -> Kernel[R]:
        return Kernel(function, writes, allocates)

    return wrap
