"""Compare schedules: make and simulate each, and say which is fastest within a memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from debubble.analysis.check import TOLERANCE, check
from debubble.analysis.comparison import Comparison, Row
from debubble.analysis.metrics import p2p_volume, parameter_copies, recompute_text
from debubble.core.costs import Costs, check_costs
from debubble.core.errors import DebubbleError, ParameterError, did_you_mean
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.engine.timeline import Timeline, simulate
from debubble.lowering.chain import lower
from debubble.lowering.recompute import RecomputeAt, Stages, place_of
from debubble.lowering.sharding import ShardingMode
from debubble.lowering.transfers import ReceivePolicy
from debubble.schedules.registry import find, make

__all__ = ["Comparison", "Row", "compare"]

Item: TypeAlias = str | Schedule | Timeline | tuple[str, Mapping[str, Any]]
"""A registered name, a schedule, a simulation on costs of its own, or a name with its own chunks
and options."""


def compare(
    schedules: Iterable[Item],
    *,
    ranks: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    costs: Costs | None = None,
    memory: float | None = None,
    p2p_mode: P2PMode = "overlapped",
    iterations: int | None = None,
    sync: str | None = None,
    recompute: Stages | None = None,
    recompute_at: RecomputeAt | None = None,
    transfers: ReceivePolicy | None = None,
    sharding: ShardingMode | None = None,
    options: Mapping[str, Any] | None = None,
    time_unit: str = "",
    memory_unit: str = "",
    progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Simulate several schedules on the same costs.

    Parameters
    ----------
    schedules
        Registered names, :class:`~debubble.Schedule` objects, or pairs of a name and a dictionary
        with ``chunks`` and options of that schedule alone. A :class:`~debubble.Timeline` stays as
        it is, whatever the costs.
    ranks, microbatches, iterations
        What named schedules are made for; needed when there is a name.
    sync
        What optimizer steps of named schedules wait for, see :func:`debubble.make`.
    recompute, recompute_at
        Which stages of all schedules recompute their forward, and where, see :func:`debubble.make`.
    transfers, sharding
        Whether transfers, and what data-parallel replicas do, become actions of all schedules, see
        :func:`debubble.lowering.chain.lower`.
    chunks, options
        Apply to the named schedules that leave a choice of chunks, or have such an option.
    costs
        What actions cost. Rank costs (:meth:`~debubble.Costs.per_rank`) are divided by each
        schedule's own chunks, so that all of them run the same model. Schedules that are computed
        from costs get these.
    memory
        Limit of the activation memory of every rank, in activation units per rank or in the unit
        of ``costs.activation``. Schedules above it are ranked behind those within.
    p2p_mode
        How ranks exchange results, see :func:`debubble.simulate`.
    time_unit, memory_unit
        What times and ``costs.activation`` are in, for display: ``"ms"`` and ``"GB"``.
    progress
        Called before each schedule with its label, its number from 0 and how many there are.

    Returns
    -------
    Comparison
        Rows by makespan, those within memory first; schedules that cannot be made or run are in
        ``skipped`` with the reason.

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
    costs = costs or Costs()
    if memory is not None and not memory > 0:
        raise ParameterError(f"memory is {memory}; a limit is a positive number")
    place_of(recompute, recompute_at)
    items = [_read(item) for item in schedules]
    if not items:
        raise ParameterError("no schedules to compare; name at least one")
    _check_items(items, ranks, microbatches, options or {})
    labels = _labels(items)

    rows: list[Row] = []
    skipped: list[tuple[str, str]] = []
    for index, (label, (item, own)) in enumerate(zip(labels, items, strict=True)):
        if progress is not None:
            progress(label, index, len(items))
        if isinstance(item, Timeline):
            rows.append(_row(label, item, memory))
            continue
        try:
            if isinstance(item, Schedule):
                _refuse_bad(item, p2p_mode)
                schedule = item
            else:
                assert ranks is not None
                assert microbatches is not None
                schedule = make(
                    item,
                    ranks=ranks,
                    microbatches=microbatches,
                    iterations=iterations,
                    sync=sync,
                    costs=costs,
                    memory=memory,
                    **_fitting(item, chunks, options or {}, own),
                )
            schedule = lower(
                schedule, recompute=recompute, recompute_at=recompute_at, transfers=transfers,
                sharding=sharding, costs=costs, memory=memory, p2p_mode=p2p_mode,
            )  # fmt: skip
            timeline = simulate(schedule, costs, p2p_mode)
            if timeline.graph.completed < schedule.stages * schedule.units:
                _refuse_bad(schedule, p2p_mode)
            rows.append(_row(label, timeline, memory))
        except DebubbleError as error:
            skipped.append((label, str(error)))
    return Comparison(
        rows=_ranked(rows),
        skipped=tuple(skipped),
        notes=_notes(rows, costs),
        costs=costs,
        memory=memory,
        p2p_mode=p2p_mode,
        time_unit=time_unit,
        memory_unit=memory_unit,
        baseline=next((label for label in labels if any(row.name == label for row in rows)), ""),
    )


_Read: TypeAlias = tuple[str | Schedule | Timeline, Mapping[str, Any]]


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


def _check_items(
    items: list[_Read], ranks: int | None, microbatches: int | None, options: Mapping[str, Any]
) -> None:
    names = [item for item, _ in items if isinstance(item, str)]
    for key, value in (("ranks", ranks), ("microbatches", microbatches)):
        if names and value is None:
            raise ParameterError(f"'{names[0]}' needs {key}; give {key}=8 or the like")
    known = {option.name for name in names for option in find(name).options}
    for key in options:
        if key not in known:
            hint = did_you_mean(key, known) if known else "none of these schedules has options"
            raise ParameterError(f"unknown option '{key}'; {hint}")


def _labels(items: list[_Read]) -> list[str]:
    """A name for every item; names that occur twice get a number."""
    labels: list[str] = []
    for item, own in items:
        made = item.schedule if isinstance(item, Timeline) else item
        label = made if isinstance(made, str) else made.name
        if own:
            label += f" ({', '.join(f'{key}={value}' for key, value in own.items())})"
        taken = sum(other == label or other.startswith(f"{label} #") for other in labels)
        labels.append(f"{label} #{taken + 1}" if taken else label)
    return labels


def _fitting(
    name: str, chunks: int | None, options: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters that this schedule takes; its own are passed on as they are."""
    entry = find(name)
    taken = {option.name for option in entry.options}
    shared = {key: value for key, value in options.items() if key in taken}
    if entry.chunks is None and chunks is not None:
        shared["chunks"] = chunks
    return shared | dict(own)


