"""Recompute, offload and sequence slices, in schedules made by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import debubble as db
from debubble import Placement, Schedule
from debubble.core.actions import Kind, kinds_of
from debubble.core.errors import ParameterError
from debubble.core.sequence import as_kind
from debubble.lowering.transfers import add_transfers
from debubble.torch.run.run import Settings, run
from debubble.torch.run.verify import Verification
from tests.conftest import EXPLORES

pytestmark = pytest.mark.processes


def verified(
    schedule: Schedule, model: str = "gpt-tiny", runtime: str = "debubble"
) -> Verification:
    report = run(schedule, Settings(model, steps=0, runtime=runtime, timeout=60))
    assert report is not None
    assert report.verification is not None
    assert report.equal, str(report)
    return report.verification


def inserted(schedule: Schedule, before: tuple[Kind, ...], kind: Kind) -> Schedule:
    """The schedule with an action of `kind` before every action of the kinds `before`."""
    programs = []
    for rank in range(schedule.ranks):
        program = schedule.program(rank)
        spots = np.flatnonzero(np.isin(kinds_of(program), before))
        programs.append(np.insert(program, spots, as_kind(program[spots], kind)))
    return Schedule.from_programs(
        "by hand", schedule.placement, schedule.microbatches, programs, slices=schedule.slices,
        weight_versions=schedule.weight_versions, iterations=schedule.iterations,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "interleaved-1f1b"])
def test_recompute(name: str) -> None:
    schedule = db.make(name, ranks=4, microbatches=4)
    verified(inserted(schedule, (Kind.I, Kind.B), Kind.R))


def test_recompute_with_the_weights_of_the_forward() -> None:
    schedule = db.make("pipedream-2bw", ranks=4, microbatches=4, iterations=3)
    verified(inserted(schedule, (Kind.B,), Kind.R), "mlp")


def with_copies(schedule: Schedule, targets: tuple[int | None, ...] = ()) -> Schedule:
    """Every activation leaves right after its forward and comes back before its backward."""
    lowered = add_transfers(schedule)
    programs = []
    for rank in range(lowered.ranks):
        program = lowered.program(rank)
        kinds = kinds_of(program)
        back = np.flatnonzero(np.isin(kinds, (Kind.I, Kind.B)))
        away = np.flatnonzero(kinds == Kind.F) + 1
        # A copy stands behind the send of the forward's result, which is in one group with it.
        program = np.insert(
            program,
            np.concatenate([away, back]),
            np.concatenate(
                [
                    as_kind(program[away - 1], Kind.OFFLOAD),
                    as_kind(program[back], Kind.RELOAD),
                ]
            ),
        )
        programs.append(program)
    made = Schedule.from_programs("by hand", lowered.placement, lowered.microbatches, programs)
    if targets:
        object.__setattr__(made, "offload_to", targets)
    return made


@pytest.mark.parametrize("name", ["gpipe", "zb-h1"])
def test_offload_to_the_host(name: str) -> None:
    verified(with_copies(db.make(name, ranks=4, microbatches=4)))


def test_waits_for_offloads() -> None:
    costs = db.Costs(F=1, I=1, W=1, host_bandwidth=0.5)
    made = db.make("gpipe", ranks=2, microbatches=6, costs=costs, memory=2, offload="full")
    assert Kind.WAIT_OFFLOAD in kinds_of(made.actions)
    verified(add_transfers(made))


def test_offload_to_another_rank() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=6)
    verified(with_copies(schedule, (3, 2, 1, 0)))


def sliced(ranks: int, microbatches: int, slices: int, backward: tuple[str, ...]) -> Schedule:
    """GPipe over slices, backwards in reverse."""
    units = [f"{u}.{j}" for u in range(microbatches) for j in range(slices)]
    back = [f"{u}.{j}" for u in range(microbatches) for j in reversed(range(slices))]
    rows = [
        [f"{r}F{u}" for u in units] + [f"{r}{kind}{u}" for u in back for kind in backward]
        for r in range(ranks)
    ]
    return Schedule.from_text(rows, Placement.linear(ranks), microbatches, slices=slices)


BACKWARDS = (("B",), ("I", "W"), ("R", "B"), ("R", "I", "W"))


@pytest.mark.parametrize(
    ("slices", "backward"),
    list(product((2, 3, 5), BACKWARDS) if EXPLORES else zip((2, 3, 5, 2), BACKWARDS, strict=True)),
)
def test_slices(slices: int, backward: tuple[str, ...]) -> None:
    schedule = sliced(3, 2, slices, backward)
    assert schedule.slices == slices
    verified(schedule)


def test_slices_of_different_lengths() -> None:
    schedule = replace(sliced(3, 2, 3, ("B",)), cut=(0.5, 0.3, 0.2))
    verified(schedule)


def test_slices_need_a_model_that_takes_them() -> None:
    with pytest.raises(ParameterError, match=r"cuts sequences into 2 slices.* use gpt-tiny"):
        run(sliced(2, 2, 2, ("B",)), Settings("mlp", steps=0))
