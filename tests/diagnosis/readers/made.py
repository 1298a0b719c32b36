"""Runs that never happened, and files as the frameworks would have written them.

Names and layouts are those of the frameworks; nothing here knows how they are read.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import debubble as db
from debubble import Costs, Kind, Schedule
from debubble.core.actions import pairs_of, unpack
from debubble.diagnosis.observed import Observed


class Done(NamedTuple):
    """An action of a run; times in seconds."""

    step: int
    copy: int
    rank: int
    kind: Kind
    stage: int
    microbatch: int
    start: float
    end: float
    pair: int = -1

    @property
    def name(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch}"


@dataclass(frozen=True)
class MadeRun:
    """What ran: a schedule, a number of steps and copies, every step a little slower."""

    schedule: Schedule
    done: tuple[Done, ...]

    def of(self, rank: int, copy: int = 0) -> list[Done]:
        return [one for one in self.done if (one.rank, one.copy) == (rank, copy)]

    def shifted(self, skews: dict[int, float]) -> MadeRun:
        """With other zeros of clocks on some ranks."""
        return replace(self, done=tuple(
            one._replace(start=one.start + by, end=one.end + by)
            for one in self.done for by in [skews.get(one.rank, 0.0)]
        ))  # fmt: skip


def run(
    name: str, ranks: int = 2, microbatches: int = 4, *, steps: int = 2, copies: int = 1,
    first_step: int = 7, **options: Any,
) -> MadeRun:  # fmt: skip
    """A run whose actions take about F = 10, I = 11, W = 9 ms, with some noise between steps."""
    schedule = db.make(name, ranks=ranks, microbatches=microbatches, **options)
    random = np.random.default_rng(5)
    timeline = db.simulate(schedule, Costs(F=10, I=11, W=9, p2p=0.5))
    place = np.repeat(np.arange(ranks), np.diff(schedule.offsets))
    pairs = pairs_of(schedule.actions)
    done = []
    for step in range(steps):
        for copy in range(copies):
            slower = 1e-3 * (1 + random.uniform(0, 0.01))
            zero = step * (timeline.makespan * 1.02e-3)
            for at, code in enumerate(schedule.actions.tolist()):
                one = unpack(code)
                pair = -1 if not pairs[at] else at - (pairs[at] == 2)
                start, end = timeline.start[at], timeline.end[at]
                done.append(Done(
                    step + first_step, copy, int(place[at]), one.kind, one.stage, one.microbatch,
                    float(zero + start * slower), float(zero + end * slower), pair,
                ))  # fmt: skip
    return MadeRun(schedule, tuple(done))


def write(path: Path, data: Any) -> None:
    """JSON, compressed when the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = data if isinstance(data, str) else json.dumps(data)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def write_table(run: MadeRun, path: Path, unit: str = "") -> None:
    """A CSV with a line for every action."""
    scale = {"": 1, "_ms": 1e3, "_us": 1e6, "_ns": 1e9}[unit]
    lines = [f"step,copy,rank,action,start{unit},end{unit}"]
    lines += [
        f"{one.step},{one.copy},{one.rank},{one.name},{one.start * scale!r},{one.end * scale!r}"
        for one in run.done
    ]
    write(path, "\n".join(lines) + "\n")


def write_primus(run: MadeRun, folder: Path, *, numbered: bool = False) -> None:
    """``pp_rank_0.json`` … and ``config.json`` as Primus writes them."""
    schedule = run.schedule
    ranks, chunks = schedule.ranks, schedule.stages // schedule.ranks
    steps = sorted({one.step for one in run.done})
    for rank in range(ranks):
        data = {}
        for number, step in enumerate(steps, 1):
            mine = [one for one in run.of(rank) if one.step == step]
            zero = min(one.start for one in mine)
            data[str(number)] = each = {
                "total": (max(one.end for one in mine) - zero) * 1e3, "memory": 42.5,
            }  # fmt: skip
            for key, kinds in (("fwd", "F"), ("bwd", "BI"), ("wgrad", "W")):
                calls = sorted(one for one in mine if one.kind.name in kinds)
                calls.sort(key=lambda one: one.start)
                lists: dict[str, list[Any]] = {
                    "start": [(one.start - zero) * 1e3 for one in calls],
                    "end": [(one.end - zero) * 1e3 for one in calls],
                    "minibatch": [one.microbatch for one in calls] if numbered else [],
                    "chunk": [
                        sorted({o.stage for o in mine}).index(one.stage) for one in calls
                    ] if numbered else [],
                }  # fmt: skip
                each |= {f"{key}_{name}": values for name, values in lists.items()}
        write(folder / f"pp_rank_{rank}.json", data)
    write(folder / "config.json", {
        "world_size": ranks, "dp_size": 1, "tp_size": 1, "ep_size": 1, "pp_size": ranks,
        "vp_size": chunks, "num_mbs": schedule.microbatches, "train_iters": len(steps),
    })  # fmt: skip


def write_ndtimeline(
    run: MadeRun, path: Path, *, names_last: bool = True, tensor: tuple[int, ...] = (0,)
) -> None:
    """One list of events as NDTimeline writes it, with sends and receives."""
    names, events = [], []
    for place, number in enumerate(tensor):
        for each, more in zip((names, events), _of_tensor_rank(run, place, number), strict=True):
            each += more
    names += [
        {"name": "process_name", "pid": copy, "ph": "M", "args": {"name": f"DP rank [{copy}]"}}
        for copy in range(1 + max(one.copy for one in run.done))
    ]
    write(path, events + names if names_last else names + events)


