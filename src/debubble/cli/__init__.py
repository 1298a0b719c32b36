"""The command line: one module per command."""

from __future__ import annotations

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended."""


def main() -> None:
    """Run the command line; the entry point of ``debubble``."""
    try:
        from debubble.cli.app import app
    except KeyboardInterrupt:  # while modules load; later ones are for the application
        raise SystemExit(INTERRUPTED) from None
    app(prog_name="debubble")
