"""Timelines as a self-contained web page, and as a cell of a notebook.

The timeline in the browser is one custom element for files, notebooks and the playground.
``assets/timeline/`` has its parts; they share one scope and are joined here. There is nothing to
build, and nothing is fetched: the script carries its style.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from debubble._version import __version__
from debubble.analysis.layout import html_table
from debubble.analysis.measures import meanings
from debubble.analysis.results import result_columns
from debubble.analysis.same_work import differences
from debubble.engine.memory import Limit
from debubble.engine.timeline import Timeline
from debubble.view import captions
from debubble.view.colors import FAINT, IDLE, INK, LIMIT, MEMORY, PAPER
from debubble.view.options import read_options
from debubble.view.timeline_data import encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PARTS = (
    "shared", "payload", "model", "waits", "theme", "strip", "glyphs", "marks", "painter", "view",
    "input", "output", "vector", "element", "overlay", "panel",
)  # fmt: skip

TAG = "debubble-timeline"


def asset(name: str) -> str:
    """Return the text of a file in ``assets/``."""
    return resources.files("debubble.view").joinpath("assets", *name.split("/")).read_text("utf-8")


@cache
def script() -> str:
    """Return the component as one script, which may run twice in a document."""
    style = json.dumps(asset("timeline/timeline.css"))
    parts = "\n".join(asset(f"timeline/{name}.js") for name in PARTS)
    # Parts that are modules elsewhere, too, share the scope of the others here.
    parts = re.sub(r"^export ", "", parts, flags=re.MULTILINE)
    return f'(() => {{\n"use strict";\nconst STYLE = {style};\n\n{parts}}})();\n'


def element(payload: Mapping[str, Any], *, fallback: str = "", attributes: str = "") -> str:
    """Return the component's element with its data inside, for a page that has the script.

    The payload is of :func:`debubble.view.timeline_data.encode`; `fallback` is HTML for readers
    without scripts. Attributes are ``page`` where the address of the page holds the view, ``keys``
    where all keys are for the timeline, ``cell`` in a notebook, and ``layers="bubbles,memory"`` for
    the layers at the start.
    """
    return (
        f"<{TAG}{f' {attributes}' if attributes else ''}>"
        f'<script type="application/json">{embedded(payload)}</script>{fallback}</{TAG}>'
    )


def embedded(data: Mapping[str, Any]) -> str:
    """Return data as JSON that may stand in a script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # "<" cannot end the element early when it is written as an escape.
    return text.replace("<", "\\u003c")


MAX_STATIC_ACTIONS = 2_000
"""Most actions of timelines that also have a drawing, for readers without scripts."""

_VARIABLES = {
    f": {INK}": ": var(--ink)",
    f": {FAINT}": ": var(--faint)",
    f": {IDLE}": ": var(--idle)",
    f": {MEMORY}": ": var(--memory)",
    f": {LIMIT}": ": var(--limit)",
    f"stroke: {PAPER}": "stroke: var(--paper)",
}
"""Colors of a drawing that follow the page's, light or dark; those of the actions stay."""


def page(
    timelines: Sequence[Timeline],
    *,
    title: str | None = None,
    table_html: str = "",
    above_html: str = "",
    payload: Mapping[str, Any] | None = None,
    **options: Any,
) -> str:
    """Return a self-contained HTML page with the timelines on one time axis, the first on top.

    The title names the schedules by default. `table_html`, by default a table of results, is put in
    below and `above_html` above the timelines as they are: escape text of users. The `payload` is
    that of :func:`debubble.view.timeline_data.encode`, with additions. Options are those fields of
    :class:`debubble.view.options.FigureOptions` that pages have.
    """
    timelines = captions.labelled(list(timelines), read_options(options).label)
    options.pop("label", None)
    heading = title or " · ".join(dict.fromkeys(captions.name(t) for t in timelines))
    sentences = captions.conventions(timelines)
    if not table_html:
        sentences.append(f"overhead: {meanings()['overhead']}, ideal: {meanings()['ideal']}")
    drawing = _drawing(timelines, **options)
    static = (
        inline_svg(drawing, html.escape(f"Timeline of {heading}"))
        if drawing
        else _large(timelines, "a browser that runs scripts shows it")
    )
    timeline = _timeline(
        timelines, "page keys", f"<noscript>{static}</noscript>", payload, **options
    )
    above = f"{above_html}\n" if above_html else ""
    return document(
        heading,
        results(above + timeline, table_html or table(timelines, options.get("limit")), sentences),
        script=script(),
        made=captions.details(timeline.table.costs for timeline in timelines),
    )


