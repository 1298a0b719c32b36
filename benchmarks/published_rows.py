"""Predict published steps: every row of a file next to what was measured.

python benchmarks/published_rows.py ROWS.csv [--json]
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from debubble.analysis.layout import table
from debubble.core.errors import DebubbleError
from debubble.interchange.text import read_text
from debubble.planner.cost.calibrate import calibrated
from debubble.planner.cost.calibration_files import MAX_BYTES
from debubble.planner.cost.measured_rows import MeasuredRow, parse_rows, read_row
from debubble.planner.cost.published_efficiencies import Factors, shipped_factors
from debubble.planner.cost.step import step_time
from debubble.planner.memory.peaks import memory_of
from debubble.planner.search.evaluate import Evaluated


def run_rows(path: str, factors: Factors | None = None) -> list[dict[str, Any]]:
    """Predict every row of a CSV file.

    Parameters
    ----------
    path
        A file with the columns of :mod:`debubble.planner.cost.measured_rows`. Rows whose column
        ``calibrate`` says ``yes``, ``true``, ``1`` or ``x`` give the efficiency of their GPU,
        tensor-parallel degree and precision.
    factors
        Efficiencies of everything else; the default are the shipped ones.

    Returns
    -------
    list of dict
        ``row`` (from 0), ``step_time``, ``measured``, ``error`` (signed share of the measured),
        ``step_time_error`` (seconds by which 9 of 10 such steps are off at most), ``memory`` and
        ``measured_memory`` in bytes of the fullest rank, ``memory_error`` (bytes), ``fits``
        (``"yes"``, ``"maybe"`` or ``"no"``), ``assumed`` (what the row does not say),
        ``calibrated`` (whether the row gave an efficiency), and ``skipped`` with the reason, each
        None where there is none.

    Raises
    ------
    FormatError
        For a file that is no CSV with these columns.
    """
    table = read_rows(path)
    plans = [_plan(row, index) for index, row in enumerate(table)]
    given = factors if factors is not None else shipped_factors()
    marked = [_marked(row) and isinstance(plan, MeasuredRow) and plan.seconds is not None
              for row, plan in zip(table, plans, strict=True)]  # fmt: skip
    for plan, mark in zip(plans, marked, strict=True):
        if mark and isinstance(plan, MeasuredRow):
            given = _learned(given, plan)
    return [
        _result(index, plan, given, mark)
        for index, (plan, mark) in enumerate(zip(plans, marked, strict=True))
    ]


def read_rows(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file as dictionaries of text.

    Notes that name kernels, as those of arXiv 2311.05610 do, say whether one computes norms.
    """
    rows = parse_rows(read_text(path, MAX_BYTES), path)
    for row in rows:
        if (notes := row.get("notes", "")).startswith("kernel "):
            row.setdefault("fused_norms", "yes" if "RMS kernel" in notes else "no")
    return rows


def _plan(row: Mapping[str, str], index: int) -> MeasuredRow | str:
    """The row's plan, or why there is none."""
    try:
        return read_row(row, f"row {index}")
    except (ValueError, ArithmeticError) as error:
        return str(error)


def _marked(row: Mapping[str, str]) -> bool:
    return row.get("calibrate", "").strip().lower() in ("yes", "true", "1", "x")


def _learned(factors: Factors, plan: MeasuredRow) -> Factors:
    assert plan.seconds is not None
    try:
        return calibrated(plan.with_factors(factors), plan.seconds)
    except DebubbleError:
        return factors


def _result(index: int, plan: MeasuredRow | str, factors: Factors, mark: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "row": index, "step_time": None, "measured": None, "error": None, "step_time_error": None,
        "memory": None, "measured_memory": None, "memory_error": None, "fits": None, "assumed": [],
        "calibrated": mark, "skipped": None,
    }  # fmt: skip
    if isinstance(plan, str):
        return found | {"skipped": plan}
    found |= {
        "measured": plan.seconds, "measured_memory": plan.memory, "assumed": list(plan.assumed),
    }  # fmt: skip
    request = replace(plan.request, factors=factors)
    case = request.case(plan.candidate)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step = step_time(case)
    except DebubbleError as error:
        return found | {"skipped": str(error)}
    peaks = tuple(rank.peak for rank in memory_of(case, step.timeline))
    known = Evaluated(request, plan.candidate, step.seconds, peaks)
    found |= {
        "step_time": step.seconds, "step_time_error": known.step_error,
        "memory": max(peaks), "memory_error": known.memory_error, "fits": known.verdict,
    }  # fmt: skip
    if plan.seconds:
        found["error"] = step.seconds / plan.seconds - 1
    return found


def print_rows(path: str, *, as_json: bool) -> None:
    """Print every row of a file with its prediction, as a table or as JSON."""
    found = run_rows(path)
    if as_json:
        print(json.dumps({"rows": found}))
        return
    lines = [["row", "measured", "predicted", "error", "memory", "measured", ""]]
    for row in found:
        times = [_cell(row[name], "{:.4g} s") for name in ("measured", "step_time")]
        error = _cell(row["error"], "{:+.1%}")
        sizes = [_cell(row[name], "{:.1f} GB", 1e9) for name in ("memory", "measured_memory")]
        lines.append([str(row["row"]), *times, error, *sizes, row["skipped"] or ""])
    print("\n".join(table(lines, (6,))))


def _cell(value: float | None, form: str, unit: float = 1.0) -> str:
    return "" if value is None else form.format(value / unit)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Predict published steps.")
    parser.add_argument("rows")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    print_rows(arguments.rows, as_json=arguments.json)
