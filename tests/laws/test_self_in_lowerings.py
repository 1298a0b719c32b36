"""A schedule under its name and as its own file is the same thing, however it is lowered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.engine.modes import MODE, P2P_MODES, P2PMode
from debubble.interchange.files import load, save
from debubble.schedules.registry import Entry
from tests.lowerings import Case, cases
from tests.pairs import each_family_with_some
from tests.small import smallest

each_with_modes = each_family_with_some("p2p_mode", P2P_MODES)


def answer(schedule: db.Schedule | str, case: Case, p2p_mode: P2PMode) -> tuple[Any, ...]:
    """Programs, verdict, and times and memory of a schedule that runs; else why there is none."""
    if isinstance(schedule, str):
        return (schedule,)
    good = db.check(schedule, **case.setting, p2p_mode=p2p_mode).ok
    try:
        timeline = db.simulate(schedule, case.costs, p2p_mode)
    except db.ScheduleError:
        return schedule.rows(), good
    return schedule.rows(), good, timeline.makespan, timeline.peak_activation.tolist()


def made(name: str, case: Case, p2p_mode: P2PMode, **sizes: int) -> db.Schedule | str:
    """A schedule by a name, or what the refusal of its lowerings says."""
    try:
        return db.make(name, **case.lowering, **case.setting, p2p_mode=p2p_mode, **sizes)
    except db.DebubbleError as error:
        return str(error).replace(" (changed)", "")


@each_with_modes
def test_a_name_and_its_own_file(entry: Entry, p2p_mode: P2PMode, tmp_path: Path) -> None:
    sizes: dict[str, int] = {"ranks": 4, "microbatches": smallest(entry).microbatches}
    path, again = tmp_path / "order.json", tmp_path / "lowered.json"
    for case in cases(f"{entry.name} {p2p_mode}", 2):
        by_name = made(entry.name, case, p2p_mode, **sizes)
        found = [answer(by_name, case, p2p_mode)]
        if "storage" not in entry.parameters:
            # The order of others depends on what is stored, and that of a file cannot.
            save(db.make(entry.name, **sizes, **case.setting), path)
            found.append(answer(made(str(path), case, p2p_mode), case, p2p_mode))
        if isinstance(by_name, db.Schedule):
            save(by_name, again)
            found.append(answer(load(again), case, p2p_mode))
        assert found == found[:1] * len(found), case


@pytest.mark.parametrize("entry", db.schedules(), ids=lambda entry: entry.name)
@pytest.mark.parametrize("p2p_mode", ["overlapped", "channel"])
def test_what_is_carried_takes_as_long_as_actions_as_without(
    entry: Entry, p2p_mode: P2PMode
) -> None:
    """Where transfers are no actions the engine places them: in pairs, neighbors' come first."""
    sizes: dict[str, Any] = {"ranks": 4, "microbatches": smallest(entry).microbatches}
    last = db.make(entry.name, **sizes).placement.stages - 1
    costs = db.Costs(F=1, B=2, p2p=0.25, p2p_carry=3)
    plain, lowered = (
        db.make(entry.name, **sizes, carry=[(0, last)], transfers=policy)
        for policy in (None, "eager")
    )
    expected = db.simulate(plain, costs, p2p_mode).makespan
    assert db.simulate(lowered, costs, p2p_mode).makespan == pytest.approx(expected)


@each_with_modes
def test_what_replicas_exchange_is_the_same_next_to_transfers_as_actions(
    entry: Entry, p2p_mode: P2PMode
) -> None:
    """Where transfers are no actions the engine inserts them: the times are those of its policy."""
    sizes: dict[str, Any] = {"ranks": 4, "microbatches": smallest(entry).microbatches}
    costs = db.Costs(F=1, B=2, R=1, p2p=0.75, unshard=0.5, reduce_grad=1.5, OPT=1)
    policy = MODE[p2p_mode].receives or "eager"
    for sharding in ("ddp", "fsdp"):
        schedules = [
            db.make(entry.name, **sizes, iterations=2, sharding=sharding, transfers=transfers)
            for transfers in (None, policy)
        ]
        ends = [db.simulate(schedule, costs, p2p_mode).makespan for schedule in schedules]
        assert ends[0] == pytest.approx(ends[1]), sharding


@pytest.mark.parametrize("p2p_mode", P2P_MODES)
def test_every_surface_lowers_alike(p2p_mode: P2PMode, tmp_path: Path) -> None:
    from debubble.sweeps.commands import simulate

    name, sizes = "interleaved-1f1b", {"ranks": 4, "microbatches": 8}
    path = tmp_path / "order.json"
    save(db.make(name, **sizes), path)
    for case in cases(p2p_mode, 4):
        parameters = {**sizes, **case.setting, **case.lowering, "p2p_mode": p2p_mode}
        by_name, by_file = (db.compare([item], **parameters).rows for item in (name, str(path)))
        try:
            made = db.make(name, **parameters)
            direct = db.simulate(made, case.costs, p2p_mode)
        except db.DebubbleError:
            assert (*by_name, *by_file) == (), case
            continue
        swept = {"schedule": name, **parameters, "costs": _CostFile(case.costs)}
        (of_sweep,) = simulate({key: value for key, value in swept.items() if value is not None})
        found = {
            by_name[0].makespan, by_file[0].makespan, direct.makespan, of_sweep["makespan"],
        }  # fmt: skip
        assert len(found) == 1, case
        assert by_name[0].schedule == made, case
        assert by_file[0].schedule.rows() == made.rows(), case


class _CostFile:
    """Costs as a sweep has read them."""

    ranks = microbatches = chunks = memory_limit = None

    def __init__(self, costs: db.Costs) -> None:
        self.costs = costs
