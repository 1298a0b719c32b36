"""Former names of costs, which work for one more release and warn."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from debubble.core.errors import CostError, deprecated

RENAMED = {"overhead": "launch"}
"""Names of costs by former ones, which work until 0.3."""


def current_name(name: str, shown: str = "{}") -> str:
    """Return the name of a cost, with a warning instead of its former one; `shown` quotes it."""
    if name not in RENAMED:
        return name
    deprecated(shown.format(name), shown.format(RENAMED[name]), gone="0.3")
    return RENAMED[name]


def current_names(values: Mapping[str, Any], shown: str = "{}") -> dict[str, Any]:
    """Return values of costs by current names; a CostError where one has a value by both."""
    found = {}
    for name, value in values.items():
        new = current_name(name, shown)
        if new != name and new in values:
            raise CostError(f"{new} is there as {name}, too; give it once")
        found[new] = value
    return found


def taking_former_names(init: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of :class:`Costs` with former names among its keywords."""
    fields = inspect.signature(init).parameters.keys() - {"self"}

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **values: Any) -> None:
        if former := RENAMED.keys() & values.keys():
            if fields <= values.keys():
                # dataclasses.replace adds the value of every field that it is not given.
                for old in former:
                    del values[RENAMED[old]]
            values = current_names(values, "{}=")
        init(self, *args, **values)

    return wrapper
