"""Cuts as Megatron-LM's layout string and as torchtitan's and Automodel's module names."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import debubble as db
from debubble.interchange.layouts import (
    AUTOMODEL,
    TORCHTITAN,
    TORCHTITAN_0_2,
    check_cut,
    cut_layout,
    cut_text,
    megatron_layout,
    parse_layout,
)

DEEPSEEK = "Et*3|(tt|)*29,m|L"
"""DeepSeek-V3 on 16 ranks with 2 chunks: the example of Megatron-LM's documentation."""


def unrolled(text: str) -> list[str]:
    """The grammar once more, as rewriting: groups first, then letters."""
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*([0-9]+)", r"(.)\*([0-9]+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def test_published_layouts() -> None:
    layout = parse_layout(DEEPSEEK)
    assert layout.stages == ("Ettt", *["tt"] * 29, "m", "L")
    assert sum(layout.layers) == 61
    assert sum(layout.mtp) == 1
    ranks = layout.on_ranks(16)
    assert ranks[0] == ["Ettt", "tt"]
    assert ranks[1:14] == [["tt", "tt"]] * 13
    assert ranks[14:] == [["tt", "m"], ["tt", "L"]]
    assert str(layout) == DEEPSEEK.replace(",", "")
    assert str(cut_layout([1, *[2] * 30, 0], mtp=1)) == "Et|(tt|)*30mL"
    assert parse_layout("E|(t|)*3,m|m||L").stages == ("E", "t", "t", "t", "m", "m", "", "L")
    with pytest.raises(db.ParameterError, match="32 stages; 5 ranks take a multiple"):
        layout.on_ranks(5)


@given(st.lists(st.sampled_from([0, 1, 2, 3, 4, 11]), min_size=1, max_size=40), st.integers(0, 2))
def test_what_is_written_is_read_again(cut: list[int], mtp: int) -> None:
    layout = cut_layout(cut, mtp)
    assert layout.layers == tuple(cut)
    assert parse_layout(str(layout)) == layout
    assert unrolled(str(layout)) == list(layout.stages)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=5), st.integers(2, 9))
def test_groups_that_repeat_are_written_once(units: list[list[int]], times: int) -> None:
    cut = [1, *(count for unit in units for count in unit * times), 1]
    text = str(cut_layout(cut))
    assert parse_layout(text).layers == tuple(cut)
    assert len(text) <= sum(cut) + len(cut) + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Etx|L", "a layout has the letter 'x'; it is made of E"),
        ("tt|L", "in the order ttL; it is one E, all t, all m, one L"),
        ("Et|mt|L", "in the order EtmtL"),
        ("E|tt", "in the order Ett"),
        ("Et|(tt|L", r"a layout has '\(tt|L' where a letter of EtmL"),
        ("Et|(tt|)L", "where a letter of EtmL, a bar or a group"),
        ("Et||*L", r"a layout has '\*L' where"),
        ("", "in the order ; it is one E"),
        ("Et*999999L", "more than 65,536 layers"),
        ("E(t*999|)*999L", "more than 65,536 layers"),
    ],
)
def test_what_is_no_layout_is_refused(text: str, message: str) -> None:
    with pytest.raises(db.FormatError, match=message):
        parse_layout(text)


def test_only_loops_have_a_layout() -> None:
    assert megatron_layout(db.Placement.loop(2, 2), [1, 2, 2, 1]) == "Et|tt|tt|tL"
    for placement in (db.Placement.v(2), db.Placement.block(2, 2), db.Placement.bidirectional(4)):
        with pytest.raises(db.ParameterError, match=f"'{placement.name}' cannot be written"):
            megatron_layout(placement, [1, 2, 2, 1])


def test_a_cut_names_the_modules_of_every_stage() -> None:
    cut = [1, 2, 1, 0]
    stages = [["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["layers.3"],
              ["norm", "lm_head"]]  # fmt: skip
    assert TORCHTITAN.of(cut) == stages
    assert TORCHTITAN_0_2.of(cut)[-1] == ["norm", "output"]
    assert AUTOMODEL.of([1]) == [
        ["model.embed_tokens", "model.layers.0", "model.norm", "lm_head", "model.rotary_emb"]
    ]
    assert json.loads(cut_text(db.Placement.loop(2, 2), cut)) == {
        "layers": cut, "torchtitan": stages, "torchtitan<=0.2.2": TORCHTITAN_0_2.of(cut),
        "automodel": AUTOMODEL.of(cut), "megatron": "Et|tt|t|L",
    }  # fmt: skip
    assert json.loads(cut_text(db.Placement.v(2), cut))["megatron"] is None


def test_cuts_that_do_not_fit_are_refused() -> None:
    schedule = db.make("interleaved-1f1b", ranks=2, microbatches=4)
    for cut in ([1, 2, 1, 1], [0, 2, 2, 0]):
        check_cut(schedule, cut)
    with pytest.raises(db.ParameterError, match="2 stages; give the layers of each of its 4"):
        check_cut(schedule, [1, 2])
    for wrong in ([1, 2, 0, 1], [-1, 2, 2, 1]):
        with pytest.raises(db.ParameterError, match="give each of its 4 stages at least one layer"):
            check_cut(schedule, wrong)
