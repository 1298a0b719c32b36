"""PyTorch's runtime with our orders computes what a loop without a pipeline does."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

import debubble as db
import debubble.torch as dt
from debubble import Kind, Placement, Schedule
from debubble.core.errors import DebubbleError, ParameterError
from debubble.lowering.transfers import add_transfers
from debubble.schedules.registry import Entry
from debubble.torch.errors import RunError
from debubble.torch.pytorch import engine as pytorch_engine
from debubble.torch.pytorch.runtime import PyTorchRuntime, _check_output
from debubble.torch.setup import not_for_pytorch
from tests.conftest import EXPLORES
from tests.small import smallest
from tests.torch.world import in_ranks, report_progress

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


def expressible(ranks: int, entries: Iterable[Entry]) -> list[Schedule]:
    made = (small(entry, ranks) for entry in entries)
    return [schedule for schedule in made if schedule and not not_for_pytorch(schedule)]


WORLDS = (2, 3, 4)
PAIRS = [
    (entry, ranks)
    for number, entry in enumerate(db.schedules())
    for ranks in (WORLDS if EXPLORES else WORLDS[number % 3 :][:1])
]
"""Every schedule, and every number of ranks with a third of them."""


OUT_OF_ORDER = Schedule.from_text(
    [["0F1", "0F0", "0F2", "0B0", "0I1", "0W1", "0B2"],
     ["1F1", "1F0", "1B0", "1I1", "1F2", "1W1", "1B2"]],
    Placement.linear(2), 3, "out of order",
)  # fmt: skip


def data(microbatches: int) -> tuple[Tensor, dict[str, Tensor]]:
    source = torch.Generator().manual_seed(microbatches)
    x, y = torch.randn(2, microbatches * ROWS, WIDTH, generator=source, dtype=torch.float64)
    return x, {"y": y}


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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return [Layer().double() for _ in range(stages)]


@functools.cache
def reference(stages: int, microbatches: int) -> tuple[float, list[nn.Module]]:
    """The loss of a loop without a pipeline, and the model with its gradients."""
    whole = copy.deepcopy(model(stages))
    x, target = data(microbatches)
    state: Any = (x,)
    for stage in whole:
        state = stage(*state)
    loss = loss_fn(state, target)
    loss.backward()
    return loss.item(), whole


def compare(rank: int, schedule: Schedule, split: str = "auto") -> str:
    """What differs from a loop without a pipeline, over a step, an evaluation and a step."""
    report_progress()
    total, whole = reference(schedule.stages, schedule.microbatches)
    modules = copy.deepcopy(model(schedule.stages))
    pipe = dt.Pipeline(schedule, lambda stage: modules[stage], loss_fn, engine="torch", split=split)
    x, target = data(schedule.microbatches)
    for run_one, times in ((pipe.step, 1), (pipe.eval, 1), (pipe.step, 2)):
        losses: list[Tensor] = []
        loss = run_one(x, target=target, losses=losses)
        if abs(loss.item() - total) > 1e-12:
            return f"loss {loss.item()} in place of {total}"
        if pipe.is_last and len(losses) != schedule.microbatches:
            return f"{len(losses)} losses"
        for number, module in pipe.stages.items():
            for ours, theirs in zip(module.parameters(), whole[number].parameters(), strict=True):
                assert ours.grad is not None
                assert theirs.grad is not None
                if not torch.allclose(ours.grad, times * theirs.grad, rtol=0, atol=1e-12):
                    return f"gradients of stage {number} after {times} steps"
    return ""


@pytest.fixture(scope="module")
def compared() -> Callable[[int], dict[str, list[str]]]:
    """What differs, by schedule, on every rank: one world for all schedules."""

    @functools.cache
    def of_ranks(ranks: int) -> dict[str, list[str]]:
        schedules = expressible(ranks, [entry for entry, chosen in PAIRS if chosen == ranks])
        found = in_ranks(ranks, lambda rank: [compare(rank, schedule) for schedule in schedules])
        return {each.name: [rank[i] for rank in found] for i, each in enumerate(schedules)}

    return of_ranks


@pytest.mark.parametrize(
    ("entry", "ranks"), PAIRS, ids=[f"{entry.name}-{ranks}" for entry, ranks in PAIRS]
)
def test_every_schedule_that_it_can_express(
    entry: Entry, ranks: int, compared: Callable[[int], dict[str, list[str]]]
) -> None:
    schedule = small(entry, ranks)
    if schedule is None:
        pytest.skip(f"no {entry.name} on {ranks} ranks")
    if reason := not_for_pytorch(schedule):
        pytest.skip(reason)
    assert compared(ranks)[schedule.name] == [""] * ranks


def test_which_schedules_it_can_express() -> None:
    names = {schedule.name for schedule in map(smallest, db.schedules())
             if not not_for_pytorch(schedule)}  # fmt: skip
    assert {"1f1b", "interleaved-1f1b", "zb-v", "v-min", "hanayo", "looped-bfs"} <= names
    assert not names & {"dualpipe", "dualpipe-v", "chimera", "seq1f1b", "vocab-1", "pipedream-2bw"}
    assert len(names) >= 18


@pytest.mark.parametrize(
    "schedule",
    [
        add_transfers(OUT_OF_ORDER, policy="queued"),
        db.make("zb-v", ranks=2, microbatches=4),
    ],
    ids=["transfers of its own", "zb-v"],
)
@pytest.mark.parametrize("split", ["keep", "fuse"])
def test_orders(schedule: Schedule, split: str) -> None:
    assert in_ranks(2, lambda rank: compare(rank, schedule, split)) == ["", ""]


def test_one_rank() -> None:
    schedule = db.make("1f1b", ranks=1, microbatches=3)
    assert in_ranks(1, lambda rank: compare(rank, schedule)) == [""]


def test_losses_out_of_order() -> None:
    """The check of orders says that PyTorch's own cannot; this one can, in its own interface."""
    first, last = in_ranks(2, both_styles)
    x, target = data(3)
    weight = torch.full((WIDTH, WIDTH), 0.1, dtype=torch.float64, requires_grad=True)
    other = weight.detach().clone().requires_grad_()
    losses = [
        functional.mse_loss(functional.linear(functional.linear(a, weight), other), b)
        for a, b in zip(x.split(ROWS), target["y"].split(ROWS), strict=True)
    ]
    torch.stack(losses).mean().backward()
    assert last[:-1] == pytest.approx([loss.item() for loss in losses] * 2)
    assert weight.grad is not None
    assert other.grad is not None
    # Gradients of two steps add up.
    assert first[-1] == pytest.approx(2 * weight.grad.sum().item())
    assert last[-1] == pytest.approx(2 * other.grad.sum().item())


