"""What is said before the first step: whether orders are equal, and stages on their ranks."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from debubble.analysis.check import check
from debubble.core.actions import among, kinds_of
from debubble.core.errors import DebubbleError, ParameterError, ScheduleError
from debubble.core.kind_relations import SPLIT_KINDS
from debubble.core.kinds import STEP_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.validate import has
from debubble.interchange import files
from debubble.interchange.named import make
from debubble.torch.errors import RunError
from debubble.torch.models.modules import bare, reason_fused, ties_of
from debubble.torch.models.sharded import is_dtensor, is_sharded
from debubble.torch.ranks.process_group import Ranks
from debubble.torch.ranks.watch import reason

log = logging.getLogger("debubble")

Found = TypeVar("Found")

SPLITS = ("auto", "keep", "fuse")


@dataclass(frozen=True, eq=False)
class EngineSetup:
    """What an engine is made of."""

    ranks: Ranks
    """The ranks."""
    schedule: Schedule
    """What is run."""
    modules: Mapping[int, nn.Module]
    """This rank's stages, by number; with their own parameters."""
    loss_fn: Callable[[Any, Any], Tensor]
    """Mean loss of (output of the last stage, target)."""
    fuses: Mapping[int, bool | None] = field(default_factory=dict)
    """By stage, whether I does the whole backward and W nothing; None where that is decided at the
    first forward. Only stages whose backwards are split are here."""
    tell: Callable[[int, str], None] = lambda *_: None
    """Is told why the backward of a stage is not split, once."""


def find_schedule(schedule: Any, ranks: int, sizes: Mapping[str, Any], steps: bool) -> Schedule:
    """The schedule that is meant: an object, a file, a name with sizes, or an optimizer's result.

    `steps` says whether optimizer steps within it can be run.

    Raises
    ------
    ParameterError
        When it does not fit the ranks.
    ScheduleError
        When it is wrong.
    """
    found = getattr(schedule, "schedule", schedule)
    if isinstance(found, str | os.PathLike):
        name = os.fspath(found)
        if files.is_file_name(name) and not sizes:
            found = files.load(name)
        elif "microbatches" not in sizes:
            raise ParameterError(
                f"how many microbatches has '{name}'? give microbatches={2 * ranks}, for instance"
            )
        else:
            found = make(name, **{"ranks": ranks, **sizes})
    elif sizes:
        raise ParameterError(f"{next(iter(sizes))}= goes with the name of a schedule alone")
    if not isinstance(found, Schedule):
        what = schedule.__name__ if isinstance(schedule, type) else repr(schedule)
        raise ParameterError(
            f"schedule is {what}; give a name, a file or a debubble.Schedule; PyTorch's are "
            "'torch:GPipe', 'torch:1F1B', …"
        )
    if found.ranks != ranks:
        raise ParameterError(
            f"'{found.name}' has {found.ranks} ranks and the process group {ranks}; start "
            f"{found.ranks} processes, give group=, or make the schedule for {ranks} ranks"
        )
    if not steps:
        found = _without_steps(found)
    report = check(found)
    if not report:
        problem = report.problems[0]
        raise ScheduleError(f"'{found.name}' cannot run: {problem.message}; {problem.fix}")
    return found


def _without_steps(schedule: Schedule) -> Schedule:
    """The schedule of one iteration, whose optimizer step is the training loop's."""
    if schedule.iterations > 1:
        raise ParameterError(
            f"'{schedule.name}' has {schedule.iterations} iterations with optimizer steps between; "
            "in a training loop a step is one iteration: make it with iterations=1"
        )
    steps = among(kinds_of(schedule.actions), STEP_KINDS)
    if not steps.any():
        return schedule
    gone = np.concatenate([[0], np.cumsum(steps)])[schedule.offsets]
    return replace(schedule, actions=schedule.actions[~steps], offsets=schedule.offsets - gone)


def compare_schedules(schedule: Schedule, ranks: Ranks) -> None:
    """Refuse orders that differ from rank to rank, for instance with the files of their hosts.

    The ScheduleError names the ranks, and their hosts, that have another one than rank 0.
    """
    plain = {key: value for key, value in schedule.to_dict().items() if key != "name"}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()
    found = ranks.channel.gather((digest, socket.gethostname()))
    other = [rank for rank, (theirs, _) in enumerate(found) if theirs != found[0][0]]
    if other:
        where = ", ".join(f"rank {rank} on {found[rank][1]}" for rank in other[:4])
        raise ScheduleError(
            f"{where} {'has' if len(other) == 1 else 'have'} another order than rank 0 on "
            f"{found[0][1]}; give all ranks the same schedule"
        )


def on_all_ranks(ranks: Ranks, work: Callable[[], Found]) -> Found:
    """Do something on all ranks; where one cannot, all say so, and none waits for it.

    Raises ParameterError on ranks that could, with what another one said.
    """
    try:
        found = work()
    except Exception as error:
        ranks.channel.gather(reason(error))
        raise
    for rank, words in enumerate(ranks.channel.gather("")):
        if words:
            raise ParameterError(f"rank {rank} cannot begin: {words}")
    return found


@contextmanager
def rendezvous(timeout: float) -> Iterator[None]:
    """Say with a RunError in place of a connection's own words that not all ranks are there."""
    try:
        yield
    except RuntimeError as error:
        words = str(error)
        if isinstance(error, DebubbleError) or not ("gloo" in words or "imeout" in words
                or "imed out" in words):  # fmt: skip
            raise
        late = "imeout" in words or "imed out" in words
        found = f"did not come within {timeout:g} s" if late else "failed, or ended"
        raise RunError(
            f"another rank {found} while this one made a Pipeline; its own output says why; all "
            "ranks of the group make it together, and timeout= waits longer"
        ) from None


