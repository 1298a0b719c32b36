"""Searches that take longer than a request: started, polled, ended with the best so far."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from debubble.playground import limits
from debubble.playground.limits import RefusedError


@dataclass
class Search:
    """A search that a thread runs and requests poll."""

    client: str
    progress: dict[str, Any] = field(default_factory=dict)
    """Progress as the page shows it, set by the thread."""
    began: float = field(default_factory=time.monotonic)
    polled: float = field(default_factory=time.monotonic)
    """Time of the last poll."""
    cancelled: bool = False

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def over(self) -> bool:
        """Return whether to end: it is unwanted, or its time is over."""
        return self.unwanted or self.seconds > limits.SEARCH_SECONDS

    @property
    def unwanted(self) -> bool:
        """Return whether the search was cancelled, or is no longer polled."""
        return self.cancelled or time.monotonic() - self.polled > limits.UNHEARD


Work: TypeAlias = Callable[[Search], bytes]
"""Function for a thread: it sets `progress`, and ends soon when the search is `over`."""


class Searches:
    """Searches by a name that only their client knows."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(limits.SEARCHES, thread_name_prefix="search")
        self._known: dict[str, tuple[Search, Future[bytes]]] = {}

    def start(self, client: str, work: Work) -> str:
        """Start a search and return its name. A client runs one at a time, all together few."""
        now = time.monotonic()
        for name, (search, future) in list(self._known.items()):
            # Answers that were never fetched.
            if future.done() and now - search.polled > limits.UNHEARD:
                del self._known[name]
        running = [search for search, future in self._known.values() if not future.done()]
        if any(search.client == client for search in running):
            raise RefusedError("a search is running already; cancel it, or wait", status=429)
        if len(running) >= limits.SEARCHES:
            raise RefusedError("other searches are running; try again in a minute", status=503)
        name, search = secrets.token_urlsafe(12), Search(client)
        self._known[name] = search, self._pool.submit(work, search)
        return name

    def poll(self, name: str, stop: bool) -> tuple[dict[str, Any], bytes | None]:
        """Return the progress of a search, and its answer (or error) when done; then forget it."""
        if name not in self._known:
            raise RefusedError("this search has ended; start it again", status=410)
        search, future = self._known[name]
        search.polled = time.monotonic()
        search.cancelled |= stop
        if not future.done():
            return {"seconds": search.seconds, **search.progress}, None
        del self._known[name]
        return {}, future.result()
