"""The plugin for pytest in other projects, run by pytest itself; the hook and the action."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import debubble as db

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]
SIZES = {"ranks": 2, "microbatches": 4}
db.simulate(db.make("1f1b", **SIZES))  # pytester forgets modules that a test loads first
BAD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"


def run(folder: pytest.Pytester, *words: str) -> pytest.RunResult:
    # Also where no entry point of an installed package names it.
    return folder.runpytest_inprocess("-p", "debubble.pytest_plugin", *words)


def test_files_by_their_name_are_tests(pytester: pytest.Pytester) -> None:
    db.make("1f1b", **SIZES).save(pytester.path / "good.schedule.csv")
    db.make("zb-h1", **SIZES).save(pytester.path / "good.schedule.json")
    (pytester.path / "bad.schedule.csv").write_text(BAD)
    (pytester.path / "no.schedule.csv").write_text("0X0\n")
    db.make("1f1b", **SIZES).save(pytester.path / "other.csv")
    result = run(pytester)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*1B1 is missing; add it on rank 1", "*no.schedule.csv: row 1*"])
    assert "Traceback" not in result.stdout.str()


def test_settings_are_limits(pytester: pytest.Pytester) -> None:
    db.make("1f1b", **SIZES).save(pytester.path / "x.schedule.csv")
    (pytester.path / "costs.yaml").write_text("times: {F: 1, B: 2}\n")
    settings = "[pytest]\nschedule_costs = costs.yaml\nschedule_{} = {}\n"
    for name, good, bad in (("makespan", 15, 14.9), ("memory", 2, 1)):
        for value, outcome in ((good, {"passed": 1}), (bad, {"failed": 1})):
            pytester.makeini(settings.format(name, value))
            run(pytester).assert_outcomes(**outcome)
    (pytester.path / "x.schedule.csv").write_text("0F0\n1F0,1B0\n")
    pytester.makeini(settings.format("makespan", 15))
    run(pytester).stdout.fnmatch_lines(["*0B0 is missing; add it on rank 0"])


def test_the_fixture_checks_and_simulates(pytester: pytest.Pytester) -> None:
    db.make("1f1b", **SIZES).save(pytester.path / "x.csv")
    pytester.makepyfile("""
        import debubble as db

        def test_time(schedule_file):
            timeline = schedule_file("x.csv", costs=db.Costs(F=1, B=2), memory=2, makespan=15)
            assert timeline.makespan == 15

        def test_memory(schedule_file):
            schedule_file("x.csv", memory=1)
    """)
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["E*rank 0 holds up to 2 activation units, more than the limit of 1*"]
    )


def shell(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=os.environ | {"PATH": path} | env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.processes
def test_the_hook_and_the_action_check_files(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    script = action["runs"]["steps"][-1]
    (tmp_path / "a").mkdir()
    db.make("1f1b", **SIZES).save(tmp_path / "a/x.schedule.csv")
    files = {key: str(value["default"]) for key, value in action["inputs"].items()}
    env = {"FILES": files["files"], "ARGUMENTS": "--memory 2"}
    assert set(script["env"]) == set(env)
    assert shell(f"{hook['entry']} a/x.schedule.csv", tmp_path).returncode == 0
    (tmp_path / "bad.schedule.csv").write_text(BAD)
    done = shell(script["run"], tmp_path, **env)
    assert (done.returncode, done.stderr) == (1, "")
    assert "\na/x.schedule.csv: ok: 16 actions" in f"\n{done.stdout}"
    assert "bad.schedule.csv: 1 problem in bad.schedule.csv" in done.stdout
    assert shell(script["run"], tmp_path, **env | {"FILES": "*.none"}).returncode == 1
