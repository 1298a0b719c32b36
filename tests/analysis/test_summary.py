"""What a simulation says, as data and as text."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble.analysis import summary as module
from debubble.analysis.measures import boundary_transfers
from debubble.analysis.summary import report, summary
from debubble.core.actions import Kind
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.core.units import number, percent
from debubble.engine.modes import P2P_MODES
from debubble.schedules.forms import FormValue
from debubble.schedules.registry import ClosedForm, Entry, schedules
from tests import oracle, strategies
from tests.small import smallest


def of(name: str, costs: db.Costs | None = None, **parameters: Any) -> dict[str, Any]:
    parameters = {"ranks": 4, "microbatches": 8} | parameters
    mode = parameters.pop("p2p_mode", "overlapped")
    return summary(db.simulate(db.make(name, **parameters), costs, mode))


def test_every_promised_key_with_its_number() -> None:
    data = of("1f1b", db.Costs(F=10, I=11, W=7))
    assert data["schedule"] == "1f1b"
    sizes = ("ranks", "chunks", "stages", "microbatches", "iterations", "actions", "copies")
    assert [data[key] for key in sizes] == [4, 1, 4, 8, 1, 64, 1]
    assert data["makespan"] == 308.0
    assert data["ideal"] == 8 * 28
    assert data["stage_time"] == [308.0, 280.0, 252.0, 224.0]
    assert data["busy"] == [224.0] * 4
    assert data["bubble_ratio"] == pytest.approx(1 - 224 / 308)
    assert data["stage_bubble_rate"] == pytest.approx(84 / 308)
    assert data["overhead"] == pytest.approx(84 / 224)
    assert data["peak_activation"] == [4.0, 3.0, 2.0, 1.0]
    assert data["p2p_transfers"] == 2 * 3 * 8
    assert data["p2p_volume"] == 48.0
    assert data["parameter_copies"] == 1
    assert json.loads(json.dumps(data, allow_nan=False)) == data


@pytest.mark.parametrize(
    ("name", "transfers", "copies"),
    [
        ("gpipe", 2 * 3 * 8, 1),
        ("interleaved-1f1b", 2 * 7 * 8, 1),
        # A V turns on the last rank: seven boundaries, one of them within a rank.
        ("dualpipe-v", 2 * 6 * 8, 1),
        ("dualpipe", 2 * 3 * 8, 2),
        ("pipedream-2bw", 2 * 3 * 8, 2),
    ],
)
def test_transfers_and_copies_of_the_weights(name: str, transfers: int, copies: int) -> None:
    chunks = {"chunks": 2} if name == "interleaved-1f1b" else {}
    data = of(name, **chunks)
    assert data["p2p_transfers"] == transfers
    assert data["parameter_copies"] == copies


def test_volume_counts_message_sizes_and_says_so() -> None:
    data = of("1f1b", db.Costs(message=2.5, bandwidth=10))
    assert data["p2p_volume"] == 48 * 2.5
    assert data["p2p_transfers"] == 48
    assert "message size of 2.5" in data["conventions"]["p2p_volume"]
    assert "message" not in of("1f1b")["conventions"]["p2p_volume"]


def test_only_transfers_that_happen_are_counted() -> None:
    rows = [["0F0"], ["1F0"], ["2F0", "2B0"]]
    assert boundary_transfers(Schedule.from_text(rows, Placement.linear(3), 1)) == 3


def test_each_copy_has_its_own_boundaries() -> None:
    # Copy 0 crosses once, from stage 1 to 2; copy 1 twice.
    placement = Placement.explicit([[0, 0, 1], [1, 0, 1]])
    rows = [["0F0", "1F0", "1F1"], ["0F1", "2F0", "2F1"]]
    assert boundary_transfers(Schedule.from_text(rows, placement, 2)) == 3
    assert boundary_transfers(Schedule.from_text([rows[0][:2], ["2F0"]], placement, 2)) == 1


@settings(max_examples=40)
@given(st.data())
def test_transfers_equal_a_count_action_by_action(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(strategies.ENTRIES))
    schedule = data.draw(strategies.made(entry, ranks=6, microbatches=12, chunks=3))
    counted: Counter[bool] = Counter()
    for rank, program in enumerate(schedule):
        for stage, kind, unit in program:
            target = {Kind.F: stage + 1, Kind.I: stage - 1, Kind.B: stage - 1}.get(kind, -1)
            if 0 <= target < schedule.stages:
                copy = oracle.copy_of(schedule, unit)
                counted[schedule.placement.table[copy][target] != rank] += 1
    assert boundary_transfers(schedule) == counted[True]


def test_closed_forms_stand_beside_what_was_simulated() -> None:
    forms = of("1f1b", db.Costs(F=10, B=18))["closed_forms"]
    assert forms[0] == {
        "quantity": "makespan",
        "formula": "(m + p − 1)(F + B)",
        "accuracy": "exact",
        "condition": "no latency",
        "value": 308.0,
        "terms": [],
        "simulated": 308.0,
        "difference": 0.0,
    }
    assert forms[1]["value"] == [4.0, 3.0, 2.0, 1.0]
    assert forms[1]["difference"] == [0.0] * 4


def test_rounding_is_no_difference() -> None:
    form = of("1f1b", db.Costs(F=0.1, B=0.2), microbatches=77)["closed_forms"][0]
    assert form["simulated"] != form["value"]
    assert form["difference"] == 0.0


def custom(*forms: tuple[str, float | list[float], str]) -> Any:
    values = [
        FormValue(ClosedForm(quantity, "f", lambda *_: 0.0, accuracy), value)
        for quantity, value, accuracy in forms
    ]
    return lambda *_: values


def test_bounds_one_number_per_schedule_and_unknown_quantities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forms = custom(
        ("makespan", 40.0, "upper bound"),
        ("stage_time", 30.0, "lower bound"),
        ("peak_activation", 4.0, "exact"),
        ("p2p_volume", 50.0, "approximation"),
        ("coffee", 3.0, "exact"),
    )
    monkeypatch.setattr(module, "closed_forms", forms)
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8))
    found = {form["quantity"]: form for form in summary(timeline)["closed_forms"]}
    assert {key: form["difference"] for key, form in found.items()} == {
        "makespan": -7.0,
        "stage_time": 3.0,
        "peak_activation": 0.0,
        "p2p_volume": -2.0,
        "coffee": None,
    }
    assert found["stage_time"]["simulated"] == 33.0
    assert found["coffee"]["simulated"] is None
    text = report(timeline)
    assert "coffee" in text
    assert "upper bound" in text
    assert "-7" in text


def test_forms_of_time_are_left_out_where_they_do_not_speak() -> None:
    busy_links = of("gpipe", db.Costs(p2p=0.5), p2p_mode="channel")
    assert [form["quantity"] for form in busy_links["closed_forms"]] == ["peak_activation"]
    (near,) = busy_links["nearest_forms"]
    assert near["reason"] == "transfers are p2p channel"
    assert near["nearest"] == "with transfers that overlap"
    assert near["value"] == 33 + 2 * 3 * 0.5
    assert len(of("gpipe", db.Costs(p2p=0.5))["closed_forms"]) == 2
    stepped = of("gpipe", db.Costs(OPT=2), iterations=1)
    assert [form["quantity"] for form in stepped["closed_forms"]] == ["peak_activation"]
    (near,) = stepped["nearest_forms"]
    assert near["reason"] == "optimizer steps take time"
    assert (near["value"], near["difference"]) == (33.0, 2.0)
    free = of("gpipe", iterations=1)
    assert [form["difference"] for form in free["closed_forms"]] == [0.0, 0.0]


def test_conventions_say_what_the_numbers_are() -> None:
    words = of("1f1b")["conventions"]
    assert words["times"] == "per rank, which has one stage; F, I and W take 1 each"
    assert of("1f1b", costs=db.Costs(F=1))["conventions"]["times"] == (
        "per action: one stage, one microbatch"
    )
    assert words["p2p"].startswith("overlapped: ")
    assert words["memory"].startswith("activation units")
    assert words["bubble_ratio"] == "idle share of rank-time: 1 − Σ busy / (ranks × makespan)"
    assert words["stage_bubble_rate"] == "(largest stage time − ideal) / largest stage time"
    assert words["overhead"] == "(makespan − ideal) / ideal"
    ranked = of(
        "interleaved-1f1b",
        db.Costs.per_rank(F=2, B=4, activation=3, kept_for_weight=0.5),
        chunks=2,
    )
    assert ranked["conventions"]["times"] == "per rank ÷ 2 chunks"
    assert ranked["conventions"]["memory"].startswith("in the unit of the activation costs")
    assert "50 % is held" in ranked["conventions"]["memory"]


def test_the_report_names_every_measure_and_aligns_its_columns() -> None:
    text = report(db.simulate(db.make("1f1b", ranks=4, microbatches=8)), time_unit="ms", width=80)
    lines = text.splitlines()
    assert lines[0] == "1f1b: makespan 33 ms, bubble ratio 27.27 %, peak activation 4"
    assert lines[1] == "4 ranks, 4 stages (one stage per rank), 8 microbatches, 64 actions"
    assert lines[3] == "makespan           33 ms         last end − first start over all ranks"
    assert "bubble ratio       27.27 %" in text
    assert "stage bubble rate  27.27 %" in text
    assert "overhead           37.50 %" in text
    assert not any(line.startswith("bubble ") and "ratio" not in line for line in lines)
    head = next(index for index, line in enumerate(lines) if line.startswith("rank "))
    assert [line.split() for line in lines[head + 1 : head + 5]] == [
        ["0", "33", "24", "4"],
        ["1", "30", "24", "3"],
        ["2", "27", "24", "2"],
        ["3", "24", "24", "1"],
    ]
    assert len({len(line) for line in lines[head : head + 5]}) == 1
    formula = lines.index("  makespan  (m + p − 1)(F + B)")
    assert lines[formula + 1] == ("    33 ms, simulated 33 ms, difference 0 ms; exact (no latency)")
    symbols = "in formulas: p ranks, m microbatches, r rank, from 0; times of an action: F forward"
    assert " ".join(lines[lines.index("") :]).replace("   ", " ").count(symbols) == 1


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["1f1b", "dualpipe", "v-half", "chimera", "pipeoffload-half"])
def test_no_line_of_a_report_is_longer_than_it_may_be(name: str, width: int) -> None:
    costs = db.Costs(
        F=10.123, I=11, W=7, p2p=0.5, activation=3_334_144, time_unit="ms", memory_unit="bytes"
    )
    schedule = db.make(name, ranks=8, microbatches=24, costs=costs)
    lines = report(db.simulate(schedule, costs), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert "MiB" in " ".join(lines)


def test_forms_that_do_not_hold_are_listed_with_the_nearest_value() -> None:
    data = of("zb-h1", db.Costs(F=10, I=11, W=7, p2p=0.5), ranks=8, microbatches=24)
    assert [form["quantity"] for form in data["closed_forms"]] == ["peak_activation"]
    (near,) = data["nearest_forms"]
    assert near["formula"] == "m(F + I + W) + (p − 1)(F + I − W)"
    assert (near["value"], near["simulated"], near["difference"]) == (770.0, 784.0, 14.0)
    assert (near["reason"], near["nearest"]) == ("a transfer takes 0.5", "without latency")
    assert near["terms"] == [
        {"term": "m(F + I + W)", "value": 672.0},
        {"term": "(p − 1)(F + I − W)", "value": 98.0},
    ]


@pytest.mark.parametrize(
    ("name", "costs", "more", "reason", "nearest", "value"),
    [
        ("1f1b", db.Costs(F=[1, 1, 2, 1], B=2), {}, "the costs of stages or ranks differ",
         "for their mean", 11 * 3.25),
        ("gpipe", db.Costs(F=1, B=2), {"iterations": 2}, "there are 2 iterations",
         "for one of them", 33),
        ("zb-auto", db.Costs(F=2, I=2, W=2), {}, "the schedule was made for other costs",
         "for a schedule made for these", 54),
        ("1f1b", db.Costs(F=1, B=2), {"recompute": [0]}, "forwards are recomputed",
         "without recompute", 33),
        ("gpipe", db.Costs(F=1, B=2, p2p=[[0, 1, 1, 1]] * 4), {},
         "the costs of stages or ranks differ", "for their mean", None),
    ],
)  # fmt: skip
def test_why_a_form_does_not_hold(
    name: str, costs: db.Costs, more: dict[str, Any], reason: str, nearest: str, value: float | None
) -> None:
    near = [form for form in of(name, costs, **more)["nearest_forms"]
            if form["quantity"] == "makespan"]  # fmt: skip
    assert reason in [form["reason"] for form in near]
    form = near[[form["reason"] for form in near].index(reason)]
    assert form["nearest"] == nearest
    if value is not None:
        assert form["value"] == pytest.approx(value)


@pytest.mark.slow
def test_no_form_is_listed_twice() -> None:
    for entry in db.schedules():
        for costs in (db.Costs(), db.Costs(F=1, I=1.5, W=0.5), db.Costs(p2p=0.1)):
            try:
                schedule = db.make(entry.name, ranks=8, microbatches=32, costs=costs)
            except db.ParameterError:
                continue
            data = summary(db.simulate(schedule, costs))
            forms = data["closed_forms"] + data["nearest_forms"]
            texts = [(form["quantity"], form["formula"]) for form in forms]
            assert len(set(texts)) == len(texts), (entry.name, texts)


def test_many_ranks_are_summed_up_in_two_lines() -> None:
    lines = report(db.simulate(db.make("1f1b", ranks=32, microbatches=64))).splitlines()
    head = next(index for index, line in enumerate(lines) if line.lstrip().startswith("rank "))
    assert [line.split() for line in lines[head + 1 : head + 3]] == [
        ["least", "192", "192", "1"],
        ["most", "285", "192", "32"],
    ]
    assert lines[head + 3] == ""
    assert any("1 … 32" in line for line in lines)


def test_a_schedule_that_takes_no_time_and_one_of_a_single_action() -> None:
    data = of("1f1b", db.Costs(F=0, B=0))
    assert (data["makespan"], data["bubble_ratio"], data["overhead"]) == (0.0, 0.0, 0.0)
    single = Schedule.from_text([["0F0", "0B0"]], Placement.linear(1), 1)
    assert "1 rank, 1 stage (one stage per rank), 1 microbatch, 2 actions" in report(
        db.simulate(single)
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (33.0, "33"),
        (1 / 3, "0.333333"),
        (12345.678, "12,345.7"),
        (1234567.8, "1,234,568"),
        (-2.5, "-2.5"),
        (1e-7, "1e-07"),
        (2.5e18, "2.5e+18"),
    ],
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert number(value) == text


def test_percentages_for_people() -> None:
    assert [percent(x) for x in (0.0, -1e-17, 0.27272727, 1.0)] == [
        "0.00 %",
        "0.00 %",
        "27.27 %",
        "100.00 %",
    ]
    assert not math.isnan(float(percent(0.5)[:-2]))


@pytest.mark.parametrize("mode", P2P_MODES)
@pytest.mark.parametrize("entry", schedules(), ids=lambda entry: entry.name)
def test_exact_forms_are_exact_in_every_mode(entry: Entry, mode: db.P2PMode) -> None:
    timeline = db.simulate(smallest(entry), db.Costs(F=2, I=3, W=1), p2p_mode=mode)
    forms = summary(timeline)["closed_forms"]
    wrong = [form for form in forms if form["accuracy"] == "exact" and np.any(form["difference"])]
    assert [form for form in wrong if form["difference"] is not None] == []
