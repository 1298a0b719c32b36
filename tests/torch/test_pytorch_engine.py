"""PyTorch's runtime with our orders computes what a loop without a pipeline does."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch", reason="runs schedules on PyTorch; install torch")

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional

import debubble as db
from debubble import Placement, Schedule
from debubble.core.errors import DebubbleError, ParameterError
from debubble.lowering.transfers import add_transfers
from debubble.schedules.registry import Entry
from debubble.torch.pytorch_engine import PyTorchEngine, PyTorchRuntime, not_for_pytorch
from tests.torch.worlds import in_world

WIDTH, ROWS = 8, 3
CPU = torch.device("cpu")


def small(entry: Entry, ranks: int) -> Schedule | None:
    """A schedule with the fewest microbatches from five up that it accepts."""
    for microbatches in range(5, 25):
        try:
            return db.make(entry.name, ranks=ranks, microbatches=microbatches)
        except ParameterError:
            continue
    return None


def expressible(ranks: int) -> list[Schedule]:
    made = (small(entry, ranks) for entry in db.schedules())
    return [schedule for schedule in made if schedule and not not_for_pytorch(schedule)]


OUT_OF_ORDER = Schedule.from_text(
    [["0F1", "0F0", "0F2", "0B0", "0I1", "0W1", "0B2"],
     ["1F1", "1F0", "1B0", "1I1", "1F2", "1W1", "1B2"]],
    Placement.linear(2), 3, "out of order",
)  # fmt: skip


@dataclass
class Batch:
    args: Sequence[tuple[Any, ...]]
    targets: Sequence[Any]
    weights: Sequence[float]
    kwargs: Sequence[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, microbatches: int) -> Batch:
        source = torch.Generator().manual_seed(microbatches)
        x, y = torch.randn(2, microbatches, ROWS, WIDTH, generator=source, dtype=torch.float64)
        weights = [(unit + 1) / microbatches for unit in range(microbatches)]
        return cls([(part,) for part in x], [{"y": part} for part in y], weights,
                   [{}] * microbatches)  # fmt: skip


class Layer(nn.Module):
    """Two tensors come in and go out; the second is whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, count: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if count is None:
            count = torch.zeros(1, dtype=torch.int64)
        return x + self.outer(torch.tanh(self.inner(x))) / (1 + count), count + 1


def loss_fn(output: tuple[Tensor, Tensor], target: dict[str, Tensor]) -> Tensor:
    return functional.mse_loss(output[0], target["y"])


@functools.cache
def model(stages: int) -> list[nn.Module]:
    torch.manual_seed(7)
    return [Layer().double() for _ in range(stages)]


def reference(stages: int, batch: Batch) -> tuple[float, list[nn.Module]]:
    """The weighted loss of a loop without a pipeline, and the model with its gradients."""
    whole = copy.deepcopy(model(stages))
    total = 0.0
    for args, target, weight in zip(batch.args, batch.targets, batch.weights, strict=True):
        state: Any = args
        for stage in whole:
            state = stage(*state)
        loss = loss_fn(state, target) * weight
        loss.backward()
        total += loss.item()
    return total, whole


def compare(rank: int, schedule: Schedule, fused: bool) -> str:
    """What differs from a loop without a pipeline, over a step, an evaluation and a step."""
    batch = Batch.of(schedule.microbatches)
    total, whole = reference(schedule.stages, batch)
    here = schedule.placement.stages_on(rank)
    modules = {number: copy.deepcopy(model(schedule.stages)[number]) for number in here}
    engine = PyTorchEngine(
        schedule, modules, loss_fn, group=None, device=CPU, fused=here if fused else ()
    )
    for run, times in ((engine.step, 1), (engine.forward, 1), (engine.step, 2)):
        found = run(batch)
        if schedule.stages - 1 in here:
            if sorted(found) != list(range(schedule.microbatches)):
                return f"losses of {sorted(found)}"
            if abs(sum(loss.item() for loss in found.values()) - total) > 1e-12:
                return f"losses {found} in place of {total}"
        for number, module in modules.items():
            for ours, theirs in zip(module.parameters(), whole[number].parameters(), strict=True):
                assert ours.grad is not None
                assert theirs.grad is not None
                if not torch.allclose(ours.grad, times * theirs.grad, rtol=0, atol=1e-12):
                    return f"gradients of stage {number} after {times} steps"
    return ""


def compare_all(rank: int, schedules: list[Schedule], fused: bool) -> dict[str, str]:
    return {schedule.name: compare(rank, schedule, fused) for schedule in schedules}


@functools.cache
def compared(ranks: int) -> dict[str, list[str]]:
    """What differs, by schedule, on every rank: one world for all schedules."""
    found = in_world(ranks, compare_all, expressible(ranks), False)
    return {name: [rank[name] for rank in found] for name in found[0]}


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("entry", db.schedules(), ids=lambda entry: entry.name)
def test_every_schedule_that_it_can_express(entry: Entry, ranks: int) -> None:
    schedule = small(entry, ranks)
    if schedule is None:
        pytest.skip(f"no {entry.name} on {ranks} ranks")
    if reason := not_for_pytorch(schedule):
        pytest.skip(reason)
    assert compared(ranks)[schedule.name] == [""] * ranks


def test_which_schedules_it_can_express() -> None:
    names = {schedule.name for schedule in expressible(4)}
    assert {"1f1b", "interleaved-1f1b", "zb-v", "v-min", "hanayo", "looped-bfs"} <= names
    assert not names & {"dualpipe", "dualpipe-v", "chimera", "seq1f1b", "vocab-1", "pipedream-2bw"}
    assert len(names) >= 18


