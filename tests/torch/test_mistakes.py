"""Mistakes of the user are told in their own words, on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import debubble.torch as dt
from tests.patience import patience
from tests.torch.loop import mlp, vectors
from tests.torch.world import in_ranks

M = 4


class Returns(nn.Module):
    """A layer, and something else that becomes of its output."""

    def __init__(self, what: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.what = mlp(1)[0], what

    def forward(self, x: Tensor) -> Any:
        return self.what(self.inner(x))


def both(work: Callable[[int], Any]) -> str:
    """What two ranks raise; the one that found it has it first in its message."""
    first, second = map(str, in_ranks(2, work, fails=True))
    message = next(text for text in (first, second) if "rank 0 failed" not in text
                   and "rank 1 failed" not in text)  # fmt: skip
    words = message.partition(": ")[2].partition("\n")[0]
    assert words in first, (first, second)
    assert words in second, (first, second)
    return words


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda _: None, "stage 0 returned None; return a tensor for the next"),
        (lambda _: (), "stage 0 returned tuple without tensors; return a tensor"),
        (lambda x: x.detach().numpy(), "stage 0 returned ndarray without tensors; return a tensor"),
        (lambda x: (x, lambda: 0), "stage 0 returned a function; return tensors, and beside"),
        (lambda x: (x, object()), "stage 0 returned a object; return tensors, and beside"),
        (lambda x: x.to_sparse(), "a stage returned a torch.sparse_coo tensor; return its to_den"),
    ],
)  # fmt: skip
def test_what_a_stage_returns(what: Callable[[Tensor], Any], words: str) -> None:
    def work(rank: int) -> None:
        stages = [Returns(what), *mlp(1)]
        pipe = dt.Pipeline(
            "1f1b", stages, functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        x, y = vectors(M, 0)
        pipe.step(x, target=y)

    assert both(work).startswith(words)


@pytest.mark.parametrize("engine", ["debubble", "torch"])
def test_a_step_without_a_target(engine: str) -> None:
    def work(rank: int) -> None:
        pipe = dt.Pipeline(
            "1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=patience(20), engine=engine
        )
        pipe.step(vectors(M, 0)[0])

    assert "give target=, or target_mbs=" in both(work)


@pytest.mark.parametrize("where", ["stage", "loss"])
def test_shapes_that_do_not_fit_on_pytorchs_runtime(where: str) -> None:
    """PyTorch computes where it also waits for ranks: an error there is not of the connection."""

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(output @ target if where == "loss" else output, target)

    def work(rank: int) -> None:
        last = nn.Linear(7, 7).double() if where == "stage" else mlp(1)[0]
        stages = [*mlp(1), last]
        pipe = dt.Pipeline(
            "1f1b", stages, loss_fn, microbatches=M, timeout=patience(20), engine="torch"
        )
        x, y = vectors(M, 0)
        pipe.step(x, target=y)

    assert both(work).startswith("mat1 and mat2 shapes cannot be multiplied")


def test_a_target_by_its_place() -> None:
    def work(rank: int) -> None:
        pipe = dt.Pipeline(
            "1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        pipe.step(*vectors(M, 0))

    assert "there is no target where the last stage is; give step(x, target=y)" in both(work)


def test_weights_without_a_shape() -> None:
    def work(rank: int) -> None:
        stages = [nn.LazyLinear(4), nn.LazyLinear(4)]
        dt.Pipeline("1f1b", stages, functional.mse_loss, microbatches=M)

    assert "stage 0 has weight without a shape yet, as lazy modules have; call" in both(work)


def test_a_state_that_is_none() -> None:
    def work(rank: int) -> None:
        pipe = dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=M)
        pipe.load_state_dict(None)  # type: ignore[arg-type]

    assert "the state is NoneType; give what state_dict() returned" in both(work)


def test_a_rank_that_does_not_come() -> None:
    def work(rank: int) -> None:
        if rank:
            dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=1)

    _, found = in_ranks(2, work, fails=True)
    assert "another rank did not come within 1 s while this one made a Pipeline" in found


def test_a_rank_that_cannot_begin() -> None:
    def work(rank: int) -> None:
        timeout = 20
        dt.Pipeline(
            "1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=timeout,
            scale_grads="mena" if rank else "mean",
        )  # fmt: skip

    first, second = in_ranks(2, work, fails=True)
    assert "rank 1 cannot begin: scale_grads is 'mena'" in first
    assert "scale_grads is 'mena'; use 'mean', 'sum' or 'tokens'" in second


def test_a_step_without_an_input() -> None:
    def work(rank: int) -> None:
        pipe = dt.Pipeline(
            "1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        pipe.step(target=vectors(M, 0)[1])

    assert both(work).startswith("there are no inputs where the first stage is; give")


def test_a_loss_without_a_gradient() -> None:
    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(output.detach(), target)

    def work(rank: int) -> None:
        pipe = dt.Pipeline("zb-h1", mlp(2), loss_fn, microbatches=M, timeout=patience(20))
        x, y = vectors(M, 0)
        assert pipe.eval(x, target=y) > 0
        pipe.step(x, target=y)

    assert both(work).startswith("loss_fn returned a number that has no gradient; compute it")


def test_frozen_models_need_no_gradient() -> None:
    def work(rank: int) -> float:
        stages = [stage.requires_grad_(False) for stage in mlp(2)]
        pipe = dt.Pipeline(
            "1f1b", stages, functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        x, y = vectors(M, 0)
        return pipe.step(x, target=y).item()

    assert min(in_ranks(2, work)) > 0


def test_microbatches_may_be_anything_to_go_through() -> None:
    def work(rank: int) -> list[float]:
        pipe = dt.Pipeline(
            "1f1b", mlp(2), functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        x, y = vectors(M, 0)
        rows = list(zip(x.split(4), y.split(4), strict=True))
        return [
            pipe.step(x, target=y).item(),
            pipe.step(arg_mbs=(a for a, _ in rows), target_mbs=(b for _, b in rows)).item(),
            pipe.step(arg_mbs=x.view(M, 4, -1), target_mbs=y.view(M, 4, -1)).item(),
        ]

    for first, *others in in_ranks(2, work):
        assert others == [first, first]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout is 0; give a positive number of seconds"),
        ({"timeout": "60"}, "timeout is '60'; give a positive number of seconds"),
        ({"shared": ("0.0.weight", "1.0.weight")}, "give pairs: shared=[("),
        ({"scale_grads": ["mean"]}, "scale_grads is ['mean']; use 'mean', 'sum' or 'tokens'"),
        ({"device": "gpu"}, "device is 'gpu'; give 'cpu', 'cuda:0', …"),
        ({"device": "meta"}, "device is 'meta'; pipelines run on 'cpu' and 'cuda'"),
        ({"engine": "pytorch"}, "engine is 'pytorch'; did you mean 'torch'"),
    ],
)
def test_options(options: dict[str, Any], words: str) -> None:
    def work(rank: int) -> None:
        dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=M, **options)

    assert words in both(work)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def work(rank: int) -> None:
        dt.Pipeline("1f1b", mlp(2), functional.mse_loss, microbatches=M, device="cuda")

    assert both(work).startswith("device is 'cuda', and PyTorch sees no GPU here; use device='cpu'")


def test_a_weight_with_two_homes_is_replaced() -> None:
    def work(rank: int) -> None:
        pipe = dt.Pipeline(
            "dualpipe", mlp(2), functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        x, y = vectors(M, 0)
        pipe.step(x, target=y)
        for module in pipe.stages.values():
            layer = module.get_submodule("0")
            layer.weight = nn.Parameter(layer.weight.detach().clone())
        pipe.step(x, target=y)

    for found in in_ranks(2, work, fails=True):
        assert "has another weight than when its pipeline was made" in found


def test_parts_keep_their_mode_over_an_evaluation() -> None:
    def work(rank: int) -> list[bool]:
        stages = mlp(2)
        for stage in stages:
            stage.get_submodule("0").eval()
        pipe = dt.Pipeline(
            "1f1b", stages, functional.mse_loss, microbatches=M, timeout=patience(20)
        )
        x, y = vectors(M, 0)
        pipe.eval(x, target=y)
        return [part.training for part in pipe.stages[rank].modules()]

    assert in_ranks(2, work) == [[True, False, True]] * 2
