"""Run a kernel compiled or interpreted, whichever is sooner done."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Array: TypeAlias = NDArray[Any]
"""Arguments of kernels: arrays of numbers, or lists in place of one-dimensional ones."""

INTERPRET_BELOW = 60_000
"""Loop iterations below which interpreting beats importing numba and loading compiled code."""

INTERPRET_AT_MOST = 400_000
"""Loop iterations that are interpreted in one process before numba is loaded all the same."""

INTERPRET_WHEN_LOADED = 100
"""Loop iterations below which interpreting is sooner done once numba is loaded."""

HELPER = "called_by_kernels"
"""Attribute of functions that are compiled together with the kernels that call them."""

_interpreted = 0


class Kernel(Generic[R]):
    """A function over arrays that can run compiled or interpreted.

    Parameters
    ----------
    py_func
        The function, in the subset of Python that numba compiles.
    writes
        Names of the one-dimensional array parameters the function writes to.
    """

    def __init__(self, py_func: Callable[..., R], writes: tuple[str, ...]) -> None:
        self.py_func = py_func
        self.__doc__ = py_func.__doc__
        names = list(inspect.signature(py_func).parameters)
        self._writes = [names.index(name) for name in writes]
        self._compiled: Callable[..., R] | None = None

    @property
    def compiled(self) -> Callable[..., R]:
        """The machine-code version; compiled on first use and cached on disk."""
        if self._compiled is None:
            import numba

            scope = {
                name: numba.njit(value) if getattr(value, HELPER, False) else value
                for name, value in self.py_func.__globals__.items()
            }
            function = types.FunctionType(
                self.py_func.__code__, scope, self.py_func.__name__, self.py_func.__defaults__
            )
            function.__qualname__ = self.py_func.__qualname__
            self._compiled = numba.njit(cache=True, nogil=True)(function)
        return self._compiled

    def run(self, work: int, *args: Any) -> R:
        """Call the kernel; `work` is the number of loop iterations it is going to take."""
        global _interpreted
        if "numba" in sys.modules:
            limit = INTERPRET_WHEN_LOADED
        else:
            _interpreted += work
            limit = INTERPRET_BELOW if _interpreted < INTERPRET_AT_MOST else 0
        if work >= limit:
            return self.compiled(*args)
        return self.interpret(*args)

    def interpret(self, *args: Any) -> R:
        """Call the Python version on lists, which it indexes many times faster than arrays.

        Arrays of two dimensions stay arrays.
        """
        lists: list[Any] = [
            a.tolist() if isinstance(a, np.ndarray) and a.ndim == 1 else a for a in args
        ]
        result: R = self.py_func(*lists)
        for index in self._writes:
            target: Any = args[index]
            target[:] = lists[index]
        return result


def helper(function: F) -> F:
    """Mark a function that kernels of the same file call.

    Of the same file, because compiled code is kept on disk until the file of its kernel changes.
    """
    setattr(function, HELPER, True)
    return function


def kernel(*, writes: tuple[str, ...] = ()) -> Callable[[Callable[..., R]], Kernel[R]]:
    """Mark a function as a :class:`Kernel`; `writes` names the arrays it fills."""

    def wrap(function: Callable[..., R]) -> Kernel[R]:
        return Kernel(function, writes)

    return wrap
