"""Our schedules in Megatron's loop: what a step gives is what its own function gives."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import wheels

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch import distributed as dist

import debubble as db
from debubble.core.placement import Placement
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.errors import RunError
from debubble.torch.ranks import watch
from debubble.torch.ranks.process_group import Ranks
from tests.megatron import gpt
from tests.torch.engine import test_batched

pytestmark = [pytest.mark.slow, pytest.mark.processes]

MAIN, OTHERS = "0.16.1", ("0.15.0", "0.19.2")
"""A release with all cases, and others with some."""

ROUNDING = 2.3e-7
"""Difference where a schedule adds gradients of microbatches in another sequence."""

OVERLAPPED = {
    "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
}  # fmt: skip

SPLIT = [("zb-h1", "autograd")]
INTERLEAVED = [("interleaved-1f1b", "fuse"), ("interleaved-zb", "fuse"),
               ("interleaved-zb", "autograd")]  # fmt: skip
"""Schedules, and how their backwards are split."""

Cases = dict[str, Any]
"""Differences from Megatron's own steps, by case; 0.0 where there is none."""


def compared(
    job: gpt.Job,
    cases: list[tuple[Any, str]],
    ours: Callable[[gpt.Training], None] = lambda _: None,
    both: Callable[[gpt.Training], None] = lambda _: None,
    **step: Any,
) -> Cases:
    """How far two steps by our function are from two by Megatron's, by schedule and split.

    What trains may be changed before, for ours alone too.
    """
    import debubble.megatron as dm

    def steps(function: Any, *changes: Callable[[gpt.Training], None]) -> list[gpt.Step]:
        training = gpt.Training(job)
        for change in changes:
            change(training)
        return [training.step(function, **step) for _ in range(2)]

    wanted = steps(None, both)
    found = {}
    for schedule, split in cases:
        mine = steps(dm.forward_backward_func(schedule, split=split), both, ours)
        name = getattr(schedule, "name", schedule)
        found[f"{name} {split}"] = max(
            gpt.apart(one, other)[0] for one, other in zip(mine, wanted, strict=True)
        )
    return found


def differing(found: dict[str, Cases]) -> dict[str, Cases]:
    """What is not as Megatron's own."""
    there = {job: {name: apart for name, apart in cases.items() if apart}
             for job, cases in found.items()}  # fmt: skip
    return {job: cases for job, cases in there.items() if cases}


@contextmanager
def in_batches() -> Iterator[test_batched.Stream]:
    """Have transfers run in batches one after the other, as NCCL takes them."""
    stream, made, batch = test_batched.Stream(), Ranks.of, dist.batch_isend_irecv
    watch.CONNECTING += (test_batched.__file__,)
    dist.batch_isend_irecv = stream
    Ranks.of = lambda *args: replace(made(*args), batched=True)  # type: ignore
    yield stream
    Ranks.of, dist.batch_isend_irecv = made, batch  # type: ignore


class Delayed(nn.Module):
    """A linear layer that keeps what its weight gradient needs, as TransformerEngine's can."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.weight, self.bias = own.weight, own.bias
        self.wgrad_store = self
        self.queue: list[tuple[Tensor, Tensor]] = []
        self.longest = 0

    def delay_wgrad_compute(self) -> bool:
        return True

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return _KeepForLater.apply(x, self.weight, self), self.bias

    def backward_dw(self) -> None:
        x, slope = self.queue.pop(0)
        gradient = slope.flatten(0, 1).t().matmul(x.flatten(0, 1))
        self.weight.grad = gradient if self.weight.grad is None else self.weight.grad + gradient


class _KeepForLater(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Delayed) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return x.matmul(weight.t())

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:  # type: ignore
        x, weight = ctx.saved_tensors
        ctx.layer.queue.append((x, slope))
        ctx.layer.longest = max(ctx.layer.longest, len(ctx.layer.queue))
        return slope.matmul(weight), None, None


def with_delayed_layers(found: list[Delayed], training: gpt.Training) -> None:
    """Give a model such layers, and list them."""
    for chunk in training.chunks:
        for layer in chunk.decoder.layers:
            layer.mlp.linear_fc1 = Delayed(layer.mlp.linear_fc1)
            found.append(layer.mlp.linear_fc1)


def with_hooks(training: gpt.Training) -> None:
    """Halve the gradients of all weights."""
    for chunk in training.chunks:
        for weight in chunk.parameters():
            weight.register_hook(lambda slope: slope / 2)


def in_another_sequence() -> db.Schedule:
    """A schedule in which the second stage takes microbatches in another sequence."""
    rows = [
        [f"0{kind}{unit}" for kind in "FB" for unit in range(4)],
        [*(f"1F{unit}" for unit in (2, 0, 3, 1)), *(f"1B{unit}" for unit in range(4))],
    ]
    return db.Schedule.from_text(rows, Placement.loop(2, 1), 4, "mixed")  # fmt: skip


def most_waiting(name: str, rank: int) -> int:
    """The largest number of microbatches that wait for their W on a rank."""
    made = db.make(name, ranks=2, microbatches=4)
    kinds = [action.kind.name for action in list(made)[rank]]
    return max(kinds[:at].count("I") - kinds[:at].count("W") for at in range(len(kinds) + 1))


class Timers(Counter[tuple[str, str]]):
    """Starts and stops of Megatron's timers."""

    def __call__(self, name: str, **_: Any) -> Any:
        def count(call: str, **_: Any) -> None:
            self[name, call] += 1

        return SimpleNamespace(start=partial(count, "start"), stop=partial(count, "stop"))


