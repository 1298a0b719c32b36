"""Every lowering of a schedule, in the one order that works: one row of :data:`LOWERINGS` each.

The command line, comparisons, the playground and :func:`lower` walk this list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from debubble.core.actions import MAX_STAGES
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.options import OptionSpec, Panel, Range, Word, quoted, read_whole
from debubble.core.schedule import Schedule
from debubble.engine.memory import Limit
from debubble.engine.modes import P2PMode, check_mode
from debubble.lowering.best_lowering import Setting
from debubble.lowering.carries import add_carries, read_carries
from debubble.lowering.offload import ways_to_offload
from debubble.lowering.recompute import check_cap, place_of, ways_to_recompute
from debubble.lowering.sharding import LOOKAHEADS, SHARDING_MODES, add_sharding
from debubble.lowering.transfers import TRANSFER_POLICIES, add_transfers

NOTHING = "none"
"""The text of no such actions, for a grid of values."""

Values = Mapping[str, Any]
"""Values of all lowerings by name, None where nothing is asked for."""


@dataclass(frozen=True)
class Choice:
    """The control of a lowering in the playground: a list of values."""

    label: str
    """Label of the control."""
    values: Mapping[str, str]
    """Label of every value."""
    none: str = "none"
    """Label of no such actions; unused for a parameter of another lowering, which always has a
    value."""
    hint: str = ""
    """Further explanation."""


@dataclass(frozen=True)
class LoweringType:
    """The values of a lowering: typed texts, and lists of them in files."""

    read_text: Callable[[str, str], Any]
    """Value in a text; gets the flag, for messages, and the text."""
    help: str
    """Description of the values, for messages."""
    part: bool = False
    """Whether it is a parameter of another lowering, which cannot be :data:`NOTHING`."""
    range: Range = ""

    def read(self, name: str, text: str) -> Any:
        """Return the value in a typed text."""
        return None if text == NOTHING and not self.part else self.read_text(name, text)

    def check(self, name: str, value: Any) -> Any:
        """Return the value that a file gives: a text, or a list of numbers."""
        if not isinstance(value, str | list):
            raise ParameterError(f"{name} is {quoted(value)}; give a text: {self.help}")
        return self.read(name, ",".join(map(str, value)) if isinstance(value, list) else value)


@dataclass(frozen=True)
class Lowering(OptionSpec):
    """A pass that adds actions to a schedule, or a parameter of one, as an option of a question.

    Its name is a keyword of :func:`lower` and of :func:`debubble.compare`.
    """

    apply: Callable[[Schedule, Values, Setting], Schedule | list[Schedule]] | None = None
    """The schedule with it, or several ways to that, of which the best is taken when all lowerings
    are added; gets the schedule, all values, and the setting. None for a parameter of another
    lowering."""
    on_page: Choice | None = None
    """Control in the playground; None for none."""
    check: Callable[[Values], object] | None = None
    """Refuses values that do not go together, where that can be said before there is a schedule."""


def lowering_row(
    name: str, metavar: str, help: str, read: Callable[[str, str], Any], *,
    panel: Panel = "Memory", part_of: str = "", in_search: bool = False, **more: Any,
) -> Lowering:  # fmt: skip
    """Return a row of :data:`LOWERINGS`, whose values `read` finds in texts."""
    return Lowering(
        name, LoweringType(read, help, bool(part_of)), metavar, help, panel,
        part_of=part_of, in_search=in_search, neutral="" if part_of else NOTHING, **more,
    )  # fmt: skip


def read_stages(flag: str, text: str) -> str | list[int]:
    """``"full"``, or the stages in a text such as ``0,1,4-7``."""
    if text.strip() == "full":
        return "full"
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,7})\s*(?:-\s*([0-9]{1,7})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= MAX_STAGES:
            raise ParameterError(
                f"{flag} is '{text}'; give full, or stages from 0 on such as 0,1,4-7"
            )
        found += range(first, last + 1)
    return found


def _read_lookahead(flag: str, text: str) -> str | list[int]:
    """``"full"``, ``"auto"``, or the numbers in a text such as ``2,3,3,3``."""
    if text in LOOKAHEADS:
        return text
    numbers = re.split("[,/]", text)
    if not all(re.fullmatch(r"\s*[0-9]{1,7}\s*", number) for number in numbers):
        raise ParameterError(f"{flag} is '{text}'; give full, auto, or a number per rank: 2,3,3,3")
    return [int(number) for number in numbers]


def _check_lookahead(values: Values) -> None:
    if values["unshard_lookahead"] is not None and values["sharding"] != "fsdp":
        raise ParameterError(
            f"unshard_lookahead is {values['unshard_lookahead']!r}, and no weights are gathered; "
            "give sharding='fsdp'"
        )


def _check_recompute(values: Values) -> None:
    place_of(values["recompute"], values["recompute_at"])
    check_cap(values["recompute"], values["recompute_cap"])


def _recompute(schedule: Schedule, values: Values, setting: Setting) -> list[Schedule]:
    stages, at, cap = values["recompute"], values["recompute_at"], values["recompute_cap"]
    return ways_to_recompute(schedule, stages, at, cap, setting)


LOWERINGS: list[Lowering] = [
    lowering_row(
        "carry", "STAGES",
        "Skip connections, added to those of a file: 0:5,1:4.",
        read_carries, panel="Transfers", example="0:2", in_search=True,
        apply=lambda order, values, _: add_carries(order, values["carry"]),
    ),
    lowering_row(
        "recompute", "STAGES",
        "Stages that recompute forwards: full, or 0,1,4-7.",
        read_stages, apply=_recompute, example="full", in_search=True, check=_check_recompute,
        on_page=Choice(
            "recompute", {"full": "all stages"}, "nothing",
            "Run forwards again before their backwards instead of keeping activations",
        ),
    ),
    lowering_row(
        "recompute_at", "PLACE", "Place: just-in-time, bubbles or with-backward.",
        lambda _flag, text: place_of("full", text), part_of="recompute", example="with-backward",
        on_page=Choice("where", {
            "just-in-time": "just in time", "bubbles": "in bubbles",
            "with-backward": "with the backward",
        }, hint="Right before the backward, where the rank would be idle, or as a part of the"
           " backward"),
    ),
    lowering_row(
        "recompute_cap", "COUNT",
        "Recompute only beyond COUNT held activations.",
        read_whole, part_of="recompute", example="2",
    ),
    lowering_row(
        "offload", "STAGES",
        "Stages to offload to the host: full, or 0,1,4-7.",
        read_stages, example="full", in_search=True,
        apply=lambda order, values, setting: ways_to_offload(order, values["offload"], setting),
    ),
    lowering_row(
        "transfers", "POLICY",
        f"Sends and receives as actions: {', '.join(TRANSFER_POLICIES)}.",
        Word(TRANSFER_POLICIES).read, panel="Transfers",
        apply=lambda order, values, _: add_transfers(order, policy=values["transfers"]),
        example="just-in-time",
    ),
    lowering_row(
        "sharding", "MODE",
        "ddp: reduce gradients; fsdp: also gather weights.",
        Word(SHARDING_MODES).read, panel="Transfers",
        apply=lambda order, values, _: add_sharding(
            order, mode=values["sharding"], lookahead=values["unshard_lookahead"] or "full"
        ),
        example="fsdp",
        on_page=Choice("replicas", {
            "ddp": "reduce gradients (DDP)", "fsdp": "gather weights, too (FSDP)",
        }, hint="What data-parallel replicas of a stage exchange"),
    ),
    lowering_row(
        "unshard_lookahead", "POLICY",
        "Stages that fsdp gathers ahead: full, auto, 2,3,3.",
        _read_lookahead, panel="Transfers", part_of="sharding", example="1", check=_check_lookahead,
    ),
]  # fmt: skip
"""Every lowering, in the order in which they are added."""


def values_of(given: Values) -> dict[str, Any]:
    """Return the values of all lowerings, None for those that are not given.

    Raises ParameterError when there is no such lowering, or values do not go together.
    """
    known = [lowering.name for lowering in LOWERINGS]
    for name in given:
        if name not in known:
            raise ParameterError(f"unknown parameter '{name}'; {did_you_mean(name, known)}")
    values = dict.fromkeys(known) | dict(given)
    for lowering in LOWERINGS:
        if lowering.check is not None:
            lowering.check(values)
    return values


def read_lowerings(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the values in the texts of flags, by name.

    Raises ParameterError when a text is no value, or a parameter's own lowering is not there.
    """
    found: dict[str, Any] = {}
    rows = {lowering.name: lowering for lowering in LOWERINGS}
    for name, lowering in rows.items():
        text = texts.get(name)
        whole = rows.get(lowering.part_of)
        if text is not None and whole is not None and texts.get(whole.name) is None:
            raise ParameterError(
                f"{lowering.flag} needs {whole.metavar.lower()}; add {whole.flag} {whole.example}"
            )
        found[name] = None if text is None else lowering.type.read(lowering.flag, text)
    return found


