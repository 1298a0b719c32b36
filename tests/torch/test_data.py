"""What goes in, from stage to stage, and comes out: trees, types, shapes, losses, modes."""

from __future__ import annotations

import json
import socket
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import debubble as db
import debubble.torch as dt
from debubble.core.actions import kinds_of
from debubble.core.errors import ParameterError
from debubble.core.kinds import SEND_KINDS
from debubble.lowering.recompute import add_recompute
from debubble.lowering.transfers import add_transfers
from debubble.torch.engine.recorder import KEPT
from tests.torch.loop import cross_entropy, gpt, mlp, text, vectors
from tests.torch.world import in_ranks

M = 4


def equal(pipe: dt.Pipeline, alone: list[nn.Module], **tolerance: float) -> None:
    """Gradients of a pipeline and of the same model without one."""
    tolerance = tolerance or {"rtol": 1e-9, "atol": 1e-12}
    for stage, module in pipe.stages.items():
        for (name, ours), theirs in zip(
            module.named_parameters(), alone[stage].parameters(), strict=True
        ):
            assert (ours.grad is None) == (theirs.grad is None), name
            if ours.grad is not None:
                torch.testing.assert_close(
                    ours.grad, theirs.grad, **tolerance, msg=lambda m, n=name: f"{n}: {m}"
                )


class Trees(nn.Module):
    """Tuples, dicts, masks, integers and plain values between stages."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.layer = nn.Linear(8, 8).double()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.number == 0:
            (x,) = args
            mask = torch.arange(x.shape[1]) < 3
            return x[..., 0].sum().detach(), {"x": self.layer(x), "mask": mask, "n": (7, "text")}
        if self.number == 1:
            scale, tree = args
            assert tree["n"] == (7, "text")
            assert tree["mask"].dtype is torch.bool
            x = self.layer(tree["x"]) * tree["mask"][:, None]
            return [x, tree["x"], tree["x"].long(), scale]
        if self.number == 2:
            x, before, whole, scale = args
            assert whole.dtype is torch.int64
            return self.layer(x) + before * scale + whole * kwargs["factor"][:, None, None]
        (x,) = args
        return self.layer(x)


def trees() -> list[nn.Module]:
    torch.manual_seed(1)
    return [Trees(number) for number in range(4)]


def tree_loss(output: Tensor, target: dict[str, Tensor]) -> Tensor:
    return ((output - target["y"]) ** 2 * target["w"][:, None, None]).mean()


@pytest.mark.parametrize("name", ["zb-v", "interleaved-1f1b", "dualpipe-v"])
def test_trees_between_stages(name: str) -> None:
    def work(rank: int) -> None:
        torch.manual_seed(2)
        x, y = torch.randn(2, 2 * M, 5, 8, dtype=torch.float64)
        w, factor = torch.rand(2, 2 * M, dtype=torch.float64)
        alone = trees()
        total = 0.0
        for i in range(M):
            part = slice(2 * i, 2 * i + 2)
            a = alone[0](x[part])
            b = alone[2](*alone[1](*a), factor=factor[part])
            loss = tree_loss(alone[3](b), {"y": y[part], "w": w[part]}) / M
            loss.backward()
            total += loss.item()
        model = trees()
        pipe = dt.Pipeline(db.make(name, ranks=2, microbatches=M), model, tree_loss)
        for _ in range(2):  # learned in the first step, known in the second
            pipe.zero_grad()
            loss = pipe.step(x, target={"y": y, "w": w}, factor=factor)
            assert loss.item() == pytest.approx(total, rel=1e-9)
            equal(pipe, alone)

    in_ranks(2, work)


def test_microbatches_of_different_shapes() -> None:
    def work(rank: int) -> None:
        alone, model = gpt(2), gpt(2)
        torch.manual_seed(4)
        parts = [torch.randint(61, (2, n + 1)) for n in (9, 24, 9, 3)]
        xs, ys = [p[:, :-1] for p in parts], [p[:, 1:] for p in parts]
        for x, y in zip(xs, ys, strict=True):
            (cross_entropy(alone[1](alone[0](x)), y) / M).backward()
        pipe = dt.Pipeline("zb-h1", model, cross_entropy, microbatches=M)
        for _ in range(2):
            pipe.zero_grad()
            pipe.step(arg_mbs=[(x,) for x in xs], target_mbs=ys)
            equal(pipe, alone)
        pipe.step(arg_mbs=xs[::-1], target_mbs=ys[::-1])

    in_ranks(2, work)


class Fickle(nn.Module):
    """Returns another type, or shape, the third time."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how, self.calls = nn.Linear(32, 32).double(), how, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.layer(x)
        if self.calls != 3:
            return x
        return x.to(torch.bfloat16) if self.how == "type" else x[:, :-1]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("type", "returned bfloat16 [4, 32]; its first microbatch of this shape returned float64"),
        ("shape", "returned float64 [4, 31]; its first microbatch of this shape returned float64"),
    ],
)
def test_another_type_or_shape_is_an_error(how: str, words: str) -> None:
    def work(rank: int) -> None:
        model = [mlp(2)[0], Fickle(how), *mlp(2)]
        pipe = dt.Pipeline("interleaved-1f1b", model, functional.mse_loss, microbatches=M, chunks=2,
                           timeout=10)  # fmt: skip
        x, y = vectors(M, 0)
        pipe.step(x, target=y)

    for text_ in in_ranks(2, work, fails=True):
        assert "RunError" in str(text_) or text_ == 2
        assert text_ == 2 or f"stage 1 {words}" in text_