@pytest.mark.parametrize(
    "schedule",
    [
        OUT_OF_ORDER,
        add_transfers(OUT_OF_ORDER, policy="just-in-time"),
        db.make("zb-v", ranks=2, microbatches=4),
    ],
    ids=["losses out of order", "transfers of its own", "zb-v"],
)
@pytest.mark.parametrize("fused", [False, True])
def test_orders(schedule: Schedule, fused: bool) -> None:
    assert in_world(2, compare, schedule, fused) == ["", ""]


def test_one_rank() -> None:
    assert in_world(1, compare, db.make("1f1b", ranks=1, microbatches=3), False) == [""]


def both_styles(rank: int) -> list[float]:
    """Losses and outputs of PyTorch's own interface, with a batch and with microbatches."""
    batch = Batch.of(3)
    stage = PipelineStage(nn.Linear(WIDTH, WIDTH).double(), rank, 2, CPU)
    with torch.no_grad():
        stage.submod.weight.fill_(0.1)
        stage.submod.bias.fill_(0.2)
    runtime = PyTorchRuntime(OUT_OF_ORDER, [stage], functional.mse_loss)
    x, y = torch.cat([args[0] for args in batch.args]), torch.cat([t["y"] for t in batch.targets])
    whole = {"target": y} if rank else {}
    pieces = {"target_mbs": [t["y"] for t in batch.targets]} if rank else {"arg_mbs": batch.args}
    seen = []
    for run in (runtime.step, runtime.eval):
        losses: list[Tensor] = []
        first = run(*([] if rank else [x]), **whole, losses=losses)
        again: list[Tensor] = []
        second = run(**pieces, losses=again)
        if rank:
            assert torch.equal(first, second)
            state = functional.linear(x, stage.submod.weight, stage.submod.bias)
            expected = functional.linear(state, stage.submod.weight, stage.submod.bias)
            assert torch.allclose(first, expected)
            assert [loss.item() for loss in losses] == [loss.item() for loss in again]
            seen += [loss.item() for loss in losses]
    assert stage.submod.weight.grad is not None
    return [*seen, stage.submod.weight.grad.sum().item()]


def test_both_styles_of_step() -> None:
    """Two steps add up the gradients of the mean loss; outputs come in the batch's order."""
    first, last = in_world(2, both_styles)
    batch = Batch.of(3)
    weight = torch.full((WIDTH, WIDTH), 0.1, dtype=torch.float64, requires_grad=True)
    bias = torch.full((WIDTH,), 0.2, dtype=torch.float64)
    other = weight.detach().clone().requires_grad_()
    losses = [
        functional.mse_loss(
            functional.linear(functional.linear(args[0], weight, bias), other, bias), target["y"]
        )
        for args, target in zip(batch.args, batch.targets, strict=True)
    ]
    torch.stack(losses).mean().backward()
    assert last[:-1] == pytest.approx([loss.item() for loss in losses] * 2)
    assert weight.grad is not None
    assert other.grad is not None
    assert first[-1] == pytest.approx(2 * weight.grad.sum().item())
    assert last[-1] == pytest.approx(2 * other.grad.sum().item())


class Odd(nn.Module):
    """Its second microbatch comes out in another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.calls, self.dtype = 0, dtype
        self.layer = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        # PyTorch runs the first microbatch once more, to see what comes out.
        return self.layer(x).to(self.dtype if self.calls > 2 else torch.float64)


class Broken(nn.Module):
    def forward(self, _: Tensor) -> Tensor:
        raise LookupError("my layer does not like this input")


def failure(rank: int, kind: str) -> str:
    schedule = db.make("1f1b", ranks=1, microbatches=3)
    module = Odd(torch.bfloat16) if kind == "dtype" else Broken()
    if kind == "stages":
        schedule = db.make("interleaved-1f1b", ranks=1, microbatches=3)
    two = Schedule.from_text([["0F0", "0F1", "0F2", "1F0", "1F1", "1F2", "1B0", "1B1", "1B2",
                               "0B0", "0B1", "0B2"]], Placement.loop(1, 2), 3)  # fmt: skip
    modules: dict[int, nn.Module] = {0: module}
    if kind == "dtype":
        schedule, modules = two, {0: module, 1: nn.Linear(WIDTH, WIDTH).double()}
    batch = Batch.of(3)
    try:
        engine = PyTorchEngine(
            schedule, modules, lambda x, y: functional.mse_loss(x, y["y"]), group=None, device=CPU
        )
        engine.step(batch)
    except (DebubbleError, LookupError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_mistakes_are_told() -> None:
    assert in_world(1, failure, "dtype") == [
        "ScheduleError: stage 0 returned bfloat16 [3, 8]; its first microbatch returned "
        "float64 [3, 8]"
    ]
    assert in_world(1, failure, "module") == ["LookupError: my layer does not like this input"]
    [text] = in_world(1, failure, "stages")
    assert text == (
        "ParameterError: rank 0 has stages [0] of 2; 'interleaved-1f1b' gives it [0, 1] of 2"
    )


def test_what_it_refuses_and_why() -> None:
    for name, reason in {
        "dualpipe-v": "it overlaps forwards and backwards, which PyTorch runs one after the other",
        "chimera": "has 2 copies of the model, and a CSV gives each stage to one rank",
        "pipedream-2bw": "it keeps several versions of the weights",
    }.items():
        assert not_for_pytorch(db.make(name, ranks=4, microbatches=8)) == reason
    assert not not_for_pytorch(add_transfers(OUT_OF_ORDER))
