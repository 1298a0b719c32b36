"""Steps of one rank from its events: computed actions and messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from debubble.core.kind_relations import transfer_of
from debubble.core.kinds import (
    COMPUTE_KINDS,
    FORWARD_KINDS,
    GRADIENT_KINDS,
    KINDS,
    SEND_KINDS,
    TRANSFER_KINDS,
    Kind,
)
from debubble.diagnosis.readers.action_names import Named
from debubble.diagnosis.readers.kineto_device import P2P, Kernels, launched_in, transfer_spans
from debubble.diagnosis.readers.kineto_file import UNKNOWN, KinetoFile, Nanoseconds, parts_of
from debubble.diagnosis.readers.stream import LeftOut

NO_KERNELS = "actions of which kernels are not in the trace"

_Placed = tuple[int, "Moved"]
"""Index of the action that produces or consumes a message, and one end of the message."""


class Computed(NamedTuple):
    """Action, or both actions of a pair; times in nanoseconds of the file."""

    parts: tuple[Named, ...]
    start: int
    end: int
    issued: int = UNKNOWN
    waited: int = UNKNOWN
    busy: int = UNKNOWN
    halves: tuple[tuple[int, int], ...] = ()
    """Start and end of both actions of a pair if one runs after the other."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Start and end of every part."""
        return self.halves or ((self.start, self.end),) * len(self.parts)


class Moved(NamedTuple):
    """End of a message, identified by PyTorch's name: ``0SEND_F1``, ``1RECV_F1``."""

    end: Named
    sent: int = UNKNOWN
    posted: int = UNKNOWN
    waited: int = UNKNOWN
    arrived: int = UNKNOWN


Step = tuple[list[Computed], list[Moved]]
"""Actions and message ends of a rank in one step, sorted by time."""


@dataclass(eq=False)
class RankTrace:
    """Steps of one rank in one file, sorted by time.

    `numbers` are the profiler's numbers of the steps, if every step has its own. If `waits_inside`,
    times of actions contain their wait for input; if `on_device`, they are measured on the device.
    """

    file: KinetoFile
    steps: list[Step] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    waits_inside: bool = False
    on_device: bool = False

    @property
    def stages(self) -> frozenset[int]:
        """Stages of the rank; UNKNOWN if ranges have only microbatches."""
        return frozenset(
            part.stage for computed, _ in self.steps for one in computed for part in one.parts
        )

    @property
    def last_stage(self) -> int:
        """Last stage that the rank computes or sends to; UNKNOWN if ranges have no stages."""
        sent = (
            each.end.stage + KINDS[each.end.kind].away
            for _, moved in self.steps for each in moved
            if each.end.kind in FORWARD_KINDS and each.end.stage != UNKNOWN
        )  # fmt: skip
        return max(*self.stages, *sent, UNKNOWN)


def trace_of(file: KinetoFile, left_out: LeftOut) -> RankTrace:
    """Return the trace of the ranges of a file."""
    ranges = file.ranges.sorted()
    kernels = launched_in(ranges, file, left_out)
    host = _Host(file)
    found = RankTrace(file, on_device=len(kernels) > 0)
    computed: list[Computed] = []
    moved: list[_Placed] = []
    made: dict[_Key, int] = {}
    coming: dict[_Key, int] = {}
    torn = kernels.torn if 2 * len(kernels.torn) < ranges.shape[1] else frozenset()
    waits = received = 0
    names = [parts_of(name) for name in file.numbers]
    for at, (start, end, number) in enumerate(ranges.T.tolist()):
        parts = names[number]
        if all(part.kind in COMPUTE_KINDS for part in parts):
            came = [UNKNOWN] * len(parts)
            for number_of_part, part in enumerate(parts):
                place = coming.pop(_key(part), None)
                if place is not None:
                    one_end = moved[place][1]
                    if not found.on_device:
                        one_end = one_end._replace(waited=start)
                    moved[place] = len(computed), one_end
                    came[number_of_part] = one_end.arrived
            if found.on_device:
                one = _on_device(parts, kernels, at) if at not in torn else None
                leaves_all_to_weights = (parts[0].kind, parts[0].stage) == (Kind.I, 0)
                if one is None and at not in torn and leaves_all_to_weights:
                    idle = max(start, computed[-1].end if computed else start)
                    one = Computed(parts, idle, idle, start, busy=0)
            elif len(parts) == 2 and len(host.operations):
                one = _pair_on_host(parts, start, end, came, host)
            else:
                waited = max(*host.arrivals_in(start, end), *came, UNKNOWN)
                one = _on_host(parts, start, end, waited, host)
            if one is None:
                left_out[NO_KERNELS] += 1
                continue
            made |= {_key(part): len(computed) for part in parts}
            if parts[0].stage == UNKNOWN:
                moved += [
                    (len(computed), each) for each in _within(one, start, end, at, kernels, host)
                ]
            computed.append(one)
        elif parts[0].kind in TRANSFER_KINDS:
            one_end = _end(parts[0], start, end, at, kernels if found.on_device else None, host)
            if parts[0].kind in SEND_KINDS:
                moved.append((made.get(_key(parts[0]), UNKNOWN), one_end))
            else:
                received += 1
                waits += one_end.arrived != UNKNOWN
                coming[_key(parts[0])] = len(moved)
                moved.append((UNKNOWN, one_end))
    found.waits_inside = not found.on_device and received > 0 and not waits
    if not moved:
        computed = _waited_between(computed, _ends_of_transfers(file, found.on_device))
    _split(found, computed, moved)
    return found


