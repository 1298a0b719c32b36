"""What is done with random inputs, and what may come of it.

A target takes a random generator, does one input, and returns whether it was accepted. Anything but
an error of debubble, or another result than the judge's, is a failure.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import debubble as db
from debubble.engine.modes import P2P_MODES
from debubble.interchange.cost_files import parse_costs
from debubble.interchange.files import parse_schedule
from debubble.interchange.schedule_json import from_json, to_json
from tests.fuzz import inputs, queues, simulator


def try_all(schedule: db.Schedule, random: Random) -> None:
    """Everything that can be done with any schedule, good or bad."""
    mode = random.choice(P2P_MODES)
    report = db.check(
        schedule, p2p_mode=random.choice((None, mode)), memory=random.choice((None, 1))
    )
    assert str(report)
    assert report.to_dict()
    try:
        timeline = db.simulate(schedule, p2p_mode=mode)
    except db.DebubbleError:
        assert not db.check(schedule, p2p_mode=mode)
    else:
        assert timeline.memory.peak.min() >= 0
        assert math.isfinite(timeline.makespan)
    again = from_json(to_json(schedule), "x.json")
    assert again == schedule


def read(kind: str) -> Callable[[Random], bool]:
    """Damaged schedule files."""
    text_of = inputs.csv if kind == "csv" else inputs.schedule_json

    def target(random: Random) -> bool:
        text = inputs.damaged(random, text_of(random))
        try:
            schedule = parse_schedule(text, f"x.{kind}")
        except db.DebubbleError:
            return False
        try_all(schedule, random)
        return True

    return target


def costs(ending: str) -> Callable[[Random], bool]:
    """Damaged cost files."""

    def target(random: Random) -> bool:
        text = inputs.damaged(random, inputs.cost_text(random, ending))
        try:
            found = parse_costs(text, f"x.{ending}")
            schedule = db.make("1f1b", ranks=found.ranks or 2, microbatches=4)
            timeline = db.simulate(schedule, found.costs)
        except db.DebubbleError:
            return False
        assert math.isfinite(timeline.makespan)
        assert timeline.makespan >= 0
        return True

    return target


def arrays(random: Random) -> bool:
    """Schedules of hand-made arrays: any 64 bits, and almost right ones."""
    schedule = inputs.made(random, searched=False)
    actions = schedule.actions.copy()
    for _ in range(random.randint(0, 3)):
        spot = random.randrange(len(actions))
        match random.randrange(4):
            case 0:
                actions[spot] ^= 1 << random.randrange(63)
            case 1:
                actions[spot] = random.getrandbits(64) - (1 << 63)
            case 2:
                actions[spot] = (actions[spot] & ~31) | random.randrange(32)
            case _:
                actions[spot] = actions[random.randrange(len(actions))]
    try:
        bad = db.Schedule(
            "x", schedule.placement, schedule.microbatches, actions, schedule.offsets,
            iterations=schedule.iterations, slices=schedule.slices, sync=schedule.sync,
            vocabulary=schedule.vocabulary, offload_to=schedule.offload_to,
        )  # fmt: skip
    except db.DebubbleError:
        return False
    report = db.check(bad, memory=1)
    assert str(report)
    mode = random.choice(P2P_MODES)
    try:
        db.simulate(bad, p2p_mode=mode)
    except db.DebubbleError:
        assert not db.check(bad, p2p_mode=mode)
        return False
    return True


def arguments(random: Random) -> bool:
    """Arguments of the right types and any value."""
    numbers = (-(1 << 70), -1, 0, 1, 2, 3, 4, 7, 8, 1 << 20, 1 << 40, 1 << 70)
    words = ("", "full", "makespan", "global", "local", "post-validation", "x", "bubbles", "flops")
    keys = ("chunks", "iterations", "sync", "recompute", "recompute_at", "group_size", "slices",
            "objective", "published", "in_flight", "scaling", "cut", "exchange")  # fmt: skip
    options: dict[str, Any] = {
        key: random.choice((random.choice(numbers), random.choice(words), True))
        for key in random.sample(keys, random.randint(0, 2))
    }
    name = random.choice([*inputs.NAMES, "", "x"])
    small = (0, 1, 2, 3, 4, 8, -1, 1 << 70)
    try:
        made = db.make(
            name, ranks=random.choice(small), microbatches=random.choice(small), **options
        )
    except db.DebubbleError:
        return False
    assert db.check(made), str(db.check(made))
    return True


def texts(random: Random) -> bool:
    """Cells of text."""
    rows = [
        [random.choice(inputs.WORDS) for _ in range(random.randint(0, 6))]
        for _ in range(random.randint(1, 3))
    ]
    try:
        schedule = db.Schedule.from_text(
            rows, db.Placement.linear(len(rows)), random.randint(1, 3),
            slices=random.choice((1, 1, 2)), vocabulary=random.choice((0, 0, 1, 2)),
        )  # fmt: skip
    except db.DebubbleError:
        return False
    try_all(schedule, random)
    return True


def times(random: Random) -> bool:
    """Makespans and memory, beside a simulator of our own."""
    schedule = inputs.made(random, searched=random.random() < 0.1)
    cells = " ".join(cell for row in schedule.rows() for cell in row)
    other = re.search(r"\d(R|S|T|OFFLOAD|RELOAD)\d", cells)
    if schedule.sync == "post-validation" or schedule.exchange or schedule.cut or other:
        return False
    quarters = [random.randint(0, 12) / 4 for _ in range(3 * schedule.stages)]
    F, I, W = (quarters[i::3] for i in range(3))
    plain = simulator.Times(
        F, I, W, random.choice((None, 2.5)), random.choice((0.0, 1.5)),
        random.choice((0.0, 0.25, 2.0)), random.choice((0.0, 0.5, 1.0)),
    )  # fmt: skip
    asked = db.Costs(
        F=F, I=I, W=W, O=plain.O, OPT=plain.OPT, p2p=plain.p2p, kept_for_weight=plain.kept
    )
    channel = random.random() < 0.5
    timeline = db.simulate(schedule, asked, "channel" if channel else "overlapped")
    makespan, peak = simulator.simulate(schedule, plain, channel)
    assert math.isclose(timeline.makespan, makespan, abs_tol=1e-9), (schedule, makespan)
    assert np.allclose(timeline.peak_activation, peak), (schedule, peak)
    return True


def deadlocks(random: Random) -> bool:
    """What check calls safe with queued and blocking transfers gets to its end on queues."""
    schedule = inputs.lowered(random)
    mode = random.choice(("pair", "group", "blocking"))
    report = db.check(schedule, p2p_mode=mode)
    fine = complete(schedule) and queues.runs(schedule, mode)
    if report.ok:
        assert fine, (mode, schedule.rows())
    elif {problem.code for problem in report.problems} == {"deadlock"}:
        assert not fine, (mode, str(report))
    return report.ok


def complete(schedule: db.Schedule) -> bool:
    """Whether every stage runs every microbatch once, on its rank."""
    row = schedule.placement.table[0]
    counts: Counter[str] = Counter()
    for rank, cells in enumerate(schedule.rows()):
        if any(row[int(match[1])] != rank for match in map(queues.CELL.fullmatch, cells) if match):
            return False
        counts.update(cells)
    if any(count > 1 for count in counts.values()):
        return False
    return all(
        counts[f"{s}F{u}"] and (counts[f"{s}B{u}"] or (counts[f"{s}I{u}"] and counts[f"{s}W{u}"]))
        for s in range(len(row))
        for u in range(schedule.microbatches)
    )


TARGETS: dict[str, Callable[[Random], bool]] = {
    "csv": read("csv"),
    "json": read("json"),
    "cost-yaml": costs("yaml"),
    "cost-json": costs("json"),
    "cost-toml": costs("toml"),
    "arrays": arrays,
    "arguments": arguments,
    "texts": texts,
    "times": times,
    "deadlocks": deadlocks,
}
"""All targets by name."""
