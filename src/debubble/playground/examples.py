"""Examples that the tabs of plans and traces start with.

The plan comes with the package, because a search takes seconds. Run ``python -m
debubble.playground.examples`` to write it again after a change of the planner.
"""

from __future__ import annotations

import gzip
import json
import math
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from debubble.playground.state import PlanForm

PLAN_QUESTION = PlanForm(model="llama-3.1-8b", gpu="h100", gpus=64, batch=512, sequence=8192)
"""Question of the plan; the form of the page starts with it."""

PLAN_FILE = "example_plan.json.gz"


@cache
def example_plan() -> dict[str, Any]:
    """Return the answer of :func:`debubble.playground.plans.plan` to :data:`PLAN_QUESTION`."""
    content = resources.files("debubble.playground").joinpath(PLAN_FILE).read_bytes()
    answer: dict[str, Any] = json.loads(gzip.decompress(content))
    return answer


@cache
def example_report() -> dict[str, Any]:
    """Return the diagnosis of the trace that comes with the package."""
    from debubble.diagnosis.diagnose import diagnose
    from debubble.diagnosis.example import example_trace
    from debubble.diagnosis.readers.folder import read
    from debubble.view.trace_view import trace_view

    return trace_view(diagnose(read(str(example_trace()))), path="--example")


def _write_plan() -> None:
    from debubble.playground.plans import plan
    from debubble.playground.searches import Search

    # It takes the time that it needs.
    answer = plan(PLAN_QUESTION, Search("", began=math.inf, polled=math.inf))
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    Path(__file__).with_name(PLAN_FILE).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    _write_plan()
