"""The stages of a rank: found in what the user gives, and checked against schedule and ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from debubble.core.errors import ParameterError
from debubble.core.kind_relations import SPLIT_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.validate import has
from debubble.torch.models.modules import bare, is_dtensor, is_sharded, reason_fused, ties_of
from debubble.torch.ranks.process_group import Ranks

log = logging.getLogger("debubble")


def find_stages(
    stages: Any, schedule: Schedule, ranks: Ranks
) -> tuple[dict[int, nn.Module], list[list[str]]]:
    """Return the stages of a rank, and names of weights that are one object."""
    rank = ranks.rank
    here = schedule.placement.stages_on(rank)
    given = _by_number(stages, schedule, here)
    wrong = [stage for stage in here if stage not in given]
    if wrong:
        raise ParameterError(
            f"rank {rank} of '{schedule.name}' has stages {_listed(here)}, and is given "
            f"{_listed(given)}; give {_listed(wrong)}, too"
        )
    for stage, module in given.items():
        _check_module(stage, module, ranks.device)
    own = {stage: given[stage] for stage in here}
    _check_abilities(own, schedule, rank)
    _check_replicas(own, ranks)
    return own, ties_of(given)


def _check_module(stage: int, module: Any, device: torch.device) -> None:
    """Refuse what is no module, has no numbers yet, or is on another device."""
    if not isinstance(module, nn.Module):
        raise ParameterError(f"stage {stage} is {type(module).__name__}; give a torch.nn.Module")
    for name, weight in module.named_parameters():
        if weight.is_meta:
            raise ParameterError(
                f"stage {stage} has {name} on the device 'meta', without numbers; call "
                "to_empty(device=…) and give it some"
            )
        # fully_shard may keep on the host what it gathers on the device.
        if weight.device != device and not is_sharded(module):
            raise ParameterError(
                f"stage {stage} has {name} on {weight.device}, and this rank computes on {device}; "
                f"move the stage by .to('{device}'), or give device='{weight.device}'"
            )
        if is_lazy(weight):
            raise ParameterError(
                f"stage {stage} has {name} without a shape yet, as lazy modules have; call the "
                "module once before, or give it its sizes"
            )


def _check_abilities(stages: Mapping[int, nn.Module], schedule: Schedule, rank: int) -> None:
    """Refuse stages that cannot take slices, or several versions of weights, where they must."""
    for stage, module in stages.items():
        if schedule.slices > 1 and not getattr(bare(module), "slices", False):
            raise ParameterError(
                f"'{schedule.name}' cuts sequences into {schedule.slices} slices, and stage "
                f"{stage} does not take them; give it slices = True and forward(x, start, past)"
            )
    if schedule.newest_weights and schedule.iterations > 1 and max(schedule.versions) > 1:
        raise ParameterError(
            f"'{schedule.name}' runs backwards on newer weights than their forwards, which "
            "autograd refuses; use 'pipedream', which keeps those"
        )
    if schedule.stored_versions[rank] == 1:
        return
    for stage, module in stages.items():
        if bare(module) is not module or is_sharded(module):
            raise ParameterError(
                f"'{schedule.name}' keeps {schedule.versions[rank]} versions of the weights, and "
                f"stage {stage} is wrapped; give the plain module, or a schedule with one"
            )


def _check_replicas(modules: Mapping[int, nn.Module], ranks: Ranks) -> None:
    """Refuse stages that DDP or ``fully_shard`` spread over ranks with other stages."""
    ours = set(dist.get_process_group_ranks(ranks.group))
    for stage, module in modules.items():
        over = [dist.get_process_group_ranks(part.process_group) for part in module.modules()
                if isinstance(part, DistributedDataParallel)]  # fmt: skip
        over += [weight.device_mesh.mesh.flatten().tolist() for weight in module.parameters()
                 if is_dtensor(weight)]  # fmt: skip
        wrong = next(
            (sorted(ours & set(others)) for others in over if len(ours & set(others)) > 1), ()
        )
        if wrong:
            raise ParameterError(
                f"stage {stage} is replicated or sharded over ranks {_listed(wrong)}, which have "
                "other stages of this pipeline; give DistributedDataParallel or fully_shard the "
                "ranks with the same stage alone: process_group= or mesh="
            )


def _by_number(stages: Any, schedule: Schedule, here: Sequence[int]) -> dict[int, Any]:
    """Return the given stages by number, whatever form they have."""
    if hasattr(stages, "submod"):
        stages = [stages]
    if isinstance(stages, Mapping):
        wrong = [key for key in stages if not str(key).isdecimal()]
        if wrong:
            raise ParameterError(
                f"stages has the key {wrong[0]!r}; give a mapping {{stage: module}}, with numbers"
            )
        return {int(key): module for key, module in stages.items()}
    if isinstance(stages, nn.ModuleDict):
        return {int(name): stages[name] for name in stages}
    if isinstance(stages, list | tuple | nn.ModuleList | nn.Sequential):
        if len(stages) and all(hasattr(stage, "submod") for stage in stages):
            found: dict[int, Any] = {one.stage_index: one.submod for one in list[Any](stages)}
            extra = [stage for stage in found if stage not in here]
            if extra:
                raise ParameterError(
                    f"'{schedule.name}' has stages {_listed(here)} on this rank, and is given "
                    f"stages {_listed(found)}; make PipelineStages for {_listed(here)}"
                )
            return found
        if len(stages) != schedule.stages:
            raise ParameterError(
                f"stages has {len(stages)} modules for {schedule.stages} stages; give all, or a "
                f"mapping of this rank's: {{{here[0] if here else 0}: …}}"
            )
        return dict(enumerate(stages))
    if isinstance(stages, nn.Module) or not callable(stages):
        raise ParameterError(
            f"stages is {type(stages).__name__}; give a function of a stage's number, a mapping "
            "{stage: module}, or a list of all stages"
        )
    return {stage: stages(stage) for stage in here}


def _listed(stages: Iterable[int]) -> str:
    numbers = sorted(stages)
    if len(numbers) == 1:
        return str(numbers[0])
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if numbers else "none"


def find_fused(
    modules: Mapping[int, nn.Module],
    schedule: Schedule,
    split: str,
    warn: Callable[[int, str], None],
) -> dict[int, bool | None]:
    """Return by stage if I does the whole backward; None where the first forward shows it.

    Only stages whose backwards the schedule splits are there.
    """
    if not has(schedule, SPLIT_KINDS):
        return {}
    if split == "fuse":
        return dict.fromkeys(modules, True)
    reasons = {stage: reason_fused(module) for stage, module in modules.items()}
    for stage, why in reasons.items():
        if why:
            warn(stage, why)
    return {stage: True if why else None for stage, why in reasons.items()}


def split_warner(split: str) -> Callable[[int, str], None]:
    """Return a function that warns once for each stage whose backward is not split.

    With ``"keep"`` it raises ParameterError instead.
    """
    warned: set[int] = set()

    def warn(stage: int, why: str) -> None:
        if split == "keep":
            raise ParameterError(
                f"the backward of stage {stage} cannot be split into I and W: {why}; use "
                "split='fuse', or a schedule without I and W"
            )
        if stage not in warned:
            warned.add(stage)
            log.warning("I of stage %d does its whole backward, and W nothing: %s", stage, why)

    return warn
