"""Skip connections: parts of a stage's output that become keywords of a stage that is no neighbor.

What one stage carries to another goes as one message, a dict by keyword.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from debubble.core.carries import Carries
from debubble.core.errors import ParameterError, ScheduleError
from debubble.core.schedule import Schedule
from debubble.lowering.carries import add_carries
from debubble.torch.errors import RunError


class Skip(NamedTuple):
    """A part of a stage's output: a key of a dict or a place in a tuple, and its keyword."""

    part: str | int
    keyword: str


@dataclass(frozen=True)
class Skips:
    """The skip connections of a pipeline."""

    leaving: Mapping[int, tuple[Skip, ...]] = field(default_factory=dict)
    """Parts that each stage carries to another."""
    arriving: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Keywords that each stage gets."""
    carries: Carries = ()
    """Pairs (from stage, to stage)."""

    @classmethod
    def of(cls, carry: Any) -> Skips:
        """Read ``{"0.skip": 5}``; raises ParameterError for anything else."""
        if not isinstance(carry, Mapping):
            raise ParameterError(f'carry is {carry!r}; give a mapping: {{"0.skip": 5}}')
        leaving: dict[int, tuple[Skip, ...]] = {}
        arriving: dict[int, tuple[str, ...]] = {}
        pairs: dict[int, int] = {}
        for source, target in carry.items():
            stage, part, there, keyword = _read(source, target)
            if keyword in arriving.get(there, ()):
                raise ParameterError(
                    f"carry gives stage {there} two parts as {keyword}=; name one of them anew: "
                    f'{{{source!r}: "{there}.other"}}'
                )
            if pairs.setdefault(stage, there) != there:
                raise ParameterError(
                    f"carry takes stage {stage} to stages {pairs[stage]} and {there}, and a stage "
                    f"carries to one; let stage {min(pairs[stage], there)} carry it on"
                )
            leaving[stage] = (*leaving.get(stage, ()), Skip(part, keyword))
            arriving[there] = (*arriving.get(there, ()), keyword)
        return cls(leaving, arriving, tuple(sorted(pairs.items())))

    def put_in(self, schedule: Schedule) -> Schedule:
        """Return the schedule with these carries, which it may have already.

        Raises ParameterError when it has others, or lacks their stages.
        """
        if schedule.carries == self.carries:
            return schedule
        if schedule.carries:
            shown = " and ".join(f"{one}:{other}" for one, other in schedule.carries)
            one, other = schedule.carries[0]
            raise ParameterError(
                f"'{schedule.name}' carries {shown}; give carry= with the same stages: "
                f'{{"{one}.NAME": {other}}}'
            )
        try:
            return add_carries(schedule, self.carries)
        except ScheduleError as error:
            raise ParameterError(f"carry=: {error}") from None

    def check(self, modules: Mapping[int, nn.Module]) -> None:
        """Refuse stages that do not take the keywords that they get."""
        for stage, module in modules.items():
            for keyword in self.arriving.get(stage, ()):
                names = _keywords_of(module)
                if names is not None and keyword not in names:
                    raise ParameterError(
                        f"carry gives stage {stage} {keyword}=, and its forward takes "
                        f"{', '.join(names) or 'nothing'}; add {keyword} to its parameters"
                    )

    def take_out(self, stage: int, output: Any) -> tuple[Any, dict[str, Any] | None]:
        """Return a stage's output without what it carries, and that by keyword; None for nothing.

        Raises RunError when a part is not there.
        """
        parts = self.leaving.get(stage)
        if parts is None:
            return output, None
        named = isinstance(output, Mapping)
        there = range(len(output)) if isinstance(output, tuple | list) else output if named else ()
        found = {}
        for part, keyword in parts:
            if part not in there:
                raise RunError(
                    f"carry names '{stage}.{part}', and stage {stage} returned {_kind(output)}; "
                    "return a dict with that key, or name a place in a tuple"
                )
            found[keyword] = output[part]
        taken = {part for part, _ in parts}
        if named:
            return {key: item for key, item in output.items() if key not in taken}, found
        return tuple(item for place, item in enumerate(output) if place not in taken), found

    def without_tensor(self, stage: int, carried: Mapping[str, Any]) -> RunError:
        """Return the refusal of parts, by keyword, that have no tensor among them."""
        parts = [
            f"{part!r} is {reprlib.repr(carried[keyword])}" for part, keyword in self.leaving[stage]
        ]
        return RunError(
            f"stage {stage} carries no tensor: {', '.join(parts)} in its output; return a tensor "
            "there, or leave it out of carry"
        )


NO_SKIPS = Skips()


def _read(source: Any, target: Any) -> tuple[int, str | int, int, str]:
    """Return the stage and part of a key of `carry`, and the stage and keyword of its value."""
    stage, _, part = str(source).partition(".")
    if not isinstance(source, str) or not (stage.isdecimal() and part):
        raise ParameterError(
            f"carry has the key {source!r}; give a stage and a key of its output, or a place in "
            'it: "0.skip", "0.1"'
        )
    there, _, keyword = str(target).partition(".")
    if isinstance(target, bool) or not isinstance(target, int | str) or not there.isdecimal():
        raise ParameterError(
            f"carry[{source!r}] is {target!r}; give a stage, or a stage and its keyword: 5, "
            '"5.skip"'
        )
    keyword = keyword or part
    if not keyword.isidentifier():
        raise ParameterError(
            f'carry[{source!r}] is {target!r}, and {keyword} is no keyword; add one: "{there}.skip"'
        )
    if int(stage) >= int(there):
        raise ParameterError(
            f"carry[{source!r}] is {target!r}, and stage {stage} does not come before stage "
            f"{there}; carry to a later stage"
        )
    return int(stage), int(part) if part.isdecimal() else part, int(there), keyword


def _keywords_of(module: nn.Module) -> list[str] | None:
    """Return the parameters of a module's forward; None where it takes any keyword."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return [one.name for one in parameters if one.kind is not one.VAR_POSITIONAL]


def _kind(output: Any) -> str:
    """Return a few words on a stage's output."""
    if isinstance(output, Mapping):
        return f"a dict with {', '.join(map(repr, output)) or 'nothing'}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