_Key = tuple[bool, int, int, int]


def _key(part: Named) -> _Key:
    """Return the key of an activation or gradient that an action produces or consumes."""
    return part.kind in FORWARD_KINDS, part.stage, part.microbatch, part.slice


def _ends_of_transfers(file: KinetoFile, on_device: bool) -> Nanoseconds:
    """Return the sorted ends of transfers, whatever they carry."""
    if on_device:
        _, _, end, _, sort = file.kernels.sorted()
        return np.sort(end[sort == P2P])
    return np.sort(file.arrivals.sorted()[1])


def _waited_between(computed: list[Computed], ends: Nanoseconds) -> list[Computed]:
    """Return actions with the ends of their waits, where no range names a transfer.

    Megatron transfers between its actions, and waits there: an action's input was complete when
    the last transfer before it ended.
    """
    found = []
    before = -1
    for one in computed:
        at = int(np.searchsorted(ends, one.start, side="right")) - 1
        if at >= 0 and ends[at] > before and one.waited == UNKNOWN:
            one = one._replace(waited=int(ends[at]))
        before = one.end
        found.append(one)
    return found


class _Host:
    """Sends and receives measured on the host; times in nanoseconds."""

    def __init__(self, file: KinetoFile) -> None:
        self.sends, self.receives = file.sends.sorted()[0], file.receives.sorted()[0]
        self.arrivals = file.arrivals.sorted()
        self.operations = file.operations.sorted().T

    def arrivals_in(self, start: int, end: int) -> list[int]:
        """Return the arrivals of receives posted in a range."""
        if not self.arrivals.size:
            return []
        first, last = np.searchsorted(self.arrivals[0], [start, end])
        return [int(each) for each in self.arrivals[1][first:last]]

    @staticmethod
    def first_in(times: Nanoseconds, start: int, end: int) -> int:
        """Return the first time within a range, or UNKNOWN."""
        at = int(np.searchsorted(times, start))
        return int(times[at]) if at < len(times) and times[at] <= end else UNKNOWN


def _on_host(
    parts: tuple[Named, ...], start: int, end: int, waited: int, host: _Host
) -> Computed:  # fmt: skip
    """Return an action of the host; GPipe's ranges also contain the send that follows."""
    begin = min(max(start, waited), end)
    if parts[0].stage == UNKNOWN:
        sent = host.first_in(host.sends, begin, end)
        end = end if sent == UNKNOWN else sent
    return Computed(parts, begin, end, start, waited)


def _pair_on_host(
    parts: tuple[Named, ...], start: int, end: int, came: Sequence[int], host: _Host
) -> Computed:
    """Return a pair whose forward runs before its backward, each after the wait for its input."""
    first, last = np.searchsorted(host.operations[:, 0], [start, end])
    inside = host.operations[first:last]
    begin = min(max(start, came[0]), end)
    backward = inside[inside[:, 2] == 1, 0]
    cut = int(backward[0]) if len(backward) else end
    forward = inside[inside[:, 0] < cut, 1]
    # The wait for the second input lies between the operations of both.
    over = min(max(int(forward.max(initial=begin)), begin), cut)
    waits = came[1] > over
    second = min(max(came[1], over), end) if waits else cut
    halves = (begin, over if waits else cut), (second, end)
    return Computed(parts, begin, end, start, halves=halves)


def _on_device(parts: tuple[Named, ...], kernels: Kernels, at: int) -> Computed | None:
    span = kernels.work.get(at)
    if span is None:
        return None
    first, last, spent, launched = span
    return Computed(parts, first, last, launched, busy=spent)


