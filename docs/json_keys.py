"""The keys of every command's JSON, with types and examples, for the page on scripts."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tables import table
from typer.testing import CliRunner

import debubble as db
from debubble.cli.app import app as program

ANSWERS = Path(__file__).with_name("answers")
"""Answers about jobs, machines and databases: of each list, the first two elements."""

SCRIPTED = {
    "schedules": "zb-v",
    "simulate": "zb-v -p 4 -m 8",
    "compare": "1f1b zb-v -p 4 -m 8 --memory 4",
    "optimize": "-p 2 -m 4 --time-limit 1",
    "check": "1f1b -p 4 -m 8 --memory 2",
    "export": "zb-v -p 4 -m 8 --to torch-csv",
    "plan": "llama-3.1-8b --gpu h100 --gpus 8 --batch 16 --seq 4096 --schedule 1f1b --tp 4 --cp 1",
    "trace": "run.csv",
    "costs": "",
    "words": "bubble",
}
"""Questions whose answers show the JSON of commands."""


def write_contracts(page: Path) -> None:
    """Put the keys of every command's JSON into the page."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("run.csv").write_text(a_run(), encoding="utf-8")
        for name, words in SCRIPTED.items():
            call = [name, *words.split(), "--json"]
            shown = CliRunner().invoke(program, call, env={"XDG_CACHE_HOME": folder}).stdout
            lines += contract(call, json.loads(shown))
    for name in sorted(path.stem for path in ANSWERS.glob("*.json")):
        asked, answer = stored(name)
        lines += contract([*asked.split(), "--json"], answer)
    text = page.read_text(encoding="utf-8").replace("<!-- CONTRACTS -->", "\n".join(lines))
    page.write_text(text, encoding="utf-8")


def contract(call: list[str], answer: Any) -> list[str]:
    """Return the section of a command."""
    heads = ["key", "type", "for example"]
    shown = f"`debubble {' '.join(call)}`"
    return [f"### {call[0]}", "", shown, "", *table(heads, [*keys_of(answer)]), ""]


def stored(name: str) -> tuple[str, Any]:
    """Return the question and the answer of a command whose answer is kept."""
    found = json.loads((ANSWERS / f"{name}.json").read_text(encoding="utf-8"))
    return found["asked"], found["answer"]


def a_run() -> str:
    """The times of a run, for the trace of the contracts."""
    timeline = db.simulate(db.make("1f1b", ranks=2, microbatches=4), db.Costs(F=10, B=20))
    cells = [(rank, cell) for rank, row in enumerate(timeline.schedule.rows()) for cell in row]
    times = zip(cells, timeline.start, timeline.end, strict=True)
    rows = [f"{rank},{cell},{start / 1000},{end / 1000},0" for (rank, cell), start, end in times]
    return "\n".join(["rank,action,start,end,step", *rows])


TYPES = {dict: "object", list: "list", str: "text", bool: "boolean", int: "number",
         float: "number", type(None): "null"}  # fmt: skip
FREE_KEYS = ("costs", "options", "times", "packages", "grid")
"""Objects whose keys depend on the question."""


def keys_of(data: Any, path: str = "", depth: int = 3) -> Iterator[tuple[object, ...]]:
    """The keys of JSON as rows: path, type and example, down to some depth."""
    if isinstance(data, list):
        if data and isinstance(data[0], dict) and depth:
            merged = {key: value for each in reversed(data) for key, value in each.items()}
            yield from keys_of(merged, f"{path}[].", depth - 1)
        return
    for key, value in data.items():
        example = "" if isinstance(value, dict | list) else json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and value and not isinstance(value[0], dict | list):
            example = json.dumps(value[:3], ensure_ascii=False)
        shown = example if len(example) <= 60 else f"{example[:57]}…"
        yield f"`{path}{key}`", TYPES[type(value)], f"`{shown}`" if shown else ""
        if isinstance(value, dict) and key not in FREE_KEYS and depth:
            yield from keys_of(value, f"{path}{key}.", depth - 1)
        elif isinstance(value, list):
            yield from keys_of(value, f"{path}{key}", depth)
