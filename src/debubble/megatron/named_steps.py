"""Ranges of Megatron-LM's forwards and backwards in profiles, named by stage and microbatch.

Megatron's own ranges have neither. A forward is called with its model chunk and microbatch; a
backward is called with the output of its forward, by which it is found again. So names are right
under any schedule, whatever the sequence of calls.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from debubble.core.actions import cell_of
from debubble.core.errors import DebubbleError

SCHEDULES = "megatron.core.pipeline_parallel.schedules"
COMBINED = "megatron.core.pipeline_parallel.combined_1f1b"
MARK = "_debubble_name_steps"


def trace_ranges(pp_group: Any = None) -> None:
    """Name the forwards and backwards of Megatron-LM in profiles, for ``debubble trace``.

    Call it once on every rank, before the first step::

        import debubble.megatron
        debubble.megatron.trace_ranges()

    From then on ``torch.profiler`` and Nsight Systems record ranges like ``PP:0F3`` and
    ``PP:3B1``, and ``PP:(0F3;3B1)OVERLAP_F_B`` for a forward and a backward that run combined.
    While nothing is profiled, an action takes less than 0.1 ms more.

    Parameters
    ----------
    pp_group
        Process group of the pipeline; by default Megatron's ``parallel_state`` has it.

    Raises
    ------
    DebubbleError
        When megatron-core is not installed.

    Notes
    -----
    It replaces ``forward_step`` and ``backward_step`` in the module ``schedules``, which all of
    megatron-core's schedules call, and NeMo's by them. Stages of model chunks are numbered round
    by round over the ranks, as Megatron places them.
    """
    try:
        schedules: Any = importlib.import_module(SCHEDULES)
    except ModuleNotFoundError as error:
        raise DebubbleError(
            f"debubble.megatron needs megatron-core, and '{error.name}' is missing; "
            "pip install megatron-core"
        ) from None
    if getattr(schedules, MARK, None) is not None:
        return
    import torch

    names = _Names(pp_group, nvtx=torch.cuda.is_available())
    setattr(schedules, MARK, names)
    schedules.forward_step = _named_forward(schedules.forward_step, names)
    schedules.backward_step = _named_backward(schedules.backward_step, names)
    combined = _module(COMBINED)
    if combined is not None:
        combined.combined_forward_backward_step = _named_pair(
            combined.combined_forward_backward_step, names
        )


name_steps = trace_ranges
"""Older name of :func:`trace_ranges`."""


def ranges_of(schedules: Any) -> Callable[[str], AbstractContextManager[Any]]:
    """Return a maker of ranges for our engine's actions; they are empty before trace_ranges()."""
    names: _Names | None = getattr(schedules, MARK, None)
    return nullcontext if names is None else names.of_engine


