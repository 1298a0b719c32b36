"""Findings: the largest losses of a run in plain words with advice, ranked by gain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from debubble.core.units import counted
from debubble.diagnosis.account import RankAccount
from debubble.diagnosis.candidates import Cause, Causes, Where
from debubble.diagnosis.replay import Replay

LEAST_GAIN = 0.02
"""Minimum gain of a finding, as a share of a step."""

LEAST_TRANSFER = 0.05
"""Minimum gain of a finding on transfers at the full speed of their links."""

TRUSTED = 0.05
"""Maximum replay error of a report with gains."""

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
        Its ``"stage"``, ``"rank"``, ``"copy"`` and ``"link"``, if it is in one.
    before
        Time of a mean step of the run, in seconds.
    seconds
        Reduction of that time with only this cause fixed, in seconds.
    gain
        Reduction as a share of the step; None if the replay is too far from the run.
    persistence
        Share of the steps and copies with the cause.
    alone
        Loss if all other causes were fixed, as a share of such a step.
    text
        Description of the cause.
    advice
        Advice on a fix.
    inherent
        True if it is the price of the run's links, and no fault.
    error
        Error of `gain`, as a share of a step.
    """

    cause: str
    where: Where
    before: float
    seconds: float
    gain: float | None
    persistence: float
    alone: float
    text: str
    advice: str
    inherent: bool = False
    error: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "cause": self.cause,
            "where": {key: self.where.get(key) for key in ("stage", "rank", "copy", "link")},
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
        found.append(Finding(
            one.cause, one.where, measured, gain * measured, gain if trusted else None,
            _persistence(replay, one, base), alone, _text(one), _advice(one), inherent,
            replay.uncertainty,
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


def _text(one: Cause) -> str:
    if one.mode:
        return (
            f"actions begin as if the p2p mode were {one.mode.name} ({one.mode.title}), and would "
            "begin sooner with transfers that hold up nobody"
        )
    return _TEXTS[one.cause](one)


def _times(size: float) -> str:
    return f"{size:.3g} times" if math.isfinite(size) else "longer"


def _kinds(one: Cause) -> str:
    kinds = ", ".join(f"{kind} × {size:.2f}" for kind, size in one.by_kind.items())
    return f" ({kinds})" if kinds else ""


def _on_rank(one: Cause) -> str:
    rank = one.where.get("rank")
    return f"rank {rank}" if rank is not None else "several ranks"


def _garbage(one: Cause) -> str:
    if one.count:
        return (
            f"{counted(one.count, 'forward')} on {_on_rank(one)} took far longer than all others, "
            "and no backward did: Python may have collected garbage"
        )
    return (
        f"forwards on {_on_rank(one)} stand still now and then, backwards do not: Python collects "
        "garbage"
    )


def _worker(one: Cause) -> str:
    stage = one.where.get("stage")
    return f"rank {one.where['rank']} of copy {one.where['copy']}" + (
        f" (stage {stage})" if stage is not None else ""
    )


def _of_copy(one: Cause) -> str:
    copy = one.where.get("copy")
    return "" if copy is None else f" of copy {copy}"


def _link(one: Cause) -> str:
    link = one.where.get("link")
    assert isinstance(link, list)
    return f"{link[0]} and {link[1]}"


_TEXTS: dict[str, Callable[[Cause], str]] = {
    "slow-stage": lambda one: (
        f"stage {one.where['stage']} on rank {one.where['rank']} takes {_times(one.size)} as long "
        f"as the others{_kinds(one)}"
    ),
    "slow-worker": lambda one: (
        f"{_worker(one)} takes {_times(one.size)} as long as its like with the same work"
    ),
    "slow-copy": lambda one: (
        f"all ranks of copy {one.where['copy']} take {_times(one.size)} as long as the others"
    ),
    "slow-link": lambda one: (
        f"messages between ranks {_link(one)}{_of_copy(one)} take {_times(one.size)} as long as "
        "others"
    ),
    "head-of-line": lambda one: (
        f"messages between ranks {_link(one)} are queued behind others whose data is not there yet"
    ),
    "transfer": lambda _: "ranks wait for transfers that take just what their links take",
    "launch-gap": lambda one: (
        f"{_on_rank(one)} had input and nothing to do, and began late: the host launches too late"
    ),
    "garbage-collection": _garbage,
    "memory": lambda one: f"{_on_rank(one)} stands still to allocate memory",
    "sequence-length": lambda one: (
        "microbatches differ in length: their forwards and backwards are long together, the "
        f"longest {_times(one.size)} the mean"
    ),
    "jitter": lambda one: (
        f"the times of {_on_rank(one)} are unsteady: the same work takes now longer, now shorter"
    ),
    "order": lambda _: "actions run in another order than the schedule that is nearest",
}  # fmt: skip


def _advice(one: Cause) -> str:
    if one.mode:
        return "Overlap transfers with computing (Megatron: --overlap-p2p-communication)"
    return _ADVICE[one.cause]


_ADVICE = {
    "slow-stage": (
        "Give it less work by another split of the layers, or look at its device if others have as "
        "much"
    ),
    "slow-worker": "Look at its device and host (clock, temperature, other load), or replace it",
    "slow-copy": "Look at what its hosts and switches have in common, or replace them",
    "slow-link": "Look at the route between their hosts, or place neighbouring ranks nearer",
    "head-of-line": (
        "Post receives when their data is due, not before sends: debubble check names the message, "
        "debubble export --to torch-csv-comms writes an order of transfers to run"
    ),
    "transfer": "Use a faster link or smaller messages, or a p2p mode that overlaps transfers",
    "launch-gap": "Use CUDA graphs or fewer, larger kernels, or free the host of other work",
    "garbage-collection": "Collect at the same step on all ranks: gc.disable() and gc.collect()",
    "memory": "Use expandable segments, or leave the allocator more room",
    "sequence-length": "Balance the tokens of microbatches, within a batch and over copies",
    "jitter": "Look for other load on the host, for clocks and power limits that change",
    "order": "Run the order of that schedule: debubble trace --order-out order.csv writes it",
}


def nothing(beyond: float, steps: int) -> str:
    """Return the report of a run without findings."""
    least = max(0.01, math.ceil(100 * beyond) / 100)
    return f"nothing to gain beyond {100 * least:.0f} % in {counted(steps, 'step')}"
