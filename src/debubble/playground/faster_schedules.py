"""Search for a faster schedule than those on the page, at the same sizes, costs and memory."""

from __future__ import annotations

from typing import Any

from debubble.interchange.files import text_of
from debubble.lowering.chain import LOWERINGS
from debubble.playground import limits
from debubble.playground.limits import RefusedError
from debubble.playground.searches import Search
from debubble.playground.state import File, PageState

FILE = "optimized.json"


def faster(state: PageState, running: Search) -> dict[str, Any]:
    """Return the best schedule found until the search is over, as a file, and its headline."""
    from debubble.optimize.search import optimize

    _check(state)
    state, file = state.with_costs()
    costs = file.costs
    chunks = state.chunks or 1
    cuts = sorted({1, chunks}) if costs.same_model else chunks

    def report(makespan: float, bound: float, found_by: str) -> None:
        running.progress = {"best": makespan, "bound": bound, "found_by": found_by}

    result = optimize(
        ranks=state.ranks, microbatches=state.microbatches, chunks=cuts, costs=costs,
        memory=state.memory, p2p_mode=state.mode, time_limit=limits.FASTER_SECONDS, workers=1,
        cache=False, published=False, report=report, until=running.over,
    )  # fmt: skip
    found = File(name=FILE, text=text_of(result.schedule, "json"))
    return {"headline": result.headline, "file": found.model_dump(), "status": result.status}


def _check(state: PageState) -> None:
    for row in LOWERINGS:
        if row.on_page and not row.part_of and getattr(state, row.name) is not None:
            raise RefusedError(f"{row.name} is for published schedules; turn it off", row.name)
    if state.iterations is not None:
        raise RefusedError("a search is about one iteration; leave iterations empty", "iterations")
    size = 3 * state.ranks * state.microbatches * (state.chunks or 1)
    if size > limits.MAX_SEARCHED:
        most = state.microbatches * limits.MAX_SEARCHED // size
        raise RefusedError(
            f"{size:,} actions; a faster order is sought for {limits.MAX_SEARCHED:,} at most; use "
            "fewer microbatches",
            "microbatches",
            most or None,
        )
