"""Former names of costs, which work for one more release and warn."""

from __future__ import annotations

import functools
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
    """Return values of costs by current names, as of :func:`current_name`.

    Raises
    ------
    CostError
        When a cost has a value by either name.
    """
    found = {}
    for name, value in values.items():
        new = current_name(name, shown)
        if new != name and new in values:
            raise CostError(f"{new} is there as {name}, too; give it once")
        found[new] = value
    return found


def taking_former_names(init: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of :class:`Costs` with former names among its keywords."""

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **values: Any) -> None:
        for old in RENAMED.keys() & values.keys():
            # It counts where both are there: dataclasses.replace adds the value of every field.
            values[current_name(old, "{}=")] = values.pop(old)
        init(self, *args, **values)

    return wrapper
