"""SIGKILL at any moment: nothing that was reported is lost, and nothing is computed twice."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from debubble.sweeps import Results, read_spec, run
from tests.conftest import EXPLORES
from tests.forkserver import forked
from tests.sweeps.sweeper import END, sweep

SPEC = """
command: simulate
options: {microbatches: 4}
grid:
  schedule: [1f1b, gpipe, zb-h1, dualpipe]
  ranks: [2, 3, 4]
samples:
  count: 40
  draw: {costs.p2p: {from: 0, to: 1}}
"""
KILLS = 50 if EXPLORES else 12


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "sweep.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def whole(spec: Path) -> dict[Any, Any]:
    """Results of a run that nobody disturbs."""
    path = spec.with_name("whole.sqlite")
    end = run(spec, path, jobs=1)
    assert end.total == end.here == 480
    return kept(path)


def kept(path: Path) -> dict[Any, Any]:
    """Rows by schedule, ranks and cost, each with the seconds that it took."""
    results = Results.read(path)
    wanted = ("schedule", "ranks", "costs.p2p", "makespan", "error", "seconds")
    # Before the first results have come in, some columns are not there.
    rows = results.select(*(name for name in wanted if name in results.columns))
    assert len(rows) == len({row[:3] for row in rows}), "no point is there twice"
    return {row[:3]: row[3:] for row in rows}


def killed(spec: Path, path: Path, backend: str, count: int, delay: float, alone: float) -> int:
    """Start a sweep, and kill it some time after some reports; how many points it reported.

    -1 where it was at its end before.
    """
    reports, sender = forked.Pipe(duplex=False)
    process = forked.Process(target=sweep, args=(str(spec), str(path), backend, alone, sender))
    process.start()
    sender.close()
    said = [0]
    try:
        said.extend(reports.recv() for _ in range(count))
        time.sleep(delay)
        process.kill()
        while True:
            said.append(reports.recv())
    except EOFError:
        process.join()
    return END if END in said else said[-1]


def check(before: dict[Any, Any], after: dict[Any, Any], reported: int) -> None:
    """Nothing that was reported is lost, and nothing that was there is computed again."""
    assert len(after) >= reported
    assert {key: after.get(key) for key in before} == before


def same(found: dict[Any, Any], whole: dict[Any, Any]) -> None:
    """The same results, whatever time they took."""
    assert {k: v[:-1] for k, v in found.items()} == {k: v[:-1] for k, v in whole.items()}


@pytest.mark.slow
@pytest.mark.processes
def test_killed_many_times(spec: Path, whole: dict[Any, Any], tmp_path: Path) -> None:
    chance = random.Random(14)
    kills = files = 0
    path = tmp_path / "0.sqlite"
    before: dict[Any, Any] = {}
    while kills < KILLS:
        # Mostly before there are workers, which take a second to start; sometimes with them.
        count = chance.choice((0, 1, 1, 2, 2, 3, 3, 4, 5, 8))
        delay = chance.uniform(0, 0.05 if count else 0.1)
        reported = killed(spec, path, "processes", count, delay, chance.choice((0.05, 9, 9)))
        if reported < 0:
            same(kept(path), whole)
            files += 1
            path, before = tmp_path / f"{files}.sqlite", {}
            continue
        kills += 1
        if path.exists() and (reported or before):
            after = kept(path)
            check(before, after, reported)
            before = after
    assert run(spec, path, jobs=1).here == len(whole) - len(before)
    after = kept(path)
    check(before, after, 0)
    same(after, whole)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_killed_on_a_cluster(
    backend: str, module: str, spec: Path, whole: dict[Any, Any], tmp_path: Path
) -> None:
    pytest.importorskip(module)
    path = tmp_path / "x.sqlite"
    reported = killed(spec, path, backend, 9, 0.01, alone=0)
    assert reported > 0
    before = kept(path)
    assert reported <= len(before) < len(whole)
    # A cluster takes seconds to start, and whoever goes on has only the file.
    end = run(spec, path, jobs=2, backend=backend) if EXPLORES else run(spec, path, jobs=1)
    assert end.here == end.total - len(before)
    after = kept(path)
    check(before, after, reported)
    same(after, whole)


def test_the_spec_is_one_of_many_points(spec: Path) -> None:
    assert read_spec(spec).size == 480
