"""Register schedules, look them up, make them.

A schedule is a function that yields one program per rank. Its keyword parameters say what it
needs: ``ranks``, ``microbatches``, ``chunks``, ``iterations``, ``costs``, ``memory``, and options
of its own with defaults; an option ``slices`` cuts microbatches into that many. The decorator adds
what people want to know about it, and from then on it is in the command line, the documentation
and the tests.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np

from debubble.core.actions import MICROBATCH_SHIFT, Kind, Program, pack
from debubble.core.costs import Costs, check_costs
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.options import LIMITS
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.engine.memory import Limit, beside_static, memory_limits
from debubble.engine.modes import P2PMode, check_mode
from debubble.schedules._entry import (
    OPTIONS,
    ClosedForm,
    Constraint,
    Entry,
    Option,
    bubble_is,
    check_constraints,
    check_count,
    described_parameters,
    makespan_is,
    nearest,
    peak_is,
    stage_time_is,
)

__all__ = [
    "LIMITS", "ClosedForm", "Constraint", "Entry", "Option", "bubble_is", "check_constraints",
    "check_count", "entries", "find", "make", "makespan_is", "nearest", "optimizer_step",
    "peak_is", "register", "schedules", "stage_time_is",
]  # fmt: skip

COMMON = ("ranks", "microbatches", "chunks", "iterations", "costs", "memory", "storage")
MAX_ACTIONS = 200_000_000
NO_FAMILIES = frozenset({"registry", "formula", "forms", "sources"})
"""Modules of the package that register nothing."""

_ENTRIES: dict[str, Entry] = {}
_ALIASES: dict[str, str] = {}


def register(
    name: str,
    *,
    title: str,
    year: int,
    source: str,
    placement: Callable[[int, int], Placement] = Placement.loop,
    chunks: int | None = None,
    default_chunks: int = 1,
    aliases: tuple[str, ...] = (),
    constraints: tuple[Constraint, ...] = (),
    forms: tuple[ClosedForm, ...] = (),
    weight_versions: int | Callable[[Any], Sequence[int]] = 1,
    copies_activations: bool = False,
    **fields: Any,
) -> Callable[[Callable[..., Iterable[Program]]], Callable[..., Iterable[Program]]]:
    """Make a function a schedule that everything else can find.

    Parameters
    ----------
    name, aliases
        Name: lower case with hyphens.
    title, year, source
        One line about it, when it was published, and where (paper or repository); ``@key`` in the
        source stands for a record of :data:`debubble.schedules.sources.SOURCES`.
    placement
        Function of (ranks, chunks); the default is a loop.
    chunks
        The number of chunks when there is no choice; None when there is.
    default_chunks
        Default where there is a choice.
    constraints, forms
        Constraints on its parameters, and its closed forms.
    weight_versions
        Versions of the weights its training rule keeps at the same time; a function of the case
        when every rank keeps its own number.
    copies_activations
        Whether it moves activations to the host or another rank.
    **fields
        Further fields of :class:`debubble.core.schedule.Schedule`, for instance ``sync="local"``; a
        function is called with the case, the namespace of all parameters.

    Examples
    --------
    >>> import debubble as db
    >>> from debubble.core.sequence import backward, forward, sequence
    >>> @db.register("one-by-one", title="No overlap at all", year=2026, source="me", chunks=1)
    ... def one_by_one(*, ranks, microbatches):
    ...     from debubble.core.sequence import alternate
    ...     for rank in range(ranks):
    ...         numbers = range(microbatches)
    ...         yield alternate(forward(rank, numbers), backward(rank, numbers))
    >>> db.simulate(db.make("one-by-one", ranks=2, microbatches=3)).makespan
    18.0
    """

    def wrap(order: Callable[..., Iterable[Program]]) -> Callable[..., Iterable[Program]]:
        texts = OPTIONS | described_parameters(inspect.getdoc(order) or "")
        options = tuple(
            Option(
                parameter.name, str(parameter.annotation), parameter.default,
                texts.get(parameter.name, ""),
            )
            for parameter in inspect.signature(order).parameters.values()
            if parameter.name not in COMMON
        )  # fmt: skip
        entry = Entry(
            name, order, title, year, source, placement, chunks, default_chunks, aliases,
            constraints, forms, options, weight_versions, copies_activations, fields,
        )  # fmt: skip
        _ENTRIES[name] = entry
        _ALIASES.update(dict.fromkeys(aliases, name))
        return order

    return wrap


def entries() -> dict[str, Entry]:
    """Return all registered schedules by name, oldest first."""
    _import_families()
    return dict(sorted(_ENTRIES.items(), key=lambda item: (item[1].year, item[0])))


@cache
def _import_families() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name not in NO_FAMILIES and not module.name.startswith("_"):
            importlib.import_module(f"debubble.schedules.{module.name}")


def schedules() -> list[Entry]:
    """Return the registry as a list, oldest first."""
    return list(entries().values())


def find(name: str) -> Entry:
    """Find a registered schedule by name or alias; a ParameterError names the nearest."""
    _import_families()
    known = _ENTRIES
    wanted = str(name).strip().lower().replace("_", "-")
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in known:
        hint = did_you_mean(name, [*known, *_ALIASES])
        hint += "" if hint.endswith("?") else "; 'debubble schedules' lists all"
        raise ParameterError(f"unknown schedule '{name}'; {hint}")
    return known[wanted]


def make(
    name: str,
    *,
    ranks: int,
    microbatches: int,
    chunks: int | None = None,
    iterations: int | None = None,
    costs: Costs | None = None,
    memory: Limit | None = None,
    p2p_mode: P2PMode = "overlapped",
    sync: str | None = None,
    **options: Any,
) -> Schedule:
    """Generate a published schedule.

    Parameters
    ----------
    name
        A registered name, see :func:`schedules`.
    ranks, microbatches
        Pipeline ranks p, and microbatches m of one iteration.
    chunks
        Stages per rank v, where the schedule leaves a choice.
    iterations
        Training steps in a row. Given, an OPT action ends each of them on every rank; left out,
        there is one iteration and no OPT action.
    costs, memory
        For schedules that are computed from costs and a memory limit (in activation units, or in
        the unit of ``costs.activation``; one for all ranks or one for each), and for recomputes in
        bubbles; ignored by the others. Without costs such a schedule fits one unit of time per
        rank each for F, I and W, and :func:`debubble.simulate` warns where it runs on others.
    sync
        Dependencies of OPT actions: ``"global"``, ``"local"`` or ``"post-validation"``, see
        :class:`debubble.core.schedule.Schedule`. The default is what was published.
    p2p_mode
        Mode of transfers that recomputes and copies are placed for, see :func:`debubble.simulate`.
    **options
        Options of the schedule, for instance ``group_size``, and lowerings: ``recompute``,
        ``recompute_at``, ``recompute_cap``, ``offload``, ``transfers``, ``sharding`` and
        ``unshard_lookahead``, see :func:`debubble.lowering.chain.lower`. Schedules that are
        computed from a memory limit use what recomputes and copies free, where there is no
        ``recompute_cap``; the others stay as they are without.

    Raises
    ------
    ParameterError
        When a parameter does not fit; the message names the constraint, the value and the nearest
        value that works.
    """
    entry = find(name)
    lowering = _lowering(options)
    _check_options(entry, options)
    for key, value in (
        ("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks),
        ("iterations", iterations), ("slices", options.get("slices")),
    ):  # fmt: skip
        if value is not None or key in ("ranks", "microbatches"):
            check_count(key, value)
    memory_limits(memory, ranks)
    check_costs(costs)
    check_mode(p2p_mode)
    if chunks is not None and entry.chunks is not None and chunks != entry.chunks:
        raise ParameterError(
            f"'{entry.name}' has chunks = {entry.chunks}; got {chunks}; leave it out"
        )
    if sync is not None and iterations is None:
        raise ParameterError(
            f"sync is '{sync}', but there is no optimizer step to wait; give iterations, too"
        )
    case = entry.case(
        ranks=ranks, microbatches=microbatches, chunks=chunks, iterations=iterations,
        costs=costs, memory=memory, **options,
    )  # fmt: skip
    check_constraints(entry, case)
    size = entry.most_actions(case)
    if size > MAX_ACTIONS:
        raise ParameterError(
            f"{size:,} actions; the limit is {MAX_ACTIONS:,}; use fewer microbatches or ranks"
        )
    if not lowering:
        return _build(entry, case, sync)
    from debubble.lowering.best_lowering import Setting
    from debubble.schedules._storage import stored_less

    setting = Setting(costs, memory, p2p_mode)
    return stored_less(lambda case: _build(entry, case, sync), entry, case, lowering, setting)


def _check_options(entry: Entry, options: Mapping[str, Any]) -> None:
    """Refuse options that a schedule does not have, and values of a wrong type."""
    known = {option.name: option for option in entry.options}
    for key in options:
        if key not in known:
            hint = did_you_mean(key, known) if known else f"'{entry.name}' has no options"
            raise ParameterError(f"unknown option '{key}' of schedule '{entry.name}'; {hint}")
    for name, option in known.items():
        if name in options:
            option.check(options[name])


def _lowering(options: dict[str, Any]) -> dict[str, Any]:
    """Return the lowerings that are asked for among options, which they are taken out of."""
    if not options:
        return {}
    from debubble.lowering.chain import LOWERINGS

    given = {row.name: options.pop(row.name, None) for row in LOWERINGS}
    return {name: value for name, value in given.items() if value is not None}


KEPT_ACTIONS = 4_000_000
"""Actions of all schedules that :func:`made_once` keeps, with some hundred bytes for each."""


class _Kept(OrderedDict[tuple[object, ...], Schedule]):
    """Schedules by what they were made from, those asked for last at the end."""

    actions = 0

    def add(self, key: tuple[object, ...], schedule: Schedule) -> None:
        """Keep a schedule, and give up those not asked for longest where they are too many."""
        self[key] = schedule
        self.actions += len(schedule)
        while self.actions > KEPT_ACTIONS and len(self) > 1:
            self.actions -= len(self.popitem(last=False)[1])


_KEPT = _Kept()
_LOCK = Lock()


def made_once(name: str, **parameters: Any) -> Schedule:
    """Return the schedule of :func:`make`, one object per set of (hashable) parameters.

    What is worked out about a schedule is kept with it, its event graphs above all: simulating it
    with other costs takes a fraction of the time. The schedules asked for last are kept.
    """
    key = (name, *sorted(parameters.items()))
    with _LOCK:
        if key in _KEPT:
            _KEPT.move_to_end(key)
            return _KEPT[key]
    made = make(name, **parameters)
    with _LOCK:
        if key not in _KEPT:
            _KEPT.add(key, made)
        return _KEPT[key]


def _build(entry: Entry, case: SimpleNamespace, sync: str | None) -> Schedule:
    placement = entry.placed(case)
    own_iterations = "iterations" in entry.parameters
    arguments = {name: getattr(case, name) for name in entry.parameters}
    if case.costs is not None and "memory" in arguments:
        arguments["memory"], arguments["costs"] = beside_static(case.memory, case.costs, case.ranks)
    programs = list(entry.order(**arguments))
    if case.iterations is not None and not own_iterations:
        programs = [
            repeat_with_flush(
                program, placement, rank, case.microbatches * case.slices, case.iterations
            )
            for rank, program in enumerate(programs)
        ]
    shown = {option.name: getattr(case, option.name) for option in entry.options}
    if "memory" in entry.parameters and case.memory is not None:
        # Plain numbers: files hold them, and formulas compare them with peaks.
        shown["memory"] = np.asarray(case.memory, dtype=np.float64).tolist()
    fields = {key: made(case) if callable(made) else made for key, made in entry.fields.items()}
    from_costs = entry.from_costs(case)
    return Schedule.from_programs(
        entry.name,
        placement,
        case.microbatches,
        programs,
        iterations=case.iterations or 1,
        slices=case.slices,
        weight_versions=entry.weight_versions_of(case),
        options={key: value for key, value in shown.items() if value is not None},
        made_for=(case.costs or Costs()) if from_costs else None,
        from_costs=from_costs,
        **(fields | ({} if sync is None else {"sync": sync})),
    )


def optimizer_step(placement: Placement, rank: int, iteration: int) -> Program:
    """Return the OPT action of one rank; it carries the rank's first stage."""
    stages = placement.stages_on(rank)
    return pack(Kind.OPT, stages[0] if stages else 0, iteration)


def repeat_with_flush(
    program: Program, placement: Placement, rank: int, units: int, iterations: int
) -> Program:
    """Return a program of `units` microbatches or slices, repeated, with a step at each end."""
    parts = []
    for iteration in range(iterations):
        parts.append(program + (iteration * units << MICROBATCH_SHIFT))
        parts.append(optimizer_step(placement, rank, iteration))
    return np.concatenate(parts)
