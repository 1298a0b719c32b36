"""What a pipeline trains does not depend on how its stages are written.

Collectives inside of stages, names of weights, and hooks on gradients change nothing: gradients are
those of a plain loop over the microbatches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

import debubble as db
import debubble.torch as dt
from debubble.core.actions import pairs_of
from tests.small import smallest
from tests.torch.loop import cross_entropy
from tests.torch.world import in_ranks

WIDTH, ROWS, M, WORDS = 4, 2, 6, 7
OVERLAPPING = [
    entry.name for entry in db.schedules() if np.any(pairs_of(smallest(entry).actions))
]  # fmt: skip

Stages = Mapping[int, nn.Module]


def made(name: str) -> db.Schedule:
    return db.make(name, ranks=2, microbatches=M)


def looped(
    stages: Stages,
    x: Tensor,
    y: Tensor,
    loss_fn: Callable[[Any, Any], Tensor] = functional.mse_loss,
) -> None:
    """Add the gradients of a batch, without a pipeline."""
    for part, target in zip(x.chunk(M), y.chunk(M), strict=True):
        for stage in stages.values():
            part = stage(part)
        (loss_fn(part, target) / M).backward()


def vectors(seed: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, M * ROWS, WIDTH, generator=source, dtype=torch.float64)
    return x, y


def apart(pipe: Any, wanted: Stages, own: Callable[[Tensor, str], Tensor]) -> float:
    """The largest difference between a gradient and this rank's `own` part of the wanted one."""
    found = [0.0]
    for name, weight in pipe.named_parameters():
        stage, _, path = name.partition(".")
        whole = wanted[int(stage)].get_parameter(path).grad
        gradient = weight.grad
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()
        found.append(float((gradient - own(whole, path)).abs().max()))
    return max(found)


class Copied(torch.autograd.Function):
    """The same on all ranks of a group; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Summed(torch.autograd.Function):
    """The sum over the ranks of a group; its gradient is the same on all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class Block(nn.Module):
    """Two layers, of which a rank of a tensor-parallel group has a half each."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(seed)
        both = torch.randn(2, WIDTH, WIDTH, generator=source, dtype=torch.float64) / 2
        self.rows, self.columns = map(nn.Parameter, both)
        self.group: Any = None

    def half(self, rank: int, group: Any) -> Block:
        for name, weight in list(self.named_parameters()):
            setattr(self, name, nn.Parameter(half(weight.detach(), name, rank).clone()))
        self.group = group
        return self

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            if self.group is None:
                x = x + torch.tanh(x @ self.rows.T) @ self.columns.T
            else:
                y = torch.tanh(Copied.apply(x, self.group) @ self.rows.T) @ self.columns.T
                x = x + Summed.apply(y, self.group)
        return x


def half(weight: Tensor, name: str, rank: int) -> Tensor:
    return weight.chunk(2, 0 if name == "rows" else 1)[rank]


class Layers(nn.Sequential):
    """Layers that ``fully_shard`` gathers one by one."""

    def __init__(self, seed: int, dropout: float = 0.0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            super().__init__(
                nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(dropout),
                nn.Linear(WIDTH, WIDTH),
            )  # fmt: skip
        self.double()


@pytest.mark.filterwarnings("ignore")
def test_collectives_inside_of_stages_change_nothing() -> None:
    """Ranks next to each other in tensor parallelism, and in fully_shard, meet within stages."""

    def work(rank: int) -> dict[str, float]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("other", "pp"))
        other, pp = mesh["other"], mesh["pp"]
        here, found = other.get_local_rank(), {}

        def sharded(number: int) -> nn.Module:
            layers = Layers(number)
            for layer in (layers[0], layers[3], layers):
                fully_shard(layer, mesh=other, reshard_after_forward=True)
            return layers

        for name in OVERLAPPING:
            schedule = made(name)
            blocks = {number: Block(number) for number in range(schedule.stages)}
            looped(blocks, *vectors(0))
            pipe = dt.Pipeline(
                schedule, lambda number: Block(number).half(here, other.get_group()),
                functional.mse_loss, group=pp,
            )  # fmt: skip
            x, y = vectors(0)
            pipe.step(x, target=y)
            error = apart(pipe, blocks, lambda whole, path: half(whole, path, here))
            found[f"{name}, tensor parallel"] = error
            layers = {number: Layers(number) for number in range(schedule.stages)}
            for replica in range(2):
                looped(layers, *vectors(replica))
            pipe = dt.Pipeline(schedule, sharded, functional.mse_loss, group=pp)
            x, y = vectors(here)
            for _ in range(2):
                pipe.zero_grad()
                pipe.step(x, target=y)
            found[f"{name}, fully_shard"] = apart(pipe, layers, lambda whole, _: whole / 2)
        return found

    for found in in_ranks(4, work):
        assert {name: error for name, error in found.items() if not error < 1e-12} == {}


def test_random_numbers_and_autocast_are_drawn_in_one_order() -> None:
    def work(rank: int) -> list[str]:
        differ = []
        for name in OVERLAPPING:
            bits = []
            for _ in range(3):
                pipe = dt.Pipeline(
                    made(name), lambda n: Layers(n, 0.5).float(), functional.mse_loss
                )
                x, y = (part.float() for part in vectors(0))
                torch.manual_seed(rank)
                with torch.autocast("cpu", torch.bfloat16):
                    pipe.step(x, target=y)
                bits.append([weight.grad for weight in pipe.parameters()])
            if any(not torch.equal(*pair) for again in bits[1:]
                   for pair in zip(bits[0], again, strict=True)):  # fmt: skip
                differ.append(name)
        return differ

    assert in_ranks(2, work) == [[], []]


class First(nn.Module):
    """An embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return torch.tanh(self.emb(x)), x


