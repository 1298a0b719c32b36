"""What is known about a schedule: constraints, closed forms, options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

from debubble.core.actions import Program
from debubble.core.placement import Placement


@dataclass(frozen=True)
class Constraint:
    """What a schedule needs of its parameters.

    Parameters
    ----------
    parameter
        Name of the parameter to change when the constraint does not hold.
    text
        The constraint as a sentence, for instance "microbatches is a multiple of ranks".
    holds
        Whether a case (a namespace of all parameters) meets it.
    """

    parameter: str
    text: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class ClosedForm:
    """A formula for one quantity of a schedule, for costs that are the same on all stages.

    Parameters
    ----------
    quantity
        ``"makespan"``, ``"stage_time"`` (the largest over ranks) or ``"peak_activation"`` (of
        every rank, or of the fullest when `value` gives one number).
    text
        The formula for people, in per-action times F, I, W, B, O of whole microbatches, latency c,
        and p, m, v, s.
    value
        The formula for a case with attributes p, m, v, s (slices), F, I, W, B, O, c, `copy` (the
        time of one OFFLOAD or RELOAD), S and T, the memory `unit` of one action and its `kept`
        part, of a `shard` of the head, the cost `table` and the options; times and memory of a
        first slice.
    accuracy
        ``"exact"``, ``"upper bound"``, ``"lower bound"`` or ``"approximation"``.
    holds
        Where the formula is valid, beyond uniform costs.
    condition
        The same for people, empty when always valid.
    """

    quantity: str
    text: str
    value: Callable[[Any], float | list[float]]
    accuracy: str = "exact"
    holds: Callable[[Any], bool] = lambda case: True  # noqa: ARG005 - the trivial default
    condition: str = ""


@dataclass(frozen=True)
class Option:
    """A parameter that only some schedules have.

    Parameters
    ----------
    name, type, default
        As in the function's signature.
    text
        What it does, from the function's docstring; empty where that does not say.
    """

    name: str
    type: str
    default: Any
    text: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts it takes, as its description quotes them; empty where any will do."""
        if "str" not in self.type:
            return ()
        return tuple(dict.fromkeys(re.findall(r'``"([^"`]+)"``', self.text)))


OPTIONS = {
    "group_size": "Microbatches that pass one chunk before the next; more hide more latency and "
    "keep more activations.",
    "slices": "Pieces that every microbatch's sequence is cut into.",
    "cut": '``"flops"`` shortens later slices until all take the same time; ``"tokens"`` makes all '
    "equally long.",
    "objective": '``"makespan"``, or ``"stage-time"``, the largest time from a rank\'s first to '
    "last action.",
    "published": "Take the fixed order as published, whatever the costs.",
    "in_flight": "Forwards of slices on rank 0 before its first backward.",
    "exchange": "Every slice does the mean share of the attention, which ranks exchange for it.",
}
"""What options mean that several schedules have, where a docstring does not say."""


def described_parameters(doc: str) -> dict[str, str]:
    """What the section ``Parameters`` of a numpydoc docstring says, by name."""
    _, _, section = doc.partition("\nParameters\n----------\n")
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line, following in zip_longest(section.splitlines(), section.splitlines()[1:]):
        if line and set(following or "") == {"-"}:
            break
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.partition(":")[0].split(",")]
        elif line.strip():
            for name in names:
                found.setdefault(name, []).append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}


@dataclass(frozen=True)
class Entry:
    """A registered schedule and what is known about it; see :func:`register`."""

    name: str
    order: Callable[..., Iterable[Program]]
    title: str
    year: int
    source: str
    placement: Callable[[int, int], Placement]
    chunks: int | None = None
    default_chunks: int = 1
    aliases: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    forms: tuple[ClosedForm, ...] = ()
    options: tuple[Option, ...] = ()
    weight_versions: int | Callable[[Any], Sequence[int]] = 1
    copies_activations: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What the schedule does, with its figure: the docstring of its function."""
        return inspect.getdoc(self.order) or ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters its function takes."""
        return tuple(inspect.signature(self.order).parameters)

    @property
    def uses_costs(self) -> bool:
        """Whether the order depends on the costs."""
        return "costs" in self.parameters

    def most_actions(self, case: Any) -> int:
        """The most actions that a case can have, told without making it.

        Every stage runs a forward and a backward of each microbatch or slice, the backward in one
        or two pieces; beside them run optimizer steps, shards of the output layer, and copies.
        """
        iterations = case.iterations or 1
        units = case.microbatches * case.slices * iterations
        stages = self.placement(case.ranks, case.chunks).stages
        pieces = 5 if self.copies_activations else 3
        shards = 2 * case.ranks if self.fields.get("vocabulary") else 0
        return int(units * (pieces * stages + shards) + case.ranks * iterations)

    def weight_versions_of(self, case: Any) -> int | tuple[int, ...]:
        """Versions of the weights kept at the same time: one number, or one for each rank."""
        versions = self.weight_versions
        return versions if isinstance(versions, int) else tuple(versions(case))

    def case(self, **values: Any) -> SimpleNamespace:
        """All parameters in one namespace, with defaults filled in, none of them checked."""
        defaults = {option.name: option.default for option in self.options}
        given = {key: value for key, value in values.items() if value is not None}
        chunks = self.chunks or self.default_chunks
        return SimpleNamespace(
            **{"chunks": chunks, "iterations": None, "costs": None, "memory": None, "slices": 1}
            | defaults
            | given
        )
