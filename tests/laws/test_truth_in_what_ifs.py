"""What a what-if says is what the job takes that is run that way, by an executor of our own.

A fault that was planted and is removed, another schedule of the same model, and both together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

import debubble as db
from debubble.core.errors import DebubbleError
from debubble.diagnosis.changes import Change
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.what_if import with_changes, with_schedule
from tests.conftest import EXPLORES
from tests.laws.executed import Job, Piece, pieces
from tests.laws.jobs import JOBS, even, made, run_of, runnable, steady, uniform
from tests.pairs import covering, paired, sorts

Work = Callable[[Piece, int, int], float]

FACTOR = 1.6


class Fault(NamedTuple):
    """What is planted in a job, and how it is asked about."""

    planted: Callable[[Job], Job]
    removed: str


def healthy(schedule: db.Schedule) -> Job:
    """Two copies, three steps, actions that vary, links that differ."""
    usual = even(schedule)

    def work(piece: Piece, step: int, copy: int) -> float:
        length = 1 + 0.1 * uniform(piece.microbatch, step)
        return usual(piece, step, copy) * length * (1 + 0.05 * uniform(*piece, step, copy))

    return Job(schedule, work, steady, steps=3, copies=2)


def slower(job: Job, where: Callable[[Piece, int], bool]) -> Job:
    def work(piece: Piece, step: int, copy: int) -> float:
        return job.work(piece, step, copy) * (FACTOR if where(piece, copy) else 1.0)

    return job.without(work=work)


def on_rank(job: Job, rank: int) -> Callable[[Piece, int], bool]:
    """Whether a piece runs there; of a schedule with two ways through it by microbatch, too."""
    table, m = job.schedule.placement.table, job.schedule.microbatches
    return lambda piece, _: table[piece.microbatch * len(table) // m][piece.stage] == rank


def slow_link(job: Job) -> Job:
    def wire(source: int, target: int, *more: object) -> float:
        usual = job.wire(source, target, *more)  # type: ignore[arg-type]
        return usual * 4 if {source, target} == {0, 1} else usual

    return job.without(wire=wire)


def now_and_then_slow(source: int, target: int, *which: object) -> float:
    del source, target
    return 0.7e-3 * (5 if uniform("slow", *which) < 0.15 else 1)


def late(job: Job) -> Job:
    return job.without(late=lambda piece, *where: 1e-3 * uniform("late", *piece, *where))


BACK = 1 / FACTOR
FAULTS = {
    "stage": Fault(lambda job: slower(job, lambda piece, _: piece.stage == 1), f"stage1*={BACK}"),
    "rank": Fault(lambda job: slower(job, on_rank(job, 1)), f"rank1*={BACK}"),
    "copy": Fault(lambda job: slower(job, lambda _, copy: copy == 1), f"copy1*={BACK}"),
    "forwards": Fault(lambda job: slower(job, lambda piece, _: piece.kind == "F"), f"F*={BACK}"),
    "link": Fault(slow_link, "p2p.0-1*=0.25"),
    "hosts": Fault(late, "gaps=0"),
}  # fmt: skip


def of_constant_links(name: str) -> Job:
    return healthy(made(name)).without(wire=lambda *_: 0.7e-3)


def off(job: Job, fault: str) -> float:
    """How far what is asked is from the job without the fault, as a share of that."""
    planted, removed = FAULTS[fault].planted(job), FAULTS[fault].removed
    found = diagnose(planted.observed())
    one = with_changes(found.replay, [Change.parse(removed)])
    assert one.before == pytest.approx(planted.step(), rel=1e-9)
    assert one.before > job.step()
    return abs(one.after / job.step() - 1)


FROM = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v")
PAIRS = ("dualpipe-v", "interleaved-overlap", "1f1b-overlap")
"""Schedules with overlapped pairs: what a member takes of them is known if nothing varies."""


@pytest.mark.parametrize(
    ("name", "fault", "rendezvous"), covering(product(FROM, FAULTS, (False, True)))
)
def test_a_planted_fault_that_is_removed_is_gone(name: str, fault: str, rendezvous: bool) -> None:
    """Whether or not messages wait for receivers that are posted late."""
    assert off(of_constant_links(name).without(rendezvous=rendezvous), fault) < 1e-6


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", PAIRS)
def test_a_planted_fault_in_pairs_is_gone(name: str, fault: str) -> None:
    schedule = made(name)
    job = Job(schedule, even(schedule), lambda *_: 0.7e-3, steps=2, copies=2)
    assert off(job, fault) < 1e-6


@pytest.mark.parametrize("fault", ["stage", "rank", "copy", "forwards"])
@pytest.mark.parametrize("name", FROM)
def test_of_a_run_whose_messages_wait_for_their_receivers(name: str, fault: str) -> None:
    """A receive that is posted late is no message that was long under way.

    Of one that was waited for nobody knows whether it would have waited for its receiver.
    """
    job = of_constant_links(name).without(rendezvous=True, wire=now_and_then_slow)
    assert off(job, fault) < 2e-2


@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1"])
def test_a_finding_gains_what_the_job_does_without_it(name: str, rendezvous: bool) -> None:
    """A stage that takes as long as the others, as the finding says it could.

    Of messages that nobody waited for it is not known which were slow.
    """
    schedule = made(name)
    job = Job(schedule, even(schedule), now_and_then_slow, rendezvous=rendezvous, steps=3)
    found = diagnose(slower(job, lambda piece, _: piece.stage == 1).observed())
    first = found.findings[0]
    assert (first.cause, first.where["stage"]) == ("slow-stage", 1)
    assert f"takes {FACTOR} times as long as the others" in first.text
    assert first.before - first.seconds == pytest.approx(job.step(), rel=2e-2)
    asked = with_changes(found.replay, [Change.parse(f"stage1*={BACK}")])
    assert first.gain == pytest.approx(asked.gain, abs=1e-6)


def every_fault_with_each_sort() -> list[tuple[str, str]]:
    """Pairs of schedules and faults: every schedule comes, and every fault with every sort."""
    ran = [[one for one in found if one.name in runnable()] for found in sorts().values()]
    return [(entry.name, fault) for entry, fault, _ in paired(list(FAULTS), filter(None, ran))]


@cache
def of_uneven_links(name: str) -> Job:
    return healthy(made(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault"),
    list(product(runnable(), FAULTS)) if EXPLORES else every_fault_with_each_sort(),
)
def test_of_every_schedule(name: str, fault: str) -> None:
    """What nobody waited for is taken to be usual, which differs where links do."""
    assert off(of_uneven_links(name), fault) < 1e-2


def cut(job: Job, schedule: db.Schedule) -> Work:
    """The work of a job whose model is cut into other stages at equal distances."""
    old, new = job.schedule.stages, schedule.stages
    kinds = {piece.kind for row in job.schedule.rows() for cell in row for piece in pieces(cell)}

    def whole(kind: str, stage: int, microbatch: int, step: int, copy: int) -> float:
        def of(kind: str) -> float:
            return job.work(Piece(kind, stage, microbatch, 0), step, copy)

        if kind == "F" or kind in kinds:
            return of(kind)
        return of("I") + of("W") if kind == "B" else of("B") / 2

    def work(piece: Piece, step: int, copy: int) -> float:
        low, high = piece.stage / new, (piece.stage + 1) / new
        total = 0.0
        for stage in range(old):
            part = min(high, (stage + 1) / old) - max(low, stage / old)
            if part > 1e-12:
                of_stage = whole(piece.kind, stage, piece.microbatch, step, copy)
                total += part * old * of_stage
        return total

    return work


def other(found: Diagnosis, name: str, changes: list[Change]) -> tuple[float, db.Schedule]:
    """What a schedule would take, and its order."""
    one = with_schedule(found.replay, name, changes)
    assert one.timeline is not None
    return one.after, one.timeline.schedule


def run_as_asked(
    job: Job, found: Diagnosis, changes: list[Change], names: tuple[str, ...]
) -> tuple[dict[str, float], dict[str, float]]:
    """What other schedules would take, as a trace is asked and as the job is run, by name."""
    asked, ran = {}, {}
    for name in names:
        after, schedule = other(found, name, changes)
        if schedule.slices == 1:
            asked[name] = after
            ran[name] = job.without(schedule=schedule, work=cut(job, schedule)).step()
    return asked, ran


def others(name: str, among: tuple[str, ...]) -> tuple[str, ...]:
    """Some of the schedules, so that each comes for two of those that ran; all to explore."""
    if EXPLORES:
        return among
    turn = FROM.index(name)
    return tuple(one for at, one in enumerate(among) if (at - turn) % len(FROM) < 2)


@pytest.mark.parametrize("name", FROM)
def test_another_schedule_of_the_same_model(name: str) -> None:
    job = of_constant_links(name).without(overlap=1.0)
    asked, ran = run_as_asked(job, diagnose(job.observed()), [], others(name, runnable()))
    assert asked == pytest.approx(ran, rel=1e-6)


@pytest.mark.parametrize("name", FROM)
def test_another_schedule_without_a_fault(name: str) -> None:
    job = of_constant_links(name).without(overlap=1.0)
    planted = slower(job, lambda piece, _: piece.stage == 1)
    removed = [Change.parse(f"stage1*={BACK}")]
    found = diagnose(planted.observed())
    asked, ran = run_as_asked(job, found, removed, others(name, runnable(quickly=True)))
    assert asked == pytest.approx(ran, rel=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_another_schedule_than_one_with_pairs(name: str) -> None:
    schedule = made(name)
    job = Job(schedule, even(schedule), lambda *_: 0.7e-3, overlap=0.8)
    asked, ran = run_as_asked(job, diagnose(job.observed()), [], runnable(quickly=True))
    assert asked == pytest.approx(ran, rel=1e-6)


def work_of(found: Diagnosis) -> dict[tuple[str, int, int, int], list[float]]:
    """Time of every kind, stage and microbatch that was observed, by row; slices together."""
    run, times = found.run, found.replay.times
    work: dict[tuple[str, int, int, int], list[float]] = defaultdict(lambda: [0.0] * run.rows)
    for column in np.flatnonzero(run.counted).tolist():
        kind = "F" if run.kind[column] == db.Kind.F else "B"
        unit = int(run.unit[column]) // run.schedule.slices
        key = (kind, int(run.stage[column]), unit, 0)
        work[key] = [a + b for a, b in zip(work[key], times[:, column].tolist(), strict=True)]
    return work


@pytest.mark.parametrize("name", [name for name in JOBS if "pairs" not in name])
def test_nothing_is_faster_than_the_busiest_rank(name: str) -> None:
    """Whatever the links: with the model cut as it is said to be, and no waiting at all."""
    found = run_of(name)
    run, work = found.run, work_of(found)
    old = run.schedule.stages
    for wanted in runnable(quickly=True):
        try:
            after, schedule = other(found, wanted, [])
        except DebubbleError:
            continue
        new, share = schedule.stages, np.zeros((run.rows, schedule.ranks))
        for rank, row in enumerate(schedule.rows()):
            run_there = {
                ("F" if piece.kind == "F" else "B", piece.stage, piece.microbatch)
                for cell in row for piece in pieces(cell)
            }  # fmt: skip
            for kind, stage, unit in run_there:
                low, high = stage / new, (stage + 1) / new
                for at in range(old):
                    part = max(0.0, min(high, (at + 1) / old) - max(low, at / old)) * old
                    share[:, rank] += part * np.array(work[kind, at, unit, 0])
        busiest = float(run.slowest(share.max(axis=1)).mean())
        assert after >= busiest * (1 - 1e-9), wanted
