"""Run a kernel compiled or interpreted, whichever is sooner done."""

from __future__ import annotations

import inspect
import sys
import types
import zlib
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Array: TypeAlias = NDArray[Any]
"""Arguments of kernels: arrays of numbers, or lists in place of one-dimensional ones."""

INTERPRET_BELOW = 60_000
"""Loop iterations below which interpreting beats importing numba and loading compiled code."""

INTERPRET_AT_MOST = 200_000
"""Loop iterations of one kernel that are interpreted, with arguments of the same types, before
compiled code is made or loaded all the same: to make it takes up to ten seconds, once."""

INTERPRET_WHEN_LOADED = 100
"""Loop iterations below which interpreting is sooner done where numba was loaded beforehand, by a
program that means to stay."""

HELPER = "compiled_form"
"""Attribute of functions that kernels call: the function that compiled code calls instead."""

_loaded_here = False


class Kernel(Generic[R]):
    """A function over arrays that can run compiled or interpreted.

    Parameters
    ----------
    py_func
        The function, in the subset of Python that numba compiles.
    writes
        Names of the one-dimensional array parameters the function writes to.
    allocates
        Whether it makes arrays. Else compiled code need not count who uses an array, which takes
        ten times as long as all else where tuples of arrays are handed to helpers.
    """

    def __init__(
        self, py_func: Callable[..., R], writes: tuple[str, ...], allocates: bool = True
    ) -> None:
        self.py_func = py_func
        self._allocates = allocates
        self.__doc__ = py_func.__doc__
        names = list(inspect.signature(py_func).parameters)
        self._writes = [names.index(name) for name in writes]
        self._compiled: Callable[..., R] | None = None
        self._interpreted: dict[Hashable, int] = {}

    @property
    def compiled(self) -> Callable[..., R]:
        """The machine-code version; compiled on first use and cached on disk."""
        global _loaded_here
        if self._compiled is None:
            _loaded_here = _loaded_here or "numba" not in sys.modules
            import numba

            found: dict[Any, Any] = {}
            # Without numba's runtime arrays are not counted, and cannot be made.
            options: Any = {} if self._allocates else {"_nrt": False}
            function = _linked(self.py_func, found, **options)
            # Compiled code is kept on disk by this name, until the file of the kernel changes.
            # Where helpers are of other files, those have a say in the name.
            function.__qualname__ = f"{self.py_func.__qualname__}{_digest(found)}"
            self._compiled = numba.njit(cache=True, nogil=True, **options)(function)
        return self._compiled

    def run(self, work: int, *args: Any) -> R:
        """Call the kernel; `work` is the number of loop iterations it is going to take."""
        if self._pays(work, args):
            return self.compiled(*args)
        return self.interpret(*args)

    def _pays(self, work: int, args: tuple[Any, ...]) -> bool:
        """Whether it is worth compiled code, which may have to be made first."""
        if "numba" in sys.modules and not _loaded_here:
            return work >= INTERPRET_WHEN_LOADED
        # Code is compiled for every combination of types anew.
        types = tuple(getattr(argument, "dtype", type(argument)) for argument in args)
        most = max(INTERPRET_AT_MOST, INTERPRET_BELOW)
        spent = self._interpreted.get(types, 0) + max(work, 1)
        self._interpreted[types] = max(spent, most) if work >= INTERPRET_BELOW else spent
        return self._interpreted[types] >= most

    def interpret(self, *args: Any) -> R:
        """Call the Python version on lists, which it indexes many times faster than arrays.

        Arrays of two dimensions stay arrays; what is written to arrays in tuples is lost.
        """
        lists = [_as_list(argument) for argument in args]
        result: R = self.py_func(*lists)
        for index in self._writes:
            target: Any = args[index]
            target[:] = lists[index]
        return result


def _as_list(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_as_list, argument))
    if isinstance(argument, np.ndarray) and argument.ndim == 1:
        return argument.tolist()
    return argument


def helper(function: F) -> F:
    """Mark a function that kernels, and other helpers, call: compiled code has it inlined."""
    setattr(function, HELPER, function)
    return function


def _as_unsigned(number: int) -> Any:
    return np.uint64(number)


def unsigned(number: int) -> int:
    """A number that is not negative, as an index: compiled code does not look at its sign."""
    return number


setattr(unsigned, HELPER, _as_unsigned)


def _linked(
    function: Callable[..., Any], found: dict[Any, Any], **options: Any
) -> types.FunctionType:
    """The same function, calling compiled helpers; `found` gathers these."""
    import numba

    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        used = getattr(scope.get(name), HELPER, None)
        if used is not None:
            if used not in found:
                inner = _linked(used, found, **options)
                found[used] = numba.njit(forceinline=True, **options)(inner)
            scope[name] = found[used]
    return types.FunctionType(
        function.__code__,
        scope,
        function.__name__,
        function.__defaults__,
    )


def _digest(functions: Iterable[Callable[..., Any]]) -> str:
    """What changes with the files of some functions; empty for none."""
    files = sorted({function.__code__.co_filename for function in functions})
    content = b"".join(Path(file).read_bytes() for file in files)
    return f"_{zlib.crc32(content):08x}" if files else ""


def kernel(
    *, writes: tuple[str, ...] = (), allocates: bool = True
) -> Callable[[Callable[..., R]], Kernel[R]]:
    """Mark a function as a :class:`Kernel`, which has the parameters."""

    def wrap(function: Callable[..., R]) -> Kernel[R]:
        return Kernel(function, writes, allocates)

    return wrap
