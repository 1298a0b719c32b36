"""Schedule files in tests of other projects: a fixture, and a test for every ``*.schedule.csv``.

pytest loads it where debubble is installed. Without files of these names, and without the fixture,
it does nothing. ``pytest.ini`` may set limits for all files that are collected::

    [pytest]
    schedule_costs = costs.yaml
    schedule_memory = 4
    schedule_makespan = 120
    schedule_p2p_mode = blocking
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from debubble.analysis.check import Report
    from debubble.engine.timeline import Timeline

ENDINGS = (".schedule.csv", ".schedule.json")

SETTINGS = {
    "costs": "cost file of schedules that are collected",
    "memory": "limit of the activation memory of every rank, as for debubble check --memory",
    "makespan": "limit of the time of a step",
    "p2p_mode": "mode of transfers between ranks",
}
"""Settings of the plugin, each with ``schedule_`` in front."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings."""
    for name, text in SETTINGS.items():
        parser.addini(f"schedule_{name}", f"debubble: {text}", default="")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect schedule files by their endings."""
    if file_path.name.lower().endswith(ENDINGS):
        return ScheduleFile.from_parent(parent, path=file_path)
    return None


class ScheduleFile(pytest.File):
    """A schedule file: a test that it can run within its limits."""

    def collect(self) -> Iterator[pytest.Item]:
        """Return the test."""
        yield ScheduleItem.from_parent(self, name="check")


class ScheduleItem(pytest.Item):
    """A test that a schedule is complete, free of deadlocks, and within memory and time."""

    def runtest(self) -> None:
        """Check the file within the limits of the settings."""
        given = {name: self.config.getini(f"schedule_{name}") or None for name in SETTINGS}
        if given["costs"]:
            given["costs"] = str(self.config.rootpath / given["costs"])
        _require(_check(self.path, **given)[0])

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """Return the problems without a traceback."""
        from debubble.core.errors import DebubbleError

        if isinstance(excinfo.value, AssertionError | DebubbleError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the place of the test for reports."""
        return self.path, None, f"schedule {self.path.name}"


@pytest.fixture
def schedule_file() -> Callable[..., Timeline]:
    """Return a function that checks a schedule file and returns its simulation.

    It takes a path and, by name, ``costs`` (a file, or Costs), ``memory``, ``makespan`` and
    ``p2p_mode``. The test fails with all problems of the schedule.
    """

    def checked(path: str | Path, **limits: Any) -> Timeline:
        __tracebackhide__ = True
        report, timeline = _check(Path(path), **limits)
        _require(report)
        return timeline()

    return checked


def _check(
    path: Path, *, costs: Any = None, memory: Any = None, makespan: Any = None,
    p2p_mode: Any = None,
) -> tuple[Report, Callable[[], Timeline]]:  # fmt: skip
    """Return the report on a schedule file, and its simulation."""
    from debubble.analysis.check import check
    from debubble.analysis.question import Question
    from debubble.core.costs import Costs
    from debubble.core.given_layers import make_layers
    from debubble.core.options import MemoryLimit, Real
    from debubble.interchange.cost_files import load_costs
    from debubble.interchange.files import load

    file = load_costs(costs) if isinstance(costs, str | Path) else None
    own = file.costs if file else costs or Costs()
    if isinstance(memory, str):
        memory = MemoryLimit().read("schedule_memory", memory, own.activation_unit)
    if isinstance(makespan, str):
        makespan = Real().read("schedule_makespan", makespan)
    if memory is None and file:
        memory = file.memory_limit
    asked = Question(
        load(path), costs=own, memory=memory, p2p_mode=p2p_mode or "overlapped",
        layers=make_layers(file.layers, own) if file and file.layers else None,
    )  # fmt: skip
    report = check(
        asked.made, memory=memory, costs=asked.stage_costs, p2p_mode=p2p_mode, makespan=makespan
    )
    return report, lambda: asked.timeline


def _require(report: Report) -> None:
    __tracebackhide__ = True
    if not report.ok:
        raise AssertionError(str(report))
