"""Law of what changes nothing: a neutral value of an option moves no number of any surface."""

from __future__ import annotations

from typing import Any

import pytest

import debubble as db
from debubble.analysis.question import OPTIONS
from debubble.core.options import OptionSpec
from debubble.schedules.registry import find
from tests.command import call
from tests.laws.surfaces import SCHEDULES, Case, answered, given, numbers, without

NEUTRAL = [row for row in OPTIONS if row.neutral]


@pytest.mark.parametrize("row", NEUTRAL, ids=lambda row: row.name)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_neutral_value_moves_nothing(name: str, row: OptionSpec) -> None:
    if row.name in find(name).parameters:
        pytest.skip(f"{name} is another order where there is {row.name} to fill")
    plain, neutral = Case(name, without(row)), Case(name, given(row, row.neutral))
    assert numbers("simulate", neutral) == numbers("simulate", plain)
    assert numbers("compare", neutral) == numbers("compare", plain)


@pytest.mark.parametrize("row", NEUTRAL, ids=lambda row: row.name)
def test_a_neutral_value_moves_no_other_schedule(row: OptionSpec) -> None:
    def rows(case: Case) -> Any:
        data = answered("compare", *SCHEDULES, *case.words(), "--json").data
        return [(row["schedule"], row["makespan"], row["peak_activation"]) for row in data["rows"]]

    assert rows(Case("", given(row, row.neutral))) == rows(Case("", without(row)))


@pytest.mark.parametrize("text", ["p2p=0", "launch=0", "OPT=0", "kept_for_weight=1", "kv=0"])
def test_a_cost_of_nothing_is_no_cost(text: str) -> None:
    for name in SCHEDULES:
        assert numbers("compare", Case(name, {"times": text})) == numbers("compare", Case(name))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("what", ["--jitter normal:0% --samples 10", "--slow rank1=1"])
def test_jitter_of_nothing_varies_nothing(name: str, what: str) -> None:
    data = call("simulate", name, *Case(name).words(), *what.split(), "--json").data
    assert data["jitter"]["mean"] == data["makespan"]
    assert data["jitter"]["p95"] == data["makespan"]


def test_one_replica_is_no_replica() -> None:
    words = ["1f1b", *Case("1f1b").words(), "--jitter", "normal:5%", "--samples", "50", "--json"]
    alone = call("simulate", *words).data["jitter"]
    assert call("simulate", *words, "--replicas", "1").data["jitter"] == alone


@pytest.mark.parametrize("lowering", ["recompute", "offload"])
def test_a_lowering_of_no_stages_is_none(lowering: str) -> None:
    made = db.make("1f1b", ranks=4, microbatches=8)
    (plain,) = db.compare([made]).rows
    (row,) = db.compare([made], **{lowering: []}, costs=db.Costs(host_bandwidth=1)).rows
    assert (row.makespan, row.peak_activation) == (plain.makespan, plain.peak_activation)
