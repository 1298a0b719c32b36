"""Parts of the files and flags that run plans: nodes of a cluster, layers of stages, comments."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from debubble.core.units import counted
from debubble.planner.case import Case

USUAL_NODE, SMALL_NODE = 8, 4
"""GPUs of a host; the smaller one where fast links join the GPUs of several (GB200 NVL72)."""


def nodes(case: Case) -> tuple[int, int]:
    """Return the number of hosts, and of GPUs in each."""
    gpus, node = case.cluster.gpus, case.gpu.node
    each = min(gpus, node if node <= USUAL_NODE else SMALL_NODE)
    while gpus % each:
        each -= 1
    return gpus // each, each


def nodes_text(case: Case) -> str:
    """Return the number of hosts in words."""
    return counted(nodes(case)[0], "node")


def about(case: Case) -> str:
    """Return model, GPUs and degrees of a plan in a line."""
    own = case.candidate
    degrees = ", ".join(f"{name} {size}" for name, size in asdict(own.degrees).items() if size > 1)
    return (
        f"{case.model.name} on {case.cluster.gpus} x {case.gpu.name}: {degrees or 'one GPU'}, "
        f"{own.schedule}, {counted(own.microbatches, 'microbatch')} of {own.microbatch_size}"
    )


def comment(text: str) -> str:
    """Return a text as lines of comments."""
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, 98))


def layers_text(cut: Sequence[int]) -> str:
    """Return layers per stage as runs of equal numbers.

    Examples
    --------
    >>> layers_text((1, 1, 2, 2, 2, 0))
    '1×2, 2×3, 0×1'
    """
    return ", ".join(f"{count}×{len(list(run))}" for count, run in groupby(cut))
