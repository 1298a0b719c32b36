"""When replicas of a stage gather weights and reduce gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import Costs, Kind, ParameterError, Schedule, ScheduleError, make
from debubble.core.actions import SHARDING_KINDS, Action, begins_group, kinds_of
from debubble.core.kinds import WORK_KINDS
from debubble.lowering.sharding import LOOKAHEADS, SHARDING_MODES, add_sharding, lookahead_of
from debubble.lowering.transfers import add_transfers
from debubble.schedules.registry import Entry
from tests.pairs import each_family, each_sort
from tests.strategies import ENTRIES, costs_for, made


def words(schedule: Schedule, rank: int = 0) -> str:
    return " ".join(schedule.rows()[rank])


def test_reductions_stand_behind_the_last_weight_gradient_and_its_sends() -> None:
    plain = make("interleaved-1f1b", ranks=2, microbatches=2, chunks=2)
    assert words(add_sharding(plain)) == (
        "0F0 0F1 2F0 2F1 2B0 2B1 2REDUCE_GRAD0 0B0 0B1 0REDUCE_GRAD0"
    )
    lowered = add_sharding(add_transfers(make("gpipe", ranks=2, microbatches=1)))
    assert words(lowered, 1) == "1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD0"


def test_weights_are_gathered_while_a_rank_waits_to_receive() -> None:
    lowered = add_sharding(
        add_transfers(make("1f1b", ranks=2, microbatches=2), policy="just-in-time"), mode="fsdp"
    )
    assert words(lowered, 1) == (
        "1UNSHARD0 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1REDUCE_GRAD0 1RESHARD0"
    )


def test_a_rank_holds_the_stages_it_needs_next() -> None:
    # Five stages of one rank, of which three have room: PyTorch's order.
    row = [*(f"{stage}F0" for stage in range(5)), *(f"{stage}B0" for stage in range(4, -1, -1))]
    plain = Schedule.from_text([row], db.Placement.block(1, 5), 1)
    assert words(add_sharding(plain, mode="fsdp")) == (
        "0UNSHARD0 1UNSHARD0 2UNSHARD0 0F0 0RESHARD0 3UNSHARD0 1F0 1RESHARD0 4UNSHARD0 2F0 3F0 4F0 "
        "4B0 4REDUCE_GRAD0 4RESHARD0 1UNSHARD0 3B0 3REDUCE_GRAD0 3RESHARD0 0UNSHARD0 2B0 "
        "2REDUCE_GRAD0 2RESHARD0 1B0 1REDUCE_GRAD0 1RESHARD0 0B0 0REDUCE_GRAD0 0RESHARD0"
    )
    late = add_sharding(plain, mode="fsdp", prefetch=False, max_active=2)
    assert words(late).startswith(
        "0UNSHARD0 0F0 1UNSHARD0 1F0 0RESHARD0 2UNSHARD0 2F0 1RESHARD0 3UNSHARD0 3F0"
    )


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_what_is_inserted_is_right_wherever_it_comes_from(
    entry: Entry, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry, ranks=4, microbatches=12))
    mode = data.draw(st.sampled_from(SHARDING_MODES))
    most, ahead = data.draw(st.integers(2, 4)), data.draw(st.booleans())
    base = add_transfers(schedule) if data.draw(st.booleans()) else schedule
    lowered = add_sharding(base, mode=mode, max_active=most, prefetch=ahead)
    kept = ~np.isin(kinds_of(lowered.actions), SHARDING_KINDS)
    assert lowered.actions[kept].tolist() == base.actions.tolist()
    period = schedule.microbatches * schedule.slices
    for rank, program in enumerate(lowered):
        held: set[int] = set()
        open_: set[tuple[int, int]] = set()
        done: set[tuple[int, int]] = set()
        for stage, kind, unit in program:
            if kind == Kind.UNSHARD:
                assert stage not in held
                held.add(stage)
                assert len(held) <= most
            elif kind == Kind.RESHARD:
                held.remove(stage)
            elif kind == Kind.REDUCE_GRAD:
                open_.remove((stage, unit))
                done.add((stage, unit))
            elif kind < Kind.OPT:
                assert mode == "ddp" or stage in held
                if kind in (Kind.W, Kind.B):
                    assert (stage, unit // period) not in done
                    open_.add((stage, unit // period))
            elif kind == Kind.OPT:
                assert not held
        assert not held, rank
        assert not open_, rank
    report = db.check(lowered)
    assert report, str(report)


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_collectives_of_no_time_change_nothing(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=4, microbatches=8))
    costs = data.draw(costs_for(schedule))
    lowered = add_sharding(schedule, mode="fsdp")
    plain, timeline = db.simulate(schedule, costs), db.simulate(lowered, costs)
    kept = ~np.isin(kinds_of(lowered.actions), SHARDING_KINDS)
    assert timeline.end[kept].tolist() == plain.end.tolist()
    assert timeline.peak_activation.tolist() == plain.peak_activation.tolist()
    assert timeline.busy.tolist() == plain.busy.tolist()


@settings(max_examples=40)
@given(data=st.data(), unshard=st.sampled_from([0.0, 0.5, 3.0]), reduce=st.sampled_from([0.0, 7.0]))
def test_times_are_those_of_a_rank_by_rank_simulation(
    data: st.DataObject, unshard: float, reduce: float
) -> None:
    """One stream of collectives per rank beside the compute, run event by event."""
    schedule = data.draw(made(data.draw(st.sampled_from(FLAT)), ranks=4, microbatches=8))
    schedule = replace(schedule, sync="local")
    lowered = add_sharding(schedule, mode="fsdp", max_active=2, prefetch=data.draw(st.booleans()))
    timeline = db.simulate(lowered, Costs(F=1, I=1, W=1, unshard=unshard, reduce_grad=reduce))
    assert timeline.end.tolist() == by_hand(lowered, unshard, reduce)


FLAT = [entry for entry in ENTRIES if entry.name in ("1f1b", "interleaved-1f1b", "zb-v", "hanayo")]


def by_hand(schedule: Schedule, unshard: float, reduce: float) -> list[float]:
    free = [0.0] * schedule.ranks
    stream = [0.0] * schedule.ranks
    reduced = [0.0] * schedule.ranks
    ready: dict[tuple[int, int], float] = {}
    done: dict[tuple[int, str, int], float] = {}
    ends: list[list[float]] = [[] for _ in range(schedule.ranks)]
    programs = [list(program) for program in schedule]
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while len(ends[rank]) < len(program):
                stage, kind, unit = program[len(ends[rank])]
                if kind == Kind.RESHARD:
                    end = free[rank]
                elif kind in (Kind.UNSHARD, Kind.REDUCE_GRAD):
                    took = unshard if kind == Kind.UNSHARD else reduce
                    end = stream[rank] = max(stream[rank], free[rank]) + took
                    if kind == Kind.UNSHARD:
                        ready[rank, stage] = end
                    else:
                        reduced[rank] = end
                elif kind == Kind.OPT:
                    end = free[rank] = max(free[rank], reduced[rank])
                else:
                    needs = [(stage - 1, "F", unit)] if kind == Kind.F and stage else []
                    if kind in (Kind.I, Kind.B) and stage < schedule.stages - 1:
                        needs = [(stage + 1, "I", unit)]
                    if any(need not in done for need in needs):
                        break
                    begin = max([free[rank], ready[rank, stage], *(done[n] for n in needs)])
                    end = free[rank] = begin + (2.0 if kind == Kind.B else 1.0)
                    if kind != Kind.W:
                        done[stage, "F" if kind == Kind.F else "I", unit] = end
                ends[rank].append(end)
                moved = True
    return [end for row in ends for end in row]


def test_a_step_waits_for_the_reductions_of_all_ranks_or_its_own() -> None:
    costs = Costs(F=1, B=2, OPT=1, reduce_grad=[10, 1])
    for sync, expected in (("global", [23.0, 23.0]), ("local", [23.0, 12.0])):
        plain = make("1f1b", ranks=2, microbatches=3, iterations=1, sync=sync)
        timeline = db.simulate(add_sharding(plain), costs)
        steps = kinds_of(timeline.schedule.actions) == Kind.OPT
        assert timeline.end[steps].tolist() == expected, sync


def test_collectives_cost_what_rank_times_say_divided_by_chunks() -> None:
    lowered = add_sharding(make("interleaved-1f1b", ranks=2, microbatches=2, chunks=2), mode="fsdp")
    timeline = db.simulate(lowered, Costs.per_rank(F=2, B=4, unshard=[6, 8], reduce_grad=1))
    value = dict(zip(timeline.graph.cost_names(), timeline.costs.tolist(), strict=True))
    assert value["UNSHARD of stage 0"] == value["UNSHARD of stage 2"] == 3
    assert value["UNSHARD of stage 1"] == 4
    assert value["REDUCE_GRAD of stage 3"] == 0.5


def test_what_cannot_be_lowered_is_refused() -> None:
    plain = make("1f1b", ranks=2, microbatches=2)
    with pytest.raises(ParameterError, match="did you mean 'fsdp'"):
        add_sharding(plain, mode="fdsp")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="has 0REDUCE_GRAD0 already on rank 0"):
        add_sharding(add_sharding(plain))
    with pytest.raises(ParameterError, match="max_active is 0; use 1 or more"):
        add_sharding(plain, mode="fsdp", max_active=0)
    with pytest.raises(ParameterError, match="max_active is 1; a group may use 2 stages or more"):
        add_sharding(make("dualpipe-v", ranks=2, microbatches=4), mode="fsdp", max_active=1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0F0 0REDUCE_GRAD0 0B0", "comes before 0B0 (action 2), whose gradient it leaves out"),
        ("0F0 0B0 0REDUCE_GRAD0 0REDUCE_GRAD0", "reduces the same gradients again"),
        ("0F0 0B0 0F1 0B1 0REDUCE_GRAD1 0REDUCE_GRAD0", "reduces gradients that nobody computes"),
        ("0UNSHARD0 0F0 0RESHARD0 0B0", "0B0 uses weights of stage 0 that its rank does not hold"),
        ("0F0 0UNSHARD0 0B0", "0F0 uses weights of stage 0 that its rank does not hold"),
    ],
)
def test_misplaced_collectives_are_found(row: str, message: str) -> None:
    microbatches = 1 + row.count("0F1")
    schedule = Schedule.from_text([row.split()], db.Placement.linear(1), microbatches)
    report = db.check(schedule)
    assert message in str(report)
    assert report.count == 1
    assert report.problems[0].fix


def test_a_stage_without_reduction_is_found_where_others_have_one() -> None:
    rows = [["0F0", "0B0", "0REDUCE_GRAD0"], ["1F0", "1B0"]]
    (problem,) = db.check(Schedule.from_text(rows, db.Placement.linear(2), 1)).problems
    assert (problem.code, problem.rank) == ("reduce-grad", 1)
    assert problem.actions == ("1REDUCE_GRAD0", "1B0")
    assert problem.fix == "add it on rank 1 behind 1B0"


def test_auto_looks_as_far_ahead_as_the_fill_of_the_pipeline_allows() -> None:
    assert lookahead_of("auto", 4, 4).tolist() == [2, 3, 4, 4]
    assert lookahead_of("full", 3, 2).tolist() == [2, 2, 2]
    assert lookahead_of((1, 3), 2, 3).tolist() == [1, 3]


def gathers_by_hand(full: Schedule, rank: int, ahead: int) -> list[Action]:
    """A rank's program with the gatherings of `full` put off, one window after the other.

    A gathering moves before the first group from which on its stage is among the next `ahead`
    different ones, never before where it was.
    """
    program = list(full)[rank]
    begins = begins_group(full.program(rank)).tolist()
    heads = [
        index for index, action in enumerate(program) if begins[index] and action.kind in WORK_KINDS
    ]
    moved: dict[int, list[Action]] = {}
    for index, action in enumerate(program):
        if action.kind != Kind.UNSHARD:
            continue
        later = [head for head in heads if head > index]
        spot = index
        for head in later:
            window: list[int] = []
            use = head
            # Up to and with the group that uses the stage, if that is among the next ones.
            while use < len(program):
                stop = use + 1
                while stop < len(program) and not begins[stop]:
                    stop += 1
                for one in program[use:stop]:
                    if one.kind in WORK_KINDS and action.stage not in window:
                        window.append(one.stage)
                if action.stage in window:
                    break
                use = stop
            own = head == use
            if len(set(window)) <= ahead or own:
                spot = index if head == later[0] else head
                break
        moved.setdefault(spot, []).append(action)
    found = []
    for index, action in enumerate(program):
        if index in moved and action.kind != Kind.UNSHARD:
            found += moved[index]
        if action.kind == Kind.UNSHARD:
            found += moved.get(index, [])
        else:
            found.append(action)
    return found


@each_family
@settings(max_examples=4)
@given(data=st.data())
def test_a_lookahead_only_puts_gatherings_off(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=4, microbatches=12))
    most = data.draw(st.integers(2, 4))
    ahead = data.draw(
        st.sampled_from(LOOKAHEADS)
        | st.lists(st.integers(1, most), min_size=schedule.ranks, max_size=schedule.ranks)
    )
    full = add_sharding(schedule, mode="fsdp", max_active=most)
    lowered = add_sharding(schedule, mode="fsdp", max_active=most, lookahead=ahead)
    assert db.check(lowered)
    for rank, distance in enumerate(lookahead_of(ahead, schedule.ranks, most).tolist()):
        programs = [list(list(one)[rank]) for one in (full, lowered)]
        kept = [[a for a in program if a.kind != Kind.UNSHARD] for program in programs]
        assert kept[0] == kept[1]
        assert programs[1] == gathers_by_hand(full, rank, distance)


def test_a_lookahead_of_one_gathers_right_before_the_use() -> None:
    plain = make("interleaved-1f1b", ranks=2, microbatches=4, chunks=4)
    lowered = add_sharding(plain, mode="fsdp", lookahead=(1, 1))
    assert words(lowered).startswith("0UNSHARD0 0F0 0F1 0RESHARD0 2UNSHARD0 2F0 2F1 2RESHARD0 4UN")
    late = db.simulate(lowered, Costs(F=1, B=2, unshard=0.5)).makespan
    full = add_sharding(plain, mode="fsdp")
    assert db.simulate(full, Costs(F=1, B=2, unshard=0.5)).makespan < late


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookahead": "automatic"}, "lookahead is 'automatic'; did you mean 'auto'"),
        ({"lookahead": (1,)}, "lookahead has 1 values for 2 ranks; give one for each"),
        ({"lookahead": (1, 4)}, "lookahead has 4; give whole numbers from 1 to max_active, 3"),
        ({"lookahead": (1, True)}, "lookahead has True; give whole numbers"),
        ({"lookahead": "auto", "mode": "ddp"}, "for fsdp that gathers weights ahead; leave it out"),
        ({"lookahead": "auto", "prefetch": False}, "for fsdp that gathers weights ahead"),
    ],
)
def test_a_lookahead_that_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    plain = make("interleaved-1f1b", ranks=2, microbatches=4)
    with pytest.raises(ParameterError, match=message):
        add_sharding(plain, **({"mode": "fsdp"} | options))


@pytest.mark.parametrize("max_active", [1, 2, 3, 4])
@pytest.mark.parametrize("chunks", [2, 3, 5, 6])
def test_weights_are_gathered_where_pytorch_gathers_them(chunks: int, max_active: int) -> None:
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    plain = make("interleaved-1f1b", ranks=2, microbatches=8, chunks=chunks)
    lowered = add_sharding(plain, mode="fsdp", max_active=max_active)
    for row, found in zip(plain.rows(), lowered.rows(), strict=True):
        actions = [torch._Action.from_str(cell) for cell in row]
        theirs = torch._add_unshard_reshard(actions, max_active_stages=max_active)
        ours = [cell[:-1] if "SHARD" in cell else cell for cell in found if "REDUCE" not in cell]
        assert gaps(ours) == gaps([str(action) for action in theirs])


def gaps(row: list[str]) -> list[tuple[set[str], str]]:
    """What stands before every compute action; PyTorch leaves the last stages unsharded."""
    result, gap = [], set()
    for cell in row:
        if "SHARD" in cell:
            gap.add(cell)
        else:
            result.append((gap, cell))
            gap = set()
    return result
