"""Measured times and bytes of a model's stages, each alone, one after the other, in one process.

A stage runs as in a pipeline: its input is the output of the stage before, its own compilation,
checkpointing and hooks are part of it, and the caller's autocast holds. F and B, then F, I and W
are timed over and over, and quartiles are kept. Tensors that autograd saves, and FLOPs, are counted
in runs of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.units import rough_percent, whole_number
from debubble.interchange.cost_files import parse_costs, save_costs
from debubble.torch.autograd.saved_tensors import SavedTensors, storages
from debubble.torch.data.batch import check_loss_value, take_metrics
from debubble.torch.data.tree import arguments, differentiable, mapped, moved_to, tensors_of
from debubble.torch.measure.single_stage import Flops, SingleStage, Stopwatch, layer_parts
from debubble.torch.measure.stage_measures import (
    Quartiles,
    StageMeasures,
    cost_data,
    measures_table,
)
from debubble.torch.models.modules import (
    CHECKPOINTED,
    HOOKED,
    custom_function,
    reason_fused,
    restored,
    saving_seen,
)

STEPS, WARM_UP = 20, 3

TWICE = 1.05
"""FLOPs of I and W as multiples of B's from which on they do some work twice."""

SLOW = 1.15
"""Time of I and W as multiples of B's from which on splitting has a price."""


@dataclass(frozen=True)
class Profile:
    """Measures of every stage.

    Parameters
    ----------
    stages
        In forward order.
    source
        Machine and way of the measurement.
    """

    stages: tuple[StageMeasures, ...]
    source: str

    def data(self, **labels: Any) -> dict[str, Any]:
        """Return the data of a cost file, with labels as ``name`` and sizes as ``ranks``."""
        return cost_data(self.stages, **{"source": self.source} | labels)

    def __str__(self) -> str:
        """Return a table of the stages, and the gain of splitting the backward on each."""
        return measures_table(self.stages)

    def save(self, path: str, **labels: Any) -> None:
        """Write a cost file, which ``debubble simulate``, ``compare`` and others take."""
        save_costs(self.data(**labels), path)

    @property
    def costs(self) -> Costs:
        """Times in milliseconds, memory in bytes, one number per stage."""
        return parse_costs(json.dumps(self.data()), "profile.json").costs


def profile(
    stages: Sequence[nn.Module],
    loss_fn: Callable[[Any, Any], Tensor],
    x: Any,
    y: Any,
    *,
    steps: int = STEPS,
    device: torch.device | str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    layers: bool = True,
    report: Callable[[str], None] | None = None,
) -> Profile:
    """Measure time and memory of stages, one after the other in this process.

    Parameters
    ----------
    stages
        Modules in forward order. Gradients, buffers and random state are afterwards as before.
    loss_fn
        Mean loss of (output of the last stage, target).
    x, y
        Input and target of one microbatch. A tuple or list, here or returned by a stage, becomes
        positional arguments, anything else one argument.
    steps
        Number of measurements, after some to warm up.
    device
        Device that every stage is moved to for its turn; the default is that of its parameters.
    kwargs
        Keyword arguments that every stage gets.
    layers
        If the layers of stages that are lists of layers are measured, too.
    report
        Called with a line about the next measurement.

    Returns
    -------
    Profile
        Quartiles of times, bytes, and the gain of splitting the backward, for every stage.

    Raises
    ------
    ParameterError
        When a stage is no module, or the loss no single number.
    """
    _check(stages, steps)
    found = []
    value = x
    for number, module in enumerate(stages):
        last = number == len(stages) - 1
        home = next((p.device for p in module.parameters()), None)
        place = torch.device(device) if device is not None else home or torch.device("cpu")
        if report is not None:
            report(f"measuring stage {number} of {len(stages)}")
        with restored([module], place), ExitStack() as stack:
            if device is not None and home is not None:
                module.to(place)
                stack.callback(module.to, home)
            parts = (arguments(value), dict(kwargs or {}), y)
            args, given, target = moved_to(parts, place)
            if number:
                args = mapped(args, lambda t: t.detach().requires_grad_(differentiable(t)))
            loss = _loss(loss_fn, target) if last else None
            part = SingleStage(module, args, given, loss)
            measures = _measure(part, steps, place)
            if layers and "compiled" not in measures.fused:
                inner = tuple(
                    _measure(one, steps, place, measures.fused) for one in layer_parts(part)
                )
                measures = replace(measures, layers=inner)
            found.append(measures)
            value = mapped(part.forward().result, Tensor.detach)
    where = torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"
    source = f"debubble profile: medians of {steps} steps on {where}, torch {torch.__version__}"
    return Profile(tuple(found), source)


def _measure(
    part: SingleStage, steps: int, device: torch.device, fused: str | None = None
) -> StageMeasures:
    """Measure a stage, or a layer of one; layers are `fused` for the reason of their stage."""
    if fused is None:
        fused = reason_fused(part.module) or _fused(part)
    flops = _flops(part) if fused in ("", CHECKPOINTED) else {}
    fused = _with_flops(fused, flops)
    times = _times(part, steps, device, not fused)
    measures = StageMeasures(
        times, fused=fused, peak=_peak(part, device), **_bytes(part, not fused)
    )
    whole = not fused and not part.forward(split=True).inputs
    return replace(measures, split=NO_INPUTS if whole else _verdict(times, flops, fused))


