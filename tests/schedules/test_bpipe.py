"""BPipe (ICML 2023): every rank holds at most ⌈(p + 2)/2⌉ microbatches, in the time of 1F1B."""

from __future__ import annotations

import math

import pytest

import debubble as db
from debubble import Costs


def timelines(p: int, m: int, costs: Costs) -> tuple[db.Timeline, db.Timeline]:
    return tuple(
        db.simulate(db.make(name, ranks=p, microbatches=m), costs) for name in ("bpipe", "1f1b")
    )


@pytest.mark.parametrize("p", range(2, 17))
@pytest.mark.parametrize(
    ("F", "B", "copy"), [(1, 2, 0), (1, 2, 0.25), (1, 2, 1), (3, 4, 3), (2, 2, 2)]
)
def test_hidden_copies_balance_memory_in_the_time_of_1f1b(
    p: int, F: float, B: float, copy: float
) -> None:
    costs = Costs(F=F, B=B, bandwidth=1 / copy if copy else math.inf)
    for m in (p, 2 * p + 1, 4 * p):
        bpipe, plain = timelines(p, m, costs)
        assert bpipe.makespan == plain.makespan == (m + p - 1) * (F + B)
        assert bpipe.peak_activation.max() == math.ceil((p + 2) / 2)
        assert plain.peak_activation.max() == p


def test_memory_per_rank() -> None:
    bpipe, plain = timelines(8, 32, Costs(F=1, B=2, bandwidth=2))
    assert plain.peak_activation.tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    assert bpipe.peak_activation.tolist() == [5, 5, 5, 5, 4, 5, 5, 5]


def test_few_microbatches_need_few_copies() -> None:
    for m in range(1, 10):
        bpipe, plain = timelines(8, m, Costs(F=1, B=2))
        assert bpipe.makespan == plain.makespan
        assert bpipe.peak_activation.max() == min(m, 5)
        copies = sum("OFFLOAD" in cell for row in bpipe.schedule.rows() for cell in row)
        assert (copies == 0) == (m <= 5)


def test_a_slow_link_costs_time_and_memory() -> None:
    for copy, longer in ((1.5, False), (2, True), (4, True)):
        bpipe, plain = timelines(8, 32, Costs(F=1, B=2, bandwidth=1 / copy))
        assert (bpipe.makespan > plain.makespan) == longer
        assert bpipe.peak_activation.max() > 5
    # The latency of a link delays its copies, too.
    late, plain = timelines(8, 32, Costs(F=1, B=2, p2p=0.25, bandwidth=0.5))
    assert late.makespan > plain.makespan


def test_the_opposite_rank_keeps_what_is_away() -> None:
    schedule = db.make("bpipe", ranks=5, microbatches=6)
    assert schedule.offload_to == (4, 3, None, None, None)
    assert [" ".join(row) for row in schedule.rows()[:2]] == [
        "0F0 0F1 0F2 0OFFLOAD2 0F3 0F4 0B0 0F5 0OFFLOAD5 0RELOAD2 0B1 0B2 0B3 0RELOAD5 0B4 0B5",
        "1F0 1F1 1F2 1F3 1B0 1F4 1B1 1F5 1B2 1B3 1B4 1B5",
    ]
