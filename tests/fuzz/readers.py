"""Every reader of text or bytes that anybody may have written: one list.

A reader takes bytes and returns, or raises a :class:`debubble.DebubbleError`; anything else, and
whatever takes too long or too much memory, is a failure. To add one is to add a row here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from debubble.core.errors import DebubbleError, FormatError
from tests.fuzz import mutators, seeds
from tests.fuzz.mutators import Mutator

MEMORY = Path("/dev/shm")
"""A file system in memory, where there is one."""


@dataclass(frozen=True)
class Reader:
    """A reader and what it is given.

    Parameters
    ----------
    read
        Reads bytes.
    seeds
        Makes inputs that are mostly valid, from which others are made.
    mutate
        Makes an input of an input.
    seconds
        Processor time that an input may take.
    """

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    mutate: Mutator = mutators.mixed
    seconds: float = 5.0

    def input(self, random: Random, known: list[bytes]) -> bytes:
        """Another input."""
        return self.mutate(random, known[int(random.random() * len(known))], known)


def accepts(reader: Reader, content: bytes) -> bool:
    """Whether a reader accepts an input; what it refuses has to be said in some words."""
    try:
        reader.read(content)
    except DebubbleError as error:
        said = str(error)
    else:
        return True
    assert 0 < len(said) < 20_000 + 4 * len(content), "a message says something, briefly"
    return False


def typed(content: bytes) -> str:
    """A word of a command line."""
    return content.decode("utf-8", "surrogateescape")


def text(content: bytes) -> str:
    """The text of a file, which is refused where it is none."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError("not UTF-8 text") from None


@cache
def folder() -> Path:
    """A folder for files of this process."""
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir=MEMORY if MEMORY.is_dir() else None))


def written(name: str, content: bytes) -> str:
    """The path of a file with some bytes."""
    path = folder() / name
    path.write_bytes(content)
    return str(path)


# Words of the command line.


def times(flag: str) -> Callable[[bytes], object]:
    def read(content: bytes) -> object:
        from debubble.cli.times import parse_times

        return parse_times(typed(content), flag)

    return read


def change(content: bytes) -> object:
    from debubble.diagnosis.changes import Change

    return Change.parse(typed(content))


def condition(content: bytes) -> object:
    from debubble.diagnosis.conditions import Condition

    measured = {
        "bubble_ratio": 0.3, "step": 1.0, "slowdown": {"total": 1.1}, "findings": [],
        "plan": {"bubble_ratio": 0.2, "step": 1.0},
    }  # fmt: skip
    found = Condition.parse(typed(content))
    found.failed(measured, None)
    return found


def jitter(content: bytes) -> object:
    from debubble.interchange.jitter import read_jitter

    fields: list[str | None] = [part or None for part in typed(content).split("|")]
    times, samples, seed, replicas, *slow = (fields + [None] * 4)[: max(len(fields), 4)]
    asked = times if times is None or not times.startswith(("/", "..")) else "x"
    texts = {"jitter": asked, "samples": samples, "seed": seed, "replicas": replicas}
    return read_jitter(texts | {"slow": [word for word in slow if word] or None})


def memory(content: bytes) -> object:
    from debubble.core.options import MemoryLimit

    return MemoryLimit().read("--memory", typed(content), "bytes")


def plain_memory(content: bytes) -> object:
    from debubble.core.options import MemoryLimit

    return MemoryLimit().read("--memory", typed(content))


def option(content: bytes) -> object:
    from debubble.interchange.files import declared_options, parse_options

    pairs = typed(content).split("|")
    return parse_options(pairs, declared_options(seeds.names(), pairs))


def lowering(content: bytes) -> object:
    from debubble.lowering.chain import LOWERINGS, read_lowerings

    rows = [*LOWERINGS]
    fields: list[str | None] = [part or None for part in typed(content).split("|")]
    fields += [None] * len(rows)
    return read_lowerings({row.name: value for row, value in zip(rows, fields, strict=False)})


