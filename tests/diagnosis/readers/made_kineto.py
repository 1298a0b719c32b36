"""Traces as PyTorch's profiler writes them on GPUs: launches of the host, kernels of the device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from debubble import Kind
from tests.diagnosis.readers import made
from tests.diagnosis.readers.made import Done, MadeRun

BASE = 1_790_857_026_000_000_000
"""Nanoseconds since 1970 that times in a file count from."""

PARTS = 4
"""Kernels of an action; between two of them is a gap of a hundredth of the action."""

GAP = 0.01
TRANSFER = 0.2e-3
MAIN, AUTOGRAD = 4711, 4790
COMPUTE_STREAM, P2P_STREAM = 7, 23


class Events:
    """Events of one rank in the making; times in seconds."""

    def __init__(self, rank: int, zero: float) -> None:
        self.rank, self.zero = rank, zero
        self.rows: list[dict[str, Any]] = []
        self.correlation = 100

    def add(
        self, category: str, name: str, thread: int, start: float, end: float, *,
        process: int = MAIN, **args: Any,
    ) -> None:  # fmt: skip
        self.rows.append({
            "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread,
            "ts": round((start - self.zero) * 1e6, 3), "dur": round((end - start) * 1e6, 3),
            "args": {"External id": len(self.rows), **args},
        })  # fmt: skip

    def kernel(
        self, name: str, launched: float, thread: int, stream: int, start: float, end: float
    ) -> None:
        """A launch on the host and the kernel on the device."""
        self.correlation += 1
        at = self.correlation
        self.add("cuda_runtime", "cudaLaunchKernel", thread, launched, launched + 4e-6,
                 cbid=211, correlation=at)  # fmt: skip
        self.add("kernel", name, stream, start, end, process=self.rank % 8, device=self.rank % 8,
                 context=1, stream=stream, correlation=at, grid=[1, 2, 3])  # fmt: skip


def busy_share() -> float:
    """The share of an action in which its kernels run."""
    return 1 - (PARTS - 1) * GAP


def write(
    run: MadeRun,
    folder: Path,
    *,
    ahead: float = 3e-3,
    prefix: str = "PP:",
    drop_kernels: int = 0,
    all_in_w: bool = False,
    old: bool = False,
    host: str = "node-{node}",
    suffix: str = ".json.gz",
    zero: float | None = None,
    late: bool = False,
    quirks: bool = False,
) -> None:
    """A file for every rank of every copy, in which the host runs `ahead` of the device.

    If the first stage does `all_in_w`, its I launches nothing.
    With `quirks` it has all that such files have and no action needs.
    """
    ranks = run.schedule.ranks
    copies = 1 + max(one.copy for one in run.done)
    zero = (min(one.start for one in run.done) if zero is None else zero) - 1.0
    for copy in range(copies):
        for rank in range(run.schedule.ranks):
            events = Events(copy * ranks + rank, zero)
            for one in _merged(sorted(run.of(rank, copy), key=lambda one: one.start)):
                idle = all_in_w and one[0].kind == Kind.I and one[0].stage == 0
                _write_action(events, run, one, ahead, prefix, 0 if idle else PARTS)
            _noise(events, run.of(rank, copy))
            number = copy * ranks + rank
            kernels = [row for row in events.rows if row["cat"] == "kernel"]
            dropped = {id(row) for row in kernels[:drop_kernels]}
            rows = [row for row in events.rows if id(row) not in dropped]
            name = f"rank{number}_trace{suffix}" if not old else f"rank-{number}{suffix}"
            node = host.format(node=number // 8)
            more = _quirks(rows) if quirks else []
            text = _old(rows) if old else _document(rows, number, copies, ranks, node, late, more)
            made.write(folder / name, text)


def _merged(done: list[Done]) -> Iterator[list[Done]]:
    """Actions one by one, halves of a pair together."""
    waiting: dict[tuple[int, int], Done] = {}
    for one in done:
        if one.pair < 0:
            yield [one]
        elif (other := waiting.pop((one.step, one.pair), None)) is not None:
            yield [other, one]
        else:
            waiting[one.step, one.pair] = one


def _write_action(
    events: Events, run: MadeRun, both: list[Done], ahead: float, prefix: str, kernels: int
) -> None:
    """The ranges of an action and its transfers, and what they launch: `kernels` or none."""
    one = both[0]
    name = one.name if len(both) == 1 else f"({';'.join(x.name for x in both)})OVERLAP_F_B"
    cpu = one.start - ahead
    for place, each in enumerate(both):
        _transfer(events, run, each, prefix, ahead, place, before=True)
    events.add("user_annotation", f"{prefix}{name}", MAIN, cpu, cpu + 200e-6)
    span = one.end - one.start
    gap = GAP * span
    length = (span - (PARTS - 1) * gap) / PARTS
    backward = one.kind != Kind.F
    for part in range(kernels):
        begin = one.start + part * (length + gap)
        last = one.end if part == PARTS - 1 else begin + length
        title = "ncclDevKernel_AllReduce_Sum_bf16" if part == 1 else "void gemm<{lambda()#1}, {x}>"
        stream = COMPUTE_STREAM + 20 * (part == 1)
        events.kernel(title, cpu + (20 + 40 * part) * 1e-6, AUTOGRAD if backward else MAIN, stream,
                      begin, last)  # fmt: skip
    if not backward:
        events.add("gpu_user_annotation", f"{prefix}{name}", COMPUTE_STREAM, one.start, one.end)
    for place, each in enumerate(both):
        _transfer(events, run, each, prefix, ahead, place, before=False)


def _transfer(
    events: Events, run: MadeRun, one: Done, prefix: str, ahead: float, place: int, *, before: bool
) -> None:  # fmt: skip
    """The receive before an action, or the send after it, where the other stage is elsewhere."""
    if one.kind not in (Kind.F, Kind.B, Kind.I):
        return
    forward = one.kind == Kind.F
    other = one.stage + (1 if forward != before else -1)
    ranks = {o.rank for o in run.done if o.stage == other and o.microbatch == one.microbatch}
    if not 0 <= other < run.schedule.stages or one.rank in ranks:
        return
    letter = "F" if forward else "B"
    title = f"{prefix}{one.stage}{'RECV' if before else 'SEND'}_{letter}{one.microbatch}"
    cpu = one.start - ahead + (-60e-6 * (place + 1) if before else 220e-6 + 50e-6 * place)
    start = one.start - TRANSFER if before else one.end
    events.add("user_annotation", title, MAIN, cpu, cpu + 40e-6)
    events.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", cpu + 20e-6, MAIN,
                  P2P_STREAM, start, start + TRANSFER)  # fmt: skip


def _noise(events: Events, done: list[Done]) -> None:
    """What else is in such a file: operators, the optimizer, Python, memory, garbage collection."""
    steps = sorted({one.step for one in done})
    for step in steps:
        mine = [one for one in done if one.step == step]
        begin, end = min(one.start for one in mine), max(one.end for one in mine)
        events.add("user_annotation", f"ProfilerStep#{step}", MAIN, begin - 4e-3, end - 1e-3)
        for place in range(50):
            at = begin + (end - begin) * place / 50
            events.add("cpu_op", "aten::addmm", MAIN, at, at + 1e-5)
            events.add("python_function", "nn.Module: Linear_0", MAIN, at, at + 1e-5)
        events.kernel("multi_tensor_apply", begin - 3.9e-3, MAIN, COMPUTE_STREAM, end, end + 1e-4)
        events.add("cuda_runtime", "cudaMalloc", MAIN, begin, begin + 2e-3, correlation=1)
        events.add("cuda_runtime", "cudaFree", MAIN, begin, begin + 1e-5, correlation=2)
        events.add("python_function", "<built-in function collect>", MAIN, end, end + 3e-3)


def _quirks(rows: list[dict[str, Any]]) -> list[str]:
    """Change events to all the forms that they have, and texts of events beside them."""
    more = [
        '{"ph": "X", "cat": "Trace", "ts": 1.5, "dur": 9.25, "pid": "Spans", '
        '"tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}}',
        '{"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces", '
        '"tid": "Trace PyTorch Profiler", "ts": 1.500}',
        '{"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 9.500}',
    ]
    launches = {
        row["args"]["correlation"]: row for row in rows if row["name"] == "cudaLaunchKernel"
    }
    kernels = [row for row in rows if row["cat"] == "kernel"]
    graphs: dict[float, int] = {}
    for number, kernel in enumerate(kernels):
        at = kernel["args"]["correlation"]
        launch = launches[at]
        where = {"pid": launch["pid"], "tid": launch["tid"], "ts": launch["ts"] + 0.5}
        more += [
            json.dumps({
                "ph": phase, "id": at, "pid": row["pid"], "tid": row["tid"], "ts": row["ts"],
                "cat": "ac2g", "name": "ac2g", **({"bp": "e"} if phase == "f" else {}),
            }) for phase, row in (("s", launch), ("f", kernel))
        ]  # fmt: skip
        # Calls that launch nothing have correlations, too; so have waits of streams.
        more += [
            json.dumps({
                "ph": "X", "cat": "cuda_runtime", "name": name, **where, "dur": 0.25,
                "args": {"cbid": 147, "correlation": 1_000_000 + at},
            }) for name in ("cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamIsCapturing")
        ]  # fmt: skip
        more.append(json.dumps({
            "ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": kernel["pid"],
            "tid": kernel["tid"], "ts": kernel["ts"] - 900.0, "dur": 2.0,
            "args": {"wait_on_stream": 7, "correlation": at, "stream": kernel["tid"]},
        }))  # fmt: skip
        if number % 5 == 0:  # as Triton launches
            launch["cat"], launch["name"] = "cuda_driver", "cuLaunchKernelEx"
        elif number % 5 == 1:
            kernel["cat"], kernel["name"] = "gpu_memcpy", "Memcpy DtoH (Device -> Pinned)"
            launch["name"] = "cudaMemcpyAsync"
        elif number % 5 == 2:
            kernel["cat"], kernel["name"] = "gpu_memset", "Memset (Device)"
            launch["name"] = "cudaMemsetAsync"
        elif number % 5 == 3 and "nccl" not in kernel["name"]:
            kernel["name"] = 'void k<"an unescaped quote">(Params)'
        if "SendRecv" in kernel["name"] or "SendRecv" in str(launch):
            more.append(json.dumps({
                "ph": "X", "cat": "gpu_user_annotation", "name": "nccl:send 0->1",
                "pid": kernel["pid"], "tid": kernel["tid"], "ts": kernel["ts"] - 0.001,
                "dur": kernel["dur"] + 0.002, "args": {},
            }))  # fmt: skip
        if kernel["tid"] == P2P_STREAM:
            kernel["cat"], kernel["name"] = "kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgs)"
            kernel["args"] |= {"Collective name": "coalesced", "Group size": 2}
        # Where a graph of kernels is launched at once, all of them have its correlation.
        elif 0.4 < number / len(kernels) < 0.6:
            graph = graphs.setdefault(launch["ts"] // 160, at)
            if graph == at:
                launch["cat"], launch["name"] = "cuda_runtime", "cudaGraphLaunch"
            elif abs(launches[graph]["ts"] - launch["ts"]) < 150:
                kernel["args"]["correlation"] = graph
                launch["name"] = "cudaStreamGetCaptureInfo"
    more.append(
        '{"ph": "X", "cat": "kernel", "name": "lost", "pid": 0, "tid": 7, "ts": 0, "dur": 1, '
        '"args": {"correlation": 999999999, "stream": 7}}'
    )
    more += [
        json.dumps({
            "ph": "X", "cat": "overhead", "name": "Lazy Function Loading", "pid": -1, "tid": 0,
            "ts": row["ts"], "dur": 5.0, "args": {},
        }) for row in [row for row in rows if row["name"].startswith("PP:")][:3]
    ]  # fmt: skip
    return more


def _old(rows: list[dict[str, Any]]) -> str:
    """The text of a file of years ago: other categories, and times since 1970."""
    categories = {"kernel": "Kernel", "cuda_runtime": "Runtime", "cpu_op": "Operator"}
    for row in rows:
        row["cat"] = categories.get(row["cat"], row["cat"])
        row["ts"] = f"{BASE // 1000 + int(row['ts'])}.{int(row['ts'] * 1000) % 1000:03d}"
        if row["cat"] == "Kernel":
            row["tid"] = f"stream {row['tid']}"
    texts = [_event(row) for row in rows]
    return '{"schemaVersion": 1, "traceEvents": [\n' + ",\n".join(texts) + "\n]}\n"


def _document(
    rows: list[dict[str, Any]], rank: int, copies: int, ranks: int, host: str, late: bool,
    more: list[str],
) -> str:  # fmt: skip
    """The text of a file, laid out as the profiler lays it out; `late` says the rank at the end."""
    mine = rank // ranks * ranks
    config = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(copies * ranks))},
        {"pg_name": "3", "pg_desc": "mesh_pp", "ranks": list(range(mine, mine + ranks))},
    ]
    info = {"backend": "cpu:gloo,cuda:nccl", "rank": rank, "world_size": copies * ranks,
            "pg_count": len(config), "pg_config": config}  # fmt: skip
    head: dict[str, Any] = {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1}],
        "host_name": host, "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE,
    }  # fmt: skip
    tail: dict[str, Any] = {"traceName": "x"}
    (tail if late else head)["distributedInfo"] = info
    begin, end = json.dumps(head, indent=2)[:-2], json.dumps(tail)[1:]
    name = '{"name": "process_name", "ph": "M", "ts": 1.5, "pid": 1, "tid": 0, "args": {}}'
    events = ",\n".join([name, *(_event(row) for row in rows), *more])
    return f'{begin},\n  "traceEvents": [\n  {events}\n  ],\n  {end}\n'


def _event(row: dict[str, Any]) -> str:
    args = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in row["args"].items())
    thread = json.dumps(row["tid"])
    return (
        f'  {{\n    "ph": "X", "cat": "{row["cat"]}", "name": "{row["name"]}", '
        f'"pid": {row["pid"]}, "tid": {thread},\n    "ts": {row["ts"]}, "dur": {row["dur"]:.3f},\n'
        f'    "args": {{\n      {args}\n    }}\n  }}'
    )
