"""Self: the tables of schedules say the same, and what a simulation at the same size says."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import debubble as db
from debubble.analysis.registry_table import CHUNKS, MICROBATCHES, RANKS, glance
from debubble.cli.schedules import describe, explain, overview
from debubble.core.units import number, percent
from debubble.schedules.registry import Entry, find

DOCS = Path(__file__).resolve().parents[2] / "docs"
EACH = pytest.mark.parametrize("entry", db.schedules(), ids=lambda entry: entry.name)


@cache
def module(name: str) -> ModuleType:
    """A module of the site."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        return importlib.import_module(name)


@cache
def simulated_once(name: str) -> tuple[db.Timeline, str]:
    """The schedule at the size that its description names, simulated anew, and other sizes."""
    entry = find(name)
    at: dict[str, Any] = describe(entry)["at_a_glance"]
    own = {} if entry.chunks else {"chunks": at["chunks"]}
    sizes = {"ranks": at["ranks"], "microbatches": at["microbatches"]}
    usual = {"p": RANKS, "m": MICROBATCHES, "v": entry.chunks or CHUNKS}
    here = {"p": at["ranks"], "m": at["microbatches"], "v": at["chunks"]}
    away = ", ".join(f"{key} = {here[key]}" for key in usual if here[key] != usual[key])
    return db.simulate(db.make(entry.name, **sizes, **own)), away


def simulated(entry: Entry) -> tuple[db.Timeline, str]:
    return simulated_once(entry.name)


@EACH
def test_the_description_says_what_a_simulation_says(entry: Entry) -> None:
    timeline, _ = simulated(entry)
    at = describe(entry)["at_a_glance"]
    assert at["peak_activation"] == timeline.peak_activation.max()
    assert at["bubble_ratio"] == timeline.bubble_ratio
    assert f"{percent(timeline.bubble_ratio)} of rank-time idle" in explain(entry)


@EACH
def test_the_table_says_what_a_simulation_says_and_marks_other_sizes(entry: Entry) -> None:
    timeline, away = simulated(entry)
    row = overview([entry], None).splitlines()[1]
    peak = number(round(float(timeline.peak_activation.max()), 2))
    words = [entry.name, str(entry.chunks or "any"), peak, percent(timeline.bubble_ratio)]
    title = f"[{away}] {entry.title}" if away else entry.title
    assert re.split(r" {2,}", row)[: len(words) + 1] == [*words, title]


@EACH
def test_the_site_says_what_the_table_says(entry: Entry) -> None:
    timeline, away = simulated(entry)
    found = glance(entry, db.Costs.per_rank(F=1, I=1, W=1))
    assert found is not None
    card = module("gallery").card(entry, found, timeline)
    peak = number(round(float(timeline.peak_activation.max()), 2))
    shown = re.findall(r"<dd>(.*?)</dd>", card)
    assert shown[:3] == [str(entry.chunks or "any"), peak, percent(timeline.bubble_ratio)]
    assert re.findall(r"<abbr.*>(.*)</abbr>", card) == [away] * bool(away)
    pages = module("schedule_pages")
    page = pages.index_page([entry], {entry.name: dict.fromkeys(pages.SETTINGS, found)}, "")
    name, *shares = (cell.strip() for cell in page.splitlines()[-1].strip("|").split("|"))
    assert name.endswith(f"({away})" if away else ".md)")
    assert set(shares) == {percent(timeline.overhead)}


def test_the_site_measures_with_the_same_function() -> None:
    entry = next(entry for entry in db.schedules() if entry.name == "slimpipe")
    pages = module("schedule_pages")
    measured = pages.measured(entry)
    assert set(measured) == set(pages.SETTINGS)
    assert measured["equal times"].timeline.makespan == simulated(entry)[0].makespan
