"""Traces of PyTorch's profiler on GPUs, and what is wrong with files."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from debubble import Kind
from debubble.core.errors import FormatError
from debubble.diagnosis.readers.action_names import actions_named
from debubble.diagnosis.readers.folder import read
from debubble.diagnosis.readers.kineto_file import read_file
from debubble.diagnosis.readers.kineto_places import Place, places
from debubble.diagnosis.readers.kineto_rank import cuts_of, trace_of
from tests.diagnosis.readers import made, made_kineto


@pytest.mark.parametrize(
    ("name", "copies"),
    [("1f1b", 1), ("interleaved-1f1b", 2), ("zb-v", 1), ("dualpipe-v", 2), ("dualpipe", 1)],
)
def test_times_of_kernels(tmp_path: Path, name: str, copies: int) -> None:
    run = made.run(name, ranks=4, microbatches=8, copies=copies)
    made_kineto.write(run, tmp_path, host="node-a")
    found = read(tmp_path)
    assert (found.format, found.ranks, found.copies) == ("kineto", 4, copies)
    assert (found.steps, found.left_out) == ((7, 8), {})
    assert (found.clocks, found.hosts) == ("one", ("node-a",) * 4 * copies)
    made.assert_recovered(found, run)
    rows = found.actions
    share = rows.busy / (rows.end - rows.start)
    assert np.allclose(share, made_kineto.busy_share(), atol=1e-4)
    # The host runs ahead: what it launched is no time of the action.
    assert np.allclose(rows.start - rows.issued, 3e-3 - 20e-6, atol=2e-6)
    messages = found.messages
    assert len(messages)
    assert np.allclose(messages.arrived - messages.posted, made_kineto.TRANSFER, atol=2e-9)
    ends = {
        (step, copy, stage, unit): end
        for step, copy, kind, stage, unit, end in zip(
            rows.step, rows.copy, rows.kind, rows.stage, rows.microbatch, rows.end, strict=True
        ) if kind == Kind.F
    }  # fmt: skip
    for at in np.flatnonzero(messages.kind == Kind.F)[::5]:
        key = (messages.step[at], messages.copy[at], messages.stage[at], messages.microbatch[at])
        assert messages.sent[at] == pytest.approx(ends[key])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe-v"])
def test_all_that_the_profiler_writes_beside_kernels(tmp_path: Path, name: str) -> None:
    run = made.run(name, ranks=4, microbatches=8)
    made_kineto.write(run, tmp_path / "plain", host="node-a")
    made_kineto.write(run, tmp_path / "quirks", host="node-a", quirks=True)
    plain, found = read(tmp_path / "plain"), read(tmp_path / "quirks")
    made.assert_recovered(found, run)
    # A kernel without a time is no kernel.
    assert found.left_out == {"events without a time": 4}
    for one, other in ((plain.messages, found.messages), (plain.actions, found.actions)):
        for column in one.types():
            if column != "issued":  # a graph is launched at once
                np.testing.assert_allclose(
                    getattr(one, column), getattr(other, column), rtol=0, atol=2e-9
                )


def test_what_was_launched_in_time_waited_for_its_input(tmp_path: Path) -> None:
    run = made.run("1f1b", ranks=4, microbatches=8)
    made_kineto.write(run, tmp_path, ahead=30e-3)
    rows = read(tmp_path).actions
    waits = 0
    for rank in range(4):
        here = np.flatnonzero((rows.rank == rank) & (rows.step == 0))
        for before, at in pairwise(here):
            idle = rows.start[at] - rows.end[before]
            if 1e-6 < idle < 29e-3:
                assert rows.waited[at] == rows.start[at]
                waits += 1
            elif idle > 30e-3:
                assert rows.issued[at] > rows.end[before]
                assert np.isnan(rows.waited[at])
    assert waits > 10


def test_pauses(tmp_path: Path) -> None:
    made_kineto.write(made.run("1f1b"), tmp_path)
    pauses = read(tmp_path).pauses
    assert Counter(pauses.cause.tolist()) == {0: 4, 1: 4}
    lengths = np.sort((pauses.end - pauses.start).round(6))
    assert lengths.tolist() == [2e-3] * 4 + [3e-3] * 4


def test_kernels_that_were_dropped(tmp_path: Path) -> None:
    run = made.run("1f1b", steps=3)
    made_kineto.write(run, tmp_path, drop_kernels=made_kineto.PARTS)
    found = read(tmp_path)
    assert found.steps == (8, 9)
    assert found.left_out == {
        "actions of which kernels are not in the trace": 2,
        "steps that are not complete on every rank": 1,
    }


def test_an_action_that_launches_nothing_is_over_at_once(tmp_path: Path) -> None:
    """I of the first stage, which leaves all to W."""
    run = made.run("zb-h1")
    made_kineto.write(run, tmp_path, all_in_w=True)
    found = read(tmp_path)
    assert found.left_out == {}
    rows = found.actions
    idle = (rows.kind == Kind.I) & (rows.stage == 0)
    lasts = rows.end - rows.start
    assert len(lasts) == len(run.done)
    assert not lasts[idle].any()
    assert lasts[~idle].all()


def test_files_that_are_there_twice(tmp_path: Path) -> None:
    run = made.run("1f1b")
    made_kineto.write(run, tmp_path)
    made_kineto.write(run, tmp_path / "copy", suffix=".json")
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert found.left_out == {"files of a rank and time of which there is another file": 2}


def test_files_that_say_their_rank_at_the_end(tmp_path: Path) -> None:
    run = made.run("1f1b", copies=2)
    made_kineto.write(run, tmp_path, late=True)
    for path in sorted(tmp_path.iterdir()):
        path.rename(path.with_name(f"host_{path.name.translate(str.maketrans('', '', 'rank'))}"))
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert found.taken_for["rank"] == "distributedInfo.rank"


def test_windows_of_one_run(tmp_path: Path) -> None:
    run = made.run("1f1b", steps=4)
    for folder, steps in (("iteration_20", (9, 10)), ("iteration_10", (7, 8))):
        part = made.MadeRun(run.schedule, tuple(one for one in run.done if one.step in steps))
        zero = min(one.start for one in run.done)
        made_kineto.write(part, tmp_path / folder, zero=zero)
    found = read(tmp_path)
    assert (found.steps, found.left_out) == ((7, 8, 9, 10), {})
    made.assert_recovered(found, run)


def test_old_files(tmp_path: Path) -> None:
    run = made.run("1f1b")
    made_kineto.write(run, tmp_path, old=True)
    found = read(tmp_path)
    assert found.taken_for["rank"] == "number in the file's name"
    made.assert_recovered(found, run)
    assert found.clocks == "hosts"


def test_nanoseconds(tmp_path: Path) -> None:
    event = (
        '{{"ph": "X", "cat": "user_annotation", "name": "PP:{name}", "pid": 1, "tid": 1, '
        '"ts": 17908570260000{ts}, "dur": {dur}, "args": {{}}}}'
    )
    rows = [("0F0", 10000, 3), ("0B0", 10005, 4), ("0F1", 10010, 5), ("0B1", 10017, 6)]
    text = ",".join(event.format(name=name, ts=ts, dur=dur) for name, ts, dur in rows)
    (tmp_path / "rank0.json").write_text(f'{{"schemaVersion": 1, "traceEvents": [{text}]}}')
    actions = read(tmp_path).actions
    assert np.round(actions.start * 1e9).tolist() == [0, 5, 10, 17]
    assert np.round((actions.end - actions.start) * 1e9).tolist() == [3, 4, 5, 6]


def test_a_prefix_of_another_library(tmp_path: Path) -> None:
    run = made.run("1f1b")
    made_kineto.write(run, tmp_path, prefix="TP:", suffix=".json")
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert found.left_out == {}


def test_a_launch_without_kernels_is_no_duration(tmp_path: Path) -> None:
    made_kineto.write(made.run("1f1b"), tmp_path, drop_kernels=10_000)
    with pytest.raises(FormatError, match="no durations; profile with ProfilerActivity"):
        read(tmp_path)


@pytest.mark.parametrize("size", [70_000, 3 << 20])
def test_metadata_before_the_events(tmp_path: Path, size: int) -> None:
    """``prof.add_metadata_json`` writes a training configuration there, of any length."""
    run = made.run("1f1b")
    made_kineto.write(run, tmp_path, suffix=".json")
    more = json.dumps({"layers": [{"name": f"layer {at}"} for at in range(size // 22)]})
    for path in tmp_path.iterdir():
        text = path.read_text()
        path.write_text(text.replace('"traceEvents"', f'"config": {more}, "traceEvents"', 1))
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert (found.taken_for["rank"], found.hosts[0]) == ("distributedInfo.rank", "node-0")
    assert found.left_out == {}


def test_training_without_a_pipeline(tmp_path: Path) -> None:
    evaluates = "autograd::engine::evaluate_function: MmBackward0"
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at * 10.0, "dur": 5.0,
         "args": {"Sequence number": number}}
        for at, (name, number) in enumerate(
            [("aten::mm", 0), ("aten::mm", 1), (evaluates, 1), (evaluates, 0)] * 3
        )
    ]  # fmt: skip
    made.write(tmp_path / "rank0.json", {"schemaVersion": 1, "traceEvents": rows})
    with pytest.raises(FormatError, match="no pipeline in 1 file: no range is called like"):
        read(tmp_path)


def test_a_drawing_of_pytorch(tmp_path: Path) -> None:
    rows = [
        {"name": f"{rank}{kind}{unit}", "cat": "computation", "ph": "X", "pid": rank, "tid": rank,
         "ts": at, "dur": 1}
        for rank in range(2) for at, (kind, unit) in enumerate([("F", 0), ("B", 0)])
    ]  # fmt: skip
    made.write(tmp_path / "drawing.json", {"traceEvents": rows})
    with pytest.raises(FormatError, match="all 4 actions take 1, so it is a drawing"):
        read(tmp_path / "drawing.json")


def test_events_that_are_no_json(tmp_path: Path) -> None:
    run = made.run("1f1b")
    made_kineto.write(run, tmp_path, suffix=".json")
    path = tmp_path / "rank0_trace.json"
    text = path.read_text().replace('"aten::addmm"', '"aten::"quoted" \x07 addmm"')
    text = text.replace("void gemm<{lambda()#1}, {x}>", 'void "gemm"<{lambda()#1}, {x}>')
    path.write_text(text)
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(text)
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert found.left_out == {}


def test_a_window_that_opens_within_a_step() -> None:
    order = ["0F0", "0F1", "2F0", "2F1", "0F2", "2B0", "0F3", "2B1", "2F2", "0B0", "2F3", "0B1",
             "2B2", "2B3", "0B2", "0B3"]  # fmt: skip
    for lost in range(len(order)):
        keys = [actions_named(name) for name in (order * 3)[lost:]]
        whole = [16 - lost, 32 - lost]
        assert cuts_of(keys) == (whole if lost else [16, 32])
    last = [actions_named(name) for name in ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]]
    assert cuts_of((last * 2)[2:]) == [4]


def test_places() -> None:
    def group(words: str, *ranks: int) -> tuple[str, tuple[int, ...]]:
        return words, ranks

    left: Counter[str] = Counter()
    one = frozenset({0, 2}), frozenset({1, 3})
    # Ranks of one copy beside each other, and copies beside each other.
    assert places({r: one[r % 2] for r in range(4)}, {}, left) == {
        0: Place(0, 0), 1: Place(0, 1), 2: Place(1, 0), 3: Place(1, 1),
    }  # fmt: skip
    assert places({r: one[r // 2] for r in range(4)}, {}, left)[1] == Place(1, 0)
    # Both ranks of a bidirectional pipeline have the same stages: only the group tells.
    same = {r: frozenset({0, 1}) for r in range(2)}
    assert not left
    # A group of tensor-parallel ranks does the same work twice.
    groups = {r: [group("mesh_tp 1", r // 2 * 2, r // 2 * 2 + 1)] for r in range(4)}
    found = places({r: one[r // 2] for r in range(4)}, groups, left)
    assert found == {0: Place(0, 0), 2: Place(0, 1)}
    assert sum(left.values()) == 2
    # Megatron's groups of several kinds of parallelism are neither.
    groups = {r: [group("expert_tensor_model_pipeline_parallel_group", 0, 1, 2, 3),
                  group("tensor_and_data_parallel_group", 0, 1, 2, 3),
                  group("tensor_model_parallel_group", r),
                  group("pipeline_model_parallel_group", r % 2, r % 2 + 2)]
              for r in range(4)}  # fmt: skip
    assert places({r: one[r // 2] for r in range(4)}, groups, left) == {
        0: Place(0, 0), 1: Place(1, 0), 2: Place(0, 1), 3: Place(1, 1),
    }  # fmt: skip
    # Ranges that say no stage: their ranks in the group.
    unknown = {r: frozenset({-1}) for r in range(4)}
    groups = {r: [group("pipeline_parallel", r % 2, r % 2 + 2)] for r in range(4)}
    assert places(unknown, groups, left) == {
        0: Place(0, 0), 1: Place(1, 0), 2: Place(0, 1), 3: Place(1, 1),
    }  # fmt: skip
    assert places(unknown, {}, left)[3] == Place(0, 3)
    assert len(places(same, {}, left)) == 2


def test_a_pair_that_waits_between_its_actions(tmp_path: Path) -> None:
    """Its forward runs while the input of its backward is on the way: no wait is computing."""
    pair = "PP:(0F1;3B0)OVERLAP_F_B"
    rows = [
        ("user_annotation", "PP:0RECV_F1", 0, 1), ("user_annotation", "PP:3RECV_B0", 1, 1),
        ("user_annotation", "gloo:recv", 0, 12), ("user_annotation", "gloo:recv", 1, 29),
        ("user_annotation", pair, 2, 50), ("cpu_op", "aten::linear", 13, 10),
        ("cpu_op", "autograd::engine::evaluate_function: Backward", 31, 20),
    ]  # fmt: skip
    events = [
        {"ph": "X", "cat": cat, "name": name, "tid": 1, "pid": 1, "ts": 1000 + at, "dur": dur}
        for cat, name, at, dur in rows
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    left_out: Counter[str] = Counter()
    (computed, _), = trace_of(read_file(path, left_out), left_out).steps  # fmt: skip
    ((forward, backward),) = (one.spans for one in computed)
    microsecond = 1000
    assert [at - 1000 * microsecond for at in (*forward, *backward)] == [
        12 * microsecond, 23 * microsecond, 30 * microsecond, 52 * microsecond
    ]  # fmt: skip
