"""What the engine holds, and which kinds of actions it runs."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from threading import get_ident
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import debubble as db
import debubble.torch as dt
from debubble.core.actions import TRANSFER_KINDS
from debubble.core.kinds import CARRY_KINDS, Kind
from debubble.lowering.chain import lower
from debubble.torch.autograd.splitter import Splitter, run_branches
from debubble.torch.engine.own_engine import HANDLERS
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.engine.tasks import Pairs, make_tasks
from tests.kinds import MADE, schedule_with
from tests.torch.inside import after_every_finish
from tests.torch.loop import cross_entropy, gpt, mlp, text, vectors
from tests.torch.world import in_ranks

M = 4


class Marked(nn.Module):
    """A layer that knows which of its activations are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32).double()
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def forward(self, x: Tensor) -> Tensor:
        kept = self.layer(x)
        mark = Mark.apply(kept)
        if mark.grad_fn is not None:
            self.alive.add(mark.grad_fn)
        return torch.tanh(mark)


class Mark(torch.autograd.Function):
    """Its node in the graph lives as long as what autograd saves for a microbatch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@pytest.mark.parametrize(
    ("name", "lowered"),
    [("1f1b", {}), ("zb-v", {}), ("dualpipe", {}), ("v-min", {}),
     ("gpipe", {"recompute": "full"})],
)  # fmt: skip
def test_as_many_activations_live_as_a_simulation_says(name: str, lowered: dict[str, Any]) -> None:
    made = lower(db.make(name, ranks=2, microbatches=6), **lowered)

    def work(rank: int) -> tuple[list[int], int]:
        model = [Marked() for _ in range(made.stages)]
        pipe = dt.Pipeline(made, lambda stage: model[stage], functional.mse_loss)
        counts: list[int] = []

        def count() -> None:
            counts.append(sum(len(stage.alive) for stage in pipe.stages.values()))

        after_every_finish(pipe, count)
        for step in range(2):
            x, y = vectors(6, step)
            counts.clear()
            pipe.step(x, target=y)
        gc.collect()
        left = sum(len(stage.alive) for stage in pipe.stages.values())
        return counts, left

    per_action = db.Costs(F=1, I=1, W=1, activation=1)
    peaks = db.simulate(made, per_action).peak_activation
    for rank, (counts, left) in enumerate(in_ranks(2, work)):
        assert left == 0
        assert max(counts) == peaks[rank], counts


def test_every_kind_has_its_handler_or_is_a_transfer() -> None:
    assert set(Kind) == {*HANDLERS, *TRANSFER_KINDS}


def test_schedules_of_every_kind_run() -> None:
    # What stages carry takes other stages: test_skips.py.
    made = {kind: schedule_with(kind) for kind in Kind if kind not in {Kind.OPT, *CARRY_KINDS}}
    schedules = {str(MADE[kind]): schedule for kind, schedule in made.items()}

    def work(rank: int) -> None:
        for schedule in schedules.values():
            alone, model = gpt(schedule.stages), gpt(schedule.stages)
            x, y = text(schedule.microbatches, 0)
            total = 0.0
            for part, target in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
                for stage in alone:
                    part = stage(part)
                loss = cross_entropy(part, target) / M
                loss.backward()
                total += loss.item()
            pipe = dt.Pipeline(schedule, lambda stage, model=model: model[stage], cross_entropy)
            assert pipe.step(x, target=y).item() == pytest.approx(total, rel=1e-9)
            for stage, module in pipe.stages.items():
                for ours, theirs in zip(
                    module.block.parameters(), alone[stage].block.parameters(), strict=True
                ):
                    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)

    in_ranks(2, work)


class Shifting(nn.Module):
    """Takes another way every time, uses a weight twice and adds two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6).double() for _ in range(3))
        self.a = nn.Parameter(torch.randn(6, dtype=torch.float64))
        self.b = nn.Parameter(torch.randn(6, dtype=torch.float64))

    def forward(self, x: Tensor, way: int) -> tuple[Tensor, Tensor]:
        y = self.layers[way % 3](x)
        y = torch.tanh(self.layers[2](y) + self.a + self.b) * self.a
        one, two = y.chunk(2, -1)
        return self.layers[2](torch.cat([two, one], -1)), self.layers[1].weight.sum() * one.mean()


