"""PyTorch's schedules on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="reads PyTorch's schedules; install torch")

Run = Callable[..., Any]


@pytest.mark.slow
def test_compared_with_ours_on_the_command_line(run: Run) -> None:
    out = run("compare", "torch:DualPipeV", "dualpipe-v", "-p", 4, "-m", 8).out
    assert "torch:DualPipeV is fastest: 27, the same time as dualpipe-v" in out
    assert run("check", "torch:1F1B", "-p", 4, "-m", 4).code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["torch:ZBV", "-p", 4, "-m", 8], "PyTorch has no schedule 'ZBV'; known: 1F1B, DualPipeV"),
        (["torch:GPipe", "-m", 8], "'torch:GPipe' needs ranks; give it, such as -p 4"),
        (["torch:GPipe", "-p", 4, "-m", 0], "microbatches is 0; it is at least 1"),
        (["torch:Interleaved1F1B", "-p", 4, "-m", 9], "PyTorch refuses Interleaved1F1B for 4"),
        (["torch:GPipe", "-p", 4, "-m", 8, "--iterations", 2], "is one iteration"),
        (["torch:ZBVZeroBubble", "-p", 4, "-m", 8, "--option", "defer_recv=true"],
         "give transfers=true, too"),
        (["torch:GPipe", "-p", 4, "-m", 8, "--option", "x=1"], "unknown option 'x'"),
        (["torch:1F1B", "-p", 4, "-m", 4], "3F4 is out of range"),
    ],
)  # fmt: skip
def test_refusals(refused: Run, words: list[Any], message: str) -> None:
    assert message in refused("simulate", *words)