def timed() -> list[dict[tuple[str, str], int]]:
    """The timers of a step by Megatron's function and one by ours."""
    import debubble.megatron as dm

    found = []
    for function in (None, dm.forward_backward_func("1f1b")):
        training = gpt.Training(gpt.Job())
        training.config.timers = Timers()
        training.config.barrier_with_L1_time = False
        training.step(function)
        computing = training.config.timers
        found.append({key: count for key, count in computing.items() if not TRANSFERS(key[0])})
    return found


TRANSFERS = re.compile("send|recv").search
"""Timers of Megatron's own messages."""


def named_in_a_profile(rank: int) -> tuple[list[str], list[str]]:
    """Names of a step's actions in a profile, and those of the schedule."""
    from torch.profiler import ProfilerActivity, profile

    import debubble.megatron as dm

    dm.trace_ranges()
    training = gpt.Training(gpt.Job())
    run = dm.forward_backward_func("zb-h1", split="autograd")
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        training.step(run)
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    named = [event.name for event in events if event.name.startswith("PP:")]
    plan = ExecutionPlan.of(db.make("zb-h1", ranks=2, microbatches=4))
    wanted = [f"PP:{step}" for step in plan.programs[rank] if step.kind.name in "FIWB"]
    return named, wanted


def failing(rank: int) -> str:
    """What a rank raises when a forward of the other one fails."""
    import debubble.megatron as dm

    job, calls = gpt.Job(), []

    def step(*given: Any) -> Any:
        calls.append(given)
        if rank == 1 and len(calls) == 3:
            raise ArithmeticError("no more")
        return gpt.forward_step(job, *given)

    training, run = gpt.Training(job), dm.forward_backward_func("1f1b")
    with pytest.raises((RunError, ArithmeticError)) as raised:
        training.step(run, forward_step=step)
    return str(raised.value)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    return wheels.folder_of(request, "megatron")


