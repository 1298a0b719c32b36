"""Processor time per action: our engine next to PyTorch's, in one run, by turns.

    python benchmarks/engines.py [--model MODEL] [--ranks P] [--microbatches M] [--rounds N]
                                 [schedule ...]

All train one model on the same processes: our engine, ours on PyTorch's runtime
(``engine="torch"``), and PyTorch alone, with its own schedule of that order where it has one. The
default stages are so small that what is measured is the engine. All threads of a rank count, those
of gloo, too, which poll while another thread holds a connection: on busy cores that varies, so that
the ratio of main threads is printed, too. Times are medians over the rounds, summed over the ranks;
what one rank waits for is the other's work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn import functional

import debubble as db
import debubble.torch as dt
from debubble.torch.models.build import gpt_tiny
from debubble.torch.ranks.world import World, run_local
from debubble.torch.setup import not_for_pytorch

WARM_UP = 3
WIDTH, ROWS = 16, 2
THEIRS = {
    "1f1b": schedules.Schedule1F1B, "gpipe": schedules.ScheduleGPipe,
    "interleaved-1f1b": schedules.ScheduleInterleaved1F1B,
    "interleaved-zb": schedules.ScheduleInterleavedZeroBubble,
    "zb-v": schedules.ScheduleZBVZeroBubble, "dualpipe-v": schedules.ScheduleDualPipeV,
}  # fmt: skip
"""PyTorch's own schedules."""
ENGINES = ("debubble", "engine=torch", "PyTorch")


def tiny(stages: int, microbatches: int) -> tuple[Callable[[], Any], Any, torch.Tensor, Any]:
    """Stages of one small layer: a maker of them, the loss, and a batch."""

    def make() -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages)]

    x, y = torch.randn(2, microbatches * ROWS, WIDTH)
    return make, functional.mse_loss, x, y


def gpt(stages: int, microbatches: int) -> tuple[Callable[[], Any], Any, torch.Tensor, Any]:
    """Stages of gpt-tiny, likewise."""
    data = [gpt_tiny(stages).data(unit) for unit in range(microbatches)]
    x, y = (torch.cat(column) for column in zip(*data, strict=True))
    return lambda: gpt_tiny(stages).stages, gpt_tiny(stages).loss, x, y


MODELS = {"tiny": tiny, "gpt-tiny": gpt}


def theirs(schedule: db.Schedule, modules: Any, loss: Any, world: World) -> Any:
    """PyTorch alone."""
    device, own = torch.device("cpu"), schedule.placement.stages_on(world.rank)
    stages = [PipelineStage(modules[one], one, schedule.stages, device) for one in own]
    kind = THEIRS[schedule.name]
    single = issubclass(kind, schedules.PipelineScheduleSingle)
    return kind(stages[0] if single else stages, schedule.microbatches, loss_fn=loss)


def steps(
    schedule: db.Schedule, model: str, rounds: int, world: World
) -> dict[str, tuple[float, float]]:
    """Seconds of a step on one rank, by engine: of all threads, and of the main one."""
    torch.set_num_threads(1)
    world.begin(0)
    make, loss, x, y = MODELS[model](schedule.stages, schedule.microbatches)
    first, last = (n in schedule.placement.stages_on(world.rank) for n in (0, schedule.stages - 1))
    run: dict[str, Callable[[], Any]] = {}
    pipe = dt.Pipeline(schedule, make(), loss)
    run["debubble"] = partial(pipe.step, x, target=y)
    weights = list(pipe.parameters())
    if not not_for_pytorch(schedule):
        pipe = dt.Pipeline(schedule, make(), loss, engine="torch")
        run["engine=torch"] = partial(pipe.step, x, target=y)
        weights += pipe.parameters()
    if schedule.name in THEIRS:
        modules = make()
        alone = theirs(schedule, modules, loss, world)
        given = {"target": y} if last else {}
        run["PyTorch"] = partial(
            alone.step, *[x] * first, **given, losses=[] if last else None, return_outputs=False
        )
        weights += [weight for module in modules for weight in module.parameters()]
    times: dict[str, list[tuple[float, float]]] = {engine: [] for engine in run}
    for turn in range(WARM_UP + rounds):
        for engine in list(run)[:: 1 if turn % 2 else -1]:
            begin, main = time.process_time(), time.thread_time()
            run[engine]()
            if turn >= WARM_UP:
                times[engine].append((time.process_time() - begin, time.thread_time() - main))
        for weight in weights:
            weight.grad = None
    return {
        engine: (median(every for every, _ in pairs), median(main for _, main in pairs))
        for engine, pairs in times.items()
    }


def main() -> None:
    """Print a row for every schedule."""
    parser = argparse.ArgumentParser(description="Processor time per action of the engines.")
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--ranks", type=int, default=2, metavar="P")
    parser.add_argument("--microbatches", type=int, default=16, metavar="M")
    parser.add_argument("--rounds", type=int, default=30, metavar="N")
    parser.add_argument("schedules", nargs="*", metavar="schedule")
    typed = parser.parse_args()
    print(f"| schedule | {', µs per action | '.join(ENGINES)}, µs per action | ratio | main |")
    print("|---|---|---|---|---|---|")
    for name in typed.schedules or THEIRS:
        schedule = db.make(name, ranks=typed.ranks, microbatches=typed.microbatches)
        work = partial(steps, schedule, typed.model, typed.rounds)
        ranks = run_local(work, schedule.ranks, lambda *_: "its work", timeout=600, device="cpu")
        every, main = (
            {engine: sum(rank[engine][part] for rank in ranks) for engine in ranks[0]}
            for part in range(2)
        )
        cells = [
            f"{every[engine] / len(schedule) * 1e6:.0f}" if engine in every else "–"
            for engine in ENGINES
        ]
        cells += [
            f"{each[ENGINES[0]] / each[ENGINES[-1]]:.2f}" if ENGINES[-1] in each else "–"
            for each in (every, main)
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
