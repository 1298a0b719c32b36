"""Searches for schedules that are faster than those of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from debubble.core.carries import Carries
from debubble.core.costs import Costs
from debubble.core.given_layers import make_layers
from debubble.core.layers import stage_costs
from debubble.core.placement import Placement
from debubble.core.units import time
from debubble.engine.timeline import Timeline
from debubble.interchange.files import text_of
from debubble.lowering.chain import LOWERINGS
from debubble.playground.limits import FASTER_SECONDS, MAX_SEARCHED, RefusedError
from debubble.playground.searches import Search
from debubble.playground.state import File, PageState
from debubble.playground.uploads import items as read_items
from debubble.playground.work import simulate, stem

if TYPE_CHECKING:
    from debubble.optimize.result import Result

ROUNDING = 1e-9
"""Times that differ by less than this share are equal."""

OPTIMIZED = "optimized.json"
"""File of a schedule that was found."""


def faster(state: PageState, running: Search) -> dict[str, Any]:
    """Search for a faster schedule than those on the page, at the same sizes, costs and memory.

    Returns the best schedule found until the search is over, as a file, and a headline; no file if
    one on the page is as fast.
    """
    from debubble.optimize.search import optimize

    _check_searched(state)
    carries = _carries(state)
    best = _best_shown(state)
    state, file = state.with_costs()
    costs = file.costs
    chunks = state.chunks or 1
    cuts = sorted({1, chunks}) if costs.same_model and not carries else chunks
    shape: Any = "any"
    if file.layers:
        # The page shows what is found on the same stages.
        shape, cuts = Placement.loop(state.ranks, chunks), chunks
        costs = stage_costs(costs, make_layers(file.layers, costs), shape)[1]

    def report(makespan: float, bound: float, found_by: str) -> None:
        running.progress = {"best": makespan, "bound": bound, "found_by": found_by}

    result = optimize(
        ranks=state.ranks, microbatches=state.microbatches, chunks=cuts, costs=costs,
        memory=state.memory, p2p_mode=state.mode, placement=shape, carry=carries,
        time_limit=FASTER_SECONDS, workers=1, cache=False, published=False, report=report,
        until=running.over,
    )  # fmt: skip
    if best is not None and best["makespan"] <= result.makespan * (1 + ROUNDING):
        return {"headline": _not_faster(best, result, file.time_unit), "file": None}
    found = File(name=OPTIMIZED, text=text_of(result.schedule, "json"))
    return {"headline": f"{stem(OPTIMIZED)}: {result.headline}", "file": found.model_dump()}


def _best_shown(state: PageState) -> dict[str, Any] | None:
    """Return the row of the fastest schedule on the page within memory; None for none.

    Schedules whose times are of different models are no rivals.
    """
    table = simulate(state)["table"]
    rows = table["rows"] if table else []
    rivals = [row for row in rows if row["fits"] and row["name"] not in table["recorded"]]
    if not rivals or any(row["ratio"] is None for row in rivals):
        return None
    best: dict[str, Any] = min(rivals, key=lambda row: row["makespan"])
    return best


def _not_faster(best: Mapping[str, Any], result: Result, unit: str) -> str:
    """Return the headline of a search that found nothing faster than a schedule of the page."""
    name, taken = best["name"], time(best["makespan"], unit)
    if best["makespan"] <= result.lower_bound * (1 + ROUNDING):
        return f"{name} is already optimal ({taken}, proven)"
    bound = time(result.lower_bound, unit)
    return f"found no schedule faster than {name} ({taken}); none is below {bound}"


def _carries(state: PageState) -> Carries:
    """Return the skip connections of the page's schedules; refuses pages with several models."""
    chunks, found = state.chunks or 1, dict[Carries, str]()
    for wanted in state.schedules:
        files = [] if wanted.file is None else read_items(wanted.file, Costs())
        schedules = [item.schedule if isinstance(item, Timeline) else item for item in files]
        found |= {schedule.carries: schedule.name for schedule in schedules}
        if not files:
            found[()] = wanted.name
        for schedule in schedules:
            if schedule.carries and schedule.stages != state.ranks * chunks:
                raise RefusedError(
                    f"{schedule.name} has skip connections between {schedule.stages} stages, and a "
                    f"search here is about {state.ranks * chunks}; set ranks and chunks to its own"
                )
    if len(found) > 1:
        raise RefusedError(
            f"{' and '.join(list(found.values())[:2])} have different skip connections; "
            "leave those of one model on the page"
        )
    return next(iter(found), ())


def _check_searched(state: PageState) -> None:
    for row in LOWERINGS:
        if row.on_page and not row.part_of and getattr(state, row.name) is not None:
            raise RefusedError(f"{row.name} is for published schedules; turn it off", row.name)
    if state.iterations is not None:
        raise RefusedError("a search is about one iteration; leave iterations empty", "iterations")
    size = 3 * state.ranks * state.microbatches * (state.chunks or 1)
    if size > MAX_SEARCHED:
        most = state.microbatches * MAX_SEARCHED // size
        raise RefusedError(
            f"{size:,} actions; the limit of a search is {MAX_SEARCHED:,}; use fewer microbatches",
            "microbatches",
            most or None,
        )
