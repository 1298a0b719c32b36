"""The figure in a schedule's text is the schedule."""

from __future__ import annotations

import re
import textwrap

import pytest

import debubble as db
from debubble.schedules.registry import Entry
from tests.grid import grid

CAPTION = re.compile(
    r"^p = (\d+), m = (\d+)(?:, (\d+) iterations)?(?:, s = (\d+))?(?:, a head of (.*)|.*)::"
    r"\n\n((?:    .*\n?)+)",
    re.M,
)


@pytest.mark.parametrize("entry", db.schedules(), ids=lambda entry: entry.name)
def test_text_shows_a_figure(entry: Entry) -> None:
    assert "::\n" in entry.text


@pytest.mark.parametrize(
    "entry", [e for e in db.schedules() if CAPTION.search(e.text)], ids=lambda entry: entry.name
)
def test_figure_is_what_the_schedule_looks_like(entry: Entry) -> None:
    found = CAPTION.search(entry.text)
    assert found is not None
    ranks, microbatches, iterations, slices, head, figure = found.groups()
    schedule = db.make(
        entry.name,
        ranks=int(ranks),
        microbatches=int(microbatches),
        iterations=int(iterations) if iterations else None,
        **({"slices": int(slices)} if slices else {}),
    )
    parts = {key: float(time) for key, time in re.findall(r"(\w) = (\d+)", head or "")}
    drawn = grid(db.simulate(schedule, db.Costs(F=1, head=parts or None)))
    shown = textwrap.dedent(figure).rstrip()
    assert [line.rstrip() for line in drawn.splitlines()] == shown.splitlines()
