"""Plans for a model on a number of GPUs, as data for the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from debubble.core.errors import DebubbleError, did_you_mean
from debubble.planner.answer.data import plan_flags
from debubble.planner.answer.report import (
    columns,
    costs_yaml,
    gigabytes,
    left_out,
    paragraphs,
    whole_timeline,
)
from debubble.planner.answer.why import why_not, why_text
from debubble.planner.ask import ask
from debubble.planner.candidate import PRECISIONS, RECOMPUTES, recomputed_layers
from debubble.planner.constraints import held, held_with, with_measured_steps
from debubble.planner.frameworks.table import FRAMEWORKS
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.model.files import parse_model, read_model, shipped_models
from debubble.planner.model.transformer import Model
from debubble.planner.plannable import plannable
from debubble.planner.request import SIZES, check_request
from debubble.planner.search.best_plans import search
from debubble.planner.search.evaluate import Asked
from debubble.planner.search.found import Found
from debubble.planner.search.groups import ZEROS, Fixed, Group, groups
from debubble.planner.search.layer_split import runnable
from debubble.playground import limits
from debubble.playground.limits import RefusedError
from debubble.playground.searches import Search
from debubble.playground.state import File, PlanForm
from debubble.playground.uploads import upload
from debubble.playground.work import DRAWING
from debubble.view.plan_page import front, memory_rows
from debubble.view.timeline_data import encode

TOP = 5
"""Plans in the table."""

MOST_WHY = 4
"""Most conditions of one question, each of which is a search of its own."""

SOME_LAYERS = "full:1"
"""Recompute the first layer of every stage: an example for any number."""

TOO_LONG = f"have more than {limits.MAX_ACTIONS:,} actions, which is too many here"


def inputs() -> dict[str, Any]:
    """Return the choices of the form."""
    return {
        "models": list(shipped_models()),
        "gpus": [[name, f"{name}, {gigabytes(gpu.memory)}"] for name, gpu in GPUS.items()],
        "precisions": PRECISIONS,
        "frameworks": list(FRAMEWORKS),
        "schedules": plannable(),
        "recomputes": (*RECOMPUTES, SOME_LAYERS),
        "zeros": ZEROS,
        "sizes": SIZES,
    }


def plan(question: PlanForm, running: Search) -> dict[str, Any]:
    """Return the best plans, or those found until the search is over."""
    if question.gpu not in GPUS:
        raise RefusedError(f"gpu '{question.gpu}': {did_you_mean(question.gpu, GPUS)}", "gpu")
    asked = ask(
        _model(question), question.gpu, question.gpus, question.batch, question.sequence,
        precision=question.precision, memory=question.memory, imbalance=question.imbalance,
        framework=question.framework,
    )  # fmt: skip
    try:
        recomputed_layers(question.recompute or RECOMPUTES[0])
    except DebubbleError as error:
        raise RefusedError(str(error), "recompute") from None
    values = {name: getattr(question, name) for name in (*SIZES, "schedule", "recompute", "zero")}
    given = {name: None if value is None else str(value) for name, value in values.items()}
    fixed = held(given, question.framework)
    check_request(asked.model, asked.cluster, asked.training, fixed)
    if question.measured is not None:
        asked = _measured(asked, question.measured, fixed)
    conditions = question.why.replace(",", " ").split()
    if len(conditions) > MOST_WHY:
        raise RefusedError(f"why has {len(conditions)} conditions; the limit is {MOST_WHY}", "why")
    others = [(text, held_with(given, text, question.framework)) for text in conditions]

    def report(found: Found) -> None:
        best = found.best.step_time if found.best else None
        running.progress = {
            "considered": found.considered, "simulated": found.simulated, "best": best
        }  # fmt: skip
        if running.over():
            raise KeyboardInterrupt

    def found_with(fixed: Fixed, count: int, long: list[int]) -> Found:
        short = _short(groups(asked.model, asked.cluster, asked.training, fixed), long)
        splits = None if fixed.layers else runnable(asked, fixed.framework)
        return search(asked, short, count, report, splits)

    long: list[int] = []
    found = found_with(fixed, TOP, long)
    if sum(long) and not found.considered:
        raise RefusedError(f"all {sum(long):,} plans {TOO_LONG}; use a smaller batch", "batch")
    if sum(long):
        found.leave_out(TOO_LONG, sum(long))
    answers = [
        why_not(asked, found.searched, text, other, lambda fixed: found_with(fixed, 1, []))
        for text, other in others
    ]
    return _answer(asked, found) | {"why": [why_text(answer) for answer in answers]}


def _measured(asked: Asked, file: File, fixed: Fixed) -> Asked:
    """Return the question with the efficiency of a measured step."""
    _check_length(file, limits.MAX_MEASURED, "what was measured", "measured")
    try:
        return with_measured_steps(asked, file.name, fixed, file.text)
    except DebubbleError as error:
        raise RefusedError(str(error), "measured") from None


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


def _short(found: Iterable[Group], long: list[int]) -> Iterator[Group]:
    """Yield groups without schedules of too many actions, which are counted in `long`."""
    for group in found:
        chunks = limits.MAX_ACTIONS // (3 * group.microbatches * group.degrees.pp)
        orders = {
            name: tuple(split for split in splits if split[0] <= chunks)
            for name, splits in group.orders.items()
        }
        kept = replace(group, orders=orders)
        long.append(group.count - kept.count)
        if kept.count:
            yield kept


def _answer(asked: Asked, found: Found) -> dict[str, Any]:
    from debubble.view.figure import render

    answer: dict[str, Any] = {
        "paragraphs": paragraphs(asked, found),
        "left_out": left_out(found),
        "interrupted": found.interrupted,
        "plans": None,
    }
    if not found.plans:
        return answer
    best = found.plans[0]
    timeline = whole_timeline(asked, best)
    with DRAWING:
        picture = render(front(found), "svg", facecolor="none").decode()
    return answer | {
        "plans": [
            {"title": column.title, "cells": column.cells, "left": column.left}
            for column in columns(asked, found, verdicts=True)
        ],
        "memory": memory_rows(best),
        "front": picture,
        "flags": [[name, plan_flags(asked, best, name)] for name in FRAMEWORKS],
        "timelines": encode([timeline], limit=asked.limit),
        "other_tab": _for_comparison(asked, found),
    }


def _for_comparison(asked: Asked, found: Found) -> dict[str, Any]:
    """Return costs, sizes and schedule of the best plan, for the page that compares schedules."""
    best = found.plans[0]
    file = File(name="plan.yaml", text=costs_yaml(asked, best))
    return upload(file) | {"name": best.candidate.schedule}
