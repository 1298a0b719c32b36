"""Layers with costs of their own, ends without layers, and what stages do beside: cuts of them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import Kind
from debubble.core.given_layers import make_layers
from debubble.core.placement import Placement
from debubble.interchange.cost_files import load_costs
from debubble.interchange.layouts import cut_text
from debubble.optimize import strategies
from debubble.optimize.layer_split.cut_bound import bound_of_cuts
from debubble.optimize.layer_split.cutting import Cutting, cut_problem
from debubble.optimize.layer_split.steps import neighbors
from debubble.optimize.problem import Problem
from debubble.optimize.request import Request
from debubble.optimize.stage_choices.choices import Ways, choice_of, ways_of, with_choice
from debubble.optimize.stage_choices.space import bound_of_all
from tests.conftest import EXPLORES
from tests.interchange.test_layouts import layers_in
from tests.optimize.by_hand import INFINITE, Model, all_cuts, rounded

FAST: dict[str, Any] = {"cache": False, "published": False, "effort": 0.02, "workers": 1}
"""Little work, and by one worker: two workers may find something else every time."""

SIZES = [
    (2, 1, 2, "fused"), (2, 1, 3, "fused"), (3, 1, 2, "fused"), (3, 1, 3, "fused"),
    (2, 2, 1, "fused"), (3, 2, 1, "fused"), (2, 1, 2, "split"), (3, 1, 2, "split"),
    (2, 2, 1, "split"),
]  # fmt: skip
"""Ranks, chunks, microbatches, and how backwards are done."""

CHOICES: list[tuple[Any, Any]] = [
    ("none", "none"), ("none", "none"), ("free", "none"), ("full", "none"), ([0], "none"),
    ("none", "free"), ("free", "free"), ([1], [1]),
]  # fmt: skip
"""Recompute and offload."""


class Case(NamedTuple):
    """A tiny problem, as the optimizer has it and by hand."""

    asked: dict[str, Any]
    model: Model
    ways: Ways
    cuts: list[tuple[int, ...]]

    def root(self, memory: float | None) -> Problem:
        """The uncut problem."""
        return Request(memory=memory, **self.asked).problems[0]


def case(seed: int) -> Case:
    """A problem with up to seven layers, embedding and head or not, and choices of stages."""
    rng = random.Random(seed)

    def part(most: int) -> dict[str, float] | None:
        times = {kind: rng.randint(1, most) / 2 for kind in "FIW"}
        return rng.choice([None, times | {"activation": rng.choice([0.0, 0.5])}])

    p, v, m, backward = rng.choice(SIZES)
    embedding, head = part(6), part(14)
    least = p * v - (embedding is not None) - (head is not None)
    count = max(1, rng.randint(least, 7 if p * v < 4 else 6))
    some = [0.5, 1.0, 1.0, 2.0, 3.0, 7.0]
    names = ["F", "I", "W"] + [kind for kind in "BR" if rng.random() < 0.4]
    each = {name: [rng.choice(some) for _ in range(count)] for name in names}
    each["activation"] = [rng.choice([0.0, 0.25, 1.0, 2.0]) for _ in range(count)]
    for name in ("kept_for_weight", "recompute_kept", "offload_share"):
        if rng.random() < 0.6:
            each[name] = [rng.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(count)]
    costs = db.Costs(
        p2p=rng.choice([0.0, 0.5, 2.0]), launch=rng.choice([0.0, 0.25]), host_bandwidth=1,
        runtime=rng.choice(["any", "any", "debubble"]),
    )  # fmt: skip
    recompute, offload = rng.choice(CHOICES if p * v < 5 else CHOICES[:1])
    place = rng.choice([Placement.wave, Placement.loop])(p, v)
    limit = rng.choice([INFINITE, 2.5, 4.0, 6.0, 9.0])
    ends = {name: end for name, end in (("embedding", embedding), ("head", head)) if end}
    asked = {
        "ranks": p, "microbatches": m, "chunks": None, "costs": costs, "placement": place,
        "backward": backward, "p2p_mode": "overlapped", "recompute": recompute, "offload": offload,
        "layers": each | ends,
    }  # fmt: skip
    assert isinstance(costs.p2p, float)
    model = Model(
        [rounded({name: values[i] for name, values in each.items()}) for i in range(count)],
        rounded(embedding) if embedding else {}, rounded(head) if head else {},
        tuple(place.ranks_of_stages.tolist()), m, limit, costs.p2p, costs.launch,
        costs.runtime == "debubble", backward,
    )  # fmt: skip
    cuts = all_cuts(count, p * v, embedding is not None, head is not None)
    return Case(asked, model, ways_of(recompute, offload, p * v), cuts)


def too_many(one: Case) -> bool:
    """Whether to leave a case out: a few have more orders by hand than all others together."""
    asked = one.asked
    choices = max(map(len, one.ways)) > 1
    return choices and asked["ranks"] == asked["microbatches"] == 3 and not EXPLORES


@pytest.mark.slow
@pytest.mark.parametrize("seeds", range(12 if EXPLORES else 2))
def test_bounds_hold_for_every_cut_choice_and_order(seeds: int) -> None:
    checked = 0
    for seed in range(20 * seeds, 20 * seeds + 20):
        asked, model, ways, cuts = one = case(seed)
        if too_many(one):
            continue
        root, refused = one.root(None), False
        if model.limit < INFINITE:
            root = replace(root, limits=np.full(root.ranks, model.limit))
            try:
                one.root(model.limit)
            except db.ParameterError:
                refused = True
        best = INFINITE
        for cut in cuts if EXPLORES else cuts[:: 1 + len(cuts) // 6]:
            fastest = min(model.fastest(cut, choice) for choice in product(*ways))
            bound, _ = bound_of_all(cut_problem(root, cut), ways, INFINITE, {}, 0)
            assert bound <= fastest * (1 + 1e-9), (seed, cut)
            best = min(best, fastest)
        if refused:
            # Where stages may choose, those that all do the same are looked at.
            assert best == INFINITE or "free" in (asked["recompute"], asked["offload"])
            continue
        assert bound_of_cuts(Cutting(root), ways) <= best * (1 + 1e-9), seed
        checked += 1
    assert checked > 10


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_costs_what_its_layers_do(seed: int) -> None:
    one = case(seed)
    root = one.root(None)
    for cut in one.cuts[:: max(1, len(one.cuts) // 4)]:
        problem = cut_problem(root, cut)
        for choice in list(product(*one.ways))[::2]:
            chosen = with_choice(problem, [way & 1 for way in choice])
            stages = one.model.stages(cut, choice_of(chosen))
            table = chosen.table
            for kind in "FIWBR":
                times = chosen.recompute_time if kind == "R" else table.duration[Kind[kind]]
                assert times == pytest.approx([stage[kind] for stage in stages])
            for name, values in (("held", table.activation), ("kept", table.kept),
                                 ("stored", chosen.footprint[0])):  # fmt: skip
                assert values == pytest.approx([stage[name] for stage in stages]), name


def test_equal_layers_said_one_by_one_are_equal_layers() -> None:
    head = {"F": 2.0, "I": 2.0, "W": 2.0}
    asked: dict[str, Any] = {"ranks": 4, "microbatches": 8, "chunks": 1} | FAST
    one = db.optimize(**asked, costs=db.Costs(F=6, I=6, W=6, head=head, p2p=0.5), layers=24)
    each = {kind: [1.0] * 24 for kind in "FIW"} | {"activation": [1 / 6] * 24, "head": head}
    other = db.optimize(**asked, costs=db.Costs(p2p=0.5), layers=each)
    assert one.makespan == pytest.approx(other.makespan)
    assert one.lower_bound == pytest.approx(other.lower_bound)
    assert one.layers == other.layers


def test_what_layers_do_not_say_is_that_of_an_even_cut() -> None:
    costs = db.Costs(activation=3, kv=2, reduce_grad=1, kept_for_weight=0.5, OPT=4, O=6)
    layers = make_layers({"F": [1, 2, 3], "B": [2, 4, 6]}, costs)
    made = layers.cut(Placement.loop(2, 1), (2, 1)).resolve(Placement.loop(2, 1))
    assert made.duration[Kind.F].tolist() == [3, 3]
    assert made.duration[Kind.B].tolist() == [6, 6]
    assert made.activation == pytest.approx([4, 2])
    assert made.kept == pytest.approx([2, 1])
    assert made.kv == pytest.approx([8 / 3, 4 / 3])
    assert made.duration[Kind.REDUCE_GRAD] == pytest.approx([4 / 3, 2 / 3])
    assert made.optimizer == pytest.approx([16 / 3, 8 / 3])
    # A pair takes what its stages' shares of the time take, here a half each.
    assert made.pair((0, 0), (3, 1)) == pytest.approx(6)


def test_layers_count_in_place_of_the_costs_of_measured_stages() -> None:
    measured = db.Costs(F=[9, 9, 9], I=[1, 1, 1], W=[1, 1, 1], B=[2, 2, 2], activation=[5, 5, 5],
                        head={"F": 1, "B": 1})  # fmt: skip
    each = {"F": [1, 2], "I": [1, 1], "W": [2, 2], "activation": [1, 3]}
    layers = make_layers(each, measured)
    table = layers.cut(Placement.loop(2, 1), (1, 1)).resolve(Placement.loop(2, 1))
    assert table.duration[Kind.F].tolist() == [1, 3]
    assert table.duration[Kind.B].tolist() == [3, 4]
    assert table.activation.tolist() == [1, 3]
    with pytest.raises(db.ParameterError, match=r"R has 3 values, .* or costs of every layer"):
        make_layers(each, replace(measured, R=[1, 1, 1]))


def test_a_heavy_head_is_alone_on_the_last_stage() -> None:
    costs = db.Costs(F=1, I=1, W=1, head={"F": 3, "I": 3, "W": 3})
    asked: dict[str, Any] = {"ranks": 3, "microbatches": 12, "placement": "loop"} | FAST
    result = db.optimize(**asked, costs=costs, layers=6)
    assert result.layers == (3, 3, 0)
    assert result.status == "optimal"
    assert result.layout == "Et*3|t*3|L"
    assert layers_in(result.layout) == list(result.layers)
    assert db.simulate(result.schedule, result.costs).makespan == result.makespan
    # Without anything to do a stage needs a layer.
    assert min(db.optimize(**asked, layers=6).layers) > 0
    with pytest.raises(db.ParameterError, match="layers is 1, fewer than the 2 stages that need"):
        db.optimize(**asked, costs=costs, layers=1)
    assert db.optimize(**asked, costs=costs, layers=2).layers == (1, 1, 0)


def test_an_embedding_can_be_alone_in_every_program() -> None:
    each = {"F": [1, 1, 4, 4], "B": [2, 2, 8, 8], "embedding": {"F": 8, "B": 16},
            "head": {"F": 5, "B": 10}}  # fmt: skip
    result = db.optimize(ranks=4, microbatches=8, layers=each, placement="loop", **FAST)
    assert result.layers[0] == 0
    modules = cut_text(result.schedule.placement, result.layers)
    assert '"tok_embeddings"' in modules
    assert result.layout is not None
    assert result.layout.startswith("E|")
    assert layers_in(result.layout) == list(result.layers)


@pytest.mark.slow
# The first dozen takes four times as long as all others together.
@pytest.mark.parametrize("seeds", range(0 if EXPLORES else 1, 4))
def test_the_result_is_the_best_of_all_cuts_and_choices(seeds: int) -> None:
    solved = 0
    for one in map(case, range(12 * seeds, 12 * seeds + 12)):
        if too_many(one):
            continue
        asked, model, ways, cuts = one
        best = min(model.fastest(cut, choice) for cut in cuts for choice in product(*ways))
        if best == INFINITE or asked["offload"] != "none":
            continue
        call = {key: value for key, value in asked.items() if key != "chunks"}
        limit = None if model.limit == INFINITE else model.limit
        result = db.optimize(**call, memory=limit, **FAST)
        assert result.lower_bound <= best * (1 + 1e-9)
        assert result.makespan >= best * (1 - 1e-9)
        if strategies.has_solver() and max(map(len, ways)) == 1:
            assert result.status == "optimal"
            assert result.makespan == pytest.approx(best)
            solved += 1
        timeline = db.simulate(result.schedule, result.costs)
        assert timeline.makespan == result.makespan
        assert np.all(timeline.peak_activation <= model.limit * (1 + 1e-8))
    assert solved >= 3 or not strategies.has_solver()


LAYERS: dict[str, Any] = {
    "F": [3, 3, 5, 5, 5, 5], "I": [3, 3, 5, 5, 5, 5], "W": [2, 2, 4, 4, 4, 4],
    "activation": [1, 1, 2, 2, 2, 2], "recompute_kept": [0.1] * 6,
    "head": {"F": 4, "I": 4, "W": 3, "activation": 1},
}  # fmt: skip


@pytest.mark.slow
def test_cuts_go_together_with_choices_of_stages() -> None:
    asked: dict[str, Any] = {
        "ranks": 2, "chunks": 2, "microbatches": 4, "layers": LAYERS, "memory": 12,
        "costs": db.Costs(host_bandwidth=3),
    } | FAST  # fmt: skip
    plain = db.optimize(**asked)
    choices: list[tuple[Any, Any]] = [
        ("free", "none"), ("none", "free"), ("free", "free"), ("full", [0])
    ]  # fmt: skip
    for recompute, offload in choices:
        result = db.optimize(**asked, recompute=recompute, offload=offload)
        assert result.recompute == list(range(4)) or recompute != "full"
        assert sum(result.layers) == 6
        timeline = db.simulate(result.schedule, result.costs)
        assert timeline.makespan == pytest.approx(result.makespan)
        assert np.all(timeline.peak_activation <= 12 * (1 + 1e-8))
        assert result.lower_bound <= result.makespan
        if recompute != "full":
            assert result.makespan <= plain.makespan * (1 + 1e-9)
            assert result.lower_bound <= plain.lower_bound * (1 + 1e-9)


@pytest.mark.slow
def test_recomputing_stages_need_less_memory_than_any_cut_without() -> None:
    asked: dict[str, Any] = {"ranks": 2, "chunks": 2, "microbatches": 3, "layers": LAYERS} | FAST
    # Eleven in all: one rank needs six with its two stages.
    with pytest.raises(db.ParameterError, match=r"memory 5 .* give at least 6, .* with recompute"):
        db.optimize(**asked, memory=5)
    result = db.optimize(**asked, memory=5, recompute="free")
    assert result.recompute
    assert np.all(result.timeline.peak_activation <= 5 * (1 + 1e-8))


@pytest.mark.parametrize(
    ("memory", "proof"),
    # 31 in all on four ranks: a quarter is 7.75.
    [(7, "however the 30 layers are cut; "), (7.9, "which proves nothing for the others; ")],
)
def test_a_refusal_says_whether_it_is_proven(memory: float, proof: str) -> None:
    each = [1.0] * 29 + [2.0]
    layers = dict.fromkeys(("F", "I", "W", "activation"), each)
    with pytest.raises(db.ParameterError, match=f"{proof}give at least 8, under which some cut"):
        db.optimize(ranks=4, chunks=2, microbatches=8, layers=layers, memory=memory, **FAST)


@pytest.mark.slow
def test_published_schedules_stand_beside_it_with_the_same_layers() -> None:
    result = db.optimize(
        ranks=2, chunks=1, microbatches=4, layers=LAYERS, recompute="free", memory=12, cache=False,
        effort=0.02, costs=db.Costs(static=2),
    )  # fmt: skip
    assert result.published is not None
    rows = {row.name: row for row in result.published.rows}
    assert {"optimized", "1f1b", "zb-v"} <= set(rows)
    assert rows["optimized"].makespan == result.makespan
    costs = make_layers(LAYERS, db.Costs()).for_placement(Placement.loop(2, 1))[1]
    assert rows["1f1b"].timeline.table.duration == pytest.approx(
        costs.resolve(Placement.loop(2, 1)).duration
    )


def test_results_are_kept_by_the_costs_of_their_layers(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: dict[str, Any] = {"ranks": 2, "microbatches": 3, "chunks": 1} | FAST | {"cache": True}
    other = LAYERS | {"F": [5, 5, 5, 5, 3, 3]}
    ways: list[dict[str, Any]] = [
        {"layers": LAYERS}, {"layers": other}, {"layers": LAYERS, "recompute": "free"},
    ]  # fmt: skip
    first = [db.optimize(**asked, **way) for way in ways]
    again = [db.optimize(**asked, **way) for way in ways]
    assert [result.cached for result in first + again] == [False] * 3 + [True] * 3
    for one, two in zip(first, again, strict=True):
        assert (one.layers, one.makespan, one.recompute) == (
            two.layers,
            two.makespan,
            two.recompute,
        )


def test_no_neighbour_of_a_seed_has_less_to_do_on_its_busiest_rank() -> None:
    each = {"F": [1, 1, 1, 2, 3, 2, 9, 1, 1, 2, 1, 3], "B": [2] * 12, "embedding": {"F": 3}}
    (root,) = Request(
        3, 4, 1, layers=each, placement=Placement.loop(3, 1), backward="fused"
    ).problems
    cutting = Cutting(root)
    assert cutting.least.tolist() == [0, 1, 1]
    busiest = {cut: cutting.work(np.array([cut])).max() for cut in cutting.all() or []}
    assert len(busiest) == len(all_cuts(12, 3, True))
    found = min(busiest[cut] for cut in cutting.seeds())
    assert found == min(busiest.values())
    assert all(cut in busiest for cut in neighbors((0, 6, 6), cutting.least))


def test_a_search_begins_with_the_cut_of_published_schedules() -> None:
    file = load_costs(Path("examples/layers.yaml"))
    for root in Request(
        4, 8, 2, layers=file.layers, placement=Placement.wave(4, 2), memory=16, costs=file.costs
    ).problems:
        assert root.layers is not None
        assert root.layers.balanced(root.placement) in Cutting(root).seeds()


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({}, "layers has nothing; give times of every layer: F and B, or F, I, W"),
        ({"F": [1, 2]}, "layers has F; give times of every layer"),
        ({"F": [1, 2], "I": [1, 2]}, "layers has F, I; give times"),
        ({"F": [1, 2], "B": [1]}, "layers.B has 1 values and layers.F 2"),
        ({"F": 1, "B": [1]}, "layers.F is 1.0; give a list with one per layer"),
        ({"F": [1, -2], "B": [1, 1]}, r"layers.F\[1\] is -2"),
        ({"F": [1], "B": [1], "p2p": [1]}, "layers.p2p is no cost of a layer"),
        ({"F": [1], "B": [1], "kept_for_weight": [2]}, r"layers.kept_for_weight\[0\] is 2"),
        ({"F": [1, 1], "B": [1, 1]}, "layers is 2, fewer than the 4 stages"),
    ],
)
def test_layers_that_say_nothing_are_refused(layers: dict[str, Any], message: str) -> None:
    with pytest.raises(db.ParameterError, match=message):
        db.optimize(ranks=4, microbatches=8, layers=layers, **FAST)