def sizes(content: bytes) -> object:
    from debubble.cli.options import Setup

    fields = (typed(content).split("|") + [""] * 7)[:7]
    ranks, microbatches, chunks, iterations, group, runtime, mode = (
        value or None for value in fields
    )
    return Setup({
        "ranks": ranks, "microbatches": microbatches, "chunks": chunks, "iterations": iterations,
        "group_size": group, "runtime": runtime, "p2p_mode": mode,
    }).read()  # fmt: skip


def searched(content: bytes) -> object:
    from debubble.optimize.options import RECOMPUTE, SEARCH_OPTIONS

    said = typed(content)
    which, _, rest = said.partition("=")
    types = {row.name: row.type for row in SEARCH_OPTIONS} | {"recompute": RECOMPUTE}
    return types.get(which, types["effort"]).read(f"--{which}", rest)


def held(content: bytes) -> object:
    from debubble.planner.options import fixed_of, values_with

    return fixed_of(values_with({}, typed(content)))


def plan_memory(content: bytes) -> object:
    from debubble.planner.hardware.cluster import read_bytes

    return read_bytes(typed(content))


def plotted(content: bytes) -> object:
    from debubble.sweeps.chart import Chart

    return Chart.read(seeds.results(), typed(content))


def cut(content: bytes) -> object:
    from debubble.cli.export import _layout
    from debubble.interchange.layouts import check_cut

    found = _layout(typed(content))
    check_cut(seeds.small()[0], found.cut)
    return str(found)


def figure(content: bytes) -> object:
    """All options of a figure, apart by bars; empty ones are left out."""
    from debubble.view.options import FigureOptions

    texts = typed(content).split("|")
    rows = [row for row in fields(FigureOptions) if row.metadata]
    return [
        row.metadata["read"](text, row.name) for row, text in zip(rows, texts, strict=False) if text
    ]


def cell(content: bytes) -> object:
    from debubble.core.actions import parse_cell

    found = typed(content)
    return parse_cell(found, 4 if "." in found else 1)


def named(content: bytes) -> object:
    from debubble.diagnosis.readers.action_names import actions_named

    return actions_named(typed(content))


def rows_of_cells(content: bytes) -> object:
    from debubble import Placement, Schedule

    rows = [line.split() for line in typed(content).split("\n")]
    return Schedule.from_text(rows, Placement.linear(len(rows)), 4)


def command(content: bytes) -> object:
    """A whole command of those that neither write, nor wait, nor search."""
    from typer.testing import CliRunner

    from debubble.cli.app import app

    words = typed(content).split(" ")
    long = any(len(digits) > 2 for digits in seeds.DIGITS.findall(typed(content)))
    if long or words[0] not in seeds.READING or any(word.startswith("-o") for word in words):
        raise FormatError("not tried")
    found = CliRunner(env={"COLUMNS": "100"}).invoke(app, words, prog_name="debubble")
    said = found.stdout + found.stderr
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code in (0, 1, 2), (found.exit_code, said)
    assert "internal error" not in said, said
    assert "Traceback" not in said, said
    if found.exit_code == 2:
        raise FormatError(said or "nothing was said")
    return said


# Files of schedules, costs and sweeps.


def schedule(name: str) -> Callable[[bytes], object]:
    def read(content: bytes) -> object:
        from debubble.analysis.check import check
        from debubble.interchange.files import parse_schedule

        return check(parse_schedule(text(content), name))

    return read


def costs(name: str) -> Callable[[bytes], object]:
    def read(content: bytes) -> object:
        from debubble.interchange.cost_files import parse_costs

        return parse_costs(text(content), name)

    return read


def cost_file(content: bytes) -> object:
    from debubble.interchange.cost_files import load_costs

    return load_costs(written("costs.yaml", content))


def baseline(content: bytes) -> object:
    from debubble.diagnosis.conditions import Baseline

    return Baseline.read(written("baseline.json", content))


def spec(content: bytes) -> object:
    from debubble.sweeps import read_spec

    found = read_spec(written("sweep.yaml", content))
    return found.describe(), [point for point, _ in zip(found.points(), range(3), strict=False)]


