"""Our schedules and placements in place of Megatron's."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from debubble.megatron.forward_backward import ForwardBackward
from debubble.megatron.internals import ALONE, REPLACED, Megatron
from debubble.megatron.placement import place, place_as_megatron, refuse_others
from debubble.megatron.refused import refuse
from debubble.megatron.source import ScheduleSource

log = logging.getLogger(__name__)

Replaced = dict[str, tuple[Any, Callable[..., Any], Callable[..., Any]]]
"""By name: the module, its own function, and that in its place."""

_INSTALLED: Replaced = {}
_GUARDED: Replaced = {}
"""Megatron's functions below them, which refuse models in other placements."""


def forward_backward_func(
    schedule: Any, *, split: str = "auto", timeout: float = 600
) -> Callable[..., list[Any]]:
    """Return a function with the keywords of Megatron's, which runs a schedule.

    Parameters
    ----------
    schedule
        A schedule's name, for which one is made for the sizes of every call; or one with sizes of
        its own: a file, a :class:`debubble.Schedule`, the result of :func:`debubble.optimize`, or a
        plan.
    split
        Where the schedule splits backwards into I and W: ``"te"`` calls ``backward_dw()`` of
        layers that delay their weight gradients, ``"autograd"`` runs autograd's graph in two parts,
        ``"fuse"`` lets I do the whole backward, and ``"auto"`` takes the first that works.
    timeout
        Seconds that a rank waits for another.

    Returns
    -------
    Callable
        What ``get_forward_backward_func()`` returns, with the schedule of ours.

    Raises
    ------
    DebubbleError
        When megatron-core is missing, or of a release with other names.
    ParameterError
        When an argument cannot be used. In the first call also what does not fit the job: see
        :func:`check`.
    """
    return ForwardBackward(schedule, split, timeout)


def install(schedule: Any, *, split: str = "auto", timeout: float = 600) -> None:
    """Let Megatron-LM run a schedule, in every script that asks for its function.

    Call it once on every rank, before the model is built::

        import debubble.megatron as dm
        dm.install("interleaved-zb")

    From then on ``get_forward_backward_func()`` returns a function that runs the schedule, also
    where a script imported it by name. A function that it returned before, or one that a script
    imported from ``schedules`` by its own name, stays Megatron's.

    Parameters
    ----------
    schedule, split, timeout
        As for :func:`forward_backward_func`.

    Raises
    ------
    DebubbleError, ParameterError
        As for :func:`forward_backward_func`.
    """
    run = ForwardBackward(schedule, split, timeout)
    uninstall()
    module = run.megatron.schedules
    _guard(module)
    for name in REPLACED:
        _replace(_INSTALLED, module, name, run)
    _replace(_INSTALLED, module, ALONE, _saying(getattr(module, ALONE)))
    place(run.source)


def place_model(schedule: Any) -> None:
    """Have Megatron build a model by the placement of a schedule, such as a V.

    :func:`install` does it. Call it on every rank before the model is built where a script takes
    :func:`forward_backward_func` alone::

        import debubble.megatron as dm
        dm.place_model("zb-v")
        model = get_model(model_provider)
        forward_backward = dm.forward_backward_func("zb-v")

    From then on Megatron builds the layers of the schedule's stages, and the embedding and the
    output layer where the first and the last stage are. Checkpoints with sharded state, as
    ``torch_dist``, can be loaded in other placements; those of format ``torch`` cannot. Losses are
    returned on the rank of the last stage and on the last rank, which reports them.

    Parameters
    ----------
    schedule
        As for :func:`install`.

    Raises
    ------
    DebubbleError, ParameterError
        As for :func:`install`.
    """
    source = ScheduleSource(schedule)
    _guard(Megatron().schedules)
    place(source)


def uninstall() -> None:
    """Give Megatron-LM its own functions back; do nothing where they are.

    A model that was built in another placement than Megatron's, such as a V, must be built anew:
    Megatron's functions refuse it.
    """
    _put_back(_INSTALLED)
    if place_as_megatron():
        _GUARDED.clear()  # they stay: such models may be there
    _put_back(_GUARDED)


def check(config: Any, schedule: Any) -> None:
    """Refuse a job that our engine does not run in Megatron's loop, before its first step.

    Parameters
    ----------
    config
        The ``TransformerConfig`` of the model, or arguments with its names.
    schedule
        As for :func:`install`.

    Raises
    ------
    ParameterError
        A line for everything that is not covered: what, why, and what works instead.
    """
    ranks = config.pipeline_model_parallel_size
    chunks = getattr(config, "virtual_pipeline_model_parallel_size", None) or 1
    source = ScheduleSource(schedule)
    refuse(config, source.schedule(ranks, chunks))


def _put_back(replaced: Replaced) -> None:
    for name, (module, own, ours) in replaced.items():
        # What another tool has put there since then stays.
        if getattr(module, name) is ours:
            setattr(module, name, own)
    replaced.clear()


def _guard(module: Any) -> None:
    """Have Megatron's functions refuse models that they cannot run."""
    for name in REPLACED:
        if name not in _GUARDED:
            _replace(_GUARDED, module, name, _guarded(getattr(module, name)))


def _guarded(own: Callable[..., Any]) -> Callable[..., Any]:
    def run(**given: Any) -> Any:
        model = given.get("model")
        refuse_others(own.__name__, model if isinstance(model, list | tuple) else [model])
        return own(**given)

    return run


def _replace(replaced: Replaced, module: Any, name: str, run: Callable[..., Any]) -> None:
    own = getattr(module, name)

    @functools.wraps(own)
    def ours(**given: Any) -> Any:
        return run(**given)

    replaced[name] = module, own, ours
    setattr(module, name, ours)


def _saying(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return Megatron's function for one pipeline rank, which says once that it is."""
    said: list[bool] = []

    def run(**given: Any) -> Any:
        if not said:
            said.append(True)
            log.warning(
                "the job has one pipeline rank: %s runs it, and not the installed schedule; set "
                "pipeline_model_parallel_size to the schedule's ranks", own.__name__,
            )  # fmt: skip
        return own(**given)

    return run
