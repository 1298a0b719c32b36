"""Comparisons: the ranking, the headline, what is skipped and what readers are told."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import debubble as db
from debubble.core.costs import RUNTIMES
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule

MODEL = db.Costs.per_rank(F=2, I=2, W=2, O=5.5)


def names(result: db.Comparison) -> list[str]:
    return [row.name for row in result.rows]


def custom(*rows: str, m: int = 2, name: str = "mine") -> Schedule:
    return Schedule.from_text([row.split() for row in rows], Placement.linear(len(rows)), m, name)


def test_rows_are_ranked_by_makespan_and_carry_every_measure() -> None:
    result = db.compare(["1f1b", "zb-h1"], ranks=4, microbatches=8, costs=db.Costs(F=10, I=11, W=7))
    assert names(result) == ["zb-h1", "1f1b"]
    row = result.rows[1]
    assert row.makespan == 308.0
    assert row.bubble_ratio == pytest.approx(1 - 224 / 308)
    assert row.overhead == pytest.approx(84 / 224)
    assert row.stage_bubble_rate == pytest.approx(84 / 308)
    assert row.peak_activation == 4.0
    assert (row.parameter_copies, row.p2p_volume, row.weight_versions) == (1, 48.0, 1)
    assert row.fits
    assert row.ratio == row.makespan / result.rows[0].makespan
    assert row.schedule is row.timeline.schedule
    assert result.best is result.rows[0]
    assert result.timelines == [row.timeline for row in result.rows]


def test_schedules_above_the_memory_limit_come_last() -> None:
    result = db.compare(["gpipe", "eager-1f1b", "1f1b"], ranks=4, microbatches=8, memory=4)
    assert names(result) == ["1f1b", "eager-1f1b", "gpipe"]
    assert [row.fits for row in result.rows] == [True, False, False]
    assert [row.peak_activation for row in result.rows] == [4.0, 7.0, 8.0]
    assert result.best is not None
    assert result.best.name == "1f1b"


def test_the_ratio_is_to_the_best_within_memory() -> None:
    result = db.compare(["1f1b", "dualpipe"], ranks=8, microbatches=32, costs=MODEL, memory=8)
    assert names(result) == ["1f1b", "dualpipe"]
    assert [row.ratio for row in result.rows] == [1.0, pytest.approx(191 / 234)]


def test_a_limit_met_up_to_rounding_is_met() -> None:
    costs = db.Costs(activation=0.1)
    result = db.compare(["1f1b"], ranks=3, microbatches=6, costs=costs, memory=0.3)
    assert result.rows[0].peak_activation != 0.3
    assert result.rows[0].fits


def test_equal_times_are_ranked_by_memory() -> None:
    result = db.compare(
        ["gpipe", "1f1b"], ranks=4, microbatches=8, costs=db.Costs(F=0.1, I=0.1, W=0.1)
    )
    assert names(result) == ["1f1b", "gpipe"]
    assert result.headline == (
        "1f1b is fastest: 3.3, the same time as gpipe with less activation memory (4 against 8)"
    )


def test_rank_costs_compare_one_model() -> None:
    both = ["1f1b", "interleaved-1f1b"]
    same = db.compare(both, ranks=4, microbatches=8, chunks=2, costs=MODEL)
    assert [row.timeline.busy.tolist() for row in same.rows] == [[48.0] * 4] * 2
    assert same.notes == ()
    unsaid = db.compare(both, ranks=4, microbatches=8, chunks=2)
    assert [(row.name, row.makespan) for row in unsaid.rows] == [
        ("interleaved-1f1b", 28.5), ("1f1b", 33.0),
    ]  # fmt: skip
    assert unsaid.notes == ()
    assert unsaid.conventions()["times"] == "per rank ÷ chunks; F, I and W take 1 each"


@pytest.mark.parametrize("changed", [{"launch": 0.1}, *({"runtime": name} for name in RUNTIMES)])
def test_neither_a_runtime_nor_an_overhead_makes_another_model(changed: dict[str, Any]) -> None:
    for costs in (db.Costs(), db.Costs.per_rank(F=3, I=2, W=4)):
        costs = replace(costs, **changed)
        result = db.compare(["1f1b", "zb-v"], ranks=4, microbatches=8, costs=costs)
        assert result.ranked_by == "makespan"


@pytest.mark.parametrize(
    "costs", [db.Costs(F=1, I=1, W=1), db.Costs(F=1, B=2), db.Costs.per_rank(F=2, chunks=2)]
)
def test_schedules_of_different_models_are_ranked_by_overhead_and_none_wins(
    costs: db.Costs,
) -> None:
    result = db.compare(
        ["1f1b", "interleaved-1f1b"], ranks=4, microbatches=8, chunks=2, costs=costs
    )
    assert result.ranked_by == "overhead"
    assert result.best is None
    assert names(result) == ["interleaved-1f1b", "1f1b"]
    assert result.rows[0].makespan > result.rows[1].makespan
    assert [row.ratio for row in result.rows] == [None, None]
    assert result.headline.startswith(
        "the models differ (4 and 8 stages), so none is fastest; interleaved-1f1b has the smallest "
        "overhead: 18.75 % against "
    )
    (note,) = result.notes
    assert note.startswith("1f1b has 4 stages and interleaved-1f1b 8")
    assert "--rank-times" in note
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert (data["best"], data["ranked_by"], data["rows"][0]["ratio"]) == (None, "overhead", None)
    assert data["headline"] == result.headline
    styles: list[str] = []
    result.text(80, lambda text, name: styles.append(name) or text)
    assert "best" not in styles


def test_every_schedule_does_the_same_work_with_costs_per_rank() -> None:
    everything = [entry.name for entry in db.schedules()]
    costs = db.Costs.per_rank(F=[1, 2, 2, 4], I=2, W=1, head={"F": 1, "B": 2})
    result = db.compare(everything, ranks=4, microbatches=8, chunks=2, costs=costs)
    assert len(result.rows) > 30
    assert result.unlike == ()


def test_other_batches_and_clusters_have_no_fastest_schedule() -> None:
    costs = db.Costs(F=1, B=2)
    few, many = (db.make("1f1b", ranks=4, microbatches=m) for m in (8, 16))
    result = db.compare([few, many], costs=costs)
    assert result.headline == (
        "the batches differ (8 and 16 microbatches), so none is fastest; 1f1b #2 has the smallest "
        "overhead: 18.75 % against 37.50 % of 1f1b"
    )
    assert "microbatches over all iterations: 1f1b 8, 1f1b #2 16" in result.notes
    wide = db.make("interleaved-1f1b", ranks=2, microbatches=8, chunks=2)
    result = db.compare([few, wide], costs=costs)
    assert result.headline.startswith("the clusters differ (2 and 4 ranks), so none is fastest")
    # Twice the microbatches of half the size are the same work.
    half = db.simulate(many, db.Costs(F=0.5, B=1))
    result = db.compare([few, half], costs=costs)
    assert result.headline == "1f1b #2 is fastest: 28.5, 13.6 % less time than 1f1b (33)"


def test_timelines_of_other_models_have_no_fastest_schedule() -> None:
    made = db.make("1f1b", ranks=4, microbatches=8)
    slow, fast = (db.simulate(made, db.Costs(F=time, B=2 * time)) for time in (2, 1))
    result = db.compare([slow, fast])
    assert result.best is None
    assert "the models differ (one microbatch takes 12 and 24 of work)" in result.headline


def test_several_numbers_of_chunks_make_a_row_each() -> None:
    result = db.compare(
        ["1f1b", "interleaved-1f1b", "zb-v", ("hanayo", {"chunks": 2})],
        ranks=4, microbatches=8, chunks=[2, 4, 2],
    )  # fmt: skip
    assert sorted(names(result)) == [
        "1f1b", "hanayo (chunks=2)", "interleaved-1f1b (chunks=2)", "interleaved-1f1b (chunks=4)",
        "zb-v",
    ]  # fmt: skip
    found = {row.name: row.schedule.chunks for row in result.rows}
    assert found["interleaved-1f1b (chunks=4)"] == 4
    with pytest.raises(db.ParameterError, match="chunks is an empty list"):
        db.compare(["1f1b"], ranks=4, microbatches=8, chunks=[])


def test_every_rank_has_a_limit_of_its_own() -> None:
    both = ["1f1b", "gpipe"]
    result = db.compare(both, ranks=4, microbatches=8, memory=[4, 3, 2, 1])
    assert [(row.name, row.fits) for row in result.rows] == [("1f1b", True), ("gpipe", False)]
    assert result.headline == "1f1b is fastest within 4/3/2/1 activation units: 33"
    assert result.to_dict()["memory"] == [4, 3, 2, 1]
    tight = db.compare(both, ranks=4, microbatches=8, memory=[4, 3, 2, 0.5])
    assert tight.headline.startswith("no schedule fits within 4/3/2/0.5 activation units; 1f1b")
    with pytest.raises(db.ParameterError, match="memory has 2 limits for 4 ranks"):
        db.compare(both, ranks=4, microbatches=8, memory=[4, 3])
    other = db.make("1f1b", ranks=2, microbatches=8)
    skipped = db.compare([*both, other], ranks=4, microbatches=8, memory=[4, 3, 2, 1]).skipped
    assert skipped == (
        ("1f1b #2", "memory has 4 limits for 2 ranks; give one number, or one per rank"),
    )


def test_chunks_and_options_go_to_the_schedules_that_take_them() -> None:
    result = db.compare(
        ["1f1b", "interleaved-1f1b", ("interleaved-1f1b", {"chunks": 3})],
        ranks=4,
        microbatches=16,
        chunks=2,
        options={"group_size": 8},
        costs=MODEL,
    )
    found = {row.name: row.schedule for row in result.rows}
    assert found["1f1b"].chunks == 1
    assert found["interleaved-1f1b"].chunks == 2
    assert found["interleaved-1f1b"].options["group_size"] == 8
    assert found["interleaved-1f1b (chunks=3)"].chunks == 3
    assert result.skipped == ()


def test_costs_and_memory_reach_schedules_that_are_computed_from_them() -> None:
    seen: dict[str, Any] = {}

    @db.register(
        "test-computed",
        title="for a test",
        year=2026,
        source="here",
        placement=Placement.loop,
        chunks=1,
    )
    def computed(*, ranks: int, microbatches: int, costs: Any = None, memory: Any = None) -> Any:
        seen.update(costs=costs, memory=memory)
        return (db.make("gpipe", ranks=ranks, microbatches=microbatches).program(r)
                for r in range(ranks))  # fmt: skip

    from debubble.schedules import registry

    try:
        costs = db.Costs(F=3)
        db.compare(["test-computed"], ranks=2, microbatches=2, costs=costs, memory=7)
    finally:
        registry._ENTRIES.pop("test-computed")
    assert seen == {"costs": costs, "memory": 7}


def test_schedules_that_cannot_be_made_are_skipped_with_the_reason() -> None:
    result = db.compare(["1f1b", "dualpipe"], ranks=3, microbatches=8)
    assert names(result) == ["1f1b"]
    ((name, reason),) = result.skipped
    assert name == "dualpipe"
    assert "needs an even number of ranks" in reason
    assert f"skipped dualpipe: {reason}" in str(result)
    assert result.headline == "1f1b is fastest: 30"


def test_orders_that_are_handed_in_are_checked_first() -> None:
    good = custom("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", name="good")
    stuck = custom("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1", name="stuck")
    short = custom("0F0 0B0", "1F0 1B0", name="short")
    result = db.compare([short, stuck, good])
    assert names(result) == ["good"]
    stale = Schedule.from_text(
        [["0F0", "0F1", "0B0", "0OPT0", "0B1", "0OPT1"]],
        Placement.linear(1),
        1,
        "stale",
        iterations=2,
    )
    assert "optimizer step ahead of its backward" in db.compare([stale]).skipped[0][1]
    reasons = dict(result.skipped)
    assert "a deadlock" in reasons["stuck"]
    wrong = "its order is wrong: 0F1 and 0B1 are missing; add them on rank 0"
    assert reasons["short"].startswith(wrong)
    assert reasons["short"].endswith("(and 1 more)")


def test_offloaded_activations_are_a_convention() -> None:
    costs = db.Costs(F=1, B=2, host_bandwidth=2)
    sizes: dict[str, Any] = {"ranks": 2, "microbatches": 4, "costs": costs}
    result = db.compare(["1f1b", "gpipe"], offload="full", **sizes)
    assert result.conventions()["offload"].startswith("activations go to the host and back")
    assert "offload: activations go to the host" in str(result)
    kept = db.make("gpipe", ranks=2, microbatches=4)
    some = db.make("1f1b", ranks=2, microbatches=4, costs=costs, offload="full")
    assert db.compare([kept, some], costs=costs).conventions()["offload"].startswith("1f1b: ")
    assert "offload" not in db.compare(["1f1b"], **sizes).conventions()


def test_costs_that_do_not_fit_a_schedule_skip_it() -> None:
    costs = db.Costs(F=[1, 2, 3, 4])
    result = db.compare(
        ["1f1b", "interleaved-1f1b"], ranks=4, microbatches=8, chunks=2, costs=costs
    )
    assert names(result) == ["1f1b"]
    assert "F has 4 values for 8 stages" in dict(result.skipped)["interleaved-1f1b"]


def test_the_same_name_twice_gets_a_number() -> None:
    one = custom("0F0 0F1 0B0 0B1")
    two = custom("0F0 0B0 0F1 0B1")
    assert sorted(names(db.compare([one, two, one]))) == ["mine", "mine #2", "mine #3"]


def test_misspelt_names_and_options_are_refused_with_the_nearest() -> None:
    with pytest.raises(db.ParameterError, match="did you mean '1f1b'"):
        db.compare(["1f1"], ranks=4, microbatches=8)
    with pytest.raises(db.ParameterError, match="did you mean 'group_size'"):
        db.compare(
            ["interleaved-1f1b"], ranks=4, microbatches=8, options={"group_sise": 4}
        )  # fmt: skip
    with pytest.raises(db.ParameterError, match="none of these schedules has options"):
        db.compare(["1f1b"], ranks=4, microbatches=8, options={"group_size": 4})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schedules": []}, "at least one"),
        ({"schedules": ["1f1b"], "microbatches": 8}, "'1f1b' needs ranks"),
        ({"schedules": ["1f1b"], "ranks": 8}, "'1f1b' needs microbatches"),
        ({"schedules": ["1f1b"], "ranks": 4, "microbatches": 8, "memory": 0}, "memory is 0"),
        ({"schedules": [("1f1b", "x")], "ranks": 4, "microbatches": 8}, "cannot compare"),
        ({"schedules": [7]}, "cannot compare 7"),
    ],
)
def test_questions_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(db.ParameterError, match=message):
        db.compare(**arguments)


def test_the_headline_compares_with_the_first_schedule_asked_for() -> None:
    asked = ["1f1b", "dualpipe-v", "gpipe"]
    result = db.compare(
        asked, ranks=8, microbatches=32, costs=MODEL, memory=32, time_unit="ms"
    )  # fmt: skip
    assert result.headline == (
        "dualpipe-v is fastest within 32 activation units: 192.5 ms, 17.7 % less time than 1f1b "
        "(234 ms)"
    )
    assert [row.makespan for row in result.rows[:2]] == [192.5, 234.0]
    other = db.compare(asked[2:] + asked[:2], ranks=8, microbatches=32, costs=MODEL)
    assert other.headline.endswith("17.7 % less time than gpipe (234)")
    # Asked for first, the best is held against the next in the ranking instead.
    first = db.compare(asked[1:] + asked[:1], ranks=8, microbatches=32, costs=MODEL)
    assert first.headline.endswith("17.7 % less time than 1f1b (234)")


def test_the_headline_does_not_compare_with_what_does_not_fit() -> None:
    asked = ["gpipe", "1f1b", "zb-h1"]
    result = db.compare(asked, ranks=8, microbatches=32, memory=8)
    assert names(result) == ["zb-h1", "1f1b", "gpipe"]
    assert result.headline.endswith("less time than 1f1b (117)")


def test_the_headline_when_nothing_fits_or_nothing_ran() -> None:
    tight = db.compare(["gpipe", "1f1b"], ranks=4, microbatches=8, memory=1)
    assert tight.best is None
    assert tight.headline == (
        "no schedule fits within 1 activation unit; 1f1b comes nearest, with 4 activation units"
    )
    none = db.compare(["dualpipe"], ranks=3, microbatches=8)
    assert none.headline == "no schedule could be compared"
    assert none.best is None
    assert str(none).startswith(none.headline)
    assert none.to_dict()["best"] is None


def test_memory_is_named_in_the_unit_of_the_costs() -> None:
    costs = db.Costs(activation=1.5)
    plain = db.compare(["1f1b"], ranks=4, microbatches=8, costs=costs, memory=6)
    assert plain.headline == "1f1b is fastest within 6 of activation memory: 33"
    named = db.compare(
        ["1f1b"], ranks=4, microbatches=8, costs=costs, memory=5, memory_unit="GB"
    )  # fmt: skip
    assert named.headline == "no schedule fits within 5 GB; 1f1b comes nearest, with 6 GB"
    assert named.conventions()["memory_unit"] == "GB"


def test_different_work_and_training_rules_are_noted() -> None:
    mine = custom("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    result = db.compare(["pipedream-2bw", mine], ranks=4, microbatches=8, costs=MODEL)
    assert any(note.startswith("microbatches") and "mine 2" in note for note in result.notes)
    assert any(note.startswith("ranks") and "mine 2" in note for note in result.notes)
    assert any(note.startswith("pipedream-2bw: trains with weights") for note in result.notes)


def test_progress_is_told_before_each_schedule() -> None:
    calls: list[tuple[str, int, int]] = []
    db.compare(
        ["1f1b", "dualpipe", "gpipe"],
        ranks=3,
        microbatches=8,
        progress=lambda *call: calls.append(call),
    )
    assert calls == [("1f1b", 0, 3), ("dualpipe", 1, 3), ("gpipe", 2, 3)]


def test_the_mode_of_transfers_is_used() -> None:
    costs = db.Costs(p2p=1)
    free, busy = (
        db.compare(["1f1b"], ranks=4, microbatches=8, costs=costs, p2p_mode=mode).rows[0]
        for mode in ("overlapped", "blocking")
    )
    assert busy.timeline.mode == "blocking"
    assert busy.makespan > free.makespan


def test_json_has_rows_headline_and_conventions() -> None:
    result = db.compare(
        ["gpipe", "1f1b", "dualpipe"], ranks=3, microbatches=8, memory=4, time_unit="ms"
    )
    data = result.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["best"] == "1f1b"
    assert data["headline"] == result.headline
    assert [row["name"] for row in data["rows"]] == ["1f1b", "gpipe"]
    assert data["rows"][0]["fits"] is True
    assert data["skipped"][0]["name"] == "dualpipe"
    words = data["conventions"]
    assert words["time_unit"] == "ms"
    assert words["bubble_ratio"].startswith("idle share of rank-time")


def test_the_text_is_an_aligned_table_that_says_what_its_numbers_are() -> None:
    result = db.compare(["gpipe", "1f1b"], ranks=4, microbatches=8, memory=4, time_unit="ms")
    lines = str(result).splitlines()
    assert lines[0] == result.headline
    head = next(index for index, line in enumerate(lines) if line.startswith("schedule"))
    rows = [" ".join(line.split()) for line in lines[head + 1 : head + 3]]
    assert rows == [
        "1f1b 33 1.000 27.27 % 37.50 % 4 1 48 yes",
        "gpipe 33 1.000 27.27 % 37.50 % 8 1 48 no",
    ]
    assert lines[head].index("[ms]") + 4 == lines[head + 1].index("33") + 2
    assert "times per rank ÷ chunks, F = I = W = 1; memory in activation units; " in str(result)


@pytest.mark.parametrize("width", [60, 68, 80, 120])
def test_a_narrow_terminal_folds_names_and_keeps_numbers_whole(width: int) -> None:
    result = db.compare(
        ["1f1b", ("interleaved-1f1b", {"chunks": 4, "group_size": 8})],
        ranks=8,
        microbatches=32,
        costs=MODEL,
    )
    lines = result.text(width).splitlines()
    assert max(map(len, lines)) <= width
    first = next(line for line in lines if "1.156" in line or line.startswith("1f1b"))
    cells = ["1f1b", "234", "1.156", "17.95 %", "21.88 %", "8", "1", "448"]
    other = ["202.5", "1.000", "5.19 %", "5.47 %", "9.75", "1", "1,984"]
    columns = ["", "", "", "", "overhead", "", "parameter copies", "p2p volume"]
    gone = [bool(name) and name in _no_room(lines) for name in columns]
    assert sum(gone) == {60: 3, 68: 3, 80: 1, 120: 0}[width]

    def left(texts: list[str]) -> str:
        places = gone[-len(texts) :]
        return " ".join(text for text, out in zip(texts, places, strict=True) if not out)

    assert " ".join(first.split()) == left(cells)
    assert any(" ".join(line.split()).endswith(left(other)) for line in lines)
    assert not any("…" in line for line in lines)


def _no_room(lines: list[str]) -> str:
    """The sentence that names the columns that were left out."""
    text = " ".join(lines)
    return text.partition("no room for ")[2].partition(":")[0]


def test_peaks_of_a_cost_file_in_bytes_are_written_in_one_readable_unit() -> None:
    costs = db.Costs(F=1, B=2, activation=3_334_144, time_unit="ms", memory_unit="bytes")
    result = db.compare(["gpipe", "1f1b"], ranks=4, microbatches=8, costs=costs, memory=2e7)
    text = str(result)
    assert "1f1b is fastest within 19.07 MiB: 33 ms" in text
    assert "[MiB]" in text
    assert [line.split()[7] for line in text.splitlines() if line.startswith(("1f1b ", "gpipe"))][
        1:
    ] == ["12.72", "25.44"]
    assert result.to_dict()["units"] == {"time": "ms", "memory": "bytes"}
    assert result.to_dict()["rows"][0]["peak_activation"] == 4 * 3_334_144
    assert '<th scope="col">peak activation [MiB]</th>' in result._table_html()


def test_pictures_are_written_by_the_view_with_the_headline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[Any] = []
    view = SimpleNamespace(
        save=lambda timelines, path, **more: calls.append((timelines, path, more))
    )
    monkeypatch.setitem(sys.modules, "debubble.view.files", view)
    result = db.compare(["1f1b"], ranks=2, microbatches=2, memory=3, time_unit="ms")
    result.save(tmp_path / "a.png")
    result.save(tmp_path / "b.txt", title="mine")
    result.save(tmp_path / "c.html")
    assert [path.name for _, path, _ in calls] == ["a.png", "b.txt", "c.html"]
    assert all(timelines == result.timelines for timelines, _, _ in calls)
    png, text, page = (options for _, _, options in calls)
    assert png == {"title": result.headline, "time_unit": "ms", "limit": 3}
    assert text == {"title": "mine", "time_unit": "ms"}
    assert '<th scope="col">overhead</th>' in page["table_html"]


def test_notebooks_show_a_table_with_everything_escaped_and_the_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = SimpleNamespace(cell=lambda timelines, **_: f"<svg>{len(timelines)} pictures</svg>")
    monkeypatch.setitem(sys.modules, "debubble.view.page", page)
    html = db.compare([custom("0F0 0F1 0B0 0B1", name="<mine>")])._repr_html_()
    assert "&lt;mine&gt;" in html
    assert "<mine>" not in html
    assert html.count("<tr>") == 2
    assert html.endswith("<svg>1 pictures</svg>")
    assert "<td>6</td>" in html


def test_recomputes_that_differ_are_noted() -> None:
    plain = db.make("1f1b", ranks=4, microbatches=8)
    result = db.compare([plain, db.make("1f1b", ranks=4, microbatches=8, recompute=[0])])
    assert "the recomputes differ: 1f1b none, 1f1b #2 recompute on stage 0" in result.notes
    with pytest.raises(db.ParameterError, match="recompute_at is 'bubble'; did you mean 'bubbles'"):
        db.compare([plain], recompute="full", recompute_at="bubble")


@pytest.mark.parametrize("costs", [{"activation": 1}, {"kv": 1}, {"unshard": 2, "reduce_grad": 2}])
def test_memory_per_action_is_of_another_model_with_more_stages(costs: dict[str, float]) -> None:
    asked = {"ranks": 4, "microbatches": 8}
    apart = db.compare(["1f1b", "zb-v"], **asked, costs=db.Costs(**costs))
    assert apart.unlike == ("the models differ (4 and 8 stages)",)
    assert apart.ranked_by == "overhead"
    together = db.compare(["1f1b", "zb-v"], **asked, costs=db.Costs.per_rank(**costs))
    assert together.unlike == ()
    assert " is fastest" in together.headline