def both_styles(rank: int) -> list[float]:
    """Losses, and the gradient's sum, with a batch and with microbatches, steps and evaluations."""
    x, target = data(3)
    layer = nn.Linear(WIDTH, WIDTH, bias=False).double()
    with torch.no_grad():
        layer.weight.fill_(0.1)
    stage = PipelineStage(layer, rank, 2, CPU)
    runtime = PyTorchRuntime(OUT_OF_ORDER, [stage], functional.mse_loss)
    whole = {"target": target["y"]} if rank else {}
    pieces: dict[str, Any] = {"arg_mbs": [(part,) for part in x.split(ROWS)]}
    if rank:
        pieces = {"target_mbs": list(target["y"].split(ROWS))}
    seen = []
    for run_one in (runtime.step, runtime.eval):
        losses: list[Tensor] = []
        first = run_one(*([] if rank else [x]), **whole, losses=losses)
        again: list[Tensor] = []
        second = run_one(**pieces, losses=again)
        if rank:
            assert torch.equal(first, second)
            assert torch.allclose(first, x @ layer.weight.T @ layer.weight.T)
            assert [loss.item() for loss in losses] == [loss.item() for loss in again]
            seen += [loss.item() for loss in losses]
    assert layer.weight.grad is not None
    return [*seen, layer.weight.grad.sum().item()]


