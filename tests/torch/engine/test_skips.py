"""Skip connections in a training loop, next to the same model without a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import debubble as db
import debubble.torch as dt
from debubble.core.errors import ParameterError
from debubble.core.kinds import Kind
from debubble.diagnosis.hang.order_messages import OrderMessages
from debubble.torch.deepspeed import _refuse as refuse_in_deepspeed
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.engine.skips import Skips
from debubble.torch.errors import RunError
from debubble.torch.measure.tune import _not_for_search as not_for_search
from debubble.torch.run.run import run
from debubble.torch.setup import not_for_pytorch
from tests.torch.engine.test_batched import on_streams
from tests.torch.world import in_ranks

WIDTH, MICROBATCHES = 6, 8
Carry = dict[int, int]
"""By stage, the one that it carries to."""


class Part(nn.Module):
    """A stage of a U: even ones carry a dict out of a dict, odd ones item 1 of a tuple."""

    slices = True

    def __init__(self, number: int, carries: bool) -> None:
        super().__init__()
        self.own, self.side = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.number, self.carries = number, carries

    def forward(self, x: Any, start: Any = None, _: Any = None, skip: Any = None) -> Any:
        found = self.output(x["x"] if isinstance(x, dict) else x, skip)
        if start is None:
            return found
        # Keys of a slice, for the slices behind it.
        return found, [(x["x"] if isinstance(x, dict) else x)[:, None]]

    def output(self, x: Tensor, skip: Any) -> Any:
        h = torch.tanh(self.own(x))
        if isinstance(skip, dict):
            h = h + skip["wide"] * skip["deep"]
        elif skip is not None:
            h = h + skip
        if not self.carries:
            return h + self.side(h)
        wide = torch.tanh(self.side(h))
        # One tensor may go both ways.
        return (h, wide) if self.number % 2 else {"x": h, "skip": {"wide": wide, "deep": h}}


def model(stages: int, carry: Carry) -> list[nn.Module]:
    torch.manual_seed(1)
    return [Part(stage, stage in carry).double() for stage in range(stages)]


def named(carry: Carry) -> dict[str, int | str]:
    """The argument of a pipeline."""
    return {
        f"{a}.1" if a % 2 else f"{a}.skip": f"{b}.skip" if a % 2 else b for a, b in carry.items()
    }


def alone(stages: Sequence[nn.Module], carry: Carry, x: Any) -> Tensor:
    """The output of the model without a pipeline."""
    held: dict[int, Any] = {}
    for number, stage in enumerate(stages):
        found = stage(x, skip=held.pop(number, None))
        if number not in carry:
            x = found
        elif number % 2:
            x, held[carry[number]] = found
        else:
            x, held[carry[number]] = {"x": found["x"]}, found["skip"]
    return x


def square(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean()


def batch(rows: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(rows)
    x = torch.randn(MICROBATCHES * rows, 2, WIDTH, dtype=torch.float64, generator=source)
    return x, x.flip(0) / 2


def apart(
    schedule: db.Schedule, carry: Carry, rows: Sequence[int], **options: Any
) -> tuple[float, float]:
    """Largest differences of a loss, and of a gradient of this rank, from the model alone."""
    stages, other = model(schedule.stages, carry), model(schedule.stages, carry)
    pipe = dt.Pipeline(schedule, lambda stage: stages[stage], square, carry=named(carry), **options)
    losses, gradients = [0.0], [0.0]
    for count in rows:
        x, y = batch(count)
        loss = float(pipe.step(x, target=y))
        theirs = torch.zeros((), dtype=torch.float64)
        for part, target in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            one = square(alone(other, carry, part), target) / MICROBATCHES
            one.backward()
            theirs += one.detach()
        evaluated = float(pipe.eval(x, target=y))
        losses += [abs(loss - float(theirs)), abs(evaluated - float(theirs))]
        for name, weight in pipe.named_parameters():
            stage, _, inner = name.partition(".")
            wanted = other[int(stage)].get_parameter(inner)
            assert weight.grad is not None
            assert wanted.grad is not None
            gradients.append(float((weight.grad - wanted.grad).abs().max()))
            weight.grad = None
        for part in other:
            part.zero_grad()
    return max(losses), max(gradients)


CASES: dict[str, tuple[str, dict[str, Any], Carry]] = {
    "1f1b": ("1f1b", {}, {0: 2, 1: 3}),
    "gpipe": ("gpipe", {}, {0: 3}),
    "split, to the next": ("zb-h1", {}, {0: 3, 1: 2}),
    "chunks": ("interleaved-1f1b", {"chunks": 2}, {0: 6, 1: 4, 2: 7}),
    "a V, on one rank": ("zb-v", {}, {0: 7, 1: 5, 2: 6}),
    "pairs": ("dualpipe-v", {}, {0: 6, 1: 7, 2: 3}),
    "recompute": ("zb-v", {"recompute": [1, 5, 6]}, {0: 7, 1: 5}),
    "offload": ("gpipe", {"offload": "full", "costs": db.Costs(host_bandwidth=1)}, {0: 2, 2: 3}),
    "fsdp": ("1f1b", {"sharding": "fsdp", "transfers": "eager", "carry": [(0, 3)]}, {0: 3}),
}


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_the_model_alone() -> None:
    made = {
        name: (db.make(of, ranks=4, microbatches=MICROBATCHES, **options), carry)
        for name, (of, options, carry) in CASES.items()
    }
    two_ways = db.make("dualpipe", ranks=4, microbatches=MICROBATCHES)
    sliced = db.make("seq1f1b", ranks=4, microbatches=MICROBATCHES, slices=2)

    def work(rank: int) -> Any:
        # The second step knows the forms; a batch of other sizes has others.
        found = {name: apart(*case, rows=(2, 2)) for name, case in made.items()}
        found["sizes"] = apart(*made["1f1b"], rows=(2, 3, 2))
        found["fused"] = apart(*made["split, to the next"], rows=(2,), split="fuse")
        near = {"two ways": apart(two_ways, {0: 2, 1: 3}, rows=(2,))}
        near["slices"] = apart(sliced, {0: 2, 1: 3}, rows=(2,))

        def batched(_: int, stream: Any) -> Any:
            names = ("1f1b", "a V, on one rank", "pairs")
            return {f"{name}, batched": apart(*made[name], rows=(2, 2)) for name in names}

        return found | on_streams(batched)(rank), near

    for found, near in in_ranks(4, work):
        assert {name: apart[1] for name, apart in found.items()} == dict.fromkeys(found, 0.0)
        # Two directions, and slices, add up in another order.
        for loss, gradient in (*near.values(), *found.values()):
            assert loss < 1e-15
            assert gradient < 1e-15


REPLICATED: dict[str, tuple[db.Schedule, Carry]] = {
    "chunks": (
        db.make("interleaved-1f1b", ranks=2, chunks=2, microbatches=MICROBATCHES), {0: 3, 1: 2},
    ),
    "a V": (db.make("zb-v", ranks=2, microbatches=MICROBATCHES), {0: 2, 1: 3}),
    "a V, gathered": (
        db.make("zb-v", ranks=2, microbatches=MICROBATCHES, sharding="fsdp"), {0: 3, 1: 2},
    ),
}  # fmt: skip


def of_both_replicas(case: str) -> dict[str, Tensor]:
    """Gradients of the model alone, the mean of two replicas with a batch of their own."""
    schedule, carry = REPLICATED[case]
    stages = model(schedule.stages, carry)
    for replica in range(2):
        x, y = batch(2 + replica)
        for part, target in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            (square(alone(stages, carry, part), target) / MICROBATCHES / 2).backward()
    named = nn.ModuleList(stages).named_parameters()
    return {name: weight.grad for name, weight in named if weight.grad is not None}


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_stages_that_carry_may_be_replicated_or_sharded(how: str) -> None:
    """Two replicas of two ranks: every gradient is that of the model alone on both batches."""
    wanted = {case: of_both_replicas(case) for case in REPLICATED}

    def work(rank: int) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
        dp = mesh["dp"]
        for case, (schedule, carry) in REPLICATED.items():
            stages = model(schedule.stages, carry)

            def stage(number: int, stages: Any = stages) -> nn.Module:
                if how == "ddp":
                    return DistributedDataParallel(stages[number], process_group=dp.get_group())
                fully_shard(stages[number].own, mesh=dp)
                return fully_shard(stages[number], mesh=dp)

            pipe = dt.Pipeline(schedule, stage, square, carry=named(carry), group=mesh["pp"])
            x, y = batch(2 + dp.get_local_rank())
            for _ in range(2):
                # The second step knows the forms of messages.
                pipe.zero_grad()
                pipe.step(x, target=y)
                pipe.eval(x, target=y)
                for name, weight in pipe.named_parameters():
                    assert weight.grad is not None, (case, name)
                    whole = weight.grad.full_tensor() if how == "fsdp" else weight.grad
                    expected = wanted[case][name.replace(".module.", ".")]
                    torch.testing.assert_close(whole, expected, rtol=1e-9, atol=1e-14)

    in_ranks(4, work)


def test_what_runs_no_carries_says_so() -> None:
    schedule = db.make("1f1b", ranks=3, microbatches=6, carry=[(0, 2)])
    reasons = [not_for_pytorch(schedule), not_for_search(schedule)]
    for call in (lambda: run(schedule), lambda: refuse_in_deepspeed(schedule, 6, v=False)):
        with pytest.raises(ParameterError) as refused:
            call()
        reasons.append(str(refused.value))
    assert all("carries something" in reason for reason in reasons)


def test_messages_of_a_hang_name_what_is_carried() -> None:
    schedule = db.make("1f1b", ranks=3, microbatches=2, carry=[(0, 2)])
    plan = ExecutionPlan.of(schedule)
    place = next(i for i, step in enumerate(plan.programs[2]) if step.kind == Kind.RECV_C)
    assert plan.text(2, place) == f"action {place}: 2RECV_C0 from rank 0"
    assert str(plan.programs[2][place].other_end) == "0SEND_C0"
    messages = OrderMessages.of(schedule)
    assert [messages.count(pair) for pair in ((0, 2), (2, 0), (0, 1), (1, 0))] == [2, 2, 2, 2]


def test_what_a_stage_carries_is_taken_out_of_its_output() -> None:
    skips = Skips.of({"0.skip": 2, "0.1": "2.wide", "1.1": "3.x"})
    assert skips.carries == ((0, 2), (1, 3))
    assert skips.take_out(1, (1, 2, 3)) == ((1, 3), {"x": 2})
    assert skips.take_out(2, "all") == ("all", None)
    with pytest.raises(RunError, match=r"carry names '0.skip', and stage 0 returned a tuple of 2;"):
        skips.take_out(0, (1, 2))
    with pytest.raises(RunError, match=r"carry names '1.1', and stage 1 returned a Tensor"):
        skips.take_out(1, torch.zeros(2))
    with pytest.raises(RunError, match=r"returned a dict with 'x', 'y'; return a dict with that"):
        Skips.of({"0.skip": 2}).take_out(0, {"x": 1, "y": 2})


class Without(nn.Linear):
    """A stage of which a part of the output is no tensor."""

    def __init__(self, skip: Any) -> None:
        super().__init__(2, 2)
        self.skip = skip

    def forward(self, x: Tensor) -> Any:
        return {"x": super().forward(x), "skip": self.skip}


def test_a_part_without_a_tensor_is_named() -> None:
    schedule = db.make("interleaved-1f1b", ranks=1, microbatches=1, chunks=3)

    def work(_: int) -> list[str]:
        found = []
        for skip in (None, "a word"):
            stages = [Without(skip), nn.Linear(2, 2), nn.Linear(2, 2)]
            pipe = dt.Pipeline(schedule, stages, square, carry={"0.skip": "2.input"})
            with pytest.raises(RunError) as refused:
                pipe.step(torch.ones(1, 2), target=torch.ones(1, 2))
            found.append(str(refused.value))
        return found

    (found,) = in_ranks(1, work)
    for text, skip in zip(found, ("None", "'a word'"), strict=True):
        assert f"stage 0 carries no tensor: 'skip' is {skip} in its output; return a" in text


@pytest.mark.parametrize(
    ("carry", "message"),
    [
        ("0:2", "carry is '0:2'; give a mapping"),
        ({"skip": 2}, "carry has the key 'skip'; give a stage and a key of its output"),
        ({"0.skip": 1.5}, r"carry\['0.skip'\] is 1.5; give a stage, or a stage and its keyword"),
        ({"0.1": 2}, r"and 1 is no keyword; add one: \"2.skip\""),
        ({"2.skip": 2}, "stage 2 does not come before stage 2; carry to a later stage"),
        ({"2.skip": 0}, "stage 2 does not come before stage 0"),
        ({"0.a": 2, "0.b": 3}, "takes stage 0 to stages 2 and 3, and a stage carries to one"),
        ({"0.a": 2, "0.1": "2.a"}, r"gives stage 2 two parts as a=; name one of them anew"),
    ],
)
def test_what_cannot_be_carried_is_refused(carry: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Skips.of(carry)


def test_a_stage_that_does_not_take_what_it_gets_is_named() -> None:
    skips = Skips.of({"0.skip": 2})
    skips.check({2: Part(2, carries=False), 0: nn.Linear(2, 2)})
    with pytest.raises(ParameterError, match=r"carry gives stage 2 skip=, and its forward takes"):
        skips.check({2: nn.Linear(2, 2)})


def test_a_schedule_with_other_carries_is_refused() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=2, carry=[(0, 2)])
    assert Skips.of({"0.skip": 2}).put_in(schedule) is schedule
    for carry in ({}, {"0.skip": 3}):
        with pytest.raises(ParameterError, match=r"carries 0:2; give carry= with the same stages"):
            Skips.of(carry).put_in(schedule)
    with pytest.raises(ParameterError, match="carries go to stage 4; there are 4 stages"):
        Skips.of({"0.skip": 4}).put_in(db.make("1f1b", ranks=4, microbatches=2))
