"""Candidates are all that the rules leave, in groups that say how many they are."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from debubble.planner.candidate import RECOMPUTES, Candidate, Degrees, Training
from debubble.planner.case import Case
from debubble.planner.cost.step import step_time
from debubble.planner.frameworks.table import FRAMEWORKS, broken
from debubble.planner.hardware.cluster import Cluster, find_gpu
from debubble.planner.model.transformer import Model
from debubble.planner.plannable import first_cut, fits, plannable, why_not
from debubble.planner.request import Fixed, PlanRequest
from debubble.planner.search.groups import candidates, groups
from debubble.schedules import registry
from tests.conftest import EXPLORES
from tests.planner.cases import Gpus, case, dense, latent, mixture

SCHEDULES = ("1f1b", "interleaved-1f1b", "interleaved-overlap", "zb-v", "hanayo")


def found(model: Model, gpus: int, batch: int, sequence: int = 64, **fixed: Any) -> list[Candidate]:
    cluster: Any = Gpus(gpus)
    return list(
        candidates(PlanRequest(model, cluster, Training(batch, sequence), fixed=Fixed(**fixed)))
    )


def by_hand(
    model: Model, gpus: int, batch: int, sequence: int, framework: str | None
) -> set[Candidate]:
    """Every combination of small numbers that breaks no rule."""
    cluster: Any = Gpus(gpus)
    training, count, left = Training(batch, sequence), len(model.layers), set()
    sizes = [n for n in range(1, gpus + 1) if gpus % n == 0]
    numbers = [n for n in range(1, batch + 1) if batch % n == 0]
    for tp, cp, dp, pp, ep in product(sizes, sizes, sizes, sizes, (1, 2, 4, 8)):
        if tp * cp * dp * pp != gpus or (ep > 1 and model.layers[0].experts is None):
            continue
        for size, number in product(numbers, numbers):
            if dp * size * number != batch:
                continue
            names = SCHEDULES if pp > 1 else ("1f1b",)
            for name, chunks in product(names, range(1, count + 3)):
                plain = registry.find(name).chunks
                if chunks != plain and (plain or chunks == 1 or chunks * pp > count + 2):
                    continue
                if pp * chunks > count + 2:
                    continue
                zeros = (1,) if dp * cp == 1 else (0, 1, 2, 3)
                if framework in ("torchtitan", "automodel") and len(zeros) > 1:
                    zeros = (0, 2, 3)
                some = () if registry.find(name).uses_costs else ("full:1",)
                stages = pp * chunks
                cuts = [(first_cut(count, stages, model.mtp), None)]
                if model.mtp and pp > 1:
                    cuts.append(((*first_cut(count, stages - 1, model.mtp - 1), 0), stages - 2))
                for recompute, zero, (cut, at) in product((*RECOMPUTES, *some), zeros, cuts):
                    one = Candidate(
                        Degrees(tp, cp, ep, dp, pp, chunks), size, number, name, cut, recompute,
                        zero, mtp_stage=at,
                    )  # fmt: skip
                    if not broken(Case(model, cluster, training, one), framework):
                        left.add(one)
    return left


SEARCHES = [(dense(3, tied=True), 4, 6), (mixture(2), 4, 4), (dense(2, mtp=1), 6, 6)]
LARGER = (dense(6), 8, 4)
"""The most degrees and chunks: without rules of frameworks, and with those of one that has most."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "model", "gpus", "batch"),
    [
        (framework, *searched)
        for framework in (None, *FRAMEWORKS)
        for searched in (*SEARCHES, LARGER)
        if searched is not LARGER or framework in (None, "megatron") or EXPLORES
    ],
)
def test_candidates_are_all_that_rules_leave(
    model: Model, gpus: int, batch: int, framework: str | None
) -> None:
    given = found(model, gpus, batch, 64, schedules=SCHEDULES, framework=framework)
    assert len(given) == len(set(given))
    assert set(given) == by_hand(model, gpus, batch, 64, framework)


