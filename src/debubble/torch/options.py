"""What a pipeline is told beside schedule and stages: options, the loss, and slips in keywords."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from debubble.core.errors import ParameterError, did_you_mean

ENGINES = ("auto", "torch", "debubble")
SCALES = {"mean": "mean", "sum": "sum", "tokens": "tokens", True: "mean", False: "sum"}
"""What gradients are of: the mean of the microbatches' losses, their sum, or the tokens' mean."""

KEYWORDS = (
    "group", "engine", "shared", "scale_grads", "split", "timeout", "device",
    "microbatches", "chunks", "ranks",
)  # fmt: skip
"""Of a pipeline, with the sizes that most schedules have; others have options of their own."""

NEAR = 0.8
"""How like a keyword another one is that is taken for a slip."""


def check_options(engine: str, scale_grads: Any, loss_fn: Any, sizes: Iterable[str]) -> None:
    """Refuse what no rank can run with a ParameterError that says what to give."""
    if engine not in ENGINES:
        raise ParameterError(f"engine is {engine!r}; {did_you_mean(str(engine), ENGINES)}")
    if scale_grads not in tuple(SCALES):
        raise ParameterError(f"scale_grads is {scale_grads!r}; use 'mean', 'sum' or 'tokens'")
    check_loss(loss_fn)
    check_keywords(sizes)


def check_keywords(names: Iterable[str]) -> None:
    """Refuse a slip in a keyword with a ParameterError that names the nearest one.

    Options of schedules have names of their own.
    """
    for name in names:
        near = get_close_matches(name, KEYWORDS, 1, NEAR)
        if name not in KEYWORDS and near:
            raise ParameterError(f"there is no {name}=; did you mean {near[0]}=?")


def check_loss(loss_fn: Any) -> None:
    """Refuse what cannot compute a loss with a ParameterError that says what to give.

    A class is called with options, not with outputs.
    """
    if isinstance(loss_fn, type):
        name = loss_fn.__name__
        raise ParameterError(f"loss_fn is the class {name}; give an object of it, {name}()")
    if not callable(loss_fn):
        raise ParameterError(
            f"loss_fn is {loss_fn!r}; give a function of (output, target) that returns their loss"
        )
