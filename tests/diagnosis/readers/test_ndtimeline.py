"""What NDTimeline writes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from debubble import Kind
from debubble.diagnosis.observed import ObservedActions
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers import made
from tests.diagnosis.readers.third_party import third_party


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b"])
@pytest.mark.parametrize("names_last", [True, False])
def test_what_was_written_is_read(tmp_path: Path, name: str, names_last: bool) -> None:
    run = made.run(name, ranks=4, microbatches=8, copies=3)
    made.write_ndtimeline(run, tmp_path / "timeline.json.gz", names_last=names_last)
    found = read(tmp_path)
    # A microsecond as a float of a few seconds has an error below a nanosecond.
    made.assert_recovered(found, run)
    assert (found.format, found.ranks, found.copies) == ("ndtimeline", 4, 3)
    assert (found.steps, found.left_out) == ((7, 8), {})
    crossings = 2 * (run.schedule.stages - 1)
    messages = found.messages
    assert len(messages) == 2 * 3 * 8 * crossings
    # Every message goes from the end of what made it to the start of what needs it.
    rows = found.actions
    ends, starts = by_action(rows, rows.end), by_action(rows, rows.start)
    for at in range(0, len(messages), 7):
        step, copy, kind, stage, unit = (
            int(getattr(messages, name)[at])
            for name in ("step", "copy", "kind", "stage", "microbatch")
        )
        assert messages.sent[at] == pytest.approx(ends[step, copy, kind, stage, unit])
        after = stage + (1 if kind == Kind.F else -1)
        assert messages.arrived[at] == pytest.approx(starts[step, copy, kind, after, unit])


@pytest.mark.parametrize("tensor", [(0, 1, 3), (2, 3), (1,)])
def test_one_tensor_rank_of_each_worker_counts(tmp_path: Path, tensor: tuple[int, ...]) -> None:
    """Whichever is there: a file may hold one of four."""
    run = made.run("1f1b", ranks=2, microbatches=4, copies=2)
    made.write_ndtimeline(run, tmp_path / "timeline.json.gz", tensor=tensor)
    found = read(tmp_path)
    made.assert_recovered(found, run)
    each = len(run.done) + 2 * len(found.messages)
    reason = "events of tensor-parallel ranks other than the first of each worker"
    more = each * (len(tensor) - 1)
    assert found.left_out == ({reason: more} if more else {})


def by_action(rows: ObservedActions, values: NDArray[np.float64]) -> dict[tuple[int, ...], float]:
    names = ("step", "copy", "kind", "stage", "microbatch")
    keys = zip(*(getattr(rows, name).tolist() for name in names), strict=True)
    return dict(zip(keys, values.tolist(), strict=True))


def test_a_published_run() -> None:
    found = read(third_party("timeline-ST.json.gz"))
    assert (found.ranks, found.copies, found.microbatches, len(found.steps)) == (4, 2, 4, 32)
    assert (len(found.actions), len(found.messages)) == (2048, 1536)
    rows = found.actions
    forward = [
        float(np.mean((rows.end - rows.start)[(rows.kind == Kind.F) & (rows.stage == stage)]))
        for stage in range(4)
    ]
    assert forward[3] / np.mean(forward[:3]) == pytest.approx(2.1, abs=0.05)
    messages = found.messages
    assert (messages.arrived > messages.sent).all()


@pytest.mark.parametrize(
    "how", ["spaced", "indented", "other keys first", "named threads", "mixed"]
)
def test_it_may_be_written_in_any_way(tmp_path: Path, how: str) -> None:
    run = made.run("interleaved-1f1b", ranks=2, microbatches=4, copies=2)
    made.write_ndtimeline(run, tmp_path / "timeline.json.gz")
    expected = read(tmp_path)
    events = json.loads(gzip.decompress((tmp_path / "timeline.json.gz").read_bytes()))
    events = events["traceEvents"] if isinstance(events, dict) else events
    if how == "other keys first":
        events = [dict(reversed(event.items())) for event in events]
    if how == "named threads":
        for event in events:
            if "tid" in event:
                event["tid"] = f"thread {event['tid']}"
    text = json.dumps(events, indent=1 if how == "indented" else None)
    if how == "mixed":
        text = json.dumps(events, separators=(",", ":")).replace('"ts":', '"ts" : ', 3)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "timeline.json").write_text(text)
    found = read(tmp_path / "other")
    assert found.left_out == expected.left_out
    for name in ("actions", "messages"):
        one, two = getattr(found, name), getattr(expected, name)
        for column in one.types():
            np.testing.assert_allclose(
                getattr(one, column), getattr(two, column), rtol=0, atol=1.1e-9
            )


@pytest.mark.parametrize("digits", [9, 11, 17, 400])
def test_numbers_no_run_has_are_left_to_the_slow_way(tmp_path: Path, digits: int) -> None:
    run = made.run("1f1b", ranks=2, microbatches=4, copies=1)
    made.write_ndtimeline(run, tmp_path / "timeline.json.gz")
    text = gzip.decompress((tmp_path / "timeline.json.gz").read_bytes()).decode()
    text = text.replace('"mb_id": ', f'"mb_id": {"9" * digits}', 1)
    (tmp_path / "timeline.json.gz").write_text(text)
    assert read(tmp_path).left_out == {
        "events without whole numbers as step, model_chunk and mb_id": 1,
        "steps of a worker with another number of transfers than its actions need": 1,
        "steps that are not complete on every rank": 1,
    }
