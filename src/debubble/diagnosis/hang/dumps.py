"""Read dumps of PyTorch's Flight Recorder, and those of our own runtime in the same shape.

Fields are those of version 2.10 of the format (PyTorch 2.13, ``FlightRecorder.hpp``); earlier ones
lack some. A dump does not say whose it is: its sends and receives do, in the ranks of their group,
and where it has none, the last number in the name of its file does.

Point-to-point calls in one ``batch_isend_irecv`` are entries without a state of their own, before
an entry ``coalesced`` with the state of all. Other libraries write no such entry, or no peers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.diagnosis.hang.plain_files import (
    first_bytes,
    plain_data,
    walk_files,
    without_collector,
)
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import LeftOut
from debubble.interchange.text import plain, shown

MAX_DUMP = 1 << 30
"""Maximum size of a dump, in bytes."""

HEAD = 1 << 16
"""Size of the beginning by which a dump is recognized, in bytes."""

MARKS = ((b"pg_config", b"pg_status"), (b"record_id", b"profiling_name"))
"""Keys of a dump, of which its beginning has the first two or the last two."""

MAX_FILES = 20_000
"""Maximum number of files in a folder and its subfolders."""

_NUMBER = re.compile(r"\d+")

UNKNOWN = -1
"""Peer of an entry that names none."""

OPAQUE = -1
"""Form of an entry that stands for a whole batch of unknown messages."""


class MessageState(IntEnum):
    """Progress of a send or receive."""

    UNKNOWN = 0
    """Nothing recorded when it ended."""
    POSTED = 1
    DONE = 2


Group = tuple[str, tuple[int, ...]]
"""Name and global ranks of a process group."""


TensorForms = tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]
"""Sizes and types of tensors."""


class Call(NamedTuple):
    """A collective that is not over on a rank."""

    group: Group
    number: int
    """Its number among the collectives of the group."""
    name: str
    """Operation, with the name of its group: ``all_reduce (mesh_dp)``."""


@dataclass(frozen=True, eq=False)
class Dump:
    """Record of one rank: its messages in the order of posting, and unfinished collectives."""

    rank: int
    """Global rank."""
    file: str
    host: str | None
    groups: Mapping[str, tuple[int, ...]]
    """Global ranks of every process group, by name."""
    sends: NDArray[np.bool_]
    """Whether each message is a send; shape ``(n,)``."""
    peer: NDArray[np.int64]
    """Global rank at its other end, :data:`UNKNOWN` for none recorded; shape ``(n,)``."""
    state: NDArray[np.int8]
    """A :class:`MessageState` each; shape ``(n,)``."""
    form: NDArray[np.int64]
    """Index of its sizes and types in `forms`; shape ``(n,)``."""
    forms: tuple[str, ...]
    """Sizes and types of tensors, such as ``Float[2, 128]``."""
    aside: frozenset[int]
    """Forms that stages do not return: single numbers and whole ones, by which shapes are agreed
    on."""
    pipeline: tuple[int, ...]
    """Global ranks of the group that most messages are in."""
    missed: int
    """Messages that were recorded before the first that is left."""
    first: int
    """Number of the first entry that is left: above 0, earlier ones were overwritten."""
    entries: int
    """Entries that are left."""
    calls: tuple[Call, ...]
    """Collectives that are not over."""
    joined: Mapping[Group, int]
    """Number of the last collective that the rank takes part in, by group."""
    action: str = ""
    """Action the rank was at, where our own runtime wrote the dump."""
    busy: bool = False
    """Whether it was computing there."""


def are_dumps(path: str, is_trace: Callable[[Path], bool]) -> bool:
    """Return whether a file is a dump, or a folder has dumps and no trace of a run."""
    found = False
    for file in islice(walk_files(path), MAX_FILES):
        if _is_dump(file):
            found = True
        elif is_trace(file):
            return False
    return found


def empty_dumps(path: str, dumps: Sequence[Dump]) -> tuple[str, ...]:
    """Return the names of empty files that are named like dumps next to them, but for numbers."""
    alike = {_NUMBER.sub("#", dump.file) for dump in dumps}
    return tuple(
        file.name for file in islice(walk_files(path), MAX_FILES)
        if _NUMBER.sub("#", file.name) in alike and not first_bytes(file, 1)
    )  # fmt: skip


def _is_dump(file: Path) -> bool:
    """Return whether a file is a dump, judged by its beginning."""
    try:
        head = first_bytes(file, HEAD)
    except FormatError:
        return False
    return head[:1] in (b"\x80", b"{") and any(all(map(head.__contains__, m)) for m in MARKS)


def read_dumps(path: str) -> list[Dump]:
    """Read the dumps of a folder, or one; sorted by global rank.

    Raises FormatError where there is none, a file needs anything but plain data, or two are of one
    rank.
    """
    some = list(islice(walk_files(path), MAX_FILES + 1))
    if len(some) > MAX_FILES:
        raise FormatError(f"{path}: more than {MAX_FILES:,} files; give the folder of one job")
    files = list(filter(_is_dump, some))
    if not files and some and not any(first_bytes(file, 1) for file in some):
        raise FormatError(
            f"{path}: an unreadable dump: {plain(some[0].name)} is empty; its process may have "
            "died while it wrote"
        )
    if not files:
        raise FormatError(
            f"{path}: no dump of PyTorch's Flight Recorder; they are the files that "
            "TORCH_FR_DUMP_TEMP_FILE names (TORCH_NCCL_DEBUG_INFO_TEMP_FILE in older versions), "
            "pickled or as JSON, one a rank"
        )
    found: dict[int, Dump] = {}
    for file, dump in read_each(read_dump, files, LeftOut()):
        other = found.setdefault(dump.rank, dump)
        if other is not dump:
            raise FormatError(
                f"{path}: {other.file} and {file} are both of rank {dump.rank}; give the folder "
                "with one dump of every rank"
            )
    return _of_stages([found[rank] for rank in sorted(found)])


def _of_stages(dumps: list[Dump]) -> list[Dump]:
    """Return the dumps without messages by which shapes are agreed on, where there are others."""
    if all(len(dump.aside) == len(dump.forms) for dump in dumps):
        return dumps
    found = []
    for dump in dumps:
        kept = ~np.isin(dump.form, list(dump.aside))
        names = ("sends", "peer", "state", "form")
        found.append(replace(dump, **{name: getattr(dump, name)[kept] for name in names}))
    return found


def read_dump(file: Path, _: LeftOut | None = None) -> Dump:
    """Read the dump of a rank."""
    name = file.name
    with without_collector():
        data = plain_data(first_bytes(file, MAX_DUMP), str(file))
    if not isinstance(data, dict) or not isinstance(data.get("entries", []), list):
        raise FormatError(f"{file}: {shown(data)} is no dump; it has a list 'entries'")
    rank = data.get("rank")
    if rank is None:
        numbers = re.findall(r"\d+", re.sub(r"\.\w+$", "", name))
        rank = int(numbers[-1]) if numbers else UNKNOWN
    groups = _groups(data.get("pg_config", {}), str(file))
    at = data.get("debubble") or {}
    try:
        reading = _Reading(int(rank), groups)
        for entry in data.get("entries", ()):
            reading.add(entry)
        found = reading.dump(name, data.get("host"), at.get("action", ""), bool(at.get("busy")))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise FormatError(
            f"{file}: an entry has no such field as a dump of 2.1 or later: {plain(str(error))}"
        ) from None
    if found.rank < 0:
        raise FormatError(f"{file}: no rank in its name; call it nccl_trace_rank_0 for rank 0")
    return found


def _groups(config: Any, where: str) -> dict[str, tuple[int, ...]]:
    """Return the global ranks of groups; the format has them as a text ``[0, 1]``."""
    found = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks = group.get("ranks", "") if isinstance(group, dict) else ""
        numbers = re.findall(r"\d+", ranks) if isinstance(ranks, str) else ranks
        try:
            found[str(name)] = tuple(map(int, numbers))
        except (TypeError, ValueError):
            raise FormatError(
                f"{where}: pg_config.{plain(str(name))}.ranks is {shown(ranks)}"
            ) from None
    return found


_ENDS = re.compile(r"(send|recv)(?: (\d+)(?:->|<-)(\d+))?$")
_STATES = re.compile("nccl:|debubble:")
"""Names of libraries that always write the state of a batch."""

DONE = MessageState.DONE
_WHOLE = frozenset(["Long", "Int", "Short", "Char", "Byte", "Bool", "UInt64", "UInt32", "UInt16"])


@dataclass
class _Reading:
    """Columns of a dump while its entries are read."""

    rank: int
    groups: Mapping[str, tuple[int, ...]]
    rows: list[tuple[bool, int, int, int]] = field(default_factory=list)
    """(sends, peer, state, form) of every message."""
    forms: dict[TensorForms, int] = field(default_factory=dict)
    """Number of the sizes and types of tensors."""
    aside: set[int] = field(default_factory=set)
    """Forms of what no stage returns: shapes, votes."""
    open: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Rows of batches that have no state yet, by group and number."""
    calls: dict[tuple[str, int], Call] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    """Messages by group."""
    missed: dict[str, int] = field(default_factory=dict)
    """Messages before the first that is left, by group."""
    names: set[str] = field(default_factory=set)
    first: int = -1
    entries: int = 0

    def add(self, entry: Mapping[str, Any]) -> None:
        """Read an entry."""
        self.entries += 1
        if self.first < 0:
            self.first = int(entry["record_id"])
        self.names.add(entry["profiling_name"])
        operation, own, other = _parsed(entry["profiling_name"])
        group = str(entry["process_group"][0])
        state = entry["state"]
        if operation in ("send", "recv"):
            members = self.groups.get(group, ())
            if not self.rows and own < len(members):
                self.rank = members[own] if own >= 0 else self.rank
            self._message(entry, group, operation == "send", other, state)
        elif operation == "coalesced" and (
            entry.get("is_p2p") or (group, int(entry["p2p_seq_id"])) in self.open
        ):
            self._end_batch(group, int(entry["p2p_seq_id"]), state)
        else:
            number = int(entry["collective_seq_id"])
            self.joined[group] = max(self.joined.get(group, 0), number)
            key = (group, number)
            if state == "completed":
                self.calls.pop(key, None)
            elif not operation.startswith("coalesced") and not _finished(entry):
                whole = (group, self._members(group))
                words = entry["process_group"][1]
                name = operation if words in ("", "undefined") else f"{operation} ({words})"
                self.calls[key] = Call(whole, number, name)

    def _message(
        self, entry: Mapping[str, Any], group: str, sends: bool, other: int, state: str
    ) -> None:
        """Add a send or receive; `other` is a rank of its group."""
        members = self._members(group)
        peer = members[other] if 0 <= other < len(members) else UNKNOWN
        if other >= len(members) > 0:
            raise ValueError(f"'{entry['profiling_name']}' in a group of {len(members)} ranks")
        sizes, types = entry["input_sizes"], entry.get("input_dtypes", ())
        named = (tuple(map(tuple, sizes)), tuple(types))
        form = self.forms.get(named)
        if form is None:
            form = self.forms[named] = len(self.forms)
            if _is_aside(entry):
                self.aside.add(form)
        if group not in self.missed:
            before = int(entry.get("op_id", 1)) - 1 - int(entry["collective_seq_id"])
            self.missed[group] = max(before, 0) if self.first > 0 else 0
        self.used[group] = self.used.get(group, 0) + 1
        found = MessageState.DONE if state == "completed" else MessageState.POSTED
        if found is MessageState.POSTED and state == "scheduled":
            # Alone it has a state of its own; in a batch that comes with the batch.
            number = int(entry["p2p_seq_id"])
            self.open.setdefault((group, number), []).append(len(self.rows))
        self.rows.append((sends, peer, int(found), form))

    def _end_batch(self, group: str, number: int, state: str) -> None:
        """Give the messages of a batch its state."""
        rows = self.open.pop((group, number), [])
        found = int(MessageState.DONE if state == "completed" else MessageState.POSTED)
        for row in rows:
            sends, peer, _, form = self.rows[row]
            self.rows[row] = (sends, peer, found, form)
        if not rows:
            self.used[group] = self.used.get(group, 0) + 1
            self.rows.append((False, UNKNOWN, found, OPAQUE))

    def _members(self, group: str) -> tuple[int, ...]:
        """Return the global ranks of a group; that of the world has no name in some dumps."""
        if group in self.groups:
            return self.groups[group]
        return max(self.groups.values(), key=len, default=())

    def dump(self, file: str, host: str | None, action: str, busy: bool) -> Dump:
        """Return the dump."""
        table = np.array(self.rows, dtype=np.int64).reshape(-1, 4)
        silent = not any(map(_STATES.match, self.names)) and not (table[:, 2] == DONE).any()
        if silent:
            table[:, 2] = MessageState.UNKNOWN
        group = max(self.used, key=self.used.__getitem__, default="")
        return Dump(
            rank=self.rank, file=file, host=host, groups=dict(self.groups),
            sends=table[:, 0].astype(bool), peer=table[:, 1], state=table[:, 2].astype(np.int8),
            form=table[:, 3], forms=tuple(_form(*named) for named in self.forms),
            aside=frozenset(self.aside),
            pipeline=self._members(group) if group else (),
            missed=self.missed.get(group, 0), first=max(self.first, 0), entries=self.entries,
            calls=tuple(self.calls.values()),
            joined={(name, self._members(name)): last for name, last in self.joined.items()},
            action=action, busy=busy,
        )  # fmt: skip


