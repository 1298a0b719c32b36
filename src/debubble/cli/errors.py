"""Errors as one or two lines on standard error, and an exit code."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from debubble.cli.exit_codes import BAD_INPUT, BROKEN_PIPE, INTERNAL, INTERRUPTED
from debubble.core.errors import DebubbleError


def require_torch() -> None:
    """Refuse to go on without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        raise DebubbleError("running needs PyTorch; pip install 'debubble[run]'")


@contextmanager
def clean_exit() -> Iterator[None]:
    """Turn every error into a message and an exit code; with DEBUBBLE_DEBUG set, bugs go through.

    Bad usage and bad input exit with 2, a bug of debubble with 70, Ctrl-C and a closed pipe like
    programs that these signals end.
    """
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without "−" must not be the end of a report.
            stream.reconfigure(errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn  # type: ignore[assignment] # takes what it does not use
            yield
    except typer.Exit:
        raise
    except DebubbleError as error:
        _leave(str(error), BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        _leave("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Python flushes standard output once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except OSError as error:
        where = f"'{error.filename}': " if error.filename else ""
        _leave(f"{where}{error.strerror or error}", BAD_INPUT)
    except MemoryError:
        _leave("not enough memory for this size; use fewer ranks or microbatches", BAD_INPUT)
    except Exception as error:
        _report(error)


def _warn(message: Warning | str, *_place: object) -> None:
    """Print a warning without its place in the source."""
    print(f"debubble: warning: {message}", file=sys.stderr)


def _open_closed() -> None:
    """Write to nowhere where the caller closed standard output or standard error."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            # Files opened later must not get the number, or messages would end up in them.
            opened = os.open(os.devnull, os.O_WRONLY)
            while opened < number:
                opened = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(opened, "w", encoding="utf-8", errors="replace"))


def _report(error: Exception) -> None:
    """Exit after an error that is not debubble's own: typer's for bad usage, or a bug."""
    describe = getattr(error, "format_message", None)
    if describe is not None:
        context = getattr(error, "ctx", None)
        path = getattr(context, "command_path", "debubble")
        text = str(describe()).rstrip(".")
        _leave(f"{text[:1].lower()}{text[1:]}; see {path} --help", BAD_INPUT)
    if os.environ.get("DEBUBBLE_DEBUG"):
        raise error
    _leave(
        f"internal error: {type(error).__name__}: {error}\n"
        "this is a bug; please report it with the output under DEBUBBLE_DEBUG=1",
        INTERNAL,
    )


def _leave(message: str, code: int) -> None:
    print(f"debubble: {message}", file=sys.stderr)
    sys.exit(code)
