"""First failure of a job of several pipelines, in the store of all its ranks.

Ranks of one pipeline may wait for those of another, as in tensor parallelism. When one fails, the
others see a connection that is closed: their message names what happened before.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

KEY = "debubble/failure"

AFTER = 60.0
"""Seconds beyond the timeout of ranks after which a failure is no cause of another."""


class FirstFailure:
    """The latest failure of the job that has no other one as its cause."""

    def __init__(self, store: Any, pipeline: str, timeout: float) -> None:
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        self._store, self._pipeline, self._limit = store, pipeline, timeout + AFTER

    def claim(self, message: str) -> str:
        """Note a failure of this pipeline; return a recent one of another, empty for none."""
        with suppress(Exception):
            before = self._store.get(KEY).decode() if self._store.check([KEY]) else ""
            known = json.loads(before) if before else {"time": 0.0}
            now = time.time()
            if now - known["time"] < self._limit:
                return "" if known["pipeline"] == self._pipeline else str(known["message"])
            own = {"time": now, "pipeline": self._pipeline, "message": message}
            self._store.compare_set(KEY, before, json.dumps(own))
        return ""
