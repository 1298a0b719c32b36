"""Inputs to begin with for every reader, valid or nearly so: small, and one for each form."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

import debubble as db
from tests.fuzz import inputs

ROOT = Path(__file__).parents[2]
READING = ("simulate", "check", "compare", "schedules", "costs", "trace")
"""Commands that only read and compute, fast."""
DIGITS = re.compile(r"\d+")

SMALL = (
    ("1f1b", 2, 3, {}), ("zb-v", 2, 4, {}), ("dualpipe", 2, 4, {}), ("interleaved-1f1b", 2, 2, {}),
    ("gpipe", 2, 2, {"iterations": 2}), ("vocab-1f1b-vhalf", 2, 4, {}),
)  # fmt: skip


@cache
def small() -> list[db.Schedule]:
    """A few small schedules of unlike families."""
    found = []
    for name, ranks, microbatches, options in SMALL:
        try:
            found.append(db.make(name, ranks=ranks, microbatches=microbatches, **options))
        except db.DebubbleError:
            continue
    return found


def names() -> list[str]:
    """Schedules that declare options."""
    return inputs.NAMES


def encoded(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


def times() -> list[bytes]:
    return encoded(
        "F=1,I=1,W=1", "F=1/1/2/1,I=1,W=1,O=2.5,p2p=0.1", "F=1,F.2=1.5,I=1,W=1/2,OPT=0.5",
        "microbatch=1/1.2/0.8,F=2,B=4", "embedding.F=1,head.F=1,mtp.F=1,head.W=2",
        "pair.0=1,F=1e-3",
        "activation=2,kept_for_weight=0.5,R=1,kv=0.1", "boundary=1/2,latency=0.1",
        "F=,I", "F = 1 ,",
        ",".join(f"{name}=1" for name in db.Costs.__dataclass_fields__),
    )  # fmt: skip


def changes() -> list[bytes]:
    return encoded(
        "stage3.F*=0.9", "rank2*=1.2", "copy1*=1.1", "gaps=0", "p2p=0", "p2p0-1*=3", "link0-1=3",
        "F+=1", "rank2.gaps*=0", "I=5", "stage0.O=1e-3", "copy.rank2=1",
    )  # fmt: skip


def baselines() -> list[bytes]:
    plan = {"bubble_ratio": 0.2, "step": 1.0}
    data = {
        "bubble_ratio": 0.3, "step": 1.2, "slowdown": {"total": 1.1}, "plan": plan,
        "findings": [{"gain": 0.1}, {"gain": None}],
    }  # fmt: skip
    return [json.dumps(data).encode(), json.dumps(data | {"findings": []}, indent=1).encode()]


def conditions() -> list[bytes]:
    return encoded("bubble>30%", "bubble>+3%", "step>2000ms", "slowdown > 10 %", "gain>5%", "x>1")


def jitters() -> list[bytes]:
    return encoded(
        "normal:3%", "lognormal:5%|100|7|16", "gamma:0.1||3", "normal:3%||||rank2=1.2|stage3=1.2",
        "||||link0-1=3,copy=1.1,copy.rank2=1.2", "times.txt|10", "normal|1|2|3|x=1", "gamma:",
    )  # fmt: skip


def memories() -> list[bytes]:
    return encoded("8", "80GB", "72 GiB", "4/4/3/3", "4GB/4GB", "1e9", "0.5", "sweep", "1.5 KiB/2b")


def options() -> list[bytes]:
    return encoded(
        "group_size=4", "group-size=4|slices=2", "objective=bubbles", "in_flight=2",
        "published=true",
        *(
            f"{option.name}={option.default}"
            for entry in db.schedules()
            for option in entry.options
        ),
    )  # fmt: skip


def lowerings() -> list[bytes]:
    from debubble.lowering.chain import LOWERINGS

    rows = [*LOWERINGS]
    one = ["|".join(row.example if row is this else "" for row in rows) for this in rows]
    return encoded(*one, "|".join(row.example for row in rows), "0,1,4-7|just-in-time|2|full")


def sizes() -> list[bytes]:
    return encoded(
        "8|32|2|1|4|torch|channel", "4|8", "8|32|2", "8|32|1,2|||any|blocking", "-1|0|x", " 8 |+3"
    )


def searched() -> list[bytes]:
    return encoded(
        "recompute=0,1,4-7", "recompute=full", "recompute=free", "placement=0,1,1,0",
        "placement=wave", "effort=0.05", "effort=1e3", "recompute=0-3,2",
    )  # fmt: skip


def held() -> list[bytes]:
    return encoded(
        "pp=16", "schedule=1f1b,zb-v", "layers=7,8,8,9", "recompute=full:3", "recompute=selective",
        "zero=2", "tp=8", "microbatch-size=2", "ep = 4", "chunks=2", "x=1",
    )  # fmt: skip


def plots() -> list[bytes]:
    return encoded(
        "x=ranks y=makespan by=schedule", "x=ranks y=bubble_ratio", "x=schedule,y=makespan",
        "x=ranks y=makespan schedule=1f1b", "x=costs.p2p y=makespan by=ranks", "y=error x=ranks",
    )  # fmt: skip


def cuts() -> list[bytes]:
    return encoded("3/4", "0/1", "10/10", "7/8/8/9")


def figures() -> list[bytes]:
    from dataclasses import fields

    from debubble.view.options import FigureOptions

    number = sum(bool(row.metadata) for row in fields(FigureOptions))
    values = ("3.3in", "84mm", "10:20", "8", "1", "wide", "x")
    return encoded(
        *("|" * at + value for at in range(number) for value in values), "|".join("1" * number)
    )


def cells() -> list[bytes]:
    return encoded(*(word for word in inputs.WORDS if re.search(r"\d[A-Z]", word)), "0F0.3", "12W7")


def range_names() -> list[bytes]:
    return encoded(
        "0F0", "PP:0F1", "1B2 | 0F3", "forward mb 3 stage 1", "stage_1_F_3", "2I1 3W4",
        "(0F3;3B1)OVERLAP_F_B", "backward_step microbatch=2 chunk=1", "1F12345678901234567890",
    )  # fmt: skip


def orders() -> list[bytes]:
    return encoded(*("\n".join(" ".join(row) for row in schedule.rows()) for schedule in small()))


def commands() -> list[bytes]:
    return encoded(
        "simulate 1f1b -p 4 -m 8", "simulate zb-v -p 2 -m 4 --json", "check 1f1b -p 4 -m 8",
        "compare 1f1b gpipe -p 2 -m 4", "simulate 1f1b -p 2 -m 4 --times F=1,I=1,W=2,p2p=0.5",
        "simulate gpipe -p 2 -m 4 --iterations 2 --sync local --p2p-mode blocking", "schedules",
        "check zb-h1 -p 2 -m 4 --memory 2 --transfers eager --sharding fsdp", "schedules --json",
        "simulate interleaved-1f1b -p 2 -m 4 -v 2 --group-size 2 --recompute full", "costs --help",
        "compare 1f1b zb-v -p 2 -m 4 -v 1,2 --memory 4/4", "trace x.json --set p2p=0",
        "simulate 1f1b -p 2 -m 4 --jitter normal:3% --samples 10 --seed 1 --replicas 2",
        "check Schedule1F1B -p 2 -m 4", "simulate x.csv", "simulate x.py:f -p 2 -m 2",
    )  # fmt: skip


def schedule_jsons() -> list[bytes]:
    from debubble.interchange.schedule_json import to_json
    from debubble.lowering.transfers import add_transfers

    found = [to_json(schedule) for schedule in small()]
    return encoded(*found, to_json(add_transfers(small()[0])))


def schedule_csvs() -> list[bytes]:
    return encoded(*(inputs.csv(Random(seed)) for seed in range(8)))


def cost_yamls() -> list[bytes]:
    made = [inputs.cost_text(Random(seed), "yaml") for seed in range(6)]
    files = ("layers.yaml", "pipeoffload.yaml", "classic-latency.yaml")
    return encoded(*made, *((ROOT / "examples" / name).read_text() for name in files))


def cost_jsons() -> list[bytes]:
    return encoded(*(inputs.cost_text(Random(seed), "json") for seed in range(8)))


def cost_tomls() -> list[bytes]:
    return encoded(*(inputs.cost_text(Random(seed), "toml") for seed in range(8)))


def profiles() -> list[bytes]:
    return encoded(*(
        json.dumps(data) for data in (
            {"name": "a profile", "source": "one GPU", "time_unit": "ms", "ranks": 4, "chunks": 5,
             "basis": "action", "times": {"F": [5.0] * 20, "I": 5.0, "W": 4.0, "R": 4.5},
             "memory": {"unit": "bytes", "activation": [1e8] * 20, "kept_for_weight": 0.5}},
            {"times": {"F": 9, "I": 9, "W": 6}, "memory": {"unit": "GB", "activation": 3},
             "layers": {"F": [3, 3], "I": [3, 3.5], "W": [2, 2], "activation": [1, 1],
                        "head": {"F": 12, "I": 12, "W": 8, "activation": 2}}},
        )
    ))  # fmt: skip


def specs() -> list[bytes]:
    files = [path.read_text() for path in sorted((ROOT / "examples/sweeps").glob("*.yaml"))]
    return encoded(
        *files,
        "command: simulate\noptions: {microbatches: 4, costs: costs.yaml}\n"
        "grid:\n  schedule: [1f1b, gpipe]\n  ranks: [2, 3]\n"
        "samples: {count: 3, seed: 1, draw: {costs.p2p: {from: 0.1, to: 1, scale: log}}}\n",
        "command: optimize\ngrid: {ranks: [2], microbatches: [4], memory: [2, 3]}\n",
        '{"command": "compare", "grid": {"ranks": [2, 4]}, "options": {"schedules": ["1f1b"], '
        '"microbatches": 4}}',
    )


SPEC = {
    "command": "simulate", "options": {"microbatches": 2},
    "grid": {"schedule": ["1f1b", "gpipe"], "ranks": [1, 2], "costs.p2p": [0, 0.5]},
}  # fmt: skip
"""A sweep of eight points."""


@cache
def _sweep(folder: str) -> bytes:
    from debubble.sweeps import run, spec_of

    path = Path(folder, "swept.sqlite")
    run(spec_of(SPEC), path, jobs=1)
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA journal_mode = DELETE")
    file.close()
    return path.read_bytes()


def sweeps() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [_sweep(folder)]


@cache
def results() -> Any:
    """Results of a small sweep, which stay in their file."""
    from debubble.sweeps import Results
    from tests.fuzz.readers import written

    return Results.read(written("plotted.sqlite", sweeps()[0]))


def measured() -> list[bytes]:
    return encoded("1 1.1 0.9\n1.2, 0.95 # warm\n", "10\n11\n9.5\n", "# nothing\n", "1e-3 2e-3")


@cache
def cached_problem(folder: Path) -> tuple[Any, Path]:
    """A problem, and the file of its entry."""
    from debubble.optimize import cache as kept
    from tests.optimize.problems import problem

    asked = [problem(2, 4, 2.0)]
    place = folder / "debubble" / "optimize"
    place.mkdir(parents=True, exist_ok=True)
    return asked, place / f"{kept.key(asked)}.json"


def cache_entries() -> list[bytes]:
    from debubble.optimize.cache import code

    schedule = db.make("zb-v", ranks=2, microbatches=4)
    data = {"bound": 24.0, "budget": "1", "seconds": 0.1, "found_by": "zb-v", "solver": "",
            "code": code(), "layers": [], "schedule": schedule.to_dict()}  # fmt: skip
    return encoded(json.dumps(data))


# Of the planner.


@cache
def planned() -> Any:
    from tests.planner.published import llama_70b

    return llama_70b()


def _models(ending: str) -> list[bytes]:
    folder = resources.files("debubble.planner.model") / "shipped"
    return [
        (folder / item.name).read_bytes()
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.endswith(ending)
    ]


def models() -> list[bytes]:
    return [
        *_models(".yaml"),
        b"name: x\nhidden: 64\nvocabulary: 100\nattention: {heads: 4, kv_heads: 2, head_dim: 16}\n"
        b"mlp: {size: 128}\nlayers:\n- {count: 2}\n- {count: 1, experts: {count: 4, active: 2, "
        b"size: 32}}\n",
    ]


def configs() -> list[bytes]:
    return _models(".json")


def gpus() -> list[bytes]:
    return encoded(
        "base: h100\nnic: 25e9\nnode: 4\n", "base: mi300x\nname: mine\nattention: [1e14, 1e14]\n",
        "bf16: 1e15\nfp8: 0\nmemory: 8e10\nbandwidth: 2e12\nmultiprocessors: 108\nlink: 3e11\n"
        "nic: 2.5e10\nhost: 3e10\n",
    )  # fmt: skip


LINE = (
    " iteration {n}/100 | consumed samples: 1280 | elapsed time per iteration (ms): 14660.0 |"
    " global batch size: 128 | lm loss: 1.0E+01 |"
)


def calibrations() -> list[bytes]:
    step = "{tp: 4, cp: 2, pp: 4, chunks: 5, gpus: 64, batch: 128, seconds: 14.66}"
    return encoded(
        f"steps:\n- {step}\n", f"steps:\n- {step}\n- {step.replace('14.66', '20')}\n",
        f"steps:\n- {{pp: 4, tp: 4, gpus: 16, batch: 128, log: '{LINE.format(n=9)}'}}\n",
        "steps:\n- {pp: 2, tp: 8, gpus: 32, batch: 64, seconds: 9, schedule: 1f1b, layers: [40,"
        " 40], recompute: full, zero: 1, sequence: 4096, precision: fp8, microbatch_size: 1}\n",
    )  # fmt: skip


def logs() -> list[bytes]:
    return encoded("\n".join(LINE.format(n=n) for n in range(8)), LINE.format(n=1))


def tables() -> list[bytes]:
    from tests.planner.rows import ROW

    return encoded("\n".join((",".join([*ROW, "calibrate"]), ",".join([*ROW.values(), "yes"]),
                              ",".join([*ROW.values(), ""]))))  # fmt: skip


# Traces.


@cache
def chrome_traces() -> list[bytes]:
    from debubble.interchange.trace_events import run_trace, trace_text

    found = ["".join(trace_text(db.simulate(schedule))) for schedule in small()[:3]]
    schedule = small()[0]
    timeline = db.simulate(schedule)
    both = dict.fromkeys(("predicted", "measured"), (timeline.start, timeline.end))
    found.append("".join(run_trace(schedule, both)))
    return encoded(*found)


def packed_chrome_traces() -> list[bytes]:
    return [gzip.compress(content, 1) for content in chrome_traces()]


def _write(name: str, place: Path) -> None:
    from tests.diagnosis.readers import made, made_kineto, made_megatron, made_nsys
    from tests.diagnosis.readers.test_debubble_trace import save
    from tests.diagnosis.readers.test_megatron_timers import log
    from tests.diagnosis.readers.test_sums import ARGUMENTS, DEEPSPEED, TIMES

    run = made.run("1f1b", microbatches=2)
    one = made.run("1f1b", microbatches=2, steps=1)
    writers: dict[str, Callable[[], None]] = {
        "table": lambda: made.write_table(run, place / "run.csv"),
        "primus": lambda: made.write_primus(run, place, numbered=True),
        "ndtimeline": lambda: made.write_ndtimeline(run, place / "run.json"),
        "victarry": lambda: made.write_victarry(one, place),
        "kineto": lambda: made_kineto.write(run, place, suffix=".json"),
        "packed-kineto": lambda: made_kineto.write(run, place, suffix=".json.gz"),
        "old-kineto": lambda: made_kineto.write(run, place, suffix=".json", old=True),
        "nsys": lambda: made_nsys.write(run, place / "run.sqlite", [0, 1], base=10**18),
        "own": lambda: save(one, place / "run.json"),
        "packed-own": lambda: save(one, place / "run.json.gz"),
        "megatron": lambda: made.write(place / "run.log", log()),
        "unnamed": lambda: made_megatron.write_unnamed_kineto(run, place),
        "operators": lambda: made_nsys.write(
            run, place / "run.sqlite", [0, 1], base=10**18, names="operators"
        ),
        "app": lambda: made_megatron.write_megatron_app(run, place / "run.json"),
        "otlp": lambda: made_megatron.write_spans(run, place, "otlp"),
        "console": lambda: made_megatron.write_spans(run, place, "console"),
        "jaeger": lambda: made_megatron.write_spans(run, place, "jaeger"),
        "tensorboard": lambda: made_megatron.write_tensorboard(place / "events", TIMES, ARGUMENTS),
        "deepspeed": lambda: made.write(place / "run.log", DEEPSPEED),
    }
    writers[name]()


@cache
def trace_folder(name: str, home: Path) -> tuple[Path, dict[str, bytes]]:
    """A folder with the files of a run, and what is in them."""
    place = home / f"trace-{name}"
    place.mkdir(parents=True, exist_ok=True)
    _write(name, place)
    found = {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file()
    }
    return place, found


def traces(name: str) -> Callable[[], list[bytes]]:
    def made() -> list[bytes]:
        with tempfile.TemporaryDirectory() as home:
            _, files = trace_folder(name, Path(home))
        return [bytes([number]) + files[path] for number, path in enumerate(sorted(files))][:8]

    return made


# Requests.


def requests(route: str) -> Callable[[], list[bytes]]:
    def made() -> list[bytes]:
        from tests.playground.test_traces import body_of

        state = {
            "schedules": [{"name": "1f1b"}, {"name": "zb-v", "chunks": 2, "options": {}}],
            "ranks": 2, "microbatches": 4, "memory": 4.0, "mode": "channel", "recompute": "full",
            "costs": {"basis": "rank", "F": 1.5, "I": [1.0, 2.0], "W": 1.0, "p2p": 0.1},
        }  # fmt: skip
        file = {"name": "x.json", "text": schedule_jsons()[0].decode()}
        question = {"model": "llama-3.2-1b", "gpu": "h100", "gpus": 4, "batch": 8, "sequence": 2048,
                    "tp": 1, "pp": 2, "schedule": "1f1b", "why": "pp=1"}  # fmt: skip
        csv = body_of({"run/x.csv": traces("table")()[0][1:]})
        bodies: dict[str, list[Any]] = {
            "simulate": [state, {"schedules": [{"file": file}], "ranks": 2, "microbatches": 3},
                         {"schedules": [{"name": "gpipe"}], "iterations": 2, "costs": {
                             "file": {"name": "c.yaml", "text": cost_yamls()[0].decode()}}}],
            "upload": [file, {"name": "c.yaml", "text": cost_yamls()[-1].decode()},
                       {"name": "x.csv", "text": schedule_csvs()[0].decode()},
                       {"name": "t.json", "text": chrome_traces()[0].decode()}],
            "export": [{"state": state, "format": form, "index": 1} for form in
                       ("torch-csv", "torch-csv-comms", "json", "chrome-trace", "html")],
            "plan": [question, question | {"measured": {"name": "x.log", "text": LINE}},
                     question | {"model": "", "file": {"name": "config.json",
                                 "text": configs()[-1].decode()}}],
            "optimize": [state | {"schedules": [{"name": "1f1b"}], "recompute": None,
                                  "microbatches": 2}],
            "trace": [csv, body_of({"a.json": b"{", "b/c.csv": b""})],
            "search": [{"search": "x"}, {"search": "x", "stop": True}],
            "any": [state, file, question],
        }  # fmt: skip
        return [
            body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies[route]
        ]

    return made
