"""Recorded steps of all ranks on one clock, read as times, messages and costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    code_text,
    computes,
    kinds_of,
    pairs_of,
    stages_of,
)
from debubble.core.costs import Costs
from debubble.core.kinds import (
    CARRY_KINDS,
    FORWARD_KINDS,
    KINDS,
    SEND_KINDS,
    VOCABULARY_KINDS,
    WORK_KINDS,
)
from debubble.core.schedule import Schedule
from debubble.core.waits import waits_for
from debubble.engine.timeline import Timeline
from debubble.interchange.trace_events import Transfer, run_trace, write_trace
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.errors import RunError

MILLISECONDS = 1e-6
"""Milliseconds of a nanosecond."""


def computations(schedule: Schedule) -> NDArray[np.int64]:
    """Return the positions of actions that occupy a rank."""
    return np.flatnonzero(computes(kinds_of(schedule.actions)))


@dataclass(frozen=True, eq=False)
class RecordedSteps:
    """Times of some steps of a schedule."""

    plan: ExecutionPlan
    times: NDArray[np.int64]
    """Start, end and post of every action with transfers, in nanoseconds on one clock; shape
    ``(steps, 3, actions)``."""
    places: Sequence[Mapping[str, Any]] = ()
    """Host, global rank, backend and device of each rank."""

    @classmethod
    def of(
        cls,
        plan: ExecutionPlan,
        parts: Iterable[NDArray[np.int64]],
        places: Sequence[Mapping[str, Any]] = (),
    ) -> RecordedSteps:
        """Join the times that each rank recorded; raise RunError where there was no step."""
        parts = list(parts)
        steps = min(len(part) for part in parts)
        if not steps:
            raise RunError("nothing was measured yet; run a step first")
        return cls(plan, np.concatenate([part[-steps:] for part in parts], axis=2), places)

    @cached_property
    def _zero(self) -> NDArray[np.int64]:
        """First start of a computation of every step."""
        work = self.plan.positions[computations(self.plan.schedule)]
        zero: NDArray[np.int64] = self.times[:, 0, work].min(axis=1)
        return zero

    @cached_property
    def starts(self) -> NDArray[np.float64]:
        """Starts of actions as given, in seconds from the step's first on; shape ``(steps, n)``."""
        return np.asarray((self.times[:, 0, self.plan.positions] - self._zero[:, None]) / 1e9)

    @cached_property
    def ends(self) -> NDArray[np.float64]:
        """Ends of actions, as :attr:`starts`."""
        return np.asarray((self.times[:, 1, self.plan.positions] - self._zero[:, None]) / 1e9)

    @property
    def makespans(self) -> NDArray[np.float64]:
        """Last end minus first start of computations, in seconds; shape ``(steps,)``."""
        last: NDArray[np.float64] = self.ends[:, computations(self.plan.schedule)].max(axis=1)
        return last

    @property
    def makespan(self) -> float:
        """Median over the steps."""
        return float(np.median(self.makespans))

    @property
    def typical(self) -> int:
        """The step whose makespan is the (lower) median."""
        return int(np.argsort(self.makespans, kind="stable")[(len(self.makespans) - 1) // 2])

    @property
    def durations(self) -> NDArray[np.float64]:
        """Median time of every action, shape ``(n,)``."""
        median: NDArray[np.float64] = np.median(self.ends - self.starts, axis=0)
        return median

    def transfers(self, step: int) -> list[Transfer]:
        """Return the messages of a step that were timed, in seconds from its first start on."""
        schedule, times = self.plan.lowered, self.times[step]
        ranks = schedule.ranks_of_actions.tolist()
        start, end, posted = (times - self._zero[step]) / 1e9
        return [
            Transfer(
                code_text(schedule.actions[send], schedule.slices), ranks[send],
                float(start[send]), float(end[send]),
                code_text(schedule.actions[receive], schedule.slices), ranks[receive],
                float(posted[receive]), float(start[receive]), float(end[receive]),
            )
            for send, receive in _messages(schedule)
            if times[0, send] and times[2, receive] and times[1, receive]
        ]  # fmt: skip

    def save_trace(self, path: str | Path, step: int, predicted: Timeline | None = None) -> None:
        """Write a step as a trace file for Perfetto, with predicted times if given."""
        times = {} if predicted is None else {"predicted": (predicted.start, predicted.end)}
        times["measured"] = self.starts[step], self.ends[step]
        hosts = [place["host"] for place in self.places]
        job: dict[str, Any] = {}
        if self.places:
            job["global_ranks"] = [place["global_rank"] for place in self.places]
            job |= {key: self.places[0][key] for key in ("backend", "device")}
        transfers = self.transfers(step)
        pieces = run_trace(self.plan.schedule, times, transfers=transfers, hosts=hosts, job=job)
        write_trace(pieces, path)

    def costs(self) -> Costs:
        """Return medians by kind and stage, in ms, without the first step, which is slower."""
        times = self.times[1:] if len(self.times) > 1 else self.times
        schedule = self.plan.lowered
        spent = np.median(times[:, 1] - times[:, 0], axis=0) * MILLISECONDS
        actions = schedule.actions
        kind, stage, pair = kinds_of(actions), stages_of(actions), pairs_of(actions)
        values: dict[str, Any] = {}
        for each in WORK_KINDS:
            found = {
                number: float(np.median(spent[here]))
                for number in range(schedule.stages)
                if (here := (kind == each) & (stage == number) & (pair == 0)).any()
            }
            if found:
                missing = schedule.stages - len(found)
                default = {"default": float(np.median(list(found.values())))} if missing else {}
                values[KINDS[each].cost] = {**default, **found}
        values |= _costs_of_pairs(schedule, spent) | _costs_of_shards(schedule, kind, spent)
        for name, carried in (("p2p", False), ("p2p_carry", True)):
            lag = _lag(schedule, times, carried)
            if lag is not None:
                values[name] = lag
        return Costs(**values, time_unit="ms")


def _costs_of_pairs(schedule: Schedule, spent: NDArray[np.float64]) -> dict[str, Any]:
    """Return the times of overlapped pairs by the stages of forward and backward."""
    actions = schedule.actions
    first = np.flatnonzero(pairs_of(actions) == 1)
    if not len(first):
        return {}
    stages, kinds = stages_of(actions), kinds_of(actions)
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for place in first.tolist():
        forward = place if kinds[place] in FORWARD_KINDS else place + 1
        backward = 2 * place + 1 - forward
        found[int(stages[forward]), int(stages[backward])].append(float(spent[place]))
    times: dict[Any, float] = {key: float(np.median(each)) for key, each in found.items()}
    times["default"] = float(np.median(list(times.values())))
    return {"O": times}


def _costs_of_shards(
    schedule: Schedule, kind: NDArray[np.int64], spent: NDArray[np.float64]
) -> dict[str, Mapping[str, float]]:
    """Return the head's costs from a sharded output layer: S is its F and I, T the rest."""
    if not schedule.vocabulary:
        return {}
    first, second = (
        float(np.median(spent[kind == each])) * schedule.ranks for each in VOCABULARY_KINDS
    )
    if schedule.vocabulary == 2:
        return {"head": {"F": first / 2, "I": first / 2, "W": second}}
    return {"head": {"F": first, "I": second / 2, "W": second / 2}}


def _lag(schedule: Schedule, times: NDArray[np.int64], carried: bool) -> float | None:
    """Return the median time of transfers that a rank waits for, in ms; None without any.

    They are those between neighboring stages, or those of what is `carried` to others.
    """
    lags = []
    kinds = kinds_of(schedule.actions)
    for send, receive in _messages(schedule):
        if (kinds[send] in CARRY_KINDS) != carried:
            continue
        posted, waited, there = times[:, 0, send], times[:, 0, receive], times[:, 1, receive]
        lag = there - np.maximum(posted, waited)
        lags.append(lag[(posted > waited) & (lag > 0)])
    found = np.concatenate(lags) if lags else np.zeros(0)
    return float(np.median(found)) * MILLISECONDS if len(found) else None


def _messages(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Yield the positions of every send and its receive."""
    waits = waits_for(schedule)
    sent = np.isin(kinds_of(schedule.actions)[waits.producer], SEND_KINDS)
    yield from sorted(
        zip(waits.producer[sent].tolist(), waits.consumer[sent].tolist(), strict=True)
    )
