"""What a training step returns beside its gradients: the loss, metrics, outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import debubble.torch as dt
from debubble import make
from debubble.core.errors import ParameterError
from debubble.lowering.recompute import add_recompute
from tests.torch.loop import cross_entropy, gpt, mlp, vectors
from tests.torch.world import in_ranks

M = 4


def measured(output: Tensor, target: Tensor) -> Any:
    error = (output - target).abs()
    return functional.mse_loss(output, target), {"worst": error.max(), "rows": len(error)}


def test_metrics_and_outputs_of_a_step() -> None:
    recomputed = add_recompute(make("1f1b", ranks=3, microbatches=M))
    cases: list[tuple[Any, dict[str, Any]]] = [
        ("zb-v", {"microbatches": M}),
        ("1f1b", {"microbatches": M, "engine": "torch"}),
        (recomputed, {}),
    ]

    def work(rank: int) -> None:
        x, y = vectors(M, 0)
        for schedule, options in cases:
            stages = mlp(6 if schedule == "zb-v" else 3)
            wanted = nn.Sequential(*stages)(x).detach()
            pairs = zip(wanted.chunk(M), y.chunk(M), strict=True)
            worst = [(output - target).abs().max() for output, target in pairs]
            pipe = dt.Pipeline(schedule, stages, measured, **options)
            for call in (pipe.step, pipe.eval):
                metrics: list[Any] = []
                loss, outputs = call(x, target=y, metrics=metrics, return_outputs=True)
                torch.testing.assert_close(loss, functional.mse_loss(wanted, y))
                if not pipe.is_last:
                    assert (outputs, metrics) == (None, [])
                    continue
                torch.testing.assert_close(outputs, wanted)
                assert not outputs.requires_grad
                assert [one["rows"] for one in metrics] == [4] * M
                torch.testing.assert_close([one["worst"] for one in metrics], worst)
            # Metrics that nobody takes are dropped.
            assert isinstance(pipe.step(x, target=y), Tensor)

    in_ranks(3, work)


def test_what_a_step_cannot_return() -> None:
    def work(rank: int) -> None:
        x, y = vectors(M, 0)
        pipe = dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=M)
        with pytest.raises(Exception, match="loss_fn returned no metrics, and metrics= takes"):
            pipe.step(x, target=y, metrics=[])
        pipe = dt.Pipeline("vocab-1", gpt(2), cross_entropy, microbatches=M)
        x = torch.zeros(M, 4, dtype=torch.int64)
        with pytest.raises(ParameterError, match="a sharded output layer computes its loss itsel"):
            pipe.step(x, target=x, return_outputs=True)

    in_ranks(2, work)


def test_the_loss_of_a_sum_is_a_sum() -> None:
    """As Hugging Face's losses are, which divide by the targets of the whole batch."""

    def summed(output: Tensor, target: Tensor, num_items_in_batch: int) -> Tensor:
        return functional.mse_loss(output, target, reduction="sum") / num_items_in_batch

    def work(rank: int) -> None:
        x, y = vectors(M, 0)
        pipe = dt.Pipeline("zb-v", mlp(4), summed, microbatches=M, scale_grads="sum")
        loss = functional.mse_loss(nn.Sequential(*mlp(4))(x), y)
        for call in (pipe.step, pipe.eval):
            found = call(x, target=y, loss_kwargs={"num_items_in_batch": y.numel()})
            torch.testing.assert_close(found, loss.detach())

    in_ranks(2, work)
