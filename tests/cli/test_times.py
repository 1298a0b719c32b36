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
        ("F=1,F.2=1.5,F.0=2", Costs(F={"default": 1, 2: 1.5, 0: 2})),
        ("F.2=1.5,F=1", Costs(F={"default": 1, 2: 1.5})),
        ("F=1,B=2,O=2.5/2.6", Costs(F=1, B=2, O=[2.5, 2.6])),
        ("O=2.5,O.1=2.6", Costs(O={"default": 2.5, 1: 2.6})),
        ("O.1=2.6", Costs(O={1: 2.6})),
        ("OPT=1,OPT.0=2", Costs(OPT={"default": 1, 0: 2})),
        ("F=1,microbatch=1/1.2/0.8", Costs(F=1, microbatch=[1, 1.2, 0.8])),
        ("microbatch=1,microbatch.3=1.5", Costs(microbatch={"default": 1, 3: 1.5})),
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
        ("F=inf", "--times: F is 'inf'; give a number, or one per stage: F=1/1/2/1"),
        ("F=1_0", "--times: F is '1_0'; give a number, or one per stage: F=1/1/2/1"),
        ("F=٣", "--times: F is '٣'; give a number, or one per stage: F=1/1/2/1"),
        ("F=-1", "--times: F is -1; costs are not negative"),
        ("F=1e999", "--times: F is inf; give a finite number"),
        ("F=1e101", "--times: F is 1e+101; costs go to 1e+100; use another unit"),
        ("p2p=1/2", "--times: p2p is one number; a cost file takes a matrix"),
        ("bandwidth=1/2", "--times: bandwidth is one number; there is one for all"),
        ("bandwidth=0", "--times: bandwidth is 0; give a positive number"),
        ("host_bandwidth=1e-200", "--times: host_bandwidth is 1e-200; give a positive number"),
        ("host_link_shared_by=3", "--times: host_link_shared_by is 3; a link to the host serves"),
        ("kept_for_weight=2", "--times: kept_for_weight is 2; it is a share between 0 and 1"),
        ("attention=0/2", "--times: attention[1] is 2; it is a share between 0 and 1"),
        ("F.2=1.5", "--times: F.2 is for one stage; give the others, too: F=1,F.2=1.5"),
        ("F=1/2,F.1=3", "--times: F has one value per stage already; put 3 there, at stage 1, and"),
        ("F=1,F.2=1,F.2=2", "--times: F.2 is there twice; give it once"),
        ("F=1,F.2=1/2", "--times: F.2 is one number; it is for one stage"),
        ("F=1,F.x=1", "--times: unknown cost 'F.x'; "),
        ("p2p=1,p2p.1=2", "--times: unknown cost 'p2p.1'; "),
        (
            "microbatch=1/x",
            "--times: microbatch is 'x'; give a number, or one per microbatch: ",
        ),
        ("microbatch=1/-2", "--times: microbatch[1] is -2; costs are not negative"),
        ("microbatch.1=2", "--times: microbatch.1 is for one microbatch; give the others, too: m"),
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
