"""A process that does parts of the work of another, which :mod:`.processes` starts and ends.

It reads a function and what to give it from its standard input, and writes what that returns to
its standard output, until there is no more. Values are pickled; the arrays in them follow as they
are, so that no byte of them is copied on the way but into and out of the pipe.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from debubble.diagnosis.readers.stream import LeftOut, keep_freed_memory

GREETING = b"debubble reads here\n"
"""What a worker writes first; whatever writes another thing is none."""

_COUNT = struct.Struct("<Q")


def send(file: IO[bytes], value: Any) -> None:
    """Write a value: how many pieces it has, how long they are, and the pieces."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    pieces = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    file.write(_COUNT.pack(len(pieces)))
    file.write(struct.pack(f"<{len(pieces)}Q", *(piece.nbytes for piece in pieces)))
    for piece in pieces:
        file.write(piece)
    file.flush()


def receive(file: IO[bytes]) -> Any:
    """Read a value.

    Raises
    ------
    EOFError
        When there is none, or the other end broke off within it.
    """
    (count,) = _COUNT.unpack(_exactly(file, _COUNT.size))
    lengths: Sequence[int] = struct.unpack(f"<{count}Q", _exactly(file, count * _COUNT.size))
    data, *buffers = [_exactly(file, length) for length in lengths]
    return pickle.loads(data, buffers=buffers)


def _exactly(file: IO[bytes], length: int) -> memoryview:
    """So many bytes, in memory that can be written to."""
    found = np.empty(length, np.uint8).data
    if length and file.readinto(found) < length:  # type: ignore[attr-defined]
        raise EOFError
    return found


def work() -> None:
    """Do what is asked until the other end is closed."""
    # Who pressed Ctrl-C meant the process that started this one, which ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What anything prints must not get between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    keep_freed_memory()
    try:
        replies.write(GREETING)
        replies.flush()
        while True:
            do, task = receive(sys.stdin.buffer)
            left_out = LeftOut()
            try:
                reply = do(task, left_out), left_out
            except Exception:
                # Who asked does it again, and meets the same.
                reply = None
            send(replies, reply)
    except (EOFError, OSError):
        # Nobody asks any more; what is left in the pipe's buffer is for nobody either.
        os._exit(0)


if __name__ == "__main__":
    work()
