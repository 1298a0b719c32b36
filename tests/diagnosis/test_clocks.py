"""What messages say of clocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from debubble.diagnosis.clocks import Clocks, align
from debubble.diagnosis.make_run import run_of
from debubble.diagnosis.observed import Location, Observed
from debubble.diagnosis.order import reconstruct
from tests.diagnosis.made import Made, one_f_one_b

OFFSET = (0.0, 5e-3, -3e-3, 11e-3)
DRIFT = (0.0, 80e-6, -50e-6, 100e-6)


def clocks_of(observed: Observed) -> Clocks:
    return align(run_of(observed, reconstruct(observed)))


def made(**changes: object) -> Made:
    return Made(one_f_one_b(4, 8), steps=8, **changes)  # type: ignore[arg-type]


def test_one_clock_is_left_alone() -> None:
    clocks = clocks_of(made().observed())
    assert not clocks.offsets.any()
    assert clocks.warnings == ()
    assert all(one.low <= 0 <= one.high for one in clocks.intervals)
    assert len(clocks.intervals) == 3 * 8 * 2
    assert {one.ranks for one in clocks.intervals} == {
        (0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7)
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("arrivals", [True, False])
def test_intervals_hold_the_truth(seed: int, arrivals: bool) -> None:
    clocks = clocks_of(made(seed=seed, offset=OFFSET, arrivals=arrivals).observed())
    for one in clocks.intervals:
        a, b = (rank % 4 for rank in one.ranks)
        assert one.low <= OFFSET[b] - OFFSET[a] <= one.high
    assert clocks.half_width < 0.3e-3
    assert np.abs(clocks.offsets - np.array(OFFSET)).max() < 0.3e-3


def test_ranks_of_one_host_have_one_clock() -> None:
    """Two hosts of two ranks: only between them is anything corrected."""
    observed = made(offset=(0.0, 0.0, 5e-3, 5e-3)).observed()
    observed = replace(observed, locations=tuple(Location(host=host) for host in "aabb" * 2))
    clocks = clocks_of(observed)
    assert not clocks.offsets[:, :2].any()
    assert (clocks.offsets[:, 2] == clocks.offsets[:, 3]).all()
    assert clocks.offsets[:, 2] == pytest.approx(5e-3, abs=0.3e-3)
    assert clocks.warnings == ()


def test_clocks_that_run_apart() -> None:
    """Longer steps: over seconds a drift shows more than the width of an interval."""
    slow = {"F": 1.0, "B": 2.0}
    clocks = clocks_of(made(offset=OFFSET, drift=DRIFT, base=slow).observed())
    rates = {one.ranks: one for one in clocks.drifts}
    for a, b in ((0, 1), (1, 2), (2, 3)):
        assert rates[a, b].low <= DRIFT[b] - DRIFT[a] <= rates[a, b].high
        assert rates[a, b].rate == pytest.approx(DRIFT[b] - DRIFT[a], abs=5e-6)


def test_corrected_times_obey_causes() -> None:
    observed = made(offset=OFFSET, drift=DRIFT).observed()
    run = run_of(observed, reconstruct(observed))
    clocks = align(run)
    run = run.moved(clocks.offsets, clocks.rates)
    receives = run.source >= 0
    assert (run.start[:, receives] >= run.produced[:, receives] - 1e-5).all()


def test_a_contradiction_names_its_messages() -> None:
    observed = made().observed()
    messages = observed.messages
    # Two messages that arrive before they leave, one each way.
    wrong = messages.arrived.copy()
    actions = observed.actions
    start = actions.start.copy()
    for kind, source, target, step in ((0, 0, 1, 2), (3, 1, 0, 2)):
        at = np.flatnonzero(
            (messages.kind == kind) & (messages.source == source) & (messages.step == step)
            & (messages.copy == 0) & (messages.microbatch == 4)
        )  # fmt: skip
        assert len(at) == 1
        wrong[at] = messages.sent[at] - 1e-3
        assert messages.target[at[0]] == target
    observed = replace(observed, messages=replace(messages, arrived=wrong),
                       actions=replace(actions, start=start))  # fmt: skip
    clocks = clocks_of(observed)
    assert len(clocks.warnings) == 1
    assert clocks.warnings[0].startswith(
        "step 12 of copy 0: 0F4 from rank 0 to rank 1 and 1B4 from rank 1 to rank 0 contradict"
    )
    broken = [one for one in clocks.intervals if one.low > one.high]
    assert [(one.ranks, one.step) for one in broken] == [((0, 1), 12)]


def test_messages_one_way_bound_one_side() -> None:
    programs = [[f"{rank}F{m}" for m in range(4)] + [f"{rank}B{m}" for m in range(4)]
                for rank in range(2)]  # fmt: skip
    observed = Made(programs, copies=1).observed()
    # As if nobody knew when gradients were there.
    run = run_of(observed, reconstruct(observed))
    run = replace(run, start=np.where(run.kind == 3, np.nan, run.start),
                  arrived=np.full_like(run.arrived, np.nan))  # fmt: skip
    clocks = align(run)
    assert clocks.warnings == (
        "clocks of ranks 0 and 1: bounded on one side only, that needs messages both ways",
    )
    assert all(np.isinf(one.low) and np.isfinite(one.high) for one in clocks.intervals)
