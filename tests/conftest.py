"""Settings and fixtures every test shares."""

from __future__ import annotations

import gc
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol  # plugins that run tests their own way use it
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests import browser as browsers

# A worker has about a core to itself. More threads of PyTorch wait for each other by spinning: many
# times the work where models are as tiny as here. Processes that tests start take it over.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Kernels are compiled where tests need them, and not at the same time.
os.environ.setdefault("DEBUBBLE_BACKGROUND", "0")

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
CALM = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile("default", derandomize=True, **CALM)
settings.register_profile("explore", derandomize=False, print_blob=True, **CALM)
settings.register_profile("quick", derandomize=True, **CALM)
settings.load_profile(PROFILE)

EXPLORES = PROFILE == "explore"
"""Whether cases that are many and much alike all come, in place of some of them."""

FEWER, LEAST, MORE = 16, 3, 6
"""A property test has a sixteenth of its cases when quick, but some; six times all to explore."""

CASES_FEWER, CASES_LEAST = 16, 2
"""A test with many cases has a sixteenth of them when quick, but some."""

LAW_CASES_FEWER, LAW_CASES_LEAST = 3, 12
"""With ``SOME_CASES=1``, as in ``make test``, a law has a third of its cases, but some. Each has
others, so that every schedule, option and cost is in several. ``make laws`` has all."""

BATCH = 16
"""Short tests of a file that a worker gets at once: xdist looks at all that was given before it
gives the next."""

SHOWN = 0.005
"""Seconds that a part of a test takes at least to be shown by ``--durations``."""

MARKS = {
    "browser": {"browser", "visit"},
    "processes": {"start", "server", "hosts", "ours", "theirs", "compared", "site", "judged"},
}
"""Markers of tests by the fixtures that they ask for."""

LEFT_OUT = {*MARKS, "slow", "law"}
"""Markers of tests that ``make quick`` leaves out."""

LAWS = Path(__file__).parent / "laws"
"""Tests of what holds over all commands, options, costs, schedules and kinds: marked ``law``."""

MARKED = re.compile(r"^pytestmark = .*|^from tests\.torch\.world import in_ranks", re.MULTILINE)
"""Lines that mark every test of a file."""

QUICK = pytest.StashKey[dict[Path, bool]]()
"""Whether a file that was collected has tests without any marker."""


