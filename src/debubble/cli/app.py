"""The ``debubble`` command: imports a command's module when it is needed, and reports errors."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from debubble._version import __version__
from debubble.cli.errors import clean_exit
from debubble.cli.panels import WithPanels
from debubble.core.command import run_as
from debubble.core.errors import ParameterError, did_you_mean

COMMANDS = {
    "schedules": "List schedules, or explain one.",
    "simulate": "Simulate the time and memory of a schedule.",
    "draw": "Draw schedules or traces, in the terminal or a file.",
    "compare": "Compare schedules on your costs and memory.",
    "optimize": "Search for the fastest schedule within memory.",
    "check": "Check that schedules are complete and cannot deadlock.",
    "export": "Export a schedule for other programs.",
    "run": "Run a schedule on PyTorch; verify gradients and time.",
    "profile": "Measure the time and memory of a model's stages.",
    "trace": "Find out why a run is slower than planned.",
    "hang": "Find out which rank a hanging job waits for.",
    "serve": "Try schedules in a browser.",
    "costs": "Check a cost file, start a new one, or list its keys.",
    "plan": "Plan the training of a model on a cluster.",
    "words": "Explain the terms and numbers in the output.",
    "sweep": "Repeat a command over a grid of options.",
    "mcp": "Serve tools to coding agents over the Model Context Protocol.",
    "doctor": "Report what is installed, what works, and how fast it is.",
}
"""Commands in the order of the help, each a module of this package, with its line there."""

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

INTRODUCTION = """Generate, check, simulate, draw, compare and run pipeline-parallel schedules."""

EPILOG = """\b
Examples:
  debubble schedules                              list them
  debubble compare gpipe 1f1b zb-h1 -p 8 -m 32    find the fastest
  debubble draw 1f1b -p 4 -m 8                    draw one
  debubble run 1f1b -p 4 -m 8                     verify its gradients on PyTorch
  debubble serve                                  try them in a browser

SCHEDULE is a registered name, a .csv or .json file, or path/file.py:function.
"""


class Commands(TyperGroup):
    """A group that imports a command when it is used; the others cost nothing."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is typer's
        """Return the names of all commands."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - likewise
        """Write a line for every command, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - likewise
        """Import a command."""
        if cmd_name not in COMMANDS:
            raise ParameterError(
                f"unknown command '{cmd_name}'; {did_you_mean(cmd_name, COMMANDS)}"
            )
        module = importlib.import_module(f"debubble.cli.{cmd_name}")
        return typer.main.get_command(module.app)

    def invoke(self, ctx: Any) -> Any:
        """Run a command and flush its output."""
        with clean_exit():
            result = super().invoke(ctx)
            _flush()
            return result

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line and exit with its code."""
        with clean_exit():
            words = args[0] if args else extra.get("args")
            with run_as(sys.argv[1:] if words is None else words):
                code = super().main(*args, **extra | {"standalone_mode": False})
            _flush()
        sys.exit(code if isinstance(code, int) else 0)


def _flush() -> None:
    if sys.stdout is not None:  # None where the caller closed it
        sys.stdout.flush()


def command(
    function: Callable[..., None],
    examples: Iterable[str],
    bare: Mapping[str, str] | None = None,
    several: Iterable[str] = (),
) -> typer.Typer:
    """Make an application of one command, whose help ends with examples.

    Parameters
    ----------
    bare
        Options that may stand without a file, and their value then.
    several
        Options that take all following words of the form KEY=VALUE.
    """

    class WithBare(WithPanels):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            words = _joined(_filled(_current(args), bare or {}), several)
            return list(super().parse_args(ctx, words))

    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    lines = "\n".join(f"  debubble {example}" for example in examples)
    register = single.command(
        cls=WithBare, epilog=f"\b\nExamples:\n{lines}", context_settings=SETTINGS
    )
    register(function)
    return single


FORMER = {"--normalise": "--normalize", "--order-out": "--schedule-out"}
"""Options by the names that they had, which work until 0.3."""


def _current(words: Iterable[str]) -> list[str]:
    """Return the words, with options by the names that they have now."""
    found = []
    for word in words:
        option, *value = word.split("=", 1)
        if option in FORMER:
            typer.echo(f"debubble: {option} is deprecated; use {FORMER[option]}", err=True)
            word = "=".join([FORMER[option], *value])
        found.append(word)
    return found


def _filled(words: Iterable[str], bare: Mapping[str, str]) -> list[str]:
    """Return the words, with a value for options that stand without a file.

    The next word is a file when it has an ending, as no name of a schedule has.
    """
    words = list(words)
    found = []
    for word, after in zip(words, [*words[1:], "-"], strict=False):
        alone = after.startswith("-") or not Path(after).suffix or ".py:" in after
        found.append(f"{word}={bare[word]}" if word in bare and alone else word)
    return found


def _joined(words: Iterable[str], several: Iterable[str]) -> list[str]:
    """Return the words, with the KEY=VALUE words after each of `several` joined to one."""
    found: list[str] = []
    option = ""
    for word in words:
        if option and "=" in word and not word.startswith("-"):
            found[-1] += f" {word}" if found[-1] != option else f"={word}"
            continue
        option = word if word in several else ""
        found.append(word)
    return found


app = typer.Typer(
    cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings=SETTINGS, help=INTRODUCTION, epilog=EPILOG,
)  # fmt: skip


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"debubble {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
