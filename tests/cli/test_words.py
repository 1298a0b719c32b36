"""``debubble words``: a glossary of what outputs say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from debubble.analysis.measures import MEASURES
from debubble.cli.words import glossary
from debubble.engine.modes import P2P_MODES

Run = Callable[..., Any]


def test_every_measure_and_mode_is_explained(run: Run) -> None:
    found = run("words", "--json").data
    assert set(found["measures"]) == {measure.title for measure in MEASURES if measure.words}
    assert set(found["transfers (--p2p-mode)"]) == set(P2P_MODES)
    text = run("words").out
    assert all(f"  {name} " in text for rows in found.values() for name in rows)


def test_the_page_has_the_words_from_here_alone() -> None:
    page = Path(__file__).parents[2] / "docs" / "words.md"
    text = page.read_text(encoding="utf-8")
    assert "<!-- WORDS -->" in text  # docs/build.py puts the glossary there
    apart = "".join(part for part in text.split("```")[::2])
    assert [rows for rows in glossary().values() for words in rows.values() if words in apart] == []


def test_a_part_of_a_word_is_enough(run: Run, refused: Callable[..., str]) -> None:
    assert set(run("words", "bubble", "--json").data) == {"measures"}
    for name in ("carry", "skip connection"):
        assert "SEND_CB" in run("words", name).out
    assert "no word has 'bubbel'; the nearest are 'bubble time'" in refused("words", "bubbel")


def test_answers_lead_there_in_one_line(run: Run) -> None:
    for words in (["simulate", "1f1b"], ["compare", "1f1b"], ["check", "1f1b"], ["draw", "1f1b"]):
        out = run(*words, "-p", 2, "-m", 4).out
        assert out.count("'debubble words'") == 1
