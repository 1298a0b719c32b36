"""Schedules by any name: registered ones, files, functions of Python files and PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from debubble.analysis import compare as comparing
from debubble.analysis.comparison import Comparison
from debubble.analysis.question import Question
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.interchange.files import is_file_name, is_foreign, resolve
from debubble.interchange.torch_builtin import is_builtin, leaves_chunks
from debubble.lowering.chain import LOWERINGS
from debubble.schedules import registry

if TYPE_CHECKING:
    from debubble.interchange.cost_files import CostFile

SIZES = ("ranks", "microbatches", "chunks")
"""Sizes that a cost file may have."""


@wraps(registry.make)
def make(name: str, **parameters: Any) -> Schedule:  # noqa: D103 - that of the registry
    if not isinstance(name, str):
        raise ParameterError(f"name is {name!r}; give a text such as '1f1b'")
    if not is_foreign(name):
        return registry.make(name, **parameters)
    lowerings = {row.name: parameters.pop(row.name, None) for row in LOWERINGS}
    own = {spec.name for spec in fields(Question)}
    asked = {key: value for key, value in parameters.items() if key in own and value is not None}
    options = {key: value for key, value in parameters.items() if key not in own}
    return question(name, Question("", **asked, options=options, lowerings=lowerings)).made


def question(target: str, asked: Question, file: CostFile | None = None) -> Question:
    """Return the question about the schedule that a text names, with the sizes of a cost file.

    A registered schedule stays a name, as its order may depend on the whole question; files,
    functions and PyTorch's own are read, and must agree with the sizes of the question.
    """
    defaults = {} if file is None else {key: getattr(file, key) for key in SIZES}
    if not is_foreign(target):
        entry = registry.find(target)
        sizes: dict[str, Any] = {
            key: defaults.get(key) for key in SIZES if getattr(asked, key) is None
        }
        if entry.chunks is not None:
            sizes.pop("chunks", None)
        return replace(asked, schedule=entry.name, **sizes)
    schedule = resolve(
        target, ranks=asked.ranks, microbatches=asked.microbatches, chunks=asked.chunks,
        iterations=asked.iterations, costs=asked.costs, memory=asked.memory, sync=asked.sync,
        defaults=defaults, **asked.options,
    )  # fmt: skip
    return replace(asked, schedule=schedule)


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
    """Return the items of a comparison, with schedules made for names that are not registered.

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
