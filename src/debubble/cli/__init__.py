"""The command line: one module per command."""

from __future__ import annotations

import sys

from debubble.cli.exit_codes import INTERRUPTED


def main() -> None:
    """Run the command line; the entry point of ``debubble``."""
    try:
        from debubble.cli.app import app

        app(prog_name="debubble")
    except KeyboardInterrupt:
        # Before the first command no other handler is there yet.
        print("debubble: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
