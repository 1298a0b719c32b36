"""A second simulator, as plain as possible: run what can run until nothing is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from debubble import Action, Costs, Kind, Schedule
from debubble.core.actions import PAIR_SHIFT, unpack
from debubble.core.cost_table import CostTable
from debubble.engine.recompute import recomputed_stages


@dataclass(frozen=True)
class Outcome:
    start: dict[tuple[int, int], float]
    """Start time by (rank, index in its program)."""
    end: dict[tuple[int, int], float]
    makespan: float


class CannotRunError(Exception):
    """No rank can go on."""


def group_at(program: list[int], index: int) -> list[int]:
    """The packed actions that start together with one."""
    stop = index
    while (program[stop] >> PAIR_SHIFT) & 3 in (1, 3):
        stop += 1
    return program[index : stop + 1]


class OwnCosts:
    """Costs of every microbatch, as if it were the only length there is."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule, self.average = schedule, replace(costs, microbatch=None)
        lengths = costs.microbatch or [1.0] * schedule.microbatches
        self.costs = [self.average] * schedule.microbatches
        if any(length != 1 for length in lengths):
            self.costs = [longer(schedule, self.average, length) for length in lengths]
        self.table = self.average.table(schedule)
        made = {id(self.average): self.table}
        for each in self.costs:
            if id(each) not in made:
                made[id(each)] = each.table(schedule)
        self.tables = [made[id(each)] for each in self.costs]

    def of(self, unit: int) -> Costs:
        """Costs of the microbatch that a unit is, or is a slice of."""
        return self.costs[unit // self.schedule.slices % self.schedule.microbatches]

    def table_of(self, unit: int) -> CostTable:
        """The same as a table."""
        return self.tables[unit // self.schedule.slices % self.schedule.microbatches]


def longer(schedule: Schedule, costs: Costs, length: float) -> Costs:
    """Costs of a microbatch that is `length` times as long, per stage."""

    def each(name: str, default: float) -> list[float]:
        value = getattr(costs, name)
        if value is None:
            return [default] * schedule.stages
        return list(np.broadcast_to(value, schedule.stages).tolist())

    half = [None if costs.B is None else time / 2 for time in each("B", 0.0)]
    F, a = each("F", 1.0), each("attention", 0.0)
    I, W = ([h if getattr(costs, k) is None and h is not None else t
             for h, t in zip(half, each(k, 1.0), strict=True)] for k in "IW")  # fmt: skip
    B = [i + w for i, w in zip(I, W, strict=True)] if costs.B is None else each("B", 0.0)
    R = F if costs.R is None else each("R", 0.0)

    def stretched(times: list[float], shares: list[float]) -> list[float]:
        pairs = zip(times, shares, strict=True)
        return [time * ((1 - share) * length + share * length**2) for time, share in pairs]

    def scaled(times: list[float]) -> list[float]:
        return [time * length for time in times]

    # All attention of a split backward is in I; it is a share of both, at most all of I.
    both = [min(s * (i + w), i) for s, i, w in zip(a, I, W, strict=True)]
    of_input = [part / i if i else 0.0 for part, i in zip(both, I, strict=True)]
    of_full = [
        part / (i + w) if i + w else share for part, i, w, share in zip(both, I, W, a, strict=True)
    ]
    parts = {
        name: {key: value * length for key, value in getattr(costs, name).items()}
        for name in ("embedding", "head", "mtp") if getattr(costs, name) is not None
    }  # fmt: skip
    return replace(
        costs,
        F=stretched(F, a), I=stretched(I, of_input), W=scaled(W), B=stretched(B, of_full),
        R=stretched(R, a),
        attention=[share * length / (1 - share + share * length) if length else share
                   for share in a],
        activation=scaled(each("activation", schedule.ranks / schedule.stages)),
        kv=scaled(each("kv", 0.0)), exchange=scaled(each("exchange", 0.0)),
        message=(np.asarray(costs.message) * length).tolist(), **parts,
    )  # fmt: skip


def said_pair(costs: Costs, forward: int, backward: int | None) -> float | None:
    """What costs say about the time of a pair of stages, of two forwards without a backward's."""
    if backward is None:
        each = costs.FF[forward] if isinstance(costs.FF, Sequence) else costs.FF
        return None if each is None else float(each)
    if isinstance(costs.O, Mapping):
        for key in ((forward, backward), forward, "default"):
            if key in costs.O:
                return float(costs.O[key])
        return None
    if isinstance(costs.O, Sequence):
        return float(costs.O[forward])
    return costs.O


def pair_time(own: OwnCosts, first: Action, second: Action) -> float:
    """Time of an overlapped pair with a forward, each of its own microbatch."""
    schedule, costs = own.schedule, own.average
    started, halves = costs.launch, []
    for action in (first, second):
        at, table = (int(action.kind), place_of(schedule, action)), own.table_of(action.microbatch)
        parts = float(table.part_duration[at])
        plain = float(table.duration[at]) - parts - started
        places = schedule.placement.copies * schedule.stages
        whole = own.table.duration - own.table.part_duration - started
        halves.append((plain, parts, float(whole[at[0], at[1] % places :: places].sum())))
    (one, part, all_one), (other, more, all_other) = halves
    said = said_pair(costs, first.stage, None if second.kind == Kind.F else second.stage)
    if said is None:
        return costs.overlap_factor * (one + other + part + more) + 2 * started
    share = (one + other) / (all_one + all_other) if all_one + all_other else 0.0
    return said * share + costs.overlap_factor * (part + more) + 2 * started


def group_time(own: OwnCosts, members: list[Action]) -> float:
    """A pair with a forward takes its overlapped time, other groups the sum of their parts."""
    schedule = own.schedule
    kinds = [member.kind for member in members]
    if len(members) == 2 and Kind.F in kinds and Kind.R not in kinds:
        first, second = sorted(members, key=lambda member: member.kind)
        if second.kind != Kind.F and not backward_needed(schedule, own.average, second.stage):
            table = own.table_of(first.microbatch)
            return float(table.duration[int(first.kind), place_of(schedule, first)])
        if own.costs[0] is not own.average:
            return pair_time(own, first, second)
        return own.table.pair((int(first.kind), place_of(schedule, first)),
                              (int(second.kind), place_of(schedule, second)))  # fmt: skip
    total = 0.0
    for member in members:
        table = own.table_of(member.microbatch)
        total += float(table.duration[int(member.kind), place_of(schedule, member)])
    return total


def copy_of(schedule: Schedule, unit: int) -> int:
    microbatch = unit // schedule.slices % schedule.microbatches
    return microbatch * schedule.placement.copies // schedule.microbatches


def place_of(schedule: Schedule, action: Action) -> int:
    part = action.microbatch % schedule.slices
    group = part * schedule.placement.copies + copy_of(schedule, action.microbatch)
    return group * schedule.stages + action.stage


def link_time(
    schedule: Schedule,
    costs: Costs,
    sender: int,
    receiver: int,
    part: int,
    boundary: tuple[int, int] | None = None,
) -> float:
    """What the transfer of one slice takes, where it is known from which stage to which."""
    if sender == receiver:
        return 0.0
    latency = costs.p2p if isinstance(costs.p2p, float) else costs.p2p[sender][receiver]
    size: float | None = (
        max(one_each(costs.message, schedule.stages - 1), default=0.0)
        if boundary is None
        else message_size(schedule, costs, boundary)
    )
    if size is None:
        return 0.0
    return latency + size * schedule.slicing.shares[part] / costs.bandwidth


@lru_cache(maxsize=256)
def one_each(value: float | tuple[float, ...], count: int) -> tuple[float, ...]:
    """A cost that is one number for all, or one each, as one each."""
    return tuple(np.broadcast_to(value, count).tolist())


def backward_needed(schedule: Schedule, costs: Costs, stage: int) -> bool:
    """Whether weights up to a stage are trained."""
    return any(frozen < 1 for frozen in one_each(costs.frozen, schedule.stages)[: stage + 1])


def message_size(schedule: Schedule, costs: Costs, boundary: tuple[int, int]) -> float | None:
    """Size of what one stage sends to its neighbour, None for a gradient that nobody needs."""
    sender, receiver = boundary
    if sender > receiver and not backward_needed(schedule, costs, receiver):
        return None
    return one_each(costs.message, schedule.stages - 1)[min(boundary)]


def copy_time(own: OwnCosts, action: Action, rank: int) -> float:
    """What an OFFLOAD or RELOAD takes; a stage recomputes all of its microbatches or none."""
    schedule, costs, table = own.schedule, own.average, own.table_of(action.microbatch)
    place = place_of(schedule, action)
    again = action.stage in recomputed_stages(schedule)
    left = (table.checkpoint if again else table.activation)[place]
    size = float(left * table.offload[place])
    target = schedule.copy_targets[rank]
    if target is None:
        return size / costs.host_bandwidth
    pair = (rank, target) if action.kind == Kind.OFFLOAD else (target, rank)
    latency = costs.p2p if isinstance(costs.p2p, float) else costs.p2p[pair[0]][pair[1]]
    return latency + size / costs.bandwidth


def shards_of(schedule: Schedule, kind: Kind, microbatch: int) -> list[Action]:
    """The passes of all ranks' shards of the output layer; each stands on a rank's first stage."""
    row = schedule.placement.table[0]
    return [Action(row.index(rank), kind, microbatch) for rank in range(schedule.ranks)]


def shard_arrival(
    own: OwnCosts,
    finished: dict[Action, tuple[float, int]],
    action: Action,
    rank: int,
) -> float | None:
    """When an action has what it needs of the output layer's shards; None when not yet known."""
    schedule, costs = own.schedule, own.of(action.microbatch)
    if not schedule.vocabulary:
        return 0.0
    kind, last = action.kind, schedule.stages - 1
    relay = 0.0
    if kind == Kind.T:
        relay = link_time(schedule, costs, schedule.placement.table[0][last], rank, 0)
    sources = shard_sources_of(schedule, action)
    latest = 0.0
    for source in sources:
        if source not in finished:
            return None
        when, where = finished[source]
        # Sums over all shards go through the last stage's rank.
        lag = relay if kind == Kind.T else link_time(schedule, costs, where, rank, 0)
        latest = max(latest, when + lag)
    return latest


def sources_of(schedule: Schedule, action: Action) -> list[tuple[Action, ...]]:
    """What an action of one stage and microbatch needs, each as alternatives, beside shards."""
    stage, kind, microbatch = action
    stages = schedule.stages
    sources: list[tuple[Action, ...]] = []
    if kind == Kind.F and stage > 0:
        sources = [(Action(stage - 1, Kind.F, microbatch),)]
    elif kind in (Kind.I, Kind.B):
        sources = [(Action(stage, Kind.F, microbatch),)]
        if stage < stages - 1:
            sources.append(
                (Action(stage + 1, Kind.I, microbatch), Action(stage + 1, Kind.B, microbatch))
            )
    elif kind == Kind.W:
        sources = [(Action(stage, Kind.I, microbatch),)]
    elif kind == Kind.R:
        sources = [(Action(stage, Kind.F, microbatch),)]
        if stage < stages - 1 and schedule.recompute_after == "gradient":
            sources.append(
                (Action(stage + 1, Kind.I, microbatch), Action(stage + 1, Kind.B, microbatch))
            )
    part = microbatch % schedule.slices
    if kind == Kind.F and part > 0:
        sources.append((Action(stage, Kind.F, microbatch - 1),))
    if kind in (Kind.I, Kind.B) and part < schedule.slices - 1:
        later = microbatch + 1
        sources.append((Action(stage, Kind.I, later), Action(stage, Kind.B, later)))
    return sources


def carried_sources_of(schedule: Schedule, action: Action) -> list[tuple[Action, ...]]:
    """What an action needs that stages carry to others, each as alternatives."""
    if not schedule.carries:
        return []
    stage, kind, microbatch = action
    late = kind == Kind.R and schedule.recompute_after == "gradient"
    if kind == Kind.F:
        return [(Action(a, Kind.F, microbatch),) for a, b in schedule.carries if b == stage]
    if kind in (Kind.I, Kind.B) or late:
        return [
            (Action(b, Kind.I, microbatch), Action(b, Kind.B, microbatch))
            for a, b in schedule.carries
            if a == stage
        ]
    return []


def carry_time(
    schedule: Schedule, costs: Costs, ranks: tuple[int, int], part: int, stages: tuple[int, int]
) -> float:
    """What the transfer of something that one stage carries to another takes."""
    back = stages[0] > stages[1]
    if ranks[0] == ranks[1] or (back and not backward_needed(schedule, costs, stages[1])):
        return 0.0
    if costs.p2p_carry is not None:
        return costs.p2p_carry
    return link_time(schedule, costs, *ranks, part)


def shard_sources_of(schedule: Schedule, action: Action) -> list[Action]:
    """What an action needs of, or for, the shards of the output layer."""
    stage, kind, microbatch = action
    last = schedule.stages - 1
    takers = (Kind.I, Kind.B, *((Kind.R,) if schedule.recompute_after == "gradient" else ()))
    if kind == Kind.S:
        return [Action(last, Kind.F, microbatch)]
    if kind == Kind.T:
        return shards_of(schedule, Kind.S, microbatch)
    if kind in takers and stage == last and schedule.vocabulary:
        return shards_of(schedule, Kind.T if schedule.vocabulary == 1 else Kind.S, microbatch)
    return []


def simulate(schedule: Schedule, costs: Costs) -> Outcome:
    """Overlapped transfers only; every action waits for its rank and for its data.

    A copy is issued when its rank reaches it; each rank's copies run one after the other.
    """
    own = OwnCosts(schedule, costs)
    table = own.table
    codes = [schedule.program(rank).tolist() for rank in range(schedule.ranks)]
    programs = [[unpack(code) for code in row] for row in codes]
    heads = [0] * schedule.ranks
    free = [0.0] * schedule.ranks
    stream = [0.0] * schedule.ranks
    finished: dict[Action, tuple[float, int]] = {}
    away = {
        (action.stage, action.microbatch)
        for program in programs
        for action in program
        if action.kind in (Kind.OFFLOAD, Kind.RELOAD)
    }
    copied: dict[Action, float] = {}
    start: dict[tuple[int, int], float] = {}
    end: dict[tuple[int, int], float] = {}

    def arrival(action: Action, rank: int) -> float | None:
        """When the data of an action is there; None when not yet known."""
        stage, kind, microbatch = action
        sources = sources_of(schedule, action)
        part = microbatch % schedule.slices
        latest = shard_arrival(own, finished, action, rank)
        if latest is None:
            return None
        if (stage, microbatch) in away and kind in (Kind.I, Kind.B, Kind.R):
            if Action(stage, Kind.RELOAD, microbatch) not in copied:
                return None
            latest = max(latest, copied[Action(stage, Kind.RELOAD, microbatch)])
        for alternatives in sources:
            known = [source for source in alternatives if source in finished]
            if not known:
                return None
            when, where = finished[known[0]]
            there = (known[0].stage, stage)
            boundary = there if there[0] != there[1] else None
            takes = link_time(schedule, own.of(microbatch), where, rank, part, boundary)
            latest = max(latest, when + takes)
        for alternatives in carried_sources_of(schedule, action):
            known = [source for source in alternatives if source in finished]
            if not known:
                return None
            when, where = finished[known[0]]
            ends, stages = (where, rank), (known[0].stage, stage)
            takes = carry_time(schedule, own.of(microbatch), ends, part, stages)
            latest = max(latest, when + takes)
        return latest

    reduced: list[list[float]] = [[] for _ in programs]
    moved = True
    while moved:
        moved = False
        waiting_to_step = [
            rank
            for rank, program in enumerate(programs)
            if heads[rank] < len(program) and program[heads[rank]].kind == Kind.OPT
        ]
        for rank, program in enumerate(programs):
            while heads[rank] < len(program):
                index = heads[rank]
                action = program[index]
                if action.kind in (Kind.OFFLOAD, Kind.RELOAD):
                    out = action.kind == Kind.OFFLOAD
                    needed = action._replace(kind=Kind.F if out else Kind.OFFLOAD)
                    if needed not in (finished if out else copied):
                        break
                    took = copy_time(own, action, rank)
                    start[rank, index] = max(free[rank], stream[rank])
                    stream[rank] = end[rank, index] = start[rank, index] + took
                    copied[action] = stream[rank]
                    heads[rank] += 1
                    moved = True
                    continue
                if action.kind == Kind.WAIT_OFFLOAD:
                    needed = action._replace(kind=Kind.OFFLOAD)
                    if needed not in copied:
                        break
                    free[rank] = max(free[rank], copied[needed])
                    start[rank, index] = end[rank, index] = free[rank]
                    heads[rank] += 1
                    moved = True
                    continue
                if action.kind == Kind.OPT:
                    if schedule.sync == "global":
                        break
                    if schedule.sync == "post-validation":
                        norms = reduced[rank - 1] if rank else []
                        if rank and len(norms) == len(reduced[rank]):
                            break
                        if rank:
                            wait = link_time(schedule, own.average, rank - 1, rank, 0)
                            came = norms[len(reduced[rank])] + wait
                            free[rank] = max(free[rank], came)
                        reduced[rank].append(free[rank])
                    start[rank, index] = free[rank]
                    free[rank] += table.optimizer[rank]
                    end[rank, index] = free[rank]
                    heads[rank] += 1
                    moved = True
                    continue
                group = program[index : index + len(group_at(codes[rank], index))]
                arrivals = [arrival(member, rank) for member in group]
                if any(when is None for when in arrivals):
                    break
                begin = max([free[rank], *(when for when in arrivals if when is not None)])
                took = group_time(own, group)
                for offset, member in enumerate(group):
                    start[rank, index + offset] = begin
                    end[rank, index + offset] = begin + took
                    finished[member] = (begin + took, rank)
                free[rank] = begin + took
                heads[rank] += len(group)
                moved = True
        if not moved and schedule.sync == "global" and len(waiting_to_step) == schedule.ranks:
            # The sum of squares goes down the ranks, and the last one sends it back to each.
            last = schedule.ranks - 1
            norm = free[0]
            for rank in range(1, schedule.ranks):
                norm = max(free[rank], norm + link_time(schedule, own.average, rank - 1, rank, 0))
            for rank in range(schedule.ranks):
                back = link_time(schedule, own.average, last, rank, 0)
                start[rank, heads[rank]] = max(free[rank], norm + back)
                free[rank] = start[rank, heads[rank]] + table.optimizer[rank]
                end[rank, heads[rank]] = free[rank]
                heads[rank] += 1
            moved = True
    if any(heads[rank] < len(program) for rank, program in enumerate(programs)):
        raise CannotRunError
    return Outcome(start, end, max(end.values()))


def peaks(schedule: Schedule, costs: Costs) -> list[float]:
    """Largest memory of every rank: what is held while each action, or pair of actions, runs."""
    own = OwnCosts(schedule, costs)
    last = schedule.slices - 1
    found = []
    for rank in range(schedule.ranks):
        program = schedule.program(rank).tolist()
        actions = [unpack(code) for code in program]
        again = {(stage, unit) for stage, kind, unit in actions if kind == Kind.R}
        held: dict[tuple[int, int], float] = {}
        context: dict[tuple[int, int, str], float] = {}
        most = 0.0
        index = 0
        while index < len(actions):
            group = actions[index : index + len(group_at(program, index))]
            index += len(group)
            for member in group:
                stage, kind, unit = member
                place, table = place_of(schedule, member), own.table_of(unit)
                if kind == Kind.F:
                    context[stage, unit, "kv"] = table.kv[place]
                    light = (stage, unit) in again
                    held[stage, unit] = (table.checkpoint if light else table.activation)[place]
                elif kind == Kind.R:
                    held[stage, unit] = table.activation[place]
                elif kind == Kind.S:
                    context[stage, unit, "shard"] = table.shard
                elif kind in (Kind.I, Kind.B) and unit % schedule.slices == last:
                    for part in range(schedule.slices):
                        earlier = member._replace(microbatch=unit - last + part)
                        of_part = table.kv[place_of(schedule, earlier)]
                        context[stage, earlier.microbatch, "gradients"] = of_part
            most = max(most, sum(held.values()) + sum(context.values()))
            for member in group:
                stage, kind, unit = member
                if kind in (Kind.I, Kind.B):
                    del context[stage, unit, "kv"], context[stage, unit, "gradients"]
                if kind == Kind.T:
                    del context[stage, unit, "shard"]
                if kind == Kind.I:
                    held[stage, unit] = own.table_of(unit).kept[place_of(schedule, member)]
                elif kind in (Kind.W, Kind.B):
                    del held[stage, unit]
        assert not held
        found.append(most)
    return found


def peaks_by_time(schedule: Schedule, costs: Costs, outcome: Outcome) -> list[float]:
    """Peak activation of every rank, from the times alone: what is held at any event.

    For positive durations only: at each event's time, what ends is gone and what starts is there.
    """
    own = OwnCosts(schedule, costs)
    spans: list[list[tuple[float, float, float]]] = [[] for _ in range(schedule.ranks)]
    for rank in range(schedule.ranks):
        at = {
            unpack(code): (outcome.start[rank, index], outcome.end[rank, index])
            for index, code in enumerate(schedule.program(rank).tolist())
        }
        for (stage, kind, microbatch), (begin, _) in at.items():
            table = own.table_of(microbatch)
            if kind == Kind.S:
                done = at[Action(stage, Kind.T, microbatch)][1]
                spans[rank].append((begin, done, table.shard))
            if kind != Kind.F:
                continue
            place = place_of(schedule, Action(stage, kind, microbatch))
            full, kept = float(table.activation[place]), float(table.kept[place])
            again = at.get(Action(stage, Kind.R, microbatch))
            left_behind = float(table.checkpoint[place]) if again else full
            part = left_behind * float(table.offload[place])
            last = microbatch - microbatch % schedule.slices + schedule.slices - 1
            if Action(stage, Kind.B, microbatch) in at:
                done = weights = at[Action(stage, Kind.B, microbatch)][1]
            else:
                done = at[Action(stage, Kind.I, microbatch)][1]
                weights = at[Action(stage, Kind.W, microbatch)][1]
            spans[rank] += [(begin, weights, kept), (begin, done, full - kept)]
            if again:
                spans[rank].append((begin, again[0], left_behind - full))
            first = at.get(Action(stage, Kind.B, last)) or at[Action(stage, Kind.I, last)]
            kv = float(table.kv[place])
            spans[rank] += [(begin, done, kv), (first[0], done, kv)]
            if Action(stage, Kind.OFFLOAD, microbatch) in at:
                leaves, left = at[Action(stage, Kind.OFFLOAD, microbatch)]
                returns, returned = at[Action(stage, Kind.RELOAD, microbatch)]
                spans[rank].append((left, returns, -part))
                target = schedule.copy_targets[rank]
                if target is not None:
                    spans[target].append((leaves, returned, part))
    return [
        max(
            sum(amount for begin, end, amount in held if begin <= time < end)
            for time in {begin for begin, _, _ in held} | {end for _, end, _ in held}
        )
        for held in spans
    ]
