"""Times of a run under another schedule, by hand."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
from debubble.core.errors import ParameterError
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.run import links_of
from debubble.diagnosis.times_under_schedule import shares_in_groups, under_schedule
from tests.laws.executed import Job
from tests.laws.jobs import even, made

SIZES = {"ranks": 2, "microbatches": 4}


def ran(name: str, work: dict[str, float], overlap: float = 1.0, **more: int) -> Diagnosis:
    """A run in which every kind takes so many milliseconds."""
    schedule = db.make(name, **SIZES, **more)
    job = Job(schedule, lambda piece, *_: work[piece.kind] * 1e-3, overlap=overlap)
    return diagnose(job.observed())


def times_under(found: Diagnosis, name: str, **more: int) -> dict[str, float]:
    """Milliseconds of every action of a schedule, which are the same for all of a kind."""
    replay, schedule = found.replay, db.make(name, **SIZES, **more)
    times, _ = under_schedule(replay.run, replay.times, replay.transfers.in_flight, schedule)
    seen: dict[str, set[float]] = {}
    for program, begin in zip(schedule, schedule.offsets.tolist(), strict=False):
        for at, action in enumerate(program):
            seen.setdefault(action.kind.name, set()).add(
                round(1e3 * float(times[0, begin + at]), 6)
            )
    assert all(len(values) == 1 for values in seen.values()), seen
    return {kind: values.pop() for kind, values in seen.items()}


def test_parts_of_a_backward_share_it_and_a_backward_is_its_parts() -> None:
    whole, parts = ran("1f1b", {"F": 10, "B": 20}), ran("zb-h1", {"F": 10, "I": 13, "W": 8})
    assert times_under(whole, "zb-h1") == {"F": 10, "I": 10, "W": 10}
    assert times_under(parts, "1f1b") == {"F": 10, "B": 21}


def test_a_stage_that_is_half_as_long_takes_half() -> None:
    assert times_under(ran("1f1b", {"F": 10, "B": 20}), "looped-bfs", chunks=2) == {"F": 5, "B": 10}
    found = ran("looped-bfs", {"F": 5, "B": 10}, chunks=2)
    assert times_under(found, "1f1b") == {"F": 10, "B": 20}


def test_slices_take_their_share_of_a_microbatch() -> None:
    found = ran("1f1b", {"F": 10, "B": 20})
    assert times_under(found, "seq1f1b", slices=4) == {"F": 2.5, "B": 5}
    found = ran("seq1f1b", {"F": 5, "B": 10}, slices=2)
    assert times_under(found, "1f1b") == {"F": 10, "B": 20}
    assert times_under(found, "seq1f1b", slices=4) == {"F": 2.5, "B": 5}


def test_groups_take_the_share_of_their_parts_that_they_took() -> None:
    schedule = made("dualpipe-v")
    found = diagnose(Job(schedule, even(schedule), overlap=0.8).observed())
    times, _ = under_schedule(
        found.run, found.replay.times, found.replay.transfers.in_flight, made("1f1b-overlap")
    )
    # A forward of 10 ms and a backward of 20 ms, 0.8 of that together.
    assert times.max() == pytest.approx(24e-3)
    shares = shares_in_groups(found.run, found.replay.times)
    assert found.run.in_groups(shares, np.add) == pytest.approx(1)
    forward = (found.run.cls != found.run.kind) & (found.run.kind == db.Kind.F)
    # Of a group with a full backward a third, of one with its part for the input 5 of 11.
    assert set(np.round(shares[:, forward].ravel(), 6).tolist()) <= {0.333333, 0.454545}


def test_messages_over_a_link_take_what_they_took_over_it() -> None:
    schedule = db.make("1f1b", ranks=3, microbatches=4)
    wires = {(0, 1): 1e-3, (1, 2): 2e-3, (2, 1): 3e-3, (1, 0): 4e-3}
    job = Job(schedule, even(schedule), lambda a, b, *_: wires[a, b])
    found = diagnose(job.observed())
    other = db.make("looped-bfs", ranks=3, microbatches=4, chunks=2)
    _, delays = under_schedule(
        found.run, found.replay.times, found.replay.transfers.in_flight, other
    )
    links = links_of(other)
    for (a, b), wire in wires.items():
        assert delays[0, links == 3 * a + b] == pytest.approx(wire, rel=1e-6)
    # Over one that nothing went over they take what all of them took.
    unused = delays[0, links == 3 * 2 + 0]
    assert len(unused) == 4
    assert set(np.round(unused, 6).tolist()) <= set(wires.values())
    assert not delays[0, links < 0].any()


@pytest.mark.parametrize("name", ["vocab-1", "pipeoffload-full"])
def test_what_a_run_has_no_time_of_is_refused(name: str) -> None:
    found = ran("1f1b", {"F": 10, "B": 20})
    with pytest.raises(ParameterError, match=r"runs [A-Z]+, and the run has no time of that"):
        under_schedule(
            found.run, found.replay.times, found.replay.transfers.in_flight, db.make(name, **SIZES)
        )
