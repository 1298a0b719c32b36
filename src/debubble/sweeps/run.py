"""Run a sweep: the points without results, in batches, each kept as soon as it is done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from debubble._version import __version__
from debubble.core.errors import ParameterError
from debubble.sweeps import backends
from debubble.sweeps.commands import COMMANDS, compute
from debubble.sweeps.points import Spec
from debubble.sweeps.spec import read_spec
from debubble.sweeps.store import ENDINGS, PointResult, Writer

BATCH_SECONDS = 0.5
"""Work of a batch: long next to sending it, and a small loss."""

MOST_IN_BATCH = 1000

RECENT, SLOWEST = 100, 3
"""Points whose mean time sizes a batch, without the slowest: those compile kernels."""

ALONE_SECONDS = 1.0
"""Seconds for which brief points are computed in this process before others are started."""


@dataclass(frozen=True)
class Progress:
    """Progress of a sweep."""

    done: int
    """Points with results in the file."""
    total: int
    """Points of the spec."""
    failed: int
    """Points of this run with an error."""
    here: int
    """Points of this run."""
    seconds: float
    """Duration of this run."""


def run(
    spec: Spec | str | Path,
    output: str | Path,
    *,
    jobs: int | None = None,
    backend: str = "processes",
    address: str | None = None,
    extend: bool = False,
    retry_failed: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Progress:
    """Compute the points of a sweep that a file of results does not have yet.

    Parameters
    ----------
    spec
        The sweep, or the name of its file.
    output
        SQLite file of the results, made where there is none. Whatever ends the process, reported
        results are kept, and the next run goes on from there.
    jobs
        Workers; the default is all processors, or all of the cluster. With 1, points are computed
        in this process.
    backend, address
        ``"processes"`` of this computer, or a cluster of ``"dask"`` or ``"ray"`` and its address;
        without one, the cluster in the environment, or else workers on this computer.
    extend
        Whether a file of another sweep of the same command gets the points of this one, too.
    retry_failed
        Whether points that failed are computed again.
    progress
        Called before the first point, and whenever results were kept.

    Returns
    -------
    Progress
        The end.

    Raises
    ------
    DebubbleError
        When the spec or the file cannot be used, or a backend is not there.
    KeyboardInterrupt
        After Ctrl-C, with all finished batches kept.
    """
    if not isinstance(spec, Spec):
        spec = read_spec(spec)
    if not str(output).lower().endswith(ENDINGS):
        raise ParameterError(f"'{output}': results are kept as {', '.join(ENDINGS)}")
    if jobs is not None and jobs < 1:
        raise ParameterError(f"jobs is {jobs}; give a number from 1 up")
    local = backend == "processes"
    if local and address is not None:
        raise ParameterError(f"address is '{address}'; processes of this computer have none")
    if not local or jobs not in (None, 1):
        backends.check_backend(backend)
    workers = jobs or (-1 if not local else backends.cores() if backends.has_joblib() else 1)
    writer = Writer(output, spec, __version__, extend)
    try:
        state = _State(spec, writer, retry_failed, progress)
        state.report()
        if local and workers > 1 and COMMANDS[spec.command].brief:
            state.here(ALONE_SECONDS)
        if local and workers == 1:
            state.here()
        elif state.left:
            for results in backends.results(state.tasks(workers), backend, workers, address):
                state.keep(results)
        return state.report()
    finally:
        writer.close()


class _State:
    """The points of a sweep that are left, and the time that one takes."""

    def __init__(
        self,
        spec: Spec,
        writer: Writer,
        retry_failed: bool,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        done = writer.done(failed=not retry_failed)
        keys = {point.key for point in spec.points()}
        self.spec = spec
        self.writer = writer
        self.progress = progress
        self.total = len(keys)
        self.begin = len(keys & done)
        self.count = self.failed = 0
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.began = time.monotonic()
        self.points = (point for point in spec.points() if point.key not in done)

    @property
    def left(self) -> int:
        """Number of points without results."""
        return self.total - self.begin - self.count

    def keep(self, results: list[PointResult]) -> None:
        """Keep the results of a batch, then report."""
        self.writer.add(results)
        self.count += len(results)
        self.failed += sum(result.failed for result in results)
        self.recent.extend(result.seconds for result in results)
        self.report()

    def report(self) -> Progress:
        """Return the progress, and pass it to the callback."""
        seconds = time.monotonic() - self.began
        found = Progress(self.begin + self.count, self.total, self.failed, self.count, seconds)
        if self.progress is not None:
            self.progress(found)
        return found

    def here(self, seconds: float | None = None) -> None:
        """Compute points in this process: all, or for some time."""
        end = None if seconds is None else time.monotonic() + seconds
        for task in self.tasks(1, 0.2):
            self.keep(task())
            if end is not None and time.monotonic() > end:
                return

    def tasks(
        self, workers: int, seconds: float = BATCH_SECONDS
    ) -> Iterator[partial[list[PointResult]]]:
        """Yield batches of the points that are left, sized by the time of recent points."""
        while batch := list(islice(self.points, self._size(workers, seconds))):
            yield partial(compute, self.spec.command, self.spec.files, batch)

    def _size(self, workers: int, seconds: float) -> int:
        usual = sorted(self.recent)[:-SLOWEST]
        if not usual:
            return 1
        fitting = round(seconds * len(usual) / max(sum(usual), 1e-9))
        # The last batches are short, so that all workers end together.
        share = self.left // (2 * abs(workers)) + 1
        return max(1, min(fitting, MOST_IN_BATCH, share))
