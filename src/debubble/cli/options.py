"""The options that several commands share, typed and read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from debubble.analysis.check import Report, check
from debubble.analysis.question import AS_READ, OPTIONS, Question, WrongOrderError
from debubble.analysis.unread_costs import unread_notes
from debubble.cli import completion
from debubble.cli.panels import OUTPUT
from debubble.cli.times import parse_times
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, ScheduleError
from debubble.core.given_layers import make_layers
from debubble.core.options import MemoryLimit, OptionSpec, Word, read_whole
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.engine.memory import Limit
from debubble.engine.timeline import Timeline
from debubble.interchange.files import declared_options, is_file_name, is_foreign, parse_options
from debubble.interchange.jitter import read_jitter
from debubble.interchange.named import question
from debubble.lowering.chain import LOWERINGS, read_lowerings
from debubble.schedules.registry import find

if TYPE_CHECKING:
    from debubble.interchange.cost_files import CostFile

Text = str | None
"""The text of an option as typed, None where it was not."""


def takes(
    metavar: str | None, help: str, *flags: str, complete: completion.Complete | None = None,
    panel: str | None = None,
) -> Any:  # fmt: skip
    """Declare an option that takes a text; its flag is its name unless others are given."""
    return typer.Option(
        *flags, metavar=metavar, help=help, autocompletion=complete, rich_help_panel=panel
    )


def writes(help: str) -> Any:
    """Declare the option with the name of the file to write."""
    return takes("FILE", help, "--output", "-o", panel=OUTPUT)


def switch(flag: str, help: str, panel: str | None = None) -> Any:
    """Declare an option that is typed or not."""
    return typer.Option(flag, help=help, rich_help_panel=panel)


def _schedules(help: str, metavar: str = "SCHEDULE") -> Any:
    return typer.Argument(metavar=metavar, help=help, autocompletion=completion.schedules)


ScheduleName = Annotated[
    str, _schedules("Name, .csv or .json file, file.py:function or torch:NAME.")
]
ScheduleNames = Annotated[
    list[str],
    _schedules("Names, .csv or .json files, file.py:function or torch:NAME.", "SCHEDULE..."),
]
AsJson = Annotated[bool, switch("--json", "Print one JSON object.", OUTPUT)]

Wide = Annotated[bool, switch("--wide", "Show all measures.", OUTPUT)]

Late = Annotated[
    bool,
    switch(
        "--as-late-as-possible",
        "Start forwards as late as possible.",
        "Schedule and sizes",
    ),
]


@dataclass(frozen=True)
class Setup:
    """The options of a question as typed: texts by the name of their row, None where not typed.

    Numbers are text here, so that messages about them are debubble's own.
    """

    texts: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.texts.get(name)

    def but(self, **texts: Any) -> Setup:
        """Return the options with other texts."""
        return Setup({**self.texts, **texts})

    def read(self, limits: str = "") -> Inputs:
        """Read the options; `limits` ends the advice on memory limits."""
        texts = {name: text for name, text in self.texts.items() if text is not None}
        file, costs = self._costs()
        pairs = list(texts.get("option", ()))
        pairs += [f"group_size={texts['group_size']}"] if "group_size" in texts else []
        several = {
            name: tuple(read_whole(_ROWS[name].flag, part) for part in texts[name].split(","))
            for name in _SEVERAL
            if "," in texts.get(name, "")
        }
        values = {
            name: _ROWS[name].type.read(_ROWS[name].flag, text)
            for name, text in texts.items()
            if name in AS_READ and name not in several
        }
        memory = None if file is None else file.memory_limit
        if "memory" in texts:
            unit = costs.activation_unit
            memory = MemoryLimit().read("--memory", texts["memory"], unit, limits)
        asked = Question(
            "", **values, costs=costs, memory=memory, jitter=read_jitter(texts),
            layers=make_layers(file.layers, costs) if file is not None and file.layers else None,
            lowerings=read_lowerings({row.name: self[row.name] for row in LOWERINGS}),
        )  # fmt: skip
        return Inputs(asked, tuple(pairs), file, several, "p2p_mode" in texts)

    def _costs(self) -> tuple[CostFile | None, Costs]:
        """Return the cost file, and the costs of it or of another option."""
        flags = {_ROWS[name].flag: self[name] for name in ("times", "rank_times", "costs")}
        given = {flag: text for flag, text in flags.items() if text is not None}
        if len(given) > 1:
            raise ParameterError(f"{' and '.join(given)} all give costs; use one of them")
        file, costs = None, Costs()
        for flag, text in given.items():
            if flag == "--costs":
                # Most commands have no cost file, and loading its reader takes 10 ms.
                from debubble.interchange.cost_files import load_costs

                file = load_costs(text)
            costs = parse_times(text, flag) if file is None else file.costs
        if self["runtime"] is not None:
            costs = replace(costs, runtime=_ROWS["runtime"].type.read("--runtime", self["runtime"]))
        return file, costs


_ROWS = {row.name: row for row in OPTIONS}
_SEVERAL = ("microbatches", "chunks")
"""Sizes of which a comparison takes several."""


@dataclass(frozen=True)
class Inputs:
    """The options of a question, read; its schedule is not named yet."""

    asked: Question
    """The question, without a name."""
    pairs: tuple[str, ...]
    """The ``KEY=VALUE`` texts of options of schedules."""
    file: CostFile | None
    several: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Sizes of which several are given, for a row of a comparison each."""
    mode_typed: bool = False
    """Whether the mode of transfers was typed; else transfers have to run in all modes."""

    @property
    def costs(self) -> Costs:
        """Costs of the question."""
        return self.asked.costs

    def costs_of(self, schedule: Schedule) -> Costs:
        """Return the costs of a schedule's stages; the file's layers are cut into them."""
        return replace(self.asked, schedule=schedule).stage_costs

    @property
    def memory(self) -> Limit | None:
        """Memory limit of the question."""
        return self.asked.memory

    @property
    def mode(self) -> P2PMode:
        """Mode of transfers of the question."""
        return self.asked.p2p_mode

    @property
    def source(self) -> str:
        """Name and source of the cost file; empty when there is none."""
        labels = () if self.file is None else (self.file.name, self.file.source)
        return " · ".join(filter(None, labels))

    def size(self, key: str) -> Any:
        """Return a size as typed, else as in the cost file."""
        typed = getattr(self.asked, key)
        return getattr(self.file, key, None) if typed is None else typed

    def options(self, targets: Iterable[str]) -> dict[str, Any]:
        """Return the typed options of schedules, read as the named schedules declare them."""
        if not self.pairs:
            return {}
        return parse_options(self.pairs, declared_options(targets, self.pairs))

    def of(self, target: str, among: Iterable[str] = (), *, late: bool = False) -> Question:
        """Return the question about a named schedule.

        A number of chunks is for schedules that leave a choice: one with its own gets none, if a
        schedule `among` those of the command has a choice.
        """

        def has_own(name: str) -> bool:
            return is_file_name(name) if is_foreign(name) else find(name).chunks is not None

        for name, numbers in self.several.items():
            raise ParameterError(
                f"{_ROWS[name].flag} is '{','.join(map(str, numbers))}'; several numbers are for "
                "'debubble compare'; give one here"
            )
        asked = replace(self.asked, options=self.options([target]), late=late)
        if has_own(target) and not all(map(has_own, among)):
            asked = replace(asked, chunks=None)
        return question(target, asked, self.file)

    def unread(self, *schedules: Schedule, tried: Container[str] = ()) -> list[str]:
        """Return notes of typed costs that change nothing of any of some schedules.

        A cost file is for many schedules; typed costs are for these. `tried` are options that a
        search may have left out.
        """
        return [] if self.file is not None else unread_notes(schedules, self.costs, tried)

    def simulate(self, question: Question, target: str) -> Timeline:
        """Simulate; a wrong schedule of a file or function is refused with advice."""
        try:
            return question.timeline
        except WrongOrderError as error:
            raise ScheduleError(
                f"{target}: {error}\n'debubble check' lists every problem of it"
            ) from None

    def verdict(self, schedule: Schedule, makespan: float | None = None) -> Report:
        """Return the report of 'debubble check' on a schedule made for these options."""
        return check(
            schedule, memory=self.memory, costs=self.costs_of(schedule), makespan=makespan,
            p2p_mode=self.mode if self.mode_typed else None,
        )  # fmt: skip