def sweep(content: bytes) -> object:
    from debubble.sweeps import Results
    from debubble.sweeps.chart import Chart

    path = written("results.sqlite", content)
    for more in ("-wal", "-shm", "-journal"):
        Path(path + more).unlink(missing_ok=True)
    found = Results.read(path)
    found.errors()
    found.save(str(folder() / "results.csv"))
    return Chart.read(found, "x=ranks y=makespan by=schedule")


def resumed(content: bytes) -> object:
    """A sweep that goes on in a damaged file."""
    from debubble.sweeps import run, spec_of

    path = written("resumed.sqlite", content)
    for more in ("-wal", "-shm", "-journal"):
        Path(path + more).unlink(missing_ok=True)
    return run(spec_of(seeds.SPEC), path, jobs=1)


def measured(content: bytes) -> object:
    from debubble import Jitter
    from debubble.interchange.jitter import read_times

    return Jitter(read_times(written("times.txt", content)))


def cached(content: bytes) -> object:
    """An entry of the optimizer's cache: right, or as if it was not there."""
    from debubble.optimize import cache

    problems, path = seeds.cached_problem(folder())
    path.write_bytes(content)
    with patch.dict(os.environ, XDG_CACHE_HOME=str(folder())):
        return cache.read_entry(problems)


# Files of the planner.


def model(name: str) -> Callable[[bytes], object]:
    def read(content: bytes) -> object:
        from debubble.planner.model.files import parse_model

        return parse_model(text(content), name).parameters

    return read


def gpu(content: bytes) -> object:
    from debubble.planner.hardware.cluster import find_gpu

    return find_gpu(written("gpu.yaml", content))


def calibration(name: str) -> Callable[[bytes], object]:
    def read(content: bytes) -> object:
        from debubble.planner.cost.calibration_files import calibrate_from
        from debubble.planner.request import PlanRequest

        case = seeds.planned()
        asked = PlanRequest(case.model, case.cluster, case.training)
        return calibrate_from(name, asked, case.candidate, text(content))

    return read


# Traces.


def trace(name: str) -> Callable[[bytes], object]:
    """A folder of the files of a run, one of which the input is; its first byte says which."""

    def read(content: bytes) -> object:
        from debubble.diagnosis.readers.folder import read as read_folder

        place, whole = seeds.trace_folder(name, folder())
        names = sorted(whole)
        which = names[content[0] % len(names)] if content else names[0]
        try:
            (place / which).write_bytes(content[1:])
            return read_folder(place)
        finally:
            (place / which).write_bytes(whole[which])

    return read


def diagnosed(name: str) -> Callable[[bytes], object]:
    read = trace(name)

    def diagnose_it(content: bytes) -> object:
        from debubble.diagnosis.costs_only import has_only_costs
        from debubble.diagnosis.diagnose import diagnose
        from debubble.diagnosis.report import report

        found: Any = read(content)
        return None if has_only_costs(found) else report(diagnose(found), 100)

    return diagnose_it


def chrome(content: bytes) -> object:
    from debubble.interchange.read_trace import read_trace

    return [found.timeline().makespan for found in read_trace(text(content), "x.json")]


def packed_chrome(content: bytes) -> object:
    from debubble.interchange.read_trace import load_trace

    return load_trace(written("x.json.gz", content))


def request(route: str) -> Callable[[bytes], object]:
    """The body of a request to the playground's server, in this process."""

    def read(content: bytes) -> object:
        from tests.fuzz.served import ask

        return ask(route, content)

    return read


