import pytest

from debubble.planner.candidate import Degrees
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.hardware.links import (
    RankGroup,
    all_gather,
    all_reduce,
    dispatch,
    group_of,
    send,
)

MIB = 2**20
H200 = {1: 46e-6, 16: 134e-6, 64: 339e-6, 256: 1.08e-3, 1024: 4.05e-3, 4096: 15.9e-3}
B200_BUS = {1: 36e9, 16: 255e9, 256: 646e9, 4096: 741e9}
B200_FOUR_NODES_BUS = {16: 64e9, 256: 229e9, 4096: 377e9}


@pytest.mark.parametrize(("size", "seconds"), H200.items())
def test_all_reduces_of_eight_h200_take_what_was_measured(size: int, seconds: float) -> None:
    # Machine Learning Engineering, network benchmarks.
    assert all_reduce(GPUS["h200"], RankGroup(8, 8), size * MIB) == pytest.approx(seconds, rel=0.04)


@pytest.mark.parametrize(("size", "bus"), B200_BUS.items())
def test_all_reduces_of_eight_b200_reach_the_measured_bandwidth(size: int, bus: float) -> None:
    seconds = all_reduce(GPUS["b200"], RankGroup(8, 8), size * MIB)
    assert 2 * 7 / 8 * size * MIB / seconds == pytest.approx(bus, rel=0.25 if size == 1 else 0.08)


@pytest.mark.parametrize(("size", "bus"), B200_FOUR_NODES_BUS.items())
def test_all_reduces_over_four_nodes_reach_the_measured_bandwidth(size: int, bus: float) -> None:
    seconds = all_reduce(GPUS["b200"], RankGroup(32, 8), size * MIB)
    assert 2 * 31 / 32 * size * MIB / seconds == pytest.approx(bus, rel=0.16)


@pytest.mark.parametrize(
    ("gpu", "group", "seconds"),
    [("gb200", RankGroup(8, 8), 391e-6), ("gb200", RankGroup(64, 64), 675e-6),
     ("h100", RankGroup(8, 8), 661e-6), ("h100", RankGroup(64, 8), 4626e-6)],
)  # fmt: skip
def test_dispatches_take_what_hybrid_ep_does(gpu: str, group: RankGroup, seconds: float) -> None:
    # arXiv 2603.07685: hidden 7168, 4096 tokens, 8 experts of each.
    found = dispatch(GPUS[gpu], group, 4096, 2 * 7168, 8)
    assert found == pytest.approx(seconds, rel=0.3)


def test_a_pair_without_a_switch_has_one_link() -> None:
    gpu, size = GPUS["mi300x"], 4e9
    pair = all_gather(gpu, RankGroup(2, 2), size)
    node = all_gather(gpu, RankGroup(8, 8), size)
    assert pair / node == pytest.approx((1 / 2 / 64) / (7 / 8 / 448), rel=0.03)


def test_nothing_to_send_takes_no_time() -> None:
    gpu = GPUS["h100"]
    for collective in (all_reduce, all_gather):
        assert collective(gpu, RankGroup(1, 1), 1e9) == 0
        assert collective(gpu, RankGroup(8, 8), 0) == 0
    assert dispatch(gpu, RankGroup(1, 1), 4096, 4096, 8) == 0


def test_transfers_between_nodes_take_longer() -> None:
    gpu = GPUS["h100"]
    assert send(gpu, 1e6, inside=True) < send(gpu, 1e6, inside=False)
    assert all_gather(gpu, RankGroup(16, 16), 1e9) < all_gather(gpu, RankGroup(16, 8), 1e9)


@pytest.mark.parametrize(
    ("dimension", "group"),
    [("tp", RankGroup(4, 4)), ("cp", RankGroup(2, 2)), ("dp", RankGroup(4, 1)),
     ("pp", RankGroup(2, 1)), ("ep", RankGroup(16, 8)), ("shards", RankGroup(8, 2)),
     ("expert_dp", RankGroup(2, 1))],
)  # fmt: skip
def test_groups_are_placed_tensor_parallel_first(dimension: str, group: RankGroup) -> None:
    cluster = Cluster(GPUS["h100"], 64)
    assert group_of(cluster, Degrees(tp=4, cp=2, dp=4, ep=16, pp=2), dimension) == group


def test_a_rack_joins_72_gpus() -> None:
    degrees = Degrees(tp=4, dp=16)
    assert group_of(Cluster(GPUS["gb200"], 64), degrees, "dp") == RankGroup(16, 16)
    assert group_of(Cluster(GPUS["b200"], 64), degrees, "dp") == RankGroup(16, 2)
