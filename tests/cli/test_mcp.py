"""``debubble mcp``: a real client calls its tools."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.cli.mcp import LEFT_OUT, SECONDS, options_of, schema_of, words_of
from debubble.core.errors import ParameterError

Run = Callable[..., Any]
BAD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"


def test_tools_are_commands_with_their_options() -> None:
    for name in SECONDS:
        schema = schema_of(name)
        assert set(schema["properties"]) == set(options_of(name))
        assert not set(schema["properties"]) & LEFT_OUT
        assert all(one["description"] or key in schema["required"] or key == "model"
                   for key, one in schema["properties"].items())  # fmt: skip
    assert "title" not in options_of("compare")
    assert "output" not in options_of("compare")
    assert schema_of("simulate")["required"] == ["schedule"]


def test_arguments_are_called_as_options_of_the_command_line() -> None:
    for name in SECONDS:
        for key, option in options_of(name).items():
            assert f"--{key.replace('_', '-')}" in option.opts or option.opts == [key]
    given = {"schedule": "1f1b", "as_late_as_possible": True}
    assert "--as-late-as-possible" in words_of("simulate", given)


def test_arguments_are_one_command_line() -> None:
    given = {
        "schedules": ["1f1b", "zb-h1"],
        "ranks": 4,
        "microbatches": "8,16",
        "slow": ["rank=1.1"],
    }
    assert words_of("compare", given) == [
        "compare", "--ranks=4", "--microbatches=8,16", "--slow=rank=1.1", "--json", "--",
        "1f1b", "zb-h1",
    ]  # fmt: skip
    assert "--time-limit=55" in words_of("optimize", {"ranks": 2, "microbatches": 2})


@pytest.mark.parametrize(("name", "given", "words"), [
    ("simulate", {"schedule": "1f1b", "rank": 4}, "simulate has no argument 'rank'; it has"),
    ("delete", {}, "there is no tool 'delete'"),
    ("simulate", {"schedule": "1f1b", "ranks": 4096}, "ranks is 4,096; the limit is 512"),
    ("simulate", {"schedule": "1f1b", "ranks": 512, "microbatches": 65536}, "100,663,296 actions"),
    ("simulate", {"schedule": "x.py:order"}, "'x.py:order' would run Python"),
    ("export", {"schedule": "1f1b", "output": sys.executable}, "is there already; name a new file"),
])  # fmt: skip
def test_what_is_too_much_is_refused(name: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        words_of(name, given)


async def session(folder: Path) -> dict[str, Any]:
    from mcp import Client, StdioServerParameters, stdio_client

    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "debubble", "mcp"], cwd=folder, env=dict(os.environ)
    )
    found: dict[str, Any] = {}
    async with Client(stdio_client(parameters)) as client:
        found["tools"] = [tool.name for tool in (await client.list_tools()).tools]
        for key, (name, given) in CALLS.items():
            found[key] = await client.call_tool(name, given)
    return found


SIZES = {"ranks": 2, "microbatches": 4}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "simulate": ("simulate", {"schedule": "1f1b", **SIZES, "times": "F=1,B=2"}),
    "check": ("check", {"schedules": ["bad.csv"]}),
    "optimize": ("optimize", {**SIZES, "time_limit": 2, "output": "best.csv"}),
    "again": ("optimize", {**SIZES, "output": "best.csv"}),
    "wrong": ("simulate", {"schedule": "1f2b", **SIZES}),
}


@pytest.mark.slow
@pytest.mark.processes
def test_a_client_gets_what_scripts_get(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the official SDK; install debubble[mcp]")
    (tmp_path / "bad.csv").write_text(BAD)
    found = asyncio.run(session(tmp_path))
    assert found["tools"] == list(SECONDS)
    words = ["simulate", "1f1b", "-p", 2, "-m", 4, "--times", "F=1,B=2", "--json"]
    assert found["simulate"].structured_content == run(*words).data
    assert json.loads(found["simulate"].content[0].text) == run(*words).data
    problems = found["check"].structured_content["problems"]
    assert [each["code"] for each in problems] == ["missing"]
    best = db.load(tmp_path / "best.csv")
    assert db.simulate(best).makespan == found["optimize"].structured_content["makespan"]
    assert (found["again"].is_error, found["wrong"].is_error) == (True, True)
    assert "did you mean '1f1b'" in found["wrong"].content[0].text
