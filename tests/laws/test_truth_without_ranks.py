"""Traces that lack a rank: all numbers are finite, and what is not there is nobody's fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.observed import Observed
from debubble.diagnosis.report import report
from tests.conftest import EXPLORES
from tests.diagnosis.made import Made, one_f_one_b
from tests.laws.executed import Job
from tests.laws.jobs import JOBS, even, made

RANKS = 4

GUESSED = ("one rank", "slices", "pairs both ways")
"""Jobs that are refused without a rank: nothing says what it ran."""


def lacking(seen: Observed, ranks: set[int], copy: int = 0) -> Observed:
    """The same run without the files of some ranks of a copy."""
    actions, sent = seen.actions, seen.messages
    gone = (actions.copy == copy) & np.isin(actions.rank, list(ranks))
    lost = (sent.copy == copy) & (
        np.isin(sent.source, list(ranks)) | np.isin(sent.target, list(ranks))
    )
    missing = tuple((copy, rank) for rank in sorted(ranks))
    return replace(seen, actions=actions.take(~gone), messages=sent.take(~lost), missing=missing)


def half_told(seen: Observed, rank: int) -> Observed:
    """A run without a rank's file, in which the files of others have their receives from it."""
    return replace(lacking(seen, {rank}), messages=seen.messages.take(seen.messages.target != rank))


def not_finite(data: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all numbers of a document that are none."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from not_finite(value, f"{path}/{key}")
    elif isinstance(data, list | tuple):
        for at, value in enumerate(data):
            yield from not_finite(value, f"{path}/{at}")
    elif isinstance(data, float) and not np.isfinite(data):
        yield path


def all_finite(found: Diagnosis) -> bool:
    text = report(found, 100, details=True)
    return "nan" not in text.split() and not list(not_finite(found.to_dict()))


def faults(found: Diagnosis) -> list[str]:
    """Causes but what links take."""
    return [one.cause for one in found.findings if not one.inherent]


def healthy(name: str, **more: Any) -> Job:
    schedule = made(name, RANKS, 8)
    return Job(schedule, even(schedule), **more)


@pytest.mark.parametrize("rank", range(RANKS) if EXPLORES else [0, 1, 3])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("1f1b", True),
        ("1f1b", False),
        ("gpipe", False),
        ("interleaved-1f1b", True),
        ("zb-h1", False),
    ],
)
def test_a_run_without_fault_has_none_without_a_rank(name: str, told: bool, rank: int) -> None:
    seen = healthy(name, told=told).observed()
    found = diagnose(lacking(seen, {rank}))
    assert all_finite(found)
    assert not faults(found)
    assert found.mode[0] == "overlapped"
    assert found.replay_error < 0.01


@pytest.mark.parametrize("rank", range(RANKS))
def test_nor_where_messages_need_their_receivers(rank: int) -> None:
    found = diagnose(lacking(healthy("1f1b", rendezvous=True).observed(), {rank}))
    assert all_finite(found)
    assert not faults(found)


@pytest.mark.parametrize("rank", range(RANKS))
def test_nor_with_messages_of_which_one_end_was_seen(rank: int) -> None:
    found = diagnose(half_told(healthy("1f1b").observed(), rank))
    assert all_finite(found)
    assert not faults(found)


def test_nor_in_one_of_two_copies() -> None:
    seen = healthy("1f1b", copies=2).observed()
    found = diagnose(lacking(seen, {1}, copy=1))
    assert all_finite(found)
    assert not faults(found)


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("told", [True, False])
def test_the_gain_of_a_slow_stage_is_that_of_the_whole_run(rank: int, told: bool) -> None:
    job = healthy("1f1b", told=told)
    usual = job.work
    slow = job.without(work=lambda piece, *at: usual(piece, *at) * (1.5 if piece.stage == 2 else 1))
    found = diagnose(lacking(slow.observed(), {rank}))
    assert faults(found) == ["slow-stage"]
    assert found.findings[0].seconds == pytest.approx(slow.step() - job.step(), rel=0.02)


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("name", [name for name in JOBS if name not in GUESSED])
def test_all_numbers_are_finite_without_any_rank(name: str, rank: int) -> None:
    assert all_finite(diagnose(lacking(JOBS[name]().observed(), {rank})))


@pytest.mark.parametrize("left", range(RANKS))
@pytest.mark.parametrize("half", [True, False])
def test_all_numbers_are_finite_with_one_rank_only(left: int, half: bool) -> None:
    seen = Made(one_f_one_b(RANKS, 8), copies=1).observed()
    others = set(range(RANKS)) - {left}
    cut = lacking(seen, others)
    if half:  # its file has the ends of its own receives
        cut = replace(cut, messages=seen.messages.take(seen.messages.target == left))
    assert all_finite(diagnose(cut))
