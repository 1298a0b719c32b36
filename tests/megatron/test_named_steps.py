"""Names of Megatron's steps: stage and microbatch, whatever the sequence of calls."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pytest

import debubble as db
from debubble.core.actions import unpack
from debubble.core.errors import DebubbleError
from tests.megatron.standing_in import Model, megatron

pytest.importorskip("torch")


def recorded(work: Any) -> list[str]:
    """Names that PyTorch's profiler records while something runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    events = [one for one in found.events() if one.name.startswith("PP:")]
    return [one.name for one in sorted(events, key=lambda one: one.time_range.start)]


def run(schedules: Any, actions: Iterable[Any], ranks: int, microbatches: int, **said: Any) -> None:
    """Call steps as Megatron does, and backwards by the outputs of their forwards."""
    outputs: dict[tuple[int, int], Any] = {}
    for one in actions:
        chunk = one.stage // ranks
        if one.kind.name == "F":
            given = {"current_microbatch": one.microbatch, "vp_stage": chunk} if not said else {}
            args = (None, None, Model(said.get("chunk")), microbatches, None, [], None)
            if not said:
                args = (*args, 1)  # type: ignore[assignment]
            result = schedules.forward_step(*args, **given)
            outputs[one.stage, one.microbatch] = result[0] if isinstance(result, tuple) else result
        else:
            schedules.backward_step(None, outputs.pop((one.stage, one.microbatch)), None, None)


def actions_of(name: str, rank: int) -> list[db.Action]:
    """The actions of one of two ranks."""
    schedule = db.make(name, ranks=2, microbatches=4)
    first, last = schedule.offsets[rank : rank + 2]
    return [unpack(code) for code in schedule.actions[first:last].tolist()]


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b"])
@pytest.mark.parametrize("rank", [0, 1])
def test_every_step_is_named(name: str, rank: int) -> None:
    from debubble.megatron import name_steps

    actions = actions_of(name, rank)
    with megatron(rank, 2) as schedules:
        name_steps()
        name_steps()
        found = recorded(lambda: [run(schedules, actions, 2, 4) for _ in range(2)])
    wanted = [f"PP:{one.stage}{one.kind.name}{one.microbatch}" for one in actions]
    assert found == wanted * 2


def test_a_group_tells_rank_and_size() -> None:
    from debubble.megatron import name_steps

    class Group:
        def rank(self) -> int:
            return 3

        def size(self) -> int:
            return 4

    with megatron(0, 1) as schedules:
        name_steps(Group())
        call = (None, None, Model(), 2, None, [], None, 1)
        found = recorded(lambda: schedules.forward_step(*call, current_microbatch=1, vp_stage=1))
    assert found == ["PP:7F1"]


def test_releases_that_say_no_microbatch() -> None:
    from debubble.megatron import name_steps

    actions = actions_of("1f1b", 0)
    with megatron(0, 2, old=True) as schedules:
        name_steps()
        found = recorded(lambda: [run(schedules, actions, 2, 4, chunk=None) for _ in range(2)])
    assert found == [f"PP:0{one.kind.name}{one.microbatch}" for one in actions] * 2


def test_combined_steps_are_pairs() -> None:
    from debubble.megatron import name_steps

    with megatron(1, 2):
        name_steps()
        step = sys.modules[
            "megatron.core.pipeline_parallel.combined_1f1b"
        ].combined_forward_backward_step  # type: ignore[attr-defined]

        def work() -> None:
            output, *_ = step(None, None, Model(1), 2, None, [], None, None, None, None, None, 0)
            step(None, None, Model(0), 2, None, [], Model(1), None, output, None, None, 1)
            step(None, None, None, 2, None, [], Model(0), None, [object()], None, None)

        found = recorded(work)
    assert found == ["PP:3F0", "PP:(1F1;3B0)OVERLAP_F_B"]


def test_without_megatron() -> None:
    from debubble.megatron import name_steps

    with pytest.raises(DebubbleError, match="needs megatron-core"):
        name_steps()
