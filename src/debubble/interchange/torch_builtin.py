"""Schedules of PyTorch by name: ``torch:ZBVZeroBubble``."""

from __future__ import annotations

import warnings
from dataclasses import replace

from debubble.core.errors import DebubbleError, ParameterError, did_you_mean
from debubble.core.schedule import Schedule
from debubble.interchange.torch_csv import from_csv
from debubble.schedules.registry import Option

PREFIX = "torch:"
NAMES = (
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble",
    "DualPipeV",
)  # fmt: skip
SINGLE = ("GPipe", "1F1B")
"""PyTorch's schedules with one stage per rank."""

DEFAULT_CHUNKS = 2

OPTIONS = (Option("transfers", "bool", False), Option("defer_recv", "bool", False))


def leaves_chunks(target: str) -> bool:
    """Return whether a schedule of PyTorch leaves a choice of chunks."""
    return target[len(PREFIX) :].lower() not in map(str.lower, SINGLE)


def is_builtin(target: str) -> bool:
    """Return whether a text looks like the name of a schedule of PyTorch."""
    return target.lower().startswith(PREFIX)


def load_builtin(
    target: str,
    *,
    ranks: int | None,
    microbatches: int | None,
    chunks: int | None = None,
    transfers: bool = False,
    defer_recv: bool = False,
) -> Schedule:
    """Return the schedule that PyTorch's own generator makes, right or wrong.

    `target` is ``torch:`` and a name of :data:`NAMES`, in upper or lower case; there are two chunks
    where the schedule leaves a choice. With `transfers` PyTorch lowers it, too: with sends and
    receives, which `defer_recv` moves as its runtime's ``defer_pp_recv`` does. Raises
    ParameterError when there is no such schedule or PyTorch refuses the sizes, and DebubbleError
    when PyTorch is not installed.
    """
    wanted = target[len(PREFIX) :]
    folded = {name.lower(): name for name in NAMES}
    if wanted.lower() not in folded:
        raise ParameterError(f"PyTorch has no schedule '{wanted}'; {did_you_mean(wanted, NAMES)}")
    name = folded[wanted.lower()]
    for key, value, flag in (("ranks", ranks, "-p 4"), ("microbatches", microbatches, "-m 8")):
        if value is None:
            raise ParameterError(f"'{target}' needs {key}; give it, such as {flag}")
        if value < 1:
            raise ParameterError(f"{key} is {value}; it is at least 1")
    if defer_recv and not transfers:
        raise ParameterError("defer_recv moves receives; give transfers=true, too")
    stages = (chunks or 1) if name in SINGLE else (chunks or DEFAULT_CHUNKS)
    rows = _rows(name, int(ranks or 0), int(microbatches or 0), stages, transfers, defer_recv)
    text = "".join(",".join(row) + "\n" for row in rows)
    schedule = from_csv(text, f"{PREFIX}{name}", microbatches)
    options = {"transfers": True} if transfers else {}
    return replace(schedule, options=options | ({"defer_recv": True} if defer_recv else {}))


def _rows(
    name: str, ranks: int, microbatches: int, chunks: int, transfers: bool, defer_recv: bool
) -> list[list[str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

            programs = get_schedule_ops(
                name, ranks, microbatches, chunks, with_comms=transfers, defer_pp_recv=defer_recv
            )
    except ImportError:
        raise DebubbleError(
            f"'{PREFIX}{name}' needs PyTorch; install it with: pip install 'debubble[run]'"
        ) from None
    except (ValueError, AssertionError) as error:
        sizes = f"{ranks} ranks, {microbatches} microbatches, {chunks} chunks"
        raise ParameterError(f"PyTorch refuses {name} for {sizes}: {error}") from None
    return [[str(action) for action in row if action is not None] for row in programs]