def _module(name: str) -> Any:
    """Return a module, or None where this release of Megatron has none of that name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


class _Names:
    """Stages and microbatches of forwards, also by the outputs that wait for their backward."""

    def __init__(self, pp_group: Any, nvtx: bool) -> None:
        self._group, self._nvtx = pp_group, nvtx
        self._outputs: dict[int, tuple[int, int]] = {}
        self.named = False
        """If our engine has named what runs."""
        self._counts: Counter[int] = Counter()

    def of_forward(self, given: Callable[[str], Any], model: Any) -> tuple[int, int]:
        """Return stage and microbatch of a forward, from the arguments of its call."""
        chunk = given("vp_stage")
        if chunk is None:
            chunk = getattr(model, "vp_stage", None)
        if chunk is None:
            chunk = self._state("get_virtual_pipeline_model_parallel_rank")
        chunk = chunk or 0
        microbatch = given("current_microbatch")
        if microbatch is None:
            # Releases before 0.6 do not say it. Forwards of a chunk run in sequence.
            microbatch = self._counts[chunk] % given("num_microbatches")
            self._counts[chunk] += 1
        if chunk == 0 and microbatch == 0:
            # Of a step that had no backwards, outputs are gone, and others may get their places.
            self._outputs.clear()
        if self._group is not None:
            rank, ranks = self._group.rank(), self._group.size()
        else:
            rank = self._state("get_pipeline_model_parallel_rank")
            ranks = self._state("get_pipeline_model_parallel_world_size")
        return chunk * ranks + rank, microbatch

    def keep(self, output: Any, stage: int, microbatch: int) -> None:
        """Keep the names of an output, which Megatron holds until its backward."""
        self._outputs[id(output)] = stage, microbatch

    def of_backward(self, output: Any) -> tuple[int, int] | None:
        """Return stage and microbatch of the backward of an output; None if it is unknown."""
        return self._outputs.pop(id(output), None)

    @contextmanager
    def range(self, actions: str) -> Iterator[None]:
        """Name what runs inside for PyTorch's profiler and, on a GPU, for Nsight Systems."""
        from torch.profiler import record_function

        with self._pushed(actions), record_function(f"PP:{actions}"):
            yield

    @contextmanager
    def of_engine(self, action: str) -> Iterator[None]:
        """Name an action of our engine, which knows its stage under any placement.

        For Nsight Systems alone: in PyTorch's profiles the engine names its actions itself.
        """
        self.named = True
        try:
            with self._pushed(action):
                yield
        finally:
            self.named = False

    @contextmanager
    def _pushed(self, actions: str) -> Iterator[None]:
        from torch.cuda import nvtx

        if self._nvtx:
            nvtx.range_push(f"PP:{actions}")
        try:
            yield
        finally:
            if self._nvtx:
                nvtx.range_pop()

    @staticmethod
    def _state(name: str) -> Any:
        state = importlib.import_module("megatron.core.parallel_state")
        return getattr(state, name)()


def _arguments(function: Callable[..., Any]) -> Callable[..., Callable[[str], Any]]:
    """Return a function that finds arguments of calls by name; None for one that is not given."""
    names = list(inspect.signature(function).parameters)
    return lambda args, kwargs: (kwargs | dict(zip(names, args, strict=False))).get


def _named_forward(forward: Callable[..., Any], names: _Names) -> Callable[..., Any]:
    arguments = _arguments(forward)

    @functools.wraps(forward)
    def forward_step(*args: Any, **kwargs: Any) -> Any:
        if names.named:
            return forward(*args, **kwargs)
        given = arguments(args, kwargs)
        stage, microbatch = names.of_forward(given, given("model"))
        with names.range(f"{stage}F{microbatch}"):
            result = forward(*args, **kwargs)
        # Releases before 0.7 return the output alone.
        names.keep(result[0] if isinstance(result, tuple) else result, stage, microbatch)
        return result

    return forward_step


def _named_backward(backward: Callable[..., Any], names: _Names) -> Callable[..., Any]:
    arguments = _arguments(backward)

    @functools.wraps(backward)
    def backward_step(*args: Any, **kwargs: Any) -> Any:
        place = names.of_backward(arguments(args, kwargs)("output_tensor"))
        if place is None:
            return backward(*args, **kwargs)
        with names.range(f"{place[0]}B{place[1]}"):
            return backward(*args, **kwargs)

    return backward_step


def _named_pair(both: Callable[..., Any], names: _Names) -> Callable[..., Any]:
    """Return Megatron's step of a forward and a backward at once, either of which may be None."""
    arguments = _arguments(both)

    @functools.wraps(both)
    def combined_forward_backward_step(*args: Any, **kwargs: Any) -> Any:
        given = arguments(args, kwargs)
        forward = backward = None
        if given("f_model") is not None:
            forward = names.of_forward(given, given("f_model"))
        if given("b_model") is not None:
            backward = names.of_backward(given("b_output_tensor"))
        actions = [
            f"{place[0]}{kind}{place[1]}"
            for kind, place in (("F", forward), ("B", backward)) if place is not None
        ]  # fmt: skip
        if not actions:
            return both(*args, **kwargs)
        with names.range(cell_of(actions)):
            result = both(*args, **kwargs)
        if forward is not None:
            names.keep(result[0], *forward)
        return result

    return combined_forward_backward_step
