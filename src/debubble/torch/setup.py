"""Schedule and options of a pipeline, checked on all ranks before the first step.

PyTorch's runtime is not loaded for that: it takes longer to load than all else after PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch

from debubble.analysis.check import check
from debubble.core.actions import among, kinds_of, pairs_of
from debubble.core.errors import ParameterError, ScheduleError, did_you_mean
from debubble.core.kinds import STEP_KINDS
from debubble.core.schedule import Schedule
from debubble.interchange import files
from debubble.interchange.named import make
from debubble.interchange.torch_csv import COMMUNICATING, refuse_inexpressible
from debubble.torch.ranks.process_group import Ranks

ENGINES = ("auto", "torch", "debubble")
SPLITS = ("auto", "keep", "fuse")
SCALES = {"mean": "mean", "sum": "sum", "tokens": "tokens", True: "mean", False: "sum"}
"""Losses whose gradients are computed: the mean over rows, the sum, or the mean over tokens."""

KEYWORDS = (
    "group", "engine", "shared", "scale_grads", "split", "timeout", "check_nan", "device", "carry",
    "microbatches", "chunks", "ranks",
)  # fmt: skip
"""Keywords of a pipeline, and the sizes that most schedules have; others have their own options."""

OLDEST = 2, 11
"""Oldest version of PyTorch whose runtime was tried."""

NEAR = 0.8
"""Similarity from which on a keyword is taken for a slip of another one."""


def check_options(
    engine: str, scale_grads: Any, split: str, loss_fn: Any, sizes: Iterable[str]
) -> None:
    """Refuse wrong options with a ParameterError that names the right ones."""
    if engine not in ENGINES:
        raise ParameterError(f"engine is {engine!r}; {did_you_mean(str(engine), ENGINES)}")
    if scale_grads not in tuple(SCALES):
        raise ParameterError(f"scale_grads is {scale_grads!r}; use 'mean', 'sum' or 'tokens'")
    if isinstance(loss_fn, type):
        # A class is called with options, not with outputs.
        name = loss_fn.__name__
        raise ParameterError(f"loss_fn is the class {name}; give an object of it, {name}()")
    if not callable(loss_fn):
        raise ParameterError(
            f"loss_fn is {loss_fn!r}; give a function of (output, target) that returns their loss"
        )
    for name in sizes:
        near = get_close_matches(name, KEYWORDS, 1, NEAR)
        if name not in KEYWORDS and near:
            raise ParameterError(f"there is no {name}=; did you mean {near[0]}=?")
    if split not in SPLITS:
        raise ParameterError(f"split is {split!r}; use 'auto', 'keep' or 'fuse'")


def find_schedule(schedule: Any, ranks: int, sizes: Mapping[str, Any], steps: bool) -> Schedule:
    """Return the schedule that an object, a file, a name, or an optimizer's result stands for.

    The `sizes` are for a name. Unless optimizer `steps` within the schedule can be run, they are
    left out. Raises ParameterError when it does not fit the ranks, ScheduleError when it is wrong.
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
    """Return a schedule of one iteration without its optimizer step, which the loop takes."""
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
    """Refuse schedules that differ from rank to rank, for instance with the files of their hosts.

    The ScheduleError names the ranks, and their hosts, whose schedule is not that of rank 0.
    """
    plain = {key: value for key, value in schedule.to_dict().items() if key != "name"}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()
    found = ranks.channel.gather((digest, socket.gethostname()))
    other = [rank for rank, (theirs, _) in enumerate(found) if theirs != found[0][0]]
    if other:
        where = ", ".join(f"rank {rank} on {found[rank][1]}" for rank in other[:4])
        raise ScheduleError(
            f"{where} {'has' if len(other) == 1 else 'have'} another sequence than rank 0 on "
            f"{found[0][1]}; give all ranks the same schedule"
        )


def check_stages_stay(old: Schedule, new: Schedule) -> None:
    """Refuse with a ParameterError a schedule with stages, or parts of them, on other ranks."""
    for what, ours, theirs in (
        ("places stages on other ranks", old.placement.table, new.placement.table),
        ("shards the output layer in another way", old.vocabulary, new.vocabulary),
    ):
        if ours != theirs:
            raise ParameterError(
                f"'{new.name}' {what} than '{old.name}'; make a new Pipeline for it"
            )


def not_for_pytorch(schedule: Schedule) -> str:
    """Return why PyTorch's runtime cannot run a schedule, empty if it can."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return (
            f"it is that of PyTorch {torch.__version__}, and {oldest} is the oldest that was tried"
        )
    if np.any(pairs_of(schedule.actions)):
        return "it overlaps forwards and backwards, which PyTorch runs one after the other"
    if np.any(np.diff(schedule.offsets) == 0):
        return "a rank has nothing to do"
    if schedule.newest_weights:
        return "its backwards take newer weights than their forwards"
    if max(schedule.versions) > 1:
        return "it keeps several versions of the weights"
    try:
        refuse_inexpressible(schedule, COMMUNICATING)
    except ParameterError as error:
        return "it " + str(error).removeprefix(f"'{schedule.name}' ").partition(";")[0]
    return ""
