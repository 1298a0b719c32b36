from dataclasses import replace

import pytest

from debubble.core.placement import Placement
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.case import Case
from debubble.planner.cost.step import StepEnds, step_ends
from debubble.planner.hardware.cluster import Cluster, find_gpu
from debubble.planner.model.files import read_model
from debubble.schedules import registry
from tests.planner.published import gpt, korthikanti

TRAINING = Training(128, 8192)


def loop(candidate: Candidate) -> Placement:
    degrees = candidate.degrees
    made = registry.make(
        "interleaved-1f1b", ranks=degrees.pp, microbatches=degrees.pp, chunks=degrees.chunks
    )
    return made.placement


def ends(training: Training = TRAINING, zero: int = 1, **degrees: int) -> StepEnds:
    model, sizes = read_model("llama-3.1-8b"), Degrees(pp=4, chunks=2, **degrees)
    candidate = Candidate(sizes, 1, 8, "interleaved-1f1b", (4,) * 8, zero=zero)
    cluster = Cluster(find_gpu("h100"), sizes.gpus)
    return step_ends(Case(model, cluster, training, candidate), (0.02,) * 8, loop(candidate))


def test_one_replica_sums_no_gradients() -> None:
    found = ends()
    assert found.gradients == found.weights == (0,) * 4
    assert min(found.optimizer) > 0


def test_overlap_hides_most() -> None:
    hidden, shown = ends(dp=16), ends(replace(TRAINING, overlap_dp=False), dp=16)
    assert max(hidden.gradients) < max(shown.gradients) / 5
    assert max(hidden.weights) < max(shown.weights) / 5


def test_sharded_states_make_the_optimizer_fast() -> None:
    assert max(ends(dp=16).optimizer) == pytest.approx(max(ends(zero=0, dp=16).optimizer) / 16)
    assert max(ends(zero=0, dp=16).weights) == 0


def test_ends_of_the_model_have_most_parameters() -> None:
    found = ends().optimizer
    assert found[0] > found[1] == found[2] < found[3]


def test_gradients_of_530b_take_what_was_measured() -> None:
    # arXiv 2205.05198, section 6.3: 39.15 s with 8 replicas, 37.83 with one.
    case = korthikanti("530B", "selective")
    degrees = replace(case.candidate.degrees, dp=8)
    candidate = replace(case.candidate, degrees=degrees)
    cluster = Cluster(case.cluster.gpu, degrees.gpus)
    found = step_ends(
        Case(case.model, cluster, case.training, candidate), (0.1,) * 105, loop(candidate)
    )
    assert max(found.gradients) == pytest.approx(1.32, rel=0.1)


def test_fp16_checks_and_copies_gradients() -> None:
    narrow = ends(replace(TRAINING, precision="fp16"))
    assert max(narrow.optimizer) > max(ends().optimizer)


def test_an_offloaded_optimizer_waits_for_the_host() -> None:
    away = ends(replace(TRAINING, offload_optimizer=True))
    assert min(away.optimizer) > 10 * max(ends().optimizer)


def test_narrow_weights_are_gathered_in_half_the_time() -> None:
    wide, narrow = (
        ends(replace(TRAINING, precision="fp8", overlap_dp=False, weights=kind), dp=16).weights
        for kind in ("bf16", "fp8")
    )
    assert 0.4 * max(wide) < max(narrow) < 0.7 * max(wide)


def test_an_optimizer_step_is_limited_by_memory() -> None:
    # 22B over 8 ranks: what its step takes beside 48 layers of 20.3 ms, 1.10 s in all.
    model, cluster = gpt(48, 6144, 64), Cluster(find_gpu("a100-80gb"), 8)
    candidate = Candidate(Degrees(tp=8), 4, 1, "1f1b", (48,), zero=0)
    training = korthikanti("22B", "full").training
    placement = registry.make("1f1b", ranks=1, microbatches=1).placement
    found = step_ends(Case(model, cluster, training, candidate), (1.0,), placement)
    assert found.optimizer[0] == pytest.approx(1.10 - 48 * 0.0203, rel=0.25)


def test_what_overlaps_slows_down_what_it_overlaps() -> None:
    """One microbatch on more replicas takes longer: 8B on 32 to 256 B200, in MLPerf."""
    sums = [max(ends(dp=dp).gradients) + max(ends(dp=dp).weights) for dp in (2, 8, 32)]
    assert 0 < sums[0] < sums[1] < sums[2]