def refuse_faulty(report: Report, target: str, more: str) -> None:
    """Refuse a schedule that 'debubble check' finds fault with; `more` ends the message."""
    if not report.ok:
        advice = f"'debubble check' lists every problem{more}"
        raise ScheduleError(f"{target}: {report.problems[0]}\n{advice}")


def with_setup(
    function: Callable[..., None] | None = None,
    *,
    more: Iterable[OptionSpec] = (),
    hidden: Container[OptionSpec] = (),
) -> Callable[..., Any]:
    """Give a command the options of :data:`OPTIONS`, and `more`, for its parameter ``setup``.

    An option of its own with the same name counts in place of the shared one. The help leaves
    `hidden` ones out.
    """
    if function is None:
        return partial(with_setup, more=more, hidden=hidden)
    own = inspect.signature(function).parameters
    shared = [
        row for row in (*OPTIONS, *more)
        if row.name not in own and function.__name__ in (row.only or (function.__name__,))
    ]  # fmt: skip
    return with_rows(function, "setup", shared, Setup, hidden=hidden)


def with_rows(
    function: Callable[..., None], name: str, rows: Iterable[OptionSpec],
    make: Callable[[dict[str, Any]], Any] = dict, *, defaults: bool = False,
    hidden: Container[OptionSpec] = (),
) -> Callable[..., Any]:  # fmt: skip
    """Give a command an option for every row, and its parameter `name` what `make` makes of them.

    `make` gets the texts as typed, by row; None where nothing was, or its default if `defaults`.
    """
    listed = {row.name: row for row in rows}
    usual = {
        key: str(row.default) if defaults and row.default is not None else None
        for key, row in listed.items()
    }
    once = {key for key, text in usual.items() if key in _ONCE and text is None}
    added = {
        key: (_annotation(row, row in hidden, several=row.repeated or key in once), usual[key])
        for key, row in listed.items()
    }

    def made(typed: Mapping[str, Any]) -> Any:
        return make({
            key: _once(listed[key], texts) if key in once else texts
            for key, texts in typed.items()
        })  # fmt: skip

    return with_options(function, name, added, made)


