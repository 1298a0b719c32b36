"""A framework is a row: a made-up one is in flags, answers, refusals, help and completion."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest

import debubble as db
from debubble.cli import completion
from debubble.planner.case import Case
from debubble.planner.frameworks.habits import Habits
from debubble.planner.frameworks.rule import ORDER, Refusal, Rule
from debubble.planner.frameworks.table import FRAMEWORKS, Framework
from debubble.playground import plans

DOCS = Path(__file__).parents[3] / "docs"


def few_ranks(case: Case) -> Refusal | None:
    """Pipelines have at most two ranks."""
    return Refusal(f"pp {case.degrees.pp}", {"pp": 2}) if case.degrees.pp > 2 else None


def lines(case: Case) -> list[str]:
    return [f"ranks: {case.degrees.pp}"]


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    habits = Habits("own", "our software", bucket=1e9)
    row = Framework(
        "own", "Our framework", (Rule("few", "ranks", ORDER, few_ranks),), lines, habits
    )
    monkeypatch.setitem(FRAMEWORKS, "own", row)


def planned(pp: int, framework: str | None = None) -> db.Plan:
    return db.plan(
        "llama-3.2-1b", "h100", 4, 8, 2048, tp=1, pp=pp, schedule="1f1b", microbatch_size=1,
        zero=1, recompute="none", framework=framework, top=1,
    )  # fmt: skip


def test_answers_have_its_flags() -> None:
    assert planned(2).to_dict()["plans"][0]["flags"]["own"].endswith("ranks: 2\n")
    assert "Our framework does not run this plan: pp 4" in planned(4).flags("own")
    assert "as our software keeps it" in planned(2).flags("own")


def test_its_rules_and_habits_count() -> None:
    own, usual = planned(2, "own"), planned(2)
    assert max(own.best.peaks) > max(usual.best.peaks) + 3e9
    assert "; for Our framework" in str(own)
    with pytest.raises(db.ParameterError, match="own does not run this: pp 4"):
        planned(4, "own")
    with pytest.raises(db.ParameterError, match="did you mean 'own'"):
        planned(2, "owm")


def test_help_completion_and_the_page_have_it() -> None:
    spec = util.find_spec("debubble.planner.options")
    assert spec is not None
    assert spec.loader is not None
    options = util.module_from_spec(spec)
    spec.loader.exec_module(options)
    assert "primus, own, or any" in options.ROWS["framework"].help
    assert completion.BY_NAME["framework"]("ow") == ["own"]
    assert "own" in plans.inputs()["frameworks"]


def test_the_page_of_plans_names_every_framework() -> None:
    text = (DOCS / "plan.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in FRAMEWORKS if name != "own")
