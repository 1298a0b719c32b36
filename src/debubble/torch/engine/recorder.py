"""When actions began and ended: always noted, and read as costs, timeline or trace."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from debubble.core.actions import (
    code_text,
    computes,
    kinds_of,
    microbatches_of,
    pairs_of,
    stages_of,
)
from debubble.core.costs import Costs
from debubble.core.kinds import FORWARD_KINDS, KINDS, SEND_KINDS, VOCABULARY_KINDS, WORK_KINDS
from debubble.core.schedule import Schedule
from debubble.interchange.run_trace import Transfer
from debubble.torch.errors import RunError

KEPT = 16
"""Steps that are remembered."""

MILLISECONDS = 1e-6
"""One nanosecond."""

Times = NDArray[np.int64]


class Recorder:
    """When the actions of one rank's program began and ended.

    On a GPU its own events are noted, which nobody waits for.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.start = [0] * count
        self.end = [0] * count
        """As `start`, of the current step, in nanoseconds of this host's monotonic clock. A send
        starts and ends when it is posted; a receive starts when somebody waits for it, and ends
        when it is there."""
        self.posted = [0] * count
        """When receives were posted, likewise."""
        self._kept = np.zeros((KEPT, 3, count), dtype=np.int64)
        self.steps = 0
        self._events = _GpuEvents(count) if device.type == "cuda" else None
        self.begin, self.finish = self._begin, self._finish
        if self._events is not None:
            self.begin, self.finish = self._events.begin, self._events.finish

    def _begin(self, index: int) -> None:
        self.start[index] = time.perf_counter_ns()

    def _finish(self, index: int) -> None:
        self.end[index] = time.perf_counter_ns()

    def close(self) -> None:
        """End a step."""
        place = self._kept[self.steps % KEPT]
        place[0], place[1], place[2] = self.start, self.end, self.posted
        self.steps += 1
        if self._events is not None:
            self._events.close(place)

    @property
    def times(self) -> Times:
        """Start, end and post of the actions of the latest steps, ``(steps, 3, actions)``."""
        if self._events is not None:
            self._events.settle()
        count = min(self.steps, KEPT)
        order = (np.arange(count) + self.steps - count) % KEPT
        return self._kept[order]

    def on_clock(self, offset: int) -> Times:
        """:attr:`times` on another clock; what was not timed is 0."""
        times = self.times
        return np.where(times > 0, times + offset, 0)


class _GpuEvents:
    """Start and end of actions by events of a GPU, two sets of them by turns."""

    def __init__(self, count: int) -> None:
        self._sets = [
            [[torch.cuda.Event(enable_timing=True) for _ in range(count)] for _ in range(2)]
            for _ in range(2)
        ]
        self._used: list[set[int]] = [set(), set()]
        self._turn = 0
        self._origin = torch.cuda.Event(enable_timing=True)
        self._zero = 0
        self._open: list[tuple[int, Any]] = []

    def begin(self, index: int) -> None:
        if not self._zero:
            self._zero = time.perf_counter_ns()
            self._origin.record()
        self._sets[self._turn][0][index].record()
        self._used[self._turn].add(index)

    def finish(self, index: int) -> None:
        self._sets[self._turn][1][index].record()

    def close(self, place: Times) -> None:
        """Read the set that is used next; its step is long over."""
        self._open.append((self._turn, place))
        self._turn = 1 - self._turn
        while len(self._open) > 1:
            self._read(*self._open.pop(0))

    def settle(self) -> None:
        """Read what is not read yet."""
        while self._open:
            self._read(*self._open.pop(0))

    def _read(self, turn: int, place: Times) -> None:
        for index in self._used[turn]:
            for row in range(2):
                event = self._sets[turn][row][index]
                event.synchronize()
                passed = self._origin.elapsed_time(event)
                place[row, index] = self._zero + round(passed * 1e6)
        self._used[turn].clear()


