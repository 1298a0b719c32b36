"""Sends and receives where PyTorch's own lowering puts them, receives early or deferred."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import Kind, Schedule, make
from debubble.core.actions import TRANSFER_KINDS, begins_group, kinds_of, unpack
from debubble.lowering.sharding import add_sharding
from debubble.lowering.transfers import add_transfers
from debubble.schedules.registry import Entry, find
from tests.oracle import copy_of
from tests.pairs import each_family, each_sort
from tests.strategies import made

PAIRS = [
    ("looped-bfs", {}, "LoopedBFS", (2, 3)),
    ("flexible-interleaved", {}, "Interleaved1F1B", (2, 3, 4)),
    ("interleaved-zb", {}, "InterleavedZeroBubble", (2, 3)),
    ("zb-v", {"published": True}, "ZBVZeroBubble", (2,)),
    ("dualpipe-v", {}, "DualPipeV", (2,)),
]


@pytest.mark.parametrize(("ours", "options", "name", "chunks"), PAIRS, ids=lambda x: str(x))
def test_every_transfer_is_where_pytorch_puts_it(
    ours: str, options: dict[str, Any], name: str, chunks: tuple[int, ...]
) -> None:
    pytest.importorskip("torch", reason="compares with torch.distributed.pipelining")
    compared = 0
    for v in chunks:
        for p, m in ((2, 4), (3, 6), (4, 4), (4, 8), (4, 12), (8, 16)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

                try:
                    theirs = get_schedule_ops(name, p, m, v, with_comms=True)
                except ValueError:
                    continue
            plain = make(
                ours, ranks=p, microbatches=m, chunks=None if find(ours).chunks else v, **options
            )
            expected = [
                [text for text in map(str, row) if "SHARD" not in text and "REDUCE" not in text]
                for row in theirs
            ]
            assert add_transfers(plain, policy="pytorch").rows() == expected, (p, m, v)
            compared += 1
    assert compared >= 3


def later(schedule: Schedule, program: list[tuple[Any, int]], rank: int) -> list[Any]:
    """A lowered program with its receives put off, by the words of PyTorch's option."""

    def peer(action: Any) -> int:
        forward = action.kind in (Kind.SEND_F, Kind.RECV_F)
        away = 1 if forward == (action.kind in (Kind.SEND_F, Kind.SEND_B)) else -1
        row = schedule.placement.table[copy_of(schedule, action.microbatch)]
        return row[action.stage + away]

    found: list[Any] = []
    put_off: list[Any] = []
    index = 0
    while index < len(program):
        action = program[index][0]
        stop = index + 1
        while stop < len(program) and not program[stop][1]:
            stop += 1
        members = [one for one, _ in program[index:stop]]
        index = stop
        if action.kind in (Kind.RECV_F, Kind.RECV_B):
            put_off.append(action)
            continue
        for one in list(put_off):
            flushed = (
                action.kind in (Kind.SEND_F, Kind.SEND_B)
                and rank < peer(action)
                and peer(one) == peer(action)
            )
            if flushed:
                put_off.remove(one)
                found.append(one)
        for member in members:
            for one in list(put_off):
                backward = one.kind == Kind.RECV_B
                kinds = (Kind.I, Kind.B) if backward else (Kind.F,)
                if one[::2] == member[::2] and member.kind in kinds:
                    put_off.remove(one)
                    found.append(one)
        found += members
    assert not put_off
    return found


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_deferred_receives_are_right_before_what_they_are_for(
    entry: Entry, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry, ranks=4, microbatches=12))
    if data.draw(st.booleans()):
        schedule = add_sharding(schedule, mode="fsdp", max_active=4)
    early = add_transfers(schedule, policy="pytorch")
    late = add_transfers(schedule, policy="pytorch-deferred")
    for rank in range(schedule.ranks):
        program = early.program(rank)
        begins = begins_group(program).tolist()
        cells = [(unpack(code), begin) for code, begin in zip(program, begins, strict=True)]
        assert list(map(unpack, late.program(rank))) == later(schedule, cells, rank)
    for lowered in (early, late):
        kept = ~np.isin(kinds_of(lowered.actions), TRANSFER_KINDS)
        assert lowered.actions[kept].tolist() == schedule.actions.tolist()


@each_family
@settings(max_examples=5)
@given(data=st.data())
def test_pytorchs_places_run_in_every_mode(entry: Entry, data: st.DataObject) -> None:
    lowered = add_transfers(
        data.draw(made(entry, ranks=4, microbatches=12)), policy="pytorch"
    )  # fmt: skip
    for mode in (None, "blocking", "pair", "group", "directed"):
        report = db.check(lowered, p2p_mode=mode)  # type: ignore[arg-type]
        assert report, f"{mode}: {report}"


def test_a_receive_of_the_warm_up_no_longer_stands_before_other_work() -> None:
    # The two ranks of pytorch#172668: 2RECV_F0 stood before 0F1.
    plain = make("interleaved-1f1b", ranks=2, microbatches=4, chunks=2)
    early = add_transfers(plain, policy="pytorch").rows()
    late = add_transfers(plain, policy="pytorch-deferred").rows()
    assert early[0].index("2RECV_F0") < early[0].index("0F1")
    assert late[0].index("2RECV_F0") > late[0].index("0F1")
    for cell, following in pairwise(late[1]):
        if "RECV" in cell:
            assert following == cell.replace("RECV_", "")


def test_checks_say_where_deferred_receives_lock_up_or_cross() -> None:
    lowered = add_transfers(make("1f1b", ranks=2, microbatches=3), policy="pytorch-deferred")
    (problem,) = db.check(lowered).problems
    assert problem.code == "deadlock"
    assert "0SEND_F1 (rank 0) waits for 1RECV_F1 (rank 1)" in problem.message
    assert db.check(lowered, p2p_mode="directed")
    assert db.check(lowered, p2p_mode="blocking")
    crossed = add_transfers(make("dualpipe-v", ranks=4, microbatches=8), policy="pytorch-deferred")
    assert {problem.code for problem in db.check(crossed).problems} == {"transfer"}


def test_refusals() -> None:
    plain = make("1f1b", ranks=2, microbatches=2)
    with pytest.raises(db.ScheduleError, match="has transfers already"):
        add_transfers(add_transfers(plain), policy="pytorch")
    with pytest.raises(db.ParameterError, match="did you mean 'pytorch'"):
        add_transfers(plain, policy="pytorsch")  # type: ignore[arg-type]
