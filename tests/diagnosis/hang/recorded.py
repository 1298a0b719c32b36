"""Jobs that hang, run by an executor of their own, and the dumps that their ranks leave.

Nothing of debubble's engine or readers is in here. A rank goes through the cells of its program,
posts what it sends and receives, and stands where it waits; the k-th send of a pair of ranks meets
the k-th receive. What it posted is written with the fields of Flight Recorder dumps of PyTorch
2.13: a call alone has a state, the calls of a batch have none, and an entry after them has that of
the batch.
"""

from __future__ import annotations

import json
import pickle
import re
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

CELL = re.compile(r"(\d+)([FBIW])(\d+)")
TRANSFER = re.compile(r"(\d+)(SEND|RECV)_([FB])(\d+)")
Key = tuple[str, int, int]
"""What a message carries: F or B, the stage it is for, the microbatch."""


@dataclass
class Op:
    """One end of a message."""

    sends: bool
    here: int
    there: int
    form: tuple[tuple[int, ...], str]
    over: bool = False
    match: Op | None = None


@dataclass
class Entry:
    """One record of a rank."""

    name: str
    group: str
    collective: int
    p2p: int
    op: int
    sizes: list[list[int]]
    dtypes: list[str]
    works: list[Any]
    is_p2p: bool
    alone: bool = True


@dataclass(frozen=True)
class Hung:
    """A job and what is wrong with it; ranks are those of the pipeline."""

    programs: Sequence[Sequence[str]]
    """Cells of every rank, as :meth:`debubble.Schedule.rows` has them."""
    home: Sequence[int]
    """Rank of every stage."""
    steps: int = 1
    copies: int = 1
    outer: bool = True
    """Whether the copies of a rank are neighbors, as in Megatron; else the ranks of a copy are."""
    batched: bool = False
    """Whether what an action sends and what the next one receives are one batch."""
    blocking: bool = False
    """Whether a rank waits until what it sent is received."""
    early: int = 0
    """Actions ahead of which receives are posted."""
    even_odd: bool = False
    """Whether odd ranks receive before they send, as Megatron without batches."""
    own_group: bool = True
    """Whether every pipeline has a process group; else its messages are in that of the world."""
    dp: bool = False
    """Whether copies sum gradients and all ranks a norm at the end of a step."""
    lead_in: int = 0
    """Votes that neighbors exchange before the first step, as PyTorch's runtime does."""
    stop: tuple[int, int, int, str] | None = None
    """(copy, rank, step, cell) before which a rank stops."""
    swapped: tuple[int, int, int] | None = None
    """(copy, sending rank, number) of a message that is received with another shape."""
    shape: tuple[int, ...] = (2, 128)
    tensors: int = 1
    """Tensors that every action sends."""
    explicit: bool = False
    """Whether sends and receives are cells of the programs."""
    queue: str = ""
    """What a message waits for: all before it of a ``"pair"`` of ranks, or of its rank:
    ``"group"``."""
    other_program: tuple[int, Sequence[str]] | None = None
    """A rank, and the cells that it runs in place of its own."""


def of_schedule(schedule: Any, **more: Any) -> Hung:
    """The job of a schedule without transfers."""
    return Hung(schedule.rows(), list(schedule.placement.table[0]), **more)