@lru_cache
def _parsed(name: str) -> tuple[str, int, int]:
    """Return the operation in the name of an entry, and its first and second rank."""
    operation = name.partition(":")[2]
    if ends := _ENDS.match(operation):
        return ends[1], int(ends[2] or UNKNOWN), int(ends[3] or UNKNOWN)
    return operation, UNKNOWN, UNKNOWN


def _finished(entry: Mapping[str, Any]) -> bool:
    """Return whether a collective is over although its state does not say: gloo's never does."""
    return bool(entry.get("retired")) and not entry["profiling_name"].startswith("nccl")


def _form(sizes: Sequence[Sequence[int]], types: Sequence[str]) -> str:
    """Return sizes and types of tensors as one text."""
    named = list(types) + [""] * (len(sizes) - len(types))
    return ", ".join(f"{kind}{list(size)}" for kind, size in zip(named, sizes, strict=False))


def _is_aside(entry: Mapping[str, Any]) -> bool:
    """Return whether a message is none between stages: a vote, a shape, a pickled object."""
    types = entry.get("input_dtypes", ())
    sizes = entry["input_sizes"]
    one = all(np.prod(size, dtype=np.int64) <= 1 for size in sizes)
    return bool(sizes) and (one or (bool(types) and all(kind in _WHOLE for kind in types)))
