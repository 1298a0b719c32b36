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
    Layout,
    check_cut,
    cut_text,
    layout_text,
    megatron_layout,
    read_layout,
)


def unrolled(text: str) -> list[str]:
    """Letters of every stage, by the grammar as rewriting: groups first, then letters."""
    for pattern in (r"\(([^)]+)\)\*([0-9]+)", r"(.)\*([0-9]+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def layers_in(text: str) -> list[int]:
    """Decoder layers of every stage of a layout, which is one E, all t, all m, one L."""
    stages = unrolled(text)
    assert re.fullmatch("Et*m*L", "".join(stages))
    return [stage.count("t") for stage in stages]


def test_published_layouts() -> None:
    # DeepSeek-V3 on 16 ranks with 2 chunks, the example of Megatron-LM's documentation, which has
    # the last stages as "m|L".
    assert layout_text([3, *[2] * 29, 0], mtp=1) == "Et*3|(tt|)*29mL"
    assert layout_text([1, *[2] * 30, 0], mtp=1) == "Et|(tt|)*30mL"
    assert read_layout("Et*3|(tt|)*29,m|L") == Layout((3, *[2] * 29, 0, 0), 1, 30)
    assert str(read_layout("Et*3|(tt|)*29,m|L")) == "Et*3|(tt|)*29m|L"


@given(st.lists(st.sampled_from([0, 1, 2, 3, 4, 11]), min_size=1, max_size=40), st.integers(0, 2))
def test_what_is_written_is_read_again(cut: list[int], mtp: int) -> None:
    text = layout_text(cut, mtp)
    assert layers_in(text) == cut
    assert unrolled(text)[-1].endswith("m" * mtp + "L")
    assert read_layout(text) == Layout(tuple(cut), mtp)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=20), st.integers(1, 2), st.data())
def test_multi_token_prediction_is_read_where_it_is_written(
    cut: list[int], mtp: int, data: st.DataObject
) -> None:
    last = max((stage for stage, count in enumerate(cut) if count), default=0)
    stage = data.draw(st.integers(last, len(cut) - 1))
    text = layout_text(cut, mtp, stage)
    assert read_layout(text) == Layout(tuple(cut), mtp, None if stage == len(cut) - 1 else stage)
    assert unrolled(text)[stage].count("m") == mtp


def accepted(text: str) -> Layout | None:
    try:
        return read_layout(text)
    except db.ParameterError:
        return None


def has_cells(found: Layout, stages: list[str]) -> bool:
    """Whether a layout says what the cells of its stages say."""
    of_mtp = len(stages) - 1 if found.mtp_stage is None else found.mtp_stage
    mtp = [found.mtp > 0 and stage == of_mtp for stage in range(len(stages))]
    return (
        "".join(stages).strip("Etm") == "L"
        and [stage.count("t") for stage in stages] == list(found.cut)
        and ["m" in stage for stage in stages] == mtp
        and (stages[0][0], stages[-1][-1]) == ("E", "L")
    )


PIECES = st.lists(st.sampled_from("t|m,L(E)*239"), max_size=20).map("".join)


@given(st.one_of(PIECES, PIECES.map("E{}L".format)))
def test_what_is_read_is_what_the_grammar_rewrites_to(text: str) -> None:
    """Whatever is accepted has the letters that rewriting gives, stage by stage."""
    found = accepted(text)
    assert found is None or has_cells(found, unrolled(text.replace(",", "")))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("LL|LL", r"no E; the embedding is there once.*; it is such as 'Et\*4\|t\*4L'"),
        ("Et|tE|L", r"has 2 E; .* 'Et\|t\|L'"),
        ("tE|L", "something before E"),
        ("|Et|L", "something before E"),
        ("Et|L|", "something after L"),
        ("Et|LL", "has 2 L"),
        ("Et|mt|L", r"t after m; .* 'Et\|tm\|L'"),
        ("Et|m|mL", "m on 2 stages"),
        ("Ett|xx|L", "has 'x'; letters are E the embedding, t a layer, m one of"),
        ("Et| t|L", "has ' '"),
        ("((t|)*2)*3L", r"has '\('"),
        ("Et*999999999999|L", "more than 20,000 letters"),
        ("E(t*9999)*9999|L", "more than 20,000 letters"),
    ],
)
def test_what_stages_cannot_have_is_refused(text: str, reason: str) -> None:
    with pytest.raises(db.ParameterError, match=reason):
        read_layout(text)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=5), st.integers(2, 9))
def test_groups_that_repeat_are_written_once(units: list[list[int]], times: int) -> None:
    cut = [1, *(count for unit in units for count in unit * times), 1]
    text = layout_text(cut)
    assert layers_in(text) == cut
    assert len(text) <= sum(cut) + len(cut) + 1


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
