"""Waits of GPUs for the host, and for collectives that a framework does not hide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from debubble.planner.cost.layer_times import KERNELS, layer_times
from debubble.planner.cost.stage_costs import stage_times
from debubble.planner.cost.step import step_time
from debubble.planner.frameworks.habits import Habits
from debubble.planner.frameworks.published_runtimes import NANOTRON
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.hardware.links import RankGroup, dispatch
from tests.planner.cases import PLAIN, case, dense, mixture

EAGER = Habits("eager", "software whose host starts every kernel", launch=11e-6)


def layer(runtime: Habits, sequence: int = 4096, **degrees: int) -> tuple[float, float]:
    """Forward and backward of one layer."""
    one = case(dense(), runtime=runtime, sequence=sequence, **degrees)
    times = layer_times(one, one.model.layers[0])
    return times.F, times.I + times.W


def test_a_small_layer_takes_as_long_as_its_host() -> None:
    """On an H100, PyTorch takes 0.28 ms forward and 0.88 ms backward, however small it is."""
    forward, backward = layer(EAGER, sequence=128)
    assert forward == pytest.approx(11e-6 * KERNELS[0])
    assert (forward, backward) == pytest.approx((0.28e-3, 0.88e-3), rel=0.2)


def test_a_large_layer_hides_its_host() -> None:
    assert layer(EAGER, sequence=8192) == pytest.approx(layer(PLAIN, sequence=8192))


def test_hosts_start_collectives() -> None:
    """nanotron: 4.6 ms for a layer over the ranks of a node, 8.3 ms over two, of any size."""
    for tp, least in ((8, 4.6e-3), (16, 8.3e-3)):
        assert sum(layer(NANOTRON, sequence=128, tp=tp)) == pytest.approx(least, rel=0.05)


def test_a_pipeline_of_nanotron_waits_where_it_spans_nodes() -> None:
    model = dense(8)
    inside = case(model, tp=2, pp=2, sequence=128, runtime=NANOTRON)
    between = case(model, tp=2, pp=2, dp=4, sequence=128, runtime=NANOTRON)
    assert stage_times(inside).sum() < 8 * 8e-3 < stage_times(between).sum()


def test_a_host_with_experts_is_slow() -> None:
    slow = replace_habits(expert_launch=30e-3)
    one, other = (case(mixture(), sequence=128, runtime=each) for each in (PLAIN, slow))
    times = layer_times(other, other.model.layers[0])
    assert sum((times.F, times.I, times.W)) == pytest.approx(30e-3)
    assert step_time(one).seconds < step_time(other).seconds


def test_collectives_are_exposed_by_habit() -> None:
    fast, slow = layer(PLAIN, tp=8), layer(replace_habits(hides_tensors=False), tp=8)
    late = layer(replace_habits(collective=(1e-3, 0.0)), tp=8)
    assert fast < slow
    # What was stored gathered is not gathered once more.
    assert layer(replace_habits(gathered_inputs=True), tp=8)[1] < fast[1]
    assert late[0] == pytest.approx(fast[0] + 4e-3)


def test_tokens_that_go_apart_take_longer() -> None:
    group = RankGroup(64, 8)
    once, apart = (
        dispatch(GPUS["h100"], group, 4096, 14336, 8, apart=apart) for apart in (False, True)
    )
    assert once < apart
    single = [dispatch(GPUS["h100"], group, 4096, 14336, 1, apart=apart) for apart in (False, True)]
    assert single[0] == pytest.approx(single[1])


def test_gradients_that_are_added_apart_take_longer() -> None:
    assert layer(replace_habits(adds_gradients=True))[1] > layer(PLAIN)[1]


def test_what_replicas_do_not_hide_shows() -> None:
    shown = replace_habits(hides_replicas=False)
    for zero, differ in ((0, False), (1, True)):
        one, other = (
            step_time(case(dense(), dp=16, zero=zero, runtime=each)) for each in (PLAIN, shown)
        )
        assert (one.seconds < other.seconds) == differ


def replace_habits(**fields: object) -> Habits:
    """Software without habits but for some."""
    return replace(PLAIN, **fields)  # type: ignore[arg-type]
