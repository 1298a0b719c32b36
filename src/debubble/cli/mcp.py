"""``debubble mcp``: commands as tools of the Model Context Protocol, for coding agents.

A tool has the options of its command and answers the command's JSON: one contract for scripts and
agents. Every call is a process of its own that ends in time, within the limits of the playground's
server. Tools read files; they write new ones only, and run no code of files.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from debubble._version import __version__
from debubble.cli.app import COMMANDS, command
from debubble.cli.exit_codes import BAD_INPUT
from debubble.cli.pictures import picture_names
from debubble.core.errors import ParameterError
from debubble.core.units import parse_whole
from debubble.interchange.files import is_function
from debubble.playground import limits

SECONDS = {
    "schedules": limits.SECONDS,
    "simulate": limits.SECONDS,
    "compare": limits.SECONDS,
    "check": limits.SECONDS,
    "export": limits.SECONDS,
    "costs": limits.SECONDS,
    "optimize": limits.SEARCH_SECONDS,
    "plan": limits.SEARCH_SECONDS,
    "trace": limits.TRACE_SECONDS,
    "hang": limits.SECONDS,
}
"""Commands that are tools, and the seconds that a call may take."""

MOST = {
    **limits.MOST, "gpus": limits.MAX_GPUS, "batch": limits.MAX_BATCH, "seq": limits.MAX_SEQUENCE,
}  # fmt: skip
"""Largest sizes."""

OVERHEAD = 5.0
"""Seconds for starting and answering that a search leaves of its limit."""

SEARCHED = ("optimize",)
"""Commands that search up to their --time-limit."""

WRITES = ("optimize", "export")
"""Commands whose --output may name a new file."""

LEFT_OUT = {
    "as_json", "bibtex", "costs_out", "schedule_out", "html", "actions", "from_template", "init",
    "wide", "details", "explain", "titan", "no_cache", "workers",
}  # fmt: skip
"""Options that write files, or are for people at a terminal."""

INSTRUCTIONS = """\
Pipeline-parallel training schedules: list them (schedules), time and memory of one (simulate), the
fastest of several within memory (compare), faults of a schedule or file (check), the fastest
schedule there is (optimize), parallelism of a model on GPUs (plan), causes of a slow run (trace) or
of one that hangs (hang), files and flags for torchtitan, NeMo Automodel and Megatron-LM (export).
Options are those of the command line; answers are those of --json."""


def mcp() -> None:
    """Serve tools to coding agents over the Model Context Protocol.

    The agent's client starts it, configured with {"command": "debubble", "args": ["mcp"]}. Its
    tools are the commands schedules, simulate, compare, check, optimize, plan, trace, hang, costs
    and export, with their options and JSON answers.
    """
    try:
        serving = importlib.import_module("mcp")
    except ImportError:
        raise ParameterError(
            "the server for agents needs mcp; install it with: pip install 'debubble[mcp]'"
        ) from None
    anyio = importlib.import_module("anyio")

    async def run() -> None:
        server = make_server()
        async with serving.stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)


def make_server() -> Any:
    """Return the server."""
    anyio, types = map(importlib.import_module, ("anyio", "mcp.types"))
    server = importlib.import_module("mcp.server.lowlevel")
    turns = anyio.Semaphore(limits.SEARCHES)

    async def list_tools(_context: Any, _parameters: Any) -> Any:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=COMMANDS[name], input_schema=schema_of(name))
                for name in SECONDS
            ]
        )

    async def call_tool(_context: Any, asked: Any) -> Any:
        name = asked.name
        try:
            words = words_of(name, asked.arguments or {})
            async with turns:
                with anyio.fail_after(SECONDS[name]):
                    done = await anyio.run_process(
                        [sys.executable, "-m", "debubble", *words], check=False
                    )
            data = read_answer(done.returncode, done.stdout.decode(), done.stderr.decode())
        except TimeoutError:
            return _text(types, f"{name} took more than {SECONDS[name]:.0f} s; ask for less", True)
        except ParameterError as error:
            return _text(types, str(error), True)
        found = _text(types, json.dumps(data, ensure_ascii=False), False)
        # Revisions of the protocol before 2026 take objects only.
        found.structured_content = data if isinstance(data, dict) else {"items": data}
        return found

    return server.Server(
        "debubble", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools,
        on_call_tool=call_tool,
    )  # fmt: skip


def _text(types: Any, text: str, is_error: bool) -> Any:
    content = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, is_error=is_error)


def options_of(name: str) -> dict[str, Any]:
    """Return the options of a tool, as typer has them, by their flags: --p2p-mode is p2p_mode."""
    module = importlib.import_module(f"debubble.cli.{name}")
    left_out = LEFT_OUT | set(picture_names()) | ({"output"} if name not in WRITES else set())
    return {
        _argument(option): option
        for option in typer.main.get_command(module.app).params
        if option.name not in left_out and not getattr(option, "hidden", False)
    }


def _argument(option: Any) -> str:
    """Return the name that an option has as an argument of a tool."""
    return str(max(option.opts, key=len).removeprefix("--").replace("-", "_"))


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    options = options_of(name)
    return {
        "type": "object",
        "properties": {key: _property(option) for key, option in options.items()},
        "required": [key for key, option in options.items() if option.required],
        "additionalProperties": False,
    }


def _property(option: Any) -> dict[str, Any]:
    about = {"description": option.help or ""}
    if getattr(option, "is_flag", False):
        return {"type": "boolean"} | about
    if _is_list(option):
        return {"type": "array", "items": {"type": "string"}} | about
    if option.metavar in ("N", "S", "SECONDS", "X"):
        return {"type": ["number", "string"]} | about
    return {"type": "string"} | about


def _is_list(option: Any) -> bool:
    return bool(getattr(option, "multiple", False)) or option.nargs != 1


def words_of(name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the command line of a call; a ParameterError where it is none, or too large."""
    if name not in SECONDS:
        raise ParameterError(f"there is no tool '{name}'; there are {', '.join(SECONDS)}")
    options = options_of(name)
    named, bare = [], []
    for key, value in arguments.items():
        if key not in options:
            raise ParameterError(f"{name} has no argument '{key}'; it has {', '.join(options)}")
        option = options[key]
        values = value if _is_list(option) and isinstance(value, list) else [value]
        if getattr(option, "is_flag", False):
            named += [option.opts[0]] * bool(value)
        elif option.param_type_name == "argument":
            bare += [str(each) for each in values]
        else:
            # One word, so that a value is never taken for an option.
            named += [f"{option.opts[0]}={_text_of(each)}" for each in values]
    _check_sizes(arguments)
    if name in SEARCHED and "time_limit" not in arguments:
        named.append(f"--time-limit={SECONDS[name] - OVERHEAD:.0f}")
    return [name, *named, "--json", "--", *bare]


