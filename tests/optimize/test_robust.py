"""Orders for jitter: no worse than the fastest ones on the same numbers, and within memory."""

from __future__ import annotations

from typing import Any

import pytest

import debubble as db
from debubble.core.kinds import COPY_KINDS
from debubble.engine.validate import has

COSTS = db.Costs(F=10, I=11, W=8, p2p=1)
SIZES: dict[str, Any] = {"ranks": 3, "microbatches": 6, "cache": False, "effort": 0.1,
                         "workers": 1}  # fmt: skip
"""By one worker: two workers may find something else every time."""
JITTER = db.Jitter("lognormal:20%", samples=200, seed=2)


def p95(result: db.Result, jitter: db.Jitter = JITTER) -> float:
    return result.timeline.jitter(jitter).p95


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, 2.5])
def test_the_p95_is_no_larger_than_that_of_the_fastest(memory: float | None) -> None:
    fastest = db.optimize(**SIZES, costs=COSTS, memory=memory)
    robust = db.optimize(**SIZES, costs=COSTS, memory=memory, robust=JITTER)
    assert p95(robust) <= p95(fastest) * (1 + 1e-9)
    assert robust.makespan >= robust.lower_bound * (1 - 1e-9)
    assert memory is None or robust.timeline.peak_activation.max() <= memory + 1e-9
    assert db.check(robust.schedule).ok
    assert db.simulate(robust.schedule, COSTS).makespan == robust.makespan
    again = db.optimize(**SIZES, costs=COSTS, memory=memory, robust=JITTER)
    assert again.schedule == robust.schedule


def test_what_is_said_comes_from_other_numbers() -> None:
    result = db.optimize(**SIZES, costs=COSTS, robust=JITTER)
    assert result.spread is not None
    assert result.spread.jitter.seed == 3
    assert result.spread.times.tolist() != result.timeline.jitter(JITTER).times.tolist()
    assert result.published is not None
    rows = {row.name: row for row in result.published.rows}
    assert sum(row.wins for row in rows.values()) == pytest.approx(1)
    assert "step time under jitter: lognormal:20% (200 samples, seed 3):" in str(result)
    assert result.to_dict()["jitter"]["p95"] == result.spread.p95


@pytest.mark.slow
def test_without_jitter_the_fastest_stays_and_lengths_are_arranged() -> None:
    costs = db.Costs(F=1, B=2, microbatch=[1, 2, 0.5, 1, 1, 1])
    plain = db.optimize(**SIZES, costs=costs)
    robust = db.optimize(**SIZES, costs=costs, robust=db.Jitter(slow={"rank1": 1.0}))
    assert robust.microbatches == plain.microbatches
    assert robust.makespan <= plain.makespan * (1 + 1e-9)


def test_no_published_order_without_copies_stands_in_for_one_with_them() -> None:
    costs = db.Costs(F=2, I=3, W=2, host_bandwidth=0.5)
    sizes = {**SIZES, "ranks": 2, "microbatches": 4, "effort": 0.02}
    result = db.optimize(**sizes, costs=costs, offload=[0], robust=JITTER)
    assert has(result.schedule, COPY_KINDS)


ENDLESS = 1 << 40


@pytest.mark.slow
def test_a_time_limit_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not come back else."""
    monkeypatch.setattr("debubble.optimize.robust.MOVES", ENDLESS)
    result = db.optimize(**SIZES, costs=COSTS, robust=JITTER, time_limit=1.0)
    assert result.status in ("feasible", "optimal")
    assert result.spread is not None


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [None, [1, 2, 0.5, 1, 1, 1]])
def test_a_request_ends_it(monkeypatch: pytest.MonkeyPatch, lengths: list[float] | None) -> None:
    from debubble.optimize import robust

    monkeypatch.setattr(robust, "MOVES", ENDLESS)
    scored = []
    score = robust._Judge.score

    def counting(judge: Any, timeline: db.Timeline) -> float:
        scored.append(timeline)
        return score(judge, timeline)

    monkeypatch.setattr(robust._Judge, "score", counting)
    costs = db.Costs(F=10, I=11, W=8, p2p=1, microbatch=lengths)
    result = db.optimize(**SIZES, costs=costs, robust=JITTER, until=lambda: len(scored) > 3)
    assert result.status == "interrupted"
    assert result.published is None
    assert result.timeline.jitter(JITTER).p95 <= max(
        timeline.jitter(JITTER).p95 for timeline in scored
    )


def test_the_table_of_published_schedules_ends_with_the_time() -> None:
    """What would take minutes to draw is left out, which a note says; the result is there."""
    jitter = db.Jitter("lognormal:20%", samples=4000, seed=2)
    late: list[bool] = []

    def stop() -> bool:
        late.append(True)
        return len(late) > 1

    found = db.compare(
        ["1f1b", "gpipe", "zb-h1", "eager-1f1b"], ranks=3, microbatches=6, costs=COSTS,
        jitter=jitter, stop=stop,
    )  # fmt: skip
    assert {row.name for row in found.rows} == {"1f1b", "gpipe"}
    assert "no time left: 2 schedules not compared" in found.notes
    assert sum(row.wins for row in found.rows) == pytest.approx(1)


def test_a_request_ends_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from debubble.engine.timeline import Timeline

    drawn: list[int] = []
    draw = Timeline.jitter

    def counting(timeline: Timeline, times: db.Jitter) -> Any:
        drawn.append(times.seed)
        return draw(timeline, times)

    monkeypatch.setattr(Timeline, "jitter", counting)
    result = db.optimize(
        **SIZES, costs=COSTS, robust=JITTER, until=lambda: JITTER.seed + 1 in drawn
    )
    assert result.published is not None
    assert result.spread is not None
