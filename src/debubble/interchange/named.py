"""Schedules by any name: registered ones, files, functions of Python files and PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from debubble.analysis import compare as comparing
from debubble.analysis.comparison import Comparison
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.engine.memory import Limit
from debubble.interchange.files import is_file_name, is_foreign, resolve
from debubble.interchange.torch_builtin import is_builtin, leaves_chunks
from debubble.lowering.chain import LOWERINGS, lower
from debubble.schedules import registry


@wraps(registry.make)
def make(name: str, **parameters: Any) -> Schedule:  # noqa: D103 - that of the registry
    if not isinstance(name, str):
        raise ParameterError(f"name is {name!r}; give a text such as '1f1b'")
    if not is_foreign(name):
        return registry.make(name, **parameters)
    lowering = {row.name: parameters.pop(row.name, None) for row in LOWERINGS}
    return lowered(name, lowering, **parameters)


def lowered(
    name: str,
    lowering: Mapping[str, Any],
    *,
    costs: Costs | None = None,
    memory: Limit | None = None,
    p2p_mode: P2PMode = "overlapped",
    **parameters: Any,
) -> Schedule:
    """A schedule by any name with lowerings, as keywords of :func:`debubble.lowering.chain.lower`.

    A registered schedule is made with them, since its order may depend on what it stores; others
    are lowered when they are there. `parameters` are those of
    :func:`debubble.interchange.files.resolve`.
    """
    setting: dict[str, Any] = {"costs": costs, "memory": memory, "p2p_mode": p2p_mode}
    if not is_foreign(name):
        return resolve(name, **setting, lowering=lowering, **parameters)
    return lower(resolve(name, **setting, **parameters), **lowering, **setting)


@wraps(comparing.compare)
def compare(schedules: Iterable[comparing.Item], **parameters: Any) -> Comparison:  # noqa: D103
    if isinstance(schedules, str) or not isinstance(schedules, Iterable):
        raise ParameterError(f"schedules is {schedules!r}; give a list such as ['1f1b', 'zb-h1']")
    chunks = parameters.get("chunks")
    sizes = ("ranks", "microbatches", "iterations", "memory", "sync")
    given = {key: parameters[key] for key in sizes if key in parameters}
    costs = parameters.get("costs")

    def made(name: str, value: int | None) -> Schedule:
        return resolve(name, **given, chunks=value, costs=costs)

    values = chunks if isinstance(chunks, Sequence) else [chunks]
    items, skipped = made_for_each(schedules, values, made)
    if skipped and not items:
        raise ParameterError(": ".join(skipped[0]))
    result = comparing.compare(items, **parameters)
    return replace(result, skipped=(*skipped, *result.skipped))


def made_for_each(
    items: Iterable[Any], chunks: Sequence[int | None], make: Callable[[str, int | None], Schedule]
) -> tuple[list[Any], list[tuple[str, str]]]:
    """Items of a comparison, with schedules made for names that are not registered.

    Each is made with every number of `chunks`; once where that changes nothing. Files have their
    own. All else stays. Returns the items in order, and names that cannot be made, with the reason.
    """
    found: list[Any] = []
    skipped = []
    for item in items:
        if not isinstance(item, str) or not is_foreign(item):
            found.append(item)
            continue
        fixed = is_file_name(item) or (is_builtin(item) and not leaves_chunks(item))
        values = [None] if fixed else list(dict.fromkeys(chunks))
        schedules: list[Schedule] = []
        for value in values:
            label = f" (chunks={value})" if len(values) > 1 else ""
            try:
                schedule = make(item, value)
            except ParameterError as error:
                skipped.append((item + label, str(error)))
                continue
            # What has no choice of chunks is the same for every number, or refuses all but one.
            if schedule.chunks == (value or schedule.chunks):
                schedule = replace(schedule, name=schedule.name + label)
            if all(schedule != other for other in schedules):
                schedules.append(schedule)
        found += schedules
    return found, skipped