class Recorded(NamedTuple):
    """Times of all ranks on one clock, over the schedule with its transfers."""

    schedule: Schedule
    times: Times
    """Start, end, and when receives were posted; shape ``(steps, 3, actions)``."""

    @classmethod
    def of(cls, schedule: Schedule, parts: Iterable[Times]) -> Recorded:
        """Put together what ranks recorded; a RunError where there was no step."""
        parts = list(parts)
        steps = min(len(part) for part in parts)
        if not steps:
            raise RunError("nothing was measured yet; run a step first")
        return cls(schedule, np.concatenate([part[-steps:] for part in parts], axis=2))

    def last(self, positions: Times) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Start and end of some actions in the last step, in seconds from its first start on."""
        start, end = (self.times[-1][:2, positions] - self._zero(positions)) / 1e9
        return start, end

    def transfers(self, positions: Times) -> list[Transfer]:
        """Messages of the last step, in seconds from the first start of these actions on."""
        return transfers_of(self.schedule, self.times[-1], self._zero(positions))

    def _zero(self, positions: Times) -> int:
        work = positions[computes(kinds_of(self.schedule.actions[positions]))]
        return int(self.times[-1][0, work].min())


def transfers_of(schedule: Schedule, times: Times, zero: int) -> list[Transfer]:
    """The messages of one step that were timed, of a schedule with transfers.

    Given are start, end and post of every action in nanoseconds, shape ``(3, actions)``, and what
    the step begins at.
    """
    ranks = schedule.ranks_of_actions.tolist()
    start, end, posted = ((row - zero) / 1e9 for row in times)
    return [
        Transfer(
            code_text(schedule.actions[send], schedule.slices), ranks[send],
            float(start[send]), float(end[send]),
            code_text(schedule.actions[receive], schedule.slices), ranks[receive],
            float(posted[receive]), float(start[receive]), float(end[receive]),
        )
        for send, receive in _ends(schedule)
        if times[0, send] and times[2, receive] and times[1, receive]
    ]  # fmt: skip


def makespans(recorded: Recorded, positions: Times) -> NDArray[np.float64]:
    """Last end − first start of every step but the first, in ms; `positions` are what counts."""
    schedule, times = recorded
    work = positions[computes(kinds_of(schedule.actions[positions]))]
    begin, end = times[1:, 0, work].min(axis=1), times[1:, 1, work].max(axis=1)
    return np.asarray((end - begin) * MILLISECONDS)


def costs_of(recorded: Recorded) -> Costs:
    """Medians by kind and stage, in milliseconds; the first step, which is slower, is left out."""
    schedule, times = recorded
    times = times[1:] if len(times) > 1 else times
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
    values |= _of_pairs(recorded, spent)
    values |= _of_shards(schedule, kind, spent)
    lag = lag_of(recorded)
    if lag is not None:
        values["p2p"] = lag
    return Costs(**values, time_unit="ms")


def _of_pairs(recorded: Recorded, spent: NDArray[np.float64]) -> dict[str, Any]:
    actions = recorded.schedule.actions
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


def _of_shards(
    schedule: Schedule, kind: Times, spent: NDArray[np.float64]
) -> dict[str, Mapping[str, float]]:
    """Passes of a sharded output layer are the head's: S its forward and I, T the rest."""
    if not schedule.vocabulary:
        return {}
    first, second = (
        float(np.median(spent[kind == each])) * schedule.ranks for each in VOCABULARY_KINDS
    )
    if schedule.vocabulary == 2:
        return {"head": {"F": first / 2, "I": first / 2, "W": second}}
    return {"head": {"F": first, "I": second / 2, "W": second / 2}}


def lag_of(recorded: Recorded) -> float | None:
    """Median time of a transfer that somebody waits for, in milliseconds; None without any."""
    times = recorded.times
    lags = []
    for send, receive in _ends(recorded.schedule):
        posted, waited, there = times[:, 0, send], times[:, 0, receive], times[:, 1, receive]
        lag = there - np.maximum(posted, waited)
        lags.append(lag[(posted > waited) & (lag > 0)])
    found = np.concatenate(lags) if lags else np.zeros(0)
    return float(np.median(found)) * MILLISECONDS if len(found) else None


def _ends(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Positions of every send and its receive."""
    actions = schedule.actions
    kind, stage, unit = kinds_of(actions), stages_of(actions), microbatches_of(actions)
    place = {
        (int(kind[p]), int(stage[p]), int(unit[p])): p for p in range(len(actions))
        if KINDS[int(kind[p])].receives
    }  # fmt: skip
    for send in np.flatnonzero(np.isin(kind, SEND_KINDS)).tolist():
        spec = KINDS[int(kind[send])]
        assert spec.other_end is not None, "a send has another end"
        receive = place.get((int(spec.other_end), int(stage[send]) + spec.away, int(unit[send])))
        if receive is not None:
            yield send, receive
