"""What is encoded can be read back: exactly on a grid, else to half a tick."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest

import debubble as db
from debubble.analysis.bubbles import CAUSES, bubbles
from debubble.core.actions import kinds_of, microbatches_of, stages_of
from debubble.core.kinds import CARRY_KINDS, TRANSFER_KINDS, Kind
from debubble.lowering.transfers import add_transfers
from debubble.view.timeline_data import _levels, encode
from tests.view.timelines import pairs, run, two_copies, zero_bubble


def decoded(data):
    """Columns of one encoded timeline, by the rules of the module's docstring."""
    raw = zlib.decompress(base64.b64decode(data["data"]), -15)
    count = sum(data["counts"])
    columns = {}
    at = 0
    for name, kind in data["columns"]:
        size = int(kind[1])
        planes = np.frombuffer(raw, np.uint8, count * size, at).reshape(size, count)
        columns[name] = np.ascontiguousarray(planes.T).view(f"<{kind}").ravel()
        at += count * size
    assert at == len(raw)
    for name in ("style", "unit", "start", "slack", "wait", "held", "critical", "queued"):
        columns.setdefault(name, np.zeros(count, dtype=np.uint32))
    style = columns["style"].astype(np.int64)
    last = np.array(data["styles"]["unit"], dtype=np.int64)
    unit = np.empty(count, dtype=np.int64)
    for i, (which, step) in enumerate(zip(style, columns["unit"], strict=True)):
        last[which] += step
        unit[i] = last[which]
    columns["unit"] = unit
    columns["start"] = np.cumsum(columns["start"], dtype=np.uint32) * data["tick"]
    for name in ("kind", "stage", "duration"):
        columns[name] = np.array(data["styles"][name])[style]
    return columns


UNEVEN = db.Costs(F=[1, 1.1, 0.7, 1.3], I=0.9, W=[0.4, 0.8, 1.2, 0.5], p2p=0.137)


@pytest.mark.parametrize(
    "timeline",
    [
        run("1f1b", 4, 8),
        db.simulate(db.make("zb-h1", ranks=4, microbatches=300), UNEVEN),
        db.simulate(db.make("1f1b", ranks=4, microbatches=9, iterations=3), UNEVEN, "channel"),
        db.simulate(db.make("1f1b", ranks=4, microbatches=9), UNEVEN, "blocking"),
        db.simulate(db.make("gpipe", ranks=4, microbatches=9), db.Costs(p2p=0.3), "channel"),
        db.simulate(db.make("zb-h1", ranks=4, microbatches=9), db.Costs(p2p=0.3), "blocking"),
        db.simulate(db.make("dualpipe", ranks=4, microbatches=12), db.Costs(F=1, B=2.1, p2p=0.3)),
        pairs(), two_copies(), zero_bubble(),
    ],
    ids=lambda timeline: f"{timeline.schedule.name}-{timeline.mode}",
)  # fmt: skip
def test_times_and_names_survive(timeline):
    (data,) = encode([timeline])["timelines"]
    columns, actions = decoded(data), timeline.schedule.actions
    assert data["tick"] <= timeline.makespan * 2.0**-31 or np.allclose(
        timeline.start / data["tick"], np.rint(timeline.start / data["tick"])
    )
    np.testing.assert_allclose(columns["start"], timeline.start, rtol=1e-12, atol=data["tick"] / 2)
    np.testing.assert_array_equal(columns["duration"], timeline.duration)
    np.testing.assert_array_equal(columns["kind"], kinds_of(actions))
    np.testing.assert_array_equal(columns["stage"], stages_of(actions))
    np.testing.assert_array_equal(columns["unit"], microbatches_of(actions))
    np.testing.assert_allclose(columns["slack"] * data["tick"], timeline.slack, atol=data["tick"])
    assert columns["critical"].astype(bool).tolist() == timeline.critical.tolist()
    found = bubbles(timeline)
    waits = found.totals[:, CAUSES.index("p2p")].sum()
    assert columns["wait"].sum() * data["tick"] == pytest.approx(
        waits, abs=len(actions) * data["tick"]
    )
    json.dumps(data, allow_nan=False)


