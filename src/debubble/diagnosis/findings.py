"""Findings: the largest losses of a run in plain words with advice, ranked by gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from debubble.core.units import counted
from debubble.diagnosis.account import RankAccount
from debubble.diagnosis.candidates import Cause, Causes
from debubble.diagnosis.machines import FACTS, Machines
from debubble.diagnosis.replay import Replay
from debubble.diagnosis.wording import CauseInRun, change, words_of

LEAST_GAIN = 0.02
"""Minimum gain of a finding, as a share of a step."""

LEAST_TRANSFER = 0.05
"""Minimum gain of a finding on transfers at the full speed of their links."""

TRUSTED = 0.05
"""Maximum replay error of a report with gains."""

PLACE = ("stage", "rank", "copy", "link")
"""Keys of a cause's place in the pipeline."""

THERE = 0.25
"""Minimum gain of a row that has a cause, as a share of the mean gain."""


@dataclass(frozen=True)
class Finding:
    """One cause of lost time, with text and advice.

    Parameters
    ----------
    cause
        One of :data:`debubble.diagnosis.account.CAUSES`.
    where
        Its ``"stage"``, ``"rank"``, ``"copy"`` and ``"link"``, if it is in one, and the
        ``"global_rank"``, ``"host"`` and ``"file"`` of its ranks, if the trace has them; lists for
        several ranks.
    before
        Time of a mean step of the run, in seconds.
    seconds
        Reduction of that time with only this cause fixed, in seconds.
    gain
        Reduction as a share of the step; None if the replay is too far from the run.
    error
        Error of `gain`, as a share of the step.
    persistence
        Share of the steps and copies with the cause.
    alone
        Loss if all other causes were fixed, as a share of such a step.
    subject
        Description of the cause in a few words.
    text
        Description of the cause.
    advice
        Advice on a fix that fits the run.
    change
        Change of ``--set`` that removes the cause; empty if there is none.
    inherent
        True if it is the price of the run's links, and no fault.
    """

    cause: str
    where: dict[str, Any]
    before: float
    seconds: float
    gain: float | None
    error: float
    persistence: float
    alone: float
    subject: str
    text: str
    advice: str
    change: str
    inherent: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "cause": self.cause,
            "where": {key: self.where.get(key) for key in (*PLACE, *FACTS)},
            "seconds": self.seconds,
            "gain": self.gain,
            "error": self.error,
            "persistence": self.persistence,
            "text": f"{self.text}. {self.advice}",
        }


def find(
    replay: Replay, causes: Causes, accounts: tuple[RankAccount, ...]
) -> tuple[tuple[Finding, ...], float]:
    """Return findings by descending gain, and the largest gain of a cause that is no finding.

    If gains are unknown, findings are the causes with the most lost time of ranks.
    """
    run = replay.run
    base = replay.lengths()
    before = run.slowest(base)
    measured = float(run.step_times.mean())
    trusted = replay.error <= TRUSTED
    machines = Machines.of(run)
    found: list[Finding] = []
    beyond = 0.0
    for one in causes.found:
        saved = float((before - run.slowest(one.without)).sum())
        gain = saved / float(before.sum())
        if not trusted:
            lost = [rank.causes.get(one.cause, 0.0) / rank.step for rank in accounts]
            gain = float(np.mean(lost)) if lost else 0.0
        inherent = one.cause == "transfer" and not one.mode
        least = LEAST_TRANSFER if inherent else LEAST_GAIN
        if gain < least:
            beyond = max(beyond, 0.0 if inherent else gain)
            continue
        clean = float(run.slowest(causes.clean).sum())
        alone = float(run.slowest(one.alone).sum()) / clean - 1 if clean else 0.0
        case = CauseInRun(one, run, machines)
        words = words_of(case)
        found.append(Finding(
            one.cause, one.where | machines.facts(one.where), measured, gain * measured,
            gain if trusted else None, replay.uncertainty, _persistence(replay, one, base), alone,
            words.subject, words.description, words.advice, change(case), inherent,
        ))  # fmt: skip
    # What links take is no fault: it comes last.
    found.sort(key=lambda one: (one.inherent, -one.seconds, one.cause, str(one.where)))
    return tuple(found), beyond


def _persistence(replay: Replay, one: Cause, base: np.ndarray) -> float:
    """Return the share of steps with the cause, and of copies if it is not in one copy."""
    saved = (base - one.without) / base
    copy = one.where.get("copy")
    if copy is not None:
        saved = saved[replay.run.copy == copy]
    mean = float(saved.mean())
    return float((saved > max(THERE * mean, 1e-3)).mean())


def nothing(beyond: float, steps: int) -> str:
    """Return the report of a run without findings."""
    least = max(0.01, math.ceil(100 * beyond) / 100)
    return f"nothing to gain beyond {100 * least:.0f} % in {counted(steps, 'step')}"
