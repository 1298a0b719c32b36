"""Compare schedules: make and simulate each, and say which is fastest within a memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from debubble.analysis.check import caveats
from debubble.analysis.comparison import Comparison
from debubble.analysis.measures import compared
from debubble.analysis.metrics import recompute_text
from debubble.analysis.question import AS_READ, Question
from debubble.analysis.ranking import Row, ranked
from debubble.analysis.results import keeps
from debubble.analysis.same_work import MODELS_DIFFER, differences
from debubble.core.costs import Costs, check_costs
from debubble.core.errors import DebubbleError, ParameterError, did_you_mean
from debubble.core.given_layers import Given, make_layers
from debubble.core.layers import Cut, cut_words
from debubble.core.schedule import Schedule
from debubble.core.units import counted
from debubble.engine.ensembles import wins
from debubble.engine.graph import P2PMode
from debubble.engine.jitter import Jitter
from debubble.engine.memory import Limit, memory_limits
from debubble.engine.timeline import Timeline
from debubble.lowering.chain import values_of
from debubble.schedules.registry import find

__all__ = ["Comparison", "Row", "compare"]

PER_RANK = "costs per rank (--rank-times, 'basis: rank' in a cost file, Costs.per_rank)"
"""Advice that makes schedules with different numbers of stages comparable: costs per rank."""

Item: TypeAlias = str | Schedule | Timeline | tuple[str, Mapping[str, Any]]
"""A registered name, a schedule, a simulation on costs of its own, or a name with its own chunks
and options."""


def compare(
    schedules: Iterable[Item],
    *,
    ranks: int | None = None,
    microbatches: int | Sequence[int] | None = None,
    chunks: int | Sequence[int] | None = None,
    costs: Costs | None = None,
    memory: Limit | None = None,
    p2p_mode: P2PMode = "overlapped",
    iterations: int | None = None,
    sync: str | None = None,
    options: Mapping[str, Any] | None = None,
    time_unit: str = "",
    memory_unit: str = "",
    progress: Callable[[str, int, int], None] | None = None,
    jitter: str | Jitter | None = None,
    stop: Callable[[], bool] | None = None,
    layers: Given | None = None,
    **more: Any,
) -> Comparison:
    """Simulate several schedules on the same costs.

    Parameters
    ----------
    schedules
        Registered names, :class:`~debubble.Schedule` objects, or pairs of a name and a dictionary
        with ``chunks`` and options of that schedule alone. A :class:`~debubble.Timeline` keeps
        its own costs.
    ranks, microbatches, iterations
        Sizes that named schedules are made with; needed when there is a name. Several numbers of
        microbatches make a row for each of them, ranked by overhead.
    sync
        Dependencies of optimizer steps of named schedules, see :func:`debubble.make`.
    chunks, options
        Apply to the named schedules that leave a choice of chunks, or have such an option. Several
        numbers of chunks make a row for each of them, "interleaved-1f1b (chunks=2)".
    costs
        Costs of actions. Rank costs (:meth:`~debubble.Costs.per_rank`) are divided by each
        schedule's own chunks, so that all of them run the same model; the default is one unit of
        time per rank each for F, I and W. With costs per action, schedules with other numbers of
        stages run other models. Schedules that are computed from costs get these.
    memory
        Limit of the activation memory of every rank, or one for each, in activation units per rank
        or in the unit of ``costs.activation``. Schedules above it are ranked after those within.
    p2p_mode
        The p2p mode, see :func:`debubble.simulate`.
    time_unit, memory_unit
        Units of times and ``costs.activation``, for display: ``"ms"`` and ``"GB"``. The default
        is what `costs` say.
    progress
        Called before each schedule with its label, its number from 0 and how many there are.
    jitter
        What varies from step to step: ``"normal:3%"``, or a :class:`~debubble.Jitter`. The rows
        then have step times of the same random numbers in ``row.spread``, and in ``row.wins`` the
        share of the steps in which each is fastest among those within memory; the ranking stays.
    stop
        Asked before the step times of every schedule but the first are drawn; once it is true, the
        others are left out, with a note.
    layers
        Layers to cut into every schedule's stages, as in :func:`debubble.optimize`: by a cut that
        they have for its ranks, else so that the busiest rank does as little as possible.
    **more
        Options that were added to the table, and lowerings of all schedules, as of
        :func:`debubble.lowering.chain.lower`: ``recompute``, ``offload``, ``transfers``, …

    Returns
    -------
    Comparison
        Rows by makespan, those within memory first; by overhead, and with no fastest one, where
        schedules do not do the same work on the same number of ranks. Schedules that cannot be made
        or run are in ``skipped`` with the reason.

    Raises
    ------
    ParameterError
        When a name or option does not exist, a limit is not positive, or a size is missing.

    Examples
    --------
    >>> import debubble as db
    >>> result = db.compare(["gpipe", "1f1b"], ranks=4, microbatches=8, memory=4)
    >>> [(row.name, row.makespan, row.peak_activation, row.fits) for row in result.rows]
    [('1f1b', 33.0, 4.0, True), ('gpipe', 33.0, 8.0, False)]
    """
    check_costs(costs)
    if progress is not None and not callable(progress):
        raise ParameterError(f"progress is {progress!r}; give a function")
    varying = jitter if isinstance(jitter, Jitter | None) else Jitter(jitter)
    costs = costs or Costs()
    units = time_unit or costs.time_unit, memory_unit or costs.memory_unit
    costs = replace(costs, time_unit=units[0], memory_unit=units[1])
    memory_limits(memory, ranks or np.size(memory or 1))
    asked = Question(
        "", ranks=ranks, microbatches=None if isinstance(microbatches, Sequence) else microbatches,
        iterations=iterations, sync=sync, costs=costs, memory=memory, p2p_mode=p2p_mode,
        **{name: more.pop(name) for name in AS_READ if name in more}, lowerings=values_of(more),
        layers=None if layers is None else make_layers(layers, costs),
    )  # fmt: skip
    options = {} if options is None else options
    items = [_read(item) for item in schedules]
    items = _spread(_spread(items, "chunks", chunks), "microbatches", microbatches)
    _check_items(items, ranks, microbatches, options)
    _refuse_unused(items, chunks)

    labels = _labels(items)
    rows, skipped = _rows(labels, items, asked, chunks, options, progress)
    every = rows
    if varying is not None:
        rows = _raced(rows, varying, stop)
    unlike = _differences(rows)
    notes = _notes(rows, unlike)
    if late := len(every) - len(rows):
        notes.append(f"no time left: {counted(late, 'schedule')} not compared")
    return Comparison(
        rows=ranked(rows, "overhead" if unlike else "makespan"), skipped=tuple(skipped),
        notes=tuple(notes), unlike=unlike, costs=costs, memory=memory, p2p_mode=p2p_mode,
        time_unit=costs.time_unit, memory_unit=costs.activation_unit,
        baseline=next((label for label in labels if any(row.name == label for row in rows)), ""),
    )  # fmt: skip


_Read: TypeAlias = tuple[str | Schedule | Timeline, Mapping[str, Any]]
"""An item to compare, and the parameters of its own, which are part of its label."""


def _read(item: Item) -> _Read:
    if isinstance(item, Schedule | Timeline):
        return item, {}
    if isinstance(item, str):
        return find(item).name, {}
    if isinstance(item, Sequence) and len(item) == 2 and isinstance(item[1], Mapping):
        return find(item[0]).name, item[1]
    raise ParameterError(
        f"cannot compare {item!r}; give a name, a Schedule, or a name with a dict of options"
    )


def _spread(items: list[_Read], size: str, values: int | Sequence[int] | None) -> list[_Read]:
    """Return the items; a name that leaves a choice of a size, once for each of several values."""
    if not isinstance(values, Sequence):
        return items
    if not values:
        raise ParameterError(f"{size} is an empty list; give {size}=[2, 4] or the like")
    spread: list[_Read] = []
    for item, own in items:
        free = isinstance(item, str) and (size != "chunks" or find(item).chunks is None)
        if free and size not in own:
            spread += [(item, {size: value, **own}) for value in dict.fromkeys(values)]
        else:
            spread.append((item, own))
    return spread


def _check_items(
    items: list[_Read], ranks: int | None, microbatches: Any, options: Mapping[str, Any]
) -> None:
    if not isinstance(options, Mapping):
        raise ParameterError(f"options is {options!r}; give a dict of options and values")
    if not items:
        raise ParameterError("no schedules to compare; name at least one")
    names = [item for item, _ in items if isinstance(item, str)]
    for key, value in (("ranks", ranks), ("microbatches", microbatches)):
        if names and value is None:
            raise ParameterError(f"'{names[0]}' needs {key}; give {key}=8 or the like")
    known = {option.name for name in names for option in find(name).options}
    for key in options:
        if key not in known:
            hint = did_you_mean(key, known) if known else "none of these schedules has options"
            raise ParameterError(f"unknown option '{key}'; {hint}")


def has_choice(names: Iterable[str]) -> bool:
    """Return whether one of some registered schedules leaves a choice of chunks."""
    return any(find(name).chunks is None for name in names)


def _refuse_unused(items: list[_Read], chunks: int | Sequence[int] | None) -> None:
    """Refuse numbers of chunks that no schedule takes."""
    if chunks is None:
        return
    numbers = chunks if isinstance(chunks, Sequence) else [chunks]
    has: dict[str, int | None] = {}
    for item, _ in items:
        schedule = item.schedule if isinstance(item, Timeline) else item
        known = find(schedule) if isinstance(schedule, str) else schedule
        has[known.name] = known.chunks
    unused = [] if None in has.values() else [n for n in numbers if n not in has.values()]
    if unused:
        each = ", ".join(f"{name} has {own}" for name, own in has.items())
        raise ParameterError(
            f"chunks is {', '.join(map(str, unused))}, and no schedule here has a choice: {each}; "
            "leave it out"
        )


def _labels(items: list[_Read]) -> list[str]:
    """Return a name for every item; names that occur twice get a number."""
    labels: list[str] = []
    for item, own in items:
        made = item.schedule if isinstance(item, Timeline) else item
        label = made if isinstance(made, str) else made.name
        if own:
            label += f" ({', '.join(f'{key}={value}' for key, value in own.items())})"
        taken = sum(other == label or other.startswith(f"{label} #") for other in labels)
        labels.append(f"{label} #{taken + 1}" if taken else label)
    return labels


def _simulated(
    read: _Read, asked: Question, chunks: int | Sequence[int] | None, options: Mapping[str, Any]
) -> tuple[Timeline, Cut]:
    """Return the simulation of an item and its cut, if any; a name takes the options it has."""
    item, own = read
    if isinstance(item, Timeline):
        return item, ()
    if isinstance(item, Schedule):
        found = replace(asked, schedule=item)
        return found.timeline, found.cut
    entry = find(item)
    taken = {option.name for option in entry.options}
    values = {key: value for key, value in options.items() if key in taken}
    if entry.chunks is None and chunks is not None:
        values["chunks"] = chunks
    values |= own
    sizes: dict[str, Any] = {
        size: values.pop(size) for size in ("chunks", "microbatches") if size in values
    }
    found = replace(asked, schedule=item, options=values, **sizes)
    return found.timeline, found.cut


def _rows(
    labels: list[str], items: list[_Read], asked: Question, chunks: int | Sequence[int] | None,
    options: Mapping[str, Any], progress: Callable[[str, int, int], None] | None,
) -> tuple[list[Row], list[tuple[str, str]]]:  # fmt: skip
    """Return the rows of items, and the names and reasons of those that cannot be made or run."""
    rows: list[Row] = []
    skipped: list[tuple[str, str]] = []
    for index, (label, item) in enumerate(zip(labels, items, strict=True)):
        if progress is not None:
            progress(label, index, len(items))
        try:
            rows.append(_row(label, *_simulated(item, asked, chunks, options), asked.memory))
        except DebubbleError as error:
            skipped.append((label, str(error)))
    return rows, skipped


def _row(label: str, timeline: Timeline, cut: Cut, memory: Limit | None) -> Row:
    values = {measure.key: measure.one(timeline) for measure in compared()}
    return Row(label, timeline.schedule, timeline, values, keeps(timeline, memory), layers=cut)


def _differences(rows: list[Row]) -> tuple[str, ...]:
    """Return differences in work between rows; cuts of the same layers are of one model."""
    unlike = differences([row.timeline for row in rows])
    if not all(row.layers for row in rows):
        return unlike
    # Multi-token prediction may be on another stage.
    return tuple(text for text in unlike if not text.startswith(MODELS_DIFFER))


def _raced(rows: list[Row], jitter: Jitter, stop: Callable[[], bool] | None) -> list[Row]:
    """Return the rows with step times that vary, and the share of the steps that each one wins."""
    drawn: list[Row] = []
    for row in rows:
        if drawn and stop is not None and stop():
            break
        drawn.append(replace(row, spread=row.timeline.jitter(jitter)))
    rows = drawn
    racing = [row for row in rows if row.fits] or rows
    shares = wins([row.spread for row in racing if row.spread is not None]) if racing else []
    won = dict(zip((row.name for row in racing), shares, strict=True))
    return [replace(row, wins=won.get(row.name, 0.0)) for row in rows]


def _notes(rows: list[Row], unlike: tuple[str, ...]) -> list[str]:
    """Return caveats of a ranking: schedules made for other costs, differences between rows."""
    notes = [f"{row.name}: {note}" for row in rows for note in caveats(row.timeline)]
    notes += dict.fromkeys(note for row in rows if row.spread for note in row.spread.notes)
    if cuts := [f"{row.name} {cut_words(row.layers)}" for row in rows if row.layers]:
        notes.append(f"layers × stages: {'; '.join(cuts)}")
    stages = {row.schedule.stages // row.schedule.placement.copies: row.name for row in rows}
    if len(stages) > 1 and any(text.startswith(MODELS_DIFFER) for text in unlike):
        (few, first), *_, (many, last) = sorted(stages.items())
        notes.append(
            f"{first} has {few} stages and {last} {many}, each with the times of one action; "
            f"{PER_RANK} compare them on one model"
        )
    for what, counts in (
        (
            "microbatches over all iterations",
            [row.schedule.microbatches * row.schedule.iterations for row in rows],
        ),
        ("ranks", [row.schedule.ranks for row in rows]),
    ):
        if len(set(counts)) > 1:
            each = (f"{row.name} {count}" for row, count in zip(rows, counts, strict=True))
            notes.append(f"{what}: {', '.join(each)}")
    if len({recompute_text(row.schedule) for row in rows}) > 1:
        notes.append(
            "the recomputes differ: "
            + ", ".join(f"{row.name} {recompute_text(row.schedule) or 'none'}" for row in rows)
        )
    asynchronous = [row.name for row in rows if row.weight_versions > 1]
    if asynchronous:
        notes.append(
            f"{', '.join(asynchronous)}: trains with weights that are a step old or more, "
            "which is another training rule"
        )
    return notes
