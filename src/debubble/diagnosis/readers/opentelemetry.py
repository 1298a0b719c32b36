"""Megatron-LM's OpenTelemetry spans (``--otel-enabled``, span group ``microbatch``).

Spans are read from the collector's file exporter (a JSON object ``resourceSpans`` a line), from the
console exporter in a log, and from a download of Jaeger. Times are the host's: on a GPU a span is
as long as its launches. Forwards have their microbatch, backwards have none, and the transfers of
the steady state have no span. So order and chunks are assumed by Megatron's schedules.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from debubble.core.errors import FormatError
from debubble.core.kinds import Kind
from debubble.diagnosis.observed import ALONE, Location, Observed
from debubble.diagnosis.readers.collected import MAX_RANKS, MAX_ROWS, NAN, NANOSECONDS, Collected
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import LeftOut, chunks
from debubble.diagnosis.readers.unnamed_order import (
    BACKWARD,
    FORWARD,
    AssumedOrder,
    UnnamedAction,
    assumed_order,
)

NAME = "opentelemetry"
MARKS = (b"megatron.microbatch.", b"megatron.train_step")
LATEST = 1 << 62
KINDS = {"megatron.microbatch.forward": FORWARD, "megatron.microbatch.backward": BACKWARD}
STEP = "megatron.train_step"
TRANSFER = "megatron.p2p."

MAX_TEXT = 1 << 26
"""Maximum length of one JSON text."""

LONGEST_BEGIN = 1 << 12
"""Maximum length of what shows the beginning of a JSON text."""

_BEGIN = re.compile(r'^[^{\n]{0,200}(?=\{\s*"(?:resourceSpans|name|data)")', re.MULTILINE)
_INSTANCE = re.compile(r"rank(\d{1,7})\Z", re.ASCII)

NO_RANK = "spans without a rank, in nv.dl.rank or service.instance.id"
OUTSIDE = "forwards and backwards outside of training steps"
TENSOR = "ranks other than the first tensor-parallel one"
CUT = "texts that are no JSON, or end early"
RECORD = (
    "record with MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch and "
    "MEGATRON_OTEL_RANK_STRATEGY=all_ranks"
)


class _Span(NamedTuple):
    """A span of interest; times in nanoseconds since 1970."""

    name: str
    start: int
    end: int
    iteration: int  # −1 if unknown


class _Exporter(NamedTuple):
    """Rank, sizes and host of the process of a resource; 0 for unknown sizes."""

    rank: int
    world: int
    pipeline: int
    tensor: int
    host: str


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    return any(mark in head for mark in MARKS) and (
        b'"resourceSpans"' in head or b'"context"' in head or b'"operationName"' in head
    )


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the spans of all ranks that exported any; raise FormatError without microbatches."""
    spans: dict[int, list[_Span]] = defaultdict(list)
    processes: dict[int, _Exporter] = {}
    paths: dict[int, str] = {}
    for path, found in read_each(_read_file, files, left_out):
        for process, each in found:
            paths.setdefault(process.rank, str(path))
            processes.setdefault(process.rank, process)
            spans[process.rank] += each
    if not any(one.name in KINDS for each in spans.values() for one in each):
        raise FormatError(f"{where}: no span {' or '.join(KINDS)} of a rank; {RECORD}")
    ranks, places = _places(processes, left_out)
    steps = {
        rank: _by_step(sorted(spans[rank], key=attrgetter("start")), left_out) for rank in places
    }
    order = _order(where, steps, places, ranks)
    collected = Collected(where, left_out)
    for rank, (copy, place) in places.items():
        for number, actions in steps[rank].items():
            _add(collected, number, copy, place, ranks, order, actions)
    locations = {
        place: Location(rank, processes[rank].host, paths[rank]) for rank, place in places.items()
    }
    numbered = any(one.iteration >= 0 for each in spans.values() for one in each)
    return collected.observed(
        NAME,
        {
            "rank": "of the resource, pipelines placed as Megatron does",
            "stage": "rank" if order.chunks == 1 else "chunk by the sequence of calls, and rank",
            "microbatch": "sequence of calls, assumed",
            "step": "iteration of the training step" if numbered else "training steps in sequence",
            "clock": "of every host, since 1970",
            "times": "the host's spans: on a GPU they are launches, and no durations",
        },
        ranks=ranks, copies=1 + max(copy for copy, _ in places.values()),
        locations=locations, clocks="hosts",
        order_assumed=order.name,
    )  # fmt: skip


