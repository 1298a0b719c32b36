"""What a page says of a diagnosis is what the diagnosis says."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from debubble.diagnosis.account import CAUSES, COMPUTE, causes_over_time
from debubble.diagnosis.diagnose import diagnose
from debubble.diagnosis.observed import Location
from debubble.diagnosis.report import report
from debubble.diagnosis.what_if import with_schedule
from debubble.view.captions import conventions
from debubble.view.trace_view import LOOKS, trace_page, trace_timelines, trace_view
from tests.diagnosis.diagnosed import of_planted, plain
from tests.diagnosis.made import Made, one_f_one_b
from tests.diagnosis.planted import PLANTED

PLANTED_NAMES = ("slow stage", "slow worker", "slow link", "host gaps")


@pytest.mark.parametrize("name", PLANTED_NAMES)
def test_it_says_what_the_terminal_says(name):
    found = of_planted(name, 0)
    view = trace_view(found)
    text = report(found, 1 << 20, details=True)
    for one in view["findings"]:
        assert f"{one['cause']}: {one['text']}" in text
    sentences = (view["title"], *view["said"], *view["notes"], view["next"])
    for line in (*sentences, *(text for _, text in view["facts"])):
        assert line in text or line.startswith("The drawn step is ")
    assert [one["cause"] for one in view["findings"]] == [one.cause for one in found.findings]
    json.dumps(view, allow_nan=False)


@pytest.mark.parametrize("name", PLANTED_NAMES)
def test_a_finding_leads_to_a_mark_of_its_cause_on_its_rank(name):
    found = of_planted(name, 0)
    view = trace_view(found)
    first = view["findings"][0]
    place = first["place"]
    where = found.findings[0].where
    if "copy" in where and where["copy"] != found.run.copy[found.shown]:
        assert place is None
        return
    timeline, rank, start, end = place
    assert timeline == 0
    assert rank in where.get("link", [where.get("rank", rank)])
    assert 0 <= start < end <= found.timeline.makespan * (1 + 1e-9)
    row = found.shown
    begin = found.run.begin[row]
    pieces = causes_over_time(found.replay, row, found.causes.excess, found.causes.slow_link)[rank]
    inside = [c for low, high, c in pieces
              if start <= ((low + high) / 2 - begin) * 1e3 <= end]  # fmt: skip
    assert set(inside) == {first["cause"]}


def test_causes_over_time_tile_the_step():
    found = of_planted("slow stage", 0)
    row = found.shown
    lines = causes_over_time(found.replay, row, found.causes.excess, found.causes.slow_link)
    assert sorted(lines) == list(range(found.schedule.ranks))
    for line in lines.values():
        pieces = sorted(line)
        assert pieces[0][0] == pytest.approx(found.run.begin[row])
        assert pieces[-1][1] == pytest.approx(found.run.begin[row] + found.run.length[row])
        for one, two in pairwise(pieces):
            assert two[0] == pytest.approx(one[1])
        assert {cause for _, _, cause in pieces} <= {COMPUTE, *CAUSES}


def test_observed_above_predicted_at_the_costs_of_the_trace():
    found = of_planted("slow stage", 0)
    seen, predicted = trace_timelines(found)
    assert seen.measured
    np.testing.assert_allclose(seen.start, found.timeline.start)
    assert predicted.makespan == pytest.approx(found.predicted.makespan)
    payload = trace_view(found)["timelines"]
    assert [one["name"] for one in payload["timelines"]] == ["observed", "predicted"]
    assert "median times" in payload["timelines"][1]["setting"]
    assert payload["timelines"][0]["setting"].startswith("step ")
    assert payload["time_unit"] == "ms"


def test_marks_and_what_is_computed_fill_every_rank():
    payload = trace_view(of_planted("slow stage", 0))["timelines"]
    assert "slow-stage" in [look["title"] for look in payload["marks"]]
    assert {look["like"] for look in payload["marks"]} <= {None, *payload["causes"]}


def shares_of(payload, index):
    """Share of the rank-time of a timeline that marks of each name have."""
    one = payload["timelines"][index]
    raw = zlib.decompress(base64.b64decode(one["marks"]["data"]), -15)
    count = sum(one["marks"]["counts"])
    start, end = np.frombuffer(raw, "<f4", 2 * count).reshape(2, count)
    look = np.frombuffer(raw, "u1", count, 8 * count)
    names = [each["title"] for each in payload["marks"]]
    totals = np.bincount(look, end - start, len(names)) / (one["makespan"] * one["ranks"])
    return dict(zip(names, totals.tolist(), strict=True))


@pytest.mark.parametrize("schedule", [None, "gpipe"])
def test_one_cause_has_one_name_in_all_rows(schedule):
    """Of a run without faults the same time is lost to the same causes as predicted."""
    found = plain()
    answers = [with_schedule(found.replay, schedule, [], None)] if schedule else []
    payload = trace_view(found, answers)["timelines"]
    assert all("marks" in one for one in payload["timelines"])
    observed, predicted = shares_of(payload, 0), shares_of(payload, 1)
    assert {name for name, share in predicted.items() if share > 0.01} == {"fill", "drain"}
    for name, share in predicted.items():
        assert observed[name] == pytest.approx(share, abs=0.02)


def test_every_cause_has_a_look_of_its_own():
    assert set(LOOKS) == set(CAUSES)
    own = [look.color for look in LOOKS.values() if look.like is None]
    assert len(set(own)) == len(own)


def test_another_schedule_is_shown_below():
    found = plain()
    answer = with_schedule(found.replay, "zb-h1", [], None)
    view = trace_view(found, [answer])
    names = [one["name"] for one in view["timelines"]["timelines"]]
    assert names == ["observed", "predicted", "zb-h1"]
    assert any("zb-h1: a mean step takes" in line for line in view["said"])


def test_no_default_cost_is_told_of_times_from_a_trace():
    found = of_planted("slow stage", 0)
    told = conventions(trace_timelines(found, [with_schedule(found.replay, "zb-v")]))
    assert "times of observed and predicted and zb-v: from the trace" in told
    assert not any("take 1" in line or "transfers take no time" in line for line in told)


def test_a_clean_run_has_nothing_to_gain():
    view = trace_view(plain())
    assert view["findings"] == []
    assert view["title"].startswith("Nothing to gain beyond")


def test_without_a_rank_there_is_only_the_prediction():
    found = diagnose(Made(one_f_one_b(4, 8), copies=1, missing=((0, 2),)).observed())
    view = trace_view(found)
    assert [one["name"] for one in view["timelines"]["timelines"]] == ["predicted"]
    assert "marks" not in view["timelines"]
    assert any("A rank was not traced" in note for note in view["notes"])
    assert "predicted" in trace_page(found)


def test_shares_of_idle_time_that_differ_are_explained():
    """The legend has those of the drawn step of one copy, the sentences those of all."""
    found = of_planted("slow copy", 0)
    drawn, every = (f"{100 * share:.1f} %" for share in
                    (found.timeline.bubble_ratio, found.bubble_ratio))  # fmt: skip
    (note,) = (text for text in trace_view(found)["notes"] if text.startswith("The drawn step"))
    assert drawn != every
    assert f"its ranks are idle {drawn} of it, and {every} of all steps and copies" in note


def test_machines_are_a_table_of_the_facts_that_differ():
    observed = PLANTED["slow worker"](0).made.observed()
    assert trace_view(diagnose(observed))["machines"] is None
    workers = range(observed.ranks * observed.copies)
    places = tuple(Location(at, f"node{at % 2}", "run.json") for at in workers)
    view = trace_view(diagnose(replace(observed, locations=places)))
    titles = [column["title"] for column in view["machines"]["columns"]]
    assert titles == ["copy", "rank", "global rank", "host"]
    assert view["machines"]["columns"][2]["cells"] == [str(at) for at in workers]
    assert ["ran on", "2 hosts: node0, node1"] in view["facts"]
