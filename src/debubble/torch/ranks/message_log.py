"""Log of a rank's messages in the running step, and dumps of it where nothing moves.

Dumps have the shape of PyTorch's Flight Recorder, version 2.10, which itself records point-to-point
calls of NCCL alone. 'debubble hang' reads both.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from debubble.core.atomic_write import write_atomically
from debubble.core.schedule import Schedule
from debubble.torch.ranks.process_group import Ranks

SCHEDULE = "schedule.json"
"""File with the schedule, next to the dumps."""

MEETING = "debubble:meeting"
"""Name of an entry for a call in which all ranks meet; only ranks that wait in it have one."""


@dataclass(eq=False, slots=True)
class LoggedMessage:
    """A send or receive of one action, with all its tensors."""

    sends: bool
    peer: int
    forms: list[tuple[torch.Size, torch.dtype]]
    """Shapes and types of the tensors; empty while a receive does not know what comes."""
    created: int
    """Time in ns since 1970."""
    done: bool = False


@dataclass(eq=False, slots=True)
class MessageLog:
    """The messages of a step in the order of posting."""

    messages: list[LoggedMessage] = field(default_factory=list)
    whole: bool = True
    """Whether it is a step with backwards, as the schedule has them."""

    def post(self, sends: bool, peer: int, tensors: Sequence[Tensor]) -> LoggedMessage:
        """Add a message."""
        message = LoggedMessage(
            sends, peer, [(tensor.shape, tensor.dtype) for tensor in tensors], time.time_ns()
        )  # fmt: skip
        self.messages.append(message)
        return message

    def begin(self, *, whole: bool) -> None:
        """Begin a step."""
        self.messages.clear()
        self.whole = whole


class Whereabouts(NamedTuple):
    """Place of a rank in its program."""

    action: str
    """Empty outside of steps, and where all ranks meet."""
    busy: bool
    """Whether it computes."""
    meets: bool
    """Whether it waits until all ranks are there."""


@dataclass(frozen=True, eq=False)
class HangDumps:
    """Writer of a rank's dumps."""

    rank: int
    """Rank of the schedule."""
    ranks: Sequence[int]
    """Global ranks of the pipeline."""
    log: MessageLog
    schedule: Schedule
    """The schedule that runs."""

    @classmethod
    def of(cls, ranks: Ranks, log: MessageLog, schedule: Schedule) -> HangDumps:
        """Return the writer of a rank of a pipeline."""
        return cls(ranks.rank, dist.get_process_group_ranks(ranks.group), log, schedule)

    def folder(self) -> str:
        """Return the name of a new folder in the current one."""
        now = time.strftime("%Y%m%d-%H%M%S")
        return str(Path.cwd() / f"debubble-hang-{now}-rank{self.ranks[0]}")

    def write(self, folder: str, where: Whereabouts) -> None:
        """Write this rank's dump, and the schedule if no rank has; without an error if it fails."""
        with suppress(OSError):
            path = Path(folder)
            path.mkdir(parents=True, exist_ok=True)
            if not (path / SCHEDULE).exists():
                self.schedule.save(path / SCHEDULE)
            name = f"rank_{self.ranks[self.rank]}.json"
            write_atomically(path / name, json.dumps(self._data(where)).encode())

    def _data(self, where: Whereabouts) -> dict[str, Any]:
        """Return the dump as plain data."""
        messages = list(self.log.messages)
        entries = [self._entry(number, one) for number, one in enumerate(messages)]
        if where.meets:
            entries.append(self._entry(len(messages), None))
        group = {"name": "0", "desc": "pipeline", "ranks": str(list(self.ranks))}
        return {
            "version": "2.10", "pg_config": {"0": group}, "comm_lib_version": "debubble",
            "pg_status": {}, "rank": self.ranks[self.rank], "host": socket.gethostname(),
            "debubble": {"action": where.action, "busy": where.busy}, "entries": entries,
        }  # fmt: skip

    def _entry(self, number: int, message: LoggedMessage | None) -> dict[str, Any]:
        """Return an entry with the fields of the format; None is for a call where ranks meet."""
        is_p2p = message is not None
        message = message or LoggedMessage(False, -1, [], time.time_ns())
        way = f"send {self.rank}->" if message.sends else f"recv {self.rank}<-"
        state = "completed" if message.done else "scheduled"
        sizes = [list(shape) for shape, _ in message.forms]
        types = [str(dtype).removeprefix("torch.") for _, dtype in message.forms]
        return {
            "record_id": number, "pg_id": 0, "process_group": ["0", "pipeline"],
            "collective_seq_id": int(not is_p2p), "p2p_seq_id": number + is_p2p,
            "op_id": number + 1,
            "profiling_name": f"debubble:{way}{message.peer}" if is_p2p else MEETING,
            "time_created_ns": message.created,
            "input_sizes": sizes, "input_dtypes": types, "output_sizes": sizes,
            "output_dtypes": types, "state": state, "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None, "retired": state == "completed", "is_p2p": is_p2p,
        }  # fmt: skip
