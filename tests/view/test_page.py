"""Pages need nothing but themselves, and say nothing as markup that users wrote as text."""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import debubble as db
from debubble.engine.timeline import simulate
from debubble.view.page import cell, page, table
from tests.view.timelines import run

EVIL = '<img src=x onerror="alert(1)">&\'$title'
VOID = {"meta", "img", "br"}


class Document(HTMLParser):
    """Checks that tags are closed in order, and collects elements, references and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.attributes: set[str] = set()
        self.words = ""
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.attributes.update(name for name, _ in attrs)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.references.append(value)
            if name == "id":
                self.ids.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        else:
            self.words += data


def evil():
    return simulate(replace(db.make("1f1b", ranks=2, microbatches=2), name=EVIL))


def test_a_page_has_a_drawing_a_table_and_the_conventions():
    text = page([run("1f1b", 2, 4), run("gpipe", 2, 4)], title="Two schedules")
    document = Document(text)
    assert text.startswith("<!doctype html>")
    assert document.tags.count("svg") == 1
    assert document.tags.count("table") == 1
    assert document.tags.count("tr") == 3
    assert document.tags.count("h1") == 1
    assert "Two schedules" in document.words
    assert "p2p: transfers take no time" in document.words
    assert "overhead: (makespan − ideal) / ideal" in document.words
    assert "$" not in document.words


def test_a_page_needs_no_network():
    document = Document(page([run("1f1b", 2, 4)]))
    assert document.references
    assert all(reference.startswith("#") for reference in document.references)
    assert "link" not in document.tags
    assert "default-src 'none'" in page([run("1f1b", 2, 4)])
    assert "@import" not in page([run("1f1b", 2, 4)])
    code = document.scripts[-1]
    assert set(re.findall(r"https?://[^\s\"'`]+", code)) == {
        "http://www.w3.org/2000/svg",  # the name of a format
        "https://ui.perfetto.dev",  # opened when its button is clicked
    }
    assert "fetch(" not in code
    assert "XMLHttpRequest" not in code


def test_a_page_holds_the_component_and_its_data():
    document = Document(page([run("1f1b", 2, 4), run("gpipe", 2, 4)], limit=3, critical=True))
    assert document.tags.count("debubble-timeline") == 1
    data = json.loads(document.scripts[0])
    assert [timeline["name"] for timeline in data["timelines"]] == ["1f1b", "gpipe"]
    assert data["limit"] == 3
    assert "layers" in document.attributes
    assert "customElements.define" in document.scripts[-1]


def test_data_cannot_end_the_script_it_stands_in():
    timeline = simulate(replace(db.make("1f1b", ranks=2, microbatches=2), name="</script><b>"))
    document = Document(page([timeline]))
    assert "b" not in document.tags
    assert json.loads(document.scripts[0])["timelines"][0]["name"] == "</script><b>"


@pytest.mark.slow
def test_names_and_titles_are_text():
    for text in (page([evil()], title=EVIL), page([evil()]), cell([evil()])):
        document = Document(text)
        assert document.tags.count("img") == text.count('<img src="data:image/svg+xml;base64,')
        assert "x" not in document.references
        assert "onerror" not in document.attributes
    assert "img" not in Document(page([evil()], title=EVIL)).tags
    assert EVIL in Document(page([run("1f1b", 2, 2)], title=EVIL)).words


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "a\\qb",
        "C:\\users\\me",
        r"\1\g<0>",
        "<b>&amp;",
        "'\"",
        "${title} $$ $style",
        "`${1}`",
        "]]>",
    ],
)
def test_any_sign_may_stand_in_a_name_or_title(name):
    timeline = simulate(replace(db.make("1f1b", ranks=2, microbatches=2), name=name))
    for text in (page([timeline], title=name), page([timeline]), cell([timeline])):
        document = Document(text)
        assert {"b", "qb"}.isdisjoint(document.tags)
    document = Document(page([timeline], title=name))
    assert document.words.count(name) >= 3
    assert name in json.loads(document.scripts[0])["timelines"][0]["name"]


def test_a_title_that_names_a_color_keeps_it():
    assert "ink: #1f2530" in Document(page([run("1f1b", 2, 2)], title="ink: #1f2530")).words


def test_a_table_of_ones_own_replaces_the_default():
    text = page([run("1f1b", 2, 4)], table_html="<table id='own'><tr><td>7</td></tr></table>")
    document = Document(text)
    assert document.tags.count("table") == 1
    assert "own" in document.ids
    assert "overhead:" not in document.words


def test_the_table_is_that_of_a_comparison():
    runs = [run("zb-h1", 4, 8), run("1f1b", 4, 8)]
    text = table(runs)
    assert "<td>33</td><td>1.222</td><td>27.27 %</td><td>37.50 %</td><td>4</td>" in text
    assert "<td>27</td><td>1.000</td>" in text
    assert text == db.compare(runs)._table_html()
    # With one timeline there is nothing to compare its time with.
    assert "best" not in table(runs[:1])


def test_colors_of_a_page_follow_its_theme_but_those_of_actions_stay():
    text = page([run("1f1b", 2, 4)])
    svg = text[text.index("<svg") : text.index("</svg>")]
    assert "prefers-color-scheme: dark" in text
    assert "fill: var(--ink)" in svg
    assert "fill: var(--idle)" in svg
    assert "fill: #4bb8ff" in svg
    assert "fill: #ffffff" in svg
    drawn = image(cell([run("1f1b", 2, 4)]))
    assert "var(" not in drawn
    assert "#ffffff" in drawn


def image(text: str) -> str:
    """The SVG that the image of a cell carries."""
    found = re.search(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="Timeline of ', text)
    assert found
    return base64.b64decode(found[1]).decode()


def test_a_drawing_is_well_formed_and_keeps_only_ids_it_refers_to():
    text = page([run("1f1b", 2, 4)])
    svg = text[text.index("<svg") : text.index("</svg>") + 6]
    root = ElementTree.fromstring(svg)
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
    assert ids == used
    assert "metadata" not in svg


def test_labels_of_a_drawing_are_text():
    svg = page([run("1f1b", 2, 4)])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert texts.count("3") >= 4
    assert "F forward" in texts


def test_many_actions_need_the_component():
    text = page([run("1f1b", 4, 3000)])
    document = Document(text)
    assert "svg" not in document.tags
    assert "This timeline has 24,000 actions" in document.words
    assert len(document.scripts[0]) < 12 * 24_000


def test_a_notebook_shows_a_timeline_and_its_conventions():
    document = Document(run("1f1b", 2, 4)._repr_html_())
    assert document.tags[0] == "div"
    assert "html" not in document.tags
    drawn = ElementTree.fromstring(image(run("1f1b", 2, 4)._repr_html_()))
    words = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert any("bubble ratio: idle share of rank-time" in (text or "") for text in words)


def test_a_notebook_that_is_not_trusted_shows_an_image_and_says_what_to_do():
    # JupyterLab then takes scripts, styles and elements it does not know away, but no other text.
    small, large = cell([run("1f1b", 2, 4)]), cell([run("1f1b", 4, 3000)])
    hint = "Trust this notebook to zoom and to search in the timeline."
    assert Document(small).words.strip() == hint
    hint = "This timeline has 24,000 actions; trust this notebook to see it."
    assert Document(large).words.strip() == hint
    assert "svg" not in Document(small).tags


def test_the_table_calls_none_fastest_where_the_work_differs():
    assert "fastest" not in table([run("1f1b", 4, 8), run("gpipe", 2, 8)])
    assert "fastest" not in table([run("1f1b", 4, 8)])
