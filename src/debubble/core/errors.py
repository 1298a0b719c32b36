"""Everything debubble raises on purpose.

::

    DebubbleError (ValueError)
    ├── ParameterError     a value a schedule, option or command cannot use
    ├── CostError          a cost that is negative, not finite, misspelt or missing
    ├── FormatError        a file or text that cannot be read
    └── ScheduleError      an order that cannot run, with the chain that shows why

Messages name the value, the limit and the fix. Broken invariants of the library itself are
``assert`` statements, never one of these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DebubbleError(ValueError):
    """Base of every error a user can cause."""


class ParameterError(DebubbleError):
    """A parameter has a value that cannot be used."""


class CostError(DebubbleError):
    """A cost is negative, not finite, misspelt or missing."""


class FormatError(DebubbleError):
    """A file or text does not follow its format."""


class ScheduleError(DebubbleError):
    """An order cannot run.

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


def did_you_mean(value: str, candidates: Iterable[str]) -> str:
    """A hint that ends an error message: the nearest candidates, or all when none is near.

    Examples
    --------
    >>> did_you_mean("zbv", ["1f1b", "zb-v"])
    "did you mean 'zb-v'?"
    """
    names = sorted(set(candidates))
    folded = {name.lower(): name for name in names}
    near = difflib.get_close_matches(value.lower(), list(folded), n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(f"'{folded[name]}'" for name in near) + "?"
    return "known: " + ", ".join(names)
