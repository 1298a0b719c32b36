"""Schedules in PyTorch's pipelines: by PyTorch's name, or from a CSV."""

from __future__ import annotations

from dataclasses import replace

from debubble.interchange.layouts import in_v
from debubble.planner.case import Case
from debubble.schedules.registry import find

NAMES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS", "interleaved-zb": "InterleavedZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
"""PyTorch's names of the schedules that it makes like ours; others come from a CSV."""

CSV = "order.csv"
"""File of a schedule that PyTorch has no name for."""


EXPORT = "debubble export"
"""Begin of the command that writes that file."""


def own_name(case: Case) -> str | None:
    """Return PyTorch's name of a schedule, None if it has to come from a CSV."""
    own = case.candidate
    if own.schedule == "1f1b" and own.microbatches < case.degrees.pp:
        return None  # its 1F1B refuses fewer microbatches than stages
    return NAMES.get(own.schedule)


def from_csv(case: Case) -> Case:
    """Return a case with a schedule from a file in place of its own, on the same stages."""
    placement = case.placement
    name = "zb-h1" if placement.chunks == 1 else "zb-v" if in_v(placement) else "gis"
    return replace(case, candidate=replace(case.candidate, schedule=name))


def csv_command(case: Case) -> str:
    """Return the command that writes the schedule."""
    own, d = case.candidate, case.degrees
    entry = find(own.schedule)
    words = f"-p {d.pp} -m {own.microbatches}"
    words += f" -v {d.chunks}" if entry.chunks is None else ""
    words += " --costs costs.yaml" if entry.uses_costs else ""
    return f"{CSV}: {EXPORT} {own.schedule} {words} --to torch-csv -o {CSV}"


ON_PYTORCH = (
    f"# debubble.torch.Pipeline({CSV!r}, stages, loss_fn) in a training loop, or",
    f"# debubble.torch.titan.pipelining_fn({CSV!r}) in torchtitan",
)
"""Comments on what runs a CSV."""


def elsewhere(case: Case) -> list[str]:
    """Return comments on running a schedule on PyTorch that the framework lacks."""
    first = f"# the schedule runs on PyTorch; {csv_command(case)} --no-torchtitan,"
    return [first, f"# then {ON_PYTORCH[0].removeprefix('# ')}", ON_PYTORCH[1]]
