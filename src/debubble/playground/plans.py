"""Plans for a model on a number of GPUs, as data for the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from debubble.core.errors import did_you_mean
from debubble.core.options import Word
from debubble.interchange.schedule_json import to_json
from debubble.planner.answer.plan import Plan, with_measured_steps
from debubble.planner.answer.report import costs_yaml
from debubble.planner.answer.searches import Answer, Asked, ask, search_all
from debubble.planner.answer.why import why_not
from debubble.planner.answer.words import gigabytes
from debubble.planner.candidate import PRECISIONS, RECOMPUTES, recomputed_layers
from debubble.planner.frameworks.table import ANY, FRAMEWORKS
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.model.files import parse_model, read_model, shipped_models
from debubble.planner.model.transformer import Model
from debubble.planner.options import ROWS, STATE, frameworks_of, request_of, values_with
from debubble.planner.plannable import plannable
from debubble.planner.request import SIZES, PlanRequest
from debubble.planner.search.best_plans import Progress, search
from debubble.planner.search.choices import ZEROS
from debubble.planner.search.evaluate import Evaluated
from debubble.planner.search.groups import CandidateGroup, groups
from debubble.planner.search.layer_split import runnable
from debubble.planner.search.search_result import Found
from debubble.playground import limits
from debubble.playground.examples import PLAN_QUESTION
from debubble.playground.limits import RefusedError, about
from debubble.playground.searches import Search
from debubble.playground.state import File, PlanForm
from debubble.playground.uploads import upload
from debubble.view.plan_page import plan_view, plans_of, search_view

TOP = 5
"""Plans in the table."""

SHOWN_EVERY = 0.5
"""Seconds between views of a running search."""

MOST_WHY = 4
"""Most conditions of one question, each of which is a search of its own."""

SOME_LAYERS = "full:1"
"""Recompute the first layer of every stage: an example for any number."""

TOO_LONG = f"have more than {limits.MAX_ACTIONS:,} actions, which is too many here"


def inputs() -> dict[str, Any]:
    """Return the choices of the form."""
    return {
        "start": PLAN_QUESTION.model_dump(
            include={"model", "gpu", "gpus", "batch", "sequence", "precision"}
        ),
        "models": list(shipped_models()),
        "gpus": [[name, f"{name}, {gigabytes(gpu.memory)}"] for name, gpu in GPUS.items()],
        "precisions": PRECISIONS,
        "states": {
            row.name: row.type.words if row.default else [["", "auto"], *row.type.words]
            for row in STATE
            if isinstance(row.type, Word)
        },
        "frameworks": [*FRAMEWORKS, ANY],
        "schedules": plannable(),
        "recomputes": (*RECOMPUTES, SOME_LAYERS),
        "zeros": ZEROS,
        "sizes": list(SIZES),
    }


def plan(question: PlanForm, running: Search) -> dict[str, Any]:
    """Return the best plans, or those found until the search is over."""
    if question.gpu not in GPUS:
        raise RefusedError(f"gpu '{question.gpu}': {did_you_mean(question.gpu, GPUS)}", "gpu")
    with about("recompute"):
        recomputed_layers(question.recompute or RECOMPUTES[0])
    values = {name: value for name, value in question if name in ROWS and value is not None}
    if question.schedule is not None:
        values["schedule"] = ROWS["schedule"].type.read("--schedule", question.schedule)
    values |= {"model": _model(question), "seq": question.sequence}
    if question.measured is not None:
        values["calibrate"] = question.measured.name
    conditions = question.why.replace(",", " ").split()
    if len(conditions) > MOST_WHY:
        raise RefusedError(f"why has {len(conditions)} conditions; the limit is {MOST_WHY}", "why")
    others = [(text, values_with(values, text)) for text in conditions]

    shown, view = -math.inf, None

    def report(found: Found) -> None:
        nonlocal shown, view
        if running.seconds > shown + SHOWN_EVERY:
            shown, view = running.seconds, search_view(found)
        best = found.best.step_time if found.best else None
        running.progress = {
            "considered": found.considered, "simulated": found.simulated, "best": best,
            "view": view,
        }  # fmt: skip
        if running.over():
            raise KeyboardInterrupt

    long: list[int] = []

    def search_one(
        request: PlanRequest, top: int, progress: Progress | None = None, *, below: float = math.inf
    ) -> Found:
        short = _short(groups(request), long)
        splits = None if request.fixed.layers else runnable(request)
        return search(request, short, top, progress, splits, below=below)

    def again(values: Mapping[str, Any]) -> Answer:
        request = replace(request_of(values), factors=factors)
        return search_all(ask(request, frameworks_of(values)), 1, report, search_one)

    asked = ask(request_of(values), frameworks_of(values))
    if question.measured is not None:
        (request,) = asked.requests
        asked = Asked((_measured(request, question.measured),))
    factors = asked.requests[0].factors
    found = search_all(asked, TOP, report, search_one)
    if sum(long) and not found.considered:
        raise RefusedError(f"all {sum(long):,} plans {TOO_LONG}; use a smaller batch", "batch")
    if sum(long):
        found.leave_out(TOO_LONG, sum(long))
    answers = [why_not(text, found.searched, partial(again, other)) for text, other in others]
    return _answer(Plan(found, tuple(answers)))


def _measured(request: PlanRequest, file: File) -> PlanRequest:
    """Return a request with the efficiency that a measured step implies."""
    _check_length(file, limits.MAX_MEASURED, "what was measured", "measured")
    with about("measured"):
        return with_measured_steps(request, file.name, file.text)


def _check_length(file: File, most: int, what: str, field: str) -> None:
    size = len(file.text)
    if size > most:
        raise RefusedError(f"{what} has {size:,} characters; the limit is {most:,}", field)


def _model(question: PlanForm) -> Model:
    """Return the model of a file, or one of those that come with the package."""
    if question.file is None:
        # Names only: a request has no say in which files are read.
        if question.model not in shipped_models():
            hint = did_you_mean(question.model, shipped_models())
            raise RefusedError(f"model '{question.model}': {hint}", "model")
        return read_model(question.model)
    _check_length(question.file, limits.MAX_MODEL, "the model's file", "model")
    model = parse_model(question.file.text, question.file.name)
    if len(model.layers) > limits.MAX_LAYERS:
        raise RefusedError(
            f"the model has {len(model.layers):,} layers; the limit is {limits.MAX_LAYERS}", "model"
        )
    return model


def _short(found: Iterable[CandidateGroup], long: list[int]) -> Iterator[CandidateGroup]:
    """Yield groups without schedules of too many actions, which are counted in `long`."""
    for group in found:
        chunks = limits.MAX_ACTIONS // (3 * group.microbatches * group.degrees.pp)
        orders = {
            name: tuple(split for split in splits if split[0] <= chunks)
            for name, splits in group.orders.items()
        }
        kept = replace(group, choices=replace(group.choices, orders=orders))
        long.append(group.count - kept.count)
        if kept.count:
            yield kept


def _answer(plan: Plan) -> dict[str, Any]:
    """Return the data of the view, each plan with what the page of schedules needs to show it."""
    plans = plans_of(plan.found)
    answer = plan_view(plan, plans)
    for data, one in zip(answer["plans"], plans, strict=True):
        data["open"] = _open(one)
    return answer


def _open(plan: Evaluated) -> dict[str, Any]:
    """Return costs, sizes and schedule of a plan, as the page of schedules opens them."""
    found = upload(File(name="plan.yaml", text=costs_yaml(plan)))
    opened = {key: found[key] for key in ("costs", "fields")} | {"name": plan.schedule}
    if plan.order is None:
        return opened
    # An order of its own comes as a file.
    return opened | {"file": {"name": f"{plan.schedule}.json", "text": to_json(plan.order)}}
