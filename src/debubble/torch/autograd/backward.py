"""Backward passes of autograd's engine."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge

_RUN = Variable._execution_engine.run_backward


def run_backward(roots: Sequence[Tensor | GradientEdge], gradients: Sequence[Tensor]) -> None:
    """Add the gradients of all leaves to their ``grad``, given one for every root.

    Like ``torch.autograd.backward``, whose own checks of shapes take about half the time of the
    backward of a small stage; the engine checks them, too.
    """
    keep_graph = create_graph = False
    _RUN(tuple(roots), tuple(gradients), keep_graph, create_graph, (), True, accumulate_grad=True)
