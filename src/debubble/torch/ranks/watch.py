"""Watches of the ranks of a pipeline from inside: when one is in trouble, all raise its error.

No parent sees all ranks. Every rank writes its progress to the store. A rank that waits in vain,
loses the rank it waits for, or raises an error writes a message there, the first one counts, and
the others raise the same. A thread reads the store, too, as its rank may wait for a message that
never comes: it makes the calls fail that its rank waits in.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from torch import distributed as dist

from debubble.core.errors import DebubbleError, ParameterError
from debubble.torch.errors import RunError
from debubble.torch.ranks import process_group
from debubble.torch.ranks.abort import abort_all_groups
from debubble.torch.ranks.error_text import OWN, describe_error, is_timeout
from debubble.torch.ranks.first_failure import FirstFailure
from debubble.torch.ranks.message_log import HangDumps, Whereabouts
from debubble.torch.ranks.process_group import Channel, Ranks
from debubble.torch.ranks.progress_table import WAITS, PlaceText, ProgressTable, RankState, Watch

PERIOD = 0.5
"""Seconds between two reads of the store."""

GRACE = 3.0
"""Seconds that a rank has to come back from a call that was made to fail."""

CONNECTING = (str(Path(dist.__file__).parent) + os.sep, OWN)
"""Folders of code that calls other ranks."""

START = -1
"""Position before a program's first action."""

FAILED = "failed"
DUMPS = "dumps"
"""Keys of the first error, and of the folder of dumps."""


