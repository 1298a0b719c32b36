"""What is computed at a point is what the commands themselves compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.interchange.cost_files import load_costs
from debubble.planner.request import Fixed, plan_request
from debubble.planner.search.best_plans import search
from debubble.planner.search.groups import groups
from debubble.sweeps import spec_of
from debubble.sweeps.commands import COMMANDS, compute, simulate

EXAMPLES = Path(__file__).parents[2] / "examples"


def rows_of(command: str, options: dict[str, Any], folder: Path = EXAMPLES) -> list[dict[str, Any]]:
    """Rows of the only point of a sweep."""
    first, *rest = options
    data = {
        "command": command, "grid": {first: [options[first]]},
        "options": {name: options[name] for name in rest},
    }  # fmt: skip
    spec = spec_of(data, folder)
    (result,) = compute(spec.command, spec.files, list(spec.points()))
    return result.rows


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe-v", "interleaved-1f1b"])
def test_a_simulation_is_that_of_the_library(name: str) -> None:
    costs = db.Costs(F=1, I=1.25, W=0.75, p2p=0.1, head={"F": 0.5, "B": 1.0})
    given = {"F": 1, "I": 1.25, "W": 0.75, "p2p": 0.1, "head": {"F": 0.5, "B": 1}}
    options = {"schedule": name, "ranks": 4, "microbatches": 8, "costs": given, "memory": 3}
    (row,) = rows_of("simulate", options)
    wanted = db.simulate(db.make(name, ranks=4, microbatches=8, costs=costs, memory=3), costs)
    assert row["makespan"] == wanted.makespan
    assert row["bubble_ratio"] == wanted.bubble_ratio
    assert row["peak_activation"] == max(wanted.peak_activation)
    assert row["fits"] == (max(wanted.peak_activation) <= 3)
    assert row["chunks"] == wanted.schedule.chunks


def test_lowerings_modes_and_options_apply() -> None:
    options = {
        "schedule": "vpp", "ranks": 4, "microbatches": 8, "chunks": 2, "options.group_size": 4,
        "recompute": "full", "iterations": 2, "sync": "local", "p2p_mode": "channel",
        "costs": {"p2p": 0.5},
    }  # fmt: skip
    (row,) = rows_of("simulate", options)
    costs = db.Costs(p2p=0.5)
    schedule = db.make(
        "vpp", ranks=4, microbatches=8, chunks=2, group_size=4, recompute="full", iterations=2,
        sync="local", costs=costs,
    )  # fmt: skip
    assert row["makespan"] == db.simulate(schedule, costs, p2p_mode="channel").makespan


def test_a_cost_file_has_sizes_and_limit_and_costs_beside_it_count() -> None:
    path = "zero-bubble/gpt-6.2b-m24.yaml"
    (plain,) = rows_of("simulate", {"schedule": "1f1b", "costs": path})
    (slow,) = rows_of("simulate", {"schedule": "1f1b", "costs": path, "costs.p2p": 5})
    assert plain["stages"] == 8
    assert slow["makespan"] > plain["makespan"]


def test_layers_of_a_cost_file_are_cut_for_every_schedule() -> None:
    rows = rows_of("compare", {"schedules": ["1f1b", "zb-v"], "costs": "layers.yaml"})
    file = load_costs(EXAMPLES / "layers.yaml")
    result = db.compare(
        ["1f1b", "zb-v"], ranks=4, microbatches=8, memory=16, costs=file.costs, layers=file.layers
    )
    assert [row["makespan"] for row in rows] == [row.makespan for row in result.rows]
    (one,) = rows_of("simulate", {"schedule": "zb-v", "costs": "layers.yaml"})
    assert one["makespan"] == rows[0]["makespan"]
    (refused,) = rows_of("simulate", {"schedule": "1f1b", "costs": "layers.yaml", "costs.F": 2})
    assert "costs.F is that of layers in the cost file" in refused["error"]


def test_schedules_of_files_are_simulated_and_checked(tmp_path: Path) -> None:
    order = db.make("zb-h1", ranks=2, microbatches=4)
    order.save(tmp_path / "own.csv")
    (row,) = rows_of("simulate", {"schedule": "own.csv"}, tmp_path)
    assert row["makespan"] == db.simulate(order).makespan
    (row,) = rows_of("simulate", {"schedule": "schedule.py:order", "ranks": 4, "microbatches": 8})
    assert row["makespan"] > 0


def test_a_comparison_has_a_row_for_each_schedule() -> None:
    options = {"schedules": ["1f1b", "gpipe", "dualpipe"], "ranks": 3, "microbatches": 6}
    rows = rows_of("compare", {**options, "memory": 4})
    wanted = db.compare(["1f1b", "gpipe", "dualpipe"], ranks=3, microbatches=6, memory=4)
    assert [row["schedule"] for row in rows] == ["1f1b", "gpipe", "dualpipe"]
    assert [row.get("makespan") for row in rows] == [*(r.makespan for r in wanted.rows), None]
    assert [row.get("place") for row in rows] == [1, 2, None]
    assert rows[2]["error"].startswith("'dualpipe' needs an even number of ranks")


@pytest.mark.slow
def test_a_search_has_its_bound() -> None:
    options = {"ranks": 2, "microbatches": 2, "memory": 2, "costs": {"F": 1, "I": 1, "W": 1}}
    (row,) = rows_of("optimize", options)
    assert row["lower_bound"] <= row["makespan"] <= 9
    assert row["status"] == "optimal"


PLAN = {
    "model": "llama-3.1-8b", "gpu": "h100", "gpus": 8, "batch": 16, "seq": 4096, "zero": 1, "cp": 1,
    "microbatch_size": 1, "schedules": "1f1b",
}  # fmt: skip


def test_a_plan_is_the_best_of_the_search() -> None:
    (row,) = rows_of("plan", PLAN)
    asked = plan_request("llama-3.1-8b", "h100", 8, 16, 4096)
    fixed = Fixed(zero=1, cp=1, microbatch_size=1, schedules=("1f1b",))
    best = search(asked, groups(replace(asked, fixed=fixed)), 1).plans[0]
    assert row["step_time"] == best.step_time
    assert row["peak"] == max(best.peaks)
    assert row["schedule"] == "1f1b"
    assert [row[name] for name in ("tp", "dp", "pp")] == [
        getattr(best.candidate.degrees, name) for name in ("tp", "dp", "pp")
    ]


@pytest.mark.slow
def test_models_and_gpus_come_from_files_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text("{base: h100, bandwidth: 1e12}\n", encoding="utf-8")
    (row,) = rows_of("plan", {**PLAN, "gpu": "slow.yaml"}, tmp_path)
    (usual,) = rows_of("plan", PLAN)
    assert row["step_time"] > usual["step_time"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model", "llama-3.1-9b", "there is no model"),
        ("gpu", "h10", "unknown GPU 'h10'"),
        ("gpu", 100, "gpu is 100; give a text such as h100"),
        ("framework", "jax", "framework is 'jax'"),
        ("schedules", ["1f2b"], "1f2b"),
        ("seq", 0, "seq is 0"),
    ],
)
def test_values_that_no_plan_takes_are_refused_at_once(name: str, value: Any, message: str) -> None:
    with pytest.raises(db.DebubbleError, match=message):
        rows_of("plan", {**PLAN, name: value})


def test_a_point_without_a_plan_says_why() -> None:
    (row,) = rows_of("plan", {**PLAN, "memory": "5GB"})
    assert row["error"] == "no plan fits into 5.0 GB"
    (row,) = rows_of("plan", {**PLAN, "tp": 3})
    assert row["error"].startswith("tp 3 does not divide 8 GPUs")


def test_an_error_of_a_point_is_its_result() -> None:
    (row,) = rows_of("simulate", {"schedule": "1f1b", "ranks": 4, "microbatches": 8, "chunks": 2})
    assert "chunks" in row["error"]
    (row,) = rows_of("simulate", {"schedule": "1f1b", "ranks": 4})
    assert row["error"].startswith("'1f1b' needs microbatches")


def test_a_bug_at_a_point_is_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: Any) -> Any:
        raise TypeError("no")

    command = COMMANDS["simulate"]
    monkeypatch.setitem(COMMANDS, "simulate", type(command)(broken, command.parameters))
    (row,) = rows_of("simulate", {"schedule": "1f1b"})
    assert row == {"error": "internal error: TypeError: no"}


def test_a_command_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    command = COMMANDS["simulate"]
    parameters = {"ranks": command.parameters["ranks"]}
    monkeypatch.setitem(
        COMMANDS,
        "double",
        type(command)(lambda options: [{"twice": 2 * options["ranks"]}], parameters),
    )
    assert rows_of("double", {"ranks": 4}) == [{"twice": 8}]
    assert "schedule" not in parameters
    assert simulate is COMMANDS["simulate"].run


@pytest.mark.slow
def test_layers_are_those_of_the_cost_file() -> None:
    options = {
        "costs": "layers.yaml", "microbatches": 4, "layers": "costs", "placement": "loop",
        "effort": 0.01,
    }  # fmt: skip
    (row,) = rows_of("optimize", options)
    file = load_costs(EXAMPLES / "layers.yaml")
    wanted = db.optimize(
        ranks=4, microbatches=4, layers=file.layers, costs=file.costs, placement="loop",
        memory=file.memory_limit, effort=0.01, workers=1, cache=False, published=False,
    )  # fmt: skip
    assert row["lower_bound"] <= wanted.makespan * (1 + 1e-9)
    assert wanted.lower_bound <= row["makespan"] * (1 + 1e-9)
    (row,) = rows_of("optimize", {"ranks": 4, "microbatches": 4, "layers": "costs"})
    assert row["error"] == "layers is 'costs', and there is no cost file that has any layers"
