"""Registry entry of a schedule: its constraints, which are checked here, closed forms, options."""

from __future__ import annotations

import inspect
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import numpy as np

from debubble.core.actions import Program
from debubble.core.errors import ParameterError
from debubble.core.options import LIMITS
from debubble.core.placement import Placement
from debubble.core.units import is_whole
from debubble.schedules.formula import terms, value_of
from debubble.schedules.sources import spelled_out

_SECTION = re.compile(r"\n[A-Z][A-Za-z ]+\n-{3,}\n")
"""The title of a docstring's section."""

PLAIN = {"int", "float", "bool", "str", "None"}
"""Names of types that texts and files can have values of."""

NEAREST_SEARCH = 5000
"""Largest distance of the nearest valid value from a refused one in a message."""


@dataclass(frozen=True)
class Constraint:
    """A constraint on the parameters of a schedule.

    Parameters
    ----------
    parameter
        Name of the parameter to change when the constraint does not hold.
    text
        The constraint as a sentence, for instance "microbatches is a multiple of ranks".
    holds
        Whether a case (a namespace of all parameters) meets it.
    instead
        Advice for a case that does not meet it, if there is some: the end of a sentence
        that starts with "or use".
    """

    parameter: str
    text: str
    holds: Callable[[Any], bool]
    instead: Callable[[Any], str] = lambda case: ""  # noqa: ARG005 - the trivial default


