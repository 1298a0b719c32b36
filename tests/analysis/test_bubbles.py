"""Idle time by cause: by hand for small cases, by brute force and by sums for all schedules."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.analysis.bubbles import CAUSES, DATA, MEMORY, P2P, bubbles, memory_limit
from debubble.core.actions import COPY_KINDS, PAIR_SHIFT, Kind, kinds_of, unpack
from debubble.core.kinds import OFFLOAD_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.graph import compile_graph
from debubble.engine.timeline import evaluate_graph
from debubble.lowering.chain import lower
from tests import oracle
from tests.pairs import each_sort, each_sort_and
from tests.strategies import carrying, costs_for, made, recomputing, with_copies


def totals(timeline):
    """Idle time of all ranks together, by cause."""
    return dict(zip(CAUSES, bubbles(timeline).totals.sum(axis=0).tolist(), strict=True))


def segments(timeline, rank):
    found = bubbles(timeline)
    return [
        (CAUSES[cause], float(start), float(end))
        for owner, cause, start, end in zip(
            found.rank, found.cause, found.start, found.end, strict=True
        )
        if owner == rank
    ]


@each_sort_and("mode", ["overlapped", "channel", "blocking"])
def test_idle_time_is_all_time_that_is_not_busy(entry, mode):
    costs = db.Costs(F=1, I=1.3, W=0.7, OPT=2, p2p=0.2)
    for iterations in (None, 2):
        try:
            schedule = db.make(
                entry.name, ranks=4, microbatches=8, iterations=iterations, costs=costs
            )
        except db.ParameterError:
            pytest.skip("does not take these sizes")
        timeline = db.simulate(schedule, costs, mode)
        found = bubbles(timeline)
        np.testing.assert_allclose(
            found.totals.sum(axis=1), timeline.makespan - timeline.busy, atol=1e-9
        )
        assert (found.end > found.start).all()
        same = found.rank[1:] == found.rank[:-1]
        assert (found.start[1:][same] >= found.end[:-1][same] - 1e-9).all()


def test_gpipe_waits_once_for_everything():
    timeline = db.simulate(db.make("gpipe", ranks=3, microbatches=4), db.Costs(F=1, B=2, p2p=0.25))
    assert segments(timeline, 0) == [("data", 4.0, 10.75), ("p2p", 10.75, 11.0)]
    assert segments(timeline, 2) == [("fill", 0.0, 2.5), ("drain", 14.5, 19.0)]


def test_a_wait_is_for_data_until_it_is_computed_and_for_p2p_until_it_is_there():
    rows = [["0F0", "0B0"], ["1F0", "1B0"]]
    schedule = Schedule.from_text(rows, db.Placement.linear(2), 1)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, p2p=3))
    assert segments(timeline, 0) == [("data", 1.0, 7.0), ("p2p", 7.0, 10.0)]
    assert segments(timeline, 1) == [("fill", 0.0, 4.0), ("drain", 7.0, 12.0)]


def test_blocking_transfers_are_p2p():
    schedule = db.make("1f1b", ranks=2, microbatches=3)
    free = totals(db.simulate(schedule, db.Costs(F=1, B=2)))
    paid = totals(db.simulate(schedule, db.Costs(F=1, B=2, p2p=0.5), "blocking"))
    assert free["p2p"] == 0
    assert paid["p2p"] > 1


def test_an_optimizer_step_waits_for_the_data_of_other_ranks():
    schedule = db.make("1f1b", ranks=2, microbatches=2, iterations=1)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, OPT=1))
    assert segments(timeline, 1) == [("fill", 0.0, 1.0), ("data", 7.0, 9.0)]


def test_a_fixed_order_never_waits_for_memory():
    # However little there is: the order is the same, and so is the timeline.
    for name in ("1f1b", "gpipe", "interleaved-1f1b", "zb-h1"):
        for memory in (None, 4, 1):
            schedule = db.make(name, ranks=4, microbatches=8, memory=memory)
            assert totals(db.simulate(schedule, db.Costs(F=1, B=2, p2p=0.05)))["memory"] == 0


def test_an_order_made_under_a_limit_waits_for_memory_where_more_would_help():
    costs = db.Costs(F=1, I=1, W=1)

    def made(memory):
        schedule = db.make("zb-auto", ranks=4, microbatches=8, costs=costs, memory=memory)
        return db.simulate(schedule, costs)

    tight, wide = made(2), made(16)
    assert totals(tight)["memory"] > 0
    assert wide.makespan < tight.makespan
    assert totals(wide)["memory"] == 0
    idle = tight.makespan * 4 - float(tight.busy.sum())
    assert sum(totals(tight).values()) == pytest.approx(idle)


def test_a_forward_lacks_memory_from_when_what_is_carried_to_it_is_there():
    # 2F0 waits for its carry until 4 + 3, and 2B0 from 8 to 15. The next forward of rank 2 has its
    # input from stage 1 at 9, what stage 0 carries for it at 8 + 3, and no room before 15.
    rows = [
        ["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"],
        ["2F0", "2B0", "2F1", "2B1"], ["3F0", "3B0", "3F1", "3B1"],
    ]  # fmt: skip
    schedule = Schedule.from_text(
        rows, db.Placement.linear(4), 2, carries=[(0, 2)], options={"memory": 1}
    )
    timeline = db.simulate(schedule, db.Costs(F=[4, 1, 1, 1], B=[2, 2, 2, 6], p2p_carry=3))
    assert segments(timeline, 2)[1:3] == [("data", 8.0, 11.0), ("memory", 11.0, 15.0)]


def test_an_option_that_is_no_limit_is_none():
    schedule = Schedule.from_text([["0F0", "0B0"]], db.Placement.linear(1), 1)
    assert memory_limit(schedule) is None
    named = dataclasses.replace(schedule, options={"memory": "host"})
    assert memory_limit(named) is None
    assert memory_limit(dataclasses.replace(schedule, options={"memory": 3})).tolist() == [3]


def waits_by_oracle(schedule, costs):
    """Time every rank waits for data, transfers and memory, from the plain simulator alone."""
    outcome = oracle.simulate(schedule, costs)
    programs = [schedule.program(rank).tolist() for rank in range(schedule.ranks)]
    at = {
        unpack(code): (rank, index)
        for rank, program in enumerate(programs)
        for index, code in enumerate(program)
        if unpack(code).kind != Kind.OPT
    }
    found = np.zeros((schedule.ranks, 3))

    def before(rank, iteration):
        """Where the last work before a rank's optimizer step is."""
        kinds = [unpack(code).kind for code in programs[rank]]
        steps = [i for i, kind in enumerate(kinds) if kind == Kind.OPT]
        return rank, max(i for i in range(steps[iteration]) if kinds[i] not in OFFLOAD_KINDS)

    for rank, program in enumerate(programs):
        free, index = None, 0
        while index < len(program):
            members = [unpack(program[index])]
            if (program[index] >> PAIR_SHIFT) & 3 == 1:
                members.append(unpack(program[index + 1]))
            if members[0].kind in (Kind.OFFLOAD, Kind.RELOAD):
                index += 1
                continue
            begin, sources = outcome.start[rank, index], []
            if members[0].kind == Kind.WAIT_OFFLOAD:
                found[rank, 2] += 0 if free is None else begin - free
                free, index = begin, index + 1
                continue
            for member in members:
                if member.kind == Kind.OPT:
                    every = {"local": [rank], "post-validation": range(rank + 1)}
                    others = every.get(schedule.sync, range(schedule.ranks))
                    sources += [before(other, member.microbatch) for other in others]
                    continue
                wanted = [
                    next(source for source in group if source in at)
                    for group in (
                        *oracle.sources_of(schedule, member),
                        *oracle.carried_sources_of(schedule, member),
                    )
                ] + oracle.shard_sources_of(schedule, member)
                reload = member._replace(kind=Kind.RELOAD)
                if reload in at and member.kind in (Kind.I, Kind.B, Kind.R):
                    wanted.append(reload)
                sources += [at[source] for source in wanted]
            if free is not None:
                far = any(other != rank for other, _ in sources)
                known = max((outcome.end[source] for source in sources), default=0.0)
                computed = min(max(known, free), begin) if far else begin
                found[rank] += computed - free, begin - computed, 0
            free, index = outcome.end[rank, index], index + len(members)
    return found


