"""What stages take, where it is known: times of a clock that stages set, bytes of the allocator."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity
from torch.profiler import profile as traced
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

import debubble as db
from debubble.core.errors import ParameterError
from debubble.interchange.cost_files import load_costs
from debubble.torch.data.batch import add_loss
from debubble.torch.measure.profile import profile
from debubble.torch.measure.single_stage import (
    ATTENTION,
    Flops,
    SingleStage,
    attention_backward_flops,
)
from debubble.torch.measure.stage_measures import Quartiles, StageMeasures, measures_table

ROWS, WIDTH = 8, 16
FLOAT = 4


class Clock:
    """Stands still until somebody takes time."""

    def __init__(self) -> None:
        self.now = 0

    def take(self, milliseconds: float) -> None:
        self.now += round(milliseconds * 1e6)


class Taking(torch.autograd.Function):
    """The identity, whose backward takes time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, milliseconds: float) -> Tensor:
        ctx.taken = clock, milliseconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        clock, milliseconds = ctx.taken
        clock.take(milliseconds)
        return gradient, None, None


class Sleeping(nn.Module):
    """Takes a known time in F, I and W."""

    def __init__(self, clock: Clock, F: float, I: float, W: float) -> None:
        super().__init__()
        self.clock, self.F, self.I, self.W = clock, F, I, W
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.clock.take(self.F)
        weight = Taking.apply(self.weight.view(-1), self.clock, self.W)
        y: Tensor = Taking.apply(x, self.clock, self.I) * weight
        return y


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, target)


