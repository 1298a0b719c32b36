"""What a training step returns beside its gradients: the loss, metrics, outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import debubble.torch as dt
from debubble.core.errors import ParameterError
from tests.torch.loop import cross_entropy, gpt, mlp, vectors
from tests.torch.world import in_ranks

M = 4


def measured(output: Tensor, target: Tensor) -> Any:
    error = (output - target).abs()
    return functional.mse_loss(output, target), {"worst": error.max(), "rows": len(error)}


def test_metrics_and_outputs_of_a_step() -> None:
    def work(rank: int) -> None:
        x, y = vectors(M, 0)
        whole = nn.Sequential(*mlp(6))
        wanted = whole(x)
        parts = [(out - target).abs().max() for out, target in zip(
            wanted.chunk(M), y.chunk(M), strict=True)]  # fmt: skip
        loss = functional.mse_loss(wanted, y)
        cases = (("zb-v", {}), ("1f1b", {"engine": "torch"}), ("1f1b", {"recompute": "full"}))
        for name, options in cases:
            stages = [nn.Sequential(*mlp(6)[2 * s : 2 * s + 2]) for s in range(3)]
            if name == "zb-v":
                stages = mlp(6)
            schedule = name
            sizes: dict[str, Any] = {"microbatches": M}
            if options.pop("recompute", None):
                from debubble import make
                from debubble.lowering.recompute import add_recompute

                schedule, sizes = add_recompute(make(name, ranks=3, microbatches=M)), {}
            pipe = dt.Pipeline(schedule, stages, measured, **options, **sizes)
            for call in (pipe.step, pipe.eval):
                metrics: list[Any] = []
                found, outputs = call(x, target=y, metrics=metrics, return_outputs=True)
                torch.testing.assert_close(found, loss)
                if pipe.is_last:
                    torch.testing.assert_close(outputs, wanted.detach())
                    assert not outputs.requires_grad
                    assert [one["rows"] for one in metrics] == [4] * M
                    torch.testing.assert_close([one["worst"] for one in metrics], parts)
                else:
                    assert (outputs, metrics) == (None, [])
            # They are no part of a step that does not want them.
            assert isinstance(pipe.step(x, target=y), Tensor)
            last = pipe._engine.stages.get(pipe.schedule.stages - 1) if not options else None
            assert last is None or last.outputs is None

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