def _end(part: Named, start: int, end: int, at: int, kernels: Kernels | None, host: _Host) -> Moved:
    """Return the end of a message that has its own range."""
    sends = part.kind in SEND_KINDS
    if kernels is not None:
        spans = transfer_spans(kernels, at)
        if not spans:
            return Moved(part)
        begin, last = spans[0][0], spans[-1][1]
        return Moved(part, sent=begin) if sends else Moved(part, posted=begin, arrived=last)
    if sends:
        sent = host.first_in(host.sends, start, end)
        return Moved(part, sent=start if sent == UNKNOWN else sent)
    posted = host.first_in(host.receives, start, end)
    arrived = max(host.arrivals_in(start, end), default=UNKNOWN)
    return Moved(part, posted=start if posted == UNKNOWN else posted, arrived=arrived)


def _within(
    one: Computed, start: int, end: int, at: int, kernels: Kernels, host: _Host
) -> list[Moved]:
    """Return the messages of a GPipe range, which receives first and sends last."""
    part = one.parts[0]
    send, receive = (part._replace(kind=kind) for kind in transfer_of(part.kind))
    found = []
    if len(kernels):
        for begin, last in transfer_spans(kernels, at):
            before = begin < one.start
            found.append(
                Moved(receive, posted=begin, arrived=last) if before else Moved(send, sent=begin)
            )
        return found
    if one.waited != UNKNOWN:
        posted = host.first_in(host.receives, start, end)
        found.append(Moved(receive, posted=posted, waited=start, arrived=one.waited))
    sent = host.first_in(host.sends, one.start, end)
    if sent != UNKNOWN:
        found.append(Moved(send, sent=sent))
    return found


def _split(found: RankTrace, computed: Sequence[Computed], moved: Sequence[_Placed]) -> None:
    """Split actions into steps; a message goes with the action that produces or consumes it."""
    cuts = cuts_of([one.parts for one in computed])
    bounds = [0, *cuts, len(computed)]
    found.steps = [(list(computed[a:b]), []) for a, b in pairwise(bounds)]
    if found.on_device:
        found.steps = [(_waits(actions), ends) for actions, ends in found.steps]
    for index, end in moved:
        if 0 <= index < len(computed):
            found.steps[bisect_right(cuts, index)][1].append(end)
    steps = found.file.steps.sorted()
    if steps.shape[1]:
        begins = [group[0].issued for group, _ in found.steps if group]
        at = np.searchsorted(steps[0], begins, side="right") - 1
        numbers = steps[2][np.maximum(at, 0)].tolist()
        if (at >= 0).all() and len(set(numbers)) == len(numbers):
            found.numbers = numbers


def _waits(computed: list[Computed]) -> list[Computed]:
    """Return actions of a device with the ends of their waits for input.

    An action launched before the end of the previous one could have begun at that end, so it began
    when its input was complete. An action launched later waited for the host.
    """
    return computed[:1] + [
        one._replace(waited=one.start) if one.issued <= before.end < one.start else one
        for before, one in pairwise(computed)
    ]


def cuts_of(keys: Sequence[tuple[Named, ...]]) -> list[int]:
    """Return the first indices of all steps but the first; they begin where an action repeats.

    A trace that starts within a step has a part of it first, which is not the beginning of the next
    step. Within a step every forward precedes its backward.
    """
    cuts = _repeats(keys, 0)
    period = cuts[0] if cuts else len(keys)
    begin = _begin(keys[:period])
    return [begin, *_repeats(keys, begin)] if begin else cuts


def _repeats(keys: Sequence[tuple[Named, ...]], begin: int) -> list[int]:
    cuts = []
    seen: set[tuple[Named, ...]] = set()
    for at in range(begin, len(keys)):
        if keys[at] in seen:
            cuts.append(at)
            seen = set()
        seen.add(keys[at])
    return cuts


def _begin(keys: Sequence[tuple[Named, ...]]) -> int:
    """Return the index in a cycle at which a step begins: a forward with no backward before it."""
    forwards: dict[tuple[int, int, int], int] = {}
    backwards: dict[tuple[int, int, int], int] = {}
    for at, parts in enumerate(keys):
        for part in parts:
            if part.kind in FORWARD_KINDS:
                forwards[part[1:]] = at
            elif part.kind in GRADIENT_KINDS:
                backwards[part[1:]] = at
    # A beginning between a forward and its backward would separate them.
    torn = np.zeros(len(keys) + 1, np.int64)
    for unit, forward in forwards.items():
        backward = backwards.get(unit, forward)
        torn[0] += backward < forward
        torn[forward + 1] += 1
        torn[backward + 1] -= 1
    fine = np.flatnonzero(np.cumsum(torn)[: len(keys)] == 0).tolist()
    starts = [at for at in fine if keys[at][0].kind in FORWARD_KINDS]
    return min(starts, key=lambda at: (keys[at][0].microbatch, at), default=0)
