"""The options that several commands share, and what they mean together."""

from __future__ import annotations

import inspect
import math
import re
import string
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from debubble.cli import completion
from debubble.core.costs import RUNTIMES, Costs
from debubble.core.errors import ParameterError, ScheduleError, did_you_mean
from debubble.core.units import factor
from debubble.engine.graph import P2PMode
from debubble.interchange.text import read_number
from debubble.lowering.chain import LOWERINGS, Lowering, read_lowerings

if TYPE_CHECKING:
    from debubble.core.schedule import Schedule
    from debubble.engine.memory import Limit
    from debubble.engine.timeline import Timeline
    from debubble.interchange.cost_files import CostFile

_MODES = get_args(P2PMode)


Text = str | None
"""The text of an option as typed, None where it was not."""


def takes(metavar: str, help: str, *flags: str, complete: completion.Complete | None = None) -> Any:
    """An option that takes a text; its flag is its name unless others are given."""
    return typer.Option(*flags, metavar=metavar, help=help, autocompletion=complete)


def writes(help: str) -> Any:
    """The option with the name of the file to write."""
    return takes("FILE", help, "--output", "-o")


def switch(flag: str, help: str) -> Any:
    """An option that is typed or not."""
    return typer.Option(flag, help=help)


def _schedules(help: str) -> Any:
    return typer.Argument(metavar="SCHEDULE", help=help, autocompletion=completion.schedules)


ScheduleName = Annotated[
    str, _schedules("Name, .csv or .json file, file.py:function or torch:NAME.")
]
ScheduleNames = Annotated[
    list[str], _schedules("Names, .csv or .json files, file.py:function or torch:NAME.")
]
AsJson = Annotated[bool, switch("--json", "Print one JSON object.")]

Late = Annotated[
    bool, switch("--as-late-as-possible", "Start forwards as late as nothing else is delayed.")
]


@dataclass(frozen=True)
class Setup:
    """The parameters of a simulation, as typed.

    Numbers are text here, so that messages about them are debubble's own.
    """

    ranks: Annotated[Text, takes("N", "Pipeline ranks.", "--ranks", "-p")] = None
    microbatches: Annotated[
        Text, takes("N", "Microbatches per iteration.", "--microbatches", "-m")
    ] = None
    chunks: Annotated[
        Text, takes("N", "Stages per rank, where there is choice.", "--chunks", "-v")
    ] = None
    times: Annotated[
        Text,
        takes(
            "TIMES",
            "Costs per action: F=1,I=1,W=1,O=2.5,p2p=0.1; per stage: F=1/1/2/1 or F=1,F.2=2.",
        ),
    ] = None
    rank_times: Annotated[
        Text, takes("TIMES", "Costs per rank, divided by each schedule's chunks.")
    ] = None
    costs: Annotated[
        Text, takes("FILE", "Cost file: .yaml, .json or .toml; may set -p, -m, -v.")
    ] = None
    runtime: Annotated[
        Text,
        takes(
            "NAME", "Whose split backward: any (the default), or torch, whose stage 0 does it in W."
        ),
    ] = None
    p2p_mode: Annotated[
        Text,
        takes(
            "MODE",
            f"Transfers are {_MODES[0]} (the default), {', '.join(_MODES[1:-1])} or {_MODES[-1]}.",
            complete=completion.one_of(_MODES),
        ),
    ] = None
    iterations: Annotated[
        Text, takes("N", "Training steps in a row, with an optimizer step each.")
    ] = None
    sync: Annotated[
        Text, takes("RULE", "What an optimizer step waits for: global, local or post-validation.")
    ] = None
    memory: Annotated[
        Text,
        takes(
            "LIMIT",
            "Memory per rank, in activation units, the cost file's unit, or one of bytes: "
            "80GB; one for each: 4/4/3/3.",
        ),
    ] = None
    lowering: Mapping[str, str | None] = field(default_factory=dict)
    """The texts of :data:`debubble.lowering.chain.LOWERINGS`, an option each."""
    option: Annotated[
        list[str] | None, takes("KEY=VALUE", "Option of the schedule; may be repeated.")
    ] = None
    group_size: Annotated[Text, takes("N", "Microbatches per group of interleaved schedules.")] = (
        None
    )

    def read(self, limits: str = "") -> Inputs:
        """Read the options; `limits` says what a memory limit can be beside numbers."""
        from debubble.engine.graph import P2P_MODES

        mode = _one_of("--p2p-mode", self.p2p_mode or "overlapped", P2P_MODES)
        costs, file = self._costs()
        if self.runtime is not None:
            costs = replace(costs, runtime=_one_of("--runtime", self.runtime, RUNTIMES))
        pairs = list(self.option or [])
        if self.group_size is not None:
            pairs.append(f"group_size={self.group_size}")
        memory = None if self.memory is None else read_limit(self.memory, costs, limits)
        if memory is None and file is not None:
            memory = file.memory_limit
        return Inputs(
            ranks=_whole("-p", self.ranks),
            microbatches=_whole("-m", self.microbatches),
            chunks=self._chunks(),
            iterations=_whole("--iterations", self.iterations),
            costs=costs,
            sync=self.sync,
            memory=memory,
            mode=mode,
            lowering=read_lowerings(self.lowering),
            pairs=tuple(pairs),
            file=file,
        )

    def _chunks(self) -> int | None:
        if self.chunks is not None and "," in self.chunks:
            raise ParameterError(
                f"-v is '{self.chunks}'; several numbers are for 'debubble compare'; give one here"
            )
        return _whole("-v", self.chunks)

    def _costs(self) -> tuple[Costs, CostFile | None]:
        named = {"--times": self.times, "--rank-times": self.rank_times, "--costs": self.costs}
        given = {flag: text for flag, text in named.items() if text is not None}
        if len(given) > 1:
            raise ParameterError(f"{' and '.join(given)} all give costs; use one of them")
        for flag, text in given.items():
            if flag == "--costs":
                from debubble.interchange.cost_files import load_costs

                file = load_costs(text)
                return file.costs, file
            from debubble.cli.times import parse_times

            return parse_times(text, flag), None
        return Costs(), None


