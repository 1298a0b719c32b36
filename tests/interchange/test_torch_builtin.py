"""PyTorch's own schedules by name, and what is wrong with some of them."""

from __future__ import annotations

import sys

import pytest

import debubble as db
from debubble.interchange.files import resolve
from debubble.interchange.torch_builtin import NAMES

pytest.importorskip("torch", reason="reads PyTorch's schedules; install torch")


LOOPED = [name for name in NAMES if name not in ("GPipe", "1F1B")]
"""The schedules that PyTorch's tool lowers."""


@pytest.mark.parametrize(
    ("name", "transfers"), [*((name, False) for name in NAMES), *((name, True) for name in LOOPED)]
)
def test_every_schedule_of_pytorch_is_read(name: str, transfers: bool) -> None:
    schedule = resolve(f"torch:{name.lower()}", ranks=4, microbatches=8, transfers=transfers)
    assert schedule.name == f"torch:{name}"
    report = db.check(schedule)
    # Its listing of 1F1B has the forward that does not exist; its runtime does not use it.
    assert report.ok or name == "1F1B"


def test_its_listing_of_1f1b_is_out_of_range_on_the_last_rank() -> None:
    report = db.check(resolve("torch:1F1B", ranks=4, microbatches=4))
    assert {problem.code for problem in report.problems} == {"missing", "out-of-range"}
    assert "rank 3, action 6: 3F4 is out of range" in str(report)


@pytest.mark.parametrize("name", ["ZBVZeroBubble", "DualPipeV"])
def test_its_deferred_receives_swap_activations(name: str) -> None:
    sizes = {"ranks": 4, "microbatches": 8}
    good = resolve(f"torch:{name}", **sizes, transfers=True)
    assert db.check(good).ok
    swapped = db.check(resolve(f"torch:{name}", **sizes, transfers=True, defer_recv=True))
    assert {problem.code for problem in swapped.problems} == {"transfer"}
    assert "the contents are swapped; receive in the order of the sends" in str(swapped)


def test_without_torch_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining._schedule_visualizer", None)
    with pytest.raises(db.DebubbleError, match=r"pip install 'debubble\[run\]'"):
        resolve("torch:GPipe", ranks=2, microbatches=2)
