"""Our schedules in Megatron's loop: what a step gives is what its own function gives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import wheels

pytest.importorskip("torch")

from torch import distributed as dist

from debubble.torch.ranks import watch
from debubble.torch.ranks.process_group import Ranks
from tests.megatron import gpt
from tests.torch.engine import test_batched
from tests.torch.world import in_ranks

pytestmark = [pytest.mark.slow, pytest.mark.processes]

MAIN, OTHERS = "0.16.1", ("0.15.0", "0.19.2")
"""A release with all cases, and others with some."""

ALONE = ("1f1b", "gpipe", "zb-h1", "zb-h2")
INTERLEAVED = ("interleaved-1f1b", "interleaved-zb")
SPLIT = ("zb-h1", "zb-h2", "interleaved-zb")
"""Schedules with I and W."""

ROUNDING = 2.3e-7
"""Difference where a schedule adds gradients of microbatches in another sequence."""

OVERLAPPED = {
    "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
}  # fmt: skip


def schedules_of(job: gpt.Job) -> list[tuple[Any, str]]:
    """Schedules for a job, fused and where they have I and W also split."""
    names = ALONE if job.chunks == 1 else INTERLEAVED
    return [(name, "fuse") for name in names] + [
        (name, "autograd") for name in names if name in SPLIT
    ]


def compared(job: gpt.Job, cases: list[tuple[Any, str]], **step: Any) -> dict[str, float]:
    """How far two steps by our function are from two by Megatron's, by schedule and split."""
    import debubble.megatron as dm

    function = step.pop("function", None)
    change: Callable[[Any], None] = step.pop("change", as_it_is)

    def steps(function: Any) -> list[gpt.Step]:
        training = gpt.Training(job)
        change(training.config)
        return [training.step(function, **step) for _ in range(2)]

    wanted = steps(function)
    found = {}
    for schedule, split in cases:
        ours = steps(dm.forward_backward_func(schedule, split=split))
        name = getattr(schedule, "name", schedule)
        found[f"{name} {split}"] = max(
            gpt.apart(mine, theirs)[0] for mine, theirs in zip(ours, wanted, strict=True)
        )
    return found


def others(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """What differs at all."""
    return {
        job: differ for job, cases in found.items()
        if (differ := {name: apart for name, apart in cases.items() if apart})
    }  # fmt: skip


@contextmanager
def in_batches() -> Any:
    """Have transfers run in batches one after the other, as NCCL takes them."""
    stream, made, batch = test_batched.Stream(), Ranks.of, dist.batch_isend_irecv
    watch.CONNECTING += (test_batched.__file__,)
    dist.batch_isend_irecv = stream
    Ranks.of = lambda *args: replace(made(*args), batched=True)  # type: ignore[method-assign]
    yield stream
    Ranks.of, dist.batch_isend_irecv = made, batch  # type: ignore[method-assign]


def as_it_is(_: Any) -> None: ...


def without_start(config: Any) -> None:
    """Leave the exchange of gradients to the hooks of backwards, as without align_grad_reduce."""
    config.grad_sync_func = None


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    return wheels.folder_of(request, "megatron")


def test_steps_are_those_of_megatron(folder: Path) -> None:
    wheel = gpt.fetch(folder, MAIN)

    def work(rank: int) -> dict[str, dict[str, float]]:
        found = {}
        with gpt.megatron(wheel):
            for name, job in {
                "dense": gpt.Job(), "interleaved": gpt.Job(chunks=2),
                "experts": gpt.Job(chunks=2, experts=4),
                "tied": gpt.Job(tied=True, ddp={}, per_token=True),
            }.items():  # fmt: skip
                found[name] = compared(job, schedules_of(job))
            zb = [("zb-h1", "autograd")]
            found["lengths"] = compared(gpt.Job(lengths=(6, 12, 9)), zb)
            found["further tokens"] = compared(gpt.Job(mtp=1), [("zb-h1", "auto")])
            found["recompute"] = compared(gpt.Job(recompute=True), [("zb-h1", "auto")])
            job = gpt.Job(ddp=OVERLAPPED, optimizer=True)
            found["optimizer"] = compared(job, zb)
            found["evaluation"] = compared(
                gpt.Job(chunks=2), [("interleaved-zb", "auto")], forward_only=True, microbatches=6
            )
            found["outputs"] = compared(
                gpt.Job(), zb, forward_only=True, collect_non_loss_data=True
            )
            with in_batches() as stream:
                found["batches"] = compared(gpt.Job(chunks=2), [("interleaved-zb", "autograd")])
                found["lengths in batches"] = compared(gpt.Job(lengths=(6, 12, 9)), zb)
                assert stream.posted
            found["rounding"] = compared(gpt.Job(chunks=2), [("looped-bfs", "fuse")])
        return found

    for found in in_ranks(2, work):
        rounded = found.pop("rounding")
        assert max(rounded.values()) <= ROUNDING, rounded
        assert others(found) == {}


def test_gradients_meet_those_of_replicas(folder: Path) -> None:
    wheel = gpt.fetch(folder, MAIN)

    def work(rank: int) -> dict[str, dict[str, float]]:
        found = {}
        with gpt.megatron(wheel):
            found["at the end"] = compared(gpt.Job(replicas=2, ddp={}), [("zb-h1", "autograd")])
            for name, change in {"starts": as_it_is, "hooks": without_start}.items():
                job = gpt.Job(chunks=2, replicas=2, ddp={"overlap_grad_reduce": True})
                found[f"{name}, interleaved"] = compared(
                    job, schedules_of(job), change=change, microbatches=2
                )
                job = gpt.Job(replicas=2, ddp=OVERLAPPED, optimizer=True)
                found[f"{name}, optimizer"] = compared(
                    job, [("1f1b", "fuse"), ("zb-h1", "autograd")], change=change
                )
        return found

    for found in in_ranks(4, work):
        assert others(found) == {}
