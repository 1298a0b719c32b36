"""Each rule of a runtime changes what it says and no more."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

import debubble as db
from debubble import Costs, Kind, Schedule
from debubble.core.actions import kinds_of, stages_of
from debubble.core.errors import ParameterError
from debubble.core.runtimes import (
    FIRST_IN_W,
    I_FREES_NOTHING,
    RECOMPUTED_WHOLE,
    RECOMPUTES_LATE,
    RUNTIMES,
    Runtime,
    RuntimeRule,
)
from debubble.schedules.registry import Entry
from tests import oracle

ENTRIES = db.schedules()
RULED = [runtime for runtime in RUNTIMES.values() if runtime.rules]
COSTS = Costs(F=1, I=1.25, W=0.75, B=2.0, R=0.5, p2p=0.25, kept_for_weight=0.5, recompute_kept=0.25)
RECOMPUTED = (None, "full", (1,))


@cache
def made(name: str, recompute: object = None, runtime: str = "any") -> Schedule:
    for microbatches in range(4, 17):
        try:
            return db.make(
                name, ranks=2, microbatches=microbatches, recompute=recompute,
                costs=replace(COSTS, runtime=runtime),
            )  # fmt: skip
        except ParameterError as error:
            if "microbatches" not in str(error):
                pytest.skip(str(error))
    raise AssertionError(f"{name} accepts no number of microbatches")


def written_out(schedule: Schedule, rules: tuple[RuntimeRule, ...]) -> Costs:
    """Costs of a runtime that does what the actions say, with what rules say written for stages."""
    kinds, stages = kinds_of(schedule.actions), stages_of(schedule.actions)
    again = set(stages[kinds == Kind.R].tolist())
    I, W, kept = [1.25] * schedule.stages, [0.75] * schedule.stages, [0.5] * schedule.stages
    if FIRST_IN_W in rules:
        I[0], W[0], kept[0] = 0.0, 2.0, 1.0
    if I_FREES_NOTHING in rules:
        kept = [1.0] * schedule.stages
    if RECOMPUTED_WHOLE in rules:
        for stage in again:
            I[stage], W[stage], kept[stage] = 2.0, 0.0, 0.0
    return replace(COSTS, I=I, W=W, kept_for_weight=kept)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_runtime_is_its_rules_written_out(entry: Entry) -> None:
    for runtime, recompute in product(RULED, RECOMPUTED):
        schedule = made(entry.name, recompute)
        late = schedule
        if RECOMPUTES_LATE in runtime.rules:
            late = replace(schedule, recompute_after="gradient")
        wanted = written_out(schedule, runtime.rules)
        found = db.simulate(schedule, replace(COSTS, runtime=runtime.name))
        assert found.makespan == pytest.approx(oracle.simulate(late, wanted).makespan)
        plain = db.simulate(late, wanted)
        assert np.allclose(found.start, plain.start)
        assert np.allclose(found.peak_activation, plain.peak_activation)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_no_rule_promises_less_memory_or_work(entry: Entry) -> None:
    for recompute in RECOMPUTED:
        schedule = made(entry.name, recompute, "torch")
        plain = db.simulate(schedule, COSTS)
        theirs = db.simulate(schedule, replace(COSTS, runtime="torch"))
        assert sum(theirs.busy) == pytest.approx(sum(plain.busy))
        if recompute is None:
            assert np.all(theirs.peak_activation >= plain.peak_activation - 1e-9)


@pytest.mark.parametrize("runtime", RULED, ids=lambda runtime: runtime.name)
def test_without_what_a_rule_is_about_it_changes_nothing(runtime: Runtime) -> None:
    """Whole backwards and no recompute: no rule has anything to do."""
    schedule = made("1f1b")
    found, plain = (db.simulate(schedule, replace(COSTS, runtime=n)) for n in (runtime.name, "any"))
    assert np.array_equal(found.start, plain.start)
    assert found.peak_activation.tolist() == plain.peak_activation.tolist()


def test_every_rule_is_in_the_conventions_and_the_documents() -> None:
    from pathlib import Path

    text = " ".join(Path("docs/costs.md").read_text(encoding="utf-8").split())
    for runtime in RULED:
        for rule in runtime.rules:
            assert rule.text in text, f"docs/costs.md does not say of {runtime.name}: {rule.text}"


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 16)])
def test_recompute_leaves_pytorch_nothing_to_gain_from_a_split(p: int, m: int) -> None:
    costs = Costs(runtime="torch")
    whole, split = (
        db.simulate(db.make(name, ranks=p, microbatches=m, recompute="full", costs=costs), costs)
        for name in ("interleaved-1f1b", "interleaved-zb")
    )
    assert split.makespan >= whole.makespan - 1e-9


@pytest.mark.parametrize("recompute", ["none", "full", (0,)])
@pytest.mark.parametrize("runtime", RULED, ids=lambda runtime: runtime.name)
def test_the_search_and_the_simulation_have_the_same_rules(
    runtime: Runtime, recompute: str | tuple[int, ...]
) -> None:
    costs = replace(COSTS, runtime=runtime.name)
    found = db.optimize(
        ranks=2, chunks=2, microbatches=3, costs=costs, recompute=recompute, cache=False, effort=0.2
    )
    again = db.simulate(found.schedule, costs)
    assert found.makespan == pytest.approx(again.makespan)
    assert found.timeline.peak_activation.tolist() == again.peak_activation.tolist()
    assert found.lower_bound <= found.makespan * (1 + 1e-9)