@dataclass
class Job:
    """A job while it runs."""

    hung: Hung
    entries: list[list[Entry]] = field(default_factory=list)
    queues: dict[tuple[int, int, bool], deque[Op]] = field(default_factory=dict)
    joins: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    counts: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    """Collectives, launches of messages, and operations, by rank and group."""

    def __post_init__(self) -> None:
        self.size = len(self.hung.programs)
        self.world = self.size * self.hung.copies
        self.entries = [[] for _ in range(self.world)]

    def place(self, copy: int, rank: int) -> int:
        """Global rank."""
        if self.hung.outer:
            return rank * self.hung.copies + copy
        return copy * self.size + rank

    def groups(self) -> dict[str, tuple[str, list[int]]]:
        """Name, description and ranks of every group."""
        found = {"0": ("default_pg", list(range(self.world)))}
        if self.hung.own_group:
            for copy in range(self.hung.copies):
                ranks = [self.place(copy, rank) for rank in range(self.size)]
                found[f"pp{copy}"] = ("mesh_pp", ranks)
        if self.hung.dp:
            for rank in range(self.size):
                ranks = [self.place(copy, rank) for copy in range(self.hung.copies)]
                found[f"dp{rank}"] = ("mesh_dp", ranks)
        return found

    def record(self, here: int, name: str, group: str, works: list[Any], *, sizes: Any = (),
               dtypes: Any = (), is_p2p: bool = False, alone: bool = True,
               launches: int = 1) -> None:  # fmt: skip
        """Add a record of a rank."""
        count = self.counts.setdefault((here, group), [0, 0, 0])
        count[1 if is_p2p else 0] += launches
        count[2] += not name.endswith("coalesced")
        self.entries[here].append(
            Entry(name, group, count[0], count[1], count[2], [list(s) for s in sizes],
                  list(dtypes), works, is_p2p, alone)
        )  # fmt: skip

    def post(self, here: int, group: str, ops: list[Op], batched: bool) -> None:
        """Post ends of messages, alone or as one batch."""
        ranks = self.groups()[group][1]
        for number, op in enumerate(ops):
            a, b = ranks.index(op.here), ranks.index(op.there)
            name = f"nccl:send {a}->{b}" if op.sends else f"nccl:recv {a}<-{b}"
            launches = int(not batched or number == 0)
            self.record(here, name, group, [op], sizes=[op.form[0]], dtypes=[op.form[1]],
                        is_p2p=True, alone=not batched, launches=launches)  # fmt: skip
            peers = self.queues.setdefault((op.there, op.here, not op.sends), deque())
            if peers:
                op.match = peers.popleft()
                op.match.match = op
            else:
                self.queues.setdefault((op.here, op.there, op.sends), deque()).append(op)
        if batched:
            self.record(here, "nccl:coalesced", group, list(ops), is_p2p=True, launches=0)

    def settle(self) -> None:
        """End the messages whose ends have met and that head their queues, in order."""
        again = True
        while again:
            again = False
            heads: dict[tuple[int, ...], Op] = {}
            for here, entries in enumerate(self.entries):
                for entry in entries:
                    for op in entry.works:
                        if isinstance(op, Op) and not op.over:
                            heads.setdefault(self._queue(here, op), op)
            for op in heads.values():
                other = op.match
                if other is None or op.over or op.form != other.form:
                    continue
                if heads.get(self._queue(other.here, other)) is other:
                    op.over = other.over = again = True

    def _queue(self, here: int, op: Op) -> tuple[int, ...]:
        if self.hung.queue == "group":
            return (here,)
        return (here, op.there) if self.hung.queue == "pair" else (here, op.there, op.sends)

    def call(self, here: int, group: str, name: str) -> Generator[None]:
        """Take part in a collective."""
        self.record(here, f"nccl:{name}", group, [], sizes=[[1024]], dtypes=["Float"])
        number = self.counts[here, group][0]
        joined = self.joins.setdefault((group, number), set())
        self.entries[here][-1].works = [(joined, set(self.groups()[group][1]))]
        joined.add(here)
        while joined != set(self.groups()[group][1]):
            yield


def over(work: Any) -> bool:
    """Whether a message or collective is over."""
    return work.over if isinstance(work, Op) else work[0] == work[1]


def wait(ops: Sequence[Op]) -> Generator[None]:
    """Wait until messages are over."""
    while not all(op.over for op in ops):
        yield


def needs(cell: str) -> list[tuple[Key, int]]:
    """What the actions of a cell need from other stages, and the stage it comes from."""
    found = []
    for stage, kind, unit in CELL.findall(cell):
        if kind == "F" and int(stage) > 0:
            found.append((("F", int(stage), int(unit)), int(stage) - 1))
        if kind in "BI":
            found.append((("B", int(stage), int(unit)), int(stage) + 1))
    return found


def gives(cell: str) -> list[tuple[Key, int]]:
    """What the actions of a cell give to other stages, and the stage it goes to."""
    found = []
    for stage, kind, unit in CELL.findall(cell):
        if kind == "F":
            found.append((("F", int(stage) + 1, int(unit)), int(stage) + 1))
        if kind in "BI" and int(stage) > 0:
            found.append((("B", int(stage) - 1, int(unit)), int(stage) - 1))
    return found


