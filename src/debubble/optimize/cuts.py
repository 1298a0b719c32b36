"""Variants by cuts: how many layers every stage has.

The order found for one cut is an order for every other cut of the same placement, and an order is
evaluated for other costs at once. So the neighbours of a cut, with one layer on another stage, are

1. ranked by what they do to the best order of that cut, and by their bounds;
2. tried by the quick strategies, the first few of both rankings;
3. and so on from the best cut whose neighbours were not ranked so far.

Where there are few cuts every one has its bound, and those that can be faster are all improved.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice

import numpy as np

from debubble.engine.graph import compile_graph
from debubble.listing import TOLERANCE
from debubble.optimize.backward import relaxed
from debubble.optimize.bounds import lower_bound
from debubble.optimize.cache import Entry
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.layers import Cut, Cutting, cut_problem
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop
from debubble.optimize.strategies import begin
from debubble.optimize.variants import Variants, makespan_of

TRIED = 4
"""Moves that are tried of all that are evaluated: the best under the order, and the best bounds."""

PATIENCE = 4
"""Cuts without a better neighbour after which no more are tried."""

EXPLORING_SHARE = 0.3
"""Share of the time that is left for trying moves, each time."""

MOVES = 256
"""Moves of a layer that are evaluated, about: with many stages, only between near ones."""


class Cuts:
    """The cuts over one placement, a :class:`debubble.optimize.variants.Space`.

    Parameters
    ----------
    root
        The uncut problem.
    """

    shares: Sequence[float] = (1.0, 0.5, 0.5)

    def __init__(self, root: Problem) -> None:
        self.root = root
        self.cutting = Cutting(root)
        self.complete = False
        self._floor = self._others = self.cutting.bound()

    def first(self) -> list[Problem]:
        """Even cuts and balanced ones."""
        return [cut_problem(self.root, cut) for cut in self.cutting.seeds()]

    def group(self, problem: Problem) -> Hashable:
        """The cut itself."""
        return problem.variant

    def again(self, known: Entry) -> Problem:
        """The cut of an earlier result."""
        return cut_problem(self.root, known.cut)

    def bound(self, search: Variants) -> float:
        """A bound for all cuts: of those with an incumbent, and of the others."""
        lowest = min((each.bound for each in search.over(self.root)), default=np.inf)
        return float(max(self._floor, min(self._others, lowest)))

    def lowest(self, search: Variants) -> Problem | None:
        """No cut has to be solved to raise the bound."""
        del search
        return None

    def explore(self, search: Variants, effort: float) -> None:
        """Move a layer in the best cut not moved from so far, until that often gains nothing."""
        stop = Stop(search.stop.left * EXPLORING_SHARE, search.stop)
        left = patience = max(1, round(PATIENCE * min(effort, 1.0)))
        tried: list[Incumbent] = []
        while left and not stop():
            cuts = [each for each in search.over(self.root) if each.programs]
            waiting = [each for each in cuts if each not in tried]
            if not waiting:
                break
            incumbent, before = min(waiting, key=makespan_of), search.best.makespan
            tried.append(incumbent)
            for problem in self._moved(search, incumbent):
                if stop():
                    return
                other = search.add(problem)
                other.offer(incumbent.programs, incumbent.found_by)
                if other.beats(search.best.makespan):
                    begin(other)
            left = patience if search.best.makespan < before * (1 - TOLERANCE) else left - 1
        if not self.complete:
            self._add_all(search)

    def _moved(self, search: Variants, incumbent: Incumbent) -> list[Problem]:
        """The neighbours that are first by an incumbent's order, and first by their bound."""
        problem = incumbent.problem
        schedule = problem.schedule(incumbent.programs)
        graph = compile_graph(schedule, problem.mode)
        cuts = [cut for cut in neighbours(problem.cut) if self.cutting.fits_cut(cut)]
        moved = [cut_problem(self.root, cut) for cut in cuts]
        moved = [other for other in moved if not search.has(other)]
        if not moved:
            return []
        spans = graph.makespans(np.array([graph.cost_vector(other.table) for other in moved]))
        bounds = np.array([lower_bound(relaxed(other)) for other in moved])
        same = np.round(np.stack([spans, bounds]) / (spans.max() or 1.0), 9)
        by_order = (i for i in np.lexsort(same[::-1]) if moved[i].fits(schedule))
        by_bound = np.lexsort(same)[:TRIED].tolist()
        chosen = dict.fromkeys([*islice(by_order, TRIED), *by_bound])
        best = search.best.makespan
        return [moved[i] for i in chosen if bounds[i] < best * (1 - TOLERANCE)]

    def _add_all(self, search: Variants) -> None:
        """Add every cut that can be faster, where there are few."""
        cuts = self.cutting.few()
        if cuts is None:
            return
        others = np.inf
        for problem in (cut_problem(self.root, cut) for cut in cuts):
            if search.has(problem):
                continue
            if search.stop():
                return
            bound = lower_bound(relaxed(problem))
            if bound < search.best.makespan * (1 - TOLERANCE):
                begin(search.add(problem))
            else:
                others = min(others, bound)
        self._others = max(self._others, others)
        self.complete = True


def neighbours(cut: Cut) -> Iterator[Cut]:
    """Cuts with one layer of a stage on another one."""
    S = len(cut)
    reach = max(1, MOVES // (2 * S))
    for source in range(S):
        for target in range(max(0, source - reach), min(S, source + reach + 1)):
            if target != source and cut[source] > 1:
                other = list(cut)
                other[source] -= 1
                other[target] += 1
                yield tuple(other)
