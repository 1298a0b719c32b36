"""Our schedules in torchtitan, for any placement that gives each stage to one rank.

Flags place stages as PyTorch's schedules do. A model's specification names the function that cuts
and places it, so that another one goes in its place::

    spec = dataclasses.replace(spec, pipelining_fn=debubble.torch.titan.pipelining_fn("best.csv"))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage

from debubble.core.actions import Kind, kinds_of, stages_of
from debubble.core.errors import FormatError, ParameterError
from debubble.core.kind_relations import SPLIT_KINDS
from debubble.core.schedule import Schedule
from debubble.core.sequence import as_kind
from debubble.engine.validate import has
from debubble.interchange.files import load
from debubble.interchange.layouts import TORCHTITAN, check_cut
from debubble.interchange.torch_csv import COMMUNICATING, refuse_inexpressible
from debubble.torch.models.find_stages import split_warner
from debubble.torch.models.modules import reason_fused
from debubble.torch.pytorch.runtime import PyTorchRuntime

Cut: TypeAlias = Sequence[int] | Sequence[Sequence[str]] | str | Path
"""Layers or module names of every stage, or a file of ``debubble optimize --layers``."""


def pipelining_fn(
    schedule: Schedule | str | Path, cut: Cut | None = None
) -> Callable[..., tuple[PyTorchRuntime, list[nn.Module], bool, bool]]:
    """Return a function that pipelines a torchtitan model by a schedule.

    It cuts the model with torchtitan's own functions and takes order and placement from `schedule`,
    in place of ``--parallelism.pipeline_parallel_schedule`` and its CSV. The other flags hold.
    Backwards of stages that are checkpointed, compiled or under ``fully_shard`` stay whole.

    Parameters
    ----------
    schedule
        A schedule, or a file with one.
    cut
        A number of layers, or names of modules, for every stage; or the ``.modules.json`` that
        ``debubble optimize --layers`` writes. The default is torchtitan's
        ``module_fqns_per_model_part``, or else its even cut.

    Returns
    -------
    callable
        For ``ModelSpec.pipelining_fn``.

    Raises
    ------
    ParameterError
        When the schedule cannot run on PyTorch's runtime, the cut is not one of its stages, or the
        job's ranks or microbatches are not the schedule's; the last two when it is called.
    """
    order = schedule if isinstance(schedule, Schedule) else load(schedule)
    refuse_inexpressible(order, COMMUNICATING)
    return partial(_pipeline, order, None if cut is None else _module_names(order, cut))


def _pipeline(
    order: Schedule,
    names: list[list[str]] | None,
    model: nn.Module,
    *,
    parallel_dims: Any,
    parallelism: Any,
    training: Any,
    device: torch.device,
    model_config: Any,
    parallelize_fn: Callable[..., nn.Module],
    loss_fn: Callable[..., Any],
    **others: Any,
) -> tuple[PyTorchRuntime, list[nn.Module], bool, bool]:
    """Cut a model, place its stages, and make their runtime; torchtitan calls it."""
    from torchtitan.distributed import pipeline_parallel as theirs

    mesh = parallel_dims.get_mesh("pp")
    for name, own, job in (
        ("ranks", order.ranks, mesh.size()),
        ("microbatches", order.microbatches, _microbatches(parallelism, training)),
    ):
        if own != job:
            raise ParameterError(f"'{order.name}' has {own} {name}, and the job has {job}")
    parts = names or parallelism.module_fqns_per_model_part
    if parts is None:
        parts = theirs._generate_llm_fqn_per_model_part(
            order.stages,
            len(model_config.layers),
            parallelism.pipeline_parallel_first_stage_less_layers,
            parallelism.pipeline_parallel_last_stage_less_layers,
        )
    _check_parts(order, parts)
    options = {key: value for key, value in others.items() if key in PASSED_ON}
    options |= {
        "parallel_dims": parallel_dims, "parallelism": parallelism, "training": training,
    }  # fmt: skip
    here = sorted(order.placement.stages_on(mesh.get_local_rank()))
    stages = [
        PipelineStage(
            parallelize_fn(theirs._split_module(model, parts[number]), **options),
            number, order.stages, device, group=mesh.get_group("pp"),
            get_mesh=theirs._build_get_mesh_callback(parallel_dims),
        )
        for number in here
    ]  # fmt: skip

    def loss(*args: Any, **kwargs: Any) -> torch.Tensor:
        # torchtitan's loss functions may also return values for its logs.
        found = loss_fn(*args, **kwargs)
        number: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return number

    # Losses are sums, divided by the number of tokens.
    runtime = PyTorchRuntime(_fuse(order, stages), stages, loss, scale_grads=False)
    modules = [stage.submod for stage in stages]
    return runtime, modules, here[0] == 0, here[-1] == order.stages - 1


def _fuse(schedule: Schedule, stages: Sequence[PipelineStage]) -> Schedule:
    """Return the schedule with B for I and W on stages whose backward cannot be split."""
    if not has(schedule, SPLIT_KINDS):
        return schedule
    warn, whole = split_warner("auto"), []
    for stage in stages:
        why = reason_fused(stage.submod)
        if why:
            warn(stage.stage_index, why)
            whole.append(stage.stage_index)
    programs = []
    for rank in range(schedule.ranks):
        program = schedule.program(rank)
        kinds, here = kinds_of(program), np.isin(stages_of(program), whole)
        program = np.where(here & (kinds == Kind.I), as_kind(program, Kind.B), program)
        programs.append(program[~(here & (kinds == Kind.W))])
    return schedule.with_programs(programs) if whole else schedule


PASSED_ON = ("compile_config", "ac_config", "dump_folder")
"""Options of torchtitan for the function that parallelizes a stage."""


def _module_names(schedule: Schedule, cut: Cut) -> list[list[str]]:
    """Return the names of every stage's modules."""
    parts: Any = cut
    if isinstance(cut, str | Path):
        try:
            parts = json.loads(Path(cut).read_text(encoding="utf-8"))["torchtitan"]
            if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
                raise TypeError("a list of names for every stage is wanted")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError(
                f"{cut}: no modules of torchtitan ({error}); debubble optimize --layers 32 "
                "-o x.csv writes x.modules.json"
            ) from None
    if all(isinstance(part, int) for part in parts):
        check_cut(schedule, parts)
        return TORCHTITAN.of(parts)
    _check_parts(schedule, parts)
    return [list(part) for part in parts]


def _check_parts(schedule: Schedule, parts: Sequence[Sequence[str]]) -> None:
    if len(parts) != schedule.stages:
        raise ParameterError(
            f"the model is cut into {len(parts)} parts; '{schedule.name}' has {schedule.stages} "
            "stages"
        )


def _microbatches(parallelism: Any, training: Any) -> int:
    """Return the job's number of microbatches; versions of torchtitan name its flag differently."""
    found: int | None = getattr(parallelism, "num_pp_microbatches", None)
    if found is not None:
        return found
    return int(training.local_batch_size // parallelism.pipeline_parallel_microbatch_size)
