"""The best plans among all candidates, with the proof that no other is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from debubble.engine.jit import load_compiler
from debubble.planner.request import PlanRequest
from debubble.planner.search.bounds import LeastMemory
from debubble.planner.search.evaluate import finished
from debubble.planner.search.groups import CandidateGroup, groups
from debubble.planner.search.layer_split import Allowed, runnable
from debubble.planner.search.screen import Screen
from debubble.planner.search.search_result import ROUNDING, Found, kept
from debubble.planner.search.within_memory import best_variant

Progress = Callable[[Found], None]
"""Callback that gets the results so far, now and then."""


def best_plans(
    request: PlanRequest, top: int = 10, progress: Progress | None = None, *,
    below: float = math.inf, slack: float = 0.0,
) -> Found:  # fmt: skip
    """Return the fastest plans that fit and meet the constraints.

    Every question about plans is this search, with another request.
    """
    splits = None if request.fixed.layers else runnable(request)
    return search(request, groups(request), top, progress, splits, below=below, slack=slack)


def search(
    request: PlanRequest, groups: Iterable[CandidateGroup], top: int = 10,
    progress: Progress | None = None, splits: Allowed | None = None, *, below: float = math.inf,
    slack: float = 0.0,
) -> Found:  # fmt: skip
    """Return the fastest plans out of all candidates of `groups`, with steps below `below`.

    `slack` is the share by which other candidates may be faster than those that are returned.

    Best first: what has the lowest bound is looked at more closely, and comes back with a higher
    one, from groups (the work of their layers) to settings, candidates (their pipelines), and
    simulations. When the lowest bound is above the slowest plan to be kept, no candidate that is
    left can be among the best. First of all, as many plans that fit as are kept are looked for, of
    the usual schedule where that is possible: with them, this is soon.

    The candidates that are left are simulated once each. Those that may be among the best by their
    :attr:`~debubble.planner.search.within_memory.Base.floor` are then evaluated in full, see
    :mod:`.within_memory`. If `splits` is given, layers move between stages, too: it
    is the predicate of allowed layer splits. So the best plan depends neither on `top` nor on the
    other candidates.

    Ctrl-C ends the search with the best so far, as does a `progress` that raises KeyboardInterrupt.
    """
    load_compiler()  # enough is simulated for it
    found = Found(request, top, below=below * (1 - ROUNDING))
    tell = progress or (lambda found: None)  # noqa: ARG005 - no progress
    screen = Screen(request, found, splits, LeastMemory(request), slack)
    try:
        for group in groups:
            screen.add_group(group)
            tell(found)
        while screen.open_next():
            tell(found)
        screen.add_large()
        for plan in screen.heads if slack else ():
            # Nothing that was left was looked at.
            kept(found.plans, best_variant(request, plan, splits), top)
    except KeyboardInterrupt:
        found.interrupted = True
        for plan in screen.heads:
            found.take(plan)
    found.plans = [finished(plan) for plan in found.plans]
    found.near = [plan if plan.memory else finished(plan) for plan in found.near]
    found.searched = found.plans[0] if found.plans else None
    return found