def data(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def allocated(forward: Callable[[], Any]) -> int:
    """Bytes that stay allocated when nothing but autograd's graph of the output is kept."""
    kept: list[Any] = []
    with traced(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        output = forward()
        outputs = output if isinstance(output, tuple) else (output,)
        kept += [one.grad_fn for one in outputs]
        del output, outputs
    return sum(event.self_cpu_memory_usage for event in trace.key_averages())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock.now)
    return clock


@pytest.mark.slow
def test_times_are_those_that_stages_take(clock: Clock) -> None:
    takes = [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    stages = [Sleeping(clock, *times) for times in takes]
    found = profile(stages, mean_square, *data(), steps=3)
    costs = found.costs
    assert (costs.F, costs.I, costs.W) == ((1, 4, 7), (2, 5, 8), (3, 6, 9))
    # The first stage's whole backward computes no gradient of its input.
    assert costs.B == (3, 11, 17)
    spread = found.stages[1].times["I"]
    assert (spread.lower, spread.median, spread.upper) == (5, 5, 5)


def test_a_profile_predicts_a_schedule(clock: Clock, tmp_path: Path) -> None:
    stages = [Sleeping(clock, 1, 1, 1) for _ in range(4)]
    profile(stages, mean_square, *data(), steps=2).save(str(tmp_path / "costs.yaml"), ranks=4)
    file = load_costs(tmp_path / "costs.yaml")
    assert (file.ranks, file.time_unit, file.memory_unit) == (4, "ms", "bytes")
    schedule = db.make("zb-h1", ranks=4, microbatches=8)
    plain = db.simulate(schedule, db.Costs(F=1, I=1, W=1))
    assert db.simulate(schedule, file.costs).makespan == plain.makespan
    assert file.measured["quartiles"]["F"] == [[1.0, 1.0]] * 4


def test_bytes_are_exact() -> None:
    stages = [linear(), linear()]
    found = profile(stages, mean_square, *data(), steps=1)
    of_activation, of_weights = ROWS * WIDTH * FLOAT, (WIDTH + 1) * WIDTH * FLOAT
    # A layer saves its input, tanh its output; the loss saves tanh's output once more.
    for stage in found.stages:
        assert stage.saved == 2 * of_activation
        assert stage.inputs == of_activation
        assert stage.weights == stage.gradients == of_weights
    assert (found.stages[0].message, found.stages[1].message) == (of_activation, None)
    assert found.costs.message == of_activation
    assert found.costs.recompute_kept == (0.5, 0.5)
    assert found.costs.activation == (2 * of_activation,) * 2


def block() -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
    )


class Views(nn.Module):
    """Saves views of one tensor, which is one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.project(x).split(WIDTH, dim=-1)
        return a * b * c


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, reentrant: bool = False) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return y


STAGES: dict[str, Callable[[], nn.Module]] = {
    "linear": linear,
    "block": block,
    "views": Views,
    "dropout": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.GELU()),
    "checkpoint": lambda: Checkpointed(block()),
    "reentrant": lambda: Checkpointed(block(), reentrant=True),
}


@pytest.mark.parametrize("name", STAGES)
def test_bytes_are_those_of_the_allocator(name: str) -> None:
    module = STAGES[name]()
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    found = profile([nn.Identity(), module, nn.Identity()], mean_square, *data(), steps=1)
    state = 5056 if name in ("checkpoint", "reentrant") else 0  # the random state is no tensor
    module(x)
    assert found.stages[1].saved == allocated(lambda: module(x)) - state + x.nbytes


def test_what_microbatches_share_is_counted_for_none() -> None:
    """Autocast casts a weight once for all microbatches of a step."""
    module = nn.Linear(WIDTH, WIDTH, bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        found = profile([module, nn.Identity()], mean_square, *data(), steps=1)
    # The input, and what it was cast to.
    assert found.stages[0].saved == ROWS * WIDTH * (FLOAT + 2)
    assert found.stages[0].message == ROWS * WIDTH * 2


def test_a_weight_of_two_stages_under_autocast_is_trained_by_both() -> None:
    module = nn.Linear(WIDTH, WIDTH, bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        found = profile([module, module], mean_square, *data(), steps=1)
    assert [stage.gradients for stage in found.stages] == [WIDTH * WIDTH * FLOAT] * 2


def test_a_checkpointed_stage_keeps_its_input_and_does_not_split() -> None:
    found = profile([linear(), Checkpointed(linear())], mean_square, *data(), steps=1)
    stage = found.stages[1]
    # The loss comes behind it and saves the output.
    assert stage.inputs == ROWS * WIDTH * FLOAT
    assert stage.saved == 2 * stage.inputs
    assert "checkpointed" in stage.fused
    assert stage.split.endswith("the forward again, 1.33 times the FLOPs of B")
    assert (found.costs.W[0], 0.0) == found.costs.W
    assert found.costs.I[1] == found.costs.B[1]
    assert found.costs.kept_for_weight[1] == 0.0


class Product(torch.autograd.Function):
    """Computes both gradients whenever it runs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Product.apply(x, self.weight)
        return y


class Hidden(Custom):
    """The Function does not see the weight itself."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Product.apply(x, self.weight * 1)
        return y


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Hidden, "they do 2.00 times the FLOPs of B"),
        (Custom, "the autograd.Function Product computes all its gradients"),
        (lambda: Checkpointed(linear(), True), "the autograd.Function CheckpointFunction"),
        (lambda: linear().requires_grad_(False), "it has no weights to train"),
    ],
)
def test_why_a_backward_is_one_piece(module: Callable[[], nn.Module], words: str) -> None:
    found = profile([linear(), module()], mean_square, *data(), steps=1)
    assert words in found.stages[1].split
    assert found.stages[1].time("W") == 0.0
    assert "splitting" in found.stages[0].split


@pytest.mark.slow
def test_a_compiled_stage_is_one_piece() -> None:
    stages = [linear(), torch.compile(linear(), backend="aot_eager")]
    found = profile(stages, mean_square, *data(), steps=1)
    assert "compiled" in found.stages[1].fused
    assert found.stages[1].saved == found.stages[0].saved
    assert found.stages[1].layers == ()


def test_frozen_weights_have_no_gradients() -> None:
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    stage[0].requires_grad_(False)
    found = profile([linear(), stage], mean_square, *data(), steps=1).stages[1]
    assert found.gradients == (WIDTH + 1) * WIDTH * FLOAT
    assert found.weights == 2 * found.gradients
    # The frozen layer does not save its input; the loss saves the second one's output.
    assert found.saved == 3 * ROWS * WIDTH * FLOAT


def test_a_model_is_afterwards_as_before() -> None:
    stages = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)), linear(),
    ]  # fmt: skip
    weight = stages[0][0].weight
    weight.grad = torch.ones_like(weight)
    before = {name: value.clone() for name, value in stages[0].state_dict().items()}
    x, y = data()
    random = torch.get_rng_state()
    profile(stages, mean_square, x, y, steps=1)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(weight.grad, torch.ones_like(weight))
    assert stages[1][0].weight.grad is None
    for name, value in stages[0].state_dict().items():
        assert torch.equal(value, before[name]), name


class Two(nn.Module):
    """Takes and returns two tensors and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return self.layer(x) * mask * scale, mask


def test_boundaries_of_several_tensors_and_arguments_for_all() -> None:
    x, y = data()
    mask = torch.ones(ROWS, 1, dtype=torch.bool)
    found = profile(
        [Two(), Two()], lambda out, target: functional.mse_loss(out[0], target), (x, mask), y,
        steps=1, kwargs={"scale": 2.0},
    )  # fmt: skip
    assert found.stages[0].message == x.nbytes + mask.nbytes
    assert found.stages[1].inputs == x.nbytes + mask.nbytes


class Adding(nn.Module):
    """Adds a loss of its own; its output does not depend on its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        add_loss((x * self.weight).sum())
        return x + 1


def test_added_losses_are_part_of_the_backward() -> None:
    found = profile([linear(), Adding(), linear()], mean_square, *data(), steps=1)
    assert found.stages[1].gradients == WIDTH * FLOAT


def test_layers_of_unequal_stages(clock: Clock) -> None:
    stages = [
        nn.Sequential(Sleeping(clock, 1, 1, 1), Sleeping(clock, 2, 3, 4)),
        nn.Sequential(Sleeping(clock, 5, 6, 7)),
    ]
    file = profile(stages, mean_square, *data(), steps=1).data()
    layers = file["layers"]
    assert (layers["F"], layers["I"], layers["W"]) == ([1, 2, 5], [1, 3, 6], [1, 4, 7])
    one = ROWS * WIDTH * FLOAT
    assert layers["activation"] == [one, one, one]
    # The loss saves the output of the last layer.
    assert layers["head"] == {"F": 0, "I": 0, "W": 0, "B": 0, "activation": one}
    assert file["times"]["F"] == [3, 5]


class Tokens(nn.Module):
    """An embedding before layers."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, WIDTH)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_stage_of_tokens_leaves_all_to_w_and_its_layers_split(clock: Clock) -> None:
    stages = [Tokens(Sleeping(clock, 1, 2, 3), Sleeping(clock, 4, 5, 6)), Sleeping(clock, 7, 8, 9)]
    tokens = torch.zeros(ROWS, dtype=torch.int64)
    found = profile([stages[0], nn.Sequential(stages[1])], mean_square, tokens, data()[1], steps=1)
    costs = found.costs
    assert (costs.F, costs.I, costs.W, costs.B) == ((5, 7), (0, 8), (16, 9), (16, 17))
    first, second = (stage.split for stage in found.stages)
    assert first == "W does the whole backward, and I nothing: its input wants no gradient"
    assert second.startswith("splitting ")
    layers = found.data()["layers"]
    assert (layers["I"], layers["W"]) == ([2, 5, 8], [3, 6, 9])
    # On top of the layers, of which W does both parts.
    assert (layers["embedding"]["I"], layers["embedding"]["W"]) == (0, 0)


class Named(nn.Module):
    """A model with its layers under a name, of which one is called twice."""

    def __init__(self, name: str, twice: bool = False) -> None:
        super().__init__()
        self.names, self.twice = name, twice
        setattr(self, name, nn.ModuleList([linear(), linear()]))

    def forward(self, x: Tensor) -> Tensor:
        for layer in getattr(self, self.names):
            x = layer(x)
        return getattr(self, self.names)[0](x) if self.twice else x


@pytest.mark.parametrize(
    ("stage", "count"),
    [(Named("layers"), 2), (Named("h"), 2), (Named("blocks"), 2), (Named("parts"), 0),
     (Named("layers", twice=True), 0)],
)  # fmt: skip
def test_layers_are_found_by_name(stage: nn.Module, count: int) -> None:
    found = profile([stage], mean_square, *data(), steps=1)
    assert len(found.stages[0].layers) == count
    assert ("layers" in found.data()) == (count > 0)


def test_what_is_no_model_is_refused() -> None:
    x, y = data()
    for stages, steps, message in (
        ([], 1, "stages is empty"),
        (linear()[0], 1, "stages is one module"),
        ([linear(), linear], 1, "stage 1 is function"),
        ([linear()], 0, "steps is 0"),
    ):
        with pytest.raises(ParameterError, match=message):
            profile(stages, mean_square, x, y, steps=steps)
    with pytest.raises(ParameterError, match=r"loss_fn returned \[8, 16\]"):
        profile([linear()], lambda out, target: out - target, x, y, steps=1)


def test_times_that_vary_are_said_to() -> None:
    calm, wild = Quartiles.of([4, 5, 5, 5, 6]), Quartiles.of([1, 2, 5, 8, 9])
    assert (wild.lower, wild.median, wild.upper, wild.width) == (2, 5, 8, 1.2)
    assert "quartiles" not in measures_table([StageMeasures({"F": calm})])
    assert measures_table([StageMeasures({"F": calm, "B": wild})]).endswith(
        "quartiles of a time are up to 120 % of it apart; measure on an idle machine, or with more "
        "steps"
    )


def test_a_part_starts_anew_every_time() -> None:
    part = SingleStage(linear(), (torch.randn(ROWS, WIDTH, requires_grad=True),), {})
    first, second = part.forward(), part.forward(own=True)
    assert first.inputs[0].data_ptr() == part.args[0].data_ptr()
    assert second.inputs[0].data_ptr() != part.args[0].data_ptr()


def gradient_flops(heads: int, causal: bool) -> tuple[int, int]:
    """FLOPs of attention of 8 heads of queries and fewer of keys, and of its backward."""
    query, key, value = (torch.randn(2, h, 5, 4, requires_grad=True) for h in (8, heads, heads))
    with Flops() as counter:
        output = functional.scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=True
        )
        forward = counter.total
        output.sum().backward()
    return forward, counter.total - forward


def test_attention_takes_flops_by_its_query_heads() -> None:
    scores = 2 * 8 * 5 * 5
    for heads in (8, 2, 1):
        for causal in (False, True):
            assert gradient_flops(heads, causal) == (2 * scores * 8, 2 * scores * 20)


def test_flops_of_attention_are_those_of_pytorch() -> None:
    query, value = torch.randn(2, 8, 5, 4), torch.randn(2, 8, 5, 4)
    ours, theirs = {}, {}
    for packet, formula in flop_registry.items():
        own = ATTENTION.get(packet.__name__)
        if own is not None:
            gradient = (query,) if own is attention_backward_flops else ()
            given = (*gradient, query, value, value)
            ours[packet] = own(*given)
            theirs[packet] = formula(*given, out_val=query)
    assert ours == theirs
    assert len(ours) >= 6


def test_a_formula_that_refuses_stops_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise AssertionError("shapes are incompatible")

    for packet in (torch.ops.aten.mm, torch.ops.aten.addmm):
        monkeypatch.setitem(flop_registry, packet, refuse)
    found = profile([linear(), linear()], mean_square, *data(), steps=1)
    assert len(found.stages) == 2
