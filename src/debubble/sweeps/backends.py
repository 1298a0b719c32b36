"""Backends that compute batches of points: those of joblib."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, TypeAlias

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.signals import on_signal
from debubble.sweeps.store import PointResult

Task: TypeAlias = Callable[[], list[PointResult]]
"""A batch of points, ready to be computed anywhere."""

ROUND = 4
"""Batches per worker that are sent at once to backends that return them all together."""


WATCH_SECONDS = 0.5
"""Time between a worker's looks for the process that started it."""


def start_worker(parent: int) -> None:
    """Leave Ctrl-C to the process that started this one, and end with it, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def cores() -> int:
    """Return the number of processors that this process may use."""
    if has_joblib():
        import joblib

        return int(joblib.cpu_count())
    return os.cpu_count() or 1


def has_joblib() -> bool:
    """Return whether joblib is installed."""
    return importlib.util.find_spec("joblib") is not None


@contextmanager
def _processes(jobs: int, address: str | None) -> Iterator[None]:
    """Run processes of this computer."""
    import joblib

    assert address is None, "refused before"
    # Workers of a killed process would wait for ever, for work or for a lock.
    with joblib.parallel_config(
        backend="loky", n_jobs=jobs, initializer=start_worker, initargs=(os.getpid(),)
    ):
        from joblib.externals.loky import get_reusable_executor

        try:
            yield
        except BaseException:
            # Their results are not needed any more.
            get_reusable_executor(reuse=True).shutdown(wait=False, kill_workers=True)
            raise
        # Idle workers would stay for five minutes, each with all of its memory.
        get_reusable_executor(reuse=True).shutdown(wait=True)


@contextmanager
def _dask(jobs: int, address: str | None) -> Iterator[None]:
    """Connect to a cluster of dask; without an address, start workers on this computer."""
    import dask
    import joblib
    from distributed import Client

    address = address or dask.config.get("scheduler-address", None)
    local: dict[str, Any] = {}
    if address is None:
        local = {"n_workers": jobs if jobs > 0 else cores(), "threads_per_worker": 1,
                 "dashboard_address": None}  # fmt: skip
    with (
        _reaching("dask", address),
        Client(address, timeout=20, **local) as client,
        joblib.parallel_config(backend="dask", n_jobs=jobs, client=client),
    ):
        yield


@contextmanager
def _ray(jobs: int, address: str | None) -> Iterator[None]:
    """Connect to a cluster of Ray; without an address, start workers on this computer."""
    import joblib
    import ray
    from ray.util.joblib import register_ray

    address = address or os.environ.get("RAY_ADDRESS")
    local: dict[str, Any] = {}
    if address is None:
        local = {"num_cpus": jobs if jobs > 0 else cores(), "include_dashboard": False}
    register_ray()
    with _reaching("ray", address):
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    try:
        with joblib.parallel_config(backend="ray", n_jobs=jobs):
            yield
    finally:
        ray.shutdown()


@contextmanager
def _reaching(name: str, address: str | None) -> Iterator[None]:
    """Name a cluster that cannot be reached."""
    try:
        yield
    except (OSError, ConnectionError, TimeoutError, RuntimeError) as error:
        if address is None:
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ParameterError(f"no {name} cluster at '{address}': {reason}") from None


BACKENDS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "processes": (_processes, "joblib", "debubble[sweep]"),
    "dask": (_dask, "distributed", "debubble[sweep]"),
    "ray": (_ray, "ray", "debubble[ray]"),
}
"""Context of each backend, the module that it needs, and what installs that."""


def check_backend(name: str) -> None:
    """Refuse a backend that does not exist or is not installed."""
    if name not in BACKENDS:
        raise ParameterError(f"backend is '{name}'; {did_you_mean(name, BACKENDS)}")
    _, module, extra = BACKENDS[name]
    for needed in ("joblib", module):
        if importlib.util.find_spec(needed) is None:
            raise ParameterError(f"backend '{name}' needs {needed}: pip install '{extra}'")


def results(
    tasks: Iterable[Task], backend: str, jobs: int, address: str | None
) -> Iterator[list[PointResult]]:
    """Yield results of tasks in any order; tasks are taken when a worker is about to be free.

    `backend` is the name of an entry of :data:`BACKENDS`, `jobs` the number of workers, -1 for all,
    and `address` that of the cluster.
    """
    import joblib

    context, _, _ = BACKENDS[backend]
    with ExitStack() as stack:
        stack.enter_context(context(jobs, address))
        calls = (joblib.delayed(task)() for task in tasks)
        try:
            parallel = joblib.Parallel(batch_size=1, return_as="generator_unordered")
        except ValueError:
            parallel = stack.enter_context(joblib.Parallel(batch_size=1))
            while batch := list(islice(calls, ROUND * parallel.n_jobs)):
                yield from parallel(batch)
            return
        # As the processes that are started in the meantime do all their life.
        with on_signal(signal.SIGINT, signal.SIG_IGN):
            found = parallel(calls)
        yield from found
