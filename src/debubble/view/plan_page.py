"""A plan as a web page: four numbers, all plans in a chart and a table, memory, timeline, flags.

``assets/plan/`` draws an answer of the planner from the data of :func:`plan_view`, in files and in
the playground alike. As for timelines, there is nothing to build, and nothing is fetched.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from debubble.interchange.torch_csv import to_csv
from debubble.planner.answer import report
from debubble.planner.answer.data import plan_data, runs_nothing
from debubble.planner.answer.explain import explanation
from debubble.planner.answer.files import run_names
from debubble.planner.answer.plan import Plan
from debubble.planner.answer.searches import Answer, also_runs, custom_order
from debubble.planner.answer.why import why_text
from debubble.planner.answer.words import PARTS, VERDICTS, cause_name, degrees_text
from debubble.planner.frameworks.table import FRAMEWORKS
from debubble.planner.frameworks.torch.flags import CSV, from_csv
from debubble.planner.request import PlanRequest
from debubble.planner.search.evaluate import CAUSES, Evaluated
from debubble.planner.search.search_result import NEAR, Found
from debubble.view import captions
from debubble.view.page import asset, document, embedded, script
from debubble.view.timeline_data import encode

VIEW_PARTS = ("plan_words", "plan_tiles", "plan_bars", "plan_chart", "plan_view")
"""Modules of the view of a plan, in ``assets/plan/``."""

MOST_ACTIONS = 400_000
"""Actions of all timelines of a page; the first plans have theirs."""

MOST_SEEN = 1_000
"""Other candidates in the chart."""

WIDTH = 100
"""Columns of the text for readers without scripts."""


def plan_page(plan: Plan) -> str:
    """Return a self-contained page about a plan, its alternatives, and why it is not another."""
    said = "\n\n".join(
        [report.text(plan.found, WIDTH), *map(why_text, plan.why), explanation(plan.found, WIDTH)]
    )
    data = embedded(plan_view(plan))
    return document(
        f"A plan for {plan.found.request.model.name}",
        f'<div id="plan"><noscript><pre>{html.escape(said)}</pre></noscript></div>',
        script=script() + view_script(),
        style=asset("plan/plan.css"),
        made=captions.details(()),
        data=f'<script type="application/json" id="plan-data">{data}</script>\n',
    )


@cache
def view_script() -> str:
    """Return the view as one script for pages of their own; it shows the data in the page."""
    parts = "\n".join(asset(f"plan/{name}.js") for name in VIEW_PARTS)
    text = asset("timeline/shared.js") + parts
    text = re.sub(r"^import .*$\n?", "", re.sub(r"^export ", "", text, flags=re.M), flags=re.M)
    start = (
        'const data = document.getElementById("plan-data").textContent;\n'
        'showPlan(document.getElementById("plan"), JSON.parse(data));\n'
    )
    return f'(() => {{\n"use strict";\n{text}{start}}})();\n'


def plan_view(plan: Plan, plans: Sequence[Evaluated] | None = None) -> dict[str, Any]:
    """Return an answer as plain data for its view, in seconds and bytes.

    Its plans are those of :func:`plans_of` unless given, each as in ``--json`` with texts, flags
    and timeline in addition.
    """
    found = plan.found
    plans = plans_of(found) if plans is None else plans
    left = MOST_ACTIONS
    shown = []
    for one in plans:
        actions = 3 * one.candidate.microbatches * one.candidate.degrees.stages
        left -= actions
        shown.append(_plan(found, one, timeline=left >= 0))
    return _frame(plans[0].request if plans else found.request) | {
        "stopped": ["The search was stopped early: other plans may be better."]
        if found.interrupted
        else [],
        "nothing": "" if found.plans else report.nothing(found),
        "plans": shown,
        "seen": _seen(found.searches, plans),
        "degrees": [
            name for name in report.SHOWN if any(one["degrees"][name] > 1 for one in shown)
        ],
        "series": list(dict.fromkeys(one["framework"] for one in shown)),
        "causes": {name: [cause_name(name), meaning] for name, meaning in CAUSES.items()},
        "parts": [[part, part] for part in PARTS],
        "notes": [*report.buys(found), *report.warnings(found.plans[0])] if found.plans else [],
        "why": [why_text(answer) for answer in plan.why],
        "considered": found.considered,
        "simulated": found.simulated,
        "left_out": dict(found.left_out),
    }


def _frame(request: PlanRequest) -> dict[str, Any]:
    """Return what a chart and numbers are read by: question, GPUs, memory, and words."""
    allowed = request.asked < request.safe
    return {
        "question": report.question(request), "gpus": request.cluster.gpus,
        "capacity": request.asked if allowed else request.capacity,
        "room": "allowed" if allowed else "capacity",
        "safe": request.limit, "verdicts": VERDICTS,
    }  # fmt: skip


def search_view(found: Found) -> dict[str, Any] | None:
    """Return the best plan so far and what was evaluated, for the view of a running search."""
    best = found.best
    if best is None:
        return None
    fast = best.speed
    plan = {
        "framework": best.request.fixed.framework,
        "framework_title": report.framework_title(best),
        "frameworks": report.frameworks_text(best),
        "schedule": best.schedule,
        "degrees": asdict(best.candidate.degrees),
        "setup": report.setup(best),
        "recommended": True,
        "compared": "best so far",
        "step_time": best.step_time,
        "step_time_range": list(best.step_range),
        "tokens_per_second": fast.tokens_per_second,
        "tflops_per_gpu": fast.flops_per_gpu["causal"] / 1e12,
        "mfu": fast.mfu,
        "memory": [{"peak": max(best.peaks)}],
        "memory_error": best.memory_error,
        "verdict": best.verdict,
    }
    return _frame(best.request) | {
        "plans": [plan],
        "seen": _seen(getattr(found, "searches", ()), [best]),
        "series": [plan["framework"]],
    }


def plans_of(found: Answer) -> list[Evaluated]:
    """Return all plans of a view: the best, slower ones with less memory, larger ones."""
    return [
        *found.plans,
        *report.leaner(found),
        *(report.faster(found) if found.plans else found.near),
    ]


def _plan(found: Answer, plan: Evaluated, *, timeline: bool) -> dict[str, Any]:
    """Return a plan as in ``--json``, with texts, flags and timeline."""
    best = found.plans[0] if found.plans else None
    data = plan_data(plan, plan is best)
    flags = data.pop("flags")
    return data | {
        "shown": plan in found.plans,
        "framework_title": report.framework_title(plan),
        "frameworks": report.frameworks_text(plan),
        "setup": report.setup(plan),
        "compared": report.compared(found, plan) if best else "",
        "reason": report.reason(found, plan) if best else "",
        "ties": report.ties(found) if plan is best else [],
        "why": f"Mostly {report.difference(best, plan)}."
        if best and plan.step_time > best.step_time
        else "",
        "confidence": report.confidence(plan),
        "flags": _flags(plan, flags),
        "timeline": encode([report.whole_timeline(plan)], limit=plan.request.limit)
        if timeline
        else None,
    }


def _flags(plan: Evaluated, flags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return flags for every framework, and files to start those that the plan is made for."""
    own = plan.request.fixed.framework
    made_for = (own, *also_runs(plan)) if own else ()
    found = [
        {
            "framework": name, "title": FRAMEWORKS[name].title, "text": text,
            "runs": not runs_nothing(text), "made_for": name in made_for,
            "files": _files(plan, name) if name in made_for else [],
        }
        for name, text in flags.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: (not one["made_for"], not one["runs"]))


def _files(plan: Evaluated, framework: str) -> list[tuple[str, str]]:
    """Return names and texts of the files with which a framework runs a plan."""
    row, case = FRAMEWORKS[framework], from_csv(plan.case) if plan.optimized else plan.case
    texts = (write(case) for write in row.files.values())
    files = list(zip(run_names(framework), texts, strict=True))
    if custom_order(plan, framework):
        files.append((CSV, to_csv(plan.simulate().schedule)))
    return files


def _seen(searches: Sequence[Found], plans: Sequence[Evaluated]) -> list[tuple[float, float, str]]:
    """Return peak, step time and name of other candidates that were evaluated in full."""
    known = {(one.step_time, max(one.peaks)) for one in plans}
    most = NEAR * max((one.request.limit for one in plans), default=0.0)
    return [
        (peak, step_time, f"{candidate.schedule}, {degrees_text(candidate)}")
        for one in searches
        for candidate, step_time, peak in one.seen
        if (step_time, peak) not in known and peak <= most
    ][:MOST_SEEN]