class Middle(nn.Module):
    """A layer that hands the words on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Any, words: Any = None) -> Any:
        hidden, words = given if words is None else (given, words)
        return torch.tanh(self.layer(hidden)), words


class Last(nn.Module):
    """A decoder with an embedding of its own, and a head that may have the same weight."""

    def __init__(self, one: bool) -> None:
        super().__init__()
        self.dec, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if one:
            self.head.weight = self.dec.weight

    def forward(self, given: Any, words: Any = None) -> Tensor:
        hidden, words = given if words is None else (given, words)
        return self.head(torch.tanh(hidden + self.dec(words)))


def decoder(stages: int, one: bool, tied: bool) -> Stages:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        middle = [Middle() for _ in range(stages - 2)]
        parts = nn.ModuleList([First(), *middle, Last(one)]).double()
    if tied:
        parts[-1].dec.weight = parts[0].emb.weight
        if one:
            parts[-1].head.weight = parts[0].emb.weight
    return dict(enumerate(parts))


def test_names_of_weights_change_nothing() -> None:
    """A weight may have two names in a stage, others in other stages, and copies on other ranks."""

    def work(rank: int) -> dict[str, float]:
        source = torch.Generator().manual_seed(0)
        x = torch.randint(WORDS, (M * ROWS, 3), generator=source)
        found = {}
        for name in ("1f1b", "dualpipe", "chimera", "zb-v", "dualpipe-v"):
            schedule = made(name)
            last = schedule.stages - 1
            for one, tied in ((True, False), (False, True), (True, True)):
                whole = decoder(schedule.stages, one, tied)
                looped(whole, x, x, cross_entropy)
                weights = list(nn.ModuleList(whole.values()).parameters())
                norm = nn.utils.get_total_norm([weight.grad for weight in weights])
                names = ("dec", "head") if one and tied else ("dec",) if tied else ()
                for given in ("", *names):
                    model = decoder(schedule.stages, one, tied)
                    stages: Any = model
                    if given:  # no rank sees by itself what other ranks' stages share
                        stages = lambda n: decoder(schedule.stages, one, tied)[n]  # noqa: B023, E731
                    shared = [("0.emb.weight", f"{last}.{given}.weight")] if given else []
                    pipe = dt.Pipeline(schedule, stages, cross_entropy, shared=shared)
                    pipe.step(x, target=x)
                    errors = [abs(float(pipe.clip_grad_norm_(1e9) / norm) - 1)]
                    for number, stage in pipe.stages.items():
                        for path, weight in stage.named_parameters(remove_duplicate=False):
                            wanted = whole[number].get_parameter(path).grad
                            errors.append(float((weight.grad - wanted).abs().max()))
                    found[f"{name}, one {one}, tied {tied}, given {given}"] = max(errors)
        return found

    for found in in_ranks(2, work):
        assert {name: error for name, error in found.items() if not error < 1e-12} == {}


def hook_gradients(weight: nn.Parameter, count: Callable[[], None]) -> None:
    def halved(gradient: Tensor) -> Tensor:
        count()
        return gradient / 2

    weight.register_hook(halved)


def hook_sums(weight: nn.Parameter, count: Callable[[], None]) -> None:
    weight.register_post_accumulate_grad_hook(lambda _: count())


def hook_accumulators(weight: nn.Parameter, count: Callable[[], None]) -> None:
    """As Megatron-LM's and PyTorch's data parallelism do, on the node that adds to ``grad``."""
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: count())
    weight.keeps = node


def hook_before(weight: nn.Parameter, count: Callable[[], None]) -> None:
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    node.register_prehook(lambda *_: count())
    weight.keeps = node


class Hooked(Layers):
    """Layers that look at the gradient of an activation."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.count: Callable[[], None] = int

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self[0](x)
        y.register_hook(lambda gradient: (self.count(), gradient / 2)[1])
        return self[3](self[1](y))


HOOKS = (hook_gradients, hook_sums, hook_accumulators, hook_before)


def test_hooks_on_gradients_run_once() -> None:
    """As often as in a plain loop, in whatever part of a backward, and with the same effect."""

    def work(rank: int) -> list[str]:
        wrong = []
        x, y = vectors(0)
        for name in ("1f1b", "zb-h1", "zb-v", "dualpipe-v"):
            schedule = made(name)
            for how in (*HOOKS, Hooked):
                calls: Counter[tuple[str, str]] = Counter()

                def stage(number: int, of: str = "loop") -> nn.Module:
                    found = (Hooked if how is Hooked else Layers)(number)  # noqa: B023
                    if isinstance(found, Hooked):
                        found.count = lambda: calls.update([(of, f"{number}")])  # noqa: B023
                        return found
                    for path, weight in found.named_parameters():
                        key = of, f"{number}.{path}"
                        how(weight, lambda key=key: calls.update([key]))  # noqa: B023
                    return found

                whole = {number: stage(number) for number in range(schedule.stages)}
                looped(whole, x, y)
                pipe = dt.Pipeline(
                    schedule, lambda number: stage(number, "pipe"), functional.mse_loss
                )
                pipe.step(x, target=y)
                text = f"{name}, {how.__name__}"
                if apart(pipe, whole, lambda gradient, _: gradient) > 1e-12:
                    wrong.append(text)
                here = {
                    path: n for (of, path), n in calls.items()
                    if of == "pipe" and int(path.partition(".")[0]) in pipe.stages
                }  # fmt: skip
                if any(n != calls["loop", path] for path, n in here.items()) or not here:
                    wrong.append(f"{text}: {here}")
        return wrong

    assert in_ranks(2, work) == [[], []]
