from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import debubble as db
from debubble.core.actions import Program
from debubble.core.sequence import alternate, backward, forward
from debubble.schedules import registry
from debubble.schedules._entry import CONDITIONS


def test_founding_schedules_are_there() -> None:
    names = {entry.name for entry in db.schedules()}
    assert names >= {
        "gpipe", "1f1b", "eager-1f1b", "pipedream-2bw", "eager-2bw", "interleaved-1f1b", "zb-h1",
        "zb-v", "1f1b-overlap", "interleaved-overlap", "dualpipe", "dualpipe-v",
    }  # fmt: skip


@pytest.mark.parametrize("entry", db.schedules(), ids=lambda entry: entry.name)
def test_every_entry_explains_itself(entry: registry.Entry) -> None:
    assert entry.title
    assert 2018 <= entry.year <= 2026
    assert entry.source
    assert len(entry.text) > 100
    assert entry.text.count("When to use it: ") == 1
    assert 40 < len(entry.use) < 420
    assert entry.forms
    for form in entry.forms:
        assert form.quantity in {"makespan", "stage_time", "bubble_time", "peak_activation"}
        assert form.accuracy in {"exact", "upper bound", "lower bound", "approximation"}


def test_aliases_lead_to_the_same_schedule() -> None:
    assert db.make("zb-1p", ranks=2, microbatches=2) == db.make("zb-h1", ranks=2, microbatches=2)
    assert registry.find("ZB_1P").name == "zb-h1"


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("1f1bb", {}, "unknown schedule '1f1bb'; did you mean '1f1b'"),
        ("1f1b", {"ranks": 0}, "ranks is 0; it goes from 1 to 4,096"),
        ("1f1b", {"microbatches": -3}, "microbatches is -3"),
        ("1f1b", {"microbatches": 2.5}, "microbatches is 2.5; give a whole number"),
        ("1f1b", {"ranks": True}, "ranks is True; give a whole number"),
        ("1f1b", {"chunks": 2}, "'1f1b' has chunks = 1; got 2"),
        ("1f1b", {"group_size": 2}, "unknown option 'group_size' of schedule '1f1b'"),
        ("interleaved-1f1b", {"group_siz": 2}, "did you mean 'group_size'"),
        (
            "interleaved-1f1b",
            {"microbatches": 10},
            "needs microbatches in groups of group_size, with none or at least `ranks` left over "
            ".*; microbatches is 10; the nearest that works is 8",
        ),
        (
            "interleaved-1f1b",
            {"group_size": 3},
            "a group_size .* from ranks to microbatches; group_size is 3; the nearest that works "
            "is 4",
        ),
        ("dualpipe", {"ranks": 3}, "an even number of ranks; ranks is 3; .* is 2"),
        ("dualpipe", {"microbatches": 7}, "microbatches is 7; the nearest that works is 8"),
        ("dualpipe-v", {"microbatches": 4}, "at least 2·ranks .* nearest that works is 8"),
        ("pipedream-2bw", {"microbatches": 3}, "as many microbatches as ranks.* is 4"),
        ("eager-2bw", {"microbatches": 4}, "more microbatches than ranks.* is 5"),
        ("1f1b", {"microbatches": 1 << 24, "ranks": 4096}, "actions; the limit is"),
        ("1f1b", {"memory": 0}, "memory is 0"),
        ("1f1b", {"iterations": 0}, "iterations is 0"),
    ],
)
def test_refusals_name_constraint_value_and_way_out(
    name: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(db.ParameterError, match=message):
        db.make(name, **({"ranks": 4, "microbatches": 8} | parameters))


def test_the_nearest_value_works() -> None:
    for microbatches in range(1, 40):
        entry = registry.find("dualpipe")
        case = entry.case(ranks=6, microbatches=microbatches)
        near = registry.nearest(entry, case, "microbatches")
        assert near is not None
        db.make("dualpipe", ranks=6, microbatches=near)


@pytest.fixture
def user_schedule() -> Iterator[str]:
    @db.register(
        "one-by-one",
        title="No overlap at all",
        year=2026,
        source="this test",
        placement=db.Placement.loop,
        chunks=1,
    )
    def one_by_one(*, ranks: int, microbatches: int) -> Iterator[Program]:
        """Microbatch after microbatch."""
        for rank in range(ranks):
            numbers = range(microbatches)
            yield alternate(forward(rank, numbers), backward(rank, numbers))

    yield "one-by-one"
    registry._ENTRIES.pop("one-by-one")


def test_users_register_their_own(user_schedule: str) -> None:
    assert user_schedule in {entry.name for entry in db.schedules()}
    timeline = db.simulate(db.make(user_schedule, ranks=3, microbatches=4))
    assert timeline.makespan == 4 * 3 * 3


def test_iterations_end_in_an_optimizer_step_on_every_rank() -> None:
    for entry in db.schedules():
        schedule = db.make(entry.name, ranks=2, microbatches=8, iterations=3)
        for program in schedule:
            steps = [action for action in program if action.kind == db.Kind.OPT]
            assert [step.microbatch for step in steps] == [0, 1, 2]
            assert program[-1].kind == db.Kind.OPT


def test_a_flush_drains_and_no_flush_does_not() -> None:
    costs = db.Costs(F=1, B=2)
    flushed = db.simulate(db.make("1f1b", ranks=4, microbatches=8, iterations=3), costs)
    going_on = db.simulate(db.make("pipedream-2bw", ranks=4, microbatches=8, iterations=3), costs)
    assert flushed.makespan == 3 * (8 + 3) * 3
    assert going_on.makespan == (3 * 8 + 3) * 3


def test_a_flush_waits_for_all_ranks_before_anyone_steps() -> None:
    costs = db.Costs(F=1, B=2, OPT=5)
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8, iterations=2), costs)
    steps = timeline.start[(timeline.schedule.actions & 31) == db.Kind.OPT]
    assert steps.tolist() == [33, 71] * 4
    assert timeline.makespan == 2 * (33 + 5)


def test_common_words_of_a_condition_say_when_a_form_holds() -> None:
    form = registry.makespan_is(
        "m(F + B)", condition="no latency, m ≥ p, odd", holds=lambda case: case.m % 2 == 1
    )
    for latency, microbatches, holds in ((0, 5, True), (1, 5, False), (0, 3, False), (0, 6, False)):
        assert form.holds(SimpleNamespace(c=latency, m=microbatches, p=4)) == holds
    words = {word for entry in db.schedules() for form in entry.forms for word in
             form.condition.split(", ")}  # fmt: skip
    assert set(CONDITIONS) <= words
