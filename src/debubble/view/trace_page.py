"""A diagnosis of a run as a web page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from debubble.analysis.layout import Column, html_table
from debubble.diagnosis.diagnose import Diagnosis
from debubble.diagnosis.what_if import WhatIf
from debubble.view.page import page
from debubble.view.trace_view import trace_timelines, trace_view

STYLE = """<style>
.findings { padding-left: 1.4rem; max-width: 110ch; }
.findings li { margin: 0 0 0.6rem; }
.findings button {
  font: inherit; font-size: 0.85rem; color: inherit; background: none; cursor: pointer;
  border: 1px solid var(--line); border-radius: 4px; padding: 0 0.5rem; margin-left: 0.5rem;
}
.said { max-width: 110ch; color: var(--faint); margin: 0 0 0.6rem; }
:is(th, td):last-child { text-align: right; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.2rem; }
.facts dt { color: var(--faint); }
.facts dd { margin: 0; max-width: 110ch; overflow-wrap: anywhere; }
</style>"""


def trace_page(found: Diagnosis, answers: Sequence[WhatIf] = ()) -> str:
    """Return a self-contained page: findings, timelines, the account, and more answers."""
    view = trace_view(found, answers)
    account = view["account"]
    columns = [Column((one["title"],), tuple(one["cells"])) for one in account["columns"]]
    facts = "".join(f"<dt>{_(name)}</dt><dd>{_(text)}</dd>" for name, text in view["facts"])
    return page(
        trace_timelines(found, answers),
        title=view["title"],
        above_html="\n".join([STYLE, *_above(view)]),
        table_html=f"<p>{_(account['title'])}</p>{html_table(columns)}<dl class=facts>{facts}</dl>",
        payload=view["timelines"],
        memory=False,
        time_unit="ms",
    )


def _above(view: Mapping[str, Any]) -> Iterable[str]:
    """Yield the sentences and findings, with buttons that show the place."""
    yield from (f'<p class="said">{_(text)}</p>' for text in view["said"])
    if view["findings"]:
        yield f'<ol class="findings">{"".join(map(_finding, view["findings"]))}</ol>'
    yield from (f'<p class="said">{_(text)}</p>' for text in view["notes"])


def _finding(one: Mapping[str, Any]) -> str:
    place = " ".join(map(str, one["place"] or ()))
    show = f'<button data-reveal="{place}">show</button>' if place else ""
    return f"<li><b>{_(one['cause'])}: {_(one['gain'])}</b>{show}<br>{_(one['text'])}</li>"


_ = html.escape