def _of_tensor_rank(
    run: MadeRun, place: int, number: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Names of threads, and the events, of one tensor-parallel rank of every worker."""
    schedule = run.schedule
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    threads = ["compute", "pp-comm", "tp-comm", "dp-comm", "misc"]
    copies = 1 + max(one.copy for one in run.done)
    done: dict[tuple[int, int], list[Done]] = {}
    for one in sorted(run.done, key=lambda one: one.start):
        done.setdefault((one.copy, one.rank), []).append(one)
    for copy in range(copies):
        for rank in range(schedule.ranks):
            first = ((place * schedule.ranks + rank) * copies + copy) * len(threads)
            for thread, name in enumerate(threads):
                title = f"PP rank {rank}, TP rank {number}, {name}"
                names.append({"name": "thread_name", "pid": copy, "tid": first + thread, "ph": "M",
                              "args": {"name": title}})  # fmt: skip
            calls: dict[tuple[int, str], int] = {}
            for one in done.get((copy, rank), []):
                events += _work(one, schedule, first, calls)
    return names, events


def _work(
    one: Done, schedule: Schedule, thread: int, calls: dict[tuple[int, str], int]
) -> list[dict[str, Any]]:
    """The event of an action, and those of its transfers."""

    def event(name: str, tid: int, start: float, end: float, chunk: int, unit: int) -> Any:
        number = calls[one.step, name] = calls.get((one.step, name), -1) + 1
        args = {"step": one.step, "model_chunk": chunk, "mb_id": unit, "seq_id": number}
        return {"name": name, "cat": name, "pid": one.copy, "tid": tid, "ts": start * 1e6,
                "dur": (end - start) * 1e6, "ph": "X", "args": args}  # fmt: skip

    direction = "forward" if one.kind == Kind.F else "backward"
    chunk = one.stage // schedule.ranks
    before, after = one.stage - 1, one.stage + 1
    if direction == "backward":
        before, after = after, before
    found = [event(f"{direction}-compute", thread, one.start, one.end, chunk, one.microbatch)]
    if 0 <= before < schedule.stages:
        found.append(event(f"{direction}-recv", thread + 1, one.start - 4e-4, one.start, -1, -1))
    if 0 <= after < schedule.stages:
        found.append(event(f"{direction}-send", thread + 1, one.end, one.end + 5e-4, -1, -1))
    return found


def write_victarry(run: MadeRun, folder: Path, *, other: int = 0) -> None:
    """A file of keys and milliseconds for every rank, as Victarry's timers write one iteration."""
    ranks = run.schedule.ranks
    chunks = run.schedule.stages // ranks
    zero = min(one.start for one in run.done)
    for rank in range(ranks):
        times: dict[str, float] = {"total-execution-time": 1234.5}
        mine = run.of(rank)
        stages = sorted({one.stage for one in mine})
        for one in mine:
            words = ["forward" if one.kind == Kind.F else "backward", str(one.microbatch)]
            if chunks > 1:
                words.insert(1, str(stages.index(one.stage)))
            times["-".join([*words, "start"])] = (one.start - zero) * 1e3
            times["-".join([*words, "end"])] = (one.end - zero) * 1e3
        name = f"event_times_PP{ranks}_VPP{chunks}_TPxCPxDP_rank_{other}_pp_rank_{rank}_rank_{rank}"
        write(folder / f"{name}.json", times)


def assert_recovered(found: Observed, run: MadeRun, *, own_zeros: bool = False) -> None:
    """Assert that a reader found every action of a run with its times and nothing else."""
    rows = found.actions
    steps = sorted({one.step for one in run.done})
    assert len(found.steps) == len(steps)
    index = {step: number for number, step in enumerate(steps)}

    def zero(step: int, rank: int) -> float:
        if not own_zeros:
            return min(one.start for one in run.done)
        return min(o.start for o in run.done if (o.step, o.rank) == (step, rank))

    zeros = {(step, rank): zero(step, rank) for step in steps for rank in range(found.ranks)}
    firsts = {
        (step, rank): rows.start[(rows.step == index[step]) & (rows.rank == rank)].min()
        for step in steps for rank in range(found.ranks)
    } if own_zeros else {}  # fmt: skip
    begin = 0.0 if own_zeros else rows.start.min()
    wanted = {}
    for one in run.done:
        key = (index[one.step], one.copy, one.rank, one.kind, one.stage, one.microbatch)
        by = firsts.get((one.step, one.rank), begin) - zeros[one.step, one.rank]
        wanted[key] = (one.start + by, one.end + by)
    names = ("step", "copy", "rank", "kind", "stage", "microbatch")
    keys = list(zip(*(getattr(rows, name).tolist() for name in names), strict=True))
    assert sorted(keys) == sorted(wanted)
    times = np.array([wanted[key] for key in keys])
    np.testing.assert_allclose(np.stack([rows.start, rows.end], axis=1), times, atol=2e-9)
    halves = [one for one in run.done if one.pair >= 0]
    assert int((rows.pair >= 0).sum()) == len(halves)