def test_steps_are_those_of_megatron(folder: Path) -> None:
    wheel = gpt.fetch(folder, MAIN)

    def work(rank: int) -> tuple[dict[str, Cases], list[int], Any, str]:
        found, layers = {}, list[Delayed]()
        fused = [(name, "fuse") for name in ("1f1b", "gpipe", "zb-h1")]
        found["dense"] = compared(gpt.Job(), [*fused, ("zb-h2", "autograd")])
        late = ("looped-bfs", "fuse")
        found["interleaved"] = compared(gpt.Job(chunks=2), [*INTERLEAVED, late])
        found["experts"] = compared(gpt.Job(chunks=2, experts=4), INTERLEAVED[2:])
        found["tied"] = compared(gpt.Job(tied=True, ddp={}, per_token=True), SPLIT)
        found["further tokens"] = compared(gpt.Job(mtp=1), [("zb-h1", "auto")])
        found["recompute"] = compared(gpt.Job(recompute=True), [("zb-h1", "auto")])
        found["optimizer"] = compared(gpt.Job(ddp=OVERLAPPED, optimizer=True), SPLIT)
        found["lengths"] = compared(gpt.Job(lengths=(6, 12, 9)), SPLIT)
        found["sequence"] = compared(gpt.Job(), [(in_another_sequence(), "fuse")])
        found["evaluation"] = compared(
            gpt.Job(chunks=2), INTERLEAVED[1:2], forward_only=True, microbatches=6
        )
        outputs = {"forward_only": True, "collect_non_loss_data": True}
        found["outputs"] = compared(gpt.Job(), SPLIT, **outputs)
        delayed = partial(with_delayed_layers, layers)
        found["delayed"] = compared(
            gpt.Job(), [("zb-h1", "te"), ("zb-h2", "auto"), *fused[::2]], ours=delayed,
        )  # fmt: skip
        with in_batches() as stream:
            found["batches"] = compared(gpt.Job(chunks=2), INTERLEAVED[2:])
            found["lengths in batches"] = compared(gpt.Job(lengths=(6, 12, 9)), SPLIT)
            assert stream.posted
        theirs, ours = timed()
        assert theirs
        assert ours == theirs
        named = named_in_a_profile(rank)
        return found, [layer.longest for layer in layers], named, failing(rank)

    for rank, (found, longest, (named, wanted), failed) in enumerate(
        gpt.in_ranks_of(wheel, 2, work)
    ):
        waiting = [most_waiting(name, rank) for name in ("zb-h1", "zb-h2")]
        assert found["interleaved"].pop("looped-bfs fuse") <= ROUNDING
        assert differing(found) == {}
        # Two layers of each model; a whole backward leaves nothing for later.
        assert longest == [depth for depth in (*waiting, 1, 1) for _ in range(2)]
        assert named == wanted
        assert failed.startswith(("rank 1 failed: ArithmeticError", "no more")[rank])
        assert rank or "1F2" in failed


def test_gradients_meet_those_of_replicas(folder: Path) -> None:
    wheel = gpt.fetch(folder, MAIN)

    def hooks_alone(training: gpt.Training) -> None:
        """Leave the start to the hooks of backwards, as without ``align_grad_reduce``."""
        training.config.grad_sync_func = None

    def work(rank: int) -> dict[str, Cases]:
        found = {}
        found["at the end"] = compared(gpt.Job(replicas=2, ddp={}), SPLIT)
        found["optimizer"] = compared(gpt.Job(replicas=2, ddp=OVERLAPPED, optimizer=True), SPLIT)
        for name, change in {"starts": lambda _: None, "hooks": hooks_alone}.items():
            job = gpt.Job(chunks=2, replicas=2, ddp={"overlap_grad_reduce": True})
            found[name] = compared(job, INTERLEAVED[::2], both=change, microbatches=2)
        found["four stages"] = compared(gpt.Job(experts=4), SPLIT)
        return found

    for found in gpt.in_ranks_of(wheel, 4, work):
        assert differing(found) == {}


@pytest.mark.parametrize("version", OTHERS)
def test_so_it_is_on_other_releases(folder: Path, version: str) -> None:
    wheel = gpt.fetch(folder, version)

    def work(rank: int) -> dict[str, Cases]:
        found = {}
        found["experts"] = compared(gpt.Job(chunks=2, experts=4), INTERLEAVED[2:])
        job = gpt.Job(ddp=OVERLAPPED, optimizer=True, tied=True)
        found["optimizer"] = compared(job, SPLIT, both=with_hooks)
        return found

    for found in gpt.in_ranks_of(wheel, 2, work):
        assert differing(found) == {}


def test_tensor_and_sequence_parallel_ranks(folder: Path) -> None:
    """Two pipelines of two ranks; what is not split is said once, with the reason and a way out."""
    wheel = gpt.fetch(folder, OTHERS[-1])

    def work(rank: int) -> tuple[tuple[float, str], list[str]]:
        import debubble.megatron as dm

        said = list[str]()
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore
        logging.getLogger("debubble").addHandler(handler)
        job = gpt.Job(tensor=2, chunks=2, ddp={}, more={"sequence_parallel": True})
        wanted = gpt.Training(job).step()
        dm.install("dualpipe-v")
        return gpt.apart(gpt.Training(job).step(), wanted), said

    for apart, said in gpt.in_ranks_of(wheel, 4, work):
        assert apart == (0.0, "")
        assert [words.partition(":")[0] for words in said] == [
            "I does whole backwards on this rank, and W nothing"
        ]
        assert "LinearWithGradAccumulationAndAsyncCommunication computes with its w" in said[0]
        assert said[0].endswith("with delay_wgrad_compute leave weight gradients to W")
