"""Pipeline-parallel schedules: generate, check, simulate, see, compare.

>>> import debubble as db
>>> timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8), db.Costs(F=1, B=2))
>>> timeline.makespan, timeline.bubble_ratio
(33.0, 0.2727272727272727)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from debubble._version import __version__ as __version__
from debubble.core.hooks import register_hooks

if TYPE_CHECKING:
    from debubble.analysis.check import Report, check
    from debubble.analysis.compare import Comparison, compare
    from debubble.core.actions import Action, Kind
    from debubble.core.costs import Costs
    from debubble.core.errors import (
        CostError,
        DebubbleDeprecationWarning,
        DebubbleError,
        FormatError,
        ParameterError,
        ScheduleError,
    )
    from debubble.core.placement import Placement
    from debubble.core.schedule import Schedule
    from debubble.diagnosis.diagnose import Diagnosis, read_trace
    from debubble.engine.ensembles import Spread
    from debubble.engine.jitter import Jitter
    from debubble.engine.timeline import Timeline, simulate
    from debubble.interchange.files import load
    from debubble.optimize.result import Result
    from debubble.optimize.search import optimize
    from debubble.schedules.registry import ClosedForm, Constraint, make, register, schedules

_HOME = {
    "Report": "analysis.check",
    "check": "analysis.check",
    "Comparison": "analysis.compare",
    "compare": "interchange.named",
    "load": "interchange.files",
    "Action": "core.actions",
    "Diagnosis": "diagnosis.diagnose",
    "Kind": "core.actions",
    "Costs": "core.costs",
    "CostError": "core.errors",
    "DebubbleDeprecationWarning": "core.errors",
    "DebubbleError": "core.errors",
    "FormatError": "core.errors",
    "ParameterError": "core.errors",
    "ScheduleError": "core.errors",
    "Jitter": "engine.jitter",
    "Spread": "engine.ensembles",
    "Placement": "core.placement",
    "Result": "optimize.result",
    "Schedule": "core.schedule",
    "Timeline": "engine.timeline",
    "simulate": "engine.timeline",
    "ClosedForm": "schedules.registry",
    "Constraint": "schedules.registry",
    "make": "interchange.named",
    "optimize": "optimize",
    "read_trace": "diagnosis.diagnose",
    "register": "schedules.registry",
    "schedules": "schedules",
}

register_hooks(
    {
        "save_schedule": "debubble.interchange.files:save",
        "plot_timeline": "debubble.view.figure:plot",
        "save_timelines": "debubble.view.files:save",
        "timelines_html": "debubble.view.page:cell",
        "render_figure": "debubble.view.figure:render",
        "save_table": "debubble.view.latex:save",
    }
)

__all__ = [
    "Action",
    "ClosedForm",
    "Comparison",
    "Constraint",
    "CostError",
    "Costs",
    "DebubbleDeprecationWarning",
    "DebubbleError",
    "Diagnosis",
    "FormatError",
    "Jitter",
    "Kind",
    "ParameterError",
    "Placement",
    "Report",
    "Result",
    "Schedule",
    "ScheduleError",
    "Spread",
    "Timeline",
    "check",
    "compare",
    "load",
    "make",
    "optimize",
    "read_trace",
    "register",
    "schedules",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # Importing debubble costs nothing until a name is used: command lines start fast.
    if name in _HOME:
        home = importlib.import_module(f"debubble.{_HOME[name]}")
        value = home if name == _HOME[name] else getattr(home, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'debubble' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
