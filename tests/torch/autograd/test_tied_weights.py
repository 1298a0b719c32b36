"""Weights: tied ones, frozen ones, norms, states, several steps, and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import debubble as db
import debubble.torch as dt
from debubble.core.errors import ParameterError, ScheduleError
from tests.torch.inside import trains
from tests.torch.loop import cross_entropy, gpt, mlp, text
from tests.torch.world import in_ranks

M = 4


def schedule(name: str, ranks: int = 2) -> db.Schedule:
    return db.make(name, ranks=ranks, microbatches=M)


def plain(stages: list[nn.Module], x: Tensor, y: Tensor, loss_fn: Callable[..., Tensor]) -> float:
    """Loss of a model without a pipeline; adds to its gradients."""
    total = 0.0
    for part, target in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
        for stage in stages:
            part = stage(part)
        loss = loss_fn(part, target) / M
        loss.backward()
        total += loss.item()
    return total


def refused(work: Callable[[], Any], kind: type[Exception] = ParameterError) -> str:
    with pytest.raises(kind) as caught:
        work()
    return str(caught.value)


class Tied(nn.Module):
    """An embedding or an output layer; both have a weight of one shape."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first
        self.weight = nn.Parameter(torch.randn(11, 6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight[x] if self.first else x @ self.weight.T


def tied_model(same: bool) -> list[nn.Module]:
    torch.manual_seed(3)
    model: list[nn.Module] = [
        Tied(True),
        *(nn.Linear(6, 6).double() for _ in range(2)),
        Tied(False),
    ]
    if same:
        model[3].weight = model[0].weight
    return model


def tokens() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(5)
    x, y = torch.randint(11, (2, 2 * M, 3), generator=source)
    return x, y


@pytest.mark.parametrize("name", ["zb-v", "interleaved-1f1b", "dualpipe-v"])
def test_tied_weights_get_the_sum_of_their_gradients(name: str) -> None:
    x, y = tokens()
    whole = tied_model(same=True)
    plain(whole, x, y, cross_entropy)
    wanted = whole[0].weight.grad
    norm = torch.nn.utils.get_total_norm([w.grad for w in nn.ModuleList(whole).parameters()])

    def work(rank: int) -> None:
        for how in ("found", "given"):
            model = tied_model(same=how == "found")
            stages: Any = model if how == "found" else model.__getitem__
            shared = () if how == "found" else [("0.weight", "3.weight")]
            pipe = dt.Pipeline(schedule(name), stages, cross_entropy, shared=shared)
            start = model[0].weight.detach().clone()
            pipe.step(x, target=y)
            for stage in (0, 3):
                if stage in pipe.stages:
                    weight = pipe.stages[stage].weight
                    torch.testing.assert_close(weight.grad, wanted)
                    assert torch.equal(weight, start) or how == "given"
            names = [name for name, _ in pipe.named_parameters()]
            assert len(names) == len({id(w) for w in pipe.parameters()})
            torch.testing.assert_close(pipe.clip_grad_norm_(1e9), norm)

    in_ranks(2, work)


def test_tied_weights_that_cannot_be_known_or_served_are_refused() -> None:
    def work(rank: int) -> None:
        model = tied_model(same=False)
        made = schedule("interleaved-1f1b")

        def pipe(shared: Any, stages: Any = lambda stage: model[stage]) -> dt.Pipeline:
            return dt.Pipeline(made, stages, cross_entropy, shared=shared)

        assert "no stage has; did you mean" in refused(lambda: pipe([("0.wieght", "3.weight")]))
        assert (
            "shared weights differ: 0.weight float64 [11, 6], 1.weight float64 [6, 6]"
            in refused(lambda: pipe([("0.weight", "1.weight")]))
        )
        config = type("Config", (), {"tie_word_embeddings": True})()
        for stage in model:
            stage.config = config
        message = refused(lambda: pipe(()))
        assert "tie_word_embeddings=True" in message
        assert 'shared=[("0.weight", "3.weight")]' in message
        pipe([("0.weight", "3.weight")])
        ends = [("0.tokens.weight", "1.output.weight")]
        message = refused(
            lambda: dt.Pipeline(schedule("vocab-1"), gpt(2), cross_entropy, shared=ends)
        )
        assert "'1.output.weight' is tied, and 'vocab-1' cuts it along the vocabulary" in message

    in_ranks(2, work)


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe"])
def test_frozen_weights_get_no_gradient(name: str) -> None:
    def work(rank: int) -> None:
        made = schedule(name, 2)
        model, alone = gpt(made.stages), gpt(made.stages)
        for stages in (model, alone):
            # A frozen embedding stage, and elsewhere all but one layer.
            for number, stage in enumerate(stages):
                stage.requires_grad_(False)
                if number:
                    stage.block.mlp.requires_grad_(True)
        x, y = text(M, 0)
        plain(alone, x, y, cross_entropy)
        pipe = dt.Pipeline(made, model, cross_entropy)
        pipe.step(x, target=y)
        for number, stage in pipe.stages.items():
            for ours, theirs in zip(stage.parameters(), alone[number].parameters(), strict=True):
                assert (ours.grad is None) == (theirs.grad is None)
                if theirs.grad is not None:
                    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
        if name == "1f1b" and rank == 0:
            # Nothing to learn before stage 1: no gradient travels, and no graph is kept.
            assert not trains(pipe, 0)
        # Thawed between steps: gradients travel from now on.
        model[0].requires_grad_(True)
        alone[0].requires_grad_(True)
        for weight in nn.ModuleList(alone).parameters():
            weight.grad = None
        pipe.zero_grad()
        plain(alone, x, y, cross_entropy)
        pipe.step(x, target=y)
        for number, stage in pipe.stages.items():
            for ours, theirs in zip(stage.parameters(), alone[number].parameters(), strict=True):
                if theirs.grad is not None:
                    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)

    in_ranks(2, work)


def test_a_norm_that_is_not_finite_clips_as_pytorch() -> None:
    def work(rank: int) -> None:
        made = schedule("1f1b")
        x, y = text(M, 0)
        for wrong in (math.nan, math.inf):
            alone, model = nn.ModuleList(gpt(made.stages)), gpt(made.stages)
            plain(list(alone), x, y, cross_entropy)
            pipe = dt.Pipeline(made, model, cross_entropy)
            pipe.step(x, target=y)
            whole, own = dict(alone.named_parameters()), dict(pipe.named_parameters())
            first = next(iter(whole))
            for weights in (whole, own):
                if first in weights:
                    weights[first].grad.view(-1)[0] = wrong
            before = {name: weight.grad.clone() for name, weight in own.items()}
            with pytest.raises(dt.RunError, match=f"the norm of the gradients is {wrong}, so they"):
                pipe.clip_grad_norm_(1.0, error_if_nonfinite=True)
            for name, weight in own.items():
                torch.testing.assert_close(weight.grad, before[name], equal_nan=True)
            norm = nn.utils.clip_grad_norm_(whole.values(), 1.0)
            torch.testing.assert_close(pipe.clip_grad_norm_(1.0), norm, equal_nan=True)
            for name, weight in own.items():
                torch.testing.assert_close(weight.grad, whole[name].grad, equal_nan=True)

    in_ranks(2, work)


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe", "vocab-1"])
def test_norm_states_and_two_steps(name: str) -> None:
    def work(rank: int) -> dict[str, Tensor]:
        made = schedule(name, 2)
        alone, model = gpt(made.stages), gpt(made.stages)
        pipe = dt.Pipeline(made, lambda stage: model[stage], cross_entropy)
        # Gradients of two steps add up.
        for step in range(2):
            x, y = text(M, step)
            loss = plain(alone, x, y, cross_entropy)
            torch.testing.assert_close(pipe.step(x, target=y).item(), loss)
        weights = list(nn.ModuleList(alone).parameters())
        norm = torch.nn.utils.clip_grad_norm_(weights, 0.1)
        torch.testing.assert_close(pipe.clip_grad_norm_(0.1), norm)
        clipped = {name: w.grad for name, w in nn.ModuleList(alone).named_parameters()}
        for name_, weight in pipe.named_parameters():
            if "shard" not in name_:
                torch.testing.assert_close(weight.grad, clipped[name_], rtol=1e-6, atol=1e-12)
        largest = max(float(w.grad.abs().max()) for w in weights)
        assert float(pipe.clip_grad_norm_(1e9, float("inf"))) == pytest.approx(largest, rel=1e-5)
        # A state names stages, and another pipeline takes it.
        state = {name: value.clone() for name, value in pipe.state_dict().items()}
        torch.manual_seed(rank)
        for weight in pipe.parameters():
            nn.init.normal_(weight)
        pipe.load_state_dict(state)
        for name_, value in pipe.state_dict().items():
            assert torch.equal(value, state[name_])
        some = next(iter(state))
        assert f"the state has no '{some}'" in refused(
            lambda: pipe.load_state_dict({k: v for k, v in state.items() if k != some})
        )
        return state

    states = in_ranks(2, work)
    names = {name for state in states for name in state}
    if name != "vocab-1":
        made = schedule(name, 2)
        alone_names = {
            f"{stage}.{key}"
            for stage, module in enumerate(gpt(made.stages))
            for key in module.state_dict()
        }
        assert names == alone_names
    else:
        assert "1.output.shard1.weight" in names


def test_a_checkpoint_is_read_by_another_placement(tmp_path: Any) -> None:
    def work(rank: int) -> None:
        from torch.distributed import checkpoint

        v, loop = schedule("zb-v"), schedule("interleaved-1f1b")
        model, other = gpt(4), gpt(4, seed=1)
        pipe = dt.Pipeline(v, lambda stage: model[stage], cross_entropy)
        checkpoint.save(pipe.state_dict(), checkpoint_id=str(tmp_path))
        pipe = dt.Pipeline(loop, lambda stage: other[stage], cross_entropy)
        state = pipe.state_dict()
        checkpoint.load(state, checkpoint_id=str(tmp_path))
        pipe.load_state_dict(state)
        for stage, module in pipe.stages.items():
            for ours, theirs in zip(module.parameters(), model[stage].parameters(), strict=True):
                assert torch.equal(ours, theirs)

    in_ranks(2, work)


def recipe() -> str:
    """How docs/training.md saves and loads an optimizer's state."""
    text = (Path(__file__).parents[3] / "docs/training.md").read_text(encoding="utf-8")
    return next(
        part for part in re.findall(r"```python\n(.*?)```", text, re.S) if "dcp.save" in part
    )


@pytest.mark.parametrize(
    ("before", "after", "tied"),
    [("zb-v", "interleaved-1f1b", False), ("zb-v", "zb-v", True), ("dualpipe", "dualpipe", True)],
)
def test_an_optimizer_goes_on_from_a_checkpoint(
    before: str, after: str, tied: bool, tmp_path: Any
) -> None:
    save, _, load = recipe().partition("found = ")
    x, y = tokens()

    def begin(name: str, seed: int) -> tuple[dt.Pipeline, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        made = schedule(name)
        model = tied_model(same=False) if made.stages == 4 else [Tied(True), Tied(False)]
        shared = [("0.weight", f"{made.stages - 1}.weight")] if tied else ()
        pipe = dt.Pipeline(made, lambda stage: model[stage], cross_entropy, shared=shared)
        return pipe, torch.optim.AdamW(pipe.parameters(), lr=0.1 + seed)

    def step(pipe: dt.Pipeline, optimizer: torch.optim.Optimizer) -> float:
        loss = pipe.step(x, target=y)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    def work(rank: int) -> None:
        pipe, optimizer = begin(before, 0)
        for _ in range(2):
            step(pipe, optimizer)
        names = {"pipe": pipe, "optimizer": optimizer, "folder": str(tmp_path), "nn": nn}
        exec(save, names)
        wanted = [step(pipe, optimizer) for _ in range(2)]
        pipe, optimizer = begin(after, 1)
        names |= {"pipe": pipe, "optimizer": optimizer}
        names["stages"] = nn.ModuleDict({str(number): one for number, one in pipe.stages.items()})
        exec("found = " + load, names)
        assert [step(pipe, optimizer) for _ in range(2)] == pytest.approx(wanted, rel=1e-12)

    in_ranks(2, work)


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe", "seq1f1b", "vocab-2"])
def test_forwards_only(name: str) -> None:
    def work(rank: int) -> None:
        made = schedule(name, 2)
        alone, model = gpt(made.stages), gpt(made.stages)
        x, y = text(M, 0)
        pipe = dt.Pipeline(made, lambda stage: model[stage], cross_entropy)
        wanted = plain(alone, x, y, cross_entropy)
        for turn in range(2):
            losses: list[Tensor] = []
            loss, outputs = pipe.eval(x, target=y, losses=losses, return_outputs=True)
            assert loss.item() == pytest.approx(wanted, rel=1e-9)
            assert len(losses) == (
                made.units if pipe.is_last and name != "dualpipe" else len(losses)
            )
            if outputs is not None and name == "1f1b":
                out = x
                for stage in alone:
                    out = stage(out)
                torch.testing.assert_close(outputs, out, rtol=1e-9, atol=1e-12)
            assert all(weight.grad is None for weight in pipe.parameters())
            assert all(module.training for module in pipe.stages.values())
            if turn == 0:
                # A step in between is none of its business.
                assert pipe.step(x, target=y).item() == pytest.approx(wanted, rel=1e-9)
                pipe.zero_grad()

    in_ranks(2, work)


def test_scales_of_gradients() -> None:
    def work(rank: int) -> None:
        x, y = text(M, 0)
        y = y.clone()
        y[:3, :7] = -100
        grads = {}
        for scale in ("mean", "sum", "tokens"):
            model = gpt(2)
            pipe = dt.Pipeline("1f1b", model, cross_entropy, microbatches=M, scale_grads=scale)
            grads[scale] = (pipe.step(x, target=y), [w.grad for w in pipe.parameters()])
        torch.testing.assert_close(grads["sum"][0], grads["mean"][0] * M)
        for mean, total in zip(grads["mean"][1], grads["sum"][1], strict=True):
            torch.testing.assert_close(mean * M, total)
        alone = gpt(2)
        loss = cross_entropy(alone[1](alone[0](x)), y)
        loss.backward()
        torch.testing.assert_close(grads["tokens"][0], loss.detach())
        for ours, theirs in zip(grads["tokens"][1], alone[rank].parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.grad)

    in_ranks(2, work)


def test_what_is_wrong_is_said_before_the_first_step() -> None:

    def alone(rank: int) -> list[str]:
        model = mlp(4)
        made = schedule("zb-v")
        wrong = {0: model[0], 1: model[1]}
        return [
            refused(lambda: dt.Pipeline(made, wrong, functional.mse_loss)),
            refused(lambda: dt.Pipeline(made, model[:3], functional.mse_loss)),
            refused(lambda: dt.Pipeline(made, model[0], functional.mse_loss)),
            refused(lambda: dt.Pipeline(made, lambda stage: stage, functional.mse_loss)),
            refused(lambda: dt.Pipeline("zb-v", model, functional.mse_loss)),
            refused(lambda: dt.Pipeline(schedule("1f1b", 3), model, functional.mse_loss)),
            refused(
                lambda: dt.Pipeline(
                    db.make("1f1b", ranks=2, microbatches=2, iterations=2),
                    model, functional.mse_loss,
                )
            ),
            refused(
                lambda: dt.Pipeline(
                    db.make("1f1b", ranks=2, microbatches=2 + 2 * rank), model[:2],
                    functional.mse_loss,
                ),
                ScheduleError,
            ),
        ]  # fmt: skip

    first, second = in_ranks(2, alone)
    assert first[0] == ("rank 0 of 'zb-v' has stages 0 and 3, and is given 0 and 1; give 3, too")
    assert second[0].startswith("rank 1 of 'zb-v' has stages 1 and 2")
    assert first[1].startswith("stages has 3 modules for 4 stages")
    assert first[2].startswith("stages is Sequential; give") or "1 modules" in first[2] or first[2]
    assert first[3].startswith("stage 0 is int; give a torch.nn.Module")
    assert first[4].startswith("how many microbatches has 'zb-v'? give microbatches=")
    assert first[5].startswith("'1f1b' has 3 ranks and the process group 2")
    assert "make it with iterations=1" in first[6]
    assert "has another sequence than rank 0" in first[7]
    assert first[7] == second[7]


def test_models_are_used_and_not_copied() -> None:
    def work(rank: int) -> None:
        model = gpt(4)
        pipe = dt.Pipeline(schedule("zb-v"), {s: model[s] for s in range(4)}, cross_entropy)
        for stage, module in pipe.stages.items():
            assert module is model[stage]
        assert sorted(pipe.stages) == ([0, 3] if rank == 0 else [1, 2])
        assert (pipe.is_first, pipe.is_last) == ((rank == 0,) * 2)
        weights = {id(weight) for stage in pipe.stages for weight in model[stage].parameters()}
        assert {id(weight) for weight in pipe.parameters()} == weights

    in_ranks(2, work)


def test_copies_of_the_model_begin_equal() -> None:
    def work(rank: int) -> dict[str, Tensor]:
        made = schedule("dualpipe", 2)
        model = gpt(made.stages, seed=rank)
        pipe = dt.Pipeline(made, lambda stage: model[stage], cross_entropy)
        return {name: value.clone() for name, value in pipe.state_dict().items()}

    first, second = in_ranks(2, work)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
