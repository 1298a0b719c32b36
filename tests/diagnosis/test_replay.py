"""Replays, p2p modes, and messages, against simulations and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.observed import Observed, ObservedActions
from debubble.engine.modes import P2PMode
from tests.diagnosis.diagnosed import of_planted, plain
from tests.diagnosis.made import Made, one_f_one_b
from tests.laws.executed import Job
from tests.laws.jobs import even


def simulated(name: str, mode: P2PMode) -> Diagnosis:
    """A trace without messages of a schedule in a p2p mode: 10 ms, 20 ms, messages 3 ms."""
    schedule = db.make(name, ranks=4, microbatches=8)
    table = db.simulate(schedule, db.Costs(F=10, B=20, p2p=3), mode).actions()
    kinds = {kind.name: int(kind) for kind in db.Kind}
    rows = ObservedActions.of(
        step=np.zeros(len(table)), copy=np.zeros(len(table)), rank=table.rank, stage=table.stage,
        kind=[kinds[kind] for kind in table.kind], microbatch=table.microbatch,
        start=table.start / 1e3, end=table.end / 1e3,
    )  # fmt: skip
    return diagnose(Observed("made", 4, 1, (0,), rows))


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-h1"])
@pytest.mark.parametrize("mode", ["overlapped", "blocking", "pair"])
def test_the_p2p_mode_is_recovered(name: str, mode: P2PMode) -> None:
    found = simulated(name, mode)
    named, off = found.mode
    assert named == mode
    assert off < 1e-9


def test_a_queued_mode_is_head_of_line() -> None:
    """What it costs is what a simulation without queues takes less."""
    found = simulated("interleaved-1f1b", "pair")
    first = found.findings[0]
    assert first.cause == "head-of-line"
    assert "pair" in first.text
    schedule, costs = (
        db.make("interleaved-1f1b", ranks=4, microbatches=8),
        db.Costs(F=10, B=20, p2p=3),
    )
    queued, free = (db.simulate(schedule, costs, mode) for mode in ("pair", "overlapped"))
    assert first.gain == pytest.approx(1 - free.makespan / queued.makespan, abs=1e-6)


def test_a_replay_is_the_run() -> None:
    for name in ("nothing", "slow link", "jitter", "early receive"):
        found = of_planted(name, 0)
        assert found.replay.replayed == pytest.approx(found.run.step_times, rel=1e-4)


def test_other_orders_of_some_steps_are_replayed_as_they_ran() -> None:
    """Two copies whose orders differ."""
    programs = one_f_one_b(4, 8)
    other = [list(cells) for cells in programs]
    other[2][2], other[2][3] = other[2][3], other[2][2]
    one = Made(programs, copies=1, steps=4).observed()
    two = Made(other, copies=1, steps=4).observed()
    rows = {
        name: np.concatenate([getattr(one.actions, name), getattr(two.actions, name)])
        for name in ("step", "rank", "kind", "stage", "microbatch", "start", "end", "issued")
    }
    copy = np.repeat([0, 1], [len(one.actions), len(two.actions)])
    found = diagnose(replace(one, actions=ObservedActions.of(copy=copy, **rows), copies=2))
    assert len(found.run.orders) == 2
    assert set(zip(found.run.copy.tolist(), found.run.order.tolist(), strict=True)) == {
        (0, 0), (1, 1)
    }  # fmt: skip
    assert found.replay_error < 0.01
    as_1f1b = found.replay.reordered(
        found.replay.times, found.replay.transfers.in_flight, found.run.orders[0]
    )
    assert as_1f1b[found.run.copy == 0] == pytest.approx(
        found.replay.lengths(found.replay.times)[found.run.copy == 0]
    )


@pytest.mark.parametrize("name", ["dualpipe-v", "1f1b-overlap", "interleaved-overlap"])
def test_a_pair_is_not_late_that_waits_for_one_of_its_inputs(name: str) -> None:
    schedule = db.make(name, ranks=3, microbatches=9)
    found = diagnose(Job(schedule, even(schedule)).observed())
    assert found.replay.gaps.max() < 1e-9
    assert found.replay.replayed == pytest.approx(found.run.step_times, rel=1e-9)


def test_messages_that_nobody_waited_for_are_typical() -> None:
    transfers = plain(latency=lambda *_: 2e-3).replay.transfers
    used = ~np.isnan(transfers.typical)
    assert transfers.typical[used] == pytest.approx(2e-3)
    assert transfers.seen.any()
    assert transfers.in_flight[transfers.in_flight > 0] == pytest.approx(2e-3)
    assert not transfers.behind.any()


def test_messages_behind_others() -> None:
    found = of_planted("early receive", 0)
    behind = found.replay.transfers.behind
    late = behind > 1e-3
    assert late.any()
    # Of ranks that post too early.
    sources = found.run.rank[found.run.source[np.flatnonzero(late.any(axis=0))]]
    assert set(sources.tolist()) <= {1, 2, 3}
    assert (behind <= found.replay.transfers.in_flight).all()


def test_a_message_was_there_when_its_action_began() -> None:
    """A step in which all goes far quicker: messages nobody waited for did not take long there."""
    observed = Made(one_f_one_b(4, 8), copies=1, steps=4, latency=lambda *_: 5e-3).observed()

    def quicker(rows: Any) -> Any:
        first = observed.actions.start[observed.actions.step == 3].min()
        here = rows.step == 3
        times = {
            name: np.where(here, first + (values - first) / 40, values)
            for name, values in vars(rows).items() if values.dtype == np.float64 and name != "busy"
        }  # fmt: skip
        return replace(rows, **times)

    other = replace(
        observed, actions=quicker(observed.actions), messages=quicker(observed.messages)
    )
    replay = diagnose(other).replay
    assert replay.replayed == pytest.approx(replay.run.step_times, rel=1e-6)
    latest = np.maximum(replay.run.start - replay.run.produced, 0.0)
    unseen = ~replay.transfers.seen & ~np.isnan(latest)
    assert (replay.transfers.in_flight[unseen] <= latest[unseen] + 1e-12).all()


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "interleaved-1f1b"])
def test_messages_that_need_their_receivers(name: str) -> None:
    """A receive that is posted late is no message that was long in flight."""
    schedule = db.make(name, ranks=4, microbatches=8)
    found = diagnose(Job(schedule, even(schedule), lambda *_: 2e-3, rendezvous=True).observed())
    transfers = found.replay.transfers
    assert found.mode == ("rendezvous", pytest.approx(0, abs=1e-9))
    assert transfers.in_flight[transfers.seen] == pytest.approx(2e-3)
    assert found.model_error < 1e-9


def test_links_with_buffers() -> None:
    """Messages of one link go whether or not their receiver is there, and take long."""
    schedule = db.make("1f1b", ranks=4, microbatches=8)

    def wire(source: int, target: int, *_: object) -> float:
        return 25e-3 if {source, target} == {1, 2} else 1e-3

    job = Job(schedule, even(schedule), wire, rendezvous=True, buffered=frozenset({(1, 2), (2, 1)}))
    found = diagnose(job.observed())
    mode = found.replay.mode
    assert (mode.name, sorted(mode.buffered)) == ("rendezvous", [1 * 4 + 2, 2 * 4 + 1])
    assert found.model_error < 1e-9
    first = found.findings[0]
    assert (first.cause, first.where) == ("slow-link", {"link": [1, 2]})
    healthy = job.without(wire=lambda *_: 1e-3).step()
    assert first.before - first.seconds == pytest.approx(healthy, rel=1e-2)


def test_a_link_is_slow_only_if_its_quickest_messages_are() -> None:
    """A third of the messages between two ranks waits for something else."""
    rng = np.random.default_rng(0)

    def latency(source: int, target: int) -> float:
        return 30e-3 if {source, target} == {0, 1} and rng.random() < 0.35 else 1e-3

    found = plain(latency=latency)
    assert found.replay.transfers.quickest[:, [1, 4]] == pytest.approx(1e-3)
    assert all(one.cause != "slow-link" for one in found.findings)


def test_one_finding_for_each_cause_and_place() -> None:
    """Few actions that take far longer, and all of them unsteady: both are jitter."""
    drawn = np.random.default_rng(1)

    def time(_: object, __: object) -> float:
        far = 2.5 if drawn.random() < 0.05 else 1.0
        return far * float(drawn.lognormal(0.0, 0.1))

    found = plain(time=time)
    places = [(one.cause, tuple(sorted(one.where.items()))) for one in found.causes.found]
    assert ("jitter", ()) in places
    assert len(places) == len(set(places))