READERS: Mapping[str, Reader] = {
    "action-times": Reader(times("--times"), seeds.times),
    "rank-times": Reader(times("--rank-times"), seeds.times),
    "set": Reader(change, seeds.changes),
    "fail-if": Reader(condition, seeds.conditions),
    "baseline": Reader(baseline, seeds.baselines),
    "jitter": Reader(jitter, seeds.jitters),
    "memory": Reader(memory, seeds.memories),
    "plain-memory": Reader(plain_memory, seeds.memories),
    "option": Reader(option, seeds.options),
    "lowering": Reader(lowering, seeds.lowerings),
    "sizes": Reader(sizes, seeds.sizes),
    "searched": Reader(searched, seeds.searched),
    "held": Reader(held, seeds.held),
    "plan-memory": Reader(plan_memory, seeds.memories),
    "plot": Reader(plotted, seeds.plots),
    "cut": Reader(cut, seeds.cuts),
    "figure": Reader(figure, seeds.figures),
    "cell": Reader(cell, seeds.cells),
    "named": Reader(named, seeds.range_names),
    "rows-of-cells": Reader(rows_of_cells, seeds.orders),
    "command": Reader(command, seeds.commands, mutators.words, 30.0),
    "schedule-json": Reader(schedule("x.json"), seeds.schedule_jsons, mutators.tree),
    "schedule-csv": Reader(schedule("x.csv"), seeds.schedule_csvs),
    "costs-yaml": Reader(costs("x.yaml"), seeds.cost_yamls, mutators.yaml_tree),
    "costs-json": Reader(costs("x.json"), seeds.cost_jsons, mutators.tree),
    "costs-toml": Reader(costs("x.toml"), seeds.cost_tomls),
    "cost-file": Reader(cost_file, seeds.cost_yamls),
    "profile": Reader(costs("profile.json"), seeds.profiles, mutators.tree),
    "sweep-spec": Reader(spec, seeds.specs, mutators.yaml_tree),
    "sweep-sqlite": Reader(sweep, seeds.sweeps, mutators.database),
    "sweep-resumed": Reader(resumed, seeds.sweeps, mutators.database, 20.0),
    "measured-times": Reader(measured, seeds.measured),
    "cache-entry": Reader(cached, seeds.cache_entries, mutators.tree),
    "model-yaml": Reader(model("x.yaml"), seeds.models, mutators.yaml_tree),
    "hf-config": Reader(model("x/config.json"), seeds.configs, mutators.tree),
    "gpu-yaml": Reader(gpu, seeds.gpus, mutators.yaml_tree),
    "calibration": Reader(calibration("x.yaml"), seeds.calibrations, mutators.yaml_tree),
    "calibration-log": Reader(calibration("x.log"), seeds.logs),
    "calibration-profile": Reader(calibration("x.json"), seeds.profiles, mutators.tree),
    "calibration-rows": Reader(calibration("x.csv"), seeds.tables),
    "chrome-trace": Reader(chrome, seeds.chrome_traces, mutators.tree),
    "chrome-trace-gz": Reader(
        packed_chrome, seeds.packed_chrome_traces, mutators.packed(mutators.tree)
    ),
    **{
        f"trace-{name}": Reader(
            trace(name), seeds.traces(name), mutators.numbered(mutate), 20.0
        )
        for name, mutate in (
            ("table", mutators.mixed), ("primus", mutators.tree), ("ndtimeline", mutators.tree),
            ("victarry", mutators.tree), ("kineto", mutators.tree), ("old-kineto", mutators.tree),
            ("packed-kineto", mutators.packed(mutators.tree)), ("nsys", mutators.database),
            ("own", mutators.tree), ("packed-own", mutators.packed(mutators.tree)),
            ("megatron", mutators.mixed), ("unnamed", mutators.packed(mutators.tree)),
            ("operators", mutators.database), ("app", mutators.tree), ("otlp", mutators.mixed),
            ("console", mutators.mixed), ("jaeger", mutators.tree), ("tensorboard", mutators.raw),
            ("deepspeed", mutators.mixed),
        )
    },
    "diagnosis": Reader(
        diagnosed("table"), seeds.traces("table"), mutators.numbered(mutators.mixed), 30.0
    ),
    **{
        f"request-{route}": Reader(
            request(route), seeds.requests(route),
            mutators.raw if route == "trace" else mutators.tree, 60.0,
        )
        for route in ("simulate", "upload", "export", "plan", "optimize", "trace", "search", "any")
    },
}  # fmt: skip
"""All readers by name."""


def at_home() -> None:
    """Work where no file of the user is: in a folder of this process."""
    os.chdir(folder())
