"""Our orders are PyTorch's, action by action, where PyTorch has the schedule and it is right."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any
from unittest import mock

import pytest

import debubble as db
from debubble.schedules.registry import find
from tests.conftest import EXPLORES

pytest.importorskip("torch", reason="compares with torch.distributed.pipelining; install torch")

MICROBATCHES = (1, 2, 3, 5, 8, 12, *(4, 7, 16, 24) * EXPLORES)
"""Beside p, 2p − 1, 2p and 3p, which are all that many ranks are tried with."""

MORE_RANKS = (6, 7, 11, 16) * EXPLORES

# ours, its options, PyTorch's, chunks, whether we accept every case that PyTorch accepts
PAIRS = [
    ("gpipe", {}, "GPipe", (1,), True),
    ("looped-bfs", {}, "LoopedBFS", (2, 3), True),
    ("flexible-interleaved", {}, "Interleaved1F1B", (2, 3), True),
    # Megatron-LM's interleaving refuses rounds of more than p microbatches; PyTorch has them.
    ("interleaved-1f1b", {}, "Interleaved1F1B", (2, 3), False),
    ("interleaved-zb", {}, "InterleavedZeroBubble", (2, 3), True),
    ("zb-v", {"published": True}, "ZBVZeroBubble", (2,), True),
    ("dualpipe-v", {}, "DualPipeV", (2,), True),
]


made_once = cache(mock.create_autospec)


def torch_rows(name: str, p: int, m: int, v: int) -> list[list[str]] | None:
    """PyTorch's compute order, None where it refuses the case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

        # It asks for a stand-in of the same class for every stage; making one takes milliseconds.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mock, "create_autospec", made_once)
            try:
                programs = get_schedule_ops(name, p, m, v)
            except ValueError:
                return None
    return [
        [str(action) for action in program if action is not None and "REDUCE" not in str(action)]
        for program in programs
    ]


@pytest.mark.parametrize(
    "p", [2, 4, *(pytest.param(p, marks=pytest.mark.slow) for p in (1, 3, 5, 8, *MORE_RANKS))]
)
@pytest.mark.parametrize(
    ("ours", "options", "name", "chunks", "all_cases"), PAIRS, ids=lambda value: str(value)
)
def test_every_action_in_the_same_place(
    ours: str, options: dict[str, Any], name: str, chunks: tuple[int, ...], all_cases: bool, p: int
) -> None:
    compared = 0
    for v in chunks:
        few = MICROBATCHES if p <= 8 else ()
        for m in sorted({*few, p, 2 * p - 1, 2 * p, 3 * p}):
            rows = torch_rows(name, p, m, v)
            if rows is None:
                continue
            try:
                schedule = db.make(
                    ours,
                    ranks=p,
                    microbatches=m,
                    chunks=None if find(ours).chunks else v,
                    **options,
                )
            except db.ParameterError:
                assert not all_cases, f"{ours} refuses p={p} m={m} v={v}, which {name} accepts"
                continue
            assert schedule.rows() == rows, f"p={p} m={m} v={v}"
            compared += 1
    assert compared > 0
