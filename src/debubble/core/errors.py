"""The hierarchy of errors that debubble raises on purpose.

::

    DebubbleError (ValueError)
    ├── ParameterError     a value a schedule, option or command cannot use
    ├── CostError          a cost that is negative, not finite, misspelt or missing
    ├── FormatError        a file or text that cannot be read
    └── ScheduleError      a schedule that cannot run, with the chain that shows why

    DebubbleDeprecationWarning (FutureWarning)   what a later release takes away

Messages name the value, the limit and the fix. Broken invariants of the library itself are
``assert`` statements, never one of these.
"""

from __future__ import annotations

import difflib
import re
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any


class DebubbleError(ValueError):
    """Base of every error a user can cause."""


class ParameterError(DebubbleError):
    """A parameter has a value that cannot be used."""


class CostError(DebubbleError):
    """A cost is negative, not finite, misspelt or missing."""


class FormatError(DebubbleError):
    """A file or text does not follow its format."""


class ScheduleError(DebubbleError):
    """A schedule cannot run.

    Parameters
    ----------
    message
        One or two lines for people.
    chain
        The actions that wait for each other, as text, in waiting order; empty when the
        problem is not a cycle.
    """

    def __init__(self, message: str, chain: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.chain = chain


class DebubbleDeprecationWarning(FutureWarning):
    """Use of a name that a later release removes; the message names its successor.

    Python shows it to everybody, not to developers alone. In a test suite of your own,
    ``-W error::debubble.DebubbleDeprecationWarning`` finds every use.
    """


_OWN = re.compile(r"debubble\.|dataclasses$")
"""Modules through which public functions call each other."""


def deprecated(old: str, instead: str, gone: str) -> None:
    """Warn that `old` of a public function goes away, on the caller's line outside debubble.

    `gone` is the release that has it no longer, at least one minor release after the first warning.
    """
    frame, level = sys._getframe(2), 3
    while frame.f_back is not None and _OWN.match(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"{old} is deprecated and goes away in debubble {gone}; use {instead}",
        DebubbleDeprecationWarning,
        stacklevel=level,
    )


class WrongValueError(Exception):
    """A value that cannot be used: caught where it is known whether a file or a call gave it.

    `path` leads from the name of the parameter to the value, ``"F[2]"``; `advice` is a valid value
    in words, and `form` the beginning of the message.
    """

    def __init__(
        self, path: str, value: Any, advice: str, form: str = "{path} is {value}; "
    ) -> None:
        super().__init__(path)
        self.path, self.value, self.advice, self.form = path, value, advice, form

    def text(self, show: Callable[[Any], str] = reprlib.repr) -> str:
        """Return one line for people; `show` quotes the value."""
        return self.form.format(path=self.path, value=show(self.value)) + self.advice


FEW = 8
"""Number of candidates that a message lists when none of them is near."""


def did_you_mean(value: object, candidates: Iterable[str]) -> str:
    """Return a hint that ends an error message: the nearest candidates, or all when they are few.

    Examples
    --------
    >>> did_you_mean("zbv", ["1f1b", "zb-v"])
    "did you mean 'zb-v'?"
    >>> did_you_mean("f", ["F", "FF"])
    "did you mean 'F'?"
    >>> did_you_mean("x", ["1f1b", "zb-v"])
    'known: 1f1b, zb-v'
    """
    names = sorted(set(candidates))
    folded = {name.lower(): name for name in names}
    wanted = str(value).lower()
    near = difflib.get_close_matches(wanted, list(folded), n=3, cutoff=0.6)
    if folded.get(wanted, value) != value:
        near = [wanted]  # but for its case it is the one
    if near:
        return "did you mean " + " or ".join(f"'{folded[name]}'" for name in near) + "?"
    if len(names) <= FEW:
        return "known: " + ", ".join(names)
    near = difflib.get_close_matches(wanted, list(folded), n=3, cutoff=0.0)
    first, second, third = (folded[name] for name in near)
    return f"the nearest are '{first}', '{second}' and '{third}'"


def check_type(name: str, value: Any, kind: type | tuple[type, ...], advice: str) -> None:
    """Refuse an argument of a wrong type with a ParameterError; `advice` ends the message."""
    if not isinstance(value, kind):
        raise ParameterError(f"{name} is {reprlib.repr(value)}; {advice}")
