"""Costs typed on the command line."""

from __future__ import annotations

import pytest

from debubble.cli.times import parse_times
from debubble.core.costs import Costs
from debubble.core.errors import CostError


@pytest.mark.parametrize(
    ("text", "costs"),
    [
        ("F=1,I=1,W=1,O=2.5,p2p=0.1", Costs(F=1, I=1, W=1, O=2.5, p2p=0.1)),
        ("F=1/1/2/1, B = 2", Costs(F=[1, 1, 2, 1], B=2)),
        ("F=1e-3,OPT=3,R=1", Costs(F=0.001, OPT=3, R=1)),
        ("activation=2,kept_for_weight=0.5", Costs(activation=2, kept_for_weight=0.5)),
        ("R=0.5,recompute_kept=0/0.5", Costs(R=0.5, recompute_kept=[0, 0.5])),
        ("attention=0.3,kv=1/2,exchange=0.1", Costs(attention=0.3, kv=[1, 2], exchange=0.1)),
        ("message=5,bandwidth=10,overlap_factor=0.9",
         Costs(message=5, bandwidth=10, overlap_factor=0.9)),
    ],
)  # fmt: skip
def test_texts_are_costs_per_action(text: str, costs: Costs) -> None:
    assert parse_times(text, "--times") == costs


def test_rank_times_are_divided_by_the_schedules_chunks() -> None:
    assert parse_times("F=2,B=4", "--rank-times") == Costs.per_rank(F=2, B=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--times: '' has no value; write --times F=1,I=1,W=1"),
        ("F", "--times: 'F' has no value; write --times F=1,I=1,W=1"),
        ("F=1,,B=2", "--times: '' has no value; write --times F=1,I=1,W=1"),
        ("f=1", "--times: unknown cost 'f'; did you mean 'F'?"),
        ("p2pp=1", "--times: unknown cost 'p2pp'; did you mean 'p2p'"),
        ("chunks=2", "--times: unknown cost 'chunks'; "),
        ("F=1,F=2", "--times: F is there twice; give it once"),
        ("F=", "--times: F is ''; give a number, or one per stage: F=1/1/2/1"),
        ("F=a", "--times: F is 'a'; give a number, or one per stage: F=1/1/2/1"),
        ("F=1/", "--times: F is ''; give a number, or one per stage: F=1/1/2/1"),
        ("F=nan", "--times: F is 'nan'; give a number, or one per stage: F=1/1/2/1"),
        ("F=-1", "--times: F is -1; costs go from 0 to 1e+100"),
        ("F=1e999", "--times: F is 1e999; costs go from 0 to 1e+100"),
        ("O=1/2", "--times: O is one number; for more use a cost file"),
        ("bandwidth=0", "--times: bandwidth is 0; give a positive number"),
        ("kept_for_weight=2", "--times: kept_for_weight is 2.0; it is a share between 0 and 1"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(CostError) as caught:
        parse_times(text, "--times")
    assert str(caught.value).startswith(message)


def test_the_other_flag_says_rank() -> None:
    with pytest.raises(CostError, match="--rank-times: F is 'x'; give a number, or one per rank:"):
        parse_times("F=x", "--rank-times")


def test_parts_at_the_ends_of_the_model() -> None:
    costs = parse_times("F=1,B=2,head.F=4,head.B=8,embedding.activation=0.5", "--times")
    assert costs.head == {"F": 4, "B": 8}
    assert costs.embedding == {"activation": 0.5}
    with pytest.raises(CostError, match=r"head.F is one number; it is for one stage"):
        parse_times("head.F=4/5", "--times")
    with pytest.raises(CostError, match=r"unknown cost 'hed.F'; did you mean 'head.F'"):
        parse_times("hed.F=4", "--times")
