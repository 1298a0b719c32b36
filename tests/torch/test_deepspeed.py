"""DeepSpeed's own engines run our schedules, and train as they do by theirs."""

from __future__ import annotations

import contextlib
import io
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="debubble.torch needs PyTorch")

import torch
from torch import nn

import debubble as db
from debubble import Placement, Schedule
from debubble.core.errors import ParameterError
from debubble.torch import deepspeed as ours
from debubble.torch.deepspeed import Instruction, steps_of
from tests import wheels
from tests.torch import deepspeed_source
from tests.torch.world import in_ranks

RANKS, MICROBATCHES, ROWS, WIDTH, STEPS = 3, 6, 2, 5, 3


@pytest.fixture(scope="module")
def source(request: pytest.FixtureRequest) -> list[str]:
    return deepspeed_source.fetch(wheels.folder_of(request, "deepspeed"))


def shuffled(seed: int, ranks: int = RANKS, microbatches: int = MICROBATCHES) -> Schedule:
    """Forwards and backwards in an order that chance picks among those that can run."""
    chance = random.Random(seed)
    done: set[str] = set()
    rows: list[list[str]] = [[] for _ in range(ranks)]
    while len(done) < 2 * ranks * microbatches:
        stage, unit = chance.randrange(ranks), chance.randrange(microbatches)
        forward = f"{stage}F{unit}"
        if forward not in done:
            ready, action = stage == 0 or f"{stage - 1}F{unit}" in done, forward
        else:
            action = f"{stage}B{unit}"
            ready = stage == ranks - 1 or f"{stage + 1}B{unit}" in done
        if ready and action not in done:
            done.add(action)
            rows[stage].append(action)
    return Schedule.from_text(rows, Placement.linear(ranks), microbatches, f"shuffled-{seed}")


FOUND = db.optimize(
    ranks=RANKS, chunks=1, microbatches=MICROBATCHES, costs=db.Costs(F=1, B=1.5, p2p=0.2),
    memory=2.5, backward="fused", p2p_mode="blocking", effort=0.01, seed=1,
)  # fmt: skip
ONE_STAGE = [
    *(db.make(name, ranks=RANKS, microbatches=MICROBATCHES)
      for name in ("1f1b", "gpipe", "eager-1f1b")),
    FOUND.schedule, shuffled(1), shuffled(2),
]  # fmt: skip
IN_V = [db.make("1f1b-v", ranks=RANKS, microbatches=MICROBATCHES)]


# Instructions, without DeepSpeed.


def meetings(schedule: Schedule) -> int:
    """Run all ranks up to the end or a deadlock; how many messages met, one by one."""
    found = [steps_of(schedule, rank) for rank in range(schedule.ranks)]
    assert len({len(steps) for steps, _ in found}) == 1
    met = 0
    for number in range(len(found[0][0])):
        # Ranks may meet between steps: each ends by itself.
        rest = [list(steps[number]) for steps, _ in found]
        while any(rest):
            before = sum(map(len, rest))
            for rank, row in enumerate(rest):
                while row and not is_message(row[0]):
                    row.pop(0)
                if row and meets(row[0], rest, rank):
                    other = rest[rank + direction(row[0])]
                    row.pop(0), other.pop(0)
                    met += 1
            assert sum(map(len, rest)) < before, f"step {number} locks up: {rest}"
    return met


def is_message(one: Instruction) -> bool:
    return one.name.startswith(("Send", "Recv"))


def direction(one: Instruction) -> int:
    """Where the other end is: DeepSpeed sends activations down, on the way back of a V up."""
    down = one.name in ("SendActivation", "RecvGrad")
    return (1 if down else -1) * (-1 if one.phase == 1 else 1)


def meets(one: Instruction, rest: list[list[Instruction]], rank: int) -> bool:
    other = {"Send": "Recv", "Recv": "Send"}[one.name[:4]] + one.name[4:]
    peer = rest[rank + direction(one)]
    return bool(peer) and (peer[0].name, peer[0].phase) == (other, one.phase)


@pytest.mark.parametrize("schedule", [*ONE_STAGE, *IN_V], ids=lambda s: s.name)
def test_messages_meet_one_by_one_and_step_by_step(schedule: Schedule) -> None:
    hops = RANKS - 1 if schedule.chunks == 1 else 2 * (RANKS - 1)
    assert meetings(schedule) == 2 * hops * MICROBATCHES


def test_no_order_that_can_run_locks_up() -> None:
    chance = random.Random(5)
    for seed in range(30):
        ranks, count = chance.randint(1, 5), chance.randint(1, 7)
        assert meetings(shuffled(seed, ranks, count)) == 2 * (ranks - 1) * count


@pytest.mark.parametrize("schedule", ONE_STAGE, ids=lambda s: s.name)
def test_a_buffer_belongs_to_one_microbatch_at_a_time(schedule: Schedule) -> None:
    for rank in range(RANKS):
        steps, count = steps_of(schedule, rank)
        held: set[int] = set()
        last = "BackwardPass" if rank == 0 else "SendGrad"
        for one in (each for step in steps for each in step if each.buffer is not None):
            assert one.buffer < count
            first = "LoadMicroBatch" if rank == 0 else "RecvActivation"
            assert (one.buffer in held) == (one.name != first)
            held.add(one.buffer)
            if one.name == last:
                held.remove(one.buffer)
        assert not held