def check_stages_stay(old: Schedule, new: Schedule) -> None:
    """Refuse with a ParameterError an order that would have stages, or parts, on other ranks."""
    for what, ours, theirs in (
        ("places stages on other ranks", old.placement.table, new.placement.table),
        ("shards the output layer in another way", old.vocabulary, new.vocabulary),
    ):
        if ours != theirs:
            raise ParameterError(
                f"'{new.name}' {what} than '{old.name}'; make a new Pipeline for it"
            )


def find_modules(
    stages: Any, schedule: Schedule, rank: int, device: torch.device
) -> tuple[dict[int, nn.Module], list[list[str]]]:
    """The stages of a rank, and names of weights that are one and the same in several stages.

    Raises ParameterError when stages are missing, are not modules, or are elsewhere; with those
    that belong here.
    """
    here = schedule.placement.stages_on(rank)
    given = _by_number(stages, schedule, here)
    wrong = [stage for stage in here if stage not in given]
    if wrong:
        raise ParameterError(
            f"rank {rank} of '{schedule.name}' has stages {_listed(here)}, and is given "
            f"{_listed(given)}; give {_listed(wrong)}, too"
        )
    for stage, module in given.items():
        if not isinstance(module, nn.Module):
            raise ParameterError(
                f"stage {stage} is {type(module).__name__}; give a torch.nn.Module"
            )
        lazy = next((name for name, weight in module.named_parameters() if is_lazy(weight)), "")
        meta = next((name for name, weight in module.named_parameters() if weight.is_meta), "")
        if meta:
            raise ParameterError(
                f"stage {stage} has {meta} on the device 'meta', without numbers; call "
                "to_empty(device=…) and give it some"
            )
        _on_device(stage, module, device)
        if lazy:
            raise ParameterError(
                f"stage {stage} has {lazy} without a shape yet, as lazy modules have; call the "
                "module once before, or give it its sizes"
            )
    if schedule.slices > 1:
        for stage in here:
            if not getattr(bare(given[stage]), "slices", False):
                raise ParameterError(
                    f"'{schedule.name}' cuts sequences into {schedule.slices} slices, and stage "
                    f"{stage} does not take them; give it slices = True and "
                    "forward(x, start, past)"
                )
    if schedule.newest_weights and schedule.iterations > 1 and max(schedule.versions) > 1:
        raise ParameterError(
            f"'{schedule.name}' runs backwards on newer weights than their forwards, which "
            "autograd refuses; use 'pipedream', which keeps those"
        )
    if schedule.stored_versions[rank] > 1:
        wrapped = [stage for stage in here if bare(given[stage]) is not given[stage]
                   or is_sharded(given[stage])]  # fmt: skip
        if wrapped:
            raise ParameterError(
                f"'{schedule.name}' keeps {schedule.versions[rank]} versions of the weights, and "
                f"stage {wrapped[0]} is wrapped; give the plain module, or a schedule with one"
            )
    return {stage: given[stage] for stage in here}, ties_of(given)


def check_replicas(modules: Mapping[int, nn.Module], ranks: Ranks) -> None:
    """Refuse stages that are replicated or sharded over ranks with other stages.

    It is a ParameterError when DDP's group, or the mesh of weights, has several of the pipeline.
    """
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


def _on_device(stage: int, module: nn.Module, device: torch.device) -> None:
    if is_sharded(module):  # it may keep on the host what it gathers on the device
        return
    for name, weight in module.named_parameters():
        if weight.device != device:
            raise ParameterError(
                f"stage {stage} has {name} on {weight.device}, and this rank computes on {device}; "
                f"move the stage by .to('{device}'), or give device='{weight.device}'"
            )


def _by_number(stages: Any, schedule: Schedule, here: Sequence[int]) -> dict[int, Any]:
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


def tied_by_config(modules: Mapping[int, nn.Module]) -> str:
    """A stage whose configuration says that embedding and head are one weight; empty for none."""
    for stage, module in modules.items():
        for part in module.modules():
            if getattr(getattr(part, "config", None), "tie_word_embeddings", False) is True:
                return f"stage {stage} ({type(part).__name__})"
    return ""


def find_fused(
    modules: Mapping[int, nn.Module],
    schedule: Schedule,
    split: str,
    tell: Callable[[int, str], None],
) -> dict[int, bool | None]:
    """By stage with split backwards, whether I does all of it; None where a forward will show."""
    found: dict[int, bool | None] = {}
    if not has(schedule, SPLIT_KINDS):
        return found
    for stage, module in modules.items():
        why = "" if split == "fuse" else reason_fused(module)
        if why:
            tell(stage, why)
        found[stage] = True if why or split == "fuse" else None
    return found


def split_warner(split: str) -> Callable[[int, str], None]:
    """Warns once for each stage whose backward is not split, and why; ``"keep"`` refuses these.

    Raises ParameterError when there is no such way to split; in its calls, when a backward is to
    stay split.
    """
    if split not in SPLITS:
        raise ParameterError(f"split is {split!r}; use 'auto', 'keep' or 'fuse'")
    told: set[int] = set()

    def tell(stage: int, why: str) -> None:
        if split == "keep":
            raise ParameterError(
                f"the backward of stage {stage} cannot be split into I and W: {why}; use "
                "split='fuse', or a schedule without I and W"
            )
        if stage not in told:
            told.add(stage)
            log.warning("I of stage %d does its whole backward, and W nothing: %s", stage, why)

    return tell
