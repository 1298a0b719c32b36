"""An executor that runs lowered schedules on queues, as ranks with NCCL do: who gets stuck.

``pair`` has one queue for each two ranks, ``group`` one for each rank, ``blocking`` posts groups of
transfers and waits for all of them. Transfers have no tags: ends meet in the order of their queues.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any

CELL = re.compile(r"(\d+)([A-Z_]+)(\d+)")
STEP = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}
OTHER = {"SEND_F": "RECV_F", "RECV_F": "SEND_F", "SEND_B": "RECV_B", "RECV_B": "SEND_B"}

Key = tuple[int, str, int]


def runs(schedule: Any, mode: str) -> bool:
    """Whether every rank gets to the end of its program, with the right data everywhere."""
    row = schedule.placement.table[0]
    programs: list[list[Key]] = [
        [(int(s), k, int(u)) for cell in cells for s, k, u in CELL.findall(cell)]
        for cells in schedule.rows()
    ]
    heads = [0] * len(programs)
    done: list[set[Key]] = [set() for _ in programs]
    queues: dict[Any, deque[Key]] = {}
    posted: list[list[Key]] = [[] for _ in programs]

    def other(rank: int, key: Key) -> int:
        return int(row[key[0] + STEP[key[1]]])

    def partner(key: Key) -> Key:
        return key[0] + STEP[key[1]], OTHER[key[1]], key[2]

    def queue(rank: int, key: Key) -> Any:
        return (rank, other(rank, key)) if mode == "pair" else rank

    def ready(rank: int, key: Key) -> bool:
        stage, kind, unit = key
        have = done[rank]
        if kind == "F":
            if stage == 0:
                return True
            local = row[stage - 1] == rank
            return (stage - 1, "F", unit) in have if local else (stage, "RECV_F", unit) in have
        if kind in ("I", "B"):
            if (stage, "F", unit) not in have:
                return False
            if stage == len(row) - 1:
                return True
            if row[stage + 1] != rank:
                return (stage, "RECV_B", unit) in have
            return bool({(stage + 1, "I", unit), (stage + 1, "B", unit)} & have)
        if kind == "W":
            return (stage, "I", unit) in have
        if kind == "SEND_F":
            return (stage, "F", unit) in have
        if kind == "SEND_B":
            return bool({(stage, "I", unit), (stage, "B", unit)} & have)
        return True

    def meet() -> bool:
        """Transfers whose two ends head their queues happen."""
        happened = False
        if mode == "blocking":
            for rank, keys in enumerate(posted):
                for key in list(keys):
                    there = other(rank, key)
                    if key in keys and partner(key) in posted[there]:
                        keys.remove(key)
                        posted[there].remove(partner(key))
                        done[rank].add(key)
                        done[there].add(partner(key))
                        happened = True
            return happened
        for name, waiting in list(queues.items()):
            while waiting:
                rank = name[0] if mode == "pair" else name
                key = waiting[0]
                there = queues.get(queue(other(rank, key), partner(key)))
                if not there or there[0] != partner(key):
                    break
                waiting.popleft()
                there.popleft()
                done[rank].add(key)
                done[other(rank, key)].add(partner(key))
                happened = True
        return happened

    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while heads[rank] < len(program):
                key = program[heads[rank]]
                transfer = key[1] in STEP
                if (
                    mode == "blocking"
                    and posted[rank]
                    and not (transfer and program[heads[rank] - 1][1] in STEP)
                ):
                    break
                if not ready(rank, key):
                    break
                if not transfer:
                    done[rank].add(key)
                elif mode == "blocking":
                    posted[rank].append(key)
                else:
                    queues.setdefault(queue(rank, key), deque()).append(key)
                heads[rank] += 1
                moved = True
        moved = meet() or moved
    return all(heads[r] == len(program) for r, program in enumerate(programs)) and not (
        any(queues.values()) or any(posted)
    )