def document(
    title: str, body: str, *, script: str = "", style: str = "", made: str = "", data: str = ""
) -> str:
    """Return a self-contained page; `style` follows that of all pages, and `data` is HTML."""
    return _asset("page.html").substitute(
        version=html.escape(__version__), title=html.escape(title), body=body, script=script,
        style=asset("page.css") + style, made=made, data=data,
    )  # fmt: skip


def results(above: str, table: str, notes: Sequence[str]) -> str:
    """Return the body of a page with numbers: HTML, a table as HTML, and notes as text."""
    lines = (f"<li>{html.escape(note)}</li>" for note in notes)
    text = _asset("results.html").substitute(above=above, table=table, notes="\n".join(lines))
    return text.removesuffix("\n")


def cell(timelines: Sequence[Timeline], **options: Any) -> str:
    """Return the timelines as a piece of HTML for notebooks; options as for :func:`page`.

    A notebook that is not trusted runs no scripts and removes SVG elements but not their text: it
    shows an image and a sentence.
    """
    timelines = list(timelines)
    heading = " · ".join(dict.fromkeys(captions.name(t) for t in timelines))
    static = _large(timelines, "trust this notebook to see it")
    if drawing := _drawing(timelines, notes=True, **options):
        from debubble.view.figure import render

        data = base64.b64encode(render(drawing, "svg")).decode()
        label = html.escape(f"Timeline of {heading}")
        static = (
            f'<img src="data:image/svg+xml;base64,{data}" alt="{label}" width="100%">'
            "<p>Trust this notebook to zoom and to search in the timeline.</p>"
        )
    return _asset("cell.html").substitute(
        timeline=_timeline(timelines, "cell", static, **options), script=script()
    )


def table(timelines: Sequence[Timeline], limit: Limit | None = None) -> str:
    """Return the results of timelines as an HTML table, with ratios if they do the same work."""
    fastest = min(timeline.makespan for timeline in timelines)
    ranked = fastest > 0 and not differences(timelines)
    return html_table(
        result_columns(
            [captions.name(timeline) for timeline in timelines],
            timelines,
            ratios=[timeline.makespan / fastest for timeline in timelines] if ranked else None,
            limit=limit,
        )
    )


def _timeline(
    timelines: Sequence[Timeline],
    host: str,
    fallback: str,
    payload: Mapping[str, Any] | None = None,
    **options: Any,
) -> str:
    """Return the component with its data; some options of the figure are layers to switch."""
    look = read_options(options)
    layers = [name for name in ("memory", "critical", "normalize") if getattr(look, name)]
    payload = payload or encode(
        timelines, limit=look.limit, time_unit=look.time_unit, palette=look.palette,
        numbers_from=look.numbers_from,
    )  # fmt: skip
    attributes = f'{host} layers="{",".join(["bubbles", *layers])}"'
    return element(payload, fallback=fallback, attributes=attributes)


def _drawing(
    timelines: Sequence[Timeline], *, notes: bool = False, **options: Any
) -> Figure | None:
    """Return a static figure for readers without scripts; None for large timelines."""
    if sum(len(timeline.schedule) for timeline in timelines) > MAX_STATIC_ACTIONS:
        return None
    from debubble.view.figure import figure

    return figure(timelines, notes=notes, **options)


def _large(timelines: Sequence[Timeline], hint: str) -> str:
    count = sum(len(timeline.schedule) for timeline in timelines)
    return f"<p>This timeline has {count:,} actions; {hint}.</p>"


def inline_svg(drawing: Figure, label: str) -> str:
    """Return a figure as an ``<svg>`` element that fills its parent's width.

    Text, lines and background have the variables of the page's style for colors. The label, for
    screen readers, is escaped.
    """
    from debubble.view.figure import render

    text = render(drawing, "svg", facecolor="none").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    head = text[: text.index(">") + 1]
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    text = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{box[0]} width="100%" role="img" aria-label="{label}">{text[len(head) :]}'
    )
    # Only what is referred to keeps its id.
    wanted = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in wanted else "", text)
    fixed = "|".join(map(re.escape, _VARIABLES))
    themed = partial(re.sub, fixed, lambda color: _VARIABLES[color[0]])
    return re.sub(r'style="[^"]*"', lambda found: themed(found[0]), text)


def _asset(name: str) -> Template:
    return Template(asset(name))
