"""``debubble plan`` as users and scripts call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.planner.frameworks.table import FRAMEWORKS
from debubble.planner.hardware.cluster import find_gpu
from debubble.planner.search import faster_schedules
from tests.planner.cases import no_more_gpus
from tests.some_effort import by_effort

Run = Callable[..., Any]

SMALL = (
    "plan", "llama-3.1-8b", "--gpu", "h100", "--gpus", 8, "--batch", 16, "--seq", 4096,
    "--schedule", "1f1b,zb-h1", "--cp", 1, "--zero", 1,
)  # fmt: skip


@pytest.fixture
def more_gpus() -> None:
    """Have answers say what more GPUs bring, too."""


@pytest.fixture(autouse=True)
def these_gpus(request: pytest.FixtureRequest) -> Iterator[None]:
    if "more_gpus" in request.fixturenames:
        yield
    else:
        with no_more_gpus():
            yield


@pytest.mark.slow
@pytest.mark.usefixtures("more_gpus")
def test_json_has_the_contract(run: Run) -> None:
    data = run(*SMALL, "--top", 2, "--json").data
    assert data["model"]["parameters"] == 8_030_261_248
    assert data["model"]["active_parameters"] == 8_030_261_248
    assert data["model"]["flops_per_token"].keys() == {"full", "causal"}
    assert len(data["plans"]) == 2
    first = data["plans"][0]
    assert first["degrees"].keys() == {"tp", "cp", "ep", "dp", "pp", "chunks"}
    assert first["degrees"]["cp"] == 1
    assert first["zero"] == 1
    assert sum(first["layers"]) == 32
    assert first["microbatches"] * first["microbatch_size"] * first["degrees"]["dp"] == 16
    assert 0 < first["step_time_error"] < first["step_time"]
    assert first["tokens_per_second"] == pytest.approx(16 * 4096 / first["step_time"])
    assert 0 < first["mfu"]["causal"] < first["mfu"]["full"] < 1
    assert first["fits"] is True
    assert first["flags"].keys() == FRAMEWORKS.keys()
    assert first["framework"] in FRAMEWORKS
    assert [plan["recommended"] for plan in data["plans"]] == [True, False]
    assert data["left_out"].keys() == {
        reason for one in data["frameworks"] for reason in one["left_out"]
    }
    assert sum(one["considered"] for one in data["frameworks"]) == data["considered"]
    for rank in first["memory"]:
        parts = ("weights", "gradients", "optimizer", "activations", "buffers", "logits", "margin")
        assert sum(rank[part] for part in parts) == pytest.approx(rank["peak"])
        assert rank["peak"] <= find_gpu("h100").memory
    assert first["efficiency"].keys() == {"value", "origin"}
    assert sum(data["left_out"].values()) > 0
    assert data["buys"]["gpus"] == 8
    assert data["buys"]["saves"] == pytest.approx(
        first["step_time"] - data["buys"]["plan"]["step_time"]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("more_gpus")
def test_text_says_the_plan_and_why_others_lose(run: Run) -> None:
    out = run(*SMALL, "--top", 3, "--why", "pp=4").out
    assert "llama-3.1-8b (8.03 B parameters) on 8 × h100" in out
    assert " per step, " in out
    assert "GB of 85.0 GB: fits" in out
    assert "confidence: simulated, with kernels at" in out
    assert "with 8 more GPUs, a step takes " in out
    assert "recommended" in out
    assert "pp=4: " in out
    assert "-o plan." in out


@pytest.mark.slow
def test_what_it_follows_from_is_shown_when_asked_for(run: Run) -> None:
    held = (*SMALL, "--pp", 2, "--tp", 1, "--schedule", "1f1b", "--top", 1)
    plain = run(*held).out
    assert not any(word in plain for word in ("rank 1 │", "at action", "--micro-batch-size"))
    out = run(*held, "--explain").out
    assert out.startswith(plain.splitlines()[0])
    assert "rank 1 │" in out
    assert "at action" in out
    assert " considered, " in out
    assert "flags for megatron" in out
    assert "--pipeline-model-parallel-size 2" in out
    other = run(*held, "--framework", "automodel", "--explain").out
    assert "flags for automodel" in other
    assert "pp_size: 2" in other


def test_memory_is_that_of_the_framework(run: Run) -> None:
    held = (*SMALL, "--pp", 4, "--tp", 1, "--microbatch-size", 1, "--schedule", "1f1b")
    held = (*held, "--recompute", "full", "--top", 1)
    plain = run(*held, "--json").data["plans"][0]
    own = run(*held, "--framework", "torchtitan", "--zero", 2, "--json").data["plans"][0]
    # PyTorch keeps a buffer for every microbatch and stage, here for 8 of them.
    boundary = 2 * 4096 * 4096
    assert own["microbatches"] == 8
    assert own["memory"][1]["buffers"] > 8 * boundary > 2 * plain["memory"][1]["buffers"]
    said = plain["flags"]["torchtitan"].splitlines()[0]
    assert said.startswith("# as PyTorch 2.13 with FSDP2 keeps it, rank ")
    assert "as PyTorch" not in own["flags"]["torchtitan"]
    assert "for NeMo Automodel" in run(*held, "--framework", "automodel").out


@pytest.mark.slow
def test_a_sequence_need_not_be_given(run: Run, refused: Callable[..., str]) -> None:
    words = ("plan", "gpt2", "--gpu", "h100", "--gpus", 2, "--batch", 8, "--schedule", "1f1b")
    assert "8 sequences of 1,024 tokens" in " ".join(run(*words).out.split())
    message = refused(*words, "--seq", 2048)
    assert "gpt2 has 1,024 learned positions; the nearest that works is 1,024" in message
    words = ("plan", "llama-3.2-1b", *words[2:])
    assert "8 sequences of 4,096 tokens" in " ".join(run(*words).out.split())


@pytest.mark.slow
def test_odd_sizes_warn(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(
        "{hidden: 3000, vocabulary: 50304, layers: 4, mlp: {width: 10922},"
        " attention: {heads: 24, kv_heads: 24, head_dim: 125}}"
    )
    words = ("plan", path, "--gpu", "h100", "--gpus", 1, "--batch", 4, "--top", 1)
    out = " ".join(run(*words).out.split())
    assert "warning: heads have 125 channels" in out
    assert "warning: the width 10922 of the MLP" in out
    (plan,) = run(*words, "--json").data["plans"]
    assert len(plan["warnings"]) == 3
    (plan,) = run(*SMALL, "--top", 1, "--json").data["plans"]
    assert plan["warnings"] == []


@pytest.mark.slow
def test_files(run: Run, tmp_path: Path) -> None:
    page, costs = tmp_path / "plan.html", tmp_path / "plan.yaml"
    held = ("--pp", 2, "--schedule", "1f1b", "--why", "schedule=gpipe")
    run(*SMALL, *held, "-o", page, "-o", costs)
    text = page.read_text(encoding="utf-8")
    assert "schedule=gpipe: " in text
    assert "── memory by rank at its peak " in text
    assert "--pipeline-model-parallel-size 2" in text
    assert "kept by all ranks" in run("simulate", "1f1b", "-p", 2, "--costs", costs).out


@pytest.mark.slow
def test_a_plan_becomes_a_schedule_of_any_number_of_stages(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    held = ("--pp", 4, "--schedule", "1f1b", "--microbatch-size", 1, "--top", 1)
    (plan,) = run(*SMALL, *held, "--json", "-o", path).data["plans"]
    data = run("compare", "1f1b", "interleaved-1f1b", "zb-v", "--costs", path, "--json").data
    rows = {row["name"]: row for row in data["rows"]}
    assert rows["1f1b"]["layers"] == plan["layers"]
    assert {name: len(row["layers"]) for name, row in rows.items()} == {
        "1f1b": 4, "interleaved-1f1b": 8, "zb-v": 8,
    }  # fmt: skip
    assert data["ranked_by"] == "makespan"
    assert all(sum(row["layers"]) == 32 for row in rows.values())
    one = run("simulate", "1f1b", "--costs", path, "--json").data
    assert one["layers"] == plan["layers"]
    assert one["makespan"] == rows["1f1b"]["makespan"]
    assert "layers × stages: " in run("simulate", "zb-v", "--costs", path).out
    words = ("optimize", "--costs", path, "--layers", "costs", "--effort", 0.01, "--no-cache")
    assert run(*words, "--json").data["makespan"] <= rows["1f1b"]["makespan"]


@pytest.mark.slow
def test_a_plan_that_cannot_be_written_is_printed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise db.FormatError("cannot write: No space left on device")

    monkeypatch.setattr("debubble.planner.answer.files.write_text", fail)
    result = run(*SMALL, "--pp", 2, "--schedule", "1f1b", "-o", tmp_path / "plan.yaml")
    assert result.code == 2
    assert "per step" in result.out
    assert "No space left" in result.err


@pytest.mark.slow
def test_an_order_of_its_own(
    run: Run, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(faster_schedules, "optimize", by_effort(faster_schedules.optimize))
    held = (*SMALL, "--pp", 4, "--framework", "any", "--top", 1, "--optimize", 1)
    held = (*held, "--time-limit", 1)
    order, page = tmp_path / "best.csv", tmp_path / "plan.html"
    result = run(*held, "--json", "-o", order)
    plans = result.data["plans"]
    assert [plan["schedule"] for plan in plans] == ["optimized", "zb-h1"]
    assert plans[0]["step_time"] < plans[1]["step_time"]
    assert "plan 1: " in result.err
    assert "4 ranks" in run("simulate", order).out
    assert "; optimized, " in run(*held, "-o", page).out
    assert "optimized" in page.read_text(encoding="utf-8")
    assert "--time-limit is for --optimize" in refused(*SMALL, "--time-limit", 1)
    assert "--time-limit is '0'" in refused(*held[:-1], 0)


@pytest.mark.slow
def test_layers_that_are_given_stay(run: Run, refused: Callable[..., str]) -> None:
    held = (*SMALL, "--pp", 2, "--schedule", "1f1b", "--json")
    (free, *_), (given, *_) = (
        run(*held, *more).data["plans"] for more in ((), ("--layers", "16,16"))
    )
    assert given["layers"] == [16, 16]
    assert free["layers"] != [16, 16]
    assert free["step_time"] < given["step_time"]
    assert "--layers is '16,x'" in refused(*held, "--layers", "16,x")
    assert "16/15" in refused(*held, "--layers", "16,15")


def test_a_measured_step_calibrates(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "steps.yaml"
    held = (*SMALL, "--tp", 2, "--pp", 2, "--microbatch-size", 1, "--schedule", "1f1b",
            "--recompute", "none", "--json")  # fmt: skip
    before = run(*held).data["plans"][0]
    slow = 1.2 * before["step_time"]
    run_with = f"tp: 2, pp: 2, dp: 2, microbatch_size: 1, layers: {before['layers']}"
    path.write_text(f"steps: [{{{run_with}, seconds: {slow}}}]\n", encoding="utf-8")
    after = run(*held, "--calibrate", path).data["plans"][0]
    assert after["layers"] == before["layers"]
    assert after["step_time"] == pytest.approx(slow, rel=1e-3)
    assert after["step_time_error"] < slow * 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "begin"),
    [("plan.sh", "#!/bin/bash"), ("bridge.py", "# llama-3.1-8b"), ("costs.yaml", "name: ")],
)
def test_a_file_is_written_by_its_name(run: Run, tmp_path: Path, name: str, begin: str) -> None:
    path = tmp_path / name
    result = run(*SMALL, "--pp", 2, "--tp", 1, "--framework", "megatron", "--schedule", "1f1b",
                 "--top", 1, "-o", path)  # fmt: skip
    assert path.read_text(encoding="utf-8").startswith(begin)
    assert f"wrote {path}" in result.err


@pytest.mark.slow
def test_a_schedule_that_comes_from_a_file_is_written_next_to_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "titan.py"
    held = (*SMALL, "--pp", 4, "--tp", 1, "--schedule", "zb-h1", "--framework", "torchtitan")
    run(*held, "--zero", 2, "-o", path)
    text = path.read_text(encoding="utf-8")
    assert 'pipeline_parallel_schedule_csv = "order.csv"' in text
    assert "4 ranks" in run("simulate", tmp_path / "order.csv").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan"], "MODEL is missing; for instance: debubble plan"),
        ([*SMALL[:2], "--gpu", "h100"], "--gpus is missing"),
        ([*SMALL, "--tp", 3], "tp"),
        ([*SMALL, "--why", "16"], "--why is '16'; give a key and a value, such as pp=16"),
        ([*SMALL, "--recompute", "some"], "--recompute is 'some'"),
        ([*SMALL, "--zero", 4], "--zero is '4'; give a whole number from 0 to 3"),
        ([*SMALL, "--memory", "much"], "memory is 'much'; give an amount of one GPU"),
        ([*SMALL, "--imbalance", "x"], "imbalance is nan"),
        ([*SMALL, "-o", "plan.txt"], "'plan.txt': a report is .html"),
        ([*SMALL, "--framework", "jax"], "unknown framework 'jax'"),
        ([*SMALL, "--framework", "primus"], "Primus is not for NVIDIA's GPUs such as h100"),
        ([*SMALL, "-o", "primus.yaml"], "Primus is not for NVIDIA's GPUs; the nearest"),
        ([*SMALL, "--framework", "any", "-o", "plan.sh"], "is --framework megatron or deepspeed"),
        ([*SMALL, "--why", "framework=jax"], "unknown framework 'jax'"),
        ([*SMALL, "--why", "tp=2,pp=2"], "--why is 'tp=2,pp=2'; give one condition"),
        ([*SMALL, "-o", "automodel.sh"], "NeMo Automodel is not run from .sh"),
        ([*SMALL, "--framework", "torchtitan", "-o", "plan.sh"], "works is plan.py or plan.toml"),
        ([*SMALL, "--gpus", 1009, "--batch", 256], "the nearest that works is 1024 GPUs"),
    ],
)
def test_what_cannot_be_planned_is_refused(refused: Run, words: list[Any], message: str) -> None:
    assert message in refused(*words)


@pytest.mark.usefixtures("more_gpus")
def test_what_does_not_fit_says_by_how_much(run: Run) -> None:
    found = run(*SMALL, "--memory", "12GB", "--tp", 8, "-o", "plan.sh")
    assert found.code == 1
    assert "no file was written: there is no plan for plan.sh" in found.err
    assert "no plan fits into 12.0 GB" in found.out
    said = " ".join(found.out.split())
    assert "the nearest, tp 8 with recompute full, needs 19.2 GB" in said
    assert "GPUs are enough: tp 8" in said