def test_megatron_may_have_multi_token_prediction_ahead_of_the_loss() -> None:
    request: dict[str, Any] = {"tp": 1, "cp": 1, "dp": 8, "schedules": ("interleaved-1f1b",)}
    model = latent()
    given = found(model, 64, 64, 4096, chunks=4, framework="megatron", **request)
    places = {one.mtp_stage for one in given}
    assert places == {None, 30}
    assert all(one.layers[-1] == 0 for one in given if one.mtp_stage == 30)
    # Nor are there other places where layers are given, or no framework has them.
    cut = first_cut(61, 32, 1)
    fixed = found(model, 64, 64, 4096, chunks=4, framework="megatron", layers=cut, **request)
    assert {one.mtp_stage for one in fixed} == {None}
    alone = found(dense(), 64, 64, 4096, framework="megatron", **request)
    assert {one.mtp_stage for one in alone} == {None}


def test_prediction_ahead_of_the_loss_is_faster_where_stages_are_small() -> None:
    """DeepSeek-V3's published layout, and the same layers with the prediction next to the loss."""
    layers = (3, *[2] * 29, 0, 0)
    apart, together = (
        step_time(
            case(latent(), "interleaved-1f1b", ep=64, dp=64, pp=16, chunks=2, m=64, layers=layers,
                 mtp_stage=stage)
        ).seconds
        for stage in (30, None)
    )  # fmt: skip
    assert apart < 0.96 * together


def test_groups_share_degrees_and_count_what_they_hold() -> None:
    cluster: Any = Gpus(64)
    seen = list(groups(PlanRequest(dense(), cluster, Training(128, 8192))))
    for group in seen[::37]:
        made = list(group.candidates())
        assert len(made) == group.count
        held = {name: {(chunks, layers) for chunks, layers in splits}
                for name, splits in group.orders.items()}  # fmt: skip
        assert {one.schedule for one in made} == set(held)
        assert all((one.degrees.chunks, one.layers) in held[one.schedule] for one in made)
        for one in made:
            d = one.degrees
            own = Degrees(d.tp, d.cp, d.ep, d.dp, d.pp)
            assert (own, one.microbatch_size) == (group.degrees, group.microbatch_size)
            assert d.gpus == 64
            assert d.dp * one.microbatch_size * one.microbatches == 128
            assert fits(one.schedule, d.pp, d.chunks, one.microbatches)
    parallel = [group.degrees.tp * group.degrees.cp * group.degrees.pp for group in seen]
    assert parallel == sorted(parallel)
    assert len({(group.degrees, group.microbatch_size) for group in seen}) == len(seen)
    assert max(group.degrees.tp for group in seen) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "fixed",
    [
        {"tp": 4}, {"cp": 2}, {"dp": 4}, {"pp": 4}, {"chunks": 2}, {"microbatch_size": 2},
        {"schedules": ("zbv", "1f1b")}, {"recompute": "full"}, {"zero": 2},
        {"layers": (7, 9, 8, 8)}, {"tp": 16, "pp": 2},
    ],
)  # fmt: skip
def test_what_is_given_is_held(fixed: dict[str, Any]) -> None:
    gpus = 32 if fixed.get("tp") == 16 else 8
    given = found(dense(), gpus, gpus, 8192, **fixed)
    assert given
    for one in given:
        d = one.degrees
        own = {
            "tp": d.tp, "cp": d.cp, "dp": d.dp, "pp": d.pp, "chunks": d.chunks,
            "microbatch_size": one.microbatch_size, "recompute": one.recompute,
            "zero": one.zero, "layers": one.layers,
        }  # fmt: skip
        assert all(own[name] == value for name, value in fixed.items() if name in own)
        assert "schedules" not in fixed or one.schedule in ("zb-v", "1f1b")