def process(job: Job, copy: int, rank: int) -> Generator[None]:
    """A rank of a copy: its steps, until it stops."""
    hung = job.hung
    here = job.place(copy, rank)
    group = f"pp{copy}" if hung.own_group else "0"
    cells = list(hung.programs[rank])
    if hung.other_program is not None and hung.other_program[0] == rank:
        cells = list(hung.other_program[1])
    last = len(hung.home) - 1

    def form(sender: int, receiver: bool) -> tuple[tuple[int, ...], str]:
        number = sent_to.setdefault((sender, receiver), 0)
        sent_to[sender, receiver] = number + 1
        if hung.swapped == (copy, sender, number) and receiver:
            return hung.shape[::-1], "BFloat16"
        return hung.shape, "BFloat16"

    sent_to: dict[tuple[int, bool], int] = {}

    def far(stage: int) -> bool:
        return 0 <= stage <= last and hung.home[stage] != rank

    def receives(cell: str) -> list[Op]:
        """Post what a cell needs, and what its senders send before that."""
        found = []
        for key, stage in needs(cell):
            if not far(stage):
                continue
            source = hung.home[stage]
            coming = [one for each in hung.programs[source] for one, to in gives(each)
                      if 0 <= to <= last and hung.home[to] == rank]  # fmt: skip
            for one in coming[: coming.index(key) + 1]:
                if (step, one) not in inbox:
                    shape = form(source, True)
                    forms = [((*shape[0], part), shape[1]) for part in range(1, hung.tensors)]
                    inbox[step, one] = [
                        Op(False, here, job.place(copy, source), each) for each in (shape, *forms)
                    ]
                    found += inbox[step, one]
        return found

    def explicit(transfer: re.Match[str]) -> list[Op]:
        stage, way, kind, unit = transfer.groups()
        away = {"SENDF": 1, "RECVF": -1, "SENDB": -1, "RECVB": 1}[way + kind]
        other = job.place(copy, hung.home[int(stage) + away])
        sender = rank if way == "SEND" else hung.home[int(stage) + away]
        op = Op(way == "SEND", here, other, form(sender, way == "RECV"))
        if way == "RECV":
            inbox[step, (kind, int(stage), int(unit))] = [op]
        return [op]

    inbox: dict[tuple[int, Key], list[Op]] = {}

    def inputs(cell: str) -> list[Op]:
        return [op for key, stage in needs(cell) if far(stage) for op in inbox[step, key]]

    def sends(cell: str) -> list[Op]:
        found = []
        for _, stage in gives(cell):
            if far(stage):
                shape = form(rank, False)
                forms = [((*shape[0], part), shape[1]) for part in range(1, hung.tensors)]
                target = job.place(copy, hung.home[stage])
                found += [Op(True, here, target, one) for one in (shape, *forms)]
        return found

    for number in range(hung.lead_in):
        for other in (rank - 1, rank + 1):
            if 0 <= other < job.size:
                up = (other > rank) == (number % 2 == 0)
                op = Op(up, here, job.place(copy, other), ((1,), "Float"))
                job.post(here, group, [op], False)
                yield from wait([op])
    for step in range(hung.steps):
        posted: dict[int, list[Op]] = {}
        outgoing: list[Op] = []
        for index, cell in enumerate(cells):
            stopped = hung.stop == (copy, rank, step, cell)
            if stopped and not (hung.early or hung.batched or hung.even_odd):
                return
            transfer = TRANSFER.fullmatch(cell)
            if transfer:
                ops = explicit(transfer)
                job.post(here, group, ops, False)
                if hung.blocking:
                    yield from wait(ops)
                continue
            for ahead in (
                () if hung.explicit else range(index, min(index + hung.early + 1, len(cells)))
            ):
                if ahead not in posted:
                    posted[ahead] = receives(cells[ahead])
                    ops = [*outgoing, *posted[ahead]]
                    if hung.even_odd and rank % 2:
                        ops = [*posted[ahead], *outgoing]
                    if not hung.batched and not hung.even_odd:
                        ops = posted[ahead]
                    if ops:
                        job.post(here, group, ops, hung.batched)
                    if hung.batched:
                        yield from wait(ops)
                    outgoing = []
            yield from wait(inputs(cell))
            if stopped:
                return
            made = [] if hung.explicit else sends(cell)
            if hung.batched or hung.even_odd:
                outgoing = made
            elif made:
                job.post(here, group, made, False)
                if hung.blocking:
                    yield from wait(made)
        if outgoing:
            job.post(here, group, outgoing, hung.batched)
            yield from wait(outgoing)
        if hung.dp:
            yield from job.call(here, f"dp{rank}", "allreduce_coalesced")
            yield from job.call(here, "0", "all_reduce")


