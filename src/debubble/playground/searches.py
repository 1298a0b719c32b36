"""Searches that take longer than a request: started, asked after, ended with the best so far."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any, TypeAlias

from debubble.playground import limits
from debubble.playground.limits import RefusedError


@dataclass
class Search:
    """One search, as the thread that runs it and the requests that ask after it see it."""

    client: str
    progress: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    asked: Event = field(default_factory=Event)

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.began

    def over(self) -> bool:
        """Whether to end: it was cancelled, its time is over, or nobody asks after it."""
        return self.unwanted or self.seconds > limits.SEARCH_SECONDS

    @property
    def unwanted(self) -> bool:
        """Whether it was cancelled, or nobody asks after it."""
        return self.asked.is_set() or time.monotonic() - self.heard > limits.UNHEARD


Work: TypeAlias = Callable[[Search], bytes]
"""Runs in a thread: says in `progress` how far it is, ends soon when it is `over`."""


class Searches:
    """Searches by a name that only those know who started them."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(limits.SEARCHES, thread_name_prefix="search")
        self._known: dict[str, tuple[Search, Future[bytes]]] = {}

    def start(self, client: str, work: Work) -> str:
        """Start a search; its name. One of an address runs at a time, and few in all."""
        self._forget()
        running = [search for search, future in self._known.values() if not future.done()]
        if any(search.client == client for search in running):
            raise RefusedError("a search is running already; cancel it, or wait", status=429)
        if len(running) >= limits.SEARCHES:
            raise RefusedError("other searches are running; try again in a minute", status=503)
        name, search = secrets.token_urlsafe(12), Search(client)
        self._known[name] = search, self._pool.submit(work, search)
        return name

    def look(self, name: str, stop: bool) -> tuple[dict[str, Any], bytes | None]:
        """How far a search is, and its answer, or error, when it is done; then it is forgotten."""
        if name not in self._known:
            raise RefusedError("this search has ended; start it again", status=410)
        search, future = self._known[name]
        search.heard = time.monotonic()
        if stop:
            search.asked.set()
        if not future.done():
            return {"seconds": search.seconds, **search.progress}, None
        del self._known[name]
        return {}, future.result()

    def _forget(self) -> None:
        """Forget answers that nobody has fetched."""
        now = time.monotonic()
        for name, (search, future) in list(self._known.items()):
            if future.done() and now - search.heard > limits.UNHEARD:
                del self._known[name]
