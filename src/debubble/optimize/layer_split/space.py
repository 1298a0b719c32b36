"""Variants by cuts: the layers of every stage, and the stages' choices.

Over one cut the variants are those of :mod:`debubble.optimize.stage_choices.space`, where what
stages do is open; they are explored for a cut when it is the best. The order found for one cut is
an order for every other cut of the same placement, and an order is evaluated for other costs at
once. So the neighbors of a cut, with one layer on another stage and stages that do the same, are

1. ranked by what they do to the best order of that cut, and by their bounds;
2. tried by the quick strategies, the first few of both rankings, unless the strongest rank kept
   exactly shows that they cannot be faster;
3. and so on from the best cut whose neighbors were not ranked so far.

Where there are few cuts every one has its bound, with the strongest rank modeled exactly, and those
that can be faster are all improved; of those with open choices the best.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from debubble.core.layers import Cut
from debubble.engine.graph import compile_graph
from debubble.listing import TOLERANCE
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.bounds.strategies import strongest_rank_bound
from debubble.optimize.cache import CacheEntry
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.layer_split.cut_bound import bound_of_cuts
from debubble.optimize.layer_split.cutting import Cutting, cut_problem
from debubble.optimize.layer_split.steps import neighbors
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.offload import relax_copies
from debubble.optimize.stage_choices.choices import Ways
from debubble.optimize.stage_choices.space import NODE_STATES, Choices, bound_of_all
from debubble.optimize.stop import Stop
from debubble.optimize.strategies import begin
from debubble.optimize.variants import Variants, makespan_of

TRIED = 4
"""Moves that are tried of all that are evaluated: the best under the order, and the best bounds."""

PATIENCE = 4
"""Cuts without a better neighbor after which no more are tried."""

EXPLORING_SHARE = 0.3
"""Share of the time that is left for trying moves, each time."""


class Cuts:
    """The cuts over one placement, a :class:`debubble.optimize.variants.Space`.

    In each of the uncut problems all stages do the same, as far as they are free and it fits.
    """

    shares: Sequence[float] = (1.0, 0.5, 0.5)

    def __init__(self, problems: Sequence[Problem], ways: Ways) -> None:
        self.root = problems[0]
        self.ways = ways
        self.complete = False
        self._all_known = False
        self._uncut = list(problems)
        self._cuttings: dict[Hashable, Cutting] = {}
        self._open = max(map(len, ways)) > 1
        self._choices: dict[Cut, Choices] = {}
        self._floor = self._others = bound_of_cuts(self._cutting(self.root), ways)

    def first(self) -> list[Problem]:
        """Return even cuts and balanced ones."""
        return [
            cut_problem(problem, cut)
            for problem in self._uncut for cut in self._cutting(problem).seeds()
        ]  # fmt: skip

    def group(self, problem: Problem) -> Hashable:
        """Return the key of the cut and choices: none stands for another."""
        return problem.variant

    def again(self, known: CacheEntry) -> Problem:
        """Return the cut of an earlier result, and the choices of its stages."""
        return self._over(known.cut).again(known)

    def bound(self, search: Variants) -> float:
        """Return a bound for all cuts: of those with an incumbent, and of the others."""
        if self._open:
            cuts = {each.problem.cut for each in search.over(self.root)}
            lowest = min((self._over(cut).bound(search) for cut in cuts), default=np.inf)
        else:
            lowest = min((each.bound for each in search.over(self.root)), default=np.inf)
        return float(max(self._floor, min(self._others, lowest)))

    def lowest(self, search: Variants) -> Problem | None:
        """Raise the bound by branching over the choices of the single cut that holds it down."""
        if not (self._open and self._all_known):
            return None
        cuts = {each.problem.cut for each in search.over(self.root)}
        lowest = min(sorted(cuts), key=lambda cut: self._over(cut).bound(search), default=None)
        return None if lowest is None else self._over(lowest).lowest(search)

    def _over(self, cut: Cut) -> Choices:
        """Return the choices over one cut."""
        if cut not in self._choices:
            problems = [cut_problem(problem, cut) for problem in self._uncut]
            self._choices[cut] = Choices(problems, self.ways)
        return self._choices[cut]

    def _cutting(self, problem: Problem) -> Cutting:
        """Return the cuts under which stages do what they do in a problem."""
        key = problem.recompute, problem.offload
        if key not in self._cuttings:
            root = replace(self.root, recompute=problem.recompute, offload=problem.offload)
            self._cuttings[key] = Cutting(root)
        return self._cuttings[key]

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
            if self._open and before == incumbent.makespan:
                self._over(incumbent.problem.cut).explore(search, effort)
            for problem in self._moved(search, incumbent):
                if stop():
                    return
                other = search.add(problem)
                other.offer(incumbent.programs, incumbent.found_by)
                if other.beats(search.best.makespan):
                    begin(other)
            left = patience if search.best.makespan < before * (1 - TOLERANCE) else left - 1
        if not self._all_known:
            self._add_all(search)

    def _moved(self, search: Variants, incumbent: Incumbent) -> list[Problem]:
        """Return the neighbors that are first by an incumbent's schedule, or by their bound."""
        problem, schedule = incumbent.problem, incumbent.schedule
        assert schedule is not None
        graph = compile_graph(schedule, problem.mode)
        cutting = self._cutting(problem)
        cuts = [cut for cut in neighbors(problem.cut, cutting.least) if cutting.fits_cut(cut)]
        moved = [cut_problem(cutting.root, cut) for cut in cuts]
        moved = [other for other in moved if not search.has(other)]
        if not moved:
            return []
        spans = graph.makespans(np.array([graph.cost_vector(other.table) for other in moved]))
        easy = [relaxed(relax_copies(other)) for other in moved]
        bounds = np.array([lower_bound(other) for other in easy])
        same = np.round(np.stack([spans, bounds]) / (spans.max() or 1.0), 9)
        by_order = (i for i in np.lexsort(same[::-1]) if moved[i].fits(schedule))
        by_bound = np.lexsort(same)[:TRIED].tolist()
        chosen = dict.fromkeys([*islice(by_order, TRIED), *by_bound])
        best = search.best.makespan
        return [
            moved[i] for i in chosen
            if bounds[i] < best * (1 - TOLERANCE)
            and strongest_rank_bound(easy[i], bounds[i], best, NODE_STATES, search.stop)
            < best * (1 - TOLERANCE)
        ]  # fmt: skip

    def _add_all(self, search: Variants) -> None:
        """Add every cut that can be faster, where there are few."""
        cuts = self._cutting(self.root).all()
        if cuts is None:
            return
        known = {each.problem.cut for each in search.over(self.root)}
        others = np.inf
        for cut in cuts:
            if cut in known:
                continue
            if search.stop():
                return
            root = cut_problem(self.root, cut)
            bound = bound_of_all(root, self.ways, search.best.makespan, {}, 0, search.stop)[0]
            if bound < search.best.makespan * (1 - TOLERANCE):
                for problem in self._over(cut).first():
                    begin(search.add(problem))
            else:
                others = min(others, bound)
        self._others = max(self._others, others)
        self._all_known = True
        # Of what stages may do, some is looked at.
        self.complete = not self._open
