"""What the build of the site makes of pages: commands without output, cards of schedules."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import debubble as db
from debubble.analysis.registry_table import glance
from debubble.cli.schedules import example
from debubble.schedules import registry
from tests.test_docs import PAGES

DOCS = Path(__file__).parents[1] / "docs"
ABOUT_CODE = {"docs/architecture.md", "docs/extending.md", "docs/figures/README.md"}
"""Pages for those who change the program."""


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(DOCS)
    return {name: importlib.import_module(name) for name in ("terminal", "gallery")}


def test_commands_and_what_they_print_are_blocks_of_their_own(
    parts: dict[str, ModuleType],
) -> None:
    typed = "```sh\ndebubble x \\\n  -p 4\nfast\n\n$ debubble y\n```\n"
    assert parts["terminal"].apart(typed) == (
        "```sh\ndebubble x \\\n  -p 4\n```\n\n"
        "``` { .text .no-copy .printed }\nfast\n\n```\n\n"
        "```sh\ndebubble y\n```\n"
    )
    indented = "Type:\n\n    make demo\n\nand\n\n    read\n"
    shown = "Type:\n\n```sh\nmake demo\n```\n\nand\n\n    read\n"
    assert parts["terminal"].apart(indented) == shown


def test_commands_break_between_words_not_at_hyphens(parts: dict[str, ModuleType]) -> None:
    whole = parts["terminal"].with_whole_words
    long = "examples/zero-bubble/gpt-28.3b-m96.yaml"
    block = (
        f'<div class="language-sh highlight"><pre>x <b>-p</b> zb-v --rank-times {long}</pre></div>'
    )
    assert whole(block) == block.replace("-p", '<span class="whole">-p</span>').replace(
        "zb-v --rank-times",
        '<span class="whole">zb-v</span> <span class="whole">--rank-times</span>',
    )
    assert whole("<code>-m 8</code>") == '<code class="whole">-m 8</code>'
    assert whole("<td>−1.7 %</td>") == '<td class="whole">−1.7 %</td>'
    assert whole('<pre class="other">zb-v</pre>') == '<pre class="other">zb-v</pre>'


def test_every_block_for_a_shell_begins_with_a_known_program(
    parts: dict[str, ModuleType],
) -> None:
    program = parts["terminal"].PROGRAM
    for name, page in PAGES.items():
        for line in re.findall(r"^```sh\n(.*)$", page, re.M):
            assert program.match(line), f"{name}: {line}"


def test_no_page_sends_its_reader_into_the_source() -> None:
    readers = {name: page for name, page in PAGES.items() if name not in ABOUT_CODE}
    sent = re.compile(r"\bsrc/debubble|the source code|docstring")
    assert [name for name, page in readers.items() if sent.search(page)] == []


def test_a_small_picture_has_every_row_and_the_common_time_axis(
    parts: dict[str, ModuleType],
) -> None:
    gallery = parts["gallery"]
    short, long = (example(registry.find(name)) for name in ("1f1b", "gems"))
    assert short.makespan == 33 < gallery.SPAN < long.makespan
    drawn = gallery.thumbnail(short)
    assert drawn.count("h330v") == 4  # ten pixels for a unit of time
    assert gallery.thumbnail(long).count("h360v") == 4  # cut
    assert len(drawn) < 4_000


def test_cards_name_families_and_mark_other_sizes(parts: dict[str, ModuleType]) -> None:
    gallery = parts["gallery"]
    cards = {}
    for name in ("slimpipe", "zb-v", "dualpipe", "gems"):
        entry = registry.find(name)
        cards[name] = gallery.card(entry, glance(entry), example(entry))
    assert 'These numbers are at v = 1">v = 1</abbr>' in cards["slimpipe"]
    assert 'data-family="V placement"' in cards["zb-v"]
    assert "<dd>8</dd>" in cards["zb-v"]
    assert "<dd>3.52 %</dd>" in cards["zb-v"]
    assert 'data-backward="split, whole"' in cards["dualpipe"]
    assert "<small>first 36 of 75</small>" in cards["gems"]
    assert all(gallery.families(example(entry)) for entry in db.schedules()[:12])