def _whole(flag: str, text: str | None) -> int | None:
    return None if text is None else whole(flag, text)


def whole(flag: str, text: str) -> int:
    """The whole number in the text of an option."""
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", text.strip(" ")):
        raise ParameterError(f"{flag} is '{text}'; give a whole number")
    return int(text)


def positive(flag: str, text: str, unit: str = "") -> float:
    """The positive number in the text of an option; `unit` is for the message, " of seconds"."""
    number = read_number(text)
    if not 0 < number < math.inf:
        raise ParameterError(f"{flag} is '{text}'; it is a positive number{unit}")
    return number


def _one_of(flag: str, text: str | None, known: Iterable[str]) -> Any:
    if text is not None and text not in known:
        raise ParameterError(f"{flag} is '{text}'; {did_you_mean(text, known)}")
    return text


def read_limit(text: str, costs: Costs, more: str = "") -> Limit:
    """The memory limit in a text: one number, or one for every rank such as ``4/4/3/3``.

    A number may have a unit, ``80GB``, where the costs count in one of bytes.
    """
    limits = tuple(_limit(part, costs.activation_unit) for part in text.split("/"))
    if not all(limits):
        raise ParameterError(
            f"--memory is '{text}'; the limit is a positive number, or one per rank: 4/4/3/3{more}"
        )
    return limits if len(limits) > 1 else limits[0]


def _limit(text: str, unit: str) -> float:
    """The positive number in a text in a unit, 0 where it is none."""
    digits = text.rstrip(string.ascii_letters + " ")
    given = text[len(digits) :].strip()
    number = read_number(digits)
    if given and 0 < number < math.inf:
        times = factor(given, unit)
        if math.isnan(times):
            counted = f"in '{unit}'" if unit else "without a unit"
            raise ParameterError(
                f"--memory is '{text}', and the costs count memory {counted}; give a number in "
                "that, or a cost file with memory: {unit: bytes}"
            )
        number *= times
    return number if 0 < number < math.inf else 0.0