class Balanced(nn.Module):
    """Adds to the loss."""

    def __init__(self, add: bool) -> None:
        super().__init__()
        self.layer, self.add = nn.Linear(32, 32).double(), add
        self.added: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        self.added = x.pow(2).mean() * 0.1
        if self.add:
            dt.add_loss(self.added)
        return x


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_auxiliary_losses(name: str) -> None:
    def work(rank: int) -> None:
        torch.manual_seed(0)
        alone = [Balanced(False) for _ in range(4)]
        torch.manual_seed(0)
        model = [Balanced(True) for _ in range(4)]
        x, y = vectors(M, 0)
        total = 0.0
        for part, target in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
            for stage in alone:
                part = stage(part)
            loss = functional.mse_loss(part, target) + sum(stage.added for stage in alone)
            (loss / M).backward()
            total += loss.item() / M
        made = db.make(name, ranks=2, microbatches=M)
        pipe = dt.Pipeline(made, model, functional.mse_loss)
        assert pipe.step(x, target=y).item() == pytest.approx(total, rel=1e-9)
        equal(pipe, alone)
        assert pipe.eval(x, target=y).item() == pytest.approx(total, rel=1e-9)

    in_ranks(2, work)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "1f1b-overlap"])
def test_autocast_holds_in_every_action(name: str) -> None:
    def work(rank: int) -> None:
        alone, model = ([stage.float() for stage in gpt(2)] for _ in range(2))
        x, y = text(M, 0)
        for part, target in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                loss = cross_entropy(alone[1](alone[0](part)), target) / M
            loss.backward()
        pipe = dt.Pipeline(db.make(name, ranks=2, microbatches=M), model, cross_entropy)
        with torch.autocast("cpu", torch.bfloat16):
            pipe.eval(x, target=y)
            pipe.step(x, target=y)
        for weight in pipe.parameters():
            assert weight.grad is not None
            assert weight.grad.dtype is torch.float32
        equal(pipe, alone, rtol=2e-2, atol=2e-4)
        # Without it the same stages hand on another type, which is no mistake.
        pipe.step(x, target=y)

    in_ranks(2, work)


