"""Jobs of a run: its model and data, and the steps that every rank takes on copies of stages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils import _pytree as pytree

from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.interchange.cost_files import costs_data
from debubble.torch.data.batch import (
    added_losses,
    apply_weights,
    check_loss_value,
    count_rows,
    shares_of,
)
from debubble.torch.data.tree import arguments, moved_to
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.engine.vocabulary import is_cross_entropy, output_layer
from debubble.torch.models.build import build
from debubble.torch.models.modules import ties_of
from debubble.torch.pipeline import Pipeline
from debubble.torch.ranks.progress_table import Watch
from debubble.torch.ranks.world import World


class RunData:
    """A model and its microbatches under a schedule; each microbatch is asked for once.

    In another process the model is built anew, and the data are those of this one. Raises
    ParameterError when data is no pair, stages cannot be sliced, or the output layer be sharded.
    """

    def __init__(self, model: str | Callable[..., Any], schedule: Schedule) -> None:
        self._source = model, schedule.stages
        self.model = made = build(*self._source)
        if schedule.slices > 1 and not all(getattr(s, "slices", False) for s in made.stages):
            raise ParameterError(
                f"the schedule cuts sequences into {schedule.slices} slices, and the model's "
                "stages do not take them; use gpt-tiny, or give them slices = True and "
                "forward(x, start, past)"
            )
        count = schedule.microbatches * schedule.iterations
        self._data = [_pair(made.data(number), number) for number in range(count)]
        rows = [count_rows(target) or count_rows(x) or 1.0 for x, target in self._data]
        self.shares = shares_of(rows, schedule.iterations)
        """Share of every microbatch's loss in that of its iteration: its share of the rows."""
        if schedule.vocabulary:
            self._check_output(schedule.ranks)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "model"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.model = build(*self._source)

    @property
    def ties(self) -> list[list[str]]:
        """Weights that are one object in several stages, by stage and name."""
        return ties_of(dict(enumerate(self.model.stages)))

    @property
    def not_for_pytorch(self) -> str:
        """Reason why PyTorch's runtime cannot take the data, empty when it can."""
        leaves = [pytree.tree_leaves(x) for x, _ in self._data]
        if any(not isinstance(leaf, Tensor) for row in leaves for leaf in row):
            return "the first stage gets more than tensors"
        if any(not isinstance(x, Tensor | tuple | list) for x, _ in self._data):
            return "the first stage gets tensors in a mapping"
        forms = [[(leaf.shape, leaf.dtype) for leaf in row] for row in leaves]
        if any(form != forms[0] for form in forms):
            return "microbatches have different shapes"
        return ""

    def microbatch(
        self, number: int, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[tuple[Any, ...], Any]:
        """Return the arguments of the first stage, and the target."""
        x, target = self._data[number]
        moved: tuple[tuple[Any, ...], Any] = moved_to((arguments(x), target), device, dtype)
        return moved

    def microbatches(
        self, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[list[tuple[Any, ...]], list[Any]]:
        """Return the first stage's arguments and the targets of all microbatches."""
        pairs = [self.microbatch(number, device, dtype) for number in range(len(self._data))]
        return [args for args, _ in pairs], [target for _, target in pairs]

    def loss(self, modules: Sequence[Any], number: int, dtype: torch.dtype) -> Tensor:
        """Return a microbatch's loss without a pipeline, on the CPU, with auxiliary losses.

        Modules are the stages, or functions that compute as they do.
        """
        args, target = self.microbatch(number, "cpu", dtype)
        with added_losses() as added:
            output = run_stages(modules, args)
            loss = check_loss_value(self.model.loss(output, target), output)
            for more in added:
                loss = loss + more
        return loss

    def _check_output(self, ranks: int) -> None:
        """Refuse a model whose output layer cannot be cut along the vocabulary."""
        *earlier, last = self.model.stages
        name, output = output_layer(last, ranks)
        bare = copy.deepcopy(last)
        setattr(bare, name, nn.Identity())
        args, target = self.microbatch(0, "cpu", output.weight.dtype)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            state = torch.random.get_rng_state()
            logits = run_stages([*earlier, last], args)
            torch.random.set_rng_state(state)
            hidden = run_stages([*earlier, bare], args)
            if not isinstance(hidden, Tensor) or not torch.allclose(output(hidden), logits):
                raise ParameterError(
                    f"the model's last stage does not apply its output layer last; return "
                    f"self.{name}(…) from its forward"
                )
        per_token = isinstance(target, Tensor) and target.shape == logits.shape[:-1]
        per_token = per_token and not target.is_floating_point()
        if not per_token or not is_cross_entropy(output, self.model.loss):
            raise ParameterError(
                "an output layer can be sharded under the mean cross-entropy of its logits; the "
                "model has another loss"
            )


def run_stages(modules: Sequence[Any], args: tuple[Any, ...]) -> Any:
    """Return the output of stages that run one after the other."""
    value: Any = args
    for module in modules:
        value = module(*arguments(value))
    return value


def copied(modules: Mapping[int, nn.Module], device: Any, dtype: torch.dtype) -> Any:
    """Copy stages to a device and type; a weight that several of them have stays one."""
    copies = copy.deepcopy(dict(modules))
    return {number: module.to(device, dtype) for number, module in copies.items()}


def _pair(found: Any, number: int) -> tuple[Any, Any]:
    if not isinstance(found, tuple | list) or len(found) != 2:
        many = f" of {len(found)}" if isinstance(found, tuple | list) else ""
        raise ParameterError(
            f"data({number}) returned {type(found).__name__}{many}; return (input, target)"
        )
    x, target = found
    if target is None:
        raise ParameterError(f"data({number}) returned no target; return (input, target)")
    return x, target


WARM_UP = 1

RATE = 0.1
"""Learning rate of optimizer steps, which are plain stochastic gradient descent."""


@dataclass(frozen=True, eq=False)
class Job:
    """One schedule that all ranks run for some steps."""

    plan: ExecutionPlan
    data: RunData
    theirs: bool
    """If PyTorch's runtime runs it."""
    dtype: torch.dtype
    """Type of the numbers."""
    verifies: bool
    """If gradients and losses of one step are wanted; else times."""
    steps: int = 1
    """Number of timed steps, after one to warm up."""
    timeout: float = 600.0
    """Seconds that a rank waits for another; the supervisor of the run is to be faster."""

    def work(self, world: World, number: int) -> dict[str, Any]:
        """Take the steps on one rank; return its times, and gradients and losses to verify."""
        world.begin(number)
        device = torch.device(world.device)
        args, targets = self.data.microbatches(device, self.dtype)
        pipe = Stepping(self, world)
        times = []
        for step in range(self.steps if self.verifies else WARM_UP + self.steps):
            if device.type == "cuda" and step == WARM_UP:
                torch.cuda.reset_peak_memory_stats(device)
            dist.barrier()
            pipe.step(arg_mbs=args, target_mbs=targets)
            pipe.collect()
            if self.verifies or step >= WARM_UP:
                times.append(pipe.times())
        result: dict[str, Any] = {
            "times": np.array(times),
            "place": pipe.place(),
            "whole": sorted(pipe.whole.items()),
        }
        if self.verifies:
            result |= {"losses": pipe.shares, "gradients": pipe.gradients}
        else:
            result["costs"] = costs_data(pipe.costs())
            if device.type == "cuda":
                result["peak"] = torch.cuda.max_memory_allocated(device)
        return result


class Stepping(Pipeline):
    """A pipeline on copies of stages, with optimizer steps where the schedule has them."""

    def __init__(self, job: Job, world: World) -> None:
        self._job, self._world = job, world
        self._pace = job.plan.seconds.tolist()
        self._stepped = False
        """Whether the latest step had optimizer steps of its own."""
        self.gradients: dict[tuple[int, int], dict[str, NDArray[np.float64]]] = {}
        """By (iteration, stage) and name, when the job wants them. A shard of the output layer
        counts as the stage after the last."""
        self.shares: dict[int, float] = {}
        """Share of this rank's microbatches or slices in the loss of the latest step."""
        self.whole: dict[int, str] = {}
        """Reasons for which the backward of a stage is not split, by stage."""
        schedule, model = job.plan.schedule, job.data.model
        here = schedule.placement.stages_on(world.rank)
        own = {stage: model.stages[stage] for stage in here}
        super().__init__(
            schedule,
            copied(own, world.device, job.dtype),
            model.loss,
            engine="torch" if job.theirs else "debubble",
            shared=job.data.ties,
            timeout=job.timeout,
            device=world.device,
        )

    def place(self) -> dict[str, Any]:
        """Return the host, global rank, backend and device of this rank."""
        return self._ranks.place()

    def collect(self) -> None:
        """Note the gradients of a step that has no optimizer steps of its own."""
        if not self._stepped:
            self._note(0)
        self._stepped = False
        self.zero_grad()

    def times(self) -> NDArray[np.int64]:
        """Those of this rank's actions in the latest step, on the clock of rank 0."""
        times: NDArray[np.int64] = self._engine.recorder.on_clock(self._clock)[-1]
        return times

    def _find(self, schedule: Any, _: Mapping[str, Any]) -> Schedule:
        # It is checked already, or known to be wrong.
        found: Schedule = schedule
        return found

    def _optimizer_steps(self) -> Callable[[int], None]:
        return self._take_step

    def _take_step(self, iteration: int) -> None:
        self._stepped = True
        self._note(iteration)
        with torch.no_grad():
            for weight in self.parameters():
                if weight.grad is not None:
                    weight.sub_(weight.grad, alpha=RATE)
        self.zero_grad()

    def _note(self, iteration: int) -> None:
        if not self._job.verifies:
            return
        modules: dict[int, nn.Module] = dict(self.stages)
        if self._shard is not None:
            modules[self.schedule.stages] = self._shard.rows
        for stage, module in modules.items():
            self.gradients[iteration, stage] = {
                name: (torch.zeros_like(weight) if weight.grad is None else weight.grad)
                .detach().cpu().numpy()
                for name, weight in module.named_parameters()
                if weight.requires_grad or weight.grad is not None
            }  # fmt: skip

    def _mean(self, losses: Mapping[int, Tensor], weights: Sequence[float]) -> Tensor:
        shares = apply_weights(losses, weights)
        self.shares = {unit: float(loss) for unit, loss in shares.items()}
        return super()._mean(losses, weights)

    def _warn(self, stage: int, why: str) -> None:
        self.whole[stage] = why

    def _make_watch(self) -> Watch:
        return Watch(self._world.table, self._world.rank)
