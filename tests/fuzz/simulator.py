"""A simulator of its own: longest paths over the text of a schedule, nothing of the engine.

For compute actions and optimizer steps, alone or in overlapped pairs, with transfers that delay
their consumer (``overlapped``) or queue on their link (``channel``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

CELL = re.compile(r"(\d+)(F|I|W|B|OPT)(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Times:
    """Plain numbers; per stage where they are lists."""

    F: list[float]
    I: list[float]
    W: list[float]
    O: float | None
    OPT: float
    p2p: float
    kept: float


Key = tuple[int, str, int]
"""Stage, kind and unit (microbatch · slices + slice)."""


class StuckError(Exception):
    """No rank can go on."""


def parts_of(cell: str, slices: int) -> list[Key]:
    """The actions of a cell: one, or the two of a pair."""
    found = []
    for stage, kind, number, part in CELL.findall(cell.removesuffix("OVERLAP_F_B")):
        unit = int(number) if kind == "OPT" else int(number) * slices + int(part or 0)
        found.append((int(stage), kind, unit))
    return found


def simulate(schedule: Any, times: Times, channel: bool) -> tuple[float, list[float]]:
    """Makespan, and the largest activation memory of every rank in activation units."""
    table, slices, m = schedule.placement.table, schedule.slices, schedule.microbatches
    stages, copies = len(table[0]), len(table)
    chunks = max(max(row.count(rank) for rank in set(row)) for row in table)

    def home(stage: int, unit: int) -> int:
        return int(table[unit // slices % m * copies // m][stage])

    def takes(key: Key) -> float:
        stage, kind, _ = key
        if kind == "OPT":
            return times.OPT
        own = {"F": times.F, "I": times.I, "W": times.W}
        whole = times.I[stage] + times.W[stage] if kind == "B" else own[kind][stage]
        return float(whole) / slices

    def sources(key: Key) -> list[tuple[Key, ...]]:
        """What has to be over, each as alternatives."""
        stage, kind, unit = key
        part = unit % slices
        if kind == "F":
            wanted = [((stage - 1, "F", unit),)] if stage else []
            return wanted + ([((stage, "F", unit - 1),)] if part else [])
        if kind == "W":
            return [((stage, "I", unit),)]
        if kind == "OPT":
            return []
        wanted = [((stage, "F", unit),)]
        later = [(stage + 1, unit)] if stage < stages - 1 else []
        later += [(stage, unit + 1)] if part < slices - 1 else []
        return wanted + [((s, "I", u), (s, "B", u)) for s, u in later]

    programs = [[parts_of(cell, slices) for cell in row] for row in schedule.rows()]
    heads, free = [0] * len(programs), [0.0] * len(programs)
    end: dict[Key, float] = {}
    sent: dict[tuple[Key, int], float] = {}
    busy: dict[tuple[int, int], float] = {}
    held, peak = [0.0] * len(programs), [0.0] * len(programs)
    steps: list[int] = []

    def run(rank: int, keys: list[Key], start: float) -> None:
        # Two forwards take what they take one after the other.
        halves = [kind == "F" for _, kind, _ in keys]
        pair = len(keys) == 2 and any(halves) and not all(halves) and times.O is not None
        over = start + (times.O / slices if pair else sum(map(takes, keys)))
        unit = 1 / chunks / slices
        if keys[0][1] == "OPT":
            keys = []
        held[rank] += sum(unit for key in keys if key[1] == "F")
        peak[rank] = max(peak[rank], held[rank])
        gone = {"F": 0.0, "I": 1 - times.kept, "W": times.kept, "B": 1.0}
        held[rank] -= sum(unit * gone[key[1]] for key in keys)
        for key in keys:
            end[key] = over
            stage, kind, number = key
            target = stage + 1 if kind == "F" else stage - 1
            if kind == "W" or not 0 <= target < stages or home(target, number) == rank:
                continue
            link = rank, home(target, number)
            begin = max(over, busy.get(link, 0.0)) if channel else over
            sent[key, link[1]] = busy[link] = begin + times.p2p
        free[rank] = over
        heads[rank] += 1

    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while heads[rank] < len(program):
                keys = program[heads[rank]]
                if keys[0][1] == "OPT" and schedule.sync == "global":
                    break
                found = [
                    next((key for key in any_of if key in end), None)
                    for own in keys
                    for any_of in sources(own)
                ]
                if None in found:
                    break
                ready = [sent.get((key, rank), end[key]) for key in found if key is not None]
                run(rank, keys, max([free[rank], *ready]))
                moved = True
        waiting = [
            rank
            for rank, program in enumerate(programs)
            if heads[rank] < len(program) and program[heads[rank]][0][1] == "OPT"
        ]
        if not moved and len(waiting) == len(programs):
            steps.append(len(steps))
            # The norm of the gradients goes from rank to rank, and from the last back to each.
            norm = 0.0
            for rank in waiting:
                norm = max(free[rank], norm + (times.p2p if rank else 0.0))
            for rank in waiting:
                back = 0.0 if rank == waiting[-1] else times.p2p
                run(rank, programs[rank][heads[rank]], max(free[rank], norm + back))
            moved = True
    if any(heads[rank] < len(program) for rank, program in enumerate(programs)):
        raise StuckError
    return max(free, default=0.0), peak