def test_a_split_backward_follows_the_graph() -> None:
    torch.manual_seed(0)
    module, splitter = Shifting(), Splitter()
    for turn, way in enumerate([0, 0, 1, 1, 2, 0, 1]):
        x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
        seeds = [torch.randn(4, 6, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)]
        module.zero_grad()
        torch.autograd.backward(module(x, way), seeds)
        wanted = [None if w.grad is None else w.grad.clone() for w in module.parameters()]
        slope = x.grad
        module.zero_grad()
        (found,), rest = splitter.backward_input(module(x, way), seeds, [x])
        assert all(weight.grad is None for weight in module.parameters() if weight.dim() > 1)
        run_branches(rest)
        torch.testing.assert_close(found, slope)
        for weight, theirs in zip(module.parameters(), wanted, strict=True):
            assert (weight.grad is None) == (theirs is None), turn
            if theirs is not None:
                torch.testing.assert_close(weight.grad, theirs)
    # Gradients of two weights that are one tensor stay apart.
    before = module.b.grad.clone()
    module.a.grad.add_(1.0)
    assert torch.equal(module.b.grad, before)


def sliced(microbatches: int, slices: int, backward: tuple[str, ...], **fields: Any) -> db.Schedule:
    """GPipe over slices on two ranks, backwards in reverse."""
    units = [f"{u}.{j}" for u in range(microbatches) for j in range(slices)]
    back = [f"{u}.{j}" for u in range(microbatches) for j in reversed(range(slices))]
    rows = [
        [f"{r}F{u}" for u in units] + [f"{r}{kind}{u}" for u in back for kind in backward]
        for r in range(2)
    ]
    return db.Schedule.from_text(
        rows, db.Placement.linear(2), microbatches, slices=slices, **fields
    )


def test_slices_of_sequences() -> None:
    schedules = [
        sliced(2, 3, ("B",)), sliced(2, 3, ("I", "W")), sliced(2, 2, ("R", "B")),
        sliced(2, 5, ("R", "I", "W")), sliced(2, 3, ("I", "W"), cut=(0.5, 0.3, 0.2)),
    ]  # fmt: skip

    def work(rank: int) -> None:
        x, y = text(2, 0)
        alone = gpt(2)
        for part, target in zip(x.tensor_split(2), y.tensor_split(2), strict=True):
            (cross_entropy(alone[1](alone[0](part)), target) / 2).backward()
        for schedule in schedules:
            model = gpt(2)
            pipe = dt.Pipeline(schedule, model, cross_entropy)
            pipe.step(x, target=y)
            for ours, theirs in zip(pipe.parameters(), alone[rank].parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
        with pytest.raises(db.ParameterError, match=r"give it slices = True and forward\(x, start"):
            dt.Pipeline(schedules[0], mlp(2), functional.mse_loss)

    in_ranks(2, work)


def test_halves_of_a_pair_run_on_this_thread_backwards_first() -> None:
    """Replicas of a rank issue collectives in one order, and draw random numbers in one."""
    plan = ExecutionPlan.of(db.make("dualpipe-v", ranks=2, microbatches=6))
    groups = [part for part in make_tasks(plan, 0, HANDLERS) if len(part) == 2]
    pairs = [part for part in groups if isinstance(part, list)]
    assert pairs
    ran: list[tuple[Kind, int]] = []
    for pair in pairs:
        calls = [
            (task, None, partial(lambda kind: ran.append((kind, get_ident())), task.step.kind))
            for task in pair
        ]
        Pairs(torch.device("cpu")).run(calls)
        assert ran == [(Kind.B, get_ident()), (Kind.F, get_ident())]
        ran.clear()
