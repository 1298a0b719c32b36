"""Every kind of action with all that has to know it: a new kind without support fails here."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import debubble as db
from debubble.analysis.bubbles import bubbles
from debubble.core.actions import STAGE_MASK, STAGE_SHIFT, kinds_of, unpack
from debubble.core.errors import ScheduleError
from debubble.core.kinds import KINDS, Kind, Of, Stream
from debubble.core.waits import waits_for
from debubble.engine.memory import AMOUNTS
from debubble.interchange.trace_events import TITLES, trace_text
from debubble.lowering.chain import lower
from debubble.schedules.registry import Entry
from debubble.view.timeline_data import encode
from tests.kinds import COSTS, MADE, schedule_with
from tests.strategies import ENTRIES

BY_CELL = (Of.STAGE, Of.CARRIED_FROM, Of.CARRIED_TO, Of.LAST_STAGE, Of.EVERY_SHARD)
# Receives stand between, not among, the needs; checks ask for both ends of a transfer.
STOPS_NOTHING = set(Kind) - {
    kind
    for spec in KINDS
    for need in spec.needs
    if not need.optional and need.of in BY_CELL
    for kind in need.kinds
}
every_kind = pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)


def spots_of(schedule: db.Schedule, kind: Kind) -> list[int]:
    spots: list[int] = np.flatnonzero(kinds_of(schedule.actions) == kind).tolist()
    assert spots, f"{schedule.name} has no {kind.name}"
    return spots


def changed(schedule: db.Schedule, spot: int, change: str) -> db.Schedule:
    """The schedule with one action removed, repeated, on another rank, or of no stage."""
    programs = [schedule.program(rank).tolist() for rank in range(schedule.ranks)]
    rank = schedule.rank_of(spot)
    index = spot - int(schedule.offsets[rank])
    code = programs[rank][index]
    if change == "removed":
        del programs[rank][index]
    elif change == "repeated":
        programs[rank].insert(index, code)
    elif change == "moved":
        del programs[rank][index]
        programs[(rank + 1) % schedule.ranks].append(code)
    else:
        programs[rank][index] = code & ~(STAGE_MASK << STAGE_SHIFT) | 99 << STAGE_SHIFT
    return replace(
        schedule,
        actions=np.concatenate([np.array(program, dtype=np.int64) for program in programs]),
        offsets=np.cumsum([0, *map(len, programs)]),
    )


@every_kind
def test_it_is_simulated_after_what_it_waits_for(kind: Kind) -> None:
    schedule = schedule_with(kind)
    timeline = db.simulate(schedule, COSTS)
    waits = waits_for(schedule)
    for spot in spots_of(schedule, kind):
        producers = waits.of(spot)
        # Both ends of a transfer run at the same time.
        begin = timeline.end[spot] if KINDS[kind].receives else timeline.start[spot]
        assert (timeline.end[producers] <= begin + 1e-9).all()
    wanting = [need for need in KINDS[kind].needs if need.when(schedule) and not need.optional]
    found = sum(len(waits.of(spot)) for spot in spots_of(schedule, kind))
    assert (found > 0) == bool(wanting)


@every_kind
def test_it_is_checked(kind: Kind) -> None:
    schedule = schedule_with(kind)
    assert db.check(schedule).ok
    spot = spots_of(schedule, kind)[0]
    for change in ("removed", "repeated", "moved", "no stage"):
        free = kind in (Kind.RESHARD, Kind.R, Kind.WAIT_OFFLOAD) or kind not in MADE
        if change == "removed" and free:
            # Weights that are never dropped are held, what is not recomputed is stored, who waits
            # for no copy holds more, and work that no schedule makes need not be there.
            continue
        report = db.check(changed(schedule, spot, change))
        assert not report.ok, change
        texts = " ".join(str(problem) for problem in report.problems)
        assert kind.name in texts, change


@every_kind
def test_what_cannot_run_for_lack_of_it_is_explained(kind: Kind) -> None:
    schedule = schedule_with(kind)
    missed = [
        (spec.kind, need)
        for spec in KINDS
        for need in spec.needs
        if kind in need.kinds and not need.optional and need.when(schedule) and need.of in BY_CELL
    ]
    waits = waits_for(schedule)
    kinds = kinds_of(schedule.actions)
    consumers = {by for by, _ in missed}
    spots = [
        int(producer)
        for consumer, producer in zip(waits.consumer, waits.producer, strict=True)
        if kinds[consumer] in consumers and kinds[producer] == kind
    ]
    # Others either are needed by steps and reductions only, or nobody has to have them.
    assert bool(spots) == (kind not in STOPS_NOTHING)
    if not spots:
        return
    gone = unpack(int(schedule.actions[spots[0]]))
    with pytest.raises(ScheduleError) as refused:
        db.simulate(changed(schedule, spots[0], "removed"), COSTS)
    # A backward is either I or B: the message may name one for the other.
    alternatives = {other for _, need in missed for other in need.kinds} | {kind}
    names = [schedule.text(gone._replace(kind=other)) for other in alternatives]
    assert any(name in str(refused.value) for name in names)


@every_kind
def test_its_waits_have_causes(kind: Kind) -> None:
    timeline = db.simulate(schedule_with(kind), COSTS)
    idle = timeline.makespan - timeline.busy
    assert idle.any()
    np.testing.assert_allclose(bubbles(timeline).totals.sum(axis=1), idle)


@every_kind
def test_it_is_a_slice_of_a_trace_on_the_thread_of_its_stream(kind: Kind) -> None:
    schedule = schedule_with(kind)
    events = json.loads("".join(trace_text(db.simulate(schedule, COSTS))))["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X" and event["cat"] == kind.name]
    assert len(drawn) == len(spots_of(schedule, kind))
    stream = KINDS[kind].stream
    (thread,) = {event["tid"] for event in drawn}
    assert (thread == 0) == (stream is Stream.COMPUTE)
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named[thread] == TITLES[thread]


@every_kind
def test_the_page_gets_it(kind: Kind) -> None:
    timeline = db.simulate(schedule_with(kind), COSTS)
    data = encode([timeline])
    (row,) = [row for row in data["kinds"] if row["name"] == kind.name]
    assert row["title"]
    assert row["color"]
    json.dumps(data)
    # Every action is drawn, and all idle time has a cause.
    (drawn,) = data["timelines"]
    idle = timeline.makespan - timeline.busy
    np.testing.assert_allclose(np.sum(drawn["idle"], axis=0), idle)


@every_kind
def test_it_is_written_and_read(kind: Kind, tmp_path: Path) -> None:
    schedule = schedule_with(kind)
    schedule.save(tmp_path / "x.json")
    assert db.load(tmp_path / "x.json") == schedule


FORMS = ({}, {"recompute": "full"}, {"recompute": "full", "recompute_at": "with-backward"},
         {"transfers": "eager"}, {"sharding": "fsdp"})  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_nothing_starts_before_what_it_waits_for_has_ended(entry: Entry) -> None:
    tried = 0
    for microbatches in (8, 12):
        for form in FORMS:
            try:
                made = db.make(entry.name, ranks=4, microbatches=microbatches, iterations=2)
                schedule = lower(made, **form)  # type: ignore[arg-type]
            except db.ParameterError:
                continue
            timeline = db.simulate(schedule)
            waits = waits_for(schedule)
            assert len(waits.producer)
            early = timeline.start[waits.consumer] < timeline.end[waits.producer] - 1e-9
            # Both ends of a transfer run at the same time.
            ends = np.array([spec.receives for spec in KINDS])[
                kinds_of(schedule.actions[waits.consumer])
            ]
            assert not (early & ~ends).any()
            tried += 1
    assert tried


RAW = re.compile(
    r"\bkinds?\w*(?:\[[^\]]*\])?\s*(?:[<>]=?\s*(?:Kind\.|\d)|[!=]=\s*\d)|&\s*31\b|\bKind\(\d"
)
ALLOWED = {
    "core/kinds.py": "the table",
    "listing/kernel.py": "compiled; its own three numbers, F, I and W",
    "optimize/cp_sat/model.py": "its own three numbers, F, I and W",
    "optimize/periodic/pattern.py": "its own three numbers, F, I and W",
    "optimize/anneal/annealer.py": "counts kinds",
    "view/bars.py": "its own table of what it draws",
    "core/actions.py": "asks whether a number is a kind at all",
    "analysis/structure.py": "asks whether a number is a kind at all",
}


def test_kinds_have_no_numbers_and_no_order_outside_the_table() -> None:
    source = Path(db.__file__).parent
    found: dict[str, list[str]] = {}
    files = [
        path for path in source.rglob("*.py") if "engine" not in path.relative_to(source).parts
    ]
    assert len(files) > 100
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines()
        raw = [line.strip() for line in lines if RAW.search(line)]
        name = path.relative_to(source).as_posix()
        if raw and name not in ALLOWED:
            found[name] = raw
    assert not found


def test_every_quantity_of_memory_is_taken_or_freed_by_a_kind() -> None:
    named = {name for spec in KINDS for name in (*spec.takes, *spec.frees)}
    assert named == set(AMOUNTS)
