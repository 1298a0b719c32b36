"""Files of runs of Megatron-LM and of what is built on it; nothing here knows how they are read."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from debubble import Kind
from tests.diagnosis.readers import made
from tests.diagnosis.readers.made import Done, MadeRun

BASE = 1_790_857_026_000_000_000
"""Nanoseconds since 1970 of the beginning of a run."""

HOLD = 0.2e-3
"""Seconds at the end of an action in which its result is sent."""


def pipeline_groups(rank: int, ranks: int) -> list[dict[str, Any]]:
    """Process groups of a rank as Megatron describes them, of one pipeline."""
    every = list(range(ranks))
    return [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": every},
        {"pg_name": "1", "pg_desc": "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "ranks": every},
        {"pg_name": "2", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": [rank]},
        {"pg_name": "3", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": every},
    ]


def write_unnamed_kineto(
    run: MadeRun, folder: Path, *, calls: bool = False, device: bool = False, plain: bool = False,
    zero: float | None = None,
) -> None:  # fmt: skip
    """A profile of every rank, with operators and no name of an action.

    With `calls` it has Python's frames, and operators say nothing. With `device` the host runs
    ahead, and a kernel of every action runs on a GPU when the action ran. A `plain` job names no
    group of the pipeline, as PyTorch's own 1F1B without a mesh; the profiler marks its steps.
    """
    ranks = run.schedule.ranks
    zero = min(one.start for one in run.done) - 1 if zero is None else zero
    for rank in range(ranks):
        rows: list[dict[str, Any]] = []

        def add(
            category: str, name: str, start: float, end: float, rows: Any = rows, **args: Any
        ) -> None:
            rows.append({
                "ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1,
                "ts": round((start - zero) * 1e6, 3), "dur": round((end - start) * 1e6, 3),
                "args": args,
            })  # fmt: skip

        for at, (each, number) in enumerate(_numbered(run, rank)):
            # A message is sent before the next action begins.
            one = each._replace(end=each.end - HOLD)
            if device:
                one = each._replace(start=zero + at * 3e-4, end=zero + at * 3e-4 + 1e-4)
                add("cuda_runtime", "cudaLaunchKernel", one.start, one.end, correlation=at + 1)
                add("kernel", "gemm", each.start, each.end, correlation=at + 1)
            if calls:
                backward = "backward" if one.kind == Kind.B else "forward"
                frame = f"megatron/core/pipeline_parallel/schedules.py(311): {backward}_step"
                add("python_function", frame, one.start, one.end)
            elif one.kind == Kind.F:
                add("cpu_op", "aten::linear", one.start, one.end, **{"Sequence number": number})
            else:
                name = "autograd::engine::evaluate_function: AddmmBackward0"
                half = (one.start + one.end) / 2
                for less, begin, end in ((0, one.start, half), (1, half, one.end)):
                    add("cpu_op", name, begin, end, **{"Sequence number": number - less})
            add("cpu_op", "c10d::send", one.end + HOLD / 4, one.end + HOLD / 2)
        for step in {one.step for one in run.of(rank)} if plain else ():
            mine = [one for one in run.of(rank) if one.step == step]
            begin, end = min(one.start for one in mine), max(one.end for one in mine)
            add("user_annotation", f"ProfilerStep#{step}", begin, end)
        groups = pipeline_groups(rank, ranks)
        data = {
            "schemaVersion": 1, "baseTimeNanoseconds": BASE, "host_name": "node-0",
            "distributedInfo": {
                "backend": "nccl" if device else "gloo", "rank": rank, "world_size": ranks,
                "pg_config": groups[:1] if plain else groups,
            },
            "traceEvents": rows,
        }  # fmt: skip
        made.write(folder / f"rank-{rank}.json.gz", data)


def _numbered(run: MadeRun, rank: int) -> list[tuple[Done, int]]:
    """Actions of a rank in sequence, with autograd's number of their forward's last record."""
    mine = sorted(run.of(rank), key=lambda one: one.start)
    numbers: dict[tuple[int, int, int], int] = {}
    for one in mine:
        if one.kind == Kind.F:
            numbers[one.step, one.stage, one.microbatch] = 2 * len(numbers) + 1
    return [(one, numbers[one.step, one.stage, one.microbatch]) for one in mine]


def write_megatron_app(run: MadeRun, path: Path) -> None:
    """One list of beginnings and ends of all ranks."""
    ranks = run.schedule.ranks
    events = []
    for one in sorted(run.done, key=lambda one: one.start):
        name = "forward" if one.kind == Kind.F else "backward"
        for phase, time in (("B", one.start), ("E", one.end)):
            args: dict[str, int] = {"iteration": one.step}
            if phase == "E":
                args |= {"microbatch": one.microbatch, "model_chunk": one.stage // ranks,
                         "pp_rank": one.rank}  # fmt: skip
            events.append({"name": name, "ph": phase, "ts": time * 1e6, "pid": one.rank, "tid": 0,
                           "args": args})  # fmt: skip
    begin = [{"name": "iteration begin", "ph": "i", "ts": 0, "pid": rank, "tid": 0,
              "args": {"iteration": run.done[0].step}} for rank in range(ranks)]  # fmt: skip
    made.write(path, begin + events)


def write_spans(run: MadeRun, folder: Path, form: str, *, only: int | None = None) -> None:
    """OpenTelemetry's spans of every rank, or of one, as one of its exporters writes them."""
    ranks = run.schedule.ranks
    for rank in range(ranks):
        if only not in (None, rank):
            continue
        resource = {
            "nv.dl.rank": rank, "dl.pipeline_parallel.size": ranks, "dl.tensor_parallel.size": 1,
            "host.name": "node-0", "service.instance.id": f"a1-rank{rank}",
        }  # fmt: skip
        spans: list[tuple[str, int, int, dict[str, Any]]] = []
        for one in run.of(rank):
            word = "forward" if one.kind == Kind.F else "backward"
            said = {"megatron.microbatch_id": one.microbatch} if one.kind == Kind.F else {}
            times = (BASE + round(time * 1e6) * 1000 for time in (one.start, one.end))
            spans.append((f"megatron.microbatch.{word}", *times, said))
        for step in sorted({one.step for one in run.of(rank)}):
            mine = [one for one in run.of(rank) if one.step == step]
            begin, end = min(one.start for one in mine), max(one.end for one in mine)
            spans.append((
                "megatron.train_step", BASE + int(begin * 1e9) - 2000, BASE + int(end * 1e9) + 2000,
                {"megatron.iteration": step},
            ))  # fmt: skip
            # Evaluation has forwards, too, outside of a training step.
            late = BASE + int(end * 1e9) + 50_000
            spans.append(("megatron.microbatch.forward", late, late + 1000, {}))
        write = {"otlp": _otlp, "console": _console, "jaeger": _jaeger}[form]
        made.write(folder / f"rank{rank}.log", write(resource, spans))