def lower(
    schedule: Schedule,
    *,
    costs: Costs | None = None,
    memory: Limit | None = None,
    p2p_mode: P2PMode = "overlapped",
    **lowerings: Any,
) -> Schedule:
    """Add carries, recomputes, copies, sends and receives, and what data-parallel replicas do.

    Parameters
    ----------
    schedule
        Schedule to lower.
    costs, memory, p2p_mode
        Setting that results are evaluated in, with all lowerings.
    **lowerings
        Values of :data:`LOWERINGS`, by name, None for no such actions: ``carry``, skip connections
        (:func:`debubble.lowering.carries.add_carries`); ``recompute``,
        ``recompute_at`` and ``recompute_cap``, which stages recompute their forwards, where, and
        from how many activations on (:func:`debubble.lowering.recompute.add_recompute`);
        ``offload``, which stages' activations wait on the host
        (:func:`debubble.lowering.offload.add_offload`); ``transfers``, where
        receives stand, without which transfers are left to the simulation
        (:func:`debubble.lowering.transfers.add_transfers`); and ``sharding`` and
        ``unshard_lookahead`` (:func:`debubble.lowering.sharding.add_sharding`).

    Returns
    -------
    Schedule
        The same one where nothing is asked for; where a lowering leaves a choice, the best of all
        combinations in this setting, see :meth:`debubble.lowering.best_lowering.Setting.best`.

    Raises
    ------
    ParameterError
        When there is no such lowering, or it cannot be added.
    """
    values, setting = values_of(lowerings), Setting(costs, memory, check_mode(p2p_mode))
    ways = [schedule]
    for lowering in LOWERINGS:
        if lowering.apply is None or values[lowering.name] is None:
            continue
        made = [lowering.apply(way, values, setting) for way in ways]
        ways = [way for one in made for way in (one if isinstance(one, list) else [one])]
    return setting.best(ways)
