"""Our schedules in place of Megatron's: ``install`` and ``uninstall``."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from debubble.megatron.forward_backward import ForwardBackward
from debubble.megatron.internals import ALONE, REPLACED
from debubble.megatron.placement import place, place_as_megatron

log = logging.getLogger(__name__)

_ORIGINALS: dict[str, tuple[Any, Callable[..., Any], Callable[..., Any]]] = {}
"""By name: the module, its own function, and that in its place."""


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
    for name in REPLACED:
        _replace(module, name, run)
    _replace(module, ALONE, _saying(getattr(module, ALONE)))
    place(run.source)


def uninstall() -> None:
    """Give Megatron-LM its own functions back; do nothing where they are."""
    for name, (module, own, ours) in _ORIGINALS.items():
        # What another tool has put there since then stays.
        if getattr(module, name) is ours:
            setattr(module, name, own)
    _ORIGINALS.clear()
    place_as_megatron()


def _replace(module: Any, name: str, run: Callable[..., Any]) -> None:
    own = getattr(module, name)

    @functools.wraps(own)
    def ours(**given: Any) -> Any:
        return run(**given)

    _ORIGINALS[name] = module, own, ours
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