def _refuse_bad(schedule: Schedule, mode: P2PMode) -> None:
    """A schedule that somebody hands in may lack actions, and would look fast."""
    found = check(schedule, p2p_mode=mode)
    if not found:
        more = f" (and {found.count - 1:,} more)" if found.count > 1 else ""
        raise ParameterError(f"{found.problems[0]}{more}")


def _row(label: str, timeline: Timeline, memory: float | None) -> Row:
    peak = float(timeline.peak_activation.max())
    return Row(
        name=label,
        schedule=timeline.schedule,
        timeline=timeline,
        makespan=timeline.makespan,
        bubble_ratio=timeline.bubble_ratio,
        overhead=timeline.overhead,
        stage_bubble_rate=timeline.stage_bubble_rate,
        peak_activation=peak,
        parameter_copies=parameter_copies(timeline.schedule),
        p2p_volume=p2p_volume(timeline),
        weight_versions=max(timeline.schedule.versions),
        fits=memory is None or peak <= memory * (1 + TOLERANCE),
    )


def _ranked(rows: list[Row]) -> tuple[Row, ...]:
    """Rows within memory first, each part by makespan, then memory; with ratios to the best."""

    def place(row: Row) -> tuple[bool, float, float]:
        # Equal times computed in different order differ in the last digits.
        return not row.fits, float(f"{row.makespan:.9g}"), row.peak_activation

    ordered = sorted(rows, key=place)
    return tuple(row.relative_to(ordered[0].makespan) for row in ordered)


def _notes(rows: list[Row], costs: Costs) -> tuple[str, ...]:
    """What a reader has to know before believing a ranking."""
    notes = []
    stages = {row.schedule.stages: row.name for row in rows}
    if len(stages) > 1 and (costs.basis == "action" or costs.chunks is not None):
        (few, first), *_, (many, last) = sorted(stages.items())
        notes.append(
            f"the models differ: {first} has {few} stages and {last} {many}, and every stage takes "
            "the same time; give costs per rank to compare them on one model"
        )
    sizes = {(row.schedule.microbatches * row.schedule.iterations) for row in rows}
    if len(sizes) > 1:
        notes.append(
            "the work differs: microbatches over all iterations are "
            + ", ".join(
                f"{row.name} {row.schedule.microbatches * row.schedule.iterations}" for row in rows
            )
        )
    if len({row.schedule.ranks for row in rows}) > 1:
        notes.append(
            "the clusters differ: ranks are "
            + ", ".join(f"{row.name} {row.schedule.ranks}" for row in rows)
        )
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
    return tuple(notes)
