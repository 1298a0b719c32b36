"""Every cost file in examples/ is read, and what it expects comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import debubble as db
from debubble.interchange.cost_files import load_costs
from debubble.schedules.registry import find
from tests import oracle

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = sorted(path for path in EXAMPLES.rglob("*.yaml") if path.parent.name != "sweeps")
RESULTS = {"makespan", "stage_time", "stage_bubble_rate", "bubble_ratio", "peak_activation"}


def cases() -> list[Any]:
    found = []
    for path in FILES:
        expected = yaml.safe_load(path.read_text(encoding="utf-8")).get("expected") or {}
        for case in expected.get("cases", []):
            merged = {key: value for key, value in expected.items() if key != "cases"} | case
            wanted = {key: merged.pop(key) for key in list(merged) if key in RESULTS}
            refused = merged.pop("refused", None)
            label = "-".join(str(value) for value in merged.values())
            found.append(pytest.param(path, merged, wanted, refused, id=f"{path.stem}:{label}"))
    return found


@pytest.mark.parametrize(("path", "parameters", "wanted", "refused"), cases())
def test_example_gives_the_published_numbers(
    path: Path, parameters: dict[str, Any], wanted: dict[str, Any], refused: str | None
) -> None:
    file = load_costs(path)
    arguments = {"ranks": file.ranks, "microbatches": file.microbatches} | parameters
    name = arguments.pop("schedule")
    if find(name).chunks is None:
        arguments.setdefault("chunks", file.chunks)
    if refused is not None:
        with pytest.raises(db.ParameterError, match=refused):
            db.make(name, **arguments)
        return
    schedule = db.make(name, costs=file.costs, **arguments)
    timeline = db.simulate(schedule, file.costs)
    assert timeline.makespan == pytest.approx(oracle.simulate(schedule, file.costs).makespan)
    for key, value in wanted.items():
        found = getattr(timeline, key)
        if key == "peak_activation" and isinstance(value, list):
            assert found.tolist() == pytest.approx(value)
        elif key == "stage_bubble_rate":
            assert f"{found:.4f}" == f"{value:.4f}"
        else:
            assert np.max(found) == pytest.approx(value, abs=5e-4)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_example_is_complete(path: Path) -> None:
    file = load_costs(path)
    assert file.name
    assert file.source
    assert file.ranks
    assert file.microbatches
