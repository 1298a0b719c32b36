"""Step times under jitter: many samples of a timeline, and the slowest of many copies.

What a rank computes for a microbatch takes a random factor of its time: one for all of its forward,
and one for all of its backward, whether that is one action or several, of one chunk or of several.
So every rank has the same work in all schedules, sample by sample, and a comparison is a fair race.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import among, kinds_of, microbatches_of, own_stages_of
from debubble.core.errors import ParameterError
from debubble.core.kinds import KINDS, STEP_KINDS, VOCABULARY_KINDS, WORK_KINDS, Kind
from debubble.engine.event_graph import CARRY, LINK, EventGraph
from debubble.engine.jitter import Jitter, Slow
from debubble.engine.kernels import ensembles as kernels

if TYPE_CHECKING:
    from debubble.engine.timeline import Timeline

Floats = NDArray[np.float64]


def _phase(kind: Kind) -> Kind:
    """Return the first of the kinds that can do the work of a kind, or share it: I for W."""
    own = KINDS[kind].instead_of
    return min({kind, *own, *(other for each in own for other in KINDS[each].instead_of)})


PHASES = np.array([_phase(kind) for kind in Kind])
"""For every kind, a number that kinds which vary together share: all backwards have that of I."""

SHOWN = (50, 95, 99)
"""Percentiles of step times in tables and files."""

MOST_DRAWS = 20_000_000
"""Draws of copies in which schedules race."""


@dataclass(frozen=True, eq=False)
class Spread:
    """Step times of a schedule whose times vary.

    Parameters
    ----------
    jitter
        What varies.
    planned
        Makespan without jitter and without anything slow.
    times
        Step time of one copy in every sample, shape ``(samples,)``.
    slow_times
        The same of the copy in which something is slow that is not in the others; None where there
        is no such copy.
    """

    jitter: Jitter
    planned: float
    times: Floats
    slow_times: Floats | None = None

    @cached_property
    def _distribution(self) -> tuple[Floats, Floats]:
        """Step times in rising order, and the probability of each or less.

        The step takes what the slowest of R copies does. R independent draws from a distribution F
        are all below t with the probability F(t) to the power of R, which holds exactly for the
        sampled distribution as for any other.
        """
        copies = self.jitter.replicas
        if self.slow_times is None:
            values = np.sort(self.times)
            share = np.arange(1, len(values) + 1) / len(values)
            return values, share**copies
        values = np.sort(np.concatenate([self.times, self.slow_times]))
        parts = (self.times, self.slow_times)
        one, slow = (
            np.searchsorted(np.sort(part), values, side="right") / len(part) for part in parts
        )
        return values, one ** (copies - 1) * slow

    @property
    def mean(self) -> float:
        """Mean step time."""
        values, below = self._distribution
        # Where nothing varies, it is that very number.
        return float(values[0] + (values - values[0]) @ np.diff(below, prepend=0.0))

    def quantile(self, probability: float) -> float:
        """Step time that a share of all steps takes at most."""
        values, below = self._distribution
        at = np.searchsorted(below, probability - 1e-12)
        return float(values[min(int(at), len(values) - 1)])

    @property
    def p50(self) -> float:
        """Median step time."""
        return self.quantile(0.50)

    @property
    def p95(self) -> float:
        """Step time that 95 % of the steps take at most."""
        return self.quantile(0.95)

    @property
    def p99(self) -> float:
        """Step time that 99 % of the steps take at most."""
        return self.quantile(0.99)

    @property
    def slowdown(self) -> float:
        """Mean step time over that without jitter."""
        return self.mean / self.planned if self.planned else 1.0

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats: more copies than samples can tell the slowest of."""
        samples, copies = len(self.times), self.jitter.replicas
        if self.jitter.times is None or samples >= 10 * copies:
            return ()
        return (
            f"{samples:,} samples know little of the slowest of {copies:,} copies: steps take "
            f"longer than these; {10 * copies:,} samples tell",
        )

    def percentiles(self) -> dict[str, float]:
        """Return some percentiles by name: p50, p95 and p99."""
        return {f"p{percent}": self.quantile(percent / 100) for percent in SHOWN}

    def to_dict(self) -> dict[str, Any]:
        """Return the spread as plain data, for JSON."""
        jitter = self.jitter
        measured = jitter.times is not None and not isinstance(jitter.times, str)
        return {
            "jitter": "measured" if measured else jitter.times,
            "samples": len(self.times),
            "seed": jitter.seed,
            "replicas": jitter.replicas,
            "slow": dict(jitter.slow),
            "planned": self.planned,
            "mean": self.mean,
            **self.percentiles(),
            "slowdown": self.slowdown,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return (
            f"<Spread of {len(self.times):,} steps: mean {self.mean:g}, p50 {self.p50:g}, "
            f"p95 {self.p95:g}, p99 {self.p99:g}>"
        )


def spread_of(timeline: Timeline, jitter: Jitter) -> Spread:
    """Step times of a timeline whose times vary.

    Raises ParameterError when something is slow that the schedule does not have.
    """
    everywhere = [item for item in jitter.slowed if not item.one_copy]
    in_one = [item for item in jitter.slowed if item.one_copy]
    varied = Varied.of(timeline, everywhere)
    slow_times = None
    if in_one:
        # Another copy draws numbers of its own.
        slow_times = Varied.of(timeline, everywhere + in_one).sampled(jitter, jitter.samples)
    return Spread(jitter, timeline.makespan, varied.sampled(jitter), slow_times)


@dataclass(frozen=True, eq=False)
class Varied:
    """A graph with the part of its nodes' times that varies."""

    graph: EventGraph
    """The graph."""
    delays: Floats
    """By node, the delay of what it receives."""
    fixed: Floats
    """By node, the part of its time that does not vary."""
    begin: NDArray[np.int64]
    """The first varying part of every node, and behind the last one the number of them all."""
    parts: Floats
    """Mean time of every varying part."""
    ids: NDArray[np.int64]
    """Owner of every part: rank, phase and microbatch, shape ``(parts, 3)``."""

    @classmethod
    def of(cls, timeline: Timeline, slow: Sequence[Slow] = ()) -> Varied:
        """Return the parts of a timeline that vary, some of which may be slow in every step."""
        graph, schedule, table = timeline.graph, timeline.schedule, timeline.table
        shared = graph.base or graph
        actions = schedule.actions
        kinds, places = kinds_of(actions), schedule.places_of(actions)
        stages = own_stages_of(actions)
        rank = schedule.ranks_of_actions
        factor = np.ones(len(actions))
        links = np.ones((schedule.ranks, schedule.ranks))
        for item in slow:
            _slow_down(item, schedule.ranks, schedule.stages, rank, stages, factor, links)

        fixed, delays = timeline.costs[graph.cost], timeline.costs[graph.lag]
        _slow_links(shared, links, fixed, delays)
        steps = np.flatnonzero(among(kinds, STEP_KINDS))
        fixed[graph.node[steps]] *= factor[steps]

        varies = np.flatnonzero(among(kinds, (*WORK_KINDS, *VOCABULARY_KINDS)))
        order = np.argsort(graph.node[varies], kind="stable")
        varies = varies[order]
        node = graph.node[varies]
        alone = table.duration[kinds[varies], places[varies]]
        together = np.bincount(node, alone, len(fixed))[node]
        members = np.bincount(node, minlength=len(fixed))[node]
        share = np.divide(alone, together, out=1.0 / members, where=together > 0)
        parts = fixed[node] * np.where(members > 1, share, 1.0) * factor[varies]
        fixed[node] = 0.0
        real = parts > 0
        varies, node, parts = varies[real], node[real], parts[real]
        number = microbatches_of(actions[varies]) // schedule.slices
        ids = np.stack([rank[varies], PHASES[kinds[varies]], number], axis=1)
        begin = np.searchsorted(node, np.arange(len(fixed) + 1))
        return cls(graph, delays, fixed, begin, parts, ids)

    def sampled(self, jitter: Jitter, skipped: int = 0) -> Floats:
        """Step time in every sample, from that with the number `skipped` on."""
        graph, lanes = self.graph, kernels.LANES
        count = jitter.samples if jitter.times is not None else 1
        keys, words = keys_of(self.ids, jitter.seed), words_of(skipped, count, jitter.seed)
        padded = np.zeros(-(-count // lanes) * lanes, dtype=np.uint32)
        padded[:count] = words
        end = np.empty((len(graph.first), lanes))
        last = np.empty(lanes)
        found = np.empty(len(padded))
        quantiles = jitter.quantiles
        for first in range(0, len(padded), lanes):
            kernels.evaluate_samples.run(
                (len(graph.first) + len(self.parts)) * lanes,
                graph.first, graph.second, self.delays, self.fixed, self.begin, self.parts, keys,
                padded[first : first + lanes], quantiles, end, last,
            )  # fmt: skip
            found[first : first + lanes] = last
        return np.resize(found[:count], jitter.samples)


def keys_of(ids: NDArray[np.int64], seed: int) -> NDArray[np.uint32]:
    """Random words of what varies, shape ``(parts,)``, from rows of numbers."""
    odd = np.uint64(0x9E3779B1)
    found = mixed(np.full(len(ids), seed >> 32, dtype=np.uint64) ^ odd)
    for column in ids.T.astype(np.uint64):
        found = mixed(found * odd + column)
    return found.astype(np.uint32)


def words_of(first: int, count: int, seed: int) -> NDArray[np.uint32]:
    """Random words of samples, from the number of the first on; shape ``(count,)``."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    start = mixed(np.full(count, seed & 0xFFFFFFFF, dtype=np.uint64))
    return mixed(numbers + start).astype(np.uint32)


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Words of 32 bits mixed as in the kernel, of which only the low bits count."""
    return np.asarray(kernels.mixed(words & np.uint64(0xFFFFFFFF)), dtype=np.uint64)


def _slow_down(
    item: Slow, ranks: int, stages: int, rank: NDArray[np.int64], stage: NDArray[np.int64],
    factor: Floats, links: Floats,
) -> None:  # fmt: skip
    """Multiply the factors of actions, or of links, by that of something slow."""
    count = stages if item.what == "stage" else ranks
    for number in item.numbers:
        if number >= count:
            owner = "stage" if item.what == "stage" else "rank"
            raise ParameterError(
                f"slow {item.what}{'-'.join(map(str, item.numbers))}: there is no {owner} {number};"
                f" {owner}s go to {count - 1}"
            )
    if item.what == "link":
        one, other = item.numbers
        links[one, other] *= item.factor
        if one != other:
            links[other, one] *= item.factor
    elif item.what == "rank":
        factor[rank == item.numbers[0]] *= item.factor
    elif item.what == "stage":
        factor[stage == item.numbers[0]] *= item.factor
    else:
        factor *= item.factor


def _slow_links(graph: EventGraph, links: Floats, fixed: Floats, delays: Floats) -> None:
    """Multiply transfer times, of nodes and before nodes, by the factors of their links."""
    if np.all(links == 1):
        return
    by_cost = np.ones(graph.dynamic_costs + len(graph.dynamic_kind))
    there = np.flatnonzero(graph.dynamic_kind == LINK)
    sender, receiver = graph.dynamic_a[there] % graph.schedule.ranks, graph.dynamic_b[there]
    by_cost[graph.dynamic_costs + there] = links[sender, receiver]
    there = np.flatnonzero(graph.dynamic_kind == CARRY)
    homes = graph.schedule.homes
    ends = homes[graph.dynamic_a[there]], homes[graph.dynamic_b[there]]
    by_cost[graph.dynamic_costs + there] = links[ends]
    fixed *= by_cost[graph.cost]
    delays *= by_cost[graph.lag]


def wins(spreads: Sequence[Spread]) -> list[float]:
    """Share of the steps in which each schedule is fastest; those that tie share a step.

    All have the same random numbers, be it for one copy or for many: the copies of a step are
    drawn from the samples, the same ones for all schedules.
    """
    jitter = spreads[0].jitter
    copies, samples = jitter.replicas, len(spreads[0].times)
    if copies == 1:
        times = ((spread.times, spread.slow_times) for spread in spreads)
        return _shares(np.array([usual if slow is None else slow for usual, slow in times]))
    rng = np.random.default_rng(jitter.seed)
    total, count = np.zeros(len(spreads)), max(1, min(samples, MOST_DRAWS // copies))
    block = max(1, 1_000_000 // copies)
    for first in range(0, count, block):
        drawn = rng.integers(0, samples, (min(block, count - first), copies))
        steps = np.array([_slowest(spread, drawn) for spread in spreads])
        total += np.array(_shares(steps)) * len(drawn)
    found: list[float] = (total / count).tolist()
    return found


def _slowest(spread: Spread, drawn: NDArray[np.int64]) -> Floats:
    """Step times, shape ``(steps,)``, of the copies with the drawn samples."""
    if spread.slow_times is None:
        return np.asarray(spread.times[drawn].max(axis=1))
    others = spread.times[drawn[:, 1:]].max(axis=1)
    return np.asarray(np.maximum(others, spread.slow_times[drawn[:, 0]]))


def _shares(steps: Floats) -> list[float]:
    """Share of the columns in which each row is the smallest, up to rounding."""
    least = steps.min(axis=0)
    first = steps <= least * (1 + 1e-12)
    shares: list[float] = (first / first.sum(axis=0)).mean(axis=1).tolist()
    return shares
