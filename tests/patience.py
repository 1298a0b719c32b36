"""Limits of waits in tests, which grow with the load of the machine."""

from __future__ import annotations

import os


def patience(seconds: float) -> float:
    """Return a limit that is `seconds` on a quiet machine.

    It grows with the processes that wait for each core, and with ``DEBUBBLE_PATIENCE``.
    """
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * max(1.0, load) * float(os.environ.get("DEBUBBLE_PATIENCE", "1"))
