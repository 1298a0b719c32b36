"""Options on what training keeps: fields of the training, refusals with what works."""

from __future__ import annotations

from typing import Any

import pytest

import debubble as db
from debubble.planner.candidate import Training
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.options import ROWS, STATE, request_of
from debubble.planner.request import for_framework
from debubble.planner.request_check import check_request

ASKED: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "b200", "gpus": 8, "batch": 16}


def typed(**texts: str) -> Training:
    """The training of options as typed."""
    read = {name: ROWS[name].type.read(ROWS[name].flag, text) for name, text in texts.items()}
    return request_of({**ASKED, **read}).training


def test_what_is_kept_is_part_of_the_training() -> None:
    plain = typed()
    assert (plain.gradient_bytes, plain.moment_bytes, plain.graph_pools) == (4, 4, 0)
    assert not plain.offload_optimizer
    assert typed(gradients="bf16").gradient_bytes == 2
    assert [typed(moments=one).moment_bytes for one in ("fp32", "bf16", "fp8")] == [4, 2, 1]
    assert typed(offload="optimizer").offload_optimizer
    assert typed(graph_pools="4GB").graph_pools == 4e9
    assert typed(graph_pools="0").graph_pools == 0


def test_the_defaults_of_the_table_change_nothing() -> None:
    given = {row.name: str(row.default) for row in STATE if row.default is not None}
    assert typed(**given) == typed()


@pytest.mark.parametrize(
    ("precision", "options", "narrow"),
    [
        ("bf16", {}, False),
        ("fp8", {}, True),
        ("mxfp8", {}, True),
        ("nvfp4", {}, False),
        ("nvfp4", {"weights": "fp4"}, True),
        ("fp8", {"weights": "bf16"}, False),
        ("fp8", {"offload": "optimizer"}, False),
    ],
)
def test_weights_are_narrow_as_in_nvidias_recipes(
    precision: str, options: dict[str, str], narrow: bool
) -> None:
    assert typed(precision=precision, **options).narrow_weights == narrow


def test_pytorch_gathers_weights_in_16_bits_unless_asked() -> None:
    assert not Training(8, 1024, "fp8", runtime=TORCH).narrow_weights
    assert Training(8, 1024, "fp8", runtime=TORCH, weights="fp8").narrow_weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradients": "fp16"}, "--gradients is 'fp16'; did you mean 'bf16'"),
        ({"graph_pools": "four"}, "--graph-pools is 'four'; give an amount of one GPU"),
        ({"weights": "fp8"}, "weights is 'fp8', and products are in bf16; the nearest that works "
         "is weights bf16, or precision fp8"),
        ({"precision": "nvfp4", "weights": "fp8"}, "the nearest that works is weights fp4"),
        ({"precision": "nvfp4", "gpu": "h100"}, "h100 has no products in 4 bits; the nearest that "
         "works is precision fp8, or one of b200"),
        ({"precision": "mxfp8", "gpu": "a100-80gb"}, "no scales of small blocks; the nearest that "
         "works is precision bf16"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_what_works(options: dict[str, str], message: str) -> None:
    with pytest.raises(db.ParameterError) as refused:
        typed(**options)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("options", "nearest"),
    [
        ({"gradients": "bf16"}, "gradients fp32"),
        ({"moments": "fp8"}, "moments fp32"),
        ({"offload": "optimizer"}, "offload none"),
        ({"graph_pools": 4e9}, "graph pools 0"),
        ({"precision": "nvfp4"}, "precision mxfp8"),
    ],
)
def test_a_framework_that_keeps_other_things_says_so(options: dict[str, Any], nearest: str) -> None:
    request = for_framework(request_of({**ASKED, **options}), "torchtitan")
    with pytest.raises(db.ParameterError, match="torchtitan does not run this") as refused:
        check_request(request)
    assert str(refused.value).endswith(f"the nearest that works is {nearest}")
