"""The page that lists all schedules: a card with a small picture of each, to filter and to sort."""

from __future__ import annotations

import html
from collections import defaultdict
from pathlib import Path

from debubble.analysis.registry_table import CHUNKS, MICROBATCHES, RANKS, Glance
from debubble.cli.schedules import FIGURE_SIZES
from debubble.core.actions import kinds_of
from debubble.core.kinds import Kind
from debubble.core.units import number
from debubble.engine.timeline import Timeline
from debubble.schedules.registry import Entry
from debubble.view.bars import LOWER, WHOLE, bars_of
from debubble.view.colors import COLOR

WIDTH, HEIGHT, GAP = 360, 76, 2
"""Size of a picture, and what is between two rows, in pixels."""

SPAN = 36.0
"""Time that every picture has room for: a rank's F takes 1, and 1F1B 33 at the sizes of figures."""

FAMILIES = ("one stage per rank", "interleaved", "V placement", "two copies", "sequence slices",
            "output layer on all ranks", "activations moved away", "no flush")  # fmt: skip
"""Families in the order in which they are offered."""

_PLACEMENTS = {"loop": "interleaved", "V": "V placement",
               "two copies, opposite directions": "two copies"}  # fmt: skip

_CONTROLS = Path(__file__).with_name("site") / "gallery.html"


def thumbnail(timeline: Timeline) -> str:
    """Return a timeline as a small SVG, for light and dark pages."""
    bars = bars_of(timeline).within(0.0, SPAN)
    scale, pitch = WIDTH / SPAN, HEIGHT / bars.ranks
    paths: dict[str, list[str]] = defaultdict(list)
    for at in range(len(bars.start)):
        left, right = bars.start[at] * scale, bars.end[at] * scale
        width = right - left - min(0.8, 0.3 * (right - left))
        tall = pitch - GAP
        top = bars.rank[at] * pitch + (tall / 2 if bars.half[at] == LOWER else 0)
        tall /= 1 if bars.half[at] == WHOLE else 2
        color = COLOR.shade(*bars.shade_of(int(bars.style[at])))
        paths[color].append(f"M{left:.4g} {top:.4g}h{width:.3g}v{tall:.3g}h-{width:.3g}z")
    end = min(timeline.makespan, SPAN) * scale
    rows = "".join(f"M0 {r * pitch:g}h{end:.4g}v{pitch - GAP:g}H0z" for r in range(bars.ranks))
    drawn = "".join(f'<path fill="{color}" d="{"".join(d)}"/>' for color, d in paths.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<path fill="#8791a1" fill-opacity=".22" d="{rows}"/>{drawn}</svg>'
    )


def backward(timeline: Timeline) -> str:
    """Return how a schedule runs the backward: whole, split, or both."""
    kinds = {Kind(int(kind)) for kind in kinds_of(timeline.schedule.actions)}
    return ("split, whole" if Kind.B in kinds else "split") if Kind.W in kinds else "whole"


def families(timeline: Timeline) -> list[str]:
    """Return the families that a schedule belongs to."""
    schedule = timeline.schedule
    kinds = {Kind(int(kind)) for kind in kinds_of(schedule.actions)}
    held = {
        _PLACEMENTS.get(schedule.placement.name, schedule.placement.name): True,
        "sequence slices": schedule.slices > 1,
        "output layer on all ranks": Kind.S in kinds,
        "activations moved away": Kind.OFFLOAD in kinds,
        "no flush": max(schedule.versions) > 1,
    }
    return [name for name in FAMILIES if held.get(name)]


def card(entry: Entry, seen: Glance, drawing: Timeline) -> str:
    """Return the card of a schedule; its numbers are those of ``debubble schedules``."""
    what = html.escape(entry.title)
    words = " ".join([entry.name, *entry.aliases, entry.title, entry.source, entry.use])
    data = {
        "name": entry.name, "year": entry.year, "memory": seen.peak_activation,
        "bubble": seen.timeline.bubble_ratio, "backward": backward(drawing),
        "family": ", ".join(families(drawing)), "text": f"{words} {entry.year}".lower(),
    }  # fmt: skip
    attributes = " ".join(f'data-{key}="{html.escape(str(x))}"' for key, x in data.items())
    away = (
        f' <abbr title="These numbers are at {seen.away}">{seen.away}</abbr>' if seen.away else ""
    )
    facts = {
        "chunks": str(entry.chunks or "any"), "memory": seen.memory, "bubble": seen.bubble,
        "backward": "both" if "," in data["backward"] else data["backward"],
    }  # fmt: skip
    listed = "".join(f"<div><dt>{key}</dt><dd>{x}</dd></div>" for key, x in facts.items())
    return (
        f'<li {attributes}><a href="{entry.name}.html"><img src="{entry.name}-small.svg" '
        f'width="{WIDTH}" height="{HEIGHT}" alt="" loading="lazy">'
        f"{_drawn_at(drawing)}<b>{entry.name}</b> <span>{entry.year}</span></a>"
        f"<p>{what}{away}</p><dl>{listed}</dl></li>"
    )


def _drawn_at(drawing: Timeline) -> str:
    """Return how a picture differs from the others."""
    sizes = (drawing.schedule.ranks, drawing.schedule.microbatches)
    said = "" if sizes == FIGURE_SIZES else "p = {}, m = {}".format(*sizes)
    if drawing.makespan > SPAN:
        said = f"first {number(SPAN)} of {number(drawing.makespan)}"
    return f"<small>{said}</small>" if said else ""


def gallery(shown: list[tuple[Entry, Glance, Timeline]], folder: Path) -> str:
    """Write the pictures of schedules; return their cards, oldest first, with what filters them."""
    for entry, _, drawing in shown:
        (folder / f"{entry.name}-small.svg").write_text(thumbnail(drawing), encoding="utf-8")
    offered = "".join(f"<option>{name}</option>" for name in FAMILIES)
    cards = "\n".join(card(*each) for each in shown)
    controls = _CONTROLS.read_text(encoding="utf-8").replace("<!-- FAMILIES -->", offered)
    return f'{controls}\n<ul class="gallery">\n{cards}\n</ul>\n'


def note() -> str:
    """Return what the numbers and the pictures of all cards are."""
    ranks, microbatches = FIGURE_SIZES
    return (
        f"Memory is in activation units on the fullest rank, and the bubble is the idle share of "
        f"rank-time, both at p = {RANKS}, m = {MICROBATCHES} and, where there is a choice, "
        f"v = {CHUNKS} chunks; other sizes are marked. `debubble schedules` prints the same "
        f"numbers. Pictures have p = {ranks}, m = {microbatches} and one time axis: a shorter one "
        "is faster. F, I and W take the same time, and transfers take none."
    )