@dataclass(frozen=True)
class ClosedForm:
    """A formula for one quantity of a schedule, for costs that are the same on all stages.

    Parameters
    ----------
    quantity
        ``"makespan"``, ``"stage_time"`` (the largest over ranks), ``"bubble_time"`` (the longest
        idle time of a rank) or ``"peak_activation"`` (of every rank, or of the fullest when there
        is one number).
    text
        The formula in the symbols of :data:`debubble.schedules.formula.SYMBOLS`; of a peak, in
        activation units, and of every rank where it has the symbol r.
    value
        The formula for a case, see Notes, where the text alone does not say it.
    accuracy
        ``"exact"``, ``"upper bound"``, ``"lower bound"`` or ``"approximation"``.
    holds
        Whether the formula is valid for a case, beyond uniform costs.
    condition
        The same for people, empty when always valid.

    Notes
    -----
    A case has these attributes, and the options of the schedule. In schedules over slices,
    `value` has times and memory of each sequence's first slice, `text` of whole microbatches.

    ======================= =====================================================================
    p, m, v, s              ranks, microbatches, chunks per rank, slices per microbatch
    F, I, W, B, O, S, T     times of an action: one stage, one microbatch
    c                       latency of a transfer, the cost ``p2p``
    q                       share that a recompute keeps, with full recompute
    copy                    time of one OFFLOAD or RELOAD; of two where ranks share a link
    unit, kept              activation of one action, and its part that stays from I to W, NaN
                            where stages keep different shares
    shard                   activation of one rank's shard of the output layer
    table                   all costs, as a :class:`debubble.core.cost_table.CostTable`
    ======================= =====================================================================
    """

    quantity: str
    text: str
    value: Callable[[Any], float | list[float]] | None = None
    accuracy: str = "exact"
    holds: Callable[[Any], bool] = lambda case: True  # noqa: ARG005 - the trivial default
    condition: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the quantity, formula, accuracy and condition as plain data."""
        names = {"quantity": self.quantity, "formula": self.text}
        return names | {"accuracy": self.accuracy, "condition": self.condition}

    def of(self, case: Any) -> float | list[float]:
        """Return the value of the formula for a case."""
        if self.value is not None:
            return self.value(case)
        found = value_of(self.text, _numbers(case) | {"r": np.arange(case.p)})
        if self.quantity == "peak_activation":
            found = found * (case.v * case.s * case.unit)
        plain: float | list[float] = np.asarray(found).tolist()
        return plain


CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "no latency": lambda k: k.c == 0,
    "F = I = W": lambda k: k.F == k.I == k.W,
    "W ≤ F and I": lambda k: min(k.F, k.I) >= k.W,
    "O ≥ F and O ≥ B": lambda k: max(k.F, k.B) <= k.O,
    "m ≥ p": lambda k: k.m >= k.p,
    "m ≥ 2p": lambda k: k.m >= 2 * k.p,
    "m ≥ 2p − 1": lambda k: k.m >= 2 * k.p - 1,
    "p ≥ 3": lambda k: k.p >= 3,
    "kept_for_weight = 1": lambda k: k.kept == k.unit,
    "copies take no time": lambda k: k.copy == 0,
    "default memory": lambda k: k.memory is None,
    "published order": lambda k: k.published,
    "objective makespan": lambda k: k.objective == "makespan",
    "objective stage-time": lambda k: k.objective == "stage-time",
}
"""Common conditions of closed forms, by their words."""


def form_of(
    quantity: str,
    text: str,
    value: Callable[[Any], float | list[float]] | None = None,
    accuracy: str = "exact",
    condition: str = "",
    holds: Callable[[Any], bool] = lambda case: True,  # noqa: ARG005 - the trivial default
) -> ClosedForm:
    """Return a closed form; `holds` is what :data:`CONDITIONS` does not have of its condition."""
    known = [CONDITIONS[words] for words in condition.split(", ") if words in CONDITIONS]
    return ClosedForm(
        quantity, text, value, accuracy,
        lambda case: all(each(case) for each in (*known, holds)), condition,
    )  # fmt: skip


makespan_is, stage_time_is, bubble_is, peak_is = (
    partial(form_of, quantity)
    for quantity in ("makespan", "stage_time", "bubble_time", "peak_activation")
)
"""Closed forms of these quantities."""


@dataclass(frozen=True)
class FormValue:
    """A closed form, evaluated."""

    form: ClosedForm
    value: float | list[float]
    """Value of the formula."""
    terms: tuple[tuple[str, float], ...] = ()
    """The terms of the sum that it is, each with its value; empty where it is none."""

    @classmethod
    def of(cls, form: ClosedForm, case: SimpleNamespace) -> FormValue:
        """Return the value of a form for one case, with its terms."""
        value = form.of(case)
        if isinstance(value, list):
            return cls(form, value)
        found = terms(form.text, _numbers(case))
        told = math.isclose(math.fsum(x for _, x in found), value, rel_tol=1e-9)
        return cls(form, value, tuple(found) if told and len(found) > 1 else ())


def _numbers(case: Any) -> dict[str, Any]:
    return {key: x for key, x in vars(case).items() if isinstance(x, int | float)}


@dataclass(frozen=True)
class Option:
    """A parameter that only some schedules have."""

    name: str
    type: str
    default: Any
    """Name, type and default are as in the function's signature."""
    text: str = ""
    """Description, from the function's docstring; empty where that has none."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts it takes, as its description quotes them; empty where any will do."""
        if "str" not in self.type:
            return ()
        return tuple(dict.fromkeys(re.findall(r'``"([^"`]+)"``', self.text)))

    @property
    def types(self) -> tuple[str, ...]:
        """Names of the types it takes, for instance ``("int", "None")``."""
        text = self.type.removeprefix("<class '").removesuffix("'>")
        return tuple(part.strip() for part in text.split("|"))

    def fits(self, value: Any) -> bool:
        """Return whether a value has one of these types; a whole number is a float, too."""
        name = "None" if value is None else type(value).__name__
        return name in self.types or (name == "int" and "float" in self.types)

    def check(self, value: Any) -> None:
        """Refuse a value of another type, where the types are plain ones."""
        plain = value.item() if isinstance(value, np.generic) else value
        if set(self.types) <= PLAIN and not self.fits(plain):
            kinds = " or ".join(name for name in self.types if name != "None")
            shown = reprlib.repr(value)
            raise ParameterError(f"option {self.name} is {shown}; give a value of type {kinds}")


OPTIONS = {
    "group_size": "Microbatches that pass one chunk before the next; more hide more latency and "
    "keep more activations.",
    "slices": "Pieces that every microbatch's sequence is cut into.",
    "cut": '``"flops"`` shortens later slices until all take the same time; ``"tokens"`` makes all '
    "equally long.",
    "objective": '``"makespan"``, or ``"stage-time"``, the largest time from a rank\'s first to '
    "last action.",
    "published": "Use the published schedule, whatever the costs.",
    "in_flight": "Forwards of slices on rank 0 before its first backward.",
    "exchange": "Every slice does the mean share of the attention, which ranks exchange for it.",
}
"""Descriptions of common options, for schedules whose docstrings have none."""