class StoreWatch(Watch):
    """Progress of this rank and the others, and the error of the first that failed, in a store.

    The store has the keys of these watches alone, over a connection of this thread alone.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Any,
        timeout: float,
        text: PlaceText,
        abort: Callable[[bool], None] = lambda _: None,
        names: Sequence[str] = (),
    ) -> None:
        self._table = ProgressTable(size)
        if names:
            self._table.names = names
        self._name = self._table.names[rank]
        super().__init__(self._table, rank)
        self.rank, self.timeout, self.text = rank, timeout, text
        self._abort = abort
        """Makes this rank's calls of the others fail, on a flag also those of their group."""
        self._aborted = self._entered = False
        self._since = self._stuck = 0.0
        """Times when this rank had to come back, and when calls of all its groups failed."""
        self._message = ""
        """Message of the first rank that failed, once this one knows it."""
        self.position = START
        self._store, self._lock = store, threading.Lock()
        self.job: FirstFailure | None = None
        """First failure of all pipelines of the job; None where there is one."""
        self.dumps: HangDumps | None = None
        """Writer of what this rank sent and received; None where the engine does not log that."""
        self._written, self._dumped = b"", False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="debubble-watch", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, ranks: Ranks, text: PlaceText, abort: Callable[[bool], None]) -> StoreWatch:
        """Return a watch for the ranks of a pipeline; `abort` makes their calls fail."""
        store = dist.PrefixStore("watch", ranks.store)
        # A connection of its own: the main thread may be waiting on the other one.
        store = store.clone() if hasattr(store, "clone") else store
        limit = ranks.timeout.total_seconds()
        watch = cls(ranks.rank, ranks.size, store, limit, text, abort, ranks.names)
        if ranks.size < dist.get_world_size():
            members = dist.get_process_group_ranks(ranks.group)
            watch.job = FirstFailure(store, "-".join(map(str, members)), limit)
        return watch

    def stop(self) -> None:
        """Stop, and wait for the thread.

        A thread that is in a call of the store when its process ends would abort the process.
        """
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(GRACE)

    def keep_messages(self, dumps: HangDumps) -> None:
        """Take the writer of what this rank sent and received."""
        self.dumps = dumps

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step; its errors are written for all ranks.

        Raises RunError when another rank failed, or does not answer.
        """
        self._raise_failure()
        self.position, self.state = START, RankState.RUNNING
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise
        else:
            if self._aborted:
                self._raise_failure()
        finally:
            self.state = RankState.OUTSIDE

    def enter(self, channel: Channel, call: str, numbers: Sequence[float] = ()) -> list[float]:
        """Wait until all ranks make a call, and return the sums of their numbers.

        All calls sum one row of one length: the call's checksum, how many ranks fail before they
        enter it, then the numbers, or as many zeros. Raises RunError when a rank makes another
        call.
        """
        self._entered = True
        return self._meet(channel, call, numbers)

    @contextmanager
    def entering(self, channel: Channel, call: str) -> Iterator[None]:
        """Run what comes before a call is entered, and enter it.

        A rank that fails there meets the others all the same: of a mistake that all ranks make,
        each raises its own error.
        """
        self._entered = False
        try:
            yield
        except Exception:
            if not self._entered:
                self._meet(channel, call, (), fails=True)
            raise

    def _meet(
        self, channel: Channel, call: str, numbers: Sequence[float], *, fails: bool = False
    ) -> list[float]:
        self.set_waiting()
        own = float(crc32(call.encode()))
        row = [own, float(fails), *(numbers or [0.0] * self.numbers)]
        same, failed, *sums = channel.add(row)
        if same != own * channel.size:
            calls, names = channel.gather(call), self._table.names
            rank = next(rank for rank, other in enumerate(calls) if other != calls[0])
            raise RunError(
                f"{names[rank]} calls {calls[rank]}() and {names[0]} {calls[0]}(); all "
                "ranks call the methods of a pipeline together"
            )
        if failed and not fails:
            # This rank waits in vain, until it has the message of the rank that fails.
            channel.add([0.0])
        self.state = RankState.RUNNING
        return sums

    def _fail(self, error: BaseException) -> None:
        lost = type(error) is RuntimeError or isinstance(error, dist.DistError)
        frames = traceback.extract_tb(error.__traceback__)
        place = frames[-1].filename
        if lost and (self._aborted or place.startswith(CONNECTING)):
            self._raise_failure()
        # An error of a call to other ranks, not of a module or loss between such calls.
        connects = self.state in WAITS and place.startswith(CONNECTING)
        if lost and (connects or place == process_group.__file__):
            late = is_timeout(str(error)) and not self._aborted
            if not late:
                # A launcher may end this process before it can print more.
                print(f"debubble: {self._lost()}", file=sys.stderr, flush=True)
            # The rank that is waited for may be the one in trouble: its message comes first.
            time.sleep(3 * PERIOD)
            self._raise_failure()
            message = self._claim(f"{self._stall(late)}{self._offer_dumps()}")
            if self._dump():
                # The rank that hangs writes its dump, too, before a launcher ends it.
                time.sleep(2 * PERIOD)
            self._release_others()
            raise RunError(message) from None
        place = self.text(self.rank, self.position)
        self._claim(f"{self._name} failed: {describe_error(error)}; it was at {place}")
        self._release_others()
        error.add_note(f"debubble: {self._name} was at {place}")

    def _raise_failure(self) -> None:
        message = self._failure()
        if message:
            self._dump()
            raise RunError(message) from None

    def _offer_dumps(self) -> str:
        """Choose the folder of all ranks' dumps; return the end of the message about it."""
        if self.dumps is None or not self.dumps.log.whole:
            return ""
        with self._lock, suppress(Exception):
            folder = self._store.compare_set(DUMPS, "", self.dumps.folder()).decode()
            return f"\nwhat every rank sent and received: debubble hang {folder}"
        return ""

    def _dump(self) -> bool:
        """Write this rank's dump once, if there is a folder for it; return whether there is."""
        if self.dumps is None:
            return False
        with self._lock:
            try:
                if not self._store.check([DUMPS]):
                    return False
                folder = self._store.get(DUMPS).decode()
            except Exception:
                return False
            if not self._dumped:
                self._dumped = True
                in_step = self.state in (RankState.RUNNING, RankState.WAITING)
                place = self.text(self.rank, self.position) if in_step else ""
                action = place.partition(": ")[2].partition(" from ")[0]
                busy = self.state is RankState.RUNNING and bool(action)
                meets = self.state is RankState.MEETING
                self.dumps.write(folder, Whereabouts(action, busy, meets))
        return True

    def _stall(self, late: bool) -> str:
        """Return a message about ranks that wait, or a rank that is lost."""
        table = self._table
        with self._lock, suppress(Exception):
            table.read_others(self._store, self.rank)
        others = table.describe(self._words, self.rank)
        if not late:
            return f"{self._lost()}\n{others}".strip()
        head = f"nothing has moved for {self.timeout:g} s: "
        waits = f"{self._name} waits at {table.place(self.rank, self._words)}\n{others}"
        for rank, row in enumerate(table.rows.tolist()):
            state = row[ProgressTable.STATE]
            known = rank != self.rank and row[ProgressTable.MOVES]
            if known and state in (RankState.OUTSIDE, RankState.RUNNING):
                outside = state == RankState.OUTSIDE
                where = "is in no step" if outside else f"hangs at {table.place(rank, self._words)}"
                longer = f"; timeout={2 * self.timeout:g} waits longer"
                return f"{head}{table.names[rank]} {where}; {waits}{longer}"
        return f"{head}{waits}".strip()

    def _words(self, _: int, rank: int, position: int) -> str:
        return self.text(rank, position)

    def _lost(self) -> str:
        place = self._table.place(self.rank, self._words)
        return f"{self._name} lost the rank it waited for at {place}"

    def _claim(self, message: str) -> str:
        """Write a message for all ranks; return that of the first rank that wrote one."""
        with self._lock:
            before = "" if self.job is None else self.job.claim(message)
            if before:
                message = f"{message}\nbefore that, in another pipeline of the job: {before}"
            try:
                return str(self._store.compare_set(FAILED, "", message).decode())
            except Exception:
                return message

    def _failure(self) -> str:
        """Return the message that another rank wrote, empty for none."""
        with self._lock, suppress(Exception):
            if not self._message and self._store.check([FAILED]):
                self._message = self._store.get(FAILED).decode()
        return self._message

    def _look(self) -> None:
        """Write this rank's progress; bring it out of its step when another failed."""
        moved = time.monotonic()
        while not self._over.wait(PERIOD):
            row = self._row.tobytes()
            moves = row != self._written
            if moves:
                moved = time.monotonic()
            try:
                with self._lock:
                    if moves:
                        self._table.write_row(self._store, self.rank)
                        self._written = row
                    failed = self._store.check([FAILED])
            except Exception:
                # The store ends with rank 0's process: at the end of training, or before.
                failed = self.state != RankState.OUTSIDE
                if not failed:
                    return
            if failed:
                self._failure()
                self._dump()
                self._come_back(moved)

    def _come_back(self, moved: float) -> None:
        """Bring the main thread out of its step; `moved` is the time of its last move.

        Calls of the pipeline fail at once. A module has the timeout for an action, and then calls
        of all other groups fail, in which it may wait. Where that does not help either, the process
        ends.
        """
        now = time.monotonic()
        if self.state == RankState.OUTSIDE:
            self._since = 0.0
            return
        if not self._since:
            self._since, self._stuck = now, 0.0
            self._release_others(stuck=True)
        waits = self.state in WAITS
        limit = self._since + GRACE
        if now < limit or (not waits and now < moved + self.timeout):
            return
        if not self._stuck:
            self._stuck = now
            abort_all_groups()
        elif now - self._stuck > GRACE:
            message = self._message or f"{self._name} lost the store"
            print(f"debubble: {message}", file=sys.stderr, flush=True)
            os._exit(2)

    def _release_others(self, *, stuck: bool = False) -> None:
        """Make this rank's calls of the others fail, here and there.

        Their group stays as it is where no action has begun, unless this rank is stuck in it.
        """
        if not self._aborted:
            self._aborted = True
            self._abort(stuck or self.position != START)


Outcome = TypeVar("Outcome")


def on_all_ranks(ranks: Ranks, work: Callable[[], Outcome]) -> Outcome:
    """Call `work` on all ranks, and return its result once it succeeded on all of them.

    Raises ParameterError with the message of another rank when it failed there, so that no rank
    waits for one that failed.
    """
    try:
        found = work()
    except Exception as error:
        ranks.channel.gather(describe_error(error))
        raise
    for name, words in zip(ranks.names, ranks.channel.gather(""), strict=True):
        if words:
            raise ParameterError(f"{name} cannot begin: {words}")
    return found


@contextmanager
def rendezvous(timeout: float) -> Iterator[None]:
    """Turn errors of connections into a RunError about ranks that did not come."""
    try:
        yield
    except RuntimeError as error:
        late = is_timeout(str(error))
        if isinstance(error, DebubbleError) or not (late or "gloo" in str(error)):
            raise
        found = f"did not come within {timeout:g} s" if late else "failed, or ended"
        raise RunError(
            f"another rank {found} while this one made a Pipeline; its own output says why; all "
            "ranks of the group make it together, and timeout= waits longer"
        ) from None
