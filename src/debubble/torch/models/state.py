"""What pipelines are saved as: parameters and buffers by stage and name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from debubble.core.errors import ParameterError, did_you_mean
from debubble.torch.models.modules import bare, bare_name

NamedModules = Iterable[tuple[str, nn.Module]]
"""Modules with what their names begin with."""


def named_parameters(modules: NamedModules) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter once."""
    seen: set[int] = set()
    for prefix, module in modules:
        for name, weight in bare(module).named_parameters():
            if id(weight) not in seen:
                seen.add(id(weight))
                yield f"{prefix}.{bare_name(name)}", weight


def state_of(modules: NamedModules) -> dict[str, Any]:
    """Parameters and buffers."""
    return {
        f"{prefix}.{bare_name(name)}": value
        for prefix, module in modules
        for name, value in bare(module).state_dict().items()
    }


def load_state(modules: NamedModules, state: Mapping[str, Any]) -> None:
    """Take parameters and buffers; `state` may have more.

    Raises ParameterError when one is missing, or has another shape.
    """
    if not isinstance(state, Mapping):
        raise ParameterError(
            f"the state is {type(state).__name__}; give what state_dict() returned, or was saved"
        )
    modules = list(modules)
    missing = [name for name in state_of(modules) if name not in state]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        hint = did_you_mean(missing[0], state) if state else "it is empty"
        raise ParameterError(f"the state has no '{missing[0]}'{more}; {hint}")
    for prefix, module in modules:
        inner = bare(module)
        own = {name: f"{prefix}.{bare_name(name)}" for name in inner.state_dict()}
        try:
            inner.load_state_dict({name: state[full] for name, full in own.items()})
        except RuntimeError as error:
            what = str(error).splitlines()[-1].strip().rstrip(".")
            raise ParameterError(f"the state does not fit stage {prefix}: {what}") from None
