"""A kind of work that is added as the guide says: two rows and a member, in a copy of the package.

Everything else follows from the tables: its time, its name, its color, and the tests that go over
all kinds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edited_package import environment_with

ROOT = Path(__file__).parents[1]

MEMBER = """
    E = 22
    \"\"\"Exchange of tokens between experts.\"\"\"
"""
ROW = """
    KindSpec(
        Kind.E, "exchange of tokens", Stream.COMPUTE, Per.UNIT, (Need((F,)),), cost="E", letter="E",
        color="#67b800",
    ),
"""
FIELD = """
    E: Value = cost(0.0, "stage", "absent", "0.5", "exchange of tokens between experts", timed=True)
"""

KIND_END = "\n\n\n@dataclass(frozen=True)\nclass Need:"
KINDS_END = '\n)  # fmt: skip\n"""A row for every kind'
LAUNCH = "\n    launch: float = timed("
EDITS = {
    "core/kinds.py": (
        (KIND_END, MEMBER + KIND_END),
        (KINDS_END, ROW.rstrip("\n") + KINDS_END),
    ),
    "core/costs.py": ((LAUNCH, FIELD.rstrip("\n") + LAUNCH),),
}
"""What the guide says, as pieces of text and what stands in their places."""

SCRIPT = """
import json
import debubble as db
from debubble.analysis.summary import summary
from debubble.core.kinds import Kind
from debubble.view.colors import palette_of, shade, xterm
from debubble.view.timeline_data import encode
from tests.kinds import with_work

plain = db.make("1f1b", ranks=2, microbatches=2)
with_e = with_work(plain, Kind.E)
costs = db.Costs(F=1, B=2, E=[0.5, 0.25])
timeline = db.simulate(with_e, costs)
rank_times = db.Costs.per_rank(F=1, B=2, E=0.5)
forms = [summary(db.simulate(schedule, rank_times)) for schedule in (plain, with_e)]
with_e.save("e.json")
kinds = encode([timeline])["kinds"]
print(json.dumps({
    "programs": [[str(action) for action in program] for program in with_e],
    "starts": timeline.start.tolist(),
    "makespan": timeline.makespan,
    "free": db.simulate(with_e, db.Costs(F=1, B=2)).makespan,
    "sliced": db.simulate(
        with_work(db.make("seq1f1b", ranks=2, microbatches=2, slices=2), Kind.E), costs
    ).busy.tolist(),
    "lengths": db.simulate(with_e, db.Costs(F=1, B=2, E=0.5, microbatch=[2, 1])).busy.tolist(),
    "sensitivity": timeline.sensitivity(),
    "times": dict(zip(timeline.graph.cost_names(), timeline.costs.tolist())),
    "quantities": [[form["quantity"] for form in of["closed_forms"]] for of in forms],
    "ok": db.check(with_e).ok,
    "color": [row["color"] for row in kinds if row["name"] == "E"],
    "shades": [shade(Kind.E), palette_of("grey").shade(Kind.E), xterm(Kind.E)],
    "same": db.load("e.json") == with_e,
}))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment in which the package has one kind more."""
    return environment_with(EDITS, tmp_path_factory.mktemp("added"), ROOT)


def ran(package: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A process with that package."""
    return subprocess.run(
        [sys.executable, *words], env=package, cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.processes
def test_it_costs_what_it_should_and_has_its_name_and_color(
    package: dict[str, str], tmp_path: Path
) -> None:
    done = ran(package, tmp_path, "-c", SCRIPT)
    assert not done.stderr
    found = json.loads(done.stdout)
    assert found["programs"] == [
        ["0F0", "0E0", "0F1", "0E1", "0B0", "0B1"],
        ["1F0", "1E0", "1B0", "1F1", "1E1", "1B1"],
    ]
    # By hand: rank 1 is the later one, E of 0.25 and B of 2 behind each of its forwards.
    assert found["starts"] == [0, 1, 1.5, 2.5, 4.25, 7.5, 1, 2, 2.25, 4.25, 5.25, 5.5]
    assert found["makespan"] == 9.5
    assert found["free"] == 9
    assert found["sliced"] == [2 * 3.5, 2 * 3.25]
    assert found["lengths"] == [3 * 3.5] * 2
    paid = found["sensitivity"]
    assert paid["E of stage 1"] == 2
    assert sum(found["times"][name] * count for name, count in paid.items()) == found["makespan"]
    assert found["times"]["E of stage 0"] == 0.5
    assert found["times"]["E of stage 1"] == 0.25
    # Formulas of times know nothing of it; that of memory holds still.
    assert found["quantities"] == [["makespan", "peak_activation"], ["peak_activation"]]
    assert found["ok"]
    assert found["same"]
    assert found["color"] == [found["shades"][0]] == ["#67b800"]


@pytest.mark.processes
def test_the_command_line_has_its_cost(package: dict[str, str], tmp_path: Path) -> None:
    costs = ran(package, tmp_path, "-m", "debubble", "costs", "--init")
    assert "E: 0.5" in costs.stdout
    done = ran(package, tmp_path, "-m", "debubble", "simulate", "1f1b", "-p", "2", "-m", "2",
               "--times", "F=1,B=2,E=0.5/0.25", "--json")  # fmt: skip
    assert not done.stderr
    assert json.loads(done.stdout)["makespan"] == 9


@pytest.mark.slow
@pytest.mark.processes
def test_tests_over_all_kinds_hold_for_it(package: dict[str, str]) -> None:
    names = ("test_kinds", "core/test_kind_relations", "laws/test_effect_in_costs")
    tests = [f"tests/{name}.py" for name in names]
    some = ("-m", "not slow", "-rp", "-p", "no:cacheprovider")
    done = ran(package, ROOT, "-m", "pytest", "-q", "-x", *some, *tests)
    assert done.returncode == 0, done.stdout[-3000:]
    for test in ("test_kinds.py::test_it_is_checked", "test_kinds.py::test_the_page_gets_it",
                 "laws/test_effect_in_costs.py::test_a_kind_pays_under_its_own_name"):  # fmt: skip
        assert f"PASSED tests/{test}[E]" in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kinds", ' cost="E",', ""),
        ("kinds", '\n        color="#67b800",', ""),
        ("costs", "    E: Value = cost(", "    E2: Value = cost("),
    ],
)
def test_what_is_left_out_is_an_error_at_once(
    package: dict[str, str], tmp_path: Path, name: str, old: str, new: str
) -> None:
    home = Path(package["PYTHONPATH"].split(os.pathsep)[0])
    shutil.copytree(home / "debubble", tmp_path / "debubble")
    path = tmp_path / "debubble" / "core" / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    there = package | {"PYTHONPATH": str(tmp_path)}
    done = ran(there, tmp_path, "-c", "import debubble.core.costs")
    assert "AssertionError" in done.stderr
