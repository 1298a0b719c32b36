"""Calls of other ranks that are made to fail, so that the thread that waits in them goes on."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import _world  # there is no public list of groups

MOMENT = timedelta(milliseconds=1)

TAG = 99
"""Tag that no message has."""


def abort_gloo(gloo: Any, rank: int, size: int) -> None:
    """Close the connections of a gloo group: calls that wait there, and later ones, raise.

    That holds on this rank and its peers. ``Backend.abort()`` does nothing for gloo; a receive that
    comes too late closes all connections of its group.
    """
    if size > 1:
        with suppress(RuntimeError):
            gloo.recv([torch.empty(1)], (rank + 1) % size, TAG).wait(MOMENT)


def abort_group(group: dist.ProcessGroup) -> None:
    """Make calls of a process group fail, whichever backends it has."""
    with suppress(RuntimeError):
        group.abort()
    with suppress(RuntimeError):
        host = group._get_backend(torch.device("cpu"))
        if host.name() == "gloo":
            abort_gloo(host, group.rank(), group.size())


def abort_all_groups() -> None:
    """Make calls of all process groups of this process fail."""
    for group in list(_world.pg_map):
        abort_group(group)