@pytest.fixture(scope="session", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Workers share the compiling of kernels, which takes a minute where none are compiled yet."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests.kernels import CASES, QUICK_CASES, compile_once

        # Every worker has a folder of its own in that of the run.
        folder = tmp_path_factory.getbasetemp().parent / "kernels"
        compile_once(folder, QUICK_CASES if PROFILE == "quick" else list(CASES))


def pytest_configure() -> None:
    """Prepare this process, and not the ranks that tests start, which import this file too.

    What is imported and collected is no garbage: looking for some takes a sixth of the time. Ranks
    have pipelines to collect, and with them threads of gloo that look for work all the time.
    """
    gc.disable()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Workers need it anyway; with it, what is collected is not interpreted.
        import numba as numba


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files that have no test to run: importing what they import takes seconds."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    left_out = re.findall(r"not (\w+)", config.option.markexpr)
    return bool(marks_of_file(collection_path).intersection(left_out)) or None


def marks_of_file(path: Path) -> set[str]:
    """Return the markers that all tests of a file have, by its text alone."""
    marks = {"law"} if LAWS in path.parents else set()
    for line in MARKED.findall(path.read_text(encoding="utf-8")):
        marks.update(re.findall(r"mark\.(\w+)", line) or ["processes"])
    return marks


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what takes a browser or processes, so that ``make quick`` can leave it out.

    Tests of one file that share a browser or processes go to the same worker.
    """
    quick = config.stash.setdefault(QUICK, {})
    workers = config.pluginmanager.hasplugin("xdist")
    of_files: dict[Path, tuple[bool, bool, bool]] = {}
    short = []
    for item in items:
        if item.path not in of_files:
            module = getattr(item, "module", None)
            of_files[item.path] = (
                LAWS in item.path.parents, hasattr(module, "in_ranks"), hasattr(module, "forked"),
            )  # fmt: skip
        law, in_ranks, forked = of_files[item.path]
        fixtures = set(getattr(item, "fixturenames", ()))
        for mark, some in MARKS.items():
            if not fixtures.isdisjoint(some):
                item.add_marker(mark)
                if workers:
                    item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        if law:
            item.add_marker("law")
        if in_ranks:
            item.add_marker("processes")
        if forked and workers:
            item.add_marker(pytest.mark.xdist_group("forked"))
        if PROFILE != "default":
            scale_cases(item)
        if LEFT_OUT.isdisjoint(marks_of(item)):
            short.append(item)
    quick.update(dict.fromkeys(of_files, False))
    quick.update(dict.fromkeys((item.path for item in short), True))
    if PROFILE == "quick":
        keep_some(config, items, short, CASES_FEWER, CASES_LEAST)
    elif os.environ.get("SOME_CASES"):
        laws = [item for item in items if of_files[item.path][0]]
        keep_some(config, items, laws, LAW_CASES_FEWER, LAW_CASES_LEAST)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = interleaved(items)
        batch(items)


def marks_of(item: pytest.Item) -> set[str]:
    """Return the names of all markers of a test."""
    return {mark.name for mark in item.iter_markers()}


def keep_some(
    config: pytest.Config, items: list[pytest.Item], many: list[pytest.Item], fewer: int, least: int
) -> None:
    """Leave out most cases of `many`: those left are spread over all, others for each test."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in many:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    dropped = set(many)
    for name, every in cases.items():
        count = min(len(every), max(math.ceil(len(every) / fewer), least))
        begin = zlib.crc32(name.encode()) % len(every)
        dropped.difference_update(
            every[(begin + number * len(every) // count) % len(every)] for number in range(count)
        )
    config.hook.pytest_deselected(items=[item for item in many if item in dropped])
    items[:] = [item for item in items if item not in dropped]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Let a worker send one report of a test in place of three, and of its start none.

    For most tests that takes as long as they do. What failed is sent, and whatever took as long as
    ``--durations`` shows.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration >= SHOWN:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def batch(items: list[pytest.Item]) -> None:
    """Put short tests of a file that may run anywhere into groups."""
    counts: dict[Path, int] = {}
    for item in items:
        if marks_of(item).isdisjoint(("xdist_group", "slow", *MARKS)):
            count = counts[item.path] = counts.get(item.path, -1) + 1
            group = f"{item.nodeid.partition('::')[0]}, {count // BATCH}"
            item.add_marker(pytest.mark.xdist_group(group))


def interleaved(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files with processes or a browser, which wait much, evenly among those that only compute.

    So one worker seldom waits while the other does. The last to begin are short.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = {
        path for path, some in files.items()
        if not all(marks_of(item).isdisjoint(MARKS) for item in some)
    }  # fmt: skip
    totals = {True: 0, False: 0}
    places = {}
    for path, some in files.items():
        places[path] = totals[path in waiting]
        totals[path in waiting] += len(some)

    def share(path: Path) -> float:
        early = 0.9 if path in waiting else 1.0
        return early * places[path] / totals[path in waiting]

    return [item for path in sorted(files, key=share) for item in files[path]]


def scale_cases(item: pytest.Item) -> None:
    """Let a property test draw a share of its cases, or several times as many.

    What tests are decorated with stands over any profile, and hypothesis has no public way to it.
    """
    test = getattr(item, "obj", None)
    if is_hypothesis_test(test) and not hasattr(test, "scaled"):
        usual = test._hypothesis_internal_use_settings
        cases = usual.max_examples
        scaled = min(cases, max(cases // FEWER, LEAST)) if PROFILE == "quick" else cases * MORE
        test._hypothesis_internal_use_settings = settings(usual, max_examples=scaled)
        test.scaled = True


def pytest_collection_finish() -> None:
    """Collect garbage seldom: thousands of tests and what they import are not garbage."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session")
def running_browser() -> Iterator[browsers.Running]:
    """A browser for all tests of a worker, which takes seconds to start."""
    yield from browsers.launch()


@pytest.fixture(scope="module")
def browser(running_browser: browsers.Running) -> Iterator[Any]:
    """A browser for all tests of a module, which closes what they open."""
    with running_browser.taken() as found:
        yield found


@pytest.fixture(scope="module")
def kept_pages(browser: Any) -> browsers.Pages:
    """Pages for one test of a module after the other."""
    return browsers.Pages(browser)


@pytest.fixture
def visit(kept_pages: browsers.Pages) -> Iterator[Callable[..., Any]]:
    """Open pages; at the end none of them may have had an error."""
    with kept_pages.opened() as call:
        yield call
