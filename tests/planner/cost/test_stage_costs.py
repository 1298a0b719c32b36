from dataclasses import replace

import pytest

from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.case import Case
from debubble.planner.cost.layer_times import layer_times
from debubble.planner.cost.layer_work import Times
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.cost.stage_costs import stage_costs, stage_times, transfer
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.hardware.cluster import Cluster, find_gpu
from debubble.planner.memory.peaks import memory_costs
from debubble.planner.model.files import read_model
from debubble.planner.model.transformer import Model
from tests.planner.cases import case_of

FACTORS = Factors()
TRAINING = Training(128, 8192)


def candidate(layers: tuple[int, ...], **degrees: int) -> Candidate:
    return Candidate(Degrees(pp=len(layers), **degrees), 1, 8, "1f1b", layers)


def by_stage(case: Case) -> list[Times]:
    """F, I with recompute, and W of every stage."""
    return [Times(*one) for one in stage_times(case).T.tolist()]


def llama() -> tuple[Model, Cluster]:
    return read_model("llama-3.1-8b"), Cluster(find_gpu("h100"), 64)


def test_stages_have_the_times_of_their_layers() -> None:
    model, cluster = llama()
    plan = candidate((4, 8, 16, 4))
    costs = stage_costs(Case(model, cluster, TRAINING, plan, FACTORS))
    one = layer_times(Case(model, cluster, TRAINING, plan, FACTORS), model.layers[0])
    assert costs.F[1:3] == pytest.approx([8 * one.F, 16 * one.F])
    assert costs.I[1:3] == pytest.approx([8 * one.I, 16 * one.I])
    assert costs.W[1:3] == pytest.approx([8 * one.W, 16 * one.W])
    assert costs.F[0] > 4 * one.F
    assert costs.F[3] > 5 * one.F
    assert (costs.time_unit, costs.memory_unit) == ("s", "bytes")


def test_a_stage_without_layers_has_the_ends_alone() -> None:
    model, cluster = llama()
    found = by_stage(Case(model, cluster, TRAINING, candidate((0, 32, 0)), FACTORS))
    assert 0 < found[0].F < found[2].F < found[1].F


def test_recompute_is_part_of_the_backward() -> None:
    model, cluster = llama()
    plan = candidate((8, 8, 8, 8))
    none, full = (
        by_stage(Case(model, cluster, TRAINING, replace(plan, recompute=recompute), FACTORS))
        for recompute in ("none", "full")
    )
    assert full[1].F == none[1].F
    assert pytest.approx(none[1].I + none[1].F) == full[1].I
    assert full[1].W == none[1].W


def test_pytorchs_runtime_keeps_backwards_whole_that_recompute() -> None:
    model, cluster = llama()
    plan, theirs = candidate((8, 8, 8, 8)), replace(TRAINING, runtime=TORCH)
    for recompute in ("none", "selective", "full"):
        plan = replace(plan, recompute=recompute)
        whole = by_stage(Case(model, cluster, theirs, plan, FACTORS))
        memory = memory_costs(case_of(model, theirs, plan))
        for other in whole:
            assert (other.W == 0) == (recompute != "none")
        assert (max(memory["kept_for_weight"]) == 0) == (recompute != "none")


def test_the_first_layers_of_every_stage_are_recomputed() -> None:
    model, cluster = llama()
    plan = candidate((8, 2, 0, 22))
    none, some, full = (
        by_stage(Case(model, cluster, TRAINING, replace(plan, recompute=recompute), FACTORS))
        for recompute in ("none", "full:3", "full")
    )
    one = layer_times(Case(model, cluster, TRAINING, plan, FACTORS), model.layers[0]).F
    again = [some[stage].I - none[stage].I for stage in range(4)]
    assert again == pytest.approx([3 * one, 2 * one, 0, 3 * one], abs=1e-12)
    assert pytest.approx(full[1].I) == some[1].I
    assert [stage.F for stage in some] == pytest.approx([stage.F for stage in none])


def test_a_number_of_layers_leaves_out_multi_token_prediction() -> None:
    model = read_model("deepseek-v3")
    cluster, plan = Cluster(find_gpu("h100"), 512), candidate((31, 30), ep=64, dp=256)
    none, some, full = (
        by_stage(Case(model, cluster, TRAINING, replace(plan, recompute=recompute), FACTORS))[1].I
        for recompute in ("none", "full:61", "full")
    )
    layer = layer_times(Case(model, cluster, TRAINING, plan, FACTORS), model.layers[-1])
    assert some - none == pytest.approx(30 * layer.F)
    assert full - none == pytest.approx(31 * layer.F)


def test_multi_token_prediction_is_on_the_last_stage() -> None:
    model = read_model("deepseek-v3")
    assert model.mtp == 1
    cluster, plan = Cluster(find_gpu("h100"), 512), candidate((31, 30), ep=64, dp=256)
    found, without = (
        by_stage(Case(one, cluster, TRAINING, plan, FACTORS))
        for one in (model, replace(model, mtp=0))
    )
    one = layer_times(Case(model, cluster, TRAINING, plan, FACTORS), model.layers[-1])
    assert found[0] == without[0]
    assert found[1].F > without[1].F + one.F


def test_multi_token_prediction_on_a_stage_of_its_own_takes_its_time_there() -> None:
    model, cluster = read_model("deepseek-v3"), Cluster(find_gpu("h100"), 1024)
    plan = candidate((31, 30, 0, 0), ep=64, dp=256)
    together, apart, without = (
        stage_costs(Case(one, cluster, TRAINING, replace(plan, mtp_stage=stage), FACTORS))
        for one, stage in ((model, None), (model, 2), (replace(model, mtp=0), None))
    )
    assert isinstance(apart.F, tuple)
    assert sum(apart.F) == pytest.approx(sum(together.F))
    # Heads of both predictions are with the loss.
    assert apart.F[3] == pytest.approx(2 * without.F[3])
    assert apart.F[2] == pytest.approx(together.F[3] - apart.F[3])
    # Both predictions' activations go to the loss.
    assert apart.message[:2] == (0, 0)
    assert 0.5 * apart.p2p < apart.message[2] <= apart.p2p


def test_transfers_that_nothing_hides_are_part_of_the_passes() -> None:
    model, cluster = llama()
    plan = candidate((8, 8, 8, 8), dp=16)
    hidden = stage_costs(Case(model, cluster, TRAINING, plan, FACTORS))
    shown = stage_costs(Case(model, cluster, replace(TRAINING, overlap_p2p=False), plan, FACTORS))
    assert shown.p2p == 0
    assert pytest.approx([time + hidden.p2p for time in hidden.F]) == shown.F
    assert shown.W == hidden.W


def test_transfers_know_which_ranks_share_a_node() -> None:
    model, cluster = llama()
    inside = transfer(Case(model, cluster, TRAINING, candidate((8, 8, 8, 8))))
    between = transfer(Case(model, cluster, TRAINING, candidate((8, 8, 8, 8), dp=8)))
    mixed = transfer(Case(model, cluster, TRAINING, candidate((8, 8, 8, 8), dp=4)))
    assert isinstance(inside, float)
    assert isinstance(between, float)
    assert isinstance(mixed, tuple)
    assert inside < between
    assert (mixed[0][1], mixed[1][2], mixed[2][3]) == (inside, between, inside)
    assert transfer(Case(model, cluster, TRAINING, candidate((32,)))) == 0
