"""A small Megatron: modules of its names whose schedules call steps as its own do."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PACKAGES = ("megatron", "megatron.core", "megatron.core.pipeline_parallel")


class Model:
    """A model chunk."""

    def __init__(self, vp_stage: int | None = None) -> None:
        self.vp_stage = vp_stage


def forward_step(
    forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: int,
    input_tensor: Any, forward_data_store: Any, config: Any, cp_group_size: int,
    collect_non_loss_data: bool = False, checkpoint_activations_microbatch: Any = None,
    is_first_microbatch: bool = False, current_microbatch: int | None = None,
    vp_stage: int | None = None, is_last_stage: bool = True,
) -> tuple[Any, int]:  # fmt: skip
    return [object()], 1


def old_forward_step(
    forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: int,
    input_tensor: Any, forward_data_store: Any, config: Any,
) -> Any:  # fmt: skip
    """That of releases which say no microbatch and no chunk."""
    return [object()]


def backward_step(
    input_tensor: Any, output_tensor: Any, output_tensor_grad: Any, config: Any
) -> None:
    return None


def combined_forward_backward_step(
    forward_step_func: Any, data_iterator: Any, f_model: Any, num_microbatches: int,
    input_tensor: Any, forward_data_store: Any, b_model: Any, b_input_tensor: Any,
    b_output_tensor: Any, b_output_tensor_grad: Any, config: Any,
    current_microbatch: int | None = None,
) -> tuple[Any, int, Any]:  # fmt: skip
    return [object()] if f_model is not None else None, 1, None


@contextmanager
def without_megatron() -> Iterator[None]:
    """Forget the modules of Megatron for a while, and those that stand in for them after it."""
    kept = {name: module for name, module in sys.modules.items() if name.startswith("megatron")}
    for name in kept:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.startswith("megatron")]:
            del sys.modules[name]
        sys.modules |= kept


@contextmanager
def megatron(rank: int, ranks: int, *, old: bool = False) -> Iterator[Any]:
    """The modules while they stand in for Megatron's; yields the one with schedules."""
    with without_megatron():
        for name in PACKAGES:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = []
        schedules = types.ModuleType("megatron.core.pipeline_parallel.schedules")
        schedules.forward_step = old_forward_step if old else forward_step  # type: ignore[attr-defined]
        schedules.backward_step = backward_step  # type: ignore[attr-defined]
        state = types.ModuleType("megatron.core.parallel_state")
        answers: dict[str, Callable[[], Any]] = {
            "get_pipeline_model_parallel_rank": lambda: rank,
            "get_pipeline_model_parallel_world_size": lambda: ranks,
            "get_virtual_pipeline_model_parallel_rank": lambda: None,
        }
        vars(state).update(answers)
        sys.modules |= {schedules.__name__: schedules, state.__name__: state}
        if not old:
            combined = types.ModuleType("megatron.core.pipeline_parallel.combined_1f1b")
            vars(combined)["combined_forward_backward_step"] = combined_forward_backward_step
            sys.modules[combined.__name__] = combined
        yield schedules