@each_sort
@settings(max_examples=6)
@given(data=st.data())
def test_causes_are_those_of_the_plain_simulator(entry, data):
    schedule = data.draw(made(entry, ranks=5, microbatches=8, chunks=3))
    if data.draw(st.booleans()):
        schedule = data.draw(recomputing(schedule, some=False))
    copies = np.isin(kinds_of(schedule.actions), COPY_KINDS).any()
    if not copies and not schedule.vocabulary and data.draw(st.booleans()):
        schedule = data.draw(with_copies(schedule))
    if schedule.slices == 1 and data.draw(st.booleans()):
        schedule = data.draw(carrying(schedule))
    schedule = dataclasses.replace(schedule, options={})
    costs = data.draw(costs_for(schedule))
    # Costs that an order was not made for are no reason to warn here.
    found = bubbles(evaluate_graph(compile_graph(schedule), costs)).totals
    wanted = waits_by_oracle(schedule, costs)
    np.testing.assert_allclose(found[:, [DATA, P2P, MEMORY]], wanted, atol=1e-9)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "seq1f1b", "interleaved-1f1b"])
@pytest.mark.parametrize("at", ["with-backward", "just-in-time"])
def test_recomputes_wait_for_what_they_need(name, at):
    options = {"ranks": 4, "microbatches": 8, **({"slices": 2} if name == "seq1f1b" else {})}
    again = db.make(name, recompute="full", recompute_at=at, **options)
    I, W = (1, 1) if name == "zb-h1" else (2, 0)
    found = totals(db.simulate(again, db.Costs(F=1, R=1, I=I, W=W, p2p=0.5)))
    longer = totals(db.simulate(db.make(name, **options), db.Costs(F=1, I=I + 1, W=W, p2p=0.5)))
    if at == "with-backward":
        # The same times as with a longer backward, so the same causes.
        assert found == pytest.approx(longer)
        if name == "1f1b":
            assert (found["p2p"], found["data"]) == (12, 38)
    else:
        assert found["data"] + found["p2p"] < longer["data"] + longer["p2p"]


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe"])
def test_explicit_transfers_are_p2p_until_they_are_over(name):
    schedule = db.make(name, ranks=4, microbatches=8)
    costs = db.Costs(F=1, I=1, W=1, p2p=0.25)
    implied = totals(db.simulate(schedule, costs))
    explicit = totals(db.simulate(lower(schedule, transfers="eager"), costs))
    assert implied["p2p"] > 0
    assert explicit == pytest.approx(implied)


def test_a_backward_waits_for_its_activation_as_data():
    rows = [["0F0", "0OFFLOAD0", "0RELOAD0", "0B0"]]
    schedule = Schedule.from_text(rows, db.Placement.linear(1), 1)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, activation=1, host_bandwidth=1))
    assert segments(timeline, 0) == [("data", 1.0, 3.0)]


def test_a_rank_without_work_drains_all_the_time():
    schedule = Schedule.from_text([["0F0", "0B0"], []], db.Placement(((0,),), ranks=2), 1)
    assert segments(db.simulate(schedule, db.Costs(F=1, B=2)), 1) == [("drain", 0.0, 3.0)]
