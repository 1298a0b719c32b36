"""Our orders in torchtitan, for any placement that gives each stage to one rank.

Flags place stages as PyTorch's schedules do. A model's specification names the function that cuts
and places it, so that another one goes in its place::

    spec = dataclasses.replace(spec, pipelining_fn=debubble.torch.titan.pipelining_fn("best.csv"))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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
from debubble.torch.models.modules import reason_fused
from debubble.torch.pytorch.runtime import PyTorchRuntime
from debubble.torch.setup import split_warner

Cut: TypeAlias = Sequence[int] | Sequence[Sequence[str]] | str | Path
"""Layers or module names of every stage, or a file of ``debubble optimize --layers``."""


def pipelining_fn(
    schedule: Schedule | str | Path, cut: Cut | None = None
) -> Callable[..., tuple[PyTorchRuntime, list[nn.Module], bool, bool]]:
    """A function that pipelines a torchtitan model as a schedule says.

    It cuts the model with torchtitan's own functions and takes order and placement from `schedule`,
    in place of ``--parallelism.pipeline_parallel_schedule`` and its CSV. The other flags hold.
    Backwards of stages that are checkpointed, compiled or under ``fully_shard`` stay whole.

    Parameters
    ----------
    schedule
        A schedule, or a file with one.
    cut
        What every stage has: a number of layers, or names of modules; or the ``.modules.json`` that
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
    names = None if cut is None else _names(order, cut)

    def pipeline(
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
        from torchtitan.distributed import pipeline_parallel as theirs

        mesh = parallel_dims.get_mesh("pp")
        _check_job(order, mesh.size(), _microbatches(parallelism, training))
        parts = names or parallelism.module_fqns_per_model_part
        if parts is None:
            parts = theirs._generate_llm_fqn_per_model_part(
                order.stages,
                len(model_config.layers),
                parallelism.pipeline_parallel_first_stage_less_layers,
                parallelism.pipeline_parallel_last_stage_less_layers,
            )
        _check_parts(order, parts)
        here = sorted(order.placement.stages_on(mesh.get_local_rank()))
        stages = []
        for number in here:
            part = parallelize_fn(
                theirs._split_module(model, parts[number]),
                parallel_dims=parallel_dims,
                parallelism=parallelism,
                training=training,
                **{key: value for key, value in others.items() if key in PASSED_ON},
            )
            stages.append(
                PipelineStage(
                    part, number, order.stages, device, group=mesh.get_group("pp"),
                    get_mesh=theirs._build_get_mesh_callback(parallel_dims),
                )
            )  # fmt: skip

        def loss(*args: Any, **kwargs: Any) -> torch.Tensor:
            # Theirs comes with what is written into logs.
            found = loss_fn(*args, **kwargs)
            number: torch.Tensor = found[0] if isinstance(found, tuple) else found
            return number

        tell, whole = split_warner("auto"), []
        if has(order, SPLIT_KINDS):
            for stage in stages:
                why = reason_fused(stage.submod)
                if why:
                    tell(stage.stage_index, why)
                    whole.append(stage.stage_index)
        # Losses are sums, divided by the number of tokens.
        runtime = PyTorchRuntime(_unsplit(order, whole), stages, loss, scale_grads=False)
        modules = [stage.submod for stage in stages]
        return runtime, modules, here[0] == 0, here[-1] == order.stages - 1

    return pipeline


def _unsplit(schedule: Schedule, stages: Sequence[int]) -> Schedule:
    """The schedule with B in place of I on some stages, and without their W."""
    programs = []
    for rank in range(schedule.ranks):
        program = schedule.program(rank)
        kinds, here = kinds_of(program), np.isin(stages_of(program), stages)
        program = np.where(here & (kinds == Kind.I), as_kind(program, Kind.B), program)
        programs.append(program[~(here & (kinds == Kind.W))])
    return schedule.with_programs(programs) if stages else schedule


PASSED_ON = ("compile_config", "ac_config", "dump_folder")
"""What torchtitan hands through to the function that parallelizes a stage."""


def _names(schedule: Schedule, cut: Cut) -> list[list[str]]:
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
    """How many microbatches the job makes of a step's data; its flags have changed."""
    found: int | None = getattr(parallelism, "num_pp_microbatches", None)
    if found is not None:
        return found
    return int(training.local_batch_size // parallelism.pipeline_parallel_microbatch_size)


def _check_job(schedule: Schedule, ranks: int, microbatches: int) -> None:
    for name, own, job in (
        ("ranks", schedule.ranks, ranks),
        ("microbatches", schedule.microbatches, microbatches),
    ):
        if own != job:
            raise ParameterError(f"'{schedule.name}' has {own} {name}, and the job has {job}")
