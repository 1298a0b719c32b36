"""Law of more: nothing is faster than the work of the busiest rank, however slow that is made."""

from __future__ import annotations

import pytest

from debubble.core.errors import DebubbleError
from debubble.diagnosis.changes import Change
from debubble.diagnosis.what_if import SUGGESTED, with_changes, with_schedule
from tests.laws.jobs import RUNS, run_of


@pytest.mark.parametrize("name", RUNS)
def test_a_slower_rank_is_slow_with_whatever_it_runs(name: str) -> None:
    found = run_of(name)
    tried = []
    for other in set(SUGGESTED) - {found.run.schedule.name}:
        try:
            plain = with_schedule(found.replay, other)
        except DebubbleError:
            continue
        assert plain.timeline is not None
        for rank in (0, found.run.schedule.ranks - 1):
            slow = with_schedule(found.replay, other, [Change.parse(f"rank{rank}*=4")])
            assert slow.timeline is not None
            tried.append(slow.timeline.busy[rank] / plain.timeline.busy[rank])
            assert slow.after >= plain.after
    assert tried == pytest.approx([4.0] * len(tried))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("what", ["rank0", "stage0", "F", "B", "p2p"])
def test_what_takes_longer_never_shortens_the_run(name: str, what: str) -> None:
    found = run_of(name)
    steps = []
    for factor in (0.5, 1, 1.5, 2, 4):
        try:
            steps.append(with_changes(found.replay, [Change.parse(f"{what}*={factor}")]).after)
        except DebubbleError:
            continue
    assert steps == sorted(steps)
