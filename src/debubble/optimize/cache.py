"""Results on disk, found again by a hash of the exact problem.

An entry is JSON: a schedule file's content, its bound, and the origin of both: the budget, the
code that searched, and the solver. It answers a question only if the search that is possible now
would be no better (:meth:`Entry.answers`); other entries are where that search starts. Whatever is
read is checked like any file from outside: an invalid entry is ignored.

Entries lie in ``$XDG_CACHE_HOME/debubble/optimize``, by default below ``~/.cache``; the oldest go
when there are too many.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from debubble.core.actions import Program, among, kinds_of
from debubble.core.atomic_write import write_atomically
from debubble.core.embedding_and_head import PARTS
from debubble.core.errors import DebubbleError
from debubble.core.kinds import OFFLOAD_KINDS, WORK_KINDS
from debubble.core.schedule import Schedule
from debubble.optimize.layer_split.cutting import Cutting, cut_problem
from debubble.optimize.problem import Problem
from debubble.optimize.programs.membership import outside
from debubble.optimize.stage_choices.choices import choice_in, choice_of, with_choice

KEPT = (*WORK_KINDS, *OFFLOAD_KINDS)
"""Kinds that an order which is searched consists of."""

VERSION = 6
"""Raised when entries have other fields."""

MOST_ENTRIES = 512
HOUR = 3600.0
LARGEST_ENTRY = 32 << 20
"""Bytes; a larger result is not kept."""


@dataclass(frozen=True)
class CacheEntry:
    """A result found earlier."""

    programs: list[Program]
    bound: float
    budget: str
    """Time limit or effort, seed and workers."""
    seconds: float
    found_by: str
    solver: str = ""
    """The exact solver with its version; empty without one."""
    code: str = ""
    """Hash of the code that searched."""
    table: tuple[tuple[int, ...], ...] = ()
    """The placement's table."""
    cut: tuple[int, ...] = ()
    """Layers of every stage, where they were cut."""
    chosen: tuple[int, ...] = ()
    """Choice of every stage, see :mod:`.stage_choices.choices`; `programs` have its copies."""
    why: str = ""
    """Reason of the bound."""

    def answers(self, budget: str, solver: str) -> bool:
        """Return whether this was made with a budget, and by a solver or none.

        Without a solver an entry that was found with one is as good as any.
        """
        return self.budget == budget and self.current and solver in ("", self.solver)

    @property
    def current(self) -> bool:
        """True if the current code made it, so that its bound is the current one."""
        return self.code == code()


@cache
def code() -> str:
    """Return a hash of the code that results depend on: searches and bounds."""
    digest = hashlib.sha256()
    home = Path(__file__).parent.parent
    for package in ("optimize", "listing", "lowering", "schedules"):
        for path in sorted((home / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def folder() -> Path:
    """Return the folder of the entries."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "debubble" / "optimize"


def key(problems: Sequence[Problem], choices: Sequence[str] = ()) -> str:
    """Return a hash of everything that the best result of some problems depends on.

    `choices` names further open choices, beyond these problems.
    """
    data = [*choices, *(_data(problem) for problem in problems)]
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def _data(problem: Problem) -> list[Any]:
    table = problem.table
    numbers = [table.duration, table.activation, table.kept, table.link, problem.limits,
               table.checkpoint, table.kv, table.offload]  # fmt: skip
    if table.boundaries is not None:
        numbers.append(table.boundaries.time)
    return [
        VERSION, problem.placement.table, problem.microbatches, problem.mode, problem.backward,
        _of_layers(problem),
        problem.recompute, problem.offload,
        [table.costs.host_bandwidth, table.costs.host_link_shared_by] if problem.offload else [],
        [[*ends, table.carried(*ends), table.carried(*ends[::-1])] for ends in problem.carries],
        *([value.hex() for value in array.ravel().tolist()] for array in numbers),
    ]  # fmt: skip


def _of_layers(problem: Problem) -> Any:
    """Return the number of layers, costs of each, and of the ends."""
    if problem.layers is None:
        return 0
    layers = problem.layers
    each = {name: [x.hex() for x in values] for name, values in sorted(layers.each.items())}
    ends = [sorted((getattr(layers.costs, name) or {}).items()) for name in PARTS]
    held = [x.hex() for x in layers.held]
    parts = [sorted(layers.parts.get(name, {}).items()) for name in PARTS]
    return [layers.count, each, ends, held, parts]


def read_entry(problems: Sequence[Problem], choices: Sequence[str] = ()) -> CacheEntry | None:
    """Return the entry of some problems; None when there is none that is right."""
    from debubble.analysis.check import check
    from debubble.interchange.schedule_json import from_json

    path = folder() / f"{key(problems, choices)}.json"
    try:
        if path.stat().st_size > LARGEST_ENTRY:
            return None
        data = json.loads(path.read_text(encoding="utf-8"))
        schedule = from_json(json.dumps(data["schedule"]), str(path))
        programs = [schedule.program(rank) for rank in range(schedule.ranks)]
        chosen = choice_in(schedule)
        entry = CacheEntry(
            [program[among(kinds_of(program), KEPT)] for program in programs],
            float(data["bound"]), str(data["budget"]), float(data["seconds"]),
            str(data["found_by"]), str(data["solver"]), str(data["code"]),
            schedule.placement.table, tuple(int(count) for count in data["layers"]), chosen,
            str(data["why"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not math.isfinite(entry.bound):
        return None
    for root in problems:
        problem = _as_cut(root, entry.cut)
        if (
            problem is not None
            and schedule.placement.table == problem.placement.table
            and (schedule.microbatches, schedule.iterations, schedule.slices)
            == (problem.microbatches, 1, 1)
            and (
                choices or all(a | b == b for a, b in zip(chosen, choice_of(problem), strict=True))
            )
            and check(schedule, p2p_mode=problem.mode).ok
            and not outside(with_choice(problem, chosen), schedule)
            and problem.fits(schedule)
        ):
            return entry
    return None


def _as_cut(problem: Problem, cut: tuple[int, ...]) -> Problem | None:
    """Return the problem with stages of these layers; None where they are not its layers."""
    if problem.layers is None:
        return None if cut else problem
    if len(cut) != problem.stages or sum(cut) != problem.layers.count:
        return None
    if any(count < least for count, least in zip(cut, Cutting(problem).least, strict=True)):
        return None
    return cut_problem(problem, cut)


def write_entry(
    problems: Sequence[Problem], schedule: Schedule, entry: CacheEntry, choices: Sequence[str] = ()
) -> None:
    """Keep a result; a folder that cannot be written to is no error."""
    data = {
        "bound": entry.bound, "budget": entry.budget, "seconds": entry.seconds,
        "found_by": entry.found_by, "solver": entry.solver, "code": code(),
        "layers": entry.cut, "why": entry.why, "schedule": schedule.to_dict(),
    }  # fmt: skip
    text = json.dumps(data)
    if len(text) > LARGEST_ENTRY:
        return
    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / f"{key(problems, choices)}.json", text.encode())
        known = sorted(place.glob("*.json"), key=lambda path: path.stat().st_mtime)
        # A process that was killed while it wrote left a part of an entry.
        old = time.time() - HOUR
        parts = [path for path in place.glob(".*.part") if path.stat().st_mtime < old]
        for path in (*known[:-MOST_ENTRIES], *parts):
            path.unlink()
    except (OSError, DebubbleError):
        return