# DeepSpeed's engines.


def data(seed: int) -> Any:
    source = torch.Generator().manual_seed(seed)
    while True:
        yield tuple(torch.randn(ROWS, WIDTH, generator=source) for _ in range(2))


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def trained(engine: Any) -> tuple[list[float], list[torch.Tensor]]:
    """Losses of some steps and of an evaluation between them, and the weights at the end."""
    losses, source = [], data(7)
    with contextlib.redirect_stdout(io.StringIO()):
        for step in range(STEPS):
            losses.append(float(engine.train_batch(source)))
            if step == 1:
                losses.append(float(engine.eval_batch(data(8))))
    return losses, [each.detach().clone() for each in engine.module.parameters()]


def apart(found: Any, wanted: Any) -> float:
    pairs = zip(found[1], wanted[1], strict=True)
    losses = max(abs(a - b) for a, b in zip(found[0], wanted[0], strict=True))
    return max(losses, *(float((a - b).abs().max()) for a, b in pairs))


def in_deepspeed(rank: int, source: list[str], path: Path) -> dict[str, Any]:
    """How far training by our schedules is from training by DeepSpeed's own."""
    deepspeed = deepspeed_source.load(source, rank, RANKS)
    from deepspeed.runtime.pipe.dualpipev import DualPipeVModule
    from deepspeed.runtime.pipe.schedule import TrainSchedule

    sizes = {"stages": RANKS, "microbatches": MICROBATCHES, "rows": ROWS}
    found: dict[str, Any] = {}
    for module, schedules in ((deepspeed.PipelineModule, ONE_STAGE), (DualPipeVModule, IN_V)):
        own = deepspeed_source.engine_of(deepspeed, module, layers(6), **sizes)
        wanted = trained(own)
        for schedule in schedules:
            engine = deepspeed_source.engine_of(deepspeed, module, layers(6), **sizes)
            file = path / f"{schedule.name}.json"
            ours.install(engine, file if schedule in ONE_STAGE[-2:] else schedule)
            found[schedule.name] = apart(trained(engine), wanted)
    ours.uninstall(engine)
    found["its own again"] = type(engine._train_schedule()).__name__

    engine = deepspeed_source.engine_of(deepspeed, deepspeed.PipelineModule, layers(6), **sizes)
    ours.install(engine, "1f1b")
    theirs = TrainSchedule(micro_batches=MICROBATCHES, stages=RANKS, stage_id=rank)
    passes = [
        [
            type(one).__name__
            for step in steps
            for one in step
            if type(one).__name__.endswith("Pass")
        ]
        for steps in (theirs, engine._train_schedule())
    ]
    found["1f1b as theirs"] = passes[0] == passes[1]
    engine.set_train_batch_size(ROWS * 9)
    found["made anew"] = engine._train_schedule().micro_batches
    ours.install(engine, db.make("1f1b", ranks=RANKS, microbatches=9))
    engine.set_train_batch_size(ROWS * MICROBATCHES)
    try:
        engine.train_batch(data(7))
    except ParameterError as error:
        found["refused"] = str(error)
    return found


@pytest.mark.slow
@pytest.mark.processes
def test_training_is_that_of_its_own_schedules(source: list[str], tmp_path: Path) -> None:
    for schedule in ONE_STAGE[-2:]:
        schedule.save(tmp_path / f"{schedule.name}.json")
    for found in in_ranks(RANKS, lambda rank: in_deepspeed(rank, source, tmp_path)):
        assert found.pop("its own again") == "DualPipeVSchedule"
        assert found.pop("1f1b as theirs")
        assert found.pop("made anew") == 9
        assert found.pop("refused") == (
            "'1f1b' has 9 microbatches, and the engine 6; set gradient_accumulation_steps to 9, or "
            "give the schedule by name"
        )
        # Sums of gradients are in another order where backwards are.
        assert {name: round(value, 6) for name, value in found.items()} == dict.fromkeys(found, 0)
        assert {name for name, value in found.items() if value == 0} >= {"1f1b", "eager-1f1b"}


# What it cannot run.


@pytest.mark.parametrize(("name", "options", "words"), [
    ("zb-h1", {}, "DeepSpeed's are whole; take a schedule with whole ones, such as 1f1b"),
    ("interleaved-1f1b", {"chunks": 2}, "a PipelineEngine has one stage per rank"),
    ("chimera", {"ranks": 4}, "copies of the model"),
    ("gpipe", {"recompute": "full"}, "has R actions"),
])  # fmt: skip
def test_what_it_cannot_run_is_refused(name: str, options: dict[str, Any], words: str) -> None:
    sizes = {"ranks": RANKS, "microbatches": MICROBATCHES} | options
    with pytest.raises(ParameterError, match=words):
        ours._refuse(db.make(name, **sizes), MICROBATCHES, v=False)


def test_a_v_is_for_its_engine_of_a_v() -> None:
    with pytest.raises(ParameterError, match="DualPipeVModule for a V"):
        ours._refuse(IN_V[0], MICROBATCHES, v=False)
    with pytest.raises(ParameterError, match="a DualPipeVEngine places two stages per rank in a V"):
        ours._refuse(ONE_STAGE[0], MICROBATCHES, v=True)


def test_another_engine_is_refused() -> None:
    with pytest.raises(ParameterError, match="SimpleNamespace without _train_schedule"):
        ours.install(SimpleNamespace(), "1f1b")