def run(hung: Hung) -> Job:
    """Run a job until nothing moves."""
    job = Job(hung)
    ranks = {(c, r): process(job, c, r) for c in range(hung.copies) for r in range(job.size)}
    while True:
        before = _moved(job)
        for place, rank in list(ranks.items()):
            if next(rank, "end") == "end":
                del ranks[place]
        job.settle()
        if _moved(job) == before:
            return job


def _moved(job: Job) -> tuple[int, ...]:
    ends = sum(work.over for entries in job.entries for entry in entries for work in entry.works
               if isinstance(work, Op))  # fmt: skip
    joined = sum(map(len, job.joins.values()))
    return (*map(len, job.entries), ends, joined)


def dump(job: Job, here: int, *, ring: int = 2000) -> dict[str, Any]:
    """The dump of a rank, with the fields of version 2.10."""
    entries = []
    for number, one in list(enumerate(job.entries[here]))[-ring:]:
        done = bool(one.works) and all(map(over, one.works)) and one.alone
        began = 1_790_000_000_000_000_000 + number * 1_000_000
        entries.append({
            "frames": [{"name": "step", "filename": "schedules.py", "line": 700}],
            "record_id": number, "pg_id": 0,
            "process_group": (one.group, job.groups()[one.group][0]), "thread_name": "python",
            "thread_id": "140", "collective_seq_id": one.collective, "p2p_seq_id": one.p2p,
            "op_id": one.op, "profiling_name": one.name, "time_created_ns": began,
            "input_sizes": one.sizes, "input_dtypes": one.dtypes, "output_sizes": one.sizes,
            "output_dtypes": one.dtypes, "state": "completed" if done else "scheduled",
            "time_discovered_started_ns": began + 1 if done else None,
            "time_discovered_completed_ns": began + 2 if done else None,
            "retired": done, "timeout_ms": 600_000, "is_p2p": one.is_p2p,
        })  # fmt: skip
    config = {
        name: {"name": name, "desc": words, "ranks": str(ranks)}
        for name, (words, ranks) in job.groups().items() if here in ranks
    }  # fmt: skip
    return {
        "version": "2.10", "pg_config": config, "comm_lib_version": "2.27.3", "pg_status": {},
        "entries": entries,
    }  # fmt: skip


def write(job: Job, folder: Path, *, ring: int = 2000, without: Sequence[int] = (),
          as_json: bool = False, drop: str = "") -> Path:  # fmt: skip
    """Write the dumps of all ranks but some.

    `drop` is ``"peers"`` for names without ranks in batches, ``"calls"`` for batches whose calls
    have no entries, ``"batches"`` for calls without the entry of their batch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for here in range(job.world):
        if here in without:
            continue
        data = dump(job, here, ring=ring)
        alone = {number: one.alone for number, one in enumerate(job.entries[here])}
        rows = data["entries"]
        if drop == "peers":
            for row in rows:
                if not alone[row["record_id"]]:
                    row["profiling_name"] = row["profiling_name"].split()[0]
        elif drop == "calls":
            data["entries"] = [row for row in rows if alone[row["record_id"]]]
        elif drop == "batches":
            data["entries"] = [row for row in rows if "coalesced" not in row["profiling_name"]]
            for row in data["entries"]:
                row["profiling_name"] = row["profiling_name"].replace("nccl", "xccl")
        name = f"nccl_trace_rank_{here}"
        if as_json:
            (folder / f"{name}.json").write_text(json.dumps(data))
        else:
            (folder / name).write_bytes(pickle.dumps(data, protocol=2))
    return folder


__all__ = ["Hung", "dump", "of_schedule", "replace", "run", "write"]
