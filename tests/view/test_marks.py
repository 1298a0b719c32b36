"""Marks and differences can be read back, and change nothing where there are none."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest

import debubble as db
from debubble.view.timeline_data import encode
from debubble.view.trace_view import MarkStyle, add_differences, add_marks, joined
from tests.view.timelines import run

LOOKS = {
    "late": MarkStyle("late host", "#f57c00"),
    "fill": MarkStyle("fill", like="fill"),
    "other": MarkStyle("o"),
}


def unpacked(data):
    return zlib.decompress(base64.b64decode(data), -15)


def test_marks_survive():
    payload = encode([run("1f1b", 2, 4), run("gpipe", 2, 4)])
    add_marks(payload, 1, {1: [(3.5, 4.25, "late"), (0.0, 1.0, "fill")]}, LOOKS)
    assert payload["marks"] == [
        {"title": "late host", "color": "#f57c00", "like": None},
        {"title": "fill", "color": "#808080", "like": "fill"},
    ]
    assert "marks" not in payload["timelines"][0]
    marks = payload["timelines"][1]["marks"]
    assert marks["counts"] == [0, 2]
    raw = unpacked(marks["data"])
    assert np.frombuffer(raw, "<f4", 4).tolist() == [0, 3.5, 1, 4.25]
    assert list(raw[16:]) == [1, 0]
    json.dumps(payload, allow_nan=False)


def test_a_timeline_may_have_no_mark_at_all():
    payload = encode([run("1f1b", 2, 4)])
    add_marks(payload, 0, {}, LOOKS)
    assert payload["marks"] == []
    assert payload["timelines"][0]["marks"]["counts"] == [0, 0]


@pytest.mark.parametrize(
    ("marks", "wanted"),
    [
        ([(1, 2, "a"), (0, 1, "a")], [(0, 2, "a")]),
        ([(0, 1, "a"), (1, 2, "b")], [(0, 1, "a"), (1, 2, "b")]),
        ([(0, 1, "a"), (1.5, 2, "a")], [(0, 1, "a"), (1.5, 2, "a")]),
        ([(1, 1, "a")], []),
        ([], []),
    ],
)
def test_marks_that_touch_and_look_alike_are_one(marks, wanted):
    assert joined(marks) == wanted


def test_differences_are_those_of_the_times():
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    plain = db.simulate(schedule, db.Costs(F=1, B=2))
    slow = db.simulate(schedule, db.Costs(F=[1, 1, 1.5, 1], B=2))
    payload = encode([slow, plain])
    add_differences(payload, 0, [slow, plain], 1, 0.1)
    differs = payload["timelines"][0]["differs"]
    assert (differs["from"], differs["least"]) == ("1f1b", 0.1)
    late, longer = np.frombuffer(unpacked(differs["data"]), "<f4").reshape(2, -1)
    np.testing.assert_allclose(late, slow.start - plain.start, atol=1e-5)
    np.testing.assert_allclose(longer, slow.duration - plain.duration, atol=1e-6)
    assert "differs" not in payload["timelines"][1]


def test_payloads_without_marks_have_no_word_of_them():
    payload = encode([run("1f1b", 2, 4)])
    assert "marks" not in payload
    assert {"marks", "differs"}.isdisjoint(payload["timelines"][0])
