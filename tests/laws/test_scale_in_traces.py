"""Times a thousand times as long, or as short, change nothing but the unit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import debubble as db
from debubble.core.costs import COST_FIELDS
from debubble.diagnosis.changes import Change
from debubble.diagnosis.diagnose import Diagnosis, diagnose
from debubble.diagnosis.observed import Columns, Observed
from debubble.diagnosis.readers.table import UNITS
from debubble.diagnosis.report import account_columns, report
from debubble.diagnosis.what_if import WhatIf, faster, with_changes
from tests.conftest import EXPLORES
from tests.diagnosis.planted import PLANTED
from tests.laws.jobs import JOBS

FACTORS = (1e-3, 1e3)
NAMES = (*JOBS, *PLANTED)


@cache
def observed(name: str) -> Observed:
    return JOBS[name]().observed() if name in JOBS else PLANTED[name](0).made.observed()


def scaled(seen: Observed, factor: float) -> Observed:
    """The same run with all times so many times as long."""

    def of(rows: Any) -> Any:
        assert isinstance(rows, Columns)
        times = [name for name, kind in rows.types().items() if kind == np.float64]
        return replace(rows, **{name: getattr(rows, name) * factor for name in times})

    return replace(
        seen, actions=of(seen.actions), messages=of(seen.messages), pauses=of(seen.pauses)
    )


def answers(found: Diagnosis) -> list[WhatIf]:
    """What-ifs that name no time."""
    texts = ["stage0*=0.5", "rank0.F*=2", "gaps=0"]
    texts += ["p2p=0", "p2p*=3"] if found.schedule.ranks > 1 else []
    return [with_changes(found.replay, [Change.parse(text)]) for text in texts]


class Said(NamedTuple):
    """All that a diagnosis says: what has no unit, what is in seconds, and gains of orders."""

    ratios: dict[str, Any]
    times: list[float]
    gains: dict[str, float]


def said(found: Diagnosis) -> Said:
    asked, others = answers(found), faster(found.replay)
    gains = {other.text: other.gain for other in others}
    return Said(ratios(found, asked, others), times(found, asked), gains)


@cache
def unscaled(name: str) -> Said:
    return said(diagnose(observed(name)))


def ratios(found: Diagnosis, asked: list[WhatIf], others: list[WhatIf]) -> dict[str, Any]:
    """All that a diagnosis says and that has no unit."""
    slow = found.slowdown
    return {
        "name": found.name.text,
        "slowdown": [slow.total, *slow.stage, *slow.rank, *slow.copy],
        "bubble": [found.bubble_ratio, found.predicted.bubble_ratio, found.replay_error],
        "findings": [(one.cause, str(one.where)) for one in found.findings],
        "gains": [x for one in found.findings for x in (one.gain or 0, one.persistence, one.alone)],
        "mode": found.mode[0],
        "left_out": dict(found.left_out),
        "faster": sorted(one.text for one in others),
        "gain": [one.gain for one in asked],
        "accounts": [sorted(one.causes) for one in found.accounts],
    }  # fmt: skip


def times(found: Diagnosis, asked: list[WhatIf]) -> list[float]:
    """All that it says in seconds."""
    every = [found.predicted.makespan, *found.run.step_times.tolist()]
    every += [one.seconds for one in found.findings]
    every += [*np.nan_to_num([found.clocks.half_width]), *found.clocks.offsets.ravel().tolist()]
    every += [x for one in asked for x in (one.before, one.after, one.plan)]
    every += [x for one in found.accounts for x in (one.compute, one.step, *one.causes.values())]
    for name, spec in COST_FIELDS.items():
        if spec.timed:
            every += np.ravel(_plain(getattr(found.costs, name))).tolist()
    return every


def _plain(value: Any) -> Any:
    return list(value.values()) if isinstance(value, dict) else 0.0 if value is None else value


@pytest.mark.parametrize(
    ("name", "factor"),
    list(product(NAMES, FACTORS)) if EXPLORES else list(zip(NAMES, cycle(FACTORS), strict=False)),
)
def test_only_the_unit_changes(name: str, factor: float) -> None:
    one, two = unscaled(name), said(diagnose(scaled(observed(name), factor)))
    for key, value in one.ratios.items():
        approximate = value and isinstance(value, list) and isinstance(value[0], float)
        assert two.ratios[key] == (pytest.approx(value, abs=1e-6) if approximate else value), key
    # An order that is made for costs may go another way where two ways are equally long.
    assert two.gains == pytest.approx(one.gains, abs=1e-2)
    expected = np.array(one.times) * factor
    assert np.array(two.times) == pytest.approx(expected, rel=1e-4, abs=1e-9 * factor)


@pytest.mark.parametrize("factor", FACTORS)
def test_times_are_printed_with_as_many_digits(factor: float) -> None:
    """Also where a whole step takes less than a millisecond."""
    found = diagnose(scaled(observed("slow stage"), factor))
    compute = account_columns(found, 512)[1]
    for cell, one in zip(compute.cells, found.accounts, strict=True):
        assert float(cell) == pytest.approx(one.compute * 1e3, rel=1e-2)
    for before, after in re.findall(r"([0-9.]+) → ([0-9.]+) ms", report(found, 1 << 12)):
        assert float(before) > float(after) > 0


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_of_a_table_changes_nothing(unit: str, tmp_path: Path) -> None:
    """The same times in seconds, milliseconds, microseconds and nanoseconds."""
    # Findings have the name of the file, so both have the same.
    found = [db.read_trace(written(tmp_path / "run.csv", name)) for name in ("", unit)]
    one, two = (json.dumps(_rounded(each.to_dict()), sort_keys=True) for each in found)
    assert one == two


def written(path: Path, unit: str) -> Path:
    """A run as a table with times in a unit."""
    actions = observed("noisy transfers").actions
    lines = [f"step,rank,action,start{unit},end{unit}"]
    for at in range(len(actions)):
        name = f"{actions.stage[at]}{db.Kind(int(actions.kind[at])).name}{actions.microbatch[at]}"
        times = (float(column[at]) / UNITS[unit] for column in (actions.start, actions.end))
        lines.append(f"{actions.step[at]},{actions.rank[at]},{name},{','.join(map(repr, times))}")
    path.write_text("\n".join(lines) + "\n")
    return path


def _rounded(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_rounded(value) for value in data]
    return float(f"{data:.6g}") if isinstance(data, float) and abs(data) > 1e-9 else data
