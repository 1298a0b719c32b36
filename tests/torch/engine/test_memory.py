"""What is alive at every action, by weak references to storages, beside what a profile predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import debubble as db
import debubble.torch as dt
from debubble.core.kinds import Kind
from debubble.torch.autograd.splitter import Splitter, backward_weight
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.engine.tasks import Task, find_answers, find_moves
from debubble.torch.measure.profile import Profile
from tests.torch.loop import cross_entropy, gpt, text, vectors
from tests.torch.world import in_ranks

M = 6
NUMBERS = 4096
"""Bytes of losses, and of tokens, which are views of the batch; an activation has 200,000."""


class Alive(TorchDispatchMode):
    """Everything that operations return, for as long as its storage lives."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[tuple[StorageWeakRef, int]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self._seen.append((StorageWeakRef(storage), storage.nbytes()))
        return found

    def bytes(self, aside: Iterable[Tensor]) -> int:
        """Bytes of all but some."""
        self._seen = [pair for pair in self._seen if not pair[0].expired()]
        gone = {tensor.untyped_storage()._cdata for tensor in aside}
        sizes = {ref.cdata: size for ref, size in self._seen}
        return sum(size for key, size in sizes.items() if key not in gone)


def own(pipe: dt.Pipeline) -> list[Tensor]:
    """Weights, buffers and gradients."""
    weights = list(pipe.parameters())
    buffers = [buffer for module in pipe.stages.values() for buffer in module.buffers()]
    return [*weights, *buffers, *(w.grad for w in weights if w.grad is not None)]


def messages(pipe: dt.Pipeline) -> list[Tensor]:
    """What is between two stages: to be sent, on its way, with a buffer for it, or not used yet.

    On the first stage a gradient waits from I, which has nothing to do there, to W.
    """
    engine, wire = pipe._engine, pipe._wire
    found = [part for queue in wire._sending.values() for _, parts in queue for part in parts]
    for ready in engine._ready.values():
        found += ready if isinstance(ready, list) else ready.tensors
    for left in engine.stages[0]._left.values() if 0 in engine.stages else ():
        found += left[1]
    return found


def kept(profile: Profile, stage: int, kind: Kind) -> int:
    """What a microbatch holds on a stage behind an action."""
    measures = profile.stages[stage]
    if kind == Kind.F:
        return measures.saved or 0
    if kind == Kind.I:
        # Of the first stage, I leaves all to W.
        return (measures.kept_for_weight if stage else measures.saved) or 0
    return 0


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe-v"])
def test_what_lives_is_what_is_predicted(name: str) -> None:
    schedule = db.make(name, ranks=2, microbatches=M)
    x, y = text(M, 0)
    profile = dt.profile(
        gpt(schedule.stages), cross_entropy, x[:2], y[:2], steps=1, layers=False
    )  # fmt: skip
    costs = db.Costs(
        activation=[stage.saved for stage in profile.stages],
        kept_for_weight=[kept(profile, number, Kind.I) / stage.saved
                         for number, stage in enumerate(profile.stages)],
    )  # fmt: skip
    assert all(0.9 < share < 1 for share in costs.kept_for_weight[1:])

    def work(rank: int) -> tuple[list[tuple[str, int, int]], int]:
        pipe = dt.Pipeline(schedule, gpt(schedule.stages), cross_entropy, split="keep")
        alive, rows = Alive(), []
        held: dict[tuple[int, int], int] = {}

        def after(compute: Callable[[Any], None], many: Callable[[Any], list[Task]]) -> Any:
            def computed(tasks: Any) -> None:
                compute(tasks)
                for task in many(tasks):
                    step = task.step
                    held[step.stage, step.unit] = kept(profile, step.stage, step.kind)
                live = alive.bytes([*own(pipe), *messages(pipe), xs, ys])
                rows.append((str(step), live, sum(held.values())))

            return computed

        engine = pipe._engine
        engine._compute = after(engine._compute, lambda task: [task])
        engine._compute_group = after(engine._compute_group, list)
        for turn in range(2):
            xs, ys = text(M, turn)
            rows.clear()
            with alive:
                pipe.step(xs, target=ys)
        return rows, alive.bytes([*own(pipe), xs, ys])

    for rank, (rows, left) in enumerate(in_ranks(2, work)):
        for action, live, predicted in rows:
            assert abs(live - predicted) <= NUMBERS, (rank, action, live, predicted)
        peak = db.simulate(schedule, costs).peak_activation[rank]
        if name != "dualpipe-v":  # whose pairs free one activation before the other is whole
            assert max(live for _, live, _ in rows) == pytest.approx(peak, abs=NUMBERS)
        assert left <= NUMBERS


class Twice(nn.Module):
    """One weight before and behind an activation, whose backward W needs, too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.float64) / 3)
        self.scale = nn.Parameter(torch.ones(6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(torch.sigmoid(x) * self.scale @ self.weight)
        return torch.exp(torch.sin(first) @ self.weight)


@pytest.mark.parametrize("hooked", [False, True])
def test_what_w_needs_stays(hooked: bool) -> None:
    torch.manual_seed(0)
    module, splitter = Twice(), Splitter()
    for _ in range(3):
        x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
        seed = torch.randn(3, 6, dtype=torch.float64)
        module.zero_grad()
        module(x).backward(seed)
        wanted = [x.grad, module.weight.grad, module.scale.grad]
        module.zero_grad()
        if hooked:
            with save_on_cpu():
                output = module(x)
        else:
            output = module(x)
        (found,), rest = splitter.backward_input([output], [seed], [x])
        backward_weight(rest)
        for ours, theirs in zip(
            [found, module.weight.grad, module.scale.grad], wanted, strict=True
        ):
            torch.testing.assert_close(ours, theirs)


class Remembers(nn.Module):
    """Keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(32).double(), nn.Linear(32, 32).double()
        self.before = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(self.norm(x)) + self.before.detach().mean() * 0
        self.before = x
        return found


def test_what_a_module_keeps_stays() -> None:
    def work(rank: int) -> float:
        stages = [Remembers() for _ in range(4)]
        pipe = dt.Pipeline("zb-v", stages, functional.mse_loss, microbatches=4, split="keep")
        x, y = vectors(4, 0)
        pipe.step(x, target=y)
        return float(pipe.step(x, target=y))

    first, second = in_ranks(2, work)
    assert first == second > 0


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-v", "dualpipe", "chimera"])
def test_a_message_is_kept_until_its_peer_computed_with_it(name: str) -> None:
    plan = ExecutionPlan.of(db.make(name, ranks=4, microbatches=8))
    for rank, program in enumerate(plan.programs):
        moves = find_moves(program)
        answers = find_answers(plan, rank)
        assert max(count for _, count in answers.values()) > 0
        for place, (peer, count) in answers.items():
            other = [str(step) for step in plan.programs[peer]]
            said = other.index(str(program[place].other_end))
            sent = [move for move in moves.values() if move.sends and move.step.peer == peer]
            for move in sent[:count]:
                back, stage, unit = move.key
                takers = [f"{stage}{kind}{unit}" for kind in ("BI" if back else "F")]
                assert any(taker in other[:said] for taker in takers)