def _fused(part: SingleStage) -> str:
    """Return why the backward is one piece, by a forward and a try; empty if it can be split."""
    with saving_seen() as seen:
        done = part.forward(split=True)
    custom = custom_function(done.roots)
    if custom:
        return f"the autograd.Function {custom} computes all its gradients whenever it runs"
    gradients = done.gradients()
    try:
        done.backward_input(gradients)
        trains = done.left
        done.backward_weight()
    except RuntimeError as error:
        return f"autograd says: {str(error).partition('. ')[0].splitlines()[0]}"
    if seen:
        return HOOKED if HOOKED in seen else CHECKPOINTED
    return "" if trains else "it has no weights to train"


def _with_flops(fused: str, flops: Mapping[str, int]) -> str:
    """Return why the backward is one piece, also for work that I and W would do twice."""
    if not flops.get("B"):
        return fused
    ratio = (flops["I"] + flops["W"]) / flops["B"]
    if ratio <= TWICE:
        return fused
    words = f"{ratio:.2f} times the FLOPs of B"
    return f"{fused}, {words}" if fused else f"they do {words}"


NO_INPUTS = "W does the whole backward, and I nothing: its input wants no gradient"


def _verdict(times: Mapping[str, Quartiles], flops: Mapping[str, int], fused: str) -> str:
    """Return the gain of splitting the backward, in words."""
    if fused:
        return f"I and W do not pay apart: {fused}"
    whole, parts = times["B"].median, times["I"].median + times["W"].median
    share = f"W is {rough_percent(times['W'].median / parts)} of them" if parts else "nothing to do"
    ratio = parts / whole if whole else 1.0
    done = f"I and W do {(flops['I'] + flops['W']) / flops['B']:.2f} of B's FLOPs, and" if (
        flops.get("B")) else "I and W"  # fmt: skip
    if ratio > SLOW:
        return f"splitting has a price: {done} take {ratio:.2f} of its time; {share}"
    return f"splitting pays: {done} take {ratio:.2f} of its time; {share}"


def _times(
    part: SingleStage, steps: int, device: torch.device, split: bool
) -> dict[str, Quartiles]:
    watch = Stopwatch(device)
    gradients = part.forward().gradients()
    samples = []
    for _ in range(WARM_UP + steps):
        _run_passes(part, gradients, watch.mark, split)
        samples.append(watch.read())
    kinds = zip(("F", "B", "", "I", "W"), zip(*samples[WARM_UP:], strict=True), strict=False)
    return {kind: Quartiles.of(times) for kind, times in kinds if kind}


def _run_passes(
    part: SingleStage,
    gradients: Sequence[Tensor],
    mark: Callable[[], None],
    split: bool,
    inputs: bool = False,
) -> None:
    """Run F and B, and to `split` them another F, I and W, with marks around each.

    The first F prepares gradients of `inputs` where the stage needs none, as the second does.
    """
    mark()
    done = part.forward(split=inputs)
    mark()
    done.backward(gradients)
    mark()
    if split:
        done = part.forward(split=True)
        mark()
        done.backward_input(gradients)
        mark()
        done.backward_weight()
        mark()


def _flops(part: SingleStage) -> dict[str, int]:
    """Return the FLOPs of B, I and W; B computes the gradients of inputs, too."""
    gradients = part.forward(split=True).gradients()
    marks: list[int] = []
    with Flops() as counter:
        _run_passes(part, gradients, lambda: marks.append(counter.total), True, inputs=True)
    _, B, _, I, W = (end - start for start, end in pairwise(marks))
    return {"B": B, "I": I, "W": W}


def _bytes(part: SingleStage, split: bool) -> dict[str, Any]:
    """Return the bytes of one further microbatch: tensors that two of them share do not count."""
    saved = SavedTensors([*part.module.parameters(), *part.module.buffers()])
    with saved.watch():
        before = part.forward(split=split, own=True)
        saved.share(before.args)
        done = part.forward(split=split, own=True)
    sizes = {
        "saved": saved.bytes(done.args),
        "inputs": sum(storages(done.args).values()),
        "weights": sum(storages(part.module.parameters()).values()),
        "gradients": sum(storages(p.grad for p in part.module.parameters()
                                  if p.grad is not None).values()),
    }  # fmt: skip
    if part.loss is None:
        sizes["message"] = sum(t.numel() * t.element_size() for t in tensors_of(done.result))
    gradients = done.gradients()
    if split:
        done.backward_input(gradients)
        del gradients
        sizes["kept_for_weight"] = saved.bytes([*done.kept, *done.inputs])
    return sizes


def _peak(part: SingleStage, device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    done = part.forward(own=True)
    done.backward(done.gradients())
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _check(stages: Sequence[nn.Module], steps: int) -> None:
    whole_number("steps", steps)
    if isinstance(stages, nn.Module) and not isinstance(stages, nn.ModuleList | nn.Sequential):
        raise ParameterError("stages is one module; give a list with one per stage")
    if not len(stages):
        raise ParameterError("stages is empty; give a list with one module per stage")
    for number, stage in enumerate(stages):
        if not isinstance(stage, nn.Module):
            raise ParameterError(
                f"stage {number} is {type(stage).__name__}; give a torch.nn.Module"
            )


def _loss(loss_fn: Callable[[Any, Any], Tensor], target: Any) -> Callable[[Any], Tensor]:
    def loss(output: Any) -> Tensor:
        return check_loss_value(take_metrics(loss_fn(output, target), 0, None), output)

    return loss
