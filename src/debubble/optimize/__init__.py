"""Searches for schedules faster than the published ones, and lower bounds for any schedule."""

from __future__ import annotations

import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from debubble.optimize.result import Result


class _Optimizer(types.ModuleType):
    # As with ``debubble.schedules``: the public ``db.optimize(...)`` has the package's name, and
    # what help() and editors show of it is the function's.
    @property
    def __signature__(self) -> inspect.Signature:
        from debubble.optimize.search import optimize

        return inspect.signature(optimize)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        from debubble.optimize.search import optimize

        first, _, rest = (inspect.getdoc(optimize) or "").partition("\n\n")
        parameters = [f"    {parameter}," for parameter in self.__signature__.parameters.values()]
        call = "\n".join(["debubble.optimize(", *parameters, ")"])
        return f"{first}\n\n{call}\n\n{rest}"

    def __call__(self, **options: Any) -> Result:
        from debubble.optimize.search import optimize

        return optimize(**options)


sys.modules[__name__].__class__ = _Optimizer
