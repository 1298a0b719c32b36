"""Samples of step times: against one simulation per sample, sums of random numbers, and pairs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import kinds_of, unpack
from debubble.engine import ensembles
from debubble.engine.ensembles import Spread, Varied, spread_of, wins
from debubble.engine.kernels import ensembles as kernels
from debubble.engine.modes import P2P_MODES, P2PMode

MASK = (1 << 32) - 1


def scrambled(word: int) -> int:
    """Two rounds of multiply and shift, in whole numbers of any size."""
    word &= MASK
    word = ((word ^ (word >> 16)) * 2146121005) & MASK
    word = ((word ^ (word >> 15)) * 2221713035) & MASK
    return word ^ (word >> 16)


def factor(
    quantiles: np.ndarray[Any, Any], seed: int, sample: int, rank: int, phase: int, number: int
) -> float:
    """The factor of what a rank does for a microbatch, forward (0) or backward (1)."""
    key = scrambled((seed >> 32) ^ 0x9E3779B1)
    for part in (rank, phase, number):
        key = scrambled(key * 0x9E3779B1 + part)
    word = scrambled(sample + scrambled(seed & MASK))
    return float(quantiles[scrambled(key ^ word) >> 20])


def one_by_one(timeline: db.Timeline, jitter: db.Jitter) -> list[float]:
    """Makespans of all samples, each simulated with its own time for every action."""
    schedule, found = timeline.schedule, []
    rank = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets))
    phases = {"F": 0, "I": 1, "W": 1, "B": 1, "R": 4, "S": 15, "T": 16}
    alone = timeline.table.duration
    for sample in range(jitter.samples):
        durations = timeline.duration.copy()
        shares: dict[int, list[tuple[float, float]]] = {}
        for position, code in enumerate(schedule.actions.tolist()):
            action = unpack(code)
            if action.kind.name not in phases:
                continue
            place = int(schedule.places_of(schedule.actions[position : position + 1])[0])
            number = action.microbatch // schedule.slices
            drawn = factor(
                jitter.quantiles, jitter.seed, sample, int(rank[position]),
                phases[action.kind.name], number,
            )  # fmt: skip
            node = int(timeline.graph.node[position])
            shares.setdefault(node, []).append((float(alone[action.kind, place]), drawn))
        for position, node in enumerate(timeline.graph.node.tolist()):
            members = shares.get(node)
            if members:
                whole = sum(time for time, _ in members)
                weighted = sum(time * drawn for time, drawn in members)
                durations[position] *= weighted / whole if whole else 1.0
        costs = timeline.table.costs
        found.append(db.simulate(schedule, costs, timeline.mode, durations=durations).makespan)
    return found


COSTS = db.Costs.per_rank(F=1, I=1.25, W=0.75, B=2.5, p2p=0.125, OPT=0.5)


@pytest.mark.parametrize(
    "name", ["1f1b", "zb-v", "dualpipe", "seq1f1b", "vocab-1", "interleaved-1f1b", "pipedream"]
)
def test_samples_equal_simulations_one_by_one(name: str) -> None:
    schedule = db.make(name, ranks=4, microbatches=8)
    timeline = db.simulate(schedule, replace(COSTS, head={"F": 0.5, "B": 1}))
    jitter = db.Jitter("gamma:20%", samples=11, seed=(7 << 32) + 5)
    assert timeline.jitter(jitter).times.tolist() == pytest.approx(
        one_by_one(timeline, jitter), rel=1e-12
    )


@pytest.mark.parametrize("mode", P2P_MODES)
def test_every_mode_and_lengths_of_microbatches(mode: P2PMode) -> None:
    schedule = db.make("zb-h1", ranks=4, microbatches=6, iterations=2)
    costs = replace(COSTS, message=1, bandwidth=8, microbatch=[1, 1.5, 0.5, 1, 1, 1])
    timeline = db.simulate(schedule, costs, mode)
    jitter = db.Jitter("normal:5%", samples=5, seed=1)
    expected = one_by_one(timeline, jitter)
    assert timeline.jitter(jitter).times.tolist() == pytest.approx(expected, rel=1e-12)


def test_actions_that_run_alone_are_equal_to_the_last_bit() -> None:
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8), COSTS)
    jitter = db.Jitter("lognormal:10%", samples=9)
    assert timeline.jitter(jitter).times.tolist() == one_by_one(timeline, jitter)


def test_compiled_and_interpreted_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = db.simulate(db.make("1f1b", ranks=3, microbatches=5), COSTS)
    kernel = kernels.evaluate_samples
    found = []
    for run in (kernel.compiled, kernel.interpret):
        monkeypatch.setattr(kernel, "run", lambda _, *arguments, run=run: run(*arguments))
        found.append(timeline.jitter("gamma:30%", samples=10, seed=3).times.tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("lanes", [1, 3, 16])
def test_the_number_of_lanes_changes_nothing(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = db.simulate(db.make("zb-h1", ranks=3, microbatches=5), COSTS)
    jitter = db.Jitter("lognormal:30%", samples=10, seed=3)
    expected = timeline.jitter(jitter).times.tolist()
    kernel = kernels.evaluate_samples
    monkeypatch.setattr(kernel, "run", lambda _, *arguments: kernel.interpret(*arguments))
    monkeypatch.setattr(kernels, "LANES", lanes)
    assert timeline.jitter(jitter).times.tolist() == expected


def test_a_sample_depends_on_its_number_alone() -> None:
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8), COSTS)
    many = timeline.jitter("normal:5%", samples=100, seed=4).times
    for samples in (1, 7, 8, 9, 64):
        few = timeline.jitter("normal:5%", samples=samples, seed=4).times
        assert few.tolist() == many[:samples].tolist()
    assert not np.any(timeline.jitter("normal:5%", samples=100, seed=5).times == many)
    varied = Varied.of(timeline)
    jitter = db.Jitter("normal:5%", samples=30, seed=4)
    assert varied.sampled(jitter, 70).tolist() == many[70:].tolist()


def test_mean_and_percentiles_of_a_sum() -> None:
    """On one rank a step is a sum of independent times."""
    schedule = db.make("1f1b", ranks=1, microbatches=50)
    samples = 20_000
    spread = db.simulate(schedule, db.Costs(F=1, B=2)).jitter("normal:10%", samples=samples)
    deviation = 0.1 * math.sqrt(50 * (1 + 4))
    error = deviation / math.sqrt(samples)
    assert spread.mean == pytest.approx(150, abs=4 * error)
    assert spread.times.std() == pytest.approx(deviation, rel=4 / math.sqrt(2 * samples))
    # Errors of quantiles of a normal distribution are about twice that of the mean.
    assert spread.p95 == pytest.approx(150 + 1.6449 * deviation, abs=9 * error)
    assert spread.p99 == pytest.approx(150 + 2.3263 * deviation, abs=16 * error)
    assert abs(np.corrcoef(spread.times[:-1], spread.times[1:])[0, 1]) < 4 / math.sqrt(samples)


def test_what_varies_is_independent() -> None:
    """Forward and backward, ranks and microbatches: no two have factors that go together."""
    ids = np.array([[r, phase, i] for r in range(4) for phase in (0, 1) for i in range(4)])
    keys, words = ensembles.keys_of(ids, 11), ensembles.words_of(0, 20_000, 11)
    drawn = kernels.mixed((keys[:, None] ^ words[None, :]).astype(np.uint64)) >> np.uint64(20)
    found = np.corrcoef(drawn.astype(float)) - np.eye(len(ids))
    assert np.abs(found).max() < 4.5 / math.sqrt(20_000)
    counts = np.bincount(drawn.ravel().astype(np.int64), minlength=4096)
    expected = drawn.size / 4096
    assert np.abs(counts - expected).max() < 6 * math.sqrt(expected)


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("slow", [False, True])
def test_the_slowest_of_copies_is_that_of_all_combinations(copies: int, slow: bool) -> None:
    rng = np.random.default_rng(copies)
    times, late = rng.normal(10, 1, 7), rng.normal(10.5, 1, 7)
    spread = Spread(db.Jitter("normal:1%", replicas=copies), 10.0, times, late if slow else None)
    parts = [late if slow else times] + [times] * (copies - 1)
    steps = np.sort([max(step) for step in itertools.product(*parts)])
    assert spread.mean == pytest.approx(steps.mean(), rel=1e-12)
    for share in (0.1, 0.5, 0.95, 1.0):
        assert spread.quantile(share) == steps[math.ceil(share * len(steps)) - 1]


def test_many_copies_are_above_one_and_say_what_they_do_not_know() -> None:
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8), COSTS)
    one, some, all_ = (timeline.jitter("normal:5%", replicas=r) for r in (1, 64, 10_000))
    assert one.mean < some.mean < all_.mean <= one.times.max()
    assert (one.notes, some.notes) == ((), ())
    assert all_.notes == (
        "1,000 samples know little of the slowest of 10,000 copies: steps take longer than these; "
        "100,000 samples tell",
    )


@pytest.mark.parametrize("mode", P2P_MODES)
def test_slow_ranks_stages_and_links_are_slower_costs(mode: P2PMode) -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    links = np.full((4, 4), 0.5)
    costs = db.Costs(F=1, B=2, p2p=links)
    timeline = db.simulate(schedule, costs, mode)
    slow = db.Costs(F=[1, 1, 1.5, 1], B=[2, 2, 3, 2], p2p=links)
    for where in ("rank2", "stage2"):
        found = timeline.jitter(slow={where: 1.5})
        assert found.mean == found.p99 == db.simulate(schedule, slow, mode).makespan
    links[0, 1] = links[1, 0] = 1.5
    expected = db.simulate(schedule, db.Costs(F=1, B=2, p2p=links), mode).makespan
    assert timeline.jitter(slow={"link1-0": 3}).mean == pytest.approx(expected)


def test_one_slow_copy_of_many() -> None:
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8), db.Costs(F=1, B=2))
    assert timeline.jitter(slow={"copy": 1.25}, replicas=10_000).mean == 33 * 1.25
    assert timeline.jitter(slow={"copy.rank2": 1.5}, replicas=8).mean == 43.5
    none = timeline.jitter("normal:3%", replicas=8)
    late = timeline.jitter("normal:3%", replicas=8, slow={"copy.stage0": 1.01})
    assert none.mean < late.mean < none.mean * 1.01
    assert late.slow_times is not None
    assert not np.any(late.slow_times == late.times)


def test_steps_of_a_slow_rank_are_slow_too() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2, iterations=1)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, OPT=1))
    slow = db.simulate(schedule, db.Costs(F=[1, 2], B=[2, 4], OPT=[1, 2]))
    assert timeline.jitter(slow={"rank1": 2}).mean == slow.makespan


@pytest.mark.parametrize(
    ("where", "message"),
    [("rank4", "slow rank4: there is no rank 4; ranks go to 3"),
     ("link0-7", "slow link0-7: there is no rank 7; ranks go to 3"),
     ("copy.stage9", "slow stage9: there is no stage 9; stages go to 3")],
)  # fmt: skip
def test_what_is_not_there_cannot_be_slow(where: str, message: str) -> None:
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8))
    with pytest.raises(db.ParameterError, match=message):
        timeline.jitter(slow={where: 2})


def test_every_rank_has_the_same_work_in_all_schedules() -> None:
    jitter = db.Jitter("gamma:20%", samples=3)
    works = []
    for name in ("1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "looped-bfs"):
        timeline = db.simulate(db.make(name, ranks=4, microbatches=8), COSTS)
        varied = Varied.of(timeline)
        keys = ensembles.keys_of(varied.ids, jitter.seed)
        word = ensembles.words_of(2, 1, jitter.seed)
        drawn = kernels.mixed((keys ^ word).astype(np.uint64)) >> np.uint64(20)
        times = varied.parts * jitter.quantiles[drawn.astype(np.int64)]
        # I and W of this profile together take less than B.
        backward = varied.ids[:, 1] > 0
        if name == "zb-h1":
            times = np.where(backward, times * 2.5 / 2, times)
        works.append(np.bincount(varied.ids[:, 0], times))
    for work in works[1:]:
        assert work == pytest.approx(works[0])


def test_who_wins() -> None:
    makers = ("1f1b", "zb-h1", "1f1b")
    timelines = [db.simulate(db.make(name, ranks=4, microbatches=8)) for name in makers]
    for jitter in (db.Jitter("normal:1%"), db.Jitter("normal:1%", replicas=100)):
        spreads = [spread_of(timeline, jitter) for timeline in timelines]
        assert wins(spreads) == [0, 1, 0]
        assert wins([spreads[0], spreads[2]]) == [0.5, 0.5]
    close = [
        db.simulate(db.make(name, ranks=4, microbatches=8), db.Costs(F=1, B=2))
        for name in ("1f1b", "gpipe")
    ]
    for slow in ({}, {"copy.rank1": 1.01}):
        jitter = db.Jitter("normal:10%", replicas=3, slow=slow)
        shares = wins([spread_of(timeline, jitter) for timeline in close])
        assert sum(shares) == pytest.approx(1)
        assert min(shares) > 0


def test_wins_of_copies_are_those_of_all_combinations() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(10, 1, (2, 6))
    jitter = db.Jitter("normal:1%", replicas=2)
    spreads = [Spread(jitter, 10.0, np.resize(times, 6000)) for times in (one, other)]
    pairs = list(itertools.product(range(6), repeat=2))
    won = np.mean([max(one[i], one[j]) < max(other[i], other[j]) for i, j in pairs])
    tied = np.mean([max(one[i], one[j]) == max(other[i], other[j]) for i, j in pairs])
    assert wins(spreads)[0] == pytest.approx(won + tied / 2, abs=4 * 0.5 / math.sqrt(6000))


def test_the_spread_as_data() -> None:
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8), db.Costs(F=1, B=2))
    data = timeline.jitter("normal:3%", samples=200, seed=2, replicas=4).to_dict()
    assert list(data) == [
        "jitter", "samples", "seed", "replicas", "slow", "planned", "mean", "p50", "p95", "p99",
        "slowdown", "notes",
    ]  # fmt: skip
    assert data["planned"] == 33 < data["p50"] < data["p95"] < data["p99"]
    assert data["slowdown"] == data["mean"] / 33
    assert timeline.jitter([1.0, 1.1, 0.9]).to_dict()["jitter"] == "measured"
    assert repr(timeline.jitter()).startswith("<Spread of 1,000 steps: mean 33, p50 33")


def test_kinds_that_vary_together() -> None:
    kinds = kinds_of(db.make("vocab-1", ranks=4, microbatches=8).actions)
    assert {ensembles.PHASES[kind] for kind in kinds.tolist()} == {0, 1, 15, 16}
