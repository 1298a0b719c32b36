"""Candidates that may be among the best plans, looked at more and more closely."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush, nsmallest
from itertools import count

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import DebubbleError
from debubble.planner.candidate import Candidate, recomputed_layers
from debubble.planner.request import PlanRequest
from debubble.planner.search.bounds import (
    LeastMemory,
    least_peaks,
    least_time,
    pipeline_bound,
    turns_of,
)
from debubble.planner.search.choices import FEWEST, Setting, first_setting
from debubble.planner.search.evaluate import Evaluated, finished
from debubble.planner.search.groups import (
    USUAL_SCHEDULE,
    Batch,
    CandidateGroup,
    Ordered,
    least_recompute,
)
from debubble.planner.search.layer_split import Allowed, forced_time, split_bound
from debubble.planner.search.queue import Queue, Turn
from debubble.planner.search.room import Large, with_room
from debubble.planner.search.search_result import (
    BOUND,
    IN_FLIGHT,
    NEAR,
    NO_FEWER,
    NO_ORDER,
    NO_ROOM,
    ROUNDING,
    SLOW_PIPELINE,
    SLOWER,
    Found,
    Kin,
    kept,
    kin,
    may_be_near,
    rank,
)
from debubble.planner.search.within_memory import (
    Base,
    BaseVariants,
    base_cut,
    base_of,
    least_floor,
    least_made,
    within_limit_of,
)


@dataclass
class Screen:
    """Candidates that may be among the best."""

    request: PlanRequest
    found: Found
    splits: Allowed | None
    memory: LeastMemory
    slack: float = 0.0
    """Share of a step by which plans that are not looked for may be faster."""
    heads: list[Evaluated] = field(default_factory=list)
    """The best plans so far of those whose bases fit."""
    alike: dict[Kin, float] = field(default_factory=dict)
    """Seconds of the best plan so far of those alike, of which only one is kept."""
    queue: Queue = field(default_factory=Queue)
    """All that is not decided."""
    large: list[tuple[float, int, Batch | Candidate | Evaluated]] = field(default_factory=list)
    """Heap of what does not fit, by bytes that its fullest rank needs at least, about."""
    numbers: Iterator[int] = field(default_factory=count)
    """Numbers of what is in that heap: of equal bytes the first comes first."""
    work: dict[object, float] = field(default_factory=dict)
    """Seconds of all layers, embedding and head for one microbatch, by what they depend on."""

    @property
    def limit(self) -> float:
        """Seconds above which no candidate can be among the best."""
        if len(self.heads) < self.found.top:
            return self.found.below
        last = self.heads[-1].step_time
        return min(self.found.below, last * (1 - self.slack) * (1 + ROUNDING))

    def open_next(self) -> bool:
        """Look closer at the candidates that come next; return whether some are left."""
        if not self.queue:
            return False
        item = self.queue.pop(self.limit)
        if item.bound <= self.limit:
            item.open()
            return True
        for one in (item, *self.queue.drain()):
            if any(variants.started for variants in one.variants):
                self._finish(one.variants)
            else:
                self.found.leave_out(one.reason, one.size, simulated=one.reason == SLOWER)
        return False

    def add_group(self, group: CandidateGroup) -> None:
        """Add all candidates of a group, with the work of those that do least."""
        least, degrees = group.choices.least, group.degrees
        replicas = degrees.dp if least[1] > 1 else 1
        # The same layers on the same ranks: pipelines and replicas split them in proportion.
        alike = degrees.tp, degrees.cp, degrees.ep, replicas, group.microbatch_size, least
        if alike not in self.work:
            self.work[alike] = least_time(self.request, group.alone(least), 1) / group.microbatches
        bound = self.work[alike] * turns_of(group)
        self.queue.add(bound, group.count, BOUND, partial(self._open_group, group))

    def _least_time(self, group: CandidateGroup, setting: Setting) -> float:
        alone = group.alone(setting)
        key = alone.without_order()
        if key not in self.work:
            self.work[key] = least_time(self.request, alone, 1) / alone.microbatches
        return self.work[key] * turns_of(group)

    def _open_group(self, group: CandidateGroup) -> None:
        """Add the batches of a group, with the work of those that do least, if any has room."""
        limit = self.request.limit
        if self.heads and self.memory.of(group) > limit * (1 + ROUNDING):
            self.found.leave_out(NO_ROOM, group.count)
            return
        alike: dict[tuple[str, bool], list[Batch]] = {}
        for setting in group.all_settings:
            batch, (recompute, zero) = Batch(group, setting), setting
            least = self.memory.of(group, setting)
            if least > limit:
                self.found.leave_out(NO_ROOM, batch.count)
                self._note_large(least, batch)
            else:
                alike.setdefault((recompute, zero > 0), []).append(batch)
        for (recompute, split), batches in alike.items():
            # As if nothing were scattered, which is the same for many groups.
            bound = self._least_time(group, (first_setting((recompute, 0))[0], int(split)))
            count = sum(batch.count for batch in batches)
            self.queue.add(bound, count, BOUND, partial(self._open_batches, batches, bound))

    def _open_batches(self, batches: list[Batch], bound: float) -> None:
        """Add the candidates of batches that recompute alike, of those that have room."""
        for batch, (given, large) in zip(batches, with_room(self.request, batches), strict=True):
            if large:
                self._leave_out_large(batch, large)
            if given:
                setting = least_recompute(given), batch.setting[1]
                exact = max(self._least_time(batch.group, setting), bound)
                self.queue.add(exact, len(given), BOUND, partial(self._open_batch, batch, given))

    def _leave_out_large(self, batch: Batch, large: list[Large]) -> None:
        """Leave out orders without room; some are noted while nothing fits."""
        self.found.leave_out(IN_FLIGHT, len(large))
        for least, order in nsmallest(self.found.top, large):
            self._note_large(least, batch.group.candidate(*order, batch.setting))

    def _note_large(self, least: float, one: Batch | Candidate | Evaluated) -> None:
        """Note what does not fit, as long as nothing does.

        Not batches that recompute as few layers as they can: recomputing all needs less.
        """
        nothing = not self.heads and math.isinf(self.found.below)
        if nothing and not (isinstance(one, Batch) and one.setting[0] == FEWEST):
            heappush(self.large, (least, next(self.numbers), one))

    def add_large(self) -> None:
        """Keep the plans that need least memory as near if nothing fits, the smallest first."""
        smallest: dict[Kin, Evaluated] = {}
        while self.large and len(smallest) < self.found.top and not self.heads:
            least, _, one = heappop(self.large)
            if isinstance(one, Batch):
                given, large = with_room(self.request, [one])[0]
                for peak, order in (*large, *((least, order[:2]) for order in given)):
                    candidate = one.group.candidate(*order, one.setting)
                    self._note_large(max(least, peak), candidate)
            elif isinstance(one, Candidate):
                own, _ = base_cut(self.request, one, self.splits)
                peaks = least_peaks(self.request, own)
                base = None if own.uses_costs else base_of(self.request, own, self.splits)
                if base is not None:
                    self._note_large(least if peaks is None else float(peaks.max()), base.plan)
            elif not one.memory:
                plan = finished(one)
                self._note_large(max(plan.peaks), plan)
            else:
                smallest.setdefault(kin(one.candidate), one)
        self.found.near = list(smallest.values()) or self.found.near

    def _open_batch(self, batch: Batch, orders: list[Ordered]) -> None:
        """Add the candidates of a batch whose pipelines may be fast enough."""
        given = [batch.candidate(one) for one in orders]
        fewest = batch.setting[0] == FEWEST
        if len(self.heads) < self.found.top and not fewest and math.isinf(self.found.below):
            self._look_for_some(given)
        for one in given:
            candidate, bound, reason = self._start(one)
            if reason:
                self.found.leave_out(reason)
            elif fewest:
                # With more layers it is slower still.
                then = partial(self._open_fewest, one, bound)
                self.queue.add(bound, 1, SLOW_PIPELINE, then, turn=Turn.SINGLE)
            else:
                then = partial(self._open_candidate, candidate, bound)
                self.queue.add(bound, 1, SLOW_PIPELINE, then, turn=Turn.of(one))

    def _open_candidate(self, candidate: Candidate, bound: float) -> None:
        """Simulate a candidate, unless a bound shows that it is too slow or too large."""
        base, reason = self._simulated(candidate, bound)
        if base is None:
            self.found.leave_out(reason, simulated=reason == SLOWER)
        elif not reason and base.plan.step_time > self._limit(candidate):
            # Only with other layers or a faster order: memory of all ranks takes time, too.
            then = partial(self._open_base, base, reason)
            self.queue.add(base.floor, 1, SLOWER, then, turn=Turn.of(candidate))
        else:
            self._open_base(base, reason)

    def _open_base(self, simulated: Base, reason: str) -> None:
        """Look at the variants of a base, unless it turns out too large for any."""
        base, reason = self._with_peaks(simulated, reason)
        if reason:
            self._take(base.plan)
        else:
            self._wait([base])

    def _open_fewest(self, given: Candidate, bound: float) -> None:
        """Simulate a candidate with every number of recomputed layers that may be the fewest."""
        numbers = range(recomputed_layers(given.recompute) or 1, max(given.layers))
        if not numbers:
            self.found.leave_out(NO_FEWER)
            return
        bases = []
        reason = SLOW_PIPELINE if bound > self._limit(given) else ""
        if not reason and not self._may_fit(given, numbers[-1]):
            reason = IN_FLIGHT
        at = 0 if reason else bisect_left(numbers, True, key=lambda one: self._may_fit(given, one))
        for number in numbers[at:] if not reason else ():
            candidate, bound, reason = self._start(given.recomputing(f"full:{number}"))
            if reason:
                break
            base, reason = self._base(candidate, bound)
            if base is None or reason == IN_FLIGHT:
                continue
            bases.append(base)
            if base.plan.fits:
                break
        if bases:
            self._wait(bases)
        else:
            self.found.leave_out(reason or IN_FLIGHT)

    def _decide(self, several: Sequence[BaseVariants]) -> None:
        """Look at one more variant of a candidate's bases that may still be among the best."""
        variants = min(several, key=lambda one: one.floor)
        if variants.floor <= self._limit(variants.base.plan.candidate):
            variants.look()
            least = min(one.floor for one in several)
            if math.isfinite(least):
                self._add_variants(least, several)
                return
        self._finish(several)

    def _finish(self, several: Sequence[BaseVariants]) -> None:
        """Take the fastest variant of a candidate, or one that is near; none where all are slow."""
        plans = [plan for one in several if (plan := self._outcome(one)) is not None]
        if plans:
            self._take(min(plans, key=lambda plan: (not plan.fits, rank(plan))))
        else:
            self.found.leave_out(SLOWER, simulated=True)

    def _outcome(self, variants: BaseVariants) -> Evaluated | None:
        base = variants.base
        near = not base.plan.fits and base.without_limit <= self._limit(base.plan.candidate)
        return variants.plan if variants.started or near else None

    def _take(self, plan: Evaluated) -> None:
        if plan.fits:
            self._keep(plan)
        else:
            self._note_large(max(plan.peaks), plan)
        self.found.take(plan)

    def _base(self, candidate: Candidate, bound: float) -> tuple[Base | None, str]:
        """Return what :meth:`_simulated` does, with its peaks; near also by these."""
        base, reason = self._simulated(candidate, bound)
        return (base, reason) if base is None else self._with_peaks(base, reason)

    def _with_peaks(self, base: Base, reason: str) -> tuple[Base, str]:
        """Return a base with its peaks, and the reason against it: near, and no more."""
        limit = self._limit(base.plan.candidate)
        base = within_limit_of(self.request, base, self.splits, limit)
        return base, IN_FLIGHT if reason or base.floor > limit or math.isinf(base.floor) else ""

    def _simulated(self, candidate: Candidate, bound: float) -> tuple[Base | None, str]:
        """Return the base of a candidate that may be among the best or near; or the reason against.

        With a reason nevertheless where it is near and no more.
        """
        limit = self._limit(candidate)
        if bound > limit or least_floor(self.request, candidate, self.splits) > limit:
            return None, SLOW_PIPELINE
        peaks = least_peaks(self.request, candidate)
        forced = self._forced(candidate, peaks)
        near = forced > limit or math.isinf(forced)
        if near and candidate.uses_costs:
            if math.isinf(forced):
                return None, NO_ORDER
            if least_made(self.request, candidate, NEAR * self.request.limit) > limit:
                return None, SLOW_PIPELINE
        if near and peaks is not None:
            least = pipeline_bound(self.request, candidate)
            if not may_be_near(self.found, candidate, float(peaks.max()), least):
                self._note_large(float(peaks.max()), candidate)
                return None, IN_FLIGHT
        try:
            base = base_of(self.request, candidate, self.splits, limit)
        except DebubbleError:
            return None, NO_ORDER
        if base is None:
            return None, SLOWER
        return base, IN_FLIGHT if near else ""

    def _limit(self, candidate: Candidate) -> float:
        """Return seconds above which a candidate is neither among the best nor of those alike."""
        alike = self.alike.get(kin(candidate), math.inf)
        return min(self.limit, alike * (1 + ROUNDING))

    def _start(self, given: Candidate) -> tuple[Candidate, float, str]:
        """Return a candidate in its base cut, its bound, and the reason against it, if any."""
        limit = self._limit(given)
        if self.splits is not None:
            least = split_bound(self.request, given)
            if least > limit:
                return given, least, BOUND
        candidate, bound = base_cut(self.request, given, self.splits, limit)
        if bound <= limit:
            return candidate, bound, ""
        return candidate, bound, BOUND if self.splits is None else SLOW_PIPELINE

    def _may_fit(self, given: Candidate, number: int) -> bool:
        some, _ = base_cut(self.request, given.recomputing(f"full:{number}"), self.splits)
        return math.isfinite(self._forced(some, least_peaks(self.request, some)))

    def _forced(self, candidate: Candidate, peaks: NDArray[np.float64] | None) -> float:
        """Return seconds that a candidate takes at least so that it fits, by bounds for its peaks.

        Infinite where no variant has room.
        """
        made = candidate.uses_costs
        if peaks is None or float(peaks.max()) <= self.request.limit * (1 + ROUNDING):
            return least_made(self.request, candidate, self.request.limit) if made else 0.0
        if made or self.splits is None or candidate.degrees.pp == 1:
            return math.inf
        return forced_time(self.request, candidate, peaks)

    def _wait(self, bases: list[Base]) -> None:
        for base in bases:
            if base.plan.fits:
                self._keep(base.plan)
        several = [BaseVariants(self.request, base, self.splits) for base in bases]
        least = min(base.floor for base in bases)
        self._add_variants(least, several)

    def _add_variants(self, floor: float, several: Sequence[BaseVariants]) -> None:
        turn = Turn.of(several[0].base.plan.candidate)
        self.queue.add(floor, 1, SLOWER, partial(self._decide, several), several, turn=turn)

    def _keep(self, plan: Evaluated) -> None:
        kept(self.heads, plan, self.found.top)
        self.found.early = self.heads[0]
        own = kin(plan.candidate)
        self.alike[own] = min(plan.step_time, self.alike.get(own, math.inf))

    def _look_for_some(self, given: list[Candidate]) -> None:
        """Begin with plans that fit, of the usual schedule if possible, so that some are known."""
        plain = [one for one in given if not one.uses_costs]
        for candidate in [one for one in plain if one.schedule == USUAL_SCHEDULE] or plain[:1]:
            own, _ = base_cut(self.request, candidate, self.splits)
            peaks = least_peaks(self.request, own)
            if peaks is not None and float(peaks.max()) <= self.request.limit:
                try:
                    base = base_of(self.request, own, self.splits)
                except DebubbleError:
                    continue
                if base is None or base.plan.step_time >= self.found.below:
                    continue
                base = within_limit_of(self.request, base, self.splits)
                if base.plan.fits:
                    self._keep(base.plan)
