"""What ``debubble doctor`` finds out about a computer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import debubble as db
from debubble.cli import doctor
from tests import packages
from tests.contracts import follows_its_contract

Run = Callable[..., Any]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less to import and to measure, and kernels that need not be there."""
    monkeypatch.setattr(doctor, "EXTRAS", {"serve": ("starlette",), "torch": ("no_such_module",)})
    monkeypatch.setattr(doctor, "MICROBATCHES", 64)
    monkeypatch.setattr(doctor, "RUNS", 2)


def test_extras_and_packages_are_those_of_the_project() -> None:
    extras = packages.PROJECT["optional-dependencies"]
    # Others are made of these, or are part of the default install.
    assert set(doctor.EXTRAS) == set(extras) - {"optimize", "run", "all", "docs", "dev"}
    for name, modules in doctor.EXTRAS.items():
        needed = " ".join(extras[name])
        assert all(module.replace(".", "-") in needed for module in modules), name
        assert name in doctor.FOR
    named = {row.split(">=")[0] for row in packages.PROJECT["dependencies"]}
    assert set(doctor.REQUIRED) == named


def test_it_says_what_works(run: Run, small: None) -> None:
    out = run("doctor").out
    assert f"debubble  {db.__version__}" in out
    assert "[serve]" in out
    assert "no_such_module is missing; pip install 'debubble[torch]'" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 100
    assert "ns" in out.splitlines()[-2] + out.splitlines()[-1]


def test_json_has_the_same(run: Run, small: None) -> None:
    found = run("doctor", "--json").data
    one = {"torch": found["extras"]["torch"]}
    follows_its_contract("doctor", found | {"extras": one})
    assert found["debubble"] == db.__version__
    assert found["packages"]["numpy"]
    assert found["extras"]["serve"]["works"] is True
    assert found["extras"]["torch"] == {
        "works": False, "reason": "no_such_module is missing",
        "packages": {"no_such_module": None},
    }  # fmt: skip
    assert found["torch"] is None
    assert found["speed"]["actions"] == 2 * doctor.RANKS * 64
    assert found["speed"]["ns_per_action"] > 0
    assert found["speed"]["ns_per_action_again"] > 0


def test_what_is_broken_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "breaks_here.py").write_text("import no_such_part", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "EXTRAS", {"serve": ("breaks_here",)})
    found = doctor._extra("serve")
    assert found["works"] is False
    assert found["reason"] == "breaks_here: No module named 'no_such_part'"
    assert "breaks_here" not in sys.modules


def test_warnings_of_packages_are_not_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, recwarn: pytest.WarningsRecorder
) -> None:
    source = "import warnings\nwarnings.warn('a faster package is missing')"
    (tmp_path / "warns_here.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "EXTRAS", {"serve": ("warns_here",)})
    assert doctor._extra("serve")["works"] is True
    assert not recwarn.list


def test_it_says_that_there_is_no_machine_code(
    run: Run, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "load_compiler", lambda: False)
    assert "numba cannot be loaded; pip install numba" in " ".join(run("doctor").out.split())
    assert run("doctor", "--json").data["speed"]["machine_code"] is False