@dataclass(frozen=True)
class Inputs:
    """The parameters of a simulation, read; None where nothing was typed.

    The memory limit is of every rank, or one for each; `lowering` are keywords of
    :func:`debubble.lowering.chain.lower`, and `pairs` the ``KEY=VALUE`` texts of options.
    """

    ranks: int | None
    microbatches: int | None
    chunks: int | None
    iterations: int | None
    costs: Costs
    memory: Limit | None
    sync: str | None
    mode: P2PMode
    lowering: Mapping[str, Any]
    pairs: tuple[str, ...]
    file: CostFile | None

    @property
    def source(self) -> str:
        """Name and source of the cost file; empty when there is none."""
        if self.file is None:
            return ""
        return " · ".join(text for text in (self.file.name, self.file.source) if text)

    @property
    def defaults(self) -> Mapping[str, int | None]:
        """Ranks, microbatches and chunks of the cost file."""
        if self.file is None:
            return {}
        return {key: getattr(self.file, key) for key in ("ranks", "microbatches", "chunks")}

    def size(self, key: str) -> Any:
        """A size as typed, else as in the cost file."""
        typed = getattr(self, key)
        return self.defaults.get(key) if typed is None else typed

    def options(self, targets: Iterable[str]) -> dict[str, Any]:
        """Values of the typed options, read as what the named schedules declare."""
        if not self.pairs:
            return {}
        from debubble.interchange.files import declared_options
        from debubble.interchange.options import parse_options

        return parse_options(self.pairs, declared_options(targets, self.pairs))

    def schedule(self, target: str) -> Schedule:
        """The schedule that a text names, made for these parameters."""
        from debubble.interchange.named import lowered

        return lowered(
            target,
            self.lowering,
            ranks=self.ranks,
            microbatches=self.microbatches,
            chunks=self.chunks,
            iterations=self.iterations,
            costs=self.costs,
            memory=self.memory,
            p2p_mode=self.mode,
            sync=self.sync,
            defaults=self.defaults,
            **self.options([target]),
        )

    def unread(self, *schedules: Schedule, tried: Container[str] = ()) -> list[str]:
        """Notes of typed costs that change nothing of any of some schedules.

        A cost file is for many schedules; what is typed is for these. Options that a search `tried`
        may have left out.
        """
        from debubble.analysis.unread_costs import unread_notes

        return [] if self.file is not None else unread_notes(schedules, self.costs, tried)

    @property
    def plain(self) -> Inputs:
        """The same without lowering."""
        return replace(self, lowering=dict.fromkeys(self.lowering))

    def simulate(self, schedule: Schedule, target: str, *, late: bool = False) -> Timeline:
        """The timeline of a schedule with these costs, forwards as late as possible if so asked.

        That of a file or function is refused where it is not right: one that lacks actions would
        look fast.
        """
        from debubble.engine.timeline import simulate
        from debubble.interchange.files import is_foreign

        if is_foreign(target):
            self.refuse_wrong(schedule, target, " of it", only_times=True)
        timeline = simulate(schedule, self.costs, self.mode)
        return timeline.as_late_as_possible() if late else timeline

    def refuse_wrong(
        self, schedule: Schedule, target: str, more: str, only_times: bool = False
    ) -> None:
        """Refuse a schedule that 'debubble check' finds fault with; `more` ends the message.

        With `only_times` that is what makes its times wrong.
        """
        from debubble.analysis.check import check

        report = check(schedule, p2p_mode=self.mode)
        problems = report.of_times if only_times else report.problems
        if problems:
            advice = f"'debubble check' lists every problem{more}"
            raise ScheduleError(f"{target}: {problems[0]}\n{advice}")


def with_setup(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of :class:`Setup` in place of its parameter ``setup``.

    An option of its own with the same name counts in place of the shared one.
    """
    hints = get_type_hints(function, include_extras=True)
    shared = get_type_hints(Setup, include_extras=True)
    parameters = []
    own_names = set(inspect.signature(function).parameters)
    shared_fields = [spec for spec in fields(Setup) if spec.name not in own_names]
    for name, parameter in inspect.signature(function).parameters.items():
        if name != "setup":
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        for spec in shared_fields:
            own = [(spec.name, spec.default, shared[spec.name])]
            if spec.name == "lowering":
                own = [(lowering.name, None, _option(lowering)) for lowering in LOWERINGS]
            parameters += [
                inspect.Parameter(key, parameter.KEYWORD_ONLY, default=default, annotation=hint)
                for key, default, hint in own
            ]
    parameters.sort(key=lambda parameter: parameter.default is not parameter.empty)

    @wraps(function)
    def run(**values: Any) -> None:
        lowering = {row.name: values.pop(row.name) for row in LOWERINGS}
        given = {spec.name: values.pop(spec.name) for spec in shared_fields if spec.name in values}
        function(setup=Setup(**given, lowering=lowering), **values)

    signature = inspect.Signature(
        [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    vars(run)["__signature__"] = signature
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _option(lowering: Lowering) -> Any:
    return Annotated[Text, takes(lowering.metavar, lowering.help)]