def _text_of(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_sizes(arguments: Mapping[str, Any]) -> None:
    """Refuse what is too large, runs code or writes over a file."""
    actions = 3
    for key, most in MOST.items():
        sizes = [*_sizes(arguments.get(key))]
        if sizes and max(sizes) > most:
            raise ParameterError(f"{key} is {max(sizes):,}; the limit is {most:,}")
        actions *= max(sizes, default=1) if key in limits.MOST else 1
    if actions > limits.MAX_ACTIONS:
        raise ParameterError(
            f"a schedule of up to {actions:,} actions; the limit is {limits.MAX_ACTIONS:,}: use "
            "fewer ranks, microbatches, chunks or iterations"
        )
    for value in arguments.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and is_function(text):
                raise ParameterError(
                    f"'{text}' would run Python; write the schedule to a .csv or .json file"
                )
    output = arguments.get("output")
    if output is not None and Path(str(output)).exists():
        raise ParameterError(f"'{output}' is there already; name a new file")


def _sizes(value: Any) -> Iterable[int]:
    """Return the whole numbers of an argument; the command says what else is wrong."""
    for part in str(value).split(","):
        number = parse_whole(part)
        if number is not None:
            yield number


def read_answer(code: int, out: str, err: str) -> Any:
    """Return what a command printed; a ParameterError with its words where it refused."""
    if code < BAD_INPUT and out:
        return json.loads(out)
    message = "\n".join(line.removeprefix("debubble: ") for line in err.strip().splitlines())
    raise ParameterError(message or f"the command ended with {code}")


app = command(mcp, ["mcp"])
