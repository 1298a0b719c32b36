"""The deadlock that is shown is a shortest one: compared with a search of everything."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import Placement, Schedule
from debubble.engine.explain import explain
from tests.oracle import sources_of


def fewest_waits(schedule: Schedule) -> int | None:
    """Data waits on the shortest cycle of the whole order, None when there is no cycle."""
    programs = list(schedule)
    rank_of = {action: rank for rank, program in enumerate(programs) for action in program}
    place = {action: i for program in programs for i, action in enumerate(program)}
    waits: dict[db.Action, set[db.Action]] = {}
    for action in rank_of:
        found = set()
        for alternatives in sources_of(schedule, action):
            there = next(source for source in alternatives if source in rank_of)
            # A wait for a source is a wait for all that is queued ahead of it.
            found |= {ahead for ahead in programs[rank_of[there]] if place[ahead] <= place[there]}
        waits[action] = found
    best = None
    for start in rank_of:
        reached, frontier, length = set(), {start}, 0
        while frontier:
            length += 1
            frontier = {b for a in frontier for b in waits[a]} - reached
            reached |= frontier
            if start in frontier:
                best = length if best is None else min(best, length)
                break
    return best


@settings(max_examples=80)
@given(
    st.sampled_from(["gpipe", "1f1b", "zb-h1", "interleaved-1f1b"]),
    st.integers(2, 4),
    st.data(),
)
def test_as_few_waits_as_an_exhaustive_search(name: str, ranks: int, data: st.DataObject) -> None:
    schedule = db.make(name, ranks=ranks, microbatches=ranks)
    rows = schedule.rows()
    for _ in range(data.draw(st.integers(1, 4))):
        row = data.draw(st.sampled_from(rows))
        i, j = data.draw(st.tuples(*[st.integers(0, len(row) - 1)] * 2))
        row[i], row[j] = row[j], row[i]
    broken = Schedule.from_text(rows, schedule.placement, ranks)
    expected = fewest_waits(broken)
    assume(expected is not None)
    error = explain(broken, "overlapped")
    text = str(error)
    assert text.count("waits for") == expected, text
    begins = [link.split(" (")[0] for link in error.chain]
    assert len(begins) == len(set(begins))


def test_a_chain_through_many_ranks() -> None:
    # Every rank runs its backward before the forward the next rank needs.
    ranks = 6
    rows = [["0F0", "0B0", "0F1", "0B1"]] + [
        [f"{r}F1", f"{r}F0", f"{r}B0", f"{r}B1"] for r in range(1, ranks)
    ]
    schedule = Schedule.from_text(rows, Placement.linear(ranks), 2)
    assert str(explain(schedule, "overlapped")).count("waits for") == fewest_waits(schedule)