def described_parameters(doc: str) -> dict[str, str]:
    """Return descriptions in the section ``Parameters`` of a numpydoc docstring, by name."""
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
    cited: str
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
    def source(self) -> str:
        """Publication, with the records that `cited` refers to spelled out."""
        return spelled_out(self.cited)

    @property
    def text(self) -> str:
        """Description and figure of the schedule: its function's docstring up to its sections."""
        return _SECTION.split(f"{inspect.getdoc(self.order) or ''}\n", maxsplit=1)[0].rstrip()

    @property
    def use(self) -> str:
        """Advice when to use it, from its description; empty without."""
        _, _, advice = self.text.partition("When to use it: ")
        return " ".join(advice.partition("\n\n")[0].split())

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters its function takes."""
        return tuple(inspect.signature(self.order).parameters)

    def to_dict(self) -> dict[str, Any]:
        """Return the name, source and chunks as plain data."""
        return {
            "name": self.name,
            "aliases": list(self.aliases),
            "title": self.title,
            "year": self.year,
            "source": self.source,
            "chunks": self.chunks,
            "default_chunks": self.chunks or self.default_chunks,
        }

    @property
    def uses_costs(self) -> bool:
        """Return whether the schedule is computed from costs."""
        return "costs" in self.parameters

    def orders_by_costs(self, case: Any) -> bool:
        """Return whether the schedule of a case is computed from its costs."""
        return self.uses_costs and not getattr(case, "published", False)

    def from_costs(self, case: Any) -> tuple[str, ...]:
        """Return what is computed from the costs of a case, of :data:`FROM_COSTS`."""
        cuts = "cut" in self.fields and case.slices > 1 and getattr(case, "cut", "") != "tokens"
        return ("order",) * self.orders_by_costs(case) + ("cut",) * cuts

    def placed(self, case: Any) -> Placement:
        """Return the placement of a case; the same parameters lead to the same object."""
        return _placed(self.placement, case.ranks, case.chunks)

    def most_actions(self, case: Any) -> int:
        """Return an upper bound of the actions of a case, without making it.

        Every stage runs a forward and a backward of each microbatch or slice, the backward in one
        or two pieces; optimizer steps, shards of the output layer and copies are added.
        """
        iterations = case.iterations or 1
        units = case.microbatches * case.slices * iterations
        stages = self.placed(case).stages
        pieces = 5 if self.copies_activations else 3
        shards = 2 * case.ranks if self.fields.get("vocabulary") else 0
        return int(units * (pieces * stages + shards) + case.ranks * iterations)

    def weight_versions_of(self, case: Any) -> int | tuple[int, ...]:
        """Return the versions of the weights that are kept: one number, or one per rank."""
        versions = self.weight_versions
        return versions if isinstance(versions, int) else tuple(versions(case))

    def case(self, **values: Any) -> SimpleNamespace:
        """Return all parameters in one namespace, with defaults filled in, none of them checked."""
        defaults = {option.name: option.default for option in self.options}
        given = {key: value for key, value in values.items() if value is not None}
        usual = {"chunks": self.chunks or self.default_chunks, "slices": 1}
        nothing = dict.fromkeys(("iterations", "costs", "memory", "storage"))
        return SimpleNamespace(**nothing | usual | defaults | given)


@lru_cache(maxsize=16)
def _placed(placement: Callable[[int, int], Placement], ranks: int, chunks: int) -> Placement:
    # What is derived from a placement is kept with it.
    return placement(ranks, chunks)


def check_constraints(entry: Entry, case: SimpleNamespace) -> None:
    """Raise when a case breaks a constraint, with the nearest value that meets all."""
    for constraint in entry.constraints:
        if constraint.holds(case):
            continue
        value = getattr(case, constraint.parameter)
        near = nearest(entry, case, constraint.parameter)
        hint = f"; the nearest that works is {near}" if near is not None else ""
        instead = constraint.instead(case)
        hint += f"{',' if hint else ';'} or use {instead}" if instead else ""
        raise ParameterError(
            f"'{entry.name}' needs {constraint.text}; {constraint.parameter} is {value}{hint}"
        )


def nearest(entry: Entry, case: SimpleNamespace, parameter: str) -> int | None:
    """Return the value of one parameter nearest to the given one that meets every constraint."""
    value = getattr(case, parameter)
    if not isinstance(value, int):
        return None
    tried = SimpleNamespace(**vars(case))
    for distance in range(1, NEAREST_SEARCH):
        for candidate in (value - distance, value + distance):
            setattr(tried, parameter, candidate)
            if candidate >= 1 and all(each.holds(tried) for each in entry.constraints):
                return candidate
    return None


def check_count(name: str, value: Any) -> None:
    """Refuse a parameter that is no whole number from 1 to its limit."""
    if not is_whole(value):
        raise ParameterError(f"{name} is {value!r}; give a whole number")
    if not 1 <= value <= LIMITS[name]:
        raise ParameterError(f"{name} is {value}; it goes from 1 to {LIMITS[name]:,}")
