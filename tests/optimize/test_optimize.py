"""``db.optimize`` as a whole: results, choices, refusals, interruption, determinism."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import Kind
from debubble.optimize import strategies
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.programs.backward import separate
from debubble.optimize.stop import Stop
from tests.optimize.problems import fastest, kinds, problem
from tests.patience import patience

FAST: dict[str, Any] = {"cache": False, "published": False, "effort": 0.02, "workers": 1}
"""Little work, and by one worker: two workers may find something else every time."""


@settings(max_examples=8)
@given(st.data())
def test_results_are_right_within_memory_and_never_below_the_bound(data: st.DataObject) -> None:
    p, v, m = (data.draw(st.integers(1, most)) for most in (4, 2, 6))
    times = st.integers(1, 8).map(float)
    per_stage = st.lists(times, min_size=p * v, max_size=p * v)
    costs = db.Costs(
        F=data.draw(per_stage), I=data.draw(per_stage), W=data.draw(per_stage),
        p2p=data.draw(st.sampled_from([0.0, 0.5])),
    )  # fmt: skip
    memory = data.draw(st.lists(st.floats(1, p + 1), min_size=p, max_size=p))
    mode = data.draw(st.sampled_from(["overlapped", "channel", "blocking"]))
    shape = data.draw(st.sampled_from(["wave", "loop"]))
    result = db.optimize(
        ranks=p, chunks=v, microbatches=m, costs=costs, memory=memory, placement=shape,
        p2p_mode=mode, **FAST,
    )  # fmt: skip
    assert db.check(result.schedule, memory=memory, costs=costs, p2p_mode=mode).ok
    timeline = db.simulate(result.schedule, costs, mode)
    assert timeline.makespan == result.makespan >= result.lower_bound * (1 - 1e-9)
    assert (result.status == "optimal") == (result.gap < 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chunks", "memory"),
    [("zb-h1", 1, 4), ("1f1b", 1, 4), ("zb-v", 2, 4), ("dualpipe-v", 2, 4.5)],
)
def test_never_slower_than_published_schedules(name: str, chunks: int, memory: float) -> None:
    costs = db.Costs(F=3, I=4, W=2, p2p=0.25)
    schedule = db.make(name, ranks=4, microbatches=9)
    published = db.simulate(schedule, costs)
    assert published.peak_activation.max() <= memory
    result = db.optimize(ranks=4, chunks=chunks, microbatches=9, memory=memory, costs=costs, **FAST)
    assert result.makespan <= published.makespan


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["channel", "blocking"])
def test_other_transfer_modes(mode: Any) -> None:
    asked = problem(2, 2, 2, chunks=1, mode=mode, F=2, I=3, W=1, p2p=1.5)
    result = db.optimize(
        ranks=2, microbatches=2, memory=2, costs=asked.table.costs, p2p_mode=mode,
        backward="split", **FAST,
    )  # fmt: skip
    assert result.lower_bound <= fastest(asked) <= result.makespan


@pytest.mark.slow
def test_many_microbatches_use_a_pattern() -> None:
    result = db.optimize(
        ranks=4, chunks=2, microbatches=64, memory=2, costs=db.Costs(F=5, I=6, W=4),
        cache=False, published=False, effort=0.05, workers=1,
    )  # fmt: skip
    assert db.check(result.schedule, memory=2).ok
    # V-Min needs 36 per microbatch, the pattern 34; the rest is filling and draining.
    assert result.makespan < 64 * 34 + 60


@pytest.mark.parametrize(
    ("backward", "expected"), [("split", "FIW"), ("fused", "FB"), ("free", "FIW")]
)
def test_backwards(backward: Any, expected: str) -> None:
    result = db.optimize(ranks=2, microbatches=4, memory=2, backward=backward, **FAST)
    assert {kind.name for kind in kinds(result.schedule)} == set(expected)


@pytest.mark.slow
def test_a_backward_that_is_faster_fused_is_fused() -> None:
    costs = db.Costs(F=4, I=4, W=4, B=5)
    made = {
        how: db.optimize(ranks=4, microbatches=8, memory=4, costs=costs, backward=how, **FAST)
        for how in ("split", "fused", "free")
    }
    assert Kind.B in kinds(made["free"].schedule)
    assert made["free"].makespan <= min(made["split"].makespan, made["fused"].makespan)


def test_placements_and_chunks_to_choose_from() -> None:
    def run(**choice: Any) -> db.Result:
        costs = db.Costs.per_rank(F=2, I=2, W=2, chunks=choice.get("divide"))
        choice.pop("divide", None)
        return db.optimize(ranks=2, microbatches=4, memory=2, costs=costs, **choice, **FAST)

    assert run(chunks=2, placement="any").makespan == min(
        run(chunks=2, placement=shape).makespan for shape in ("wave", "loop")
    )
    assert run().makespan == min(run(chunks=v).makespan for v in (1, 2))
    assert run(placement=[0, 1, 1, 0]).makespan == run(chunks=2).makespan
    assert run(placement=db.Placement.v(2)).schedule.placement == db.Placement.v(2)


def test_uneven_stages_and_limits_of_every_rank() -> None:
    costs = db.Costs(F=[1, 2, 3, 4], I=[2, 2, 2, 5], W=1)
    result = db.optimize(ranks=4, microbatches=4, costs=costs, memory=[1, 2, 2, 1], **FAST)
    assert list(result.timeline.peak_activation <= [1, 2, 2, 1]) == [True] * 4


def test_published_schedules_stand_beside_the_result() -> None:
    result = db.optimize(ranks=4, chunks=1, microbatches=8, memory=4, cache=False)
    assert result.published is not None
    names = [row.name for row in result.published.rows]
    assert {"optimized", "1f1b", "zb-h1"} <= set(names)
    assert "pipedream" not in names
    assert "optimized" in str(result)
    assert str(result).startswith("27, proven optimal\nfound by ")
    assert result.to_dict()["status"] == "optimal"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory": 0.5}, "memory 0.5 is too small for rank 0, .* give at least 1"),
        ({"memory": [2, 2, 2]}, "memory has 3 limits for 4 ranks"),
        ({"memory": -1}, "memory is -1"),
        ({"chunks": 0}, "chunks is 0; it goes from 1"),
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": "x"}, "ranks is 'x'; give a whole number"),
        ({"microbatches": 2.5}, "microbatches is 2.5; give a whole number"),
        ({"chunks": "v"}, "chunks is 'v'; give a whole number"),
        ({"microbatches": 1 << 24, "chunks": 64}, "actions; the limit is"),
        ({"placement": "waves"}, "did you mean 'wave'"),
        ({"placement": [0, 5]}, "ranks go from 0 to 3"),
        ({"placement": db.Placement.bidirectional(4)}, "two copies"),
        ({"backward": "fuse"}, "did you mean 'fused'"),
        ({"p2p_mode": "channels"}, "did you mean 'channel'"),
        ({"time_limit": 0}, "time limit is 0"),
        ({"effort": float("inf")}, "effort is inf"),
        ({"workers": 0}, "workers is 0"),
    ],
)
def test_what_cannot_be_used_is_refused(change: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"ranks": 4, "microbatches": 8, "memory": 4} | FAST
    with pytest.raises(db.ParameterError, match=message):
        db.optimize(**(asked | change))


def test_the_smallest_limit_that_works_works() -> None:
    # The second microbatch enters when the first has left.
    assert db.optimize(ranks=4, chunks=1, microbatches=2, memory=1, **FAST).makespan == 18


@pytest.mark.slow
def test_the_same_seed_gives_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "has_solver", lambda: False)

    def run(seed: int) -> db.Schedule:
        costs = db.Costs(F=5, I=6, W=4)
        return db.optimize(
            ranks=4, chunks=2, microbatches=8, memory=2, costs=costs, seed=seed, **FAST
        ).schedule

    assert run(3) == run(3)


@pytest.mark.slow
def test_without_the_solver_it_still_anneals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "has_solver", lambda: False)
    costs = db.Costs(F=5, I=6, W=4)
    result = db.optimize(
        ranks=4, chunks=2, microbatches=8, memory=2, costs=costs, cache=False, published=False
    )
    assert result.makespan < 338
    assert result.status == "optimal", "ranks that are kept exactly prove it"


@pytest.mark.slow
def test_a_time_limit_is_kept() -> None:
    began = time.process_time()
    result = db.optimize(
        ranks=8, chunks=2, microbatches=32, memory=4, costs=db.Costs(F=5, I=6, W=4),
        time_limit=2, cache=False, published=False,
    )  # fmt: skip
    assert result.status == "feasible"
    assert time.process_time() - began < 60


def test_ctrl_c_returns_the_best_so_far() -> None:
    # Tests that run in the background of a shell ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _interrupted_search()
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted_search() -> None:
    reported: list[float] = []
    sent = threading.Event()

    def report(makespan: float, bound: float, found_by: str) -> None:
        del bound, found_by
        reported.append(makespan)
        if not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)

    result = db.optimize(
        ranks=8, chunks=2, microbatches=16, memory=4, costs=db.Costs(F=5, I=6, W=4),
        time_limit=120, cache=False, published=False, report=report,
    )  # fmt: skip
    assert result.status == "interrupted"
    assert result.makespan == min(reported)
    assert db.check(result.schedule, memory=4).ok


def test_a_search_is_ended_from_outside_with_the_best_so_far() -> None:
    reported: list[float] = []
    result = db.optimize(
        ranks=8, chunks=2, microbatches=16, memory=4, costs=db.Costs(F=5, I=6, W=4),
        time_limit=120, cache=False, published=False, until=lambda: bool(reported),
        report=lambda *news: reported.append(news[0]),
    )  # fmt: skip
    assert result.status == "interrupted"
    assert result.makespan == min(reported)


@pytest.mark.slow
def test_reports_only_get_better() -> None:
    seen: list[tuple[float, float]] = []
    db.optimize(
        ranks=3, chunks=2, microbatches=5, memory=2, costs=db.Costs(F=5, I=6, W=4),
        report=lambda makespan, bound, _: seen.append((makespan, bound)), **FAST,
    )  # fmt: skip
    assert len({m for m, _ in seen}) > 1
    assert [m for m, _ in seen] == sorted((m for m, _ in seen), reverse=True)
    assert [b for _, b in seen] == sorted(b for _, b in seen)


def test_a_pool_refuses_what_does_not_fit() -> None:
    pool = Incumbent(problem(4, 8, 2, chunks=1), Stop())
    schedule = db.make("gpipe", ranks=4, microbatches=8)
    programs = [schedule.program(rank) for rank in range(4)]
    assert not pool.offer(separate(pool.problem, programs), "gpipe")


def test_separating_splits_and_fuses() -> None:
    schedule = db.make("1f1b", ranks=3, microbatches=4)
    programs = [schedule.program(rank) for rank in range(3)]
    split = separate(problem(3, 4, 4, chunks=1), programs)
    assert [len(program) for program in split] == [12, 12, 12]
    fused = separate(problem(3, 4, 4, chunks=1, backward="fused"), split)
    assert all((a == b).all() for a, b in zip(fused, programs, strict=True))


def test_stops_follow_their_parents() -> None:
    parent = Stop()
    child = Stop(parent=parent)
    ended: list[int] = []
    with child.ending(lambda: ended.append(1)):
        parent.ask()
    assert child()
    assert ended == [1]
    assert Stop(0)()
    assert Stop().left == float("inf")


def test_what_cannot_ask_is_told_that_its_time_is_up() -> None:
    told = threading.Event()
    with Stop(0.01).ending(told.set):
        assert told.wait(patience(60))
    late = threading.Event()
    with Stop(0.05, Stop()).ending(late.set):
        pass
    assert not late.wait(0.1)


@pytest.mark.slow
@settings(max_examples=6)
@given(st.data())
def test_fused_and_split_backwards_are_mixed_action_by_action(data: st.DataObject) -> None:
    def times(most: int) -> list[float]:
        return [data.draw(st.integers(1, most)) / 2 for _ in range(2)]

    costs: dict[str, Any] = {"F": times(8), "I": times(12), "W": times(12)}
    parts = [i + w for i, w in zip(costs["I"], costs["W"], strict=True)]
    costs["B"] = [max(0.5, whole - data.draw(st.sampled_from([0, 0.5, 1, 2]))) for whole in parts]
    costs["p2p"] = data.draw(st.sampled_from([0, 0.5]))
    memory = data.draw(st.sampled_from([1, 2]))
    result = db.optimize(
        ranks=2, microbatches=2, memory=memory, costs=db.Costs(**costs), cache=False,
        published=False,
    )  # fmt: skip
    asked = problem(2, 2, memory, chunks=1, backward="free", **costs)
    assert result.status == "optimal"
    assert result.makespan == pytest.approx(fastest(asked))


@pytest.mark.slow
@pytest.mark.parametrize("solver", [True, False])
@pytest.mark.parametrize(
    ("memory", "expected", "costs"),
    [
        (2, 25, {"F": [2, 1], "I": [3, 5], "W": [0.5, 2], "B": [2.5, 6], "p2p": 0.25}),
        (3, 23, {"F": 0.5, "I": [3, 1], "W": [5, 2], "B": [7, 3]}),
    ],
)
def test_one_stage_fuses_some_backwards_and_splits_others(
    memory: float, expected: float, costs: Any, solver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not solver:
        monkeypatch.setattr(strategies, "has_solver", lambda: False)
    result = db.optimize(
        ranks=2, microbatches=3, memory=memory, costs=db.Costs(**costs), cache=False,
        published=False,
    )  # fmt: skip
    assert result.makespan == expected
    assert result.status == "optimal" or not solver
    assert db.check(result.schedule, memory=memory).ok