_Spans = list[tuple[str, int, int, dict[str, Any]]]


def _otlp(resource: dict[str, Any], spans: _Spans) -> str:
    """Lines of the collector's file exporter, a batch each."""

    def keyed(given: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"key": key, "value": {"intValue": str(value)} if isinstance(value, int)
             else {"stringValue": value}} for key, value in given.items()
        ]  # fmt: skip

    lines = []
    for at in range(0, len(spans), 5):
        batch = [
            {"name": name, "startTimeUnixNano": str(start), "endTimeUnixNano": str(end),
             "attributes": keyed(said)} for name, start, end, said in spans[at : at + 5]
        ]  # fmt: skip
        lines.append(json.dumps({"resourceSpans": [
            {"resource": {"attributes": keyed(resource)}, "scopeSpans": [{"spans": batch}]},
        ]}))  # fmt: skip
    return "\n".join(lines) + "\n"


def _console(resource: dict[str, Any], spans: _Spans) -> str:
    """A log with spans between other lines."""

    def moment(time: int) -> str:
        seconds, rest = divmod(time, 1_000_000_000)
        day = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{day}.{rest // 1000:06d}Z"

    texts = ["NCCL INFO {x} Channel 00\n" * 20]
    for name, start, end, said in spans:
        data = {
            "name": name, "context": {"trace_id": "0x1", "span_id": "0x2"}, "parent_id": None,
            "start_time": moment(start), "end_time": moment(end), "attributes": said,
            "resource": {"attributes": resource},
        }  # fmt: skip
        texts.append(json.dumps(data, indent=4) + "\n iteration 1/ 10 | loss: 1.0\n")
    return "".join(texts)


def _jaeger(resource: dict[str, Any], spans: _Spans) -> str:
    """A download of a trace from Jaeger; times in whole microseconds."""

    def tags(given: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"key": key, "type": "int64", "value": value} for key, value in given.items()]

    found = [
        {"operationName": name, "startTime": start // 1000, "duration": (end - start) // 1000,
         "processID": "p1", "tags": tags(said)} for name, start, end, said in spans
    ]  # fmt: skip
    processes = {"p1": {"serviceName": "megatron-lm", "tags": tags(resource)}}
    return json.dumps({"data": [{"traceID": "1", "spans": found, "processes": processes}]})


def write_tensorboard(path: Path, times: dict[str, list[float]], arguments: dict[str, str]) -> None:
    """Event files of TensorBoard: a scalar of every step, and texts."""

    def varint(value: int) -> bytes:
        text = b""
        while value > 0x7F:
            text += bytes([value & 0x7F | 0x80])
            value >>= 7
        return text + bytes([value])

    def field(number: int, content: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(content)) + content

    def record(event: bytes) -> bytes:
        return struct.pack("<Q", len(event)) + b"crc0" + event + b"crc1"

    def event(step: int, value: bytes) -> bytes:
        clock = varint(1 << 3 | 1) + struct.pack("<d", 1.79e9)
        return record(clock + varint(2 << 3) + varint(step) + field(5, field(1, value)))

    text = record(varint(1 << 3 | 1) + struct.pack("<d", 1.79e9) + field(3, b"brain.Event:2"))
    for name, value in arguments.items():
        tensor = varint(1 << 3) + varint(7) + field(8, value.encode())
        text += event(0, field(1, f"{name}/text_summary".encode()) + field(8, tensor))
    for tag, numbers in times.items():
        for step, number in enumerate(numbers, 1):
            simple = varint(2 << 3 | 5) + struct.pack("<f", number)
            text += event(step, field(1, tag.encode()) + simple)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
