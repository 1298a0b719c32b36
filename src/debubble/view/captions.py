"""Captions of pictures: setting, result, conventions of the numbers, and provenance."""

from __future__ import annotations

import html
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from debubble._version import __version__
from debubble.analysis import metrics
from debubble.analysis.measures import meanings
from debubble.analysis.results import shared_units
from debubble.core.command import command
from debubble.core.costs import Costs
from debubble.core.errors import CostError, ParameterError, did_you_mean
from debubble.core.kinds import KINDS, Kind
from debubble.core.units import Scale, amount, counted, percent
from debubble.core.units import memory_scale as scale_of
from debubble.engine.memory import Limit
from debubble.engine.timeline import Timeline
from debubble.interchange.cost_files import costs_data


def short_conventions(timeline: Timeline) -> list[str]:
    """Return the conventions of a simulated timeline in one line; in full for measured times."""
    if timeline.measured:
        return conventions([timeline])
    return metrics.in_short(metrics.conventions(timeline))


def labelled(timelines: Sequence[Timeline], label: Mapping[str, str] | None) -> list[Timeline]:
    """Return timelines whose schedules have texts in place of their names, by name."""
    names, label = [timeline.schedule.name for timeline in timelines], label or {}
    for key in label:
        if key not in names:
            raise ParameterError(f"label is for '{key}'; {did_you_mean(key, names)}")
    return [
        renamed(timeline, label[name]) if name in label else timeline
        for name, timeline in zip(names, timelines, strict=True)
    ]


def renamed(timeline: Timeline, name: str) -> Timeline:
    """Return a timeline whose schedule has another name."""
    schedule = replace(timeline.schedule, name=name)
    return replace(timeline, graph=replace(timeline.graph, schedule=schedule))


MAX_NAME = 60
"""Characters of a schedule's name in a picture."""


def name(timeline: Timeline) -> str:
    """Return the schedule's name, fit to be shown: in a file it may be anything."""
    return printable(timeline.schedule.name, MAX_NAME)


def printable(text: str, longest: int) -> str:
    """Return text without control characters, cut to a length."""
    text = "".join(sign if sign.isprintable() else "?" for sign in text)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def setting(timeline: Timeline) -> str:
    """Return the sizes of a schedule, such as ``"4 ranks, 8 microbatches, 2 chunks"``."""
    schedule = timeline.schedule
    several = [
        (schedule.chunks, f"{schedule.chunks:,} chunks"),
        (schedule.placement.copies, f"{schedule.placement.copies} copies of the model"),
        (schedule.slices, f"{schedule.slices:,} slices"),
        (schedule.iterations, f"{schedule.iterations:,} iterations"),
    ]
    parts = [counted(schedule.ranks, "rank"), counted(schedule.microbatches, "microbatch")]
    parts += [text for count, text in several if count > 1]
    recompute = metrics.recompute_text(schedule)
    return ", ".join([*parts, recompute] if recompute else parts)


def setting_and_shades(timeline: Timeline) -> str:
    """Return the sizes of the schedule, and the meaning of shades."""
    note = shades_note(timeline)
    return setting(timeline) + (f" ({note})" if note else "")


def short_result(timeline: Timeline) -> str:
    """Return bubble ratio and peak activation, as few words as a column of a paper has room for."""
    costs = timeline.table.costs
    peak = amount(float(timeline.peak_activation.max()), costs.activation_unit)
    return f"bubble {percent(timeline.bubble_ratio)}, peak {peak}"


def memory_scale(timelines: Sequence[Timeline], limit: Limit | None = None) -> Scale:
    """Return the unit for all amounts of activation memory in one picture.

    Its name is empty for activation units, and where the costs name none.
    """
    peaks = [float(timeline.peak_activation.max()) for timeline in timelines]
    return scale_of(
        shared_units(timelines)[1],
        float(np.max([*peaks, *np.atleast_1d(0.0 if limit is None else limit)])),
    )


def letter(kind: Kind, index: int) -> str:
    """Return the letter of a kind for pictures without colors; odd shades are in lower case."""
    found = KINDS[kind].letter
    return found.lower() if index % 2 else found


def shades_note(timeline: Timeline, letters: bool = False) -> str:
    """Return the meaning of shades, or with `letters` of cases; empty for a single one."""
    copies, chunks = timeline.schedule.placement.copies, timeline.schedule.chunks
    if copies * chunks == 1:
        return ""
    if letters:
        return "lower case: copy 1" if chunks == 1 else "lower case: odd chunks"
    if copies == 1:
        return f"light to dark: chunks 0–{chunks - 1}"
    if chunks == 1:
        return "light: copy 0 of the model, dark: copy 1, in the other direction"
    return f"light to dark: chunks 0–{chunks - 1} of copy 0, then of copy 1"