def test_nothing_is_left_where_nothing_fits() -> None:
    assert not found(dense(), 8, 8, 8192, tp=3)
    assert not found(dense(2), 8, 8, 8192, pp=8)
    assert not found(dense(), 8, 8, 8192, schedules=("zb-v",), framework="megatron")
    assert not found(dense(), 8, 8, 8192, chunks=3, schedules=("zb-v",))
    assert not found(dense(), 8, 3, 8192, dp=8)


def test_experts_are_spread_over_ranks_of_a_stage() -> None:
    degrees = {one.degrees for one in found(mixture(), 16, 16, 64, schedules=("1f1b",))}
    assert {one.ep for one in degrees} == {1, 2, 4, 8}
    assert all(one.tp * one.cp * one.dp % one.ep == 0 for one in degrees)


def test_plans_have_one_copy_and_whole_steps() -> None:
    names = plannable()
    assert {"gpipe", "1f1b", "interleaved-1f1b", "zb-v", "v-half", "dualpipe-v"} <= set(names)
    reasons = {name: why_not(name) for name in registry.entries() if name not in names}
    assert reasons["dualpipe"] == "it holds two copies of the model"
    assert reasons["pipedream-2bw"] == "it keeps several versions of the weights"
    assert reasons["seq1f1b"] == "it cuts sequences into slices"
    assert reasons["bpipe"] == "it moves activations off the GPU"
    assert reasons["vocab-2"] == "it shards the output layer over the pipeline"


@pytest.mark.slow
def test_every_schedule_that_fits_is_made() -> None:
    for name, ranks, number in product(plannable(), (2, 4), (2, 5, 8)):
        for chunks in (1, 2, 3, 4):
            if registry.find(name).chunks not in (None, chunks):
                assert not fits(name, ranks, chunks, number)
                continue
            try:
                registry.make(name, ranks=ranks, microbatches=number, chunks=chunks)
                made = True
            except ValueError:
                made = False
            assert fits(name, ranks, chunks, number) == made, (name, ranks, chunks, number)


@pytest.mark.parametrize(
    ("layers", "stages", "mtp", "cut"),
    [
        (32, 4, 0, (8, 8, 8, 8)),
        (32, 4, 1, (8, 8, 8, 8)),
        (30, 4, 0, (7, 8, 8, 7)),
        (31, 4, 0, (7, 8, 9, 7)),
        (61, 32, 1, (1, *[2] * 30, 0)),
        (3, 4, 0, (0, 1, 2, 0)),
        (2, 4, 0, (0, 1, 1, 0)),
        (1, 2, 0, (0, 1)),
        (1, 2, 3, (1, 0)),
        (5, 1, 1, (5,)),
    ],
)
def test_first_cuts_are_even_or_balanced_around_the_ends(
    layers: int, stages: int, mtp: int, cut: tuple[int, ...]
) -> None:
    assert first_cut(layers, stages, mtp) == cut


def test_first_cuts_have_all_layers_and_no_empty_stage_between() -> None:
    for layers, mtp in product(range(1, 40), (0, 1, 2)):
        for stages in range(1, layers + 3):
            cut = first_cut(layers, stages, mtp)
            assert (len(cut), sum(cut)) == (stages, layers)
            assert min(cut) >= 0
            assert all(cut[1:-1])
            assert max(cut) - min(cut) <= 2 + mtp


@pytest.mark.slow
def test_large_searches_are_counted_without_being_made() -> None:
    cluster: Any = Gpus(2048)
    training = Training(4096, 4096)
    assert sum(group.count for group in groups(PlanRequest(latent(), cluster, training))) > 10**7


def test_a_real_cluster_keeps_tensor_groups_in_a_node() -> None:
    training = Training(64, 4096)
    for name, most in (("h100", 8), ("gb200", 32)):
        cluster = Cluster(find_gpu(name), 64)
        found = {group.degrees.tp for group in groups(PlanRequest(dense(), cluster, training))}
        assert max(found) == most
    given = groups(PlanRequest(dense(), cluster, training, fixed=Fixed(tp=16)))
    assert {group.degrees.tp for group in given} == {16}
