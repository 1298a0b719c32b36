"""The second simulator for schedules whose sends and receives are actions, in any p2p mode.

Ranks do what they can, transfers happen when their mode lets them, until nothing is left.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

from debubble import Action, Costs, Kind, Schedule
from debubble.core.actions import COPY_KINDS, TRANSFER_KINDS, unpack
from debubble.core.carries import Carries
from tests.oracle import (
    OwnCosts,
    carried_sources_of,
    carry_time,
    copy_of,
    copy_time,
    group_at,
    group_time,
    link_time,
    shard_arrival,
)

SENDS = (Kind.SEND_F, Kind.SEND_B, Kind.SEND_C, Kind.SEND_CB)
QUEUED = ("pair", "group", "directed")

Name = tuple[str, int, int]
"""A transfer: F, B, C or CB, the unit and the stage it comes from."""
Spot = tuple[int, int]
"""A rank and an index in its program."""


class End(NamedTuple):
    """One end of a transfer."""

    name: Name
    sender: int
    receiver: int


def end_at(schedule: Schedule, action: Action) -> End:
    """The transfer that a send or receive is one end of."""
    stage, kind, unit = action
    _, _, word = kind.name.partition("_")
    if kind in SENDS:
        source, target = stage, target_of(schedule, word, stage)
    else:
        source, target = source_of(schedule.carries, schedule.stages, word, stage), stage
    row = schedule.placement.table[copy_of(schedule, unit)]
    return End((word, unit, source), row[source], row[target])


def target_of(schedule: Schedule, word: str, source: int) -> int | None:
    """The stage that gets what another sends."""
    return target_among(schedule.carries, word, source)


@lru_cache(maxsize=1024)
def source_of(carries: Carries, stages: int, word: str, target: int) -> int:
    """The stage that sends what another gets."""
    return next(s for s in range(stages) if target_among(carries, word, s) == target)


@lru_cache(maxsize=1024)
def target_among(carries: Carries, word: str, source: int) -> int | None:
    """The stage that gets what another sends, of these carries."""
    to = dict(carries)
    back = {target: source for source, target in to.items()}
    near = {"F": source + 1, "B": source - 1}
    return near[word] if word in near else (to if word == "C" else back).get(source)


class Run:
    """A schedule on its way, see :func:`simulate`."""

    def __init__(self, schedule: Schedule, costs: Costs, mode: str) -> None:
        self.schedule, self.mode = schedule, mode
        self.own = OwnCosts(schedule, costs)
        self.table = self.own.table
        ranks = schedule.ranks
        self.codes = [schedule.program(rank).tolist() for rank in range(ranks)]
        self.programs = [[unpack(code) for code in row] for row in self.codes]
        self.head, self.free, self.stream = [0] * ranks, [0.0] * ranks, [0.0] * ranks
        self.group: list[list[int]] = [[] for _ in range(ranks)]
        self.start: dict[Spot, float] = {}
        self.end: dict[Spot, float] = {}
        self.finished: dict[Action, tuple[float, int]] = {}
        self.reloaded: dict[tuple[int, int], float] = {}
        self.left: dict[tuple[int, int], float] = {}
        self.reduced: list[list[float]] = [[] for _ in range(ranks)]
        self.ends: dict[Name, End] = {}
        self.names: dict[Spot, Name] = {}
        self.spots: dict[Name, dict[bool, Spot]] = defaultdict(dict)
        self.line: dict[object, list[Name]] = defaultdict(list)
        self.lines: dict[Name, list[object]] = defaultdict(list)
        self.idle: dict[object, float] = defaultdict(float)
        self.posted: dict[Name, dict[bool, float]] = defaultdict(dict)
        self.waiting: dict[Name, None] = {}
        self.over: dict[Name, float] = {}
        for rank, program in enumerate(self.programs):
            for index, action in enumerate(program):
                if action.kind in TRANSFER_KINDS:
                    self._enlist(rank, index, action)

    def _enlist(self, rank: int, index: int, action: Action) -> None:
        end, sends = end_at(self.schedule, action), action.kind in SENDS
        self.ends[end.name] = end
        self.names[rank, index] = end.name
        self.spots[end.name][sends] = rank, index
        peer = end.receiver if sends else end.sender
        line: object = {
            "overlapped": end.name, "channel": (rank, peer), "blocking": (rank, peer),
            "pair": (rank, peer), "group": rank, "directed": (rank, peer, sends),
        }[self.mode]  # fmt: skip
        # Where nothing is queued, transfers of a link go in the order of the sends.
        if sends or self.mode in QUEUED:
            self.line[line].append(end.name)
            self.lines[end.name].append(line)

    def transfer(self) -> bool:
        """Let all happen that can; whether any did."""
        happened = False
        for name in list(self.waiting):
            end, posted = self.ends[name], self.posted[name]
            ready = True in posted and (self.mode in ("overlapped", "channel") or False in posted)
            if not ready:
                continue
            if any(self.line[line][0] != name for line in self.lines[name]):
                continue
            begin = max(*posted.values(), *(self.idle[line] for line in self.lines[name]))
            if self.mode in ("overlapped", "channel"):
                begin = max(posted[True], *(self.idle[line] for line in self.lines[name]))
            part = name[1] % self.schedule.slices
            costs = self.own.of(name[1])
            boundary = name[2], target_of(self.schedule, name[0], name[2])
            ranks = end.sender, end.receiver
            if name[0] in ("C", "CB"):
                over = begin + carry_time(self.schedule, costs, ranks, part, boundary)
            else:
                over = begin + link_time(self.schedule, costs, *ranks, part, boundary)
            self.over[name] = over
            del self.waiting[name]
            for line in self.lines[name]:
                self.line[line].pop(0)
                self.idle[line] = over
            for spot in self.spots[name].values():
                self.start[spot], self.end[spot] = begin, over
            happened = True
        return happened

    def post(self, rank: int) -> bool:
        """Reach a send or receive, or a group of them where they block."""
        program, index = self.programs[rank], self.head[rank]
        if self.mode == "blocking":
            if not self.group[rank]:
                while index < len(program) and program[index].kind in TRANSFER_KINDS:
                    self.group[rank].append(index)
                    index += 1
                for member in self.group[rank]:
                    self._reach(rank, member)
                return True
            names = [self.names[rank, member] for member in self.group[rank]]
            if any(name not in self.over for name in names):
                return False
            self.free[rank] = max(self.over[name] for name in names)
            self.head[rank] += len(names)
            self.group[rank] = []
            return True
        self._reach(rank, index)
        self.head[rank] += 1
        return True

    def _reach(self, rank: int, index: int) -> None:
        action = self.programs[rank][index]
        name = self.names[rank, index]
        self.posted[name][action.kind in SENDS] = self.free[rank]
        if name not in self.over:
            self.waiting[name] = None

    def copy(self, rank: int) -> bool:
        """Issue an offload or a reload."""
        index = self.head[rank]
        action = self.programs[rank][index]
        begin = max(self.free[rank], self.stream[rank])
        took = copy_time(self.own, action, rank)
        self.stream[rank] = begin + took
        self.start[rank, index], self.end[rank, index] = begin, begin + took
        done = self.reloaded if action.kind == Kind.RELOAD else self.left
        done[action.stage, action.microbatch] = begin + took
        self.head[rank] += 1
        return True

    def wait(self, rank: int) -> bool:
        """Wait for an offload."""
        index = self.head[rank]
        action = self.programs[rank][index]
        self.free[rank] = max(self.free[rank], self.left[action.stage, action.microbatch])
        self.start[rank, index] = self.end[rank, index] = self.free[rank]
        self.head[rank] += 1
        return True

    def occupy(self, rank: int, begin: float, took: float, members: int = 1) -> None:
        """Compute something."""
        for index in range(self.head[rank], self.head[rank] + members):
            self.start[rank, index], self.end[rank, index] = begin, begin + took
            self.finished[self.programs[rank][index]] = begin + took, rank
        self.free[rank] = begin + took
        self.head[rank] += members

    def hop(self, source: int, target: int) -> float:
        """Time of a norm from one rank to another."""
        return link_time(self.schedule, self.own.average, source, target, 0)

    def step(self, rank: int) -> bool:
        """Step the optimizer, where other ranks let it."""
        if self.schedule.sync == "global":
            heads = [
                head < len(program) and program[head].kind == Kind.OPT
                for head, program in zip(self.head, self.programs, strict=True)
            ]
            if not all(heads):
                return False
            ranks, norm = range(self.schedule.ranks), self.free[0]
            for each in ranks[1:]:
                norm = max(self.free[each], norm + self.hop(each - 1, each))
            for each in ranks:
                begin = max(self.free[each], norm + self.hop(ranks[-1], each))
                self.occupy(each, begin, self.table.optimizer[each])
            return True
        begin = self.free[rank]
        if self.schedule.sync == "post-validation":
            number = len(self.reduced[rank])
            if rank and len(self.reduced[rank - 1]) == number:
                return False
            if rank:
                begin = max(begin, self.reduced[rank - 1][number] + self.hop(rank - 1, rank))
            self.reduced[rank].append(begin)
        self.occupy(rank, begin, self.table.optimizer[rank])
        return True

    def compute(self, rank: int) -> bool:
        """Run what computes, once all that it needs is there."""
        begin = self.head[rank]
        group = self.programs[rank][begin : begin + len(group_at(self.codes[rank], begin))]
        ready = [self.free[rank]]
        for member in group:
            for name in self.received(member, rank):
                if name not in self.over:
                    return False
                ready.append(self.over[name])
            if member.kind in (Kind.I, Kind.B, Kind.R):
                ready.append(self.reloaded.get((member.stage, member.microbatch), 0.0))
            if self.schedule.vocabulary:
                when = shard_arrival(self.own, self.finished, member, rank)
                if when is None:
                    return False
                ready.append(when)
        self.occupy(rank, max(ready), group_time(self.own, group), len(group))
        return True

    def received(self, action: Action, rank: int) -> list[Name]:
        """The transfers that an action computes with."""
        stage, kind, unit = action
        found: list[Name] = [("F", unit, stage - 1)] if kind == Kind.F else []
        late = kind == Kind.R and self.schedule.recompute_after == "gradient"
        if kind in (Kind.I, Kind.B) or late:
            found.append(("B", unit, stage + 1))
        word = "C" if kind == Kind.F else "CB"
        found += [(word, unit, source.stage)
                  for source, *_ in carried_sources_of(self.schedule, action)]  # fmt: skip
        return [name for name in found if name in self.ends and self.ends[name].receiver == rank]

    def go_on(self, rank: int) -> bool:
        """Do the next thing of a rank, where it can be done."""
        if self.head[rank] == len(self.programs[rank]):
            return False
        kind = self.programs[rank][self.head[rank]].kind
        if kind in TRANSFER_KINDS:
            return self.post(rank)
        if kind in COPY_KINDS:
            return self.copy(rank)
        if kind == Kind.WAIT_OFFLOAD:
            return self.wait(rank)
        return self.step(rank) if kind == Kind.OPT else self.compute(rank)


def simulate(schedule: Schedule, costs: Costs, mode: str) -> Run | None:
    """Starts and ends of all actions; None where ranks get stuck.

    For schedules that are complete and in order, with one rank's actions of a stage on its own.
    """
    run = Run(schedule, costs, mode)
    moved = True
    while moved:
        moved = False
        for rank in range(schedule.ranks):
            while run.go_on(rank):
                moved = True
        moved = run.transfer() or moved
    done = all(head == len(row) for head, row in zip(run.head, run.programs, strict=True))
    return run if done and len(run.over) == len(run.ends) else None
