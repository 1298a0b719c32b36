"""Help of commands: options in panels, of which ``--help`` folds those for special cases."""

from __future__ import annotations

import re
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperOption

from debubble.core.options import Panel

FEW = 14
"""Number of options up to which one list is easier to read than panels."""

ARGUMENTS, OPTIONS, FIGURE, OUTPUT = "Arguments", "Options", "Figure", "Output"
ORDER = (ARGUMENTS, *get_args(Panel), OPTIONS, FIGURE, OUTPUT)
"""Panels from top to bottom; options without one are in `OPTIONS`."""

FOLDED = ("Transfers", "Variation", FIGURE)
NAMED = 5
"""Number of options of a folded panel that are named."""

ALL = "debubble: --help-all"
"""Key in a context's ``meta`` that unfolds all panels."""


class WithPanels(TyperCommand):
    """A command whose help lists its options in panels."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with ``--help-all`` where ``--help`` leaves options out."""
        params = super().get_params(ctx)
        if len(params) > FEW and any(map(_is_folded, params)):
            params.insert(-1, HELP_ALL)
        return params

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then every panel."""
        params = [param for param in self.get_params(ctx) if param.get_help_record(ctx)]
        folds = HELP_ALL in params and ALL not in ctx.meta
        panels: dict[str, list[tuple[str, str]]] = {}
        folded: dict[str, list[str]] = {}
        for param in params:
            if folds and _is_folded(param):
                folded.setdefault(_panel(param), []).append(param.opts[-1])
            else:
                name = _panel(param)
                if len(params) <= FEW and name != ARGUMENTS:
                    name = OPTIONS
                flags, text = param.get_help_record(ctx)
                text = re.sub(r"\[default: \((.*)\)\]$", r"[default: \1]", text)
                panels.setdefault(name, []).append((flags, text))
        # Panels have one column of names, so that texts stand below each other.
        width = max(len(name) for rows in panels.values() for name, _ in rows)
        for panel in ORDER:
            if panel == OUTPUT and folded:
                with formatter.section("More, in --help-all"):
                    for name, flags in folded.items():
                        more = f", … ({len(flags)})" if len(flags) > NAMED else ""
                        formatter.write_text(f"{name}: {', '.join(flags[:NAMED])}{more}")
            if rows := panels.get(panel):
                with formatter.section(panel):
                    formatter.write_dl([(first.ljust(width), text) for first, text in rows])


def _panel(param: Any) -> str:
    """Return the panel that lists a parameter."""
    if param.param_type_name == "argument":
        return ARGUMENTS
    if "--help" in param.opts:
        return OUTPUT
    found: str | None = getattr(param, "rich_help_panel", None)
    return found or OPTIONS


def _is_folded(param: Any) -> bool:
    return _panel(param) in FOLDED


def _show_all(context: Any, _: Any, wanted: bool) -> None:
    if wanted:
        context.meta[ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HELP_ALL = TyperOption(
    param_decls=["--help-all"], help="Show all options and exit.", is_flag=True, is_eager=True,
    expose_value=False, callback=_show_all, rich_help_panel=OUTPUT,
)  # fmt: skip
"""The option that unfolds all panels."""
