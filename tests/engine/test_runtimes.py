"""PyTorch's runtime, whose first stage leaves its backward to W and whose I frees nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import debubble as db
from debubble import Costs, Kind, Schedule
from debubble.core.actions import kinds_of, stages_of
from debubble.core.errors import ParameterError
from tests import oracle

SPLIT = ["zb-h1", "zb-v", "v-min", "interleaved-zb", "zb-2p", "gis"]


def written_out(schedule: Schedule, costs: Costs) -> Costs:
    """The same costs, a number for each stage, as PyTorch's runtime has them."""
    values = {name: [getattr(costs, name)] * schedule.stages for name in ("I", "W")}
    values["I"][0], values["W"][0] = 0.0, costs.I + costs.W  # type: ignore[operator]
    return replace(costs, **values, kept_for_weight=1.0, runtime="any")


@pytest.mark.parametrize("name", SPLIT)
@given(
    I=st.floats(0.5, 2), W=st.floats(0.5, 2), kept=st.floats(0, 1), p2p=st.floats(0, 0.5),
    microbatches=st.sampled_from([4, 6, 8]),
)  # fmt: skip
def test_times_and_memory_are_those_of_the_costs_written_out(
    name: str, I: float, W: float, kept: float, p2p: float, microbatches: int
) -> None:
    schedule = db.make(name, ranks=2, microbatches=microbatches)
    costs = Costs(F=1, I=I, W=W, p2p=p2p, kept_for_weight=kept, runtime="torch")
    expected = oracle.simulate(schedule, written_out(schedule, costs))
    timeline = db.simulate(schedule, costs)
    assert timeline.makespan == expected.makespan
    of_first = stages_of(schedule.actions) == 0
    nothing = of_first & (kinds_of(schedule.actions) == Kind.I)
    assert np.all(timeline.end[nothing] == timeline.start[nothing])
    assert timeline.peak_activation.tolist() == pytest.approx(
        [oracle_peak(schedule, rank) for rank in range(schedule.ranks)]
    )


def oracle_peak(schedule: Schedule, rank: int) -> float:
    """Activations held after every action, added up one by one."""
    unit = schedule.ranks / schedule.stages
    held = peak = 0.0
    for cell in schedule.rows()[rank]:
        action = db.Action.parse(cell)
        held += unit if action.kind == Kind.F else 0.0
        peak = max(peak, held)
        freed = {Kind.W: 1.0, Kind.B: 1.0}
        held -= unit * freed.get(action.kind, 0.0)
    return peak


def test_full_backwards_are_the_same_everywhere() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    costs = Costs(F=1, B=3, kept_for_weight=0.5)
    theirs = db.simulate(schedule, replace(costs, runtime="torch"))
    ours = db.simulate(schedule, costs)
    assert theirs.makespan == ours.makespan
    assert theirs.peak_activation.tolist() == ours.peak_activation.tolist()


@pytest.mark.slow
def test_the_optimizer_knows_it() -> None:
    given = {"ranks": 2, "chunks": 2, "microbatches": 4, "memory": 2, "cache": False,
             "workers": 1}  # fmt: skip
    costs = Costs(F=5, I=6, W=4, kept_for_weight=0.5, runtime="torch")
    found = db.optimize(**given, costs=costs, placement="wave")  # type: ignore[arg-type]
    out = written_out(found.schedule, costs)
    assert found.makespan == oracle.simulate(found.schedule, out).makespan
    same = db.optimize(**given, costs=out, placement="wave")  # type: ignore[arg-type]
    assert found.makespan == pytest.approx(same.makespan)
    assert found.lower_bound <= found.makespan * (1 + 1e-9)


@pytest.mark.parametrize("B", [None, 5.0, 12.0])
def test_cuts_of_layers_are_bounded(B: float | None) -> None:
    costs = Costs(F=5, I=6, W=4, B=B, runtime="torch")
    found = db.optimize(
        ranks=2, chunks=1, microbatches=4, layers=5, costs=costs, cache=False, placement="loop"
    )
    assert found.lower_bound <= found.makespan * (1 + 1e-9)
    assert sum(found.layers) == 5


def test_what_recomputes_is_not_split() -> None:
    given = {"ranks": 2, "chunks": 2, "microbatches": 4, "recompute": "full", "cache": False,
             "effort": 0.2, "costs": Costs(runtime="torch")}  # fmt: skip
    with pytest.raises(ParameterError, match="backward is 'split', and PyTorch's runtime keeps it"):
        db.optimize(**given, backward="split")  # type: ignore[arg-type]
    found = db.optimize(**given).schedule  # type: ignore[arg-type]
    assert found.recompute_after == "gradient"
    assert not np.any(np.isin(kinds_of(found.actions), [Kind.I, Kind.W]))


def test_recomputes_run_in_the_backward() -> None:
    costs = Costs(F=1, B=2, runtime="torch")
    given = {"ranks": 4, "microbatches": 8, "recompute": "full"}
    late = db.make("1f1b", **given, recompute_at="with-backward")
    wanted = db.simulate(late, replace(costs, runtime="any")).makespan
    plain = db.make("1f1b", **given)
    assert db.simulate(plain, replace(costs, runtime="any")).makespan < wanted
    assert db.simulate(plain, costs).makespan == wanted
    assert db.make("1f1b", **given, costs=costs).recompute_after == "gradient"
    for place in ("just-in-time", "bubbles"):
        with pytest.raises(ParameterError, match=f"recompute_at is '{place}', and PyTorch's"):
            db.make("1f1b", **given, costs=costs, recompute_at=place)