_ONCE = {row.name for row in LOWERINGS}
"""Options of which a second one is refused: it would replace the first without a word."""


def _once(row: OptionSpec, texts: Sequence[str] | None) -> Text:
    """Return the text of an option; a ParameterError if it was typed several times."""
    if texts and len(texts) > 1:
        raise ParameterError(
            f"{row.flag} is given {len(texts)} times: {' and '.join(texts)}; give one value "
            f"({row.help[0].lower()}{row.help[1:].rstrip('.')})"
        )
    return texts[0] if texts else None


def with_options(
    function: Callable[..., None], name: str, added: Mapping[str, tuple[Any, Any]],
    make: Callable[[dict[str, Any]], Any], *, last: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """Give a command options, and its parameter `name` what `make` makes of their values.

    `added` has annotation and default of each; the help has them in place of the parameter, or at
    the end.
    """
    own = inspect.signature(function).parameters
    hints = get_type_hints(function, include_extras=True)
    parameters = [p.replace(annotation=hints[key]) for key, p in own.items() if key != name]
    place = len(parameters) if last else list(own).index(name)
    parameters[place:place] = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=usual)
        for key, (annotation, usual) in added.items()
    ]
    parameters.sort(key=lambda parameter: parameter.default is not parameter.empty)

    @wraps(function)
    def run(**values: Any) -> None:
        typed = {key: values.pop(key) for key in added}
        function(**{name: make(typed)}, **values)

    vars(run)["__signature__"] = inspect.Signature(
        [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _annotation(row: OptionSpec, hidden: bool, *, several: bool) -> Any:
    words = row.type.words if isinstance(row.type, Word) else ()
    complete = completion.one_of(words) if words else completion.BY_NAME.get(row.name)
    option = takes(row.metavar, row.help, *row.flags, complete=complete, panel=row.panel)
    option.hidden = hidden
    if row.shown:
        option.show_default = row.shown
    return Annotated[list[str] | None if several else Text, option]
