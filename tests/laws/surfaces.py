"""Every surface that answers a question, and cases made from the table of options."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import debubble as db
from debubble.analysis.question import OPTIONS
from debubble.cli.times import parse_times
from debubble.core.options import OptionSpec
from debubble.interchange.cost_files import costs_data, parse_costs
from debubble.lowering.chain import LOWERINGS
from debubble.playground import work
from debubble.playground.state import FIELD, PageState
from debubble.sweeps import commands, parameters
from tests.command import Result, call


def row_of(name: str) -> OptionSpec:
    """The row of an option."""
    return next(row for row in OPTIONS if row.name == name)


SIZES = {"ranks": "4", "microbatches": "8"}
"""Sizes of every case that does not say its own."""

PAYING = {"times": "F=2,I=3,W=1,p2p=0.5,OPT=3,reduce_grad=1,unshard=1,host_bandwidth=2"}
"""Costs under which every option of a question matters."""

COSTS = {"times": "action", "rank_times": "rank"}
"""Options that are costs, and their bases."""

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v")
"""One schedule of every sort of placement; the first two have options of their own."""


@dataclass(frozen=True)
class Case:
    """A schedule, and the options of a question as typed."""

    schedule: str
    texts: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.schedule, *(f"{key}={text}" for key, text in self.texts.items())])

    def text(self, name: str) -> str | None:
        return {**SIZES, **self.texts}.get(name)

    def words(self) -> list[str]:
        """The options on a command line."""
        found: list[str] = []
        for name, text in {**SIZES, **self.texts}.items():
            found += [row_of(name).flag, text]
        return found

    @property
    def varies(self) -> bool:
        return any(row_of(name).panel == "Variation" for name in self.texts)

    @property
    def costs(self) -> db.Costs:
        for name in COSTS:
            if name in self.texts:
                return parse_times(self.texts[name], row_of(name).flag)
        if "costs" in self.texts:
            return parse_costs(Path(self.texts["costs"]).read_text(), self.texts["costs"]).costs
        return db.Costs()

    def values(self) -> dict[str, Any]:
        """The options as values of Python, other than costs and options of the schedule."""
        found = {}
        for name, text in {**SIZES, **self.texts}.items():
            row = row_of(name)
            if not row.typed_only:
                found[name] = row.type.read(row.flag, text)
        return found


@dataclass(frozen=True)
class Answer:
    """What a surface says."""

    makespan: float
    peaks: float
    fits: bool | None = None


def answered(*words: str) -> Result:
    """Run a command that must not be refused."""
    result = call(*words)
    assert result.code == 0, result.err
    return result


def by_simulate(case: Case) -> Answer:
    data = answered("simulate", case.schedule, *case.words(), "--json").data
    return Answer(data["makespan"], max(data["peak_activation"]), data["fits"])


def by_compare(case: Case) -> Answer:
    row = answered("compare", case.schedule, *case.words(), "--json").data["rows"][0]
    return Answer(row["makespan"], row["peak_activation"], row["fits"])


def by_python(case: Case) -> Answer:
    result = db.compare([case.schedule], costs=case.costs, **case.values())
    assert result.rows, result.skipped
    (row,) = result.rows
    return Answer(row.makespan, row.peak_activation, row.fits)


def by_page(case: Case) -> Answer:
    costs: dict[str, Any] = {"basis": "rank"}
    given = costs_data(case.costs)
    if case.costs != db.Costs():
        costs = {"file": {"name": "costs.json", "text": json.dumps(given)}}
    values = {FIELD.get(name, name): value for name, value in case.values().items()}
    state = PageState.model_validate(
        {"schedules": [{"name": case.schedule}], "costs": costs, **values}
    )
    answer = work.simulate(state)
    assert not answer["problems"], answer["problems"]
    (row,) = answer["table"]["rows"]
    return Answer(row["makespan"], row["peak_activation"], row["fits"])


def by_sweep(case: Case) -> Answer:
    options: dict[str, Any] = {}
    for name, value in {"schedule": case.schedule, **case.values()}.items():
        read = {**parameters.SIMULATION, "schedule": parameters.SCHEDULE}[name].check
        row = next((row for row in LOWERINGS if row.name == name), None)
        options[name] = read(name, case.text(name) if row else value)
    given = costs_data(case.costs)
    if case.costs != db.Costs():
        options["costs"] = parse_costs(json.dumps(given), "costs.json")
    (row,) = commands.simulate(options)
    return Answer(row["makespan"], row["peak_activation"], row["fits"])


def by_trace(case: Case) -> Answer:
    data = answered("export", case.schedule, *case.words(), "--to", "chrome-trace").data
    return Answer(data["otherData"]["makespan"], float("nan"))


def numbers(command: str, case: Case) -> Any:
    """All numbers that a command prints for a case, without its words."""
    data = answered(command, case.schedule, *case.words(), "--json").data
    words = {"conventions", "costs", "memory_limit", "fits", "notes", "headline", "memory"}
    return _without(data, words)


def _without(data: Any, words: set[str]) -> Any:
    if isinstance(data, dict):
        return {key: _without(value, words) for key, value in data.items() if key not in words}
    return [_without(item, words) for item in data] if isinstance(data, list) else data


SURFACES: dict[str, Callable[[Case], Answer]] = {
    "simulate": by_simulate,
    "compare": by_compare,
    "Python": by_python,
    "page": by_page,
    "sweep": by_sweep,
    "trace": by_trace,
}


def given(row: OptionSpec, text: str) -> dict[str, str]:
    """The option with a value, and those without which it means nothing."""
    whole = {} if not row.part_of else given(
        row_of(row.part_of), row_of(row.part_of).examples[-1]
    )  # fmt: skip
    return {**whole, row.name: text}


def without(row: OptionSpec) -> dict[str, str]:
    """The options without which one means nothing, and not itself."""
    return {name: text for name, text in given(row, "").items() if name != row.name}


def values_of(row: OptionSpec, folder: Path) -> list[str]:
    """Values of an option as typed."""
    return [str(cost_file(folder))] if row.name == "costs" else list(row.examples)


def cost_file(folder: Path) -> Path:
    """A file of costs per rank."""
    path = folder / "costs.json"
    path.write_text(json.dumps(costs_data(db.Costs.per_rank(F=2, I=3, W=1, p2p=0.5))))
    return path