def conventions(timelines: Sequence[Timeline]) -> list[str]:
    """Return the conventions of these timelines as phrases, without repeats."""
    simulated = [timeline for timeline in timelines if not timeline.measured]
    paying = [timeline for timeline in simulated if metrics.transfers_take_time(timeline)]
    free = [name(timeline) for timeline in simulated if not metrics.transfers_take_time(timeline)]
    chunks = {timeline.schedule.chunks for timeline in simulated}
    divisor = chunks.pop() if len(chunks) == 1 else None
    lines = [
        f"times: {metrics.times_text(timeline.table.costs, divisor)}" for timeline in simulated
    ]
    if len(simulated) < len(timelines):
        traced = dict.fromkeys(name(timeline) for timeline in timelines if timeline.measured)
        lines.append(f"times of {' and '.join(traced)}: from the trace")
    lines += [f"slices: {metrics.slices_text(cut)}" for cut in timelines if cut.schedule.slices > 1]
    sharded = [timeline.schedule.vocabulary for timeline in timelines]
    lines += [f"vocabulary: {metrics.VOCABULARY[number]}" for number in sharded if number]
    lines += [f"p2p {timeline.mode}: {metrics.MODES[timeline.mode]}" for timeline in paying]
    if free:
        where = f" in {', '.join(dict.fromkeys(free))}" if paying else ""
        lines.append(f"p2p: transfers take no time{where}")
    lines.append(f"bubble ratio: {meanings()['bubble_ratio']}")
    lines += [
        f"memory: {metrics.memory_text(timeline.table.costs, timeline.schedule)}"
        for timeline in timelines
    ]
    for timeline in timelines:
        lines += [
            f"{key}: {text}" for key, text in metrics.recompute_words(timeline.schedule).items()
        ]
    lines += [
        f"offload: {text}" for timeline in timelines if (text := metrics.offload_text(timeline))
    ]
    return list(dict.fromkeys(lines))


MOST = 20_000
"""Most characters of costs in a report; those of every stage and microbatch may have more."""


def versions() -> str:
    """Return the versions that results depend on."""
    python = platform.python_version()
    return f"debubble {__version__}, Python {python}, NumPy {np.__version__}"


def facts(costs: Iterable[Costs]) -> list[tuple[str, str]]:
    """Return (name, text) of versions, command, and every different cost file of a report."""
    commands = [("command", command())] if command() else []
    texts = dict.fromkeys(map(costs_text, costs))
    return [("versions", versions()), *commands, *(("costs", text) for text in texts)]


def costs_text(costs: Costs) -> str:
    """Return costs as one line of JSON, a cost file; in words where a file cannot hold them."""
    try:
        text = json.dumps(costs_data(costs), ensure_ascii=False)
    except CostError:
        return f"{metrics.times_text(costs)}; divided by {costs.chunks} chunks"
    return text if len(text) <= MOST else f"{len(text):,} characters, too long to stand here"


def details(costs: Iterable[Costs]) -> str:
    """Return the facts of a report as folded HTML."""
    rows = "".join(
        f"<dt>{name}</dt><dd><code>{html.escape(text)}</code></dd>" for name, text in facts(costs)
    )
    return f'<details class="made"><summary>How this was made</summary><dl>{rows}</dl></details>'


_DATES = {".svg": "Date", ".pdf": "CreationDate"}
"""Fields of dates that the drawing library would fill."""


def metadata(ending: str, costs: Sequence[Costs] | None = None) -> dict[str, str | None]:
    """Return the metadata of a picture: command and costs, if a command made it.

    A picture of stored results has no costs. Without the date and the version of the drawing
    library, equal pictures are equal files.
    """
    names = {
        ".png": ("Software", "Description"), ".svg": ("Creator", "Description"),
        ".pdf": ("Creator", "Subject"),
    }  # fmt: skip
    creator, about = names[ending]
    found: dict[str, str | None] = {creator: "debubble"}
    if ending in _DATES:
        found[_DATES[ending]] = None
    if command() and costs is not None:
        texts = [command(), *(f"costs: {text}" for text in dict.fromkeys(map(costs_text, costs)))]
        found |= {creator: f"debubble {__version__}", about: "\n".join(texts)}
    return found
