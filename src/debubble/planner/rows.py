"""Published measurements, predicted: every row of a file beside what was measured."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Mapping
from typing import Any

from debubble.core.errors import DebubbleError, FormatError
from debubble.interchange.text import read_text
from debubble.planner.cost.calibrate import calibrated
from debubble.planner.cost.published_efficiencies import Factors, shipped_factors
from debubble.planner.cost.step import step_time
from debubble.planner.memory.peaks import memory_of
from debubble.planner.row_plans import RowPlan, read_row

MAX_BYTES = 16 << 20
"""Most bytes of a file of rows."""
NEEDED = ("model", "gpu", "gpus", "tp", "pp", "global_batch", "step_s")
"""Columns without which a file is no file of rows."""


def run_rows(path: str, factors: Factors | None = None) -> list[dict[str, Any]]:
    """Predict every row of a CSV file.

    Parameters
    ----------
    path
        A file with columns ``source, model, layers, hidden, heads, kv_heads, ffn, vocab, seq,
        experts, topk, gpu, gpus, tp, pp, vp, cp, ep, dp, micro_batch, global_batch, recompute,
        zero, schedule, precision, step_s, mem_gb``. Rows whose column ``calibrate`` says ``yes``,
        ``true``, ``1`` or ``x`` give the efficiency of their GPU, tensor-parallel degree and
        precision.
    factors
        Efficiencies of everything else; the default are the shipped ones.

    Returns
    -------
    list of dict
        ``row`` (from 0), ``step_time``, ``measured``, ``error`` (signed share of the measured),
        ``memory`` and ``measured_memory`` in bytes of the fullest rank, ``assumed`` (what the row
        does not say), ``calibrated`` (whether the row gave an efficiency), and ``skipped`` with
        the reason, each None where there is none.

    Raises
    ------
    FormatError
        For a file that is no CSV with these columns.
    """
    table = read_rows(path)
    plans = [_plan(row) for row in table]
    given = factors if factors is not None else shipped_factors()
    marked = [_marked(row) and isinstance(plan, RowPlan) and plan.seconds is not None
              for row, plan in zip(table, plans, strict=True)]  # fmt: skip
    for plan, mark in zip(plans, marked, strict=True):
        if mark and isinstance(plan, RowPlan):
            given = _learned(given, plan)
    return [
        _result(index, plan, given, mark)
        for index, (plan, mark) in enumerate(zip(plans, marked, strict=True))
    ]


def read_rows(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file as dictionaries of text."""
    return parse_rows(read_text(path, MAX_BYTES), path)


def parse_rows(text: str, path: str) -> list[dict[str, str]]:
    """The rows in the text of a CSV file."""
    reader = csv.DictReader(io.StringIO(text))
    try:
        names = reader.fieldnames or []
        rows = list(reader)
    except csv.Error as error:
        raise FormatError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise FormatError(f"{path}: no column {', '.join(missing)}; these are needed: "
                          f"{', '.join(NEEDED)}")  # fmt: skip
    return [{key: value or "" for key, value in row.items() if key} for row in rows]


def _plan(row: Mapping[str, str]) -> RowPlan | str:
    """The row's plan, or why there is none."""
    try:
        return read_row(row)
    except (ValueError, ArithmeticError) as error:
        return str(error)


def _marked(row: Mapping[str, str]) -> bool:
    return row.get("calibrate", "").strip().lower() in ("yes", "true", "1", "x")


def _learned(factors: Factors, plan: RowPlan) -> Factors:
    assert plan.seconds is not None
    try:
        return calibrated(
            factors, plan.model, plan.cluster, plan.training, plan.candidate, plan.seconds
        )
    except DebubbleError:
        return factors


def _result(index: int, plan: RowPlan | str, factors: Factors, mark: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "row": index, "step_time": None, "measured": None, "error": None, "memory": None,
        "measured_memory": None, "assumed": [], "calibrated": mark, "skipped": None,
    }  # fmt: skip
    if isinstance(plan, str):
        return found | {"skipped": plan}
    found |= {
        "measured": plan.seconds, "measured_memory": plan.memory, "assumed": list(plan.assumed),
    }  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step = step_time(plan.model, plan.cluster, plan.training, plan.candidate, factors)
    except DebubbleError as error:
        return found | {"skipped": str(error)}
    gpu, training = plan.cluster.gpu, plan.training
    memory = memory_of(plan.model, gpu, training, plan.candidate, step.timeline)
    found["memory"] = max(rank.peak for rank in memory)
    found["step_time"] = step.seconds
    found["calibrated"] = mark or _gave(factors, plan)
    if plan.seconds:
        found["error"] = step.seconds / plan.seconds - 1
    return found


def _gave(factors: Factors, plan: RowPlan) -> bool:
    """Whether one of the efficiencies is from this very measurement."""
    own = (plan.cluster.gpu.name, plan.candidate.degrees.tp, plan.cluster.gpus, plan.seconds)
    return any((item.gpu, item.tp, item.gpus, item.seconds) == own for item in factors.table)
