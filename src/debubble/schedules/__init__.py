"""The catalogue: one module per family, found by being here."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from debubble.schedules.registry import Entry


class _Catalogue(types.ModuleType):
    # ``debubble.schedules`` is this package as soon as anything in it is imported, and the public
    # ``db.schedules()`` lists the registry: the package answers the call itself.
    def __call__(self) -> list[Entry]:
        from debubble.schedules import registry

        return registry.schedules()


sys.modules[__name__].__class__ = _Catalogue
