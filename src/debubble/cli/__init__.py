"""The command line: one module per command."""

from __future__ import annotations

import gc
import sys

from debubble.cli.exit_codes import INTERRUPTED

RARELY = 200_000
"""New objects after which Python looks for garbage; most of what a command makes is none, and large
searches make many."""


def main() -> None:
    """Run the command line; the entry point of ``debubble``."""
    gc.set_threshold(RARELY)
    try:
        from debubble.cli.app import app

        app(prog_name="debubble")
    except KeyboardInterrupt:
        # Before the first command no other handler is there yet.
        print("debubble: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
