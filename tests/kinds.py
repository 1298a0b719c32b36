"""A small schedule with actions of every kind, for tests that go through the table of kinds."""

from __future__ import annotations

import numpy as np

import debubble as db
from debubble.core.actions import kinds_of
from debubble.core.kinds import CARRY_KINDS, KINDS, Kind
from debubble.core.sequence import as_kind
from debubble.lowering.chain import lower

COSTS = db.Costs(F=1, I=1, W=1, p2p=0.25, activation=1, host_bandwidth=4)
"""What the schedules are made for."""

_PLAIN: dict[str, str] = {"name": "1f1b"}
_SPLIT = {"name": "zb-h1"}

MADE: dict[Kind, tuple[dict[str, object], dict[str, object]]] = {
    Kind.F: (_PLAIN, {}),
    Kind.B: (_PLAIN, {}),
    Kind.I: (_SPLIT, {}),
    Kind.W: (_SPLIT, {}),
    Kind.R: (_PLAIN, {"recompute": "full", "recompute_at": "with-backward"}),
    Kind.OPT: ({"name": "1f1b", "iterations": 2}, {}),
    Kind.SEND_F: (_PLAIN, {"transfers": "eager"}),
    Kind.RECV_F: (_PLAIN, {"transfers": "eager"}),
    Kind.SEND_B: (_PLAIN, {"transfers": "eager"}),
    Kind.RECV_B: (_PLAIN, {"transfers": "eager"}),
    **dict.fromkeys(CARRY_KINDS, (_PLAIN, {"carry": [(0, 1)], "transfers": "eager"})),
    Kind.OFFLOAD: ({"name": "gpipe"}, {"offload": "full"}),
    Kind.RELOAD: ({"name": "gpipe"}, {"offload": "full"}),
    Kind.REDUCE_GRAD: (_PLAIN, {"sharding": "fsdp"}),
    Kind.UNSHARD: (_PLAIN, {"sharding": "fsdp"}),
    Kind.RESHARD: (_PLAIN, {"sharding": "fsdp"}),
    Kind.S: ({"name": "vocab-1"}, {}),
    Kind.T: ({"name": "vocab-1"}, {}),
    Kind.WAIT_OFFLOAD: ({"name": "gpipe"}, {"offload": "full", "memory": 1.5}),
}
"""What makes a schedule with such actions, and what lowers it.

Work that no schedule or lowering makes stands in one behind what it needs."""


def schedule_with(kind: Kind, ranks: int = 2, microbatches: int = 4) -> db.Schedule:
    """A schedule in which every rank, or the one that can, has actions of a kind."""
    if kind not in MADE:
        plain = db.make(ranks=ranks, microbatches=microbatches, costs=COSTS, **_PLAIN)
        return with_work(plain, kind)
    options, lowering = MADE[kind]
    made = db.make(ranks=ranks, microbatches=microbatches, costs=COSTS, **options)  # type: ignore[arg-type]
    return lower(made, costs=COSTS, **lowering)  # type: ignore[arg-type]


def with_work(schedule: db.Schedule, kind: Kind) -> db.Schedule:
    """A schedule with an action of a kind of work behind each of those that it computes with."""
    made_by = KINDS[kind].needs[0].kinds if KINDS[kind].needs else (Kind.F,)
    programs = []
    for rank in range(schedule.ranks):
        program = schedule.program(rank)
        spots = np.flatnonzero(np.isin(kinds_of(program), made_by))
        programs.append(np.insert(program, spots + 1, as_kind(program[spots], kind)))
    return schedule.with_programs(programs)
