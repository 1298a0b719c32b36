"""A stand-in for megatron-core that has the names that are used, with the parameters they need."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from debubble.megatron.internals import BY_STAGE, SCHEDULES, USED
from debubble.megatron.placement import OURS
from tests.megatron.standing_in import without_megatron

LOOKS_UP = """
def get_forward_backward_func(pp_size=1, vp_size=None):
    if pp_size == 1:
        return forward_backward_no_pipelining
    if vp_size:
        return forward_backward_pipelining_with_interleaving
    return forward_backward_pipelining_without_interleaving
"""


def function(name: str, parameters: Sequence[str]) -> Any:
    """A function that returns its name, called with keywords."""

    def made(**_: Any) -> str:
        return name

    kind = inspect.Parameter.KEYWORD_ONLY
    made.__name__ = name
    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(one, kind, default=None) for one in parameters]
    )
    return made


@contextmanager
def megatron(
    used: Mapping[str, Sequence[str]] = USED, looks_up: str = LOOKS_UP
) -> Iterator[types.ModuleType]:
    """Have these names for a while; yields the module with the schedules."""
    with without_megatron():

        def module(path: str) -> types.ModuleType:
            """A module and those above it."""
            above, _, own = path.rpartition(".")
            if path not in sys.modules:
                sys.modules[path] = types.ModuleType(path)
                sys.modules[path].__path__ = []  # type: ignore[attr-defined]
                if above:
                    setattr(module(above), own, sys.modules[path])
            return sys.modules[path]

        module("megatron.core").__version__ = "0.99.0"  # type: ignore[attr-defined]
        for name in (*BY_STAGE, *OURS):
            module(f"megatron.core.{name}".rpartition(".")[0])
        for name, parameters in used.items():
            path, _, attribute = f"megatron.core.{name}".rpartition(".")
            setattr(module(path), attribute, function(attribute, parameters))
        schedules = sys.modules[f"megatron.core.{SCHEDULES}"]
        exec(looks_up, vars(schedules))
        yield schedules
