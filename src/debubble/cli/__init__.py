"""The command line: one module per command."""

from __future__ import annotations


def main() -> None:
    """Run the command line; the entry point of ``debubble``."""
    from debubble.cli.app import app

    app(prog_name="debubble")
