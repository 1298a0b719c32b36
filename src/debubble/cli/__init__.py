"""The command line: one module per command."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended."""


def main() -> None:
    """Run the command line; the entry point of ``debubble``."""
    try:
        from debubble.cli.app import app

        app(prog_name="debubble")
    except KeyboardInterrupt:
        # Before the first command there is nobody else to say so.
        print("debubble: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