def _places(
    processes: Mapping[int, _Exporter], left_out: LeftOut
) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return the number of pipeline ranks, and copy and pipeline rank of each rank of the job.

    Megatron places neighbors of a pipeline the farthest apart, and tensor-parallel ranks side by
    side.
    """
    ranks = max(max(each.pipeline for each in processes.values()), 1)
    world = max(max(each.world for each in processes.values()), 1 + max(processes))
    if ranks == 1:
        # Without a size, all ranks are one pipeline.
        ranks, world = world, world
    peers = max(world // ranks, 1)
    tensor = max(max(each.tensor for each in processes.values()), 1)
    found = {}
    for rank in sorted(processes):
        if rank % tensor:
            left_out[TENSOR] += 1
            continue
        found[rank] = (rank % peers) // tensor, min(rank // peers, ranks - 1)
    return ranks, found


_Step = tuple[list[UnnamedAction], list[int]]
"""Forwards and backwards of a rank in a step, and ends of its transfers."""


def _by_step(spans: Sequence[_Span], left_out: LeftOut) -> dict[int, _Step]:
    """Return the actions of a rank by the number of their training step."""
    bounds = [one for one in spans if one.name == STEP]
    starts = np.array([one.start for one in bounds])
    found: dict[int, _Step] = defaultdict(lambda: ([], []))
    for one in spans:
        if one.name == STEP:
            continue
        number = 0
        if bounds:
            at = int(np.searchsorted(starts, one.start, side="right")) - 1
            if at < 0 or one.end > bounds[at].end:
                left_out[OUTSIDE] += one.name in KINDS
                continue
            number = bounds[at].iteration if bounds[at].iteration >= 0 else at
        runs, moves = found[number]
        if one.name in KINDS:
            runs.append(UnnamedAction(one.start, one.end, KINDS[one.name]))
        else:
            moves.append(one.end)
    return found


def _order(
    where: str, steps: Mapping[int, dict[int, _Step]], places: Mapping[int, tuple[int, int]],
    ranks: int,
) -> AssumedOrder:  # fmt: skip
    """Return the order that the first step of every rank fits."""
    first: dict[int, list[UnnamedAction]] = {}
    counts: Counter[int] = Counter()
    for rank, each in steps.items():
        if not each:
            continue
        first.setdefault(places[rank][1], each[min(each)][0])
        counts.update(sum(run.kind == BACKWARD for run in runs) for runs, _ in each.values())
    calls = counts.most_common(1)[0][0] if counts else 0
    order = assumed_order(first.items(), ranks, calls)
    if order is None or ranks > MAX_RANKS:
        raise FormatError(
            f"{where}: {ranks} pipeline ranks of which {sorted(first)} have spans, and {calls} "
            f"backwards a step, fit neither 1F1B nor Megatron's interleaved 1F1B; {RECORD}"
        )
    return order


def _add(
    collected: Collected, step: int, copy: int, rank: int, ranks: int, order: AssumedOrder,
    actions: _Step,
) -> None:  # fmt: skip
    """Add the actions of a rank in a step, with chunks and microbatches by their sequence."""
    runs, moves = actions
    ends = np.sort(np.array(moves, np.int64))
    numbered = [order.numbered(kind, ranks) for kind in (FORWARD, BACKWARD)]
    counts = [0, 0]
    before = -1
    rows = []
    for start, end, kind in runs:
        at = int(np.searchsorted(ends, start, side="right")) - 1
        waited = ends[at] * NANOSECONDS if at >= 0 and ends[at] > before else NAN
        before = end
        if counts[kind] < len(numbered[kind]):
            chunk, microbatch = numbered[kind][counts[kind]]
            counts[kind] += 1
            rows.append((
                step, copy, rank, (Kind.F, Kind.B)[kind], chunk * ranks + rank, microbatch, 0,
                ALONE, start * NANOSECONDS, end * NANOSECONDS, NAN, waited, NAN,
            ))  # fmt: skip
    collected.each("actions", rows)


def _read_file(path: Path, left_out: LeftOut) -> list[tuple[_Exporter, list[_Span]]]:
    """Return the spans of interest of a file, by their process."""
    found: dict[int, tuple[_Exporter, list[_Span]]] = {}
    count = 0
    for text in _texts(path, left_out):
        for resource, name, start, end, attributes in _spans_of(text):
            if name != STEP and name not in KINDS and not name.startswith(TRANSFER):
                continue
            process = _process(resource)
            if process.rank < 0:
                left_out[NO_RANK] += 1
                continue
            count += 1
            if count > MAX_ROWS:
                raise FormatError(f"{path}: more than {MAX_ROWS:,} spans, the limit; give fewer")
            iteration = _whole(_any_of(attributes, "megatron.iteration", "dl.iteration"))
            if 0 <= start <= end < LATEST:
                span = _Span(name, start, end, iteration)
                found.setdefault(process.rank, (process, []))[1].append(span)
    return list(found.values())


def _texts(path: Path, left_out: LeftOut) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file, with whatever a log has between them."""
    decoder, utf8 = json.JSONDecoder(strict=False), getincrementaldecoder("utf-8")("replace")
    rest = ""
    for chunk in chain(chunks(path, left_out), [b""]):
        rest += utf8.decode(chunk)
        at = 0
        while (match := _BEGIN.search(rest, at)) is not None:
            at = match.end()
            try:
                value, end = decoder.raw_decode(rest, at)
            except (ValueError, RecursionError):
                if chunk and len(rest) - at < MAX_TEXT:
                    break  # The object goes on in the next piece.
                left_out[CUT] += 1
                at += 1
                continue
            at = end
            if isinstance(value, dict):
                yield value
        else:
            at = max(at, len(rest) - LONGEST_BEGIN)
        rest = rest[at:]