class Dropping(nn.Sequential):
    """Draws random numbers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 32))


def test_recomputes_draw_what_forwards_drew() -> None:
    def work(rank: int) -> list[list[Tensor]]:
        torch.manual_seed(0)
        model = [Dropping() for _ in range(2)]
        x, y = (part.float() for part in vectors(M, 0))
        made = db.make("gpipe", ranks=2, microbatches=M)
        found = []
        for schedule in (made, add_recompute(made)):
            pipe = dt.Pipeline(schedule, model, functional.mse_loss)
            pipe.zero_grad()
            torch.manual_seed(7)
            loss = pipe.step(x, target=y)
            found.append([loss, *(w.grad.clone() for w in pipe.parameters()), torch.rand(1)])
        return found

    for plain, recomputed in in_ranks(2, work):
        assert all(map(torch.equal, plain, recomputed))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = mlp(1)[0], reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return g * weight, (g * x).sum(0)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return Double.apply(x, self.weight)


def whole_backwards() -> list[nn.Module]:
    torch.manual_seed(0)
    compiled = mlp(1)[0]
    compiled.compile(backend="eager")
    return [
        nn.Sequential(mlp(1)[0], Checkpointed(True)), Checkpointed(False), Custom(), compiled,
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_splits_that_gain_nothing_are_not_made(caplog: Any) -> None:
    def work(rank: int) -> list[str]:
        words: list[str] = []
        import logging

        handler = logging.Handler()
        handler.emit = lambda record: words.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("debubble").addHandler(handler)
        x, y = vectors(M, 0)
        alone = whole_backwards()
        for part, target in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
            for stage in alone:
                part = stage(part)
            (functional.mse_loss(part, target) / M).backward()
        for split in ("auto", "fuse"):
            model = whole_backwards()
            pipe = dt.Pipeline("zb-v", model, functional.mse_loss, microbatches=M, split=split)
            pipe.step(x, target=y)
            pipe.zero_grad()
            pipe.step(x, target=y)
            equal(pipe, alone)
            costs = pipe.costs()
            assert costs.W is not None
        try:
            dt.Pipeline(
                "zb-v", whole_backwards(), functional.mse_loss, microbatches=M, split="keep"
            )
            words.append("kept")
        except ParameterError as error:
            words.append(str(error))
        return words

    first, second = in_ranks(2, work, fails=True)
    for lines, stage, why in (
        (first, 0, "CheckpointFunction"), (first, 3, "compiled"),
        (second, 1, "checkpoint"), (second, 2, "Double"),
    ):  # fmt: skip
        start = f"I of stage {stage} does its whole backward"
        assert any(line.startswith(start) and why in line for line in lines), lines
    assert "the backward of stage 3 cannot be split into I and W: it is compiled" in first[-1]


def test_another_order_between_two_steps(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        alone, model = gpt(4), gpt(4)
        x, y = text(M, 0)
        for part, target in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
            for stage in alone:
                part = stage(part)
            (cross_entropy(part, target) / M).backward()
        pipe = dt.Pipeline("zb-v", model, cross_entropy, microbatches=M)
        pipe.step(x, target=y)
        for name in ("v-min", "v-half", "dualpipe-v"):
            made = db.make(name, ranks=2, microbatches=M)
            made.save(path := tmp_path / f"{rank}-{name}.json")
            pipe.use(path)
            pipe.zero_grad()
            pipe.step(x, target=y)
            equal(pipe, alone)
        with pytest.raises(ParameterError, match="places stages on other ranks"):
            pipe.use(db.make("interleaved-1f1b", ranks=2, microbatches=M))

    in_ranks(2, work)


@pytest.mark.parametrize(
    ("name", "engine"),
    [("zb-v", "auto"), ("dualpipe-v", "auto"), ("vocab-1", "auto"), ("seq1f1b", "auto"),
     ("zb-v", "torch"), ("interleaved-1f1b", "torch")],
)  # fmt: skip
def test_what_was_measured(name: str, engine: str, tmp_path: Path) -> None:
    def work(rank: int) -> tuple[Any, float]:
        made = db.make(name, ranks=2, microbatches=M)
        pipe = dt.Pipeline(made, gpt(made.stages), cross_entropy, engine=engine)
        with pytest.raises(dt.RunError, match="nothing was measured yet"):
            pipe.costs()
        x, y = text(M, 0)
        for _ in range(KEPT + 2 if (name, engine) == ("zb-v", "auto") else 3):
            pipe.step(x, target=y)
        costs, timeline = pipe.costs(), pipe.timeline()
        pipe.trace(tmp_path / "run.json")
        assert costs.time_unit == "ms"
        simulated = db.simulate(made, costs)
        assert simulated.makespan > 0
        # Only transfers and overhead are between what actions took and what the step took.
        busy = timeline.duration.sum()
        assert 0 < busy <= timeline.makespan * made.ranks * (1 + 1e-9)
        return costs, timeline.makespan

    (first, makespan), second = in_ranks(2, work)
    assert (first, makespan) == second
    check_transfers(tmp_path / "run.json", db.make(name, ranks=2, microbatches=M))
    assert first.F is not None
    assert first.p2p >= 0


def check_transfers(path: Path, schedule: db.Schedule) -> None:
    """A trace has every message, from its post on one rank to its arrival on the other."""
    trace = json.loads(path.read_text())
    assert trace["otherData"]["hosts"] == [socket.gethostname()] * 2
    lowered = add_transfers(schedule)
    ends: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") == "transfer":
            ends[int(event["id"][1:])].append(event)
    kinds = kinds_of(lowered.actions)
    assert len(ends) == np.isin(kinds, SEND_KINDS).sum() > 0
    for number, (begin, end, posted, there) in ends.items():
        about = posted["args"]
        assert (begin["ph"], end["ph"], posted["ph"], there["ph"]) == ("b", "e", "b", "e")
        assert about["transfer"] == number
        assert (begin["pid"], posted["pid"]) == (about["from"], about["to"])
        assert begin["ts"] <= end["ts"]
        assert posted["ts"] <= about["waited"] <= there["ts"]
        assert begin["ts"] < there["ts"]
