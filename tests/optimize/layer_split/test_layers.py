"""Layers that are cut into stages: costs of a cut, bounds for every cut, the search."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.core.given_layers import make_layers
from debubble.core.kinds import Kind
from debubble.core.layers import cut_costs, even_cut
from debubble.core.placement import Placement
from debubble.engine.graph import P2P_MODES
from debubble.interchange.cost_files import costs_data, parse_costs
from debubble.optimize import strategies
from debubble.optimize.bounds import strategies as bounding
from debubble.optimize.bounds.paths import lower_bound
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.layer_split import space as cuts
from debubble.optimize.layer_split.cut_bound import bound_of_cuts
from debubble.optimize.layer_split.cutting import Cutting, cut_problem
from debubble.optimize.layer_split.space import neighbors
from debubble.optimize.pareto import sweep_memory
from debubble.optimize.problem import Problem
from debubble.optimize.request import Request
from debubble.optimize.stop import Stop
from tests.optimize.by_hand import all_cuts
from tests.optimize.problems import fastest

FAST: dict[str, Any] = {"cache": False, "published": False, "effort": 0.02, "workers": 1}
"""Little work, and by one worker: two workers may find something else every time."""
TIMES = st.integers(1, 6).map(lambda n: n / 2)
PARTS = st.none() | st.fixed_dictionaries(
    {"F": TIMES, "B": TIMES}, optional={"activation": st.sampled_from([0.25, 1.0])}
)


@st.composite
def uncut(draw: st.DrawFn, mode: str = "overlapped", memory: Any = None) -> Problem:
    """A tiny problem with up to six layers."""
    p, v, m = draw(st.sampled_from([(2, 1, 2), (2, 1, 3), (2, 2, 1), (2, 2, 2), (3, 1, 2)]))
    shape = draw(st.sampled_from([Placement.wave, Placement.loop]))
    costs = db.Costs(
        F=draw(TIMES), I=draw(TIMES), W=draw(TIMES), p2p=draw(st.sampled_from([0, 0.5, 2])),
        embedding=draw(PARTS), head=draw(PARTS),
    )  # fmt: skip
    limit = memory or draw(st.sampled_from([2.5, 4, 6, None]))
    layers: Any = draw(st.integers(p * v, 6))
    if draw(st.booleans()):
        each = st.lists(TIMES, min_size=layers, max_size=layers)
        layers = {"F": draw(each), "I": draw(each), "W": draw(each)}
    (root,) = Request(
        p, m, costs=costs, memory=limit, placement=shape(p, v), backward="fused", p2p_mode=mode,
        layers=layers,
    ).problems  # fmt: skip
    return root


def cuts_of(root: Problem) -> list[tuple[int, ...]]:
    assert root.layers is not None
    costs = root.layers.costs
    ends = costs.embedding is not None, costs.head is not None
    return all_cuts(root.layers.count, root.stages, *ends)


def fastest_of_all_cuts(root: Problem) -> float:
    found = []
    for cut in cuts_of(root):
        problem = cut_problem(root, cut)
        if np.all(problem.microbatch_memory <= problem.limits_with_slack):
            found.append(fastest(problem, in_turn=True))
    return min(found)


@pytest.mark.slow
@pytest.mark.parametrize("mode", P2P_MODES)
@settings(max_examples=5)
@given(data=st.data())
def test_bounds_hold_for_every_cut(mode: str, data: st.DataObject) -> None:
    root = data.draw(uncut(mode))
    assert bound_of_cuts(Cutting(root)) <= fastest_of_all_cuts(root) + 1e-9


@pytest.mark.slow
@settings(max_examples=15)
@given(st.data())
def test_bounds_are_below_what_is_found_for_any_cut(data: st.DataObject) -> None:
    p, v, m = (data.draw(st.integers(1, most)) for most in (4, 2, 9))
    costs = db.Costs(
        F=data.draw(TIMES), I=data.draw(TIMES), W=data.draw(TIMES), B=data.draw(TIMES),
        head=data.draw(PARTS), embedding=data.draw(PARTS), p2p=data.draw(st.sampled_from([0, 1])),
    )  # fmt: skip
    (root,) = Request(
        p, m, costs=costs, memory=data.draw(st.sampled_from([4, 8, None])),
        placement=Placement.wave(p, v),
        backward=data.draw(st.sampled_from(["split", "fused", "free"])),
        p2p_mode=data.draw(st.sampled_from(P2P_MODES)),
        layers=data.draw(st.integers(p * v, 4 * p * v)),
    ).problems  # fmt: skip
    cutting = Cutting(root)
    seeds = cutting.seeds()[:3]
    assert seeds
    for cut in seeds:
        problem = cut_problem(root, cut)
        incumbent = Incumbent(problem, Stop())
        strategies.begin(incumbent)
        assert bound_of_cuts(cutting) <= incumbent.makespan * (1 + 1e-9)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.data())
def test_the_result_is_the_best_of_all_cuts(data: st.DataObject) -> None:
    root = data.draw(uncut())
    assert root.layers is not None
    result = db.optimize(
        ranks=root.ranks, microbatches=root.microbatches, placement=root.placement,
        backward="fused", costs=root.layers.costs, layers=root.layers.each or root.layers.count,
        memory=None if np.isinf(root.limits[0]) else root.limits.tolist(), **FAST,
    )  # fmt: skip
    best = fastest_of_all_cuts(root)
    assert result.lower_bound <= best + 1e-9
    assert result.makespan >= best - 1e-9
    if strategies.has_solver():
        assert result.status == "optimal"
        assert result.makespan == pytest.approx(best)
    assert sum(result.layers) == root.layers.count
    assert result.costs is not None
    timeline = db.simulate(result.schedule, result.costs)
    assert timeline.makespan == result.makespan
    assert np.all(timeline.peak_activation <= root.limits * (1 + 1e-8))


def test_one_rank_after_the_other_has_as_many_layers_as_it_can() -> None:
    # Rank r begins after the layers before it, and works 8 · 3 per layer.
    (root,) = Request(
        3, 8, 1, db.Costs(F=4, I=4, W=4), 12, placement="wave", backward="split"
    ).problems  # fmt: skip
    spans = [lower_bound(cut_problem(root, cut)) for cut in all_cuts(12, 3)]
    assert bound_of_cuts(Cutting(root)) == pytest.approx(min(spans))


def test_a_head_moves_layers_away_from_the_last_stage() -> None:
    costs = db.Costs(F=6, I=6, W=6, head={"F": 2, "I": 2, "W": 2})
    asked: dict[str, Any] = {"ranks": 4, "microbatches": 16, "costs": costs} | FAST
    even = db.optimize(**asked)
    result = db.optimize(**asked, layers=24)
    assert result.layers == (7, 7, 6, 4)
    assert result.status == "optimal"
    assert result.makespan < even.makespan * 0.9
    assert str(result).splitlines()[2] == "layers 7 7 6 4"


@pytest.mark.slow
@pytest.mark.parametrize("basis", ["action", "rank"])
def test_as_many_layers_as_stages_change_nothing(
    basis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two workers of the solver exchange what they find when they happen to.
    monkeypatch.setattr(strategies, "has_solver", lambda: False)
    costs = db.Costs(F=5, I=6, W=4, head={"F": 1, "B": 2}, basis=basis)
    asked: dict[str, Any] = {
        "ranks": 3,
        "chunks": 2,
        "microbatches": 5,
        "costs": costs,
        "memory": 2,
    }
    plain, cut = db.optimize(**asked, **FAST), db.optimize(**asked, **FAST, layers=6)
    assert cut.layers == (1,) * 6
    assert plain.layers == ()
    assert (cut.makespan, cut.schedule) == (plain.makespan, plain.schedule)


@pytest.mark.parametrize("basis", ["action", "rank"])
def test_an_even_cut_costs_what_was_given(basis: str) -> None:
    costs = db.Costs(
        F=3, B=7, O=9, OPT=2, activation=8, kv=1, unshard=0.5, message=2, bandwidth=4, basis=basis,
        head={"F": 1, "activation": 0.5},
    )  # fmt: skip
    place = Placement.wave(2, 2)
    given = costs.resolve(place)
    for cut in ((3, 3, 3, 3), (1, 2, 4, 5)):
        made = cut_costs(costs, place, cut, 12).resolve(place)
        share = np.array(cut) / 3
        layers = given.duration - given.part_duration
        assert made.duration == pytest.approx(layers * share + given.part_duration)
        assert made.duration[Kind.UNSHARD] == pytest.approx(given.duration[Kind.UNSHARD] * share)
        assert made.kv == pytest.approx(given.kv * share)
        assert made.activation[:3] == pytest.approx(given.activation[:3] * share[:3])
        assert made.optimizer == pytest.approx(
            given.optimizer * [share[0] + share[3], share[1] + share[2]] / 2
        )
        assert made.pair((0, 1), (3, 2)) == pytest.approx(
            given.pair((0, 1), (3, 2)) * (share[1] + share[2]) / 2
        )  # fmt: skip
        assert made.link.tolist() == given.link.tolist()


def test_costs_of_a_cut_are_a_cost_file() -> None:
    costs = db.Costs(F=3, B=7, O=9, kv=1, p2p=[[0, 1], [2, 0]], message=2, bandwidth=4,
                     head={"F": 1, "activation": 0.5}, kept_for_weight=0.5)  # fmt: skip
    made = cut_costs(costs, Placement.wave(2, 2), (1, 2, 4, 5), 12)
    text = json.dumps(costs_data(made))
    assert parse_costs(text, "x.json").costs == made
    with pytest.raises(db.CostError, match="divided by 3 chunks"):
        costs_data(db.Costs.per_rank(F=1, chunks=3))


@pytest.mark.slow
def test_memory_moves_layers() -> None:
    # Rank 0 has room for two layers of one microbatch, the others for any.
    result = db.optimize(ranks=3, microbatches=3, layers=9, memory=[0.7, 9, 9], **FAST)
    assert result.layers[0] <= 2
    assert list(result.timeline.peak_activation <= [0.7, 9, 9]) == [True] * 3


def test_the_smallest_memory_over_cuts_is_named_and_works() -> None:
    costs = db.Costs(head={"F": 1, "B": 2, "activation": 0.5})
    asked: dict[str, Any] = {
        "ranks": 2,
        "chunks": 1,
        "microbatches": 3,
        "layers": 8,
        "costs": costs,
    }
    # An even cut needs 1.5 on the last rank; five layers and three with the head need 1.25.
    with pytest.raises(db.ParameterError, match=r"memory 1.2 is .* give at least 1.25,"):
        db.optimize(**asked, memory=1.2, **FAST)
    assert db.optimize(**asked, memory=1.25, **FAST).layers == (5, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 3}, "layers is 3, fewer than the 4 stages"),
        ({"layers": 0}, "layers is 0; give a whole number from 1"),
        ({"layers": 8.0}, "layers is 8.0; give a whole number"),
        ({"costs": db.Costs(F=[1, 2, 3, 4])}, "F has 4 values, but which layers a stage has"),
        ({"costs": db.Costs.per_rank(W=[1, 2, 3, 4])}, "W has 4 values, but which layers a rank"),
        ({"costs": db.Costs(O={(0, 0): 1})}, "O has 1 values, but which layers a pair has"),
        ({"costs": db.Costs(kept_for_weight=[1, 1, 1, 0])}, "kept_for_weight has 4 values"),
    ],
)
def test_what_says_nothing_about_layers_is_refused(change: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"ranks": 4, "microbatches": 8, "layers": 26} | FAST
    with pytest.raises(db.ParameterError, match=message):
        db.optimize(**(asked | change))


def test_placements_with_too_many_stages_are_left_out() -> None:
    costs = db.Costs.per_rank(F=2, I=2, W=2)
    result = db.optimize(ranks=4, microbatches=4, layers=6, costs=costs, **FAST)
    assert result.schedule.stages == 4


def test_published_schedules_are_on_balanced_cuts() -> None:
    costs = db.Costs.per_rank(F=13, I=13, W=13, head={"F": 4, "B": 8})
    result = db.optimize(
        ranks=4, chunks=1, microbatches=8, layers=26, costs=costs, cache=False, effort=0.02
    )
    assert result.published is not None
    rows = {row.name: row for row in result.published.rows}
    assert rows["optimized"].makespan == result.makespan
    for name, chunks in (("zb-h1", 1), ("zb-v", 2)):
        place = db.make(name, ranks=4, microbatches=8).placement
        cut, balanced = make_layers(26, costs).for_placement(place)
        assert len(cut) == 4 * chunks
        schedule = db.make(name, ranks=4, microbatches=8, costs=balanced)
        assert rows[name].makespan == db.simulate(schedule, balanced).makespan
    assert "the others have the cut under which" in " ".join(str(result).split())


@pytest.mark.slow
def test_the_same_seed_gives_the_same_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "has_solver", lambda: False)

    def run() -> db.Result:
        costs = db.Costs(F=5, I=6, W=4, head={"F": 3, "B": 6})
        return db.optimize(
            ranks=3, chunks=2, microbatches=3, memory=2, costs=costs, layers=7, **FAST
        )

    one, other = run(), run()
    assert (one.layers, one.schedule) == (other.layers, other.schedule)


def test_results_are_kept_with_their_cut(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    costs = db.Costs(F=6, I=6, W=6, head={"F": 2, "I": 2, "W": 2})
    asked: dict[str, Any] = {"ranks": 2, "microbatches": 4, "costs": costs} | FAST | {"cache": True}
    first = [db.optimize(**asked, **more) for more in ({}, {"layers": 12}, {"layers": 13})]
    again = [db.optimize(**asked, **more) for more in ({}, {"layers": 12}, {"layers": 13})]
    assert [result.cached for result in first + again] == [False] * 3 + [True] * 3
    for one, other in zip(first, again, strict=True):
        assert (one.layers, one.makespan, one.seconds) == (
            other.layers, other.makespan, other.seconds,
        )  # fmt: skip
    for path in (tmp_path / "debubble" / "optimize").glob("*.json"):
        data = json.loads(path.read_text())
        path.write_text(json.dumps(data | {"layers": [1, 1]}))
    assert not db.optimize(**asked, layers=12).cached


@pytest.mark.slow
def test_more_memory_is_faster() -> None:
    frontier = sweep_memory(ranks=2, microbatches=3, layers=7, cache=False)
    spans = [result.makespan for _, result in frontier.points]
    assert spans == sorted(spans, reverse=True)
    # Four layers of seven, where one microbatch on a rank with half of them is one unit.
    assert frontier.points[0][0] == pytest.approx(8 / 7)
    assert frontier.points[0][1].to_dict()["layers"] is not None


def test_even_cuts_and_neighbours() -> None:
    assert even_cut(11, 4) == (3, 3, 3, 2)
    assert set(neighbors((2, 1, 1))) == {(1, 2, 1), (1, 1, 2)}
    near = list(neighbors((2,) * 64))
    assert len(near) < 400
    assert all(sum(cut) == 128 and min(cut) == 1 for cut in near)


@pytest.mark.slow
def test_fewer_cuts_are_tried_by_what_the_strongest_rank_does_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Any] = []

    def counted(incumbent: Incumbent) -> None:
        tried.append(incumbent.problem.cut)
        strategies.begin(incumbent)

    monkeypatch.setattr(cuts, "begin", counted)

    def search() -> tuple[float, float, int]:
        tried.clear()
        found = db.optimize(
            ranks=3, chunks=2, microbatches=5, layers=8, memory=1.6, effort=0.02, cache=False,
            costs=db.Costs(F=5, I=6, W=4, p2p=1), published=False, workers=1,
        )  # fmt: skip
        return found.makespan, found.lower_bound, len(tried)

    with_kept = search()
    monkeypatch.setattr(bounding, "exact_rank_bound", lambda *known: known[2])
    without = search()
    assert with_kept[0] <= without[0] * (1 + 1e-9)
    assert with_kept[1] >= without[1] * (1 - 1e-9)
    assert with_kept[2] < without[2]
