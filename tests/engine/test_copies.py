"""Activations that leave their rank and come back: times, memory, shared links, checks, files."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import CostError, Costs, Kind, ParameterError, Placement, Schedule, simulate
from debubble.analysis.metrics import conventions
from debubble.analysis.summary import report
from debubble.core.actions import COPY_KINDS, kinds_of
from debubble.engine.graph import compile_graph
from debubble.interchange.cost_files import load_costs
from debubble.interchange.schedule_json import from_json, to_json
from debubble.interchange.torch_csv import to_csv
from debubble.interchange.trace_events import trace_text
from debubble.lowering.transfers import add_transfers
from debubble.view.bars import bars_of
from debubble.view.terminal import draw
from tests import oracle
from tests.engine.test_laws import by_position
from tests.strategies import ENTRIES, costs_for, made, with_copies

LONE = Placement.linear(1)


def one_rank(text: str, microbatches: int, **fields: object) -> Schedule:
    return Schedule.from_text([text.split()], LONE, microbatches, **fields)


def spans(timeline: db.Timeline) -> dict[str, tuple[float, float]]:
    names = [cell for row in timeline.schedule.rows() for cell in row]
    return dict(
        zip(names, zip(timeline.start.tolist(), timeline.end.tolist(), strict=True), strict=True)
    )


def test_copies_run_beside_the_compute_one_by_one_and_backwards_wait_for_them() -> None:
    schedule = one_rank("0F0 0OFFLOAD0 0F1 0OFFLOAD1 0RELOAD0 0I0 0W0 0RELOAD1 0I1 0W1", 2)
    timeline = simulate(schedule, Costs(host_bandwidth=0.5))
    assert spans(timeline) == {
        "0F0": (0, 1), "0OFFLOAD0": (1, 3), "0F1": (1, 2), "0OFFLOAD1": (3, 5),
        "0RELOAD0": (5, 7), "0I0": (7, 8), "0W0": (8, 9), "0RELOAD1": (9, 11), "0I1": (11, 12),
        "0W1": (12, 13),
    }  # fmt: skip
    assert timeline.busy.tolist() == [6]
    assert [str(step.action) for step in timeline.critical_path()][:4] == [
        "0F0", "0OFFLOAD0", "0OFFLOAD1", "0RELOAD0",
    ]  # fmt: skip
    assert timeline.sensitivity()["RELOAD of stage 0"] == 2
    times, held = timeline.memory_curve(0)
    assert [*zip(times.tolist(), held.tolist(), strict=True)] == [
        (0, 1), (1, 2), (3, 1), (5, 0), (5, 1), (9, 0), (9, 1), (13, 0),
    ]  # fmt: skip
    assert timeline.peak_activation.tolist() == [2]


def test_a_share_moves_and_i_keeps_the_rest_for_w() -> None:
    schedule = one_rank("0F0 0OFFLOAD0 0RELOAD0 0I0 0W0", 1)
    costs = Costs(activation=8, offload_share=0.75, kept_for_weight=0.25, host_bandwidth=3)
    times, held = simulate(schedule, costs).memory_curve(0)
    assert times.tolist() == [0, 3, 3, 6, 7]
    assert held.tolist() == [8, 2, 8, 2, 0]


def test_without_a_bandwidth_copies_are_free() -> None:
    schedule = one_rank("0F0 0OFFLOAD0 0F1 0OFFLOAD1 0RELOAD0 0B0 0RELOAD1 0B1", 2)
    timeline = simulate(schedule)
    assert timeline.makespan == 6
    assert timeline.peak_activation.tolist() == [1]


def test_what_goes_to_another_rank_is_held_there_from_start_to_end() -> None:
    rows = [["0F0", "0OFFLOAD0", "0RELOAD0", "0B0"], ["1F0", "1B0"]]
    schedule = Schedule.from_text(rows, Placement.linear(2), 1, offload_to=(1, None))
    costs = Costs(p2p=[[0, 0.5], [0.25, 0]], bandwidth=2, F=2)
    timeline = simulate(schedule, costs)
    assert spans(timeline)["0OFFLOAD0"] == (2, 3)
    assert spans(timeline)["0RELOAD0"] == (3, 3.75)
    assert timeline.memory_curve(0)[1].tolist() == [1, 0, 1, 0]
    assert timeline.memory_curve(1)[0].tolist() == [2, 2.5, 3.75, 6.5]
    assert timeline.memory_curve(1)[1].tolist() == [1, 2, 1, 0]
    assert timeline.peak_activation.tolist() == [1, 2]


@pytest.mark.slow
@settings(max_examples=80)
@given(data=st.data())
def test_copies_anywhere_in_any_schedule_equal_the_oracle(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(ENTRIES))
    schedule = data.draw(made(entry, ranks=6, microbatches=8, chunks=2))
    if not np.isin(kinds_of(schedule.actions), COPY_KINDS).any():
        schedule = data.draw(with_copies(schedule))
    costs = data.draw(costs_for(schedule))
    expected = oracle.simulate(schedule, costs)
    timeline = simulate(schedule, costs)
    assert timeline.end.tolist() == by_position(schedule, expected.end)
    assert timeline.start.tolist() == by_position(schedule, expected.start)
    assert db.check(schedule, costs=costs).ok
    lowered = add_transfers(schedule)
    compute = ~np.isin(kinds_of(lowered.actions), (6, 7, 8, 9))
    assert simulate(lowered, costs).end[compute].tolist() == timeline.end.tolist()


@settings(max_examples=60)
@given(data=st.data())
def test_peaks_equal_what_is_held_at_any_event(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(ENTRIES))
    schedule = data.draw(made(entry, ranks=4, microbatches=6, chunks=2))
    if not np.isin(kinds_of(schedule.actions), COPY_KINDS).any():
        schedule = data.draw(with_copies(schedule))
    time = st.integers(1, 16).map(lambda n: n / 4)
    size = data.draw(st.lists(time, min_size=schedule.stages, max_size=schedule.stages))
    costs = Costs(
        F=data.draw(time), I=data.draw(time), W=data.draw(time), activation=size,
        kept_for_weight=data.draw(st.sampled_from([0, 0.5, 1])),
        offload_share=data.draw(st.sampled_from([0.25, 1])), host_bandwidth=data.draw(time),
        bandwidth=data.draw(time), p2p=data.draw(st.sampled_from([0, 0.25])),
    )  # fmt: skip
    timeline = simulate(schedule, costs)
    peaks = oracle.peaks_by_time(schedule, costs, oracle.simulate(schedule, costs))
    assert timeline.peak_activation.tolist() == pytest.approx(peaks)
    assert np.allclose(timeline.memory.left, 0, atol=1e-9)
    for rank in range(schedule.ranks):
        assert timeline.memory_curve(rank)[1].max(initial=0) == pytest.approx(peaks[rank])


@settings(max_examples=40)
@given(data=st.data(), mode=st.sampled_from(["overlapped", "channel", "blocking"]))
def test_ranks_that_share_a_link_take_turns_and_never_deadlock(
    data: st.DataObject, mode: str
) -> None:
    entry = data.draw(st.sampled_from(ENTRIES))
    schedule = data.draw(made(entry, ranks=5, microbatches=8, chunks=2))
    if not np.isin(kinds_of(schedule.actions), COPY_KINDS).any():
        schedule = data.draw(with_copies(schedule))
    costs = Costs(F=2, I=1, W=3, activation=1, host_bandwidth=data.draw(st.sampled_from([0.5, 4])))
    alone = simulate(schedule, costs, mode)
    shared = simulate(schedule, Costs(**vars(costs) | {"host_link_shared_by": 2}), mode)
    assert (shared.end >= alone.end).all()
    on_link: dict[int, list[tuple[float, float]]] = {}
    for position in np.flatnonzero(np.isin(kinds_of(schedule.actions), COPY_KINDS)).tolist():
        rank = schedule.rank_of(position)
        if schedule.copy_targets[rank] is None:
            span = (float(shared.start[position]), float(shared.end[position]))
            on_link.setdefault(rank // 2, []).append(span)
    for copies in on_link.values():
        for before, after in pairwise(sorted(copies)):
            assert before[1] <= after[0]


def test_neighbours_in_step_take_turns_on_their_link() -> None:
    rows = [
        [f"{rank}{part}" for part in ("F0", "OFFLOAD0", "F1", "OFFLOAD1", "RELOAD0", "B0")]
        + [f"{rank}RELOAD1", f"{rank}B1"]
        for rank in range(2)
    ]
    schedule = Schedule.from_text(rows, Placement.linear(2), 2)
    timeline = simulate(schedule, Costs(host_bandwidth=1, host_link_shared_by=2))
    copies = [name for name in spans(timeline) if "LOAD" in name]
    assert sorted(copies, key=lambda name: spans(timeline)[name]) == [
        "0OFFLOAD0", "1OFFLOAD0", "0OFFLOAD1", "0RELOAD0", "1OFFLOAD1", "1RELOAD0", "1RELOAD1",
        "0RELOAD1",
    ]  # fmt: skip
    # Costs can change what is shared after compiling.
    graph = compile_graph(schedule)
    assert db.engine.timeline.evaluate_graph(graph, timeline.table.costs).makespan == (
        timeline.makespan
    )


def test_checks_say_what_is_wrong_with_copies() -> None:
    def problems(text: str) -> list[tuple[str, str]]:
        return [(p.code, str(p)) for p in db.check(one_rank(text, 1)).problems]

    assert problems("0F0 0OFFLOAD0 0RELOAD0 0B0") == []
    assert problems("0F0 0OFFLOAD0 0B0") == [
        (
            "missing",
            "0RELOAD0 is missing, the other half of 0OFFLOAD0; "
            "add it on rank 0, or remove 0OFFLOAD0",
        )
    ]
    lone = problems("0F0 0RELOAD0 0B0")[0][1]
    assert lone.startswith("0OFFLOAD0 is missing, the other half of 0RELOAD0")
    assert problems("0OFFLOAD0 0F0 0RELOAD0 0B0") == [
        (
            "order",
            "rank 0, action 0: 0OFFLOAD0 needs 0F0, which comes later, as action 1; "
            "move 0F0 before 0OFFLOAD0",
        )
    ]
    assert problems("0F0 0RELOAD0 0OFFLOAD0 0B0")[0][0] == "order"
    assert "0B0 needs 0RELOAD0" in problems("0F0 0OFFLOAD0 0B0 0RELOAD0")[0][1]
    assert problems("0F0 0OFFLOAD0 0RELOAD0 0RELOAD0 0B0") == [
        (
            "duplicate",
            "rank 0, action 3: 0RELOAD0 runs again; it runs on rank 0 as action 2; "
            "remove one of them",
        )
    ]


def test_a_memory_limit_is_checked_with_the_times_of_the_copies() -> None:
    schedule = db.make("pipeoffload-full", ranks=4, microbatches=16)
    free, slow = Costs(), Costs(host_bandwidth=0.1)
    assert db.check(schedule, memory=1.5, costs=free).ok
    report = db.check(schedule, memory=1.5, costs=slow)
    assert {problem.code for problem in report.problems} == {"memory"}
    assert "more than the limit of 1.5, while activations leave their ranks" in str(report)
    peak = simulate(schedule, slow).peak_activation.tolist()
    assert report.peak_activation is not None
    assert report.peak_activation.tolist() == peak


def test_files_keep_where_copies_go() -> None:
    schedule = db.make("bpipe", ranks=6, microbatches=8)
    assert schedule.offload_to == (5, 4, 3, None, None, None)
    again = from_json(to_json(schedule), "x.json")
    assert again == schedule
    assert again.offload_to == schedule.offload_to
    assert again != Schedule.from_text(schedule.rows(), schedule.placement, 8)
    data = json.loads(to_json(schedule))
    assert "offload_to" not in json.loads(to_json(db.make("1f1b", ranks=2, microbatches=2)))
    for value, message in (
        ([1], "offload_to has 1 entries for 6 ranks; give one per rank, or none"),
        ([0, None, None, None, None, None], r"offload_to\[0\] is 0; give another rank from 0 to 5"),
        ([6, None, None, None, None, None], r"offload_to\[0\] is 6"),
        ("5", "offload_to is '5'"),
        ([True, None, None, None, None, None], r"offload_to\[0\] is"),
    ):
        with pytest.raises(db.FormatError, match=message):
            from_json(json.dumps(data | {"offload_to": value}), "x.json")
    for targets in ((1,), (0, None), (None, 2)):
        with pytest.raises(ParameterError, match="offload_to"):
            Schedule.from_text([["0F0"], []], Placement.linear(2), 1, offload_to=targets)


def test_pytorch_cannot_say_copies() -> None:
    with pytest.raises(ParameterError, match="PyTorch's schedules keep every activation on its"):
        to_csv(db.make("pipeoffload-half", ranks=4, microbatches=4))


def test_traces_show_copies_on_a_thread_of_their_own() -> None:
    for name, thread in (("pipeoffload-half", "host copy"), ("bpipe", "copies to rank 7")):
        timeline = simulate(db.make(name, ranks=8, microbatches=8), Costs(host_bandwidth=1))
        events = json.loads("".join(trace_text(timeline)))["traceEvents"]
        named = [e for e in events if e["name"] == "thread_name" and e["pid"] == 0]
        assert [e["args"]["name"] for e in named] == ["compute", thread]
        copies = [e for e in events if e["ph"] == "X" and e["cat"] in ("OFFLOAD", "RELOAD")]
        assert len(copies) == np.isin(kinds_of(timeline.schedule.actions), COPY_KINDS).sum()
        assert {e["tid"] for e in copies} == {named[1]["tid"]}


def test_costs_of_copies_are_checked_and_read(tmp_path: pytest.TempPathFactory) -> None:
    for values, message in (
        ({"host_bandwidth": 0}, "host_bandwidth is 0"),
        ({"offload_share": 1.5}, "offload_share is 1.5; it is a share between 0 and 1"),
        ({"offload_share": {0: 0.5, 1: 2}}, r"offload_share\[1\] is 2"),
        ({"host_link_shared_by": 3}, "a link to the host serves 1 or 2 ranks"),
    ):
        with pytest.raises(CostError, match=message):
            Costs(**values)
    file = tmp_path / "x.yaml"
    file.write_text(
        "times: {F: 1, B: 2, host_bandwidth: 4, host_link_shared_by: 2}\n"
        "memory: {offload_share: 0.5}\n"
    )
    costs = load_costs(file).costs
    assert (costs.host_bandwidth, costs.host_link_shared_by, costs.offload_share) == (4, 2, 0.5)
    assert costs.scaled(2).host_bandwidth == 2
    table = costs.resolve(Placement.linear(2))
    assert table.copy(Kind.OFFLOAD, 0, None) == 0.125


def test_results_say_what_copies_do() -> None:
    plain = simulate(db.make("gis-h", ranks=4, microbatches=8))
    away = simulate(db.make("pipeoffload-half", ranks=4, microbatches=8))
    opposite = simulate(db.make("bpipe", ranks=4, microbatches=8))
    shared = simulate(away.schedule, Costs(host_link_shared_by=2))
    assert "offload" not in conventions(plain)
    assert conventions(away)["offload"].startswith("activations go to the host and back: one str")
    assert "to another rank and back" in conventions(opposite)["offload"]
    assert "one link for 2 ranks" in conventions(shared)["offload"]
    for words in (report(away), draw(away, color=False, width=200)):
        assert "offload: activations go to the host and back" in words
    # Copies have no bar: what is drawn is the compute.
    assert len(bars_of(away).start) == np.count_nonzero(kinds_of(away.schedule.actions) < 6)


def test_the_critical_path_is_drawn_without_copies() -> None:
    timeline = simulate(
        db.make("pipeoffload-full", ranks=2, microbatches=4), Costs(host_bandwidth=0.1)
    )
    assert any(step.action.kind in COPY_KINDS for step in timeline.critical_path())
    axes = timeline.plot(critical=True)
    (frames,) = [c for c in axes.collections if c.get_gid() == "critical"]
    drawn = [s for s in timeline.critical_path() if s.action.kind not in COPY_KINDS]
    assert len(frames.get_paths()[0].vertices) == 5 * len(drawn)