def test_stage_0_does_its_backward_in_w(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the convention ``runtime: torch`` of costs says."""
    found = in_ranks(1, lambda _: flops(monkeypatch))[0]
    assert found[Kind.I, 0] == 0
    assert found[Kind.W, 0] > 0
    assert found[Kind.I, 1] > 0
    assert found[Kind.W, 1] > 0


def flops(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[Kind, int], int]:
    counted: dict[tuple[Kind, int], int] = {}

    def counting(method: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
        def call(stage: Any, *args: Any) -> Any:
            with FlopCounterMode(display=False) as counter:
                result = method(stage, *args)
            counted[kind, stage.stage_index] = counter.get_total_flops()
            return result

        return call

    for name, kind in (("backward_one_chunk", Kind.I), ("backward_weight_one_chunk", Kind.W)):
        method = getattr(pytorch_engine.PipelineStage, name)
        monkeypatch.setattr(pytorch_engine.PipelineStage, name, counting(method, kind))
    order = [["0F0", "1F0", "1I0", "0I0", "1W0", "0W0"]]
    schedule = Schedule.from_text(order, Placement.loop(1, 2), 1)
    pipe = dt.Pipeline(schedule, model(2), loss_fn, engine="torch", split="keep")
    x, target = data(1)
    pipe.step(x, target=target)
    return counted


def measured(rank: int) -> tuple[set[str], int, float]:
    schedule = db.make("zb-h1", ranks=2, microbatches=4)
    modules = copy.deepcopy(model(2))
    pipe = dt.Pipeline(schedule, modules, loss_fn, engine="torch")
    x, target = data(4)
    for _ in range(2):
        pipe.step(x, target=target)
    costs, timeline = pipe.costs(), pipe.timeline()
    return {name for name in "FIWB" if getattr(costs, name)}, len(timeline.end), timeline.makespan


def test_its_actions_are_measured() -> None:
    for names, actions, makespan in in_ranks(2, measured):
        assert names == {"F", "I", "W"}
        assert actions == 2 * 3 * 4
        assert makespan > 0


class Odd(nn.Module):
    """Its second microbatch comes out in another type."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.layer = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        # PyTorch runs the first microbatch once more, to see what comes out.
        return self.layer(x).to(torch.bfloat16 if self.calls > 2 else torch.float64)


class Broken(nn.Module):
    def forward(self, _: Tensor) -> Tensor:
        raise LookupError("my layer does not like this input")


class Named(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return {"x": super().forward(x)}


class Adding(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        dt.add_loss(x.mean())
        return super().forward(x)


ORDER = Schedule.from_text(
    [["0F0", "0F1", "0F2", "1F0", "1F1", "1F2", "1B0", "1B1", "1B2", "0B0", "0B1", "0B2"]],
    Placement.loop(1, 2), 3,
)  # fmt: skip


def failure(first: nn.Module, **batch: Any) -> str:
    last = nn.Linear(WIDTH, WIDTH).double()
    x, target = data(3)
    batch = batch or {"arg_mbs": [(part,) for part in x.split(ROWS)]}
    pipe = dt.Pipeline(ORDER, [first, last], functional.mse_loss, engine="torch")
    try:
        pipe.step(**batch, target_mbs=list(target["y"].split(ROWS)))
    except (DebubbleError, LookupError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_what_it_cannot_do_is_told() -> None:
    assert in_ranks(1, lambda _: failure(Odd())) == [
        "RunError: stage 0 returned bfloat16 [3, 8]; its first microbatch returned float64 [3, 8]"
    ]
    assert in_ranks(1, lambda _: failure(Broken())) == [
        "LookupError: my layer does not like this input"
    ]
    assert in_ranks(1, lambda _: failure(Adding(WIDTH, WIDTH).double())) == [
        "RunError: stage 0 adds a loss of its own, which PyTorch's runtime takes from the last "
        "stage only; use engine='debubble'"
    ]
    assert in_ranks(1, lambda _: failure(Named(WIDTH, WIDTH).double())) == [
        "RunError: PyTorch's runtime cannot hand this on: Stage args must be a tensor, tuple, or "
        "list of tensors, got dict. engine='debubble' can"
    ]
    uneven = [(torch.zeros(rows, WIDTH, dtype=torch.float64),) for rows in (1, 2, 3)]
    plain = nn.Linear(WIDTH, WIDTH).double()
    [text] = in_ranks(1, lambda _: failure(plain, arg_mbs=uneven))
    assert text.startswith("RunError: microbatches have different shapes or types")


def test_versions_whose_runtime_was_not_tried_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    order = db.make("1f1b", ranks=2, microbatches=4)
    for version, words in (
        ("2.9.1+cu128", "it is that of PyTorch 2.9.1+cu128, and 2.11 is the oldest that was tried"),
        ("2.11.0a0+git", ""),
        ("2.14.1", ""),
    ):
        monkeypatch.setattr(torch, "__version__", version)
        assert not_for_pytorch(order) == words


def test_forms_of_outputs_are_found_in_stages_of_older_versions() -> None:
    stage = SimpleNamespace(stage_index=1, _outputs_meta=(torch.empty(3, 2, device="meta"),))
    _check_output(stage, torch.zeros(3, 2))
    with pytest.raises(RunError, match=r"stage 1 returned float32 \[2, 2\]; its first .* \[3, 2\]"):
        _check_output(stage, torch.zeros(2, 2))


def shapes(rank: int) -> list[list[int]]:
    """Outputs of batches of different shapes, one after the other."""
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    layers = [nn.Linear(WIDTH, WIDTH).double() for _ in range(2)]
    pipe = dt.Pipeline(schedule, layers, functional.mse_loss, engine="torch")
    seen = []
    for rows in (4, 6, 4):
        x = torch.zeros(rows, WIDTH, dtype=torch.float64)
        pipe.step(x, target=x)
        _, output = pipe.eval(x, return_outputs=True)
        seen.append([] if output is None else list(output.shape))
    return seen


def test_batches_of_other_shapes() -> None:
    assert in_ranks(2, shapes) == [[[], [], []], [[4, WIDTH], [6, WIDTH], [4, WIDTH]]]


def replicated(rank: int, wrap: str, name: str) -> list[float]:
    """The norm of each stage's gradient, of two pipelines whose data differ."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    place = rank % 2
    schedule = db.make(name, ranks=2, microbatches=4)
    modules = copy.deepcopy(model(2))
    module: nn.Module = modules[place]
    if wrap == "ddp":
        module = DistributedDataParallel(module, process_group=across[place])
    if wrap == "fsdp":
        from torch.distributed.device_mesh import DeviceMesh

        fully_shard(module, mesh=DeviceMesh.from_group(across[place], "cpu"))
    pipe = dt.Pipeline(schedule, {place: module}, loss_fn, engine="torch", group=groups[rank // 2])
    x, target = data(4)
    shift = 1.0 + rank // 2
    pipe.step(x * shift, target=target)
    total = 0.0
    for weight in module.parameters():
        grad: Any = weight.grad
        grad = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        total += float((grad**2).sum())
    return [total]


@pytest.mark.parametrize(("wrap", "name"), [("ddp", "1f1b"), ("ddp", "zb-h1"), ("fsdp", "zb-h1")])
def test_replicas(wrap: str, name: str) -> None:
    """Gradients are averaged over replicas, once."""
    x, target = data(4)
    whole = copy.deepcopy(model(2))
    for shift in (1.0, 2.0):
        state: Any = (x * shift,)
        for stage in whole:
            state = stage(*state)
        (loss_fn(state, target) / 2).backward()
    norms = [sum(float((w.grad**2).sum()) for w in stage.parameters()) for stage in whole]  # type: ignore[operator]
    found = in_ranks(4, lambda rank: replicated(rank, wrap, name))
    assert [one[0] for one in found] == pytest.approx(norms * 2)


def test_what_it_refuses_and_why() -> None:
    for name, reason in {
        "dualpipe-v": "it overlaps forwards and backwards, which PyTorch runs one after the other",
        "chimera": "it has 2 copies of the model, and a CSV gives each stage to one rank",
        "pipedream-2bw": "it keeps several versions of the weights",
    }.items():
        assert not_for_pytorch(db.make(name, ranks=4, microbatches=8)) == reason
    assert not not_for_pytorch(add_transfers(OUT_OF_ORDER))


def wrong_stages(_: int) -> str:
    stage = PipelineStage(nn.Linear(1, 1), 0, 2, CPU)
    schedule = db.make("interleaved-1f1b", ranks=1, microbatches=3)
    with pytest.raises(ParameterError) as caught:
        PyTorchRuntime(schedule, [stage])
    return str(caught.value)


def test_wrong_stages() -> None:
    assert in_ranks(1, wrong_stages) == [
        "rank 0 has stages [0] of 2; 'interleaved-1f1b' gives it [0, 1] of 2"
    ]