def test_the_critical_path_is_as_long_as_the_makespan():
    timeline = run("1f1b", 4, 8)
    assert timeline.duration[timeline.critical].sum() == timeline.makespan
    assert timeline.critical.sum() == len(timeline.critical_path())


def test_round_costs_have_a_grid_and_are_exact():
    (data,) = encode([db.simulate(db.make("1f1b", ranks=4, microbatches=8),
                                  db.Costs(F=1, B=2.5, p2p=0.25))])["timelines"]  # fmt: skip
    assert data["tick"] == 0.25


def test_a_limit_that_an_order_was_made_under_is_a_cause():
    costs = db.Costs(F=1, I=1, W=1)
    schedule = db.make("zb-auto", ranks=4, microbatches=8, costs=costs, memory=2)
    payload = encode([db.simulate(schedule, costs)], limit=2)
    assert payload["limit"] == 2
    (data,) = encode([run("1f1b", 4, 8)], limit=3)["timelines"]
    assert "held" not in dict(data["columns"])
    (data,) = payload["timelines"]
    assert "held" in dict(data["columns"])
    assert sum(data["idle"][CAUSES.index("memory")]) > 0


def test_explicit_sends_are_rows_of_their_own():
    lowered = add_transfers(db.make("1f1b", ranks=2, microbatches=3))
    (data,) = encode([db.simulate(lowered, db.Costs(F=1, B=2, p2p=0.5))])["timelines"]
    kinds = decoded(data)["kind"]
    assert data["counts"][:2] == [6, 6]
    assert data["counts"][2:] == [6, 6]
    assert set(kinds[12:].tolist()) == set(TRANSFER_KINDS) - set(CARRY_KINDS)
    places = np.cumsum(decoded(data)["place"].astype(np.int64) + 1) - 1
    np.testing.assert_array_equal(kinds, kinds_of(lowered.actions[places]))


def test_a_queue_for_a_channel_is_kept():
    costs = db.Costs(F=0.1, B=0.2, p2p=1)
    timeline = db.simulate(db.make("gpipe", ranks=2, microbatches=4), costs, "channel")
    (data,) = encode([timeline])["timelines"]
    queued = decoded(data)["queued"] * data["tick"]
    np.testing.assert_allclose(queued[:4], [0, 0.9, 1.8, 2.7], atol=1e-6)


@pytest.mark.slow
def test_many_actions_take_few_bytes():
    rng = np.random.default_rng(0)
    costs = db.Costs(F=rng.uniform(1, 2, 8), I=rng.uniform(1, 2, 8), W=rng.uniform(1, 2, 8),
                     p2p=rng.uniform(0.01, 0.1, (8, 8)))  # fmt: skip
    for name in ("zb-h1", "1f1b", "gpipe"):
        timeline = db.simulate(db.make(name, ranks=8, microbatches=2_000), costs)
        assert len(json.dumps(encode([timeline]))) < 4 * len(timeline.schedule)


def test_every_color_has_text_that_reads_on_it():
    (data,) = encode([run("interleaved-1f1b", 2, 4, chunks=2)])["timelines"]
    assert len(data["palette"][Kind.F]) == 2
    assert data["palette"][Kind.F][0] != data["palette"][Kind.F][1]


def test_nothing_to_do_is_encoded():
    schedule = db.make("1f1b", ranks=1, microbatches=1)
    (data,) = encode([db.simulate(schedule, db.Costs(F=0, B=0))])["timelines"]
    assert data["makespan"] == 0


@pytest.mark.parametrize("name", ["pipeoffload-half", "pipeoffload-full", "bpipe"])
def test_memory_of_copies_is_sent_along(name: str) -> None:
    schedule = db.make(name, ranks=4, microbatches=8)
    timeline = db.simulate(schedule, db.Costs(activation=1, host_bandwidth=1, bandwidth=2))
    levels = _levels(timeline)
    for rank in range(4):
        begin, end = timeline.schedule.offsets[rank : rank + 2]
        # Between two actions of a rank a copy may peak, too.
        assert 0 < levels[begin:end].max() <= timeline.peak_activation[rank]
    assert levels.max() == timeline.peak_activation.max()
