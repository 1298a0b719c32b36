"""Megatron-LM's layout strings as the layers of a plan: held, refused, and written back."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from debubble.core.errors import FormatError, ParameterError
from debubble.interchange.layouts import read_layout
from debubble.planner.cost.calibration_files import calibrate_from
from debubble.planner.options import ROWS, fixed_of
from debubble.planner.request import plan_request
from debubble.planner.request_check import check_request
from debubble.planner.search.groups import candidates

LAYOUT = "Et*3|(tt|)*29,m|L"
"""DeepSeek-V3 on 16 ranks with 2 chunks, in Megatron-LM's documentation."""

LAYERS = ROWS["layers"]


def test_a_layout_is_held_with_its_multi_token_prediction() -> None:
    fixed = fixed_of({"layers": LAYERS.type.read("--layers", LAYOUT)})
    assert (fixed.layers, fixed.mtp, fixed.mtp_stage) == ((3, *[2] * 29, 0, 0), 1, 30)
    assert LAYERS.type.check("layers", LAYOUT) == read_layout(LAYOUT)
    assert LAYERS.type.read("--layers", "7,8,8,9") == (7, 8, 8, 9)
    held = {"pp": 16, "chunks": 2, "ep": 8, "microbatch_size": 1, "framework": "megatron"}
    asked = plan_request("deepseek-v3", "h100", 128, 128, fixed=replace(fixed, **held))
    check_request(asked)
    found = list(candidates(asked))
    assert found
    assert {one.mtp_stage for one in found} == {30}


@pytest.mark.parametrize("text", ["LL|LL", "tE|L", "Et|m|mL", "7,8;9"])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="--layers"):
        LAYERS.type.read("--layers", text)


@pytest.mark.parametrize(
    ("layout", "nearest"),
    [("Et*16|t*16,m|L", r"has 1 m, .* model has none; .* 'Et\*16\|t\*16\|L'"),
     ("Et*16|t*15L", r"are 31, and the model has 32; .* layers 'Et\*16\|t\*16L'")],
)  # fmt: skip
def test_a_layout_of_another_model_is_refused(layout: str, nearest: str) -> None:
    fixed = fixed_of({"layers": read_layout(layout)})
    asked = plan_request("llama-3.1-8b", "h100", 6, 6, fixed=fixed)
    with pytest.raises(ParameterError, match=nearest):
        check_request(asked)


@pytest.mark.parametrize(
    "given", ["Et*3|(tt|)*28,m|L", "1,2,3", "E|t*61mL", "Et*3|(tt|)*29,mm|L", "Et*61L", "61"]
)
def test_the_nearest_layers_work_when_they_are_given(given: str) -> None:
    held = {"pp": 16, "chunks": 2, "ep": 8, "framework": "megatron"}

    def asked(text: str) -> None:
        fixed = replace(fixed_of({"layers": LAYERS.type.read("--layers", text)}), **held)
        check_request(plan_request("deepseek-v3", "h100", 128, 128, fixed=fixed))

    with pytest.raises(ParameterError) as refused:
        asked(given)
    near = re.search("layers ('?)([^ ]*)\\1$", str(refused.value))
    assert near is not None, refused.value
    assert bool(near[1]) == ("t" in given)
    asked(near[2].replace("/", ","))


def test_measured_steps_have_layouts_too() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 4, 8)
    step = "steps: [{{pp: 4, tp: 1, dp: 1, batch: 8, layers: '{}', seconds: 1.5}}]"
    one, other = (
        calibrate_from("x.yaml", asked, None, step.format(text), ())
        for text in ("Et*7|t*9|t*9|t*7L", "Et*8|t*8|t*8|t*8L")
    )
    assert one != other
    with pytest.raises(FormatError, match="layers: the layout 'LL' has no E"):
        calibrate_from("x.yaml", asked, None, step.format("LL"), ())
    with pytest.raises(FormatError, match="4 stages, 32 in all"):
        calibrate_from("x.yaml", asked, None, step.format("Et*31|L"), ())
