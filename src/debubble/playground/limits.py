"""Limits of requests, and the error for those that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from debubble.core.errors import DebubbleError

MAX_BODY = 12 << 20
"""Bytes of a request."""

MAX_FILE = 8 << 20
"""Characters of an uploaded file, unpacked."""

WORK = "/api/"
"""Prefix of addresses that compute."""

TRACE = "/api/trace"
"""Address of the requests with traces, which are larger than all others."""

MAX_TRACE = 48 << 20
"""Bytes of a request with traces."""

MAX_TRACE_FILES = 2048
MAX_FOLDERS = 6
MAX_TRACE_UNPACKED = 512 << 20
"""Bytes of all traces of a request, unpacked."""

MAX_TRACED = 400_000
"""Actions of a trace that is diagnosed."""

READING_TRACE = 60.0
"""Seconds in which a request with traces has to arrive."""

MAX_HELD = 96 << 20
"""Bytes of all requests that are being read or answered."""

READING = 10.0
"""Seconds in which a request has to arrive, its head and its body each."""

MAX_SCHEDULES = 24

MOST = {"ranks": 512, "microbatches": 1 << 16, "chunks": 64, "iterations": 256}
"""Largest sizes of a schedule, which the number of actions grows with."""

MAX_ACTIONS = 1_500_000
"""Actions of all schedules of a request together."""

SECONDS = 30.0
"""Seconds that a request may take, its wait for a turn included."""

WAITING = 512
"""Requests that may wait for their turn."""

PER_MINUTE = 600
AT_ONCE = 16
"""Default for requests of one client in a minute and at a time, on a server for others."""

SEARCHES = 2
"""Searches that run at a time, one for each address."""

TRACE_SECONDS = 300.0
"""Time limit of a diagnosis of traces."""

SEARCH_SECONDS = 60.0
"""Time limit of a search, after which the best so far is the answer."""

FASTER_SECONDS = 20.0
"""Time limit of a search for a faster schedule."""

UNHEARD = 5.0
"""Seconds after the last poll at which a search ends."""

MAX_SEARCHED = 100_000
"""Actions of a schedule in a search for a faster one."""

MAX_GPUS = 1 << 16
MAX_BATCH = 1 << 16
MAX_SEQUENCE = 1 << 22
MAX_LAYERS = 512
MAX_MEASURED = 1 << 20
MAX_MODEL = 1 << 20
"""Characters of a model's file."""

CACHE_BYTES = 64 << 20
"""Memory for answers to repeated requests."""


class RefusedError(DebubbleError):
    """An error with an HTTP status as the answer to a request.

    `field` is the field of the form that it is about, empty for none, and `nearest` the nearest
    value of it that works.
    """

    def __init__(
        self, message: str, field: str = "", nearest: Any = None, status: int = 422
    ) -> None:
        super().__init__(message)
        self.field = field
        self.nearest = nearest
        self.status = status

    def to_dict(self) -> dict[str, Any]:
        """Return the error as plain data."""
        return {"message": str(self), "field": self.field, "nearest": self.nearest}

    @classmethod
    def of(cls, error: DebubbleError) -> RefusedError:
        """Return an error as a refused request."""
        return error if isinstance(error, RefusedError) else cls(str(error))


@contextmanager
def about(field: str) -> Iterator[None]:
    """Say of errors inside that they are about a field."""
    try:
        yield
    except DebubbleError as error:
        raise RefusedError(str(error), field) from None
