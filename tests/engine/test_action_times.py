"""Times of single actions, against the schedule's own costs and against a plain walk."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import unpack
from debubble.core.waits import waits_for
from debubble.engine.action_times import with_times

COSTS = db.Costs(F=[1, 1.5, 2, 1], I=1.25, W=0.75, B=2.5, O=3, p2p=0.125)
NAMES = ("1f1b", "zb-h1", "dualpipe", "gpipe")


def made(name: str) -> db.Schedule:
    return db.make(name, ranks=4, microbatches=8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["overlapped", "channel", "blocking"])
def test_their_own_times_are_the_shared_ones(name: str, mode: db.P2PMode) -> None:
    costs = COSTS if name != "dualpipe" else db.Costs(O=3, p2p=0.125)
    timeline = db.simulate(made(name), costs, mode)
    graph, vector = with_times(timeline.graph, timeline.table, timeline.duration)
    assert np.array_equal(graph.evaluate(vector), timeline.node_end)


def test_every_action_takes_its_own_time() -> None:
    """Rank by rank and message by message, without a graph."""
    schedule = made("1f1b")
    timeline = db.simulate(schedule, COSTS)
    rng = np.random.default_rng(0)
    times, delays = rng.uniform(0.5, 2, (2, len(schedule)))
    graph, vector = with_times(timeline.graph, timeline.table, times)
    entry = graph.lag[graph.node]
    vector[entry[entry > 0]] = delays[entry > 0]
    end = graph.evaluate(vector)[graph.node]

    ends: dict[str, float] = {}
    programs = [[str(unpack(int(code))) for code in schedule.program(rank)] for rank in range(4)]
    clocks, at = [0.0] * 4, [0] * 4
    while any(at[r] < len(programs[r]) for r in range(4)):
        for r in range(4):
            if at[r] == len(programs[r]):
                continue
            name = programs[r][at[r]]
            kind, unit = name[1], name[2:]
            from_ = r - 1 if kind == "F" else r + 1
            position = int(schedule.offsets[r]) + at[r]
            ready = 0.0
            if 0 <= from_ < 4:
                source = f"{from_}{kind}{unit}"
                if source not in ends:
                    continue
                ready = ends[source] + delays[position]
            clocks[r] = ends[name] = max(clocks[r], ready) + times[position]
            at[r] += 1
    expected = [ends[name] for program in programs for name in program]
    assert end == pytest.approx(expected, abs=1e-12)


def test_members_of_a_group_have_delays_of_their_own() -> None:
    """A pair waits for the later one of its two inputs, whichever that is."""
    schedule = made("dualpipe")
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, O=2.5))
    graph, vector = with_times(timeline.graph, timeline.table)
    waiting = np.flatnonzero(graph.lag)
    far = sum(
        schedule.rank_of(int(producer)) != schedule.rank_of(int(consumer))
        for consumer, producer in zip(waits_for(schedule).consumer, waits_for(schedule).producer,
                                      strict=True)
    )  # fmt: skip
    assert len(waiting) == len(set(graph.lag[waiting].tolist())) == far
    end = graph.evaluate(vector)
    for node in waiting.tolist():
        late = vector.copy()
        late[graph.lag[node]] = 100.0
        group = node + int(np.argmax(graph.order[node:] >= 0))
        assert graph.evaluate(late)[group] > end[group] + 50
