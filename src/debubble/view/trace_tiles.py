"""Four numbers of a diagnosis: step time, idle time, the largest loss, and the fastest schedule."""

from __future__ import annotations

import html
from typing import NamedTuple

import numpy as np

from debubble.core.units import counted, number, rough_percent
from debubble.diagnosis.diagnose import Diagnosis

DIGITS = 4
"""Significant digits of milliseconds."""


class Tile(NamedTuple):
    """A number with its name, unit, and a line below."""

    title: str
    value: str
    unit: str
    text: str


def tiles(found: Diagnosis) -> tuple[Tile, ...]:
    """Return the numbers of a diagnosis that its page starts with."""
    times = found.run.step_times * 1e3
    count = len(times)
    planned = "" if np.isnan(found.run.start).any() else rough_percent(found.planned_bubble_ratio)
    return (
        Tile(
            "Step time", number(float(np.median(times)), DIGITS), "ms",
            f"median of {counted(count, 'step')}" if count > 1 else "one step",
        ),
        Tile(
            "Idle time", _percent(found.bubble_ratio), "%",
            f"{planned} by the schedule" if planned else "of all ranks",
        ),
        _largest_loss(found),
        _fastest_schedule(found),
    )  # fmt: skip


def tiles_html(found: Diagnosis) -> str:
    """Return the numbers as HTML, with their style."""
    shown = (
        f"<div><p>{_(one.title)}</p><p><b>{_(one.value)}</b> {_(one.unit)}</p>"
        f"<p>{_(one.text)}</p></div>"
        for one in tiles(found)
    )
    return f'{STYLE}<div class="tiles">{"".join(shown)}</div>'


STYLE = """<style>
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; }
.tiles div { border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
.tiles p { margin: 0; font-size: 0.8rem; color: var(--faint); }
.tiles b { font-size: 1.7rem; color: var(--ink); }
.tiles { margin: 0 0 1rem; }
</style>"""


def _largest_loss(found: Diagnosis) -> Tile:
    title = "Largest loss"
    if not found.findings:
        return Tile(title, "none", "", "nothing to fix in this run")
    first = found.findings[0]
    if first.gain is None:
        return Tile(title, number(first.seconds * 1e3, 2), "ms", first.subject)
    return Tile(title, _percent(first.gain), "%", first.subject)


def _fastest_schedule(found: Diagnosis) -> Tile:
    title = "Fastest schedule at these times"
    if not found.faster:
        return Tile(title, found.name.text, "", "none of the others is faster")
    first = found.faster[0]
    return Tile(
        title, first.text, f"−{_percent(first.gain)} %", f"{number(first.after * 1e3, DIGITS)} ms"
    )


def _percent(share: float) -> str:
    return rough_percent(share).removesuffix(" %")


_ = html.escape