_RawSpan = tuple[Mapping[str, Any], str, int, int, Mapping[str, Any]]
"""Resource, name, start, end and attributes of a span; times in nanoseconds, −1 for none."""


def _spans_of(value: Mapping[str, Any]) -> Iterator[_RawSpan]:
    """Yield the spans of an object of OTLP, of the console exporter or of Jaeger."""
    for resource in _dicts(value.get("resourceSpans")):
        process = _keyed(_inside(resource.get("resource"), "attributes"))
        for scope in _dicts(resource.get("scopeSpans")):
            for span in _dicts(scope.get("spans")):
                start, end = (_whole(span.get(f"{edge}TimeUnixNano")) for edge in ("start", "end"))
                yield process, str(span.get("name")), start, end, _keyed(span.get("attributes"))
    for trace in _dicts(value.get("data")):
        for span in _dicts(trace.get("spans")):
            about = _inside(trace.get("processes"), str(span.get("processID")))
            start, lasts = _whole(span.get("startTime")), _whole(span.get("duration"))
            yield (
                _keyed(_inside(about, "tags")), str(span.get("operationName")), start * 1000,
                (start + lasts) * 1000, _keyed(span.get("tags")),
            )  # fmt: skip
    if "start_time" in value and "end_time" in value:
        known = _inside(value.get("resource"), "attributes")
        own = value.get("attributes")
        yield (
            known if isinstance(known, dict) else {}, str(value.get("name")),
            _since_1970(value["start_time"]), _since_1970(value["end_time"]),
            own if isinstance(own, dict) else {},
        )  # fmt: skip


def _inside(value: Any, key: str) -> Any:
    """Return a value of an object, or None."""
    return value.get(key) if isinstance(value, dict) else None


def _process(resource: Mapping[str, Any]) -> _Exporter:
    """Return the process of a resource."""
    rank = _whole(_any_of(resource, "nv.dl.rank", "dl.rank"))
    if rank < 0:
        match = _INSTANCE.search(str(resource.get("service.instance.id", "")))
        rank = int(match[1]) if match else -1
    world = _whole(_any_of(resource, "nv.dl.world_size", "dl.world_size"))
    pipeline = _whole(resource.get("dl.pipeline_parallel.size"))
    tensor = _whole(resource.get("dl.tensor_parallel.size"))
    host = str(resource.get("host.name", ""))[:200]
    sizes = max(world, 0), max(pipeline, 0), max(tensor, 0)
    return _Exporter(min(rank, MAX_RANKS - 1), *sizes, host)


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list."""
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def _keyed(attributes: Any) -> dict[str, Any]:
    """Return attributes by key, from OTLP's or Jaeger's list of them."""
    found = {}
    for one in _dicts(attributes):
        value = one.get("value")
        found[str(one.get("key"))] = (
            next(iter(value.values()), None) if isinstance(value, dict) else value
        )
    return found


def _any_of(attributes: Mapping[str, Any], *names: str) -> Any:
    return next((attributes[name] for name in names if name in attributes), None)


def _whole(value: Any) -> int:
    """Return a whole number, which OTLP writes as text; −1 for anything else."""
    if type(value) is int:
        return value if 0 <= value < LATEST else -1
    text = value if isinstance(value, str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def _since_1970(text: Any) -> int:
    """Return nanoseconds since 1970 of a time such as ``2026-08-11T10:00:00.000001Z``, or −1."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        whole = int(moment.replace(microsecond=0).timestamp())
    except (AttributeError, ValueError, OverflowError):
        return -1
    return whole * 1_000_000_000 + moment.microsecond * 1000
